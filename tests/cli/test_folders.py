"""Commands take a folder of traces, and standard input."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from commands import ok, run
from paths import ROOT
from synthetic import generate, write
from synthetic.nsys_export import write_parquetdir, write_sqlite
from synthetic.nsys_odd import small

CNN = ROOT / "sample_traces/cnn_cpu"


def paths_of(out: str) -> list[str]:
    document = json.loads(out)
    return [report["trace"]["path"] for report in document.get("reports", [document])]


@pytest.mark.slow
def test_every_trace_below_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(CNN, runs / "b_capture")
    (runs / "a_board").mkdir()
    write(generate(seed=1, steps=1), runs / "a_board" / "host_12.1700000000.pt.trace.json.gz")
    write(generate(seed=2, steps=1), runs / "a_board" / "host_12.1700000001.pt.trace.json.gz")
    write_sqlite(small(), runs / "c.sqlite")
    (runs / "c.nsys-rep").write_bytes(b"?")  # its export lies beside it
    write_parquetdir(small(), runs / "d_export")
    (runs / "settings.json").write_text('{"batch": 8}')
    (runs / "broken.json.gz").write_bytes(b"\x1f\x8b")
    (runs / "e_page").mkdir()
    (runs / "e_page" / "manifest.json").write_text('{"name": "a web page"}')  # of another program
    (runs / ".hidden").mkdir()
    shutil.copy(CNN / "trace.json.gz", runs / ".hidden")
    (runs / "self").symlink_to(runs)
    assert paths_of(ok(capsys, "report", runs, "-f", "json")) == [
        "c.sqlite",
        "host_12.1700000000.pt.trace.json.gz",
        "host_12.1700000001.pt.trace.json.gz",
        "trace.json.gz",
        "d_export",
    ]


def test_a_folder_without_traces_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.json").write_text("{}")
    code, out, err = run(capsys, "report", tmp_path)
    assert (code, out) == (3, "")
    assert err == (
        f"tracekit: error: {tmp_path}: the folder holds no trace, nor do folders up to 5 levels below it; "
        "give a trace (.json, .json.gz, .sqlite, .nsys-rep) or a folder with some\n"
    )


def test_a_folder_that_cannot_be_entered_is_unreadable_not_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(path: object) -> object:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", forbidden)
    for command in ("report", "info", "doctor"):
        code, out, err = run(capsys, command, tmp_path)
        assert (code, out) == (3, "")
        assert (
            err
            == f"tracekit: error: {tmp_path}: it cannot be read (Permission denied); check its permissions\n"
        )


@pytest.mark.parametrize("name", ["../trace.json.gz", "/etc/passwd", "", "..", "sub/trace.json.gz"])
def test_a_manifest_leads_to_no_file_outside_its_folder(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(CNN, tmp_path / "capture")
    manifest = tmp_path / "capture/manifest.json"
    shutil.copy(CNN / "trace.json.gz", tmp_path)
    tree = json.loads(manifest.read_text())
    tree["runs"][1]["trace"] = name
    manifest.write_text(json.dumps(tree))
    code, out, err = run(capsys, "report", tmp_path / "capture")
    assert (code, out) == (3, "")
    assert "which is not a file of its folder; give the trace itself" in err


@pytest.mark.slow
def test_traces_of_one_name_begin_with_their_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, name in enumerate(("first", "second")):
        (tmp_path / name).mkdir()
        write(generate(seed=seed, steps=1), tmp_path / name / "trace.json")
    heads = [
        line.split(" · ")[0] for line in ok(capsys, "report", tmp_path).splitlines() if line.startswith("══")
    ]
    assert heads == ["══ first/trace.json", "══ second/trace.json"]
    (tmp_path / "first").rename(tmp_path / "third")
    assert "══ third/trace.json" in ok(capsys, "report", tmp_path)


def test_a_command_about_one_trace_takes_a_folder_with_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    write(generate(seed=1, steps=1), runs / "a.json")
    assert "device.parquet" in ok(capsys, "export", runs, "-o", tmp_path / "frames")
    write(generate(seed=2, steps=1), runs / "b.json")
    code, _, err = run(capsys, "export", runs, "-o", tmp_path / "frames")
    assert code == 2
    assert err.startswith(f"tracekit: error: {runs}: it holds several traces; ")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["info", "doctor"])
def test_several_files_are_one_answer(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(generate(seed=1, steps=1), tmp_path / "a.json")
    alone = ok(capsys, command, tmp_path / "a.json", "-f", "json")
    assert ok(capsys, command, tmp_path, "-f", "json") == alone
    write(generate(seed=2, steps=1), tmp_path / "b.json")
    (other := tmp_path / "other").mkdir()
    (other / "odd.json").write_text("no trace")
    code, out, err = run(
        capsys, command, tmp_path / "a.json", tmp_path / "b.json", other / "odd.json", "-f", "json"
    )
    assert code == 0
    assert err.startswith(f"tracekit: left out: {other / 'odd.json'}: ")
    files = json.loads(out)["files"]
    assert [one["file"] for one in files] == ["a.json", "b.json"]
    assert files[0] == json.loads(alone) | {"file": "a.json"}
    text = ok(capsys, command, tmp_path / "a.json", tmp_path / "b.json")
    assert text.index("a.json") < text.index("b.json")


@pytest.mark.parametrize(
    "command", ["report", "info", "doctor", "idle", "compare", "trend", "scaling", "diff"]
)
def test_a_path_that_somebody_names_is_not_left_out(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, command, CNN / "trace.json.gz", tmp_path / "none.json")
    assert (code, out) == (3, "")
    assert err == f"tracekit: error: {tmp_path / 'none.json'}: no such file; check the path\n"


def test_frames_do_not_go_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    """They went into a folder with the name `-`."""
    code, _, err = run(capsys, "export", CNN / "trace.json.gz", "-o", "-")
    assert code == 2
    assert (
        err
        == "tracekit: error: the frames are several files, which standard output cannot hold; name a folder\n"
    )


@pytest.mark.slow
def test_standard_input_is_a_trace() -> None:
    with (CNN / "trace.json.gz").open("rb") as file:
        whole = subprocess.run(
            [sys.executable, "-m", "tracekit", "report", "-", "-f", "json"],
            stdin=file,
            capture_output=True,
            check=True,
        )
    assert json.loads(whole.stdout)["trace"]["event_count"] == 8163


@pytest.mark.slow
def test_a_zip_archive_in_a_pipe_is_its_trace(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.write(CNN / "trace.json.gz", "trace.json.gz")
    done = subprocess.run(
        [sys.executable, "-m", "tracekit", "info", "-", "-f", "json"],
        input=(tmp_path / "t.zip").read_bytes(),
        capture_output=True,
        check=True,
        env={**os.environ, "TMPDIR": str(tmp_path / "temporary")},
    )
    assert b'"events": 8163' in done.stdout
    assert not [*(tmp_path / "temporary").iterdir()]


@pytest.mark.slow
def test_a_folder_of_run_folders_is_one_argument(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("cnn_cpu", "encoder_cpu"):
        shutil.copytree(CNN.parent / name, tmp_path / "runs/deep" / name)
    table = tmp_path / "table.csv"
    code, _, err = run(capsys, "dataset", tmp_path / "runs", "-o", table)
    assert (code, err) == (0, f"{table}: 2 runs\n")
    assert [line.split(",")[0] for line in table.read_text().splitlines()[1:]] == ["cnn_cpu", "encoder_cpu"]
    assert "encoder" in ok(capsys, "compare", tmp_path / "runs")
    code, _, err = run(capsys, "trajectory", tmp_path / "runs")
    assert (code, "differ" in err) == (2, True)
    code, _, err = run(capsys, "xsp", tmp_path / "runs")
    assert "cnn_cpu and encoder_cpu differ" in err
    (tmp_path / "runs/deep/none").mkdir()
    code, out, err = run(capsys, "xsp", tmp_path / "runs/deep/none")
    assert (code, out, err.count("\n")) == (3, "", 1)


@pytest.mark.slow
def test_traces_of_one_name_are_told_apart_by_their_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for at in range(10):
        (tmp_path / f"run{at}").mkdir()
        write(generate(seed=1, steps=1), tmp_path / f"run{at}" / "trace.json.gz")
    head, _, report = ok(capsys, "report", tmp_path).partition("══ ")
    assert all(f"  run{at} " in head for at in range(10))
    assert report.startswith("run0/trace.json.gz")


@pytest.mark.slow
def test_what_if_of_two_traces_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    out = ok(capsys, "what-if", CNN, CNN.parent / "encoder_cpu", "--rank", "-f", "json")
    traces = json.loads(out)["traces"]
    assert [each["trace"]["name"] for each in traces] == ["cnn", "encoder"]
    assert all(each["what-if"]["tables"]["ranked"] for each in traces)


@pytest.mark.slow
@pytest.mark.parametrize("content", ["", "null", '{"schema_version": 2, "tracekit_version"', "pipe"])
def test_a_manifest_that_cannot_be_used_is_told(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(CNN / "trace.json.gz", tmp_path)
    manifest = tmp_path / "manifest.json"
    if content == "pipe":  # which nobody writes to
        os.mkfifo(manifest)
    else:
        manifest.write_text(content)
    for command in ("report", "info", "doctor", "trend"):
        code, _, err = run(capsys, command, tmp_path)
        assert (code, err) == (0, "")
    assert "unused_manifest" in ok(capsys, "doctor", tmp_path / "trace.json.gz")
    manifest.unlink()
    manifest.write_text('{"name": "a web page"}')
    assert "unused_manifest" not in ok(capsys, "doctor", tmp_path)


def test_texts_of_a_manifest_are_bounded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(CNN, tmp_path / "run")
    manifest = tmp_path / "run/manifest.json"
    whole = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**whole, "workload": "x" * 1_000_000}))
    code, out, err = run(capsys, "info", tmp_path / "run")
    assert (code, out) == (3, "")
    assert len(err) < 1_100
    manifest.write_bytes(b" " * (33 << 20) + json.dumps(whole).encode())
    assert "larger than 32 MiB" in run(capsys, "doctor", tmp_path / "run/trace.json.gz")[1]


def test_dash_is_stdout(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ok(capsys, "info", CNN, "-f", "json", "-o", "-") == ok(capsys, "info", CNN, "-f", "json")
    assert list(tmp_path.iterdir()) == []


def test_an_archive_may_hold_the_manifest_and_what_a_file_manager_adds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with zipfile.ZipFile(tmp_path / "run.zip", "w") as archive:
        archive.write(CNN / "trace.json.gz", "run/trace.json.gz")
        archive.write(CNN / "manifest.json", "run/manifest.json")
        archive.writestr("__MACOSX/run/._trace.json.gz", b"?")
        archive.writestr("run/.DS_Store", b"?")
    assert "CPU" in ok(capsys, "report", tmp_path / "run.zip")
    write_sqlite(small(), tmp_path / "a.sqlite")
    with zipfile.ZipFile(tmp_path / "db.zip", "w") as archive:
        archive.write(tmp_path / "a.sqlite", "a.sqlite")
    assert run(capsys, "report", tmp_path / "db.zip")[2].endswith(
        "it is an SQLite database; unpack it first\n"
    )


def test_what_is_wrong_with_an_input_is_one_right_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    code, out, err = run(capsys, "report", tmp_path / "empty", CNN)
    assert (code, out.startswith("CPU")) == (0, True)
    assert err.startswith(f"tracekit: left out: {tmp_path / 'empty'}: the folder holds no trace")
    for words, said in (
        (("report", ""), "an argument is empty"),
        (("info", "s3://b/../x"), "s3://b/../x: it is not a valid address"),
        (("report", "gs://b/a\x01b"), "it is not a valid address"),
        (("report", "https://[bad/x"), "it is not a valid address"),
    ):
        code, _, err = run(capsys, *words)
        assert (code, err.count("\n")) == (2, 1)
        assert said in err
    other = tmp_path / "other"
    shutil.copytree(CNN, other)
    (other / "manifest.json").write_text('{"schema_version": 99, "tracekit_version": "9"}')
    for command in ("report", "trend"):
        code, _, err = run(capsys, command, other)
        assert (code, "its schema version is 99; use a newer tracekit" in err) == (3, True)
    lost = {
        "ph": "X",
        "cat": "kernel",
        "name": "k",
        "dur": 5,
        "pid": 0,
        "tid": 7,
        "args": {"device": 0, "stream": 7},
    }
    (tmp_path / "lost.json").write_text(json.dumps({"traceEvents": [lost, {**lost, "ts": 90}]}))
    code, out, _ = run(capsys, "doctor", tmp_path / "lost.json")
    assert (code, out.startswith("error            1  event_without_time")) == (1, True)


@pytest.mark.parametrize(
    ("suffix", "said"),
    [
        (".sqlite.gz", "it is an SQLite database; unpack it first"),
        (".json.bz2", "it is compressed with bzip2"),
        (".tar.gz", "it is a tar archive; unpack it first"),
        (".zip", "the zip archive is empty"),
    ],
)
def test_packed_files_of_other_kinds_are_named(
    suffix: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"a{suffix}"
    if suffix == ".sqlite.gz":
        write_sqlite(small(), tmp_path / "a.sqlite")
        path.write_bytes(gzip.compress((tmp_path / "a.sqlite").read_bytes()))
    elif suffix == ".json.bz2":
        path.write_bytes(bz2.compress(b"{}"))
    elif suffix == ".tar.gz":
        with tarfile.open(path, "w:gz") as archive:
            archive.add(CNN / "trace.json.gz", "trace.json.gz")
    else:
        zipfile.ZipFile(path, "w").close()
    code, _, err = run(capsys, "report", path)
    assert (code, said in err) == (3, True), err
