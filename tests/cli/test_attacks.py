"""Places, streams and names that the command line once stumbled over."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import polars as pl
import pytest
from commands import ok, run
from paths import ROOT

from tracekit.report.tables import encode_frame

EVENT = {"ph": "X", "cat": "user_annotation", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 5}
HOSTILE = "\x1b]0;title\x07\x1b[2J\x9b31m"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": [EVENT]}))
    return path


def tracekit(tmp_path: Path, *arguments: object, **more: object) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "TRACEKIT_CACHE_DIR": str(tmp_path / "cache")}
    environment.update(more.pop("env", {}))  # type: ignore[call-overload]
    given: dict[str, object] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "timeout": 60, **more}
    command = [sys.executable, "-m", "tracekit", *map(str, arguments)]
    return subprocess.run(command, env=environment, check=False, **given)  # type: ignore[call-overload,no-any-return]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_named_pipe_is_read_once(trace: Path, tmp_path: Path) -> None:
    """It was read for its digest first, and then waited for without an end."""
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(trace.read_bytes()), daemon=True)
    writer.start()
    ran = tracekit(tmp_path, "info", pipe)
    assert (ran.returncode, ran.stderr) == (0, b"")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no such device here")
def test_a_device_without_an_end(tmp_path: Path) -> None:
    ran = tracekit(tmp_path, "info", "/dev/zero")
    assert ran.returncode == 3
    assert b"not a JSON trace" in ran.stderr


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no such device here")
@pytest.mark.parametrize("arguments", [["info"], ["--help"], ["export", "-o", "out"]])
def test_a_full_disk_behind_stdout(arguments: list[str], trace: Path, tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        ran = tracekit(
            tmp_path, *arguments, *([trace] if "--help" not in arguments else []), stdout=full, cwd=tmp_path
        )
    assert ran.returncode == 2
    assert ran.stderr.decode().splitlines() == [
        "tracekit: error: the disk is full; make room, or write elsewhere"
    ]


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="limits of a process")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "arguments", [["report", ROOT / "sample_traces" / "cnn_cpu", "-f", "json"], ["--help"]]
)
def test_a_disk_that_is_nearly_full(arguments: list[object], unbuffered: str, tmp_path: Path) -> None:
    """An unbuffered stream takes a part of a text, which was then lost with exit code 0."""
    import resource

    with (tmp_path / "out.json").open("wb") as out:
        ran = tracekit(
            tmp_path,
            *arguments,
            stdout=out,
            env={"PYTHONUNBUFFERED": unbuffered},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000)),
        )
    assert ran.returncode == 2
    assert b"the disk is full" in ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize("manifest", ['{"a":' * 50_000 + "1" + "}" * 50_000, "[]", "", '{"name": "a page"}'])
def test_a_manifest_that_is_none(manifest: str, trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that was nested deep was a fault in tracekit; one of another program kept the folder's traces from being read."""
    (trace.parent / "manifest.json").write_text(manifest)
    assert run(capsys, "info", trace)[0] == 0
    assert run(capsys, "info", trace.parent)[0] == 0


