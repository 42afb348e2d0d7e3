"""Exports that are odd, damaged or hostile: each gives a report or one line that says what is wrong, and runs nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from synthetic.nsys_export import Program, write_sqlite
from synthetic.nsys_hostile import HOSTILE_MARKERS, hostile_markers, scribbled, truncated
from synthetic.nsys_odd import ENDLESS, MAIN, ODD, READABLE, small, without_row_ids
from synthetic.nsys_schema import VERSIONS

import tracekit
from tracekit.cli.main import main
from tracekit.errors import UnreadableTraceError

SECONDS = 60
"""For a whole process; each takes one. Without an end it would be a view that was asked for its rows."""
SHARES = [0.1, 0.6, 0.2, 0.3, 0.4, 0.5, 0.7, 0.8, 0.9]
WOULD_HANG = [name for name in ODD if "end" in name or "computed" in name or "view" in name]


def report(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["report", str(path), "--no-cache"])
    out = capsys.readouterr()
    return int(left.value.code or 0), out.out, out.err


def check(code: int, out: str, err: str, *, readable: bool) -> None:
    """A report, or exit code 3 with one line."""
    assert "Traceback" not in err
    if readable:
        assert (code, err) == (0, "")
        assert out.strip()
        return
    assert (code, out) == (3, "")
    (line,) = err.strip().splitlines()
    assert line.startswith("tracekit: error: ")


def test_a_multiprocessor_of_absurd_size_is_not_known(tmp_path: Path) -> None:
    import sqlite3

    path = write_sqlite(small(), tmp_path / "t.sqlite")
    base = sqlite3.connect(path)
    base.execute("UPDATE TARGET_INFO_GPU SET maxWarpsPerSm = 1 << 62, threadsPerWarp = 32")
    base.commit()
    base.close()
    (device,) = tracekit.read(path).meta.devices
    assert (device.max_threads_per_sm, device.warp_size) == (None, 32)


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", [name for name in ODD if name not in WOULD_HANG])
@pytest.mark.sampled(4)
def test_odd_files(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(*report(ODD[name](tmp_path), capsys), readable=name in READABLE)


@pytest.mark.slow
@pytest.mark.parametrize("name", WOULD_HANG)
@pytest.mark.sampled(4)
def test_what_the_file_computes_is_not_computed(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tracekit", "report", str(ODD[name](tmp_path)), "--no-cache"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    check(ran.returncode, ran.stdout, ran.stderr, readable=name in READABLE)


def test_a_view_is_not_captured(tmp_path: Path) -> None:
    trace = tracekit.read(ODD["kernels_without_end"](tmp_path))
    assert set(trace.device["kind"].cast(pl.String)) == {"memcpy"}


def test_a_trigger_or_an_index_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import sqlite3

    path = write_sqlite(small(), tmp_path / "t.sqlite")
    base = sqlite3.connect(path)
    endless = f"{ENDLESS} SELECT i FROM n"
    base.execute(
        f"CREATE TRIGGER t AFTER INSERT ON NVTX_EVENTS BEGIN SELECT * FROM (VALUES (1)) WHERE 1 IN ({endless}); END"
    )
    base.execute("CREATE INDEX names ON StringIds (value)")
    base.close()
    check(*report(path, capsys), readable=True)


@pytest.mark.quick(2)
@pytest.mark.parametrize("share", SHARES)
def test_half_copied_files(share: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = report(truncated(tmp_path, share), capsys)
    check(code, out, err, readable=False)
    assert "the file is truncated" in err


@pytest.mark.quick(2)
@pytest.mark.parametrize("share", SHARES)
def test_pages_of_noise(share: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = report(scribbled(tmp_path, share), capsys)
    check(code, out, err, readable=code == 0)


def test_nothing_is_written_beside_the_file(tmp_path: Path) -> None:
    path = write_sqlite(small(), tmp_path / "t.sqlite")
    path.chmod(0o444)
    before = path.read_bytes()
    tmp_path.chmod(0o555)
    try:
        tracekit.read(path)
    finally:
        tmp_path.chmod(0o755)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["a?b.sqlite", "a#b.sqlite", "a%41b.sqlite", "a b'\";--.sqlite"])
def test_file_names_that_mean_something_in_a_uri(name: str, tmp_path: Path) -> None:
    path = write_sqlite(small(), tmp_path / "plain")
    (tmp_path / name).write_bytes(path.read_bytes())
    assert tracekit.read(tmp_path / name).device.height == 5


@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize("parquet", [False, True])
def test_markers_run_no_code(parquet: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proof = tmp_path / "proof"
    path = hostile_markers(tmp_path, proof, parquet=parquet)
    (trace,) = tracekit.read_all(path)
    assert trace.host.filter(pl.col("kind") != "runtime").height == 4 * len(HOSTILE_MARKERS) + 9
    check(*report(path, capsys), readable=True)
    assert not proof.exists()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
def test_no_warning_about_a_marker_reaches_the_user(tmp_path: Path) -> None:
    path = hostile_markers(tmp_path, tmp_path / "proof")
    command = [
        sys.executable,
        "-W",
        "always",
        "-c",
        "import sys, tracekit; tracekit.read_all(sys.argv[1])",
        str(path),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


# -- what is said of it ------------------------------------------------------------------------------


def kinds(trace: tracekit.Trace) -> dict[str, int]:
    return dict(trace.health.select("kind", "count").rows())


def test_bytes_that_are_no_text_are_replaced_and_counted(tmp_path: Path) -> None:
    trace = tracekit.read(ODD["bytes_that_are_no_text"](tmp_path))
    assert any("\ufffd" in name for name in trace.host["name"].cast(pl.String))
    assert kinds(trace)["invalid_utf8"] >= 4


def test_utf_16_gives_the_same_as_utf_8(tmp_path: Path) -> None:
    plain = tracekit.read(write_sqlite(small(), tmp_path / "plain.sqlite"))
    for encoding in ("UTF-16le", "UTF-16be"):
        other = tracekit.read(write_sqlite(small(), tmp_path / f"{encoding}.sqlite", encoding=encoding))
        assert other.host.equals(plain.host)
        assert other.device.equals(plain.device)


@pytest.mark.slow
@pytest.mark.parametrize("tables", [["CUPTI_ACTIVITY_KIND_KERNEL"], ["NVTX_EVENTS", "StringIds"]])
def test_tables_without_row_ids_are_named(
    tables: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = without_row_ids(tmp_path, *tables)
    trace = tracekit.read(path)
    (row,) = trace.health.filter(pl.col("kind") == "table_without_row_ids").to_dicts()
    assert (row["count"], row["severity"], row["example"]) == (len(tables), "warning", ", ".join(tables))
    for command in ("report", "doctor"):
        with pytest.raises(SystemExit) as left:
            main([command, str(path)])
        assert (int(left.value.code or 0), "table_without_row_ids" in capsys.readouterr().out) == (0, True)
    plain = tracekit.read(write_sqlite(small(), tmp_path / "plain.sqlite"))
    assert "table_without_row_ids" not in kinds(plain)


def test_a_file_without_any_row_ids_says_so(tmp_path: Path) -> None:
    with pytest.raises(
        UnreadableTraceError, match=r"no row ids.*CUPTI_ACTIVITY_KIND_KERNEL.*export it again"
    ):
        tracekit.read(ODD["nothing_with_row_ids"](tmp_path))


def test_ranges_without_an_end_reach_to_the_end_of_the_recording(tmp_path: Path) -> None:
    trace = tracekit.read(ODD["ranges_that_never_end"](tmp_path))
    last = max(int((frame["start"] + frame["duration"]).max()) for frame in (trace.host, trace.device))  # type: ignore[arg-type]
    step = trace.host.filter(pl.col("kind") == "step").row(0, named=True)
    assert step["start"] + step["duration"] == last
    assert kinds(trace)["open_range"] == 5


@pytest.mark.parametrize("version", VERSIONS)
def test_a_missing_end_is_one_in_every_version(version: str, tmp_path: Path) -> None:
    program = small()
    program.push_pop("still open", 500_000, None, tid=MAIN)
    program.start_end("open, too", 600_000, None, tid=MAIN, end_tid=MAIN)
    trace = tracekit.read(write_sqlite(program, tmp_path / "t.sqlite", version))
    row = trace.host.filter(pl.col("name") == "still open").row(0, named=True)
    assert row["duration"] == 500_000  # until the end of the step, the last that was recorded
    assert trace.ranges is not None
    assert trace.ranges["duration"].to_list() == [400_000]
    assert kinds(trace)["open_range"] == 2
    assert "negative_duration" not in kinds(trace)


def test_durations_below_zero_are_counted(tmp_path: Path) -> None:
    trace = tracekit.read(ODD["negative_durations"](tmp_path))
    assert kinds(trace)["negative_duration"] == 3
    assert int(trace.host["duration"].min() or 0) == 0  # type: ignore[call-overload]


def test_times_that_no_clock_shows_spoil_no_others(tmp_path: Path) -> None:
    plain = tracekit.read(write_sqlite(small(), tmp_path / "plain.sqlite"))
    (tmp_path / "odd").mkdir()
    trace = tracekit.read(ODD["numbers_that_are_too_large"](tmp_path / "odd"))
    assert trace.meta.origin_ns == 21_000  # the step has lost its time, the first layer its thread
    kept = trace.device.filter(pl.col("duration") > 0)["start"] + trace.meta.origin_ns
    assert set(kept) < set(plain.device["start"] + plain.meta.origin_ns)
    assert kept.len() == 3
    assert kinds(trace)["event_without_time"] >= 1


def test_rows_without_a_time_are_counted(tmp_path: Path) -> None:
    trace = tracekit.read(ODD["texts_where_numbers_belong"](tmp_path))
    assert kinds(trace)["event_without_time"] == 2  # a kernel and a call


def test_work_that_names_no_process_is_that_of_the_only_one(tmp_path: Path) -> None:
    trace = tracekit.read(ODD["no_process"](tmp_path))
    assert (trace.meta.process_ids, trace.device.height) == ((4242,), 5)
    assert trace.device["launch_id"].null_count() == 0


def test_strings_that_are_not_there_leave_a_name(tmp_path: Path) -> None:
    for name in ("no_strings", "dangling_strings", "parquet_without_strings"):
        (tmp_path / name).mkdir()
        trace = tracekit.read(ODD[name](tmp_path / name))
        assert trace.device.height == 5
        assert trace.host.height == 15
        assert trace.host["name"].null_count() == 0


def test_an_open_database_is_refused_with_a_reason(tmp_path: Path) -> None:
    for name in ("write_ahead_log", "hot_journal"):
        (tmp_path / name).mkdir()
        with pytest.raises(UnreadableTraceError, match="is writing it"):
            tracekit.read(ODD[name](tmp_path / name))


@pytest.mark.parametrize("suffix", [".nsys-rep", ".qdrep"])
def test_a_report_that_is_not_exported(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # a machine without nsys
    path = tmp_path / f"run{suffix}"
    path.write_bytes(b"\x00\x01profile" * 100)
    code, out, err = report(path, capsys)
    check(code, out, err, readable=False)
    assert f"nsys export --type sqlite run{suffix}" in err


@pytest.mark.slow
def test_long_names_are_cut_and_control_characters_stay_out_of_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = Program()
    for i, name in enumerate(("z" * 3_000_000, "\x1b[2Jcleared", "\u202emirrored")):
        program.push_pop(name, 1_000 * i, 1_000 * i + 900, tid=MAIN)
        program.call("cudaLaunchKernel_v7000", 1_000 * i + 10, 1_000 * i + 20, correlation=i + 1, tid=MAIN)
        program.kernel(name, 1_000 * i + 30, 1_000 * i + 500, correlation=i + 1)
    path = write_sqlite(program, tmp_path / "t.sqlite")
    assert tracekit.read(path).host["name"].cast(pl.String).str.len_bytes().max() <= 1 << 14  # type: ignore[operator]
    code, out, err = report(path, capsys)
    check(code, out, err, readable=True)
    assert "\x1b" not in out
    assert len(out) < 100_000
