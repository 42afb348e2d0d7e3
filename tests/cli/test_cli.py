"""The command line as a user meets it: output, formats, exit codes, one-line errors."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from commands import ok, run
from paths import PUBLIC, ROOT, SAMPLES
from real_traces import QUICK, traces
from synthetic import damage, dump, generate, write

import tracekit
from tracekit.analyses.registry import BUILT_IN
from tracekit.cli.commands import COMMANDS
from tracekit.cli.commands.info import _not_captured
from tracekit.cli.main import declared, main
from tracekit.errors import UnreadableTraceError
from tracekit.facts.distribution import DISTRIBUTION, EXTRAS

SAMPLE = ROOT / "sample_traces" / "cnn_cpu" / "trace.json.gz"


@pytest.fixture(scope="module")
def gpu_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(generate(seed=3, steps=3, layers=1), tmp_path_factory.mktemp("gpu") / "rank-0.json.gz")


@pytest.mark.quick(1)
@pytest.mark.parametrize("path", [each for each in traces(*SAMPLES, *PUBLIC) if each.id in QUICK])
def test_report_on_real_traces(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "report", path)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split()[0].rstrip(":") == lines[0].split()[0].rstrip(":").upper(), (
        "the verdict comes first"
    )
    assert 20 < len(lines) < 130


@pytest.mark.quick(1)
@pytest.mark.parametrize("analysis", [a.name for a in BUILT_IN])
@pytest.mark.sampled(4)
def test_every_analysis_in_every_format(
    analysis: str, gpu_trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ok(capsys, analysis, gpu_trace, "--window", "trace").strip()
    assert ok(capsys, analysis, gpu_trace, "-f", "md").startswith("## ")
    parsed = json.loads(ok(capsys, analysis, gpu_trace, "--format", "json"))
    assert list(parsed["analyses"]) == [analysis]
    if parsed["analyses"][analysis]["tables"]:
        assert "," in ok(capsys, analysis, gpu_trace, "-f", "csv").splitlines()[0]
        target = tmp_path / "t.parquet"
        assert ok(capsys, analysis, gpu_trace, "-o", target) == ""
        assert pl.read_parquet(target).width > 1


def test_a_trace_that_names_no_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(generate(2, host_recorded=False, steps=1, layers=1), tmp_path / "t.json")
    for command in ("report", "info", "doctor"):
        assert ok(capsys, command, path, "-f", "json")


def test_json_contract(gpu_trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "report", gpu_trace, "--format", "json", "--window", "trace")
    report = json.loads(out)
    assert code == 0
    assert report["schema_version"] == "1.0"
    assert {"trace", "health", "verdict", "analyses"} <= set(report)
    (device,) = report["analyses"]["breakdown"]["tables"]["devices"]
    parts = ["compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns"]
    assert sum(device[part] for part in parts) == device["window_ns"]
    assert all(
        isinstance(device[key], int)
        for key in (
            "device_id", "window_ns", "busy_ns", "compute_ns", "communication_ns", "memory_ns",
            "exposed_communication_ns", "exposed_memory_ns", "overlap_ns", "idle_ns",
        )
    )  # fmt: skip
    row = report["analyses"]["kernels"]["tables"]["by_name"][0]
    assert {"name", "category", "count", "total_ns", "mean_ns"} <= set(row)
    assert isinstance(report["analyses"]["breakdown"]["findings"], list)


@pytest.mark.slow
def test_outputs_by_suffix_and_figures(
    gpu_trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ("--only", "steps", "--only", "kernels")
    for name, begins in (("r.html", "<!doctype html>"), ("r.json", "{"), ("r.md", "#")):
        target = tmp_path / name
        assert run(capsys, "report", gpu_trace, *few, "-o", target)[0] == 0
        assert target.read_text("utf-8").lower().startswith(begins)
    assert run(capsys, "report", gpu_trace, *few, "--figures", tmp_path / "f")[0] == 0
    assert list((tmp_path / "f").glob("*.svg"))
    assert run(capsys, "report", gpu_trace, *few, "-f", "parquet", "-o", tmp_path / "tables")[0] == 0
    assert list((tmp_path / "tables").rglob("*.parquet"))
    assert run(capsys, "export", gpu_trace, "-o", tmp_path / "frames")[0] == 0
    assert pl.read_parquet(tmp_path / "frames" / "device.parquet").height > 0


@pytest.mark.slow
def test_ranks(gpu_trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = write(generate(seed=4, rank=1, steps=1, layers=1), tmp_path / "one.json")
    code, out, _ = run(capsys, "report", gpu_trace, other, "--format", "json")
    assert code == 0
    assert [r["trace"]["rank"] for r in json.loads(out)["reports"]] == [0, 1]
    code, out, _ = run(capsys, "report", gpu_trace, other, "--rank", "1", "--format", "json")
    assert json.loads(out)["trace"]["rank"] == 1
    code, _, err = run(capsys, "report", gpu_trace, other, "--rank", "7")
    assert code == 2
    assert "no trace has rank 7" in err


@pytest.mark.slow
@pytest.mark.parametrize("command", ["report", "kernels"])
def test_several_traces_are_one_json_document(
    command: str, gpu_trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write(generate(seed=4, rank=1, steps=1, layers=1), tmp_path / "one.json")
    both = json.loads(ok(capsys, command, gpu_trace, other, "-f", "json"))
    each = [json.loads(ok(capsys, command, path, "-f", "json")) for path in (gpu_trace, other)]
    joint = both.pop("job", None)
    assert (joint is not None) == (command == "report")
    # Beside the joint view, no advice is to compare the ranks.
    assert _without_advice(both) == {"schema_version": "1.0", "reports": _without_advice(each)}


def _without_advice(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_advice(one) for one in value]
    if isinstance(value, dict):
        return {key: _without_advice(one) for key, one in value.items() if key != "advice"}
    return value


def test_sort_top_and_table(gpu_trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(
        capsys, "kernels", gpu_trace, "--table", "by_name", "--sort", "count", "--top", "3", "-f", "csv"
    )
    assert code == 0
    header, *rows = out.splitlines()
    assert len(rows) == 3
    at = header.split(",").index("count")
    assert rows
    assert at > 0
    for flag, value, fault in (("--table", "nope", "has no table"), ("--sort", "nope", "has no column")):
        code, _, err = run(capsys, "kernels", gpu_trace, flag, value)
        assert code == 2
        assert fault in err


@pytest.mark.slow
def test_causes_shows_only_the_tables_of_device_idle_time(
    gpu_trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = ["by_cause", "by_layer", "by_operator", "by_range", "device_gaps"]
    for flags, tables in ((("--causes",), wanted), ((), [*wanted, "streams", "gaps"])):
        code, out, _ = run(capsys, "idle", gpu_trace, "--format", "json", *flags)
        assert code == 0
        assert list(json.loads(out)["analyses"]["idle"]["tables"]) == tables
    code, _, err = run(capsys, "idle", gpu_trace, "--causes", "--table", "streams")
    assert code == 2
    assert "its tables are by_cause" in err
    code, _, err = run(capsys, "idle", gpu_trace, "--table", "by_caus")
    assert (code, err) == (2, "tracekit: error: idle has no table 'by_caus'; did you mean by_cause?\n")
    assert run(capsys, "kernels", gpu_trace, "--causes")[0] == 2


@pytest.mark.slow
def test_comm_pattern(gpu_trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def communication(*more: str) -> int:
        _, out, _ = run(capsys, "breakdown", gpu_trace, "-f", "json", *more)
        return int(json.loads(out)["analyses"]["breakdown"]["tables"]["devices"][0]["communication_ns"])

    assert communication("--comm-pattern", "gemm") > communication()
    code, _, err = run(capsys, "breakdown", gpu_trace, "--comm-pattern", "(")
    assert code == 2
    assert "regular expression" in err
    code, _, err = run(capsys, "breakdown", gpu_trace, "--comm-pattern", "elementwize")
    assert (code, err) == (
        2,
        "tracekit: error: no kernel matches --comm-pattern 'elementwize'; did you mean elementwise?\n",
    )


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        (["kernls", SAMPLE], "'kernels'"),
        ([SAMPLE], f"Did you mean 'tracekit report {SAMPLE}'?"),
        ([__file__], f"Did you mean 'tracekit run {__file__}'?"),
        (["report", SAMPLE, "--formt", "x"], "--format"),
        (["report", SAMPLE, "--only", "idel"], "there is no analysis 'idel'; did you mean idle?"),
        (["analysis", "Kernel", SAMPLE], "did you mean kernels?"),
        (["report", SAMPLE, "-f", "jsn"], "did you mean json?"),
        (
            ["report", SAMPLE, "--window", "step"],
            "'step' is not one of 'steps', 'trace'; did you mean steps?",
        ),
        (["kernels", SAMPLE, "--sort", "total"], "did you mean total_ns?"),
        (["nsys-stats", SAMPLE, "-r", "cuda_gpu_kern_sm"], "did you mean cuda_gpu_kern_sum"),
        (["characterize", SAMPLE, "--sort", "optimal"], "did you mean optimal_batch?"),
    ],
)
def test_a_wrong_name_gets_the_nearest_one(
    words: list[str], nearest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, *words)
    assert code == 2
    assert nearest in err
    assert err.count("\n") == 1


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["report"], 2, "Missing argument"),
        (["frobnicate"], 2, "No such command"),
        (["report", "--frob", "x"], 2, "No such option"),
        (["report", "missing.json"], 3, "missing.json: no such file"),
        (["report", str(ROOT / "tests/data")], 3, "holds no trace"),
        (["report", str(SAMPLE), "-o", "x.docx"], 2, "no format has the suffix"),
        (["report", str(SAMPLE), "--only", "nope"], 2, "nope"),
        (["report", str(SAMPLE), "-f", "csv"], 2, "-o FOLDER"),
        (["idle", str(SAMPLE), "-f", "html"], 2, "not html; use tracekit report --only idle"),
        (["idle", str(SAMPLE), "-f", "parquet"], 2, "-o"),
        (["idle", str(SAMPLE), "--window", "week"], 2, "window"),
        (["idle", str(SAMPLE), "--step", "("], 2, "regular expression"),
        (["report", str(SAMPLE), "-o", str(SAMPLE / "r.html")], 2, "cannot"),
        (["analysis", "nope", str(SAMPLE)], 2, "nope"),
        (["info", str(SAMPLE), "-f", "csv"], 2, "info writes"),
    ],
)
def test_errors_are_one_line_with_the_right_code(
    arguments: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    got, out, err = run(capsys, *arguments)
    assert got == code
    assert text.lower() in err.lower()
    assert len(err.strip().splitlines()) == 1
    assert "Traceback" not in err
    assert out == ""


@pytest.mark.quick(4)
@pytest.mark.parametrize("command", ["report", "info", "doctor", "kernels"])
@pytest.mark.parametrize("kind", ["empty", "truncated", "png", "cut_gz", "text"])
@pytest.mark.sampled(4)
def test_bad_input_never_gives_a_traceback(
    command: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = dump(generate(seed=1, steps=1, layers=1))
    path = tmp_path / ("t.json.gz" if kind == "cut_gz" else "t.json")
    path.write_bytes(
        {
            "empty": b"",
            "png": b"\x89PNG\r\n\x1a\n",
            "truncated": data[: len(data) // 2],
            "cut_gz": damage.truncate_gz(data),
            "text": b"not a trace",
        }[kind]
    )
    code, _, err = run(capsys, command, path)
    read = 1 if command == "doctor" else 0
    assert code == (read if kind in ("truncated", "cut_gz") else 3)
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) <= 1


def test_info_and_doctor(gpu_trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "info", gpu_trace, "-f", "json")
    facts = json.loads(out)
    assert code == 0
    assert facts["rank"] == 0
    assert len(facts["steps"]) == 3
    code, out, _ = run(capsys, "doctor", gpu_trace)
    assert code == 0
    assert "BROKEN" not in out
    assert out.count("ok ") >= 3


@pytest.mark.parametrize(("sample", "sized"), [("bert_cpu_ddp/trace-rank0", True), ("cnn_cpu/trace", False)])
def test_info_agrees_with_the_table_of_collectives(
    capsys: pytest.CaptureFixture[str], sample: str, sized: bool
) -> None:
    """Of a run with gloo, info said that collectives need NCCL, and the report listed them with their bytes."""
    _, out, _ = run(capsys, "info", ROOT / f"sample_traces/{sample}.json.gz", "-f", "json")
    facts = json.loads(out)
    assert ("collectives" in facts["captured"], "collectives" in facts["not_captured"]) == (sized, not sized)


@pytest.mark.slow
def test_report_shows_no_host_or_user_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(dump(generate(seed=1, steps=1, layers=1)))
    data |= {"host_name": "secret-host", "username": "secret-user", "hostname": "secret-host"}
    path = tmp_path / "t.json"
    path.write_text(json.dumps(data))
    for form in ("table", "json", "md"):
        assert "secret" not in run(capsys, "report", path, "-f", form)[1]
    run(capsys, "report", path, "-o", tmp_path / "r.html")
    assert "secret" not in (tmp_path / "r.html").read_text("utf-8")


def test_second_look_uses_the_cache(
    gpu_trace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run(capsys, "report", gpu_trace, "-f", "json", "--no-cache")[1]
    run(capsys, "report", gpu_trace, "-f", "md")

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the source was read again")

    monkeypatch.setattr("tracekit.readers.kineto.reader.read_kineto", refuse)
    assert run(capsys, "report", gpu_trace, "-f", "json")[1] == expected


@pytest.mark.slow
def test_a_damaged_cache_entry_is_read_again(gpu_trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = run(capsys, "report", gpu_trace, "-f", "json")[1]
    for file in Path(os.environ["TRACEKIT_CACHE_DIR"]).rglob("*.parquet"):
        file.write_bytes(b"broken")
    assert run(capsys, "report", gpu_trace, "-f", "json", "--rank", "0")[1] == first


def test_debug_shows_the_traceback() -> None:
    with pytest.raises(UnreadableTraceError):
        main(["report", "missing.json", "--debug"])


@pytest.mark.slow
def test_a_closed_pipe_is_no_error(gpu_trace: Path) -> None:
    script = f"{sys.executable} -c 'from tracekit.cli.entry import main; main()' report {gpu_trace} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.slow
def test_interrupt_leaves_no_half_written_report(tmp_path: Path) -> None:
    big = tmp_path / "big.json"
    data = dump(generate(seed=1, steps=4, layers=8), "compact")
    head, body = data.split(b'"traceEvents": [', 1)
    events = body[: body.rindex(b"]")]
    with big.open("wb") as file:
        file.write(head + b'"traceEvents": [')
        for _ in range(60):
            file.write(events + b", ")
        file.write(body)
    target = tmp_path / "report.html"
    target.write_text("the old report")
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from tracekit.cli.entry import main; main()",
            "report",
            str(big),
            "-o",
            str(target),
        ],
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
    )
    time.sleep(0.9)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert err.strip().endswith("interrupted")
    assert target.read_text() == "the old report"
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_help_is_fast_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['tracekit', '--help']\n"
        "from tracekit.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "heavy = {'polars', 'numpy', 'torch', 'matplotlib', 'jinja2', 'msgspec', 'pydantic'} & set(sys.modules)\n"
        "heavy |= {name for name in sys.modules if name.startswith('tracekit.cli.commands.')}\n"
        "print(sorted(heavy), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert done.stderr.strip() == "[]"
    assert "report" in done.stdout


def test_the_list_of_commands_says_what_their_own_help_says() -> None:
    for name, line in COMMANDS.items():
        told = declared(name).help.strip().splitlines()[0]
        assert told == line, name


def test_the_summaries_of_the_commands_are_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    commands = ok(capsys, "--help").partition("Commands:")[2]
    assert "..." not in commands
    assert "x>=" not in ok(capsys, "capture", "--help")  # as Python would say it


def test_version(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        if package == "obstore":
            raise PackageNotFoundError
        return f"7.{len(package)}"

    monkeypatch.setattr("importlib.metadata.version", version)
    monkeypatch.setattr("tracekit._native.decoder", None)
    monkeypatch.setenv("TRACEKIT_NATIVE", "0")
    assert ok(capsys, "--version").splitlines() == [
        f"tracekit {tracekit.__version__}",
        "  decoder  off (TRACEKIT_NATIVE=0)",
        "  capture  torch 7.5, nvtx 7.4",
        "  hf       transformers 7.12, scipy 7.5",
        "  remote   no obstore (pip install 'tracekit-torch[remote]')",
        "  predict  scikit-learn 7.12, scipy 7.5",
    ]


def test_the_distribution_has_one_name_and_these_extras() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert f'\nname = "{DISTRIBUTION}"\n' in project
    for extra, packages in EXTRAS.items():
        (declared,) = re.findall(rf"^{extra} = (\[.*\])$", project, re.MULTILINE)
        assert set(packages) <= set(re.findall(r'"([a-z-]+)', declared))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "coloured"),
    [
        ({}, False),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ({"FORCE_COLOR": ""}, False),
    ],
)
def test_colours_as_the_environment_says(
    environment: dict[str, str],
    coloured: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert ("\033[" in ok(capsys, "report", SAMPLE, "--only", "breakdown")) == coloured


def test_only_the_public_names_are_listed() -> None:
    assert dir(tracekit) == ["Trace", "__version__", "read", "read_all"]


def test_doctor_fails_if_there_is_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": []}')
    code, out, err = run(capsys, "doctor", path)
    assert (code, err) == (1, "")
    assert out.startswith("error            1  no_event: ")
    code, out, err = run(capsys, "kernels", path, "-f", "csv")
    assert (code, out) == (4, "")
    assert err.startswith("tracekit: error: kernels: not captured; ")


@pytest.mark.slow
def test_two_traces_are_one_json_document(gpu_trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("report", "steps", "layers", "memory"):
        document = json.loads(ok(capsys, command, gpu_trace, SAMPLE, "-f", "json"))
        assert len(document["reports"]) == 2
    document = json.loads(ok(capsys, "nsys-stats", gpu_trace, SAMPLE, "-f", "json"))
    assert document["nsys_stats"]


@pytest.mark.slow
@pytest.mark.parametrize(("size", "threads"), [(1 << 20, "1"), (100 << 20, None), (200 << 20, None)])
def test_threads_suit_the_size_of_the_trace_and_not_that_of_other_files(
    tmp_path: Path, size: int, threads: str | None
) -> None:
    event = b'{"ph":"X","cat":"cpu_op","name":"aten::add","pid":1,"tid":1,"ts":1,"dur":2}'
    (tmp_path / "t.json").write_bytes(b'{"traceEvents":[' + event + b"]" + b" " * size + b"}")
    code = (
        "import atexit, os, sys; sys.argv = ['tracekit', 'report', 't.json', '--no-cache', '-f', 'json']\n"
        "from tracekit.cli.entry import main\n"
        "atexit.register(lambda: print(os.environ.get('POLARS_MAX_THREADS'), file=sys.stderr))\nmain()"
    )
    environment = {name: value for name, value in os.environ.items() if name != "POLARS_MAX_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.split()[-1] == str(threads)


def test_ctrl_c_while_python_ends_prints_no_traceback() -> None:
    code = (
        "import atexit, os, signal, sys; sys.argv = ['tracekit', '--help']\n"
        "from tracekit.cli.entry import main\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
    assert "Exit codes" in done.stdout


def test_layers_that_modules_tell_are_not_said_to_lack() -> None:
    """A trace recorded with stacks, whose layers are all known by its modules, was told to record them with with_stack=True."""
    facts = {"not_captured": {"layers": "with_stack=True"}, "steps_inferred": 0, "named_ranges": 0}
    assert _not_captured({**facts, "captured": ["modules"]}) == {}
    assert _not_captured({**facts, "captured": []}) == {"layers": "with_stack=True"}