def test_a_manifest_of_another_version(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (trace.parent / "manifest.json").write_text('{"schema_version": 99}')
    assert run(capsys, "info", trace)[0] == 0
    code, _, err = run(capsys, "info", trace.parent)
    assert (code, "its schema version is 99; use a newer tracekit" in err) == (3, True)


def test_a_name_that_is_too_long(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("report", "info", "doctor", "view"):
        code, _, err = run(capsys, command, "a" * 300)
        assert (code, "(File name too long)" in err) == (3, True)


def test_an_error_is_never_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "report", "/".join(["folder"] * 2_000) + "/t.json")
    assert code == 3
    assert len(err) < 1_200
    assert "too long" in err


@pytest.mark.parametrize("linked", ["", "symbolic", "hard"])
def test_no_command_replaces_its_input(linked: str, trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`report in.json -o in.json` replaced the trace by its report."""
    before, out = trace.read_bytes(), trace
    if linked:
        out = trace.with_name("other.json")
        (out.symlink_to if linked == "symbolic" else out.hardlink_to)(trace)
    for command in ("report", "info", "kernels"):
        code, _, err = run(capsys, command, trace, "-f", "json", *(() if command == "info" else ("-o", out)))
        assert code == (0 if command == "info" else 2), err
    assert "it is an input of this command" in err
    zipped = trace.rename(trace.with_name("other.json.gz"))  # whose suffix is that of no format
    for command in ("report", "info", "kernels", "xsp", "nsys-stats", "export"):
        code, _, err = run(capsys, command, zipped, "-o", zipped)
        assert code == 2
        assert "it is an input of this command" in err
    assert zipped.read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("output", ["trace.json.gz", "manifest.json"])
def test_no_command_replaces_what_lies_in_a_folder_that_it_is_given(
    output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`diff DIR b -o DIR/trace.json.gz` replaced the trace, and any output the manifest beside it."""
    monkeypatch.setenv("TRACEKIT_BASELINES", str(tmp_path / "kept"))
    one, other = (shutil.copytree(ROOT / "sample_traces/cnn_cpu", tmp_path / name) for name in ("a", "b"))
    changes = tmp_path / "changes.toml"
    changes.write_text('scale = ["category:convolution=0.5"]')
    assert run(capsys, "baseline", "save", "x", one)[0] == 0
    kept = tmp_path / "kept/x.runs"
    asked = [
        (("diff", one, other), one / output),
        (("diff", "--against", "x", one), one / output),
        (("diff", one / "trace.json.gz", other), one / output),
        (("trend", one, other), one / output),
        (("scaling", one, other), one / output),
        (("what-if", one, "--changes", changes), changes),
        (("diff", "--against", "x", one), kept),
        (("baseline", "list"), kept),
        (("baseline", "show", "x"), kept),
    ]
    before = {path: path.read_bytes() for path in {target for _, target in asked}}
    for words, target in asked:
        code, _, err = run(capsys, *words, "-f", "json", "-o", target)
        assert (code, "it is an input of this command" in err) == (2, True), (words, err)
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.slow
@pytest.mark.parametrize("command", ["compare", "trajectory", "report", "info"])
def test_a_device_s_name_in_a_manifest_steers_no_terminal(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(ROOT / "sample_traces/cnn_cpu", tmp_path / "a")
    told = json.loads((folder / "manifest.json").read_text())
    told |= {"device": "cuda", "device_name": HOSTILE, "settings": told["settings"] | {"device": "cuda"}}
    (folder / "manifest.json").write_text(json.dumps(told))
    for form in ("text", "md") if command != "info" else ("text",):
        _, out, err = run(capsys, command, folder, *(() if form == "text" else ("-f", form)))
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", out + err)


def test_a_name_of_a_million_letters_is_not_written_for_each_shape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A thread's name of 1 MB took 4 GB for a page, and a device's of 20 MB was printed whole."""
    events: list[dict[str, object]] = [{**EVENT, "ts": 10 * number} for number in range(1_000)]
    events.append({"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "N" * 1_000_000}})
    kernel = {"cat": "kernel", "tid": 7, "args": {"device": 0, "stream": 7, "correlation": 1}}
    device = {"id": 0, "name": "D" * 1_000_000, "numSms": 4}
    path = tmp_path / "long.json"
    path.write_text(json.dumps({"deviceProperties": [device], "traceEvents": [*events, EVENT | kernel]}))
    page = tmp_path / "page.html"
    ok(capsys, "report", path, "-o", page)
    assert page.stat().st_size < 1_000_000
    for command in ("report", "info", "doctor"):
        _, out, err = run(capsys, command, path)
        assert len(out) + len(err) < 50_000


def test_an_output_of_before_may_be_replaced(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = trace.with_name("report.json")
    for _ in range(2):
        ok(capsys, "report", trace, "-o", out)


@pytest.mark.slow
def test_traces_of_one_name_keep_their_own_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last one replaced the others."""
    for name in ("a/x", "b/x", "b/y", "c"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "trace.json").write_text(json.dumps({"traceEvents": [EVENT]}))
    traces = sorted(tmp_path.rglob("trace.json"))
    ok(capsys, "report", *traces, "-o", tmp_path / "out", "-f", "csv")
    names = sorted(each.name for each in (tmp_path / "out").iterdir())
    assert names == ["c-trace", "x-trace-1", "x-trace-2", "y-trace"]


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="closes descriptors by a shell")
@pytest.mark.parametrize(("closed", "arguments", "code"), [(">&-", "info", 0), ("2>&-", "nope", 2)])
def test_closed_streams(closed: str, arguments: str, code: int, trace: Path, tmp_path: Path) -> None:
    command = f'"{sys.executable}" -m tracekit {arguments} "{trace}" {closed}'
    ran = subprocess.run(
        ["sh", "-c", command],
        env={**os.environ, "TRACEKIT_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (code, b"", b"")


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="no such pipes here")
def test_a_reader_who_is_gone_before_the_first_byte(trace: Path, tmp_path: Path) -> None:
    """The command's framework left with 1, which says that a gate failed."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        ran = tracekit(tmp_path, "info", trace, stdout=pipe)
    assert (ran.returncode, ran.stderr) == (0, b"")


@pytest.mark.slow
def test_an_encoding_that_lacks_a_character(trace: Path, tmp_path: Path) -> None:
    ran = tracekit(tmp_path, "report", trace, env={"PYTHONIOENCODING": "ascii"})
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert ran.stdout.isascii()


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    "command", [["info"], ["doctor"], ["info", "-f", "json"], ["doctor", "-f", "json"], ["report"]]
)
def test_names_cannot_steer_the_terminal(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [
        {**EVENT, "name": f"ProfilerStep#{HOSTILE}"},
        {**EVENT, "name": HOSTILE, "cat": HOSTILE, "ts": "?"},
        {**EVENT, "cat": "kernel", "name": HOSTILE, "dur": -5, "args": {"device": 0, "stream": 7}},
    ]
    header = {"schemaVersion": HOSTILE, "deviceProperties": [{"id": 0, "name": HOSTILE}]}
    path = tmp_path / "t.json"
    path.write_text(json.dumps({**header, "traceEvents": events}) + HOSTILE)
    code, text, err = run(capsys, *command[:1], path, *command[1:])
    assert (code, err) == (int(command[0] == "doctor"), "")  # an event without a time is lost
    assert not [
        letter for letter in text if letter != "\n" and (ord(letter) < 32 or 127 <= ord(letter) < 160)
    ]


STEERS = "\x1b]0;x\x07\x9b31m\u202er\r\u2028"
RAW = re.compile("[\\x00-\\x09\\x0b-\\x1f\\x7f-\\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@pytest.fixture
def steering(tmp_path: Path) -> Path:
    """A trace in which every name steers a terminal, in such a file, in such a folder, with such a manifest."""
    where = {"pid": 1, "tid": 1, "ph": "X", "dur": 50}
    device = {"device": 0, "stream": 7, "correlation": 1, "External id": 1}
    events = [
        {**where, "cat": "user_annotation", "name": f"range{STEERS}", "ts": 1},
        {**where, "cat": "cpu_op", "name": f"@op{STEERS}", "ts": 2, "dur": 9, "args": {"External id": 1}},
        {**where, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 3, "dur": 1, "args": device},
        {**where, "cat": "kernel", "name": f"=k{STEERS}", "ts": 9, "dur": 3, "args": device},
    ]
    folder = tmp_path / f"d{STEERS}"
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps({"schema_version": STEERS}))
    header = {"deviceProperties": [{"id": 0, "name": STEERS}]}
    path = folder / f"t{STEERS}.json"
    path.write_text(json.dumps({**header, "traceEvents": events}))
    return path


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such a name")
@pytest.mark.parametrize(
    "command",
    [
        *(
            "info",
            "doctor",
            "report -f json",
            "layers -f speedscope",
            "export -o {out}",
            "export -f csv -o {out}",
        ),
        *("export --to chrome -o {out}.json", "nsys-stats -r cuda_gpu_kern_sum -f csv", "kernels -f csv"),
        *("nsys-stats -r cuda_gpu_kern_sum -f json", "xsp --analysis A8 -f csv", "xsp --analysis A8 -f json"),
        *(
            "report --rank 3",
            "report -o {out}/none/x.json",
            "scrub {out}",
            "kernels --sort {out}",
            "--debug {out}",
        ),
    ],
)
@pytest.mark.sampled(4)
def test_nothing_steers_the_terminal(
    command: str, steering: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *flags = command.split()
    out = str(tmp_path / f"o{STEERS}")
    _, text, err = run(capsys, name, steering, *(flag.replace("{out}", out) for flag in flags))
    assert text or err
    assert not RAW.search(text + err)
    _, text, err = run(capsys, name, steering.parent)
    assert not RAW.search(text + err)


@pytest.mark.slow
def test_a_cell_that_begins_like_a_formula_is_text(
    steering: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ok(capsys, "export", steering, "-f", "csv", "-o", tmp_path / "out")
    cells = [line.split(",") for line in (tmp_path / "out" / "device.csv").read_text().splitlines()]
    assert [row[4] for row in cells] == ["name", "'=k ]0;x 31m r "]
    table = ok(capsys, "nsys-stats", steering, "-r", "cuda_gpu_kern_sum", "-f", "csv")
    assert table.splitlines()[1].startswith("100.0,3000,1,3000.0,")
    assert table.splitlines()[1].endswith(",'=k ]0;x 31m r ")


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        *(("=1+1", "'=1+1"), ("+a", "'+a"), ("-a", "'-a"), ("@a", "'@a"), ("\t=a", "' =a"), ("\ra", "' a")),
        *(
            ("-5", "-5"),
            ("+1.5e-3", "'+1.5e-3"),
            ("-1.5e-3", "-1.5e-3"),
            ("-1-1", "'-1-1"),
            ("a=b", "a=b"),
            (" =a", "' =a"),
            (None, ""),
        ),
    ],
)
def test_texts_of_csv(text: str | None, cell: str) -> None:
    frame = pl.DataFrame({"=a": [text], "n": [-5]}, schema={"=a": pl.String, "n": pl.Int64})
    assert encode_frame(frame, "csv").decode() == f"'=a,n\n{cell},-5\n"


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_nothing_behind(number: int, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    environment = {**os.environ, "TRACEKIT_CACHE_DIR": str(tmp_path / "cache")}
    code = (
        "import os, sys, tracekit.cli.main as program\n"
        "os.fsync = lambda _: os.kill(os.getpid(), int(sys.argv[-1]))\n"
        "program.main(sys.argv[1:-1])"
    )
    words = ["report", str(ROOT / "sample_traces" / "cnn_cpu"), "-o", str(out / "r.json"), str(int(number))]
    ran = subprocess.run(
        [sys.executable, "-c", code, *words],
        env=environment,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 128 + number, ran.stderr
    assert list(out.iterdir()) == []
    assert ran.stderr.decode().strip().count("\n") == 0


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such a name")
def test_a_file_name_in_an_error_cannot_steer_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "info", tmp_path / f"{HOSTILE}.json")
    assert code == 3
    assert "\x1b" not in err


def test_more_rows_than_a_number_can_count(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "report", trace, "--top", "9" * 20)[0] == 2


def test_a_named_analysis_without_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "analysis", "idle")
    assert code == 2
    assert "no trace is given" in err


@pytest.mark.quick(2)
@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such a name")
@pytest.mark.parametrize("form", ["table", "json", "md"])
def test_a_file_name_that_is_no_utf8(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = os.fsencode(tmp_path) + b"/t\xff.json"
    with open(path, "wb") as file:  # noqa: PTH123 - bytes, not text
        file.write(
            b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]}'
        )
    assert ok(capsys, "report", os.fsdecode(path), "--only", "steps", "-f", form)


BARRED = """
import os, sys
from tracekit.cli.main import main

folder = sys.argv[1]
os.chdir(folder)
for words in (
    "info in", "compare shut/a shut/b", "xsp shut/a", "trajectory shut/a", "scaling shut/a", "run shut/a.py",
    "dataset shut/a -o d.csv", "scrub shut/a.sqlite b.sqlite", "roofline in --machine shut/a",
    "report in -f csv -o shut/a", "export in -o shut/a",
):
    try:
        main([*words.split(), "--no-cache"] if words.startswith("report") else words.split())
        code = 0
    except SystemExit as left:
        code = left.code
    print(words.split()[0], code)
"""


@pytest.mark.slow
def test_what_the_user_may_not_enter_was_a_fault_of_ours(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "shut").mkdir()
    (tmp_path / "in").mkdir()
    trace.rename(tmp_path / "in" / "t.json")
    (tmp_path / "in" / "link.json").symlink_to(tmp_path / "shut" / "a")
    less = []
    if os.geteuid() == 0:  # root may enter everything, unless that right is taken
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            pytest.skip("root needs setpriv to lack a permission")
        rights = "-dac_override,-dac_read_search"
        less = [setpriv, f"--bounding-set={rights}", f"--inh-caps={rights}"]
    (tmp_path / "shut").chmod(0)
    try:
        done = subprocess.run(
            [*less, sys.executable, "-c", BARRED, str(tmp_path)], capture_output=True, text=True, check=True
        )
    finally:
        (tmp_path / "shut").chmod(0o700)
    codes = dict(line.split() for line in done.stdout.splitlines() if re.fullmatch(r"[a-z]+ \d+", line))
    assert codes.pop("info") == "0"
    assert codes.pop("report") == codes.pop("export") == "2"
    assert set(codes.values()) == {"3"}, codes
    assert len(codes) == 8
    assert done.stderr.count("Permission denied") == 10
