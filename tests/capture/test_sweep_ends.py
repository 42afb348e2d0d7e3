"""What becomes of the runs of a sweep: done, refused, crashed, killed, too slow, interrupted."""

from __future__ import annotations

import fcntl
import json
import os
from io import BytesIO
from pathlib import Path

import msgspec
import pytest
from pretended_runs import pretend, python, refuse, saying, succeed, swept

from tracekit.capture.plan import Plan
from tracekit.capture.ranks import start as ranks
from tracekit.capture.sweep import Progress
from tracekit.capture.sweep import process as sweep_process
from tracekit.errors import OutOfMemoryError, TracekitError, UnreadableTraceError, UsageError
from tracekit.manifest import Settings
from tracekit.statistics import trimmed_mean
from tracekit.sweep_index import index_of, read_index


@pytest.mark.slow
def test_changed_setting_adds_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started = pretend(monkeypatch, {})
    swept(tmp_path, 1, 2)
    swept(tmp_path, 1, 2, settings=Settings(threads=2))
    swept(tmp_path, 2, 8)
    assert started == [1, 2, 1, 2, 8]
    assert read_index(tmp_path).height == 5
    assert read_index(tmp_path)["throughput_per_s"].to_list() == [1000 / 3, 500.0, 1000 / 3, 500.0, 800.0]


def test_larger_batches_of_the_same_settings_are_skipped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started = pretend(monkeypatch, {4: refuse})
    rows = swept(tmp_path, None, 1, 4, 8, 16)
    assert started == [None, 1, 4]
    assert [row["status"] for row in rows.values()] == ["done", "done", "out of memory", "skipped", "skipped"]
    assert rows[4]["error"] == "a step does not fit"
    assert rows[16]["error"] == "batch 4 is out of memory already"
    assert (rows[16]["folder"], rows[16]["seconds"], rows[4]["throughput_per_s"]) == (None, None, None)
    other = swept(tmp_path, 8, settings=Settings(seed=3))
    assert other[8]["status"] == "skipped", "another seed needs as much memory"
    assert swept(tmp_path, 8, settings=Settings(size=9))[8]["status"] == "done", (
        "another size is another matter"
    )


@pytest.mark.slow
def test_retry_runs_again_what_did_not_succeed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(monkeypatch, {2: refuse, 1: saying("raise ValueError('no')")})
    swept(tmp_path, 1, 2, 4)
    started = pretend(monkeypatch, {})
    assert [row["status"] for row in swept(tmp_path, 1, 2, 4).values()] == [
        "failed",
        "out of memory",
        "skipped",
    ]
    assert started == []
    assert {row["status"] for row in swept(tmp_path, 1, 2, 4, retry=True).values()} == {"done"}
    assert started == [1, 2, 4]
    assert read_index(tmp_path).height == 3


def test_what_was_skipped_runs_once_the_reason_is_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend(monkeypatch, {2: refuse})
    swept(tmp_path, 2, 4)
    started = pretend(monkeypatch, {})
    swept(tmp_path, 2, retry=True)
    assert swept(tmp_path, 2, 4)[4]["status"] == "done"
    assert started == [2, 4]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("import os; os.kill(os.getpid(), 9)", "out of memory", "the system killed it"),
        ("import sys; sys.exit(137)", "out of memory", "the system killed it"),
        ("import os; os.abort()", "failed", "it crashed (SIGABRT)"),
        ("raise ValueError('two\\nlines')", "failed", "it ended with exit code 1 and no result: lines"),
        ("import sys; sys.exit(0)", "failed", "it ended with exit code 0 and no result"),
    ],
)
def test_end_of_a_process(
    code: str, status: str, error: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend(monkeypatch, {1: saying(code)})
    rows = swept(tmp_path, 1)
    assert (rows[1]["status"], rows[1]["error"][: len(error)]) == (status, error)
    assert read_index(tmp_path)["status"].to_list() == [status]


def test_sweep_goes_on_after_a_crash(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(monkeypatch, {1: saying("import os; os.abort()")})
    assert [row["status"] for row in swept(tmp_path, 1, 2).values()] == ["failed", "done"]


@pytest.mark.slow
def test_timeout_ends_the_process_and_what_it_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lock = tmp_path / "lock"
    hold = f"import fcntl, time; f = open({str(lock)!r}, 'w'); fcntl.flock(f, 2); time.sleep(600)"
    pretend(
        monkeypatch,
        {1: saying(f"import subprocess, sys; subprocess.call([sys.executable, '-S', '-c', {hold!r}])")},
    )
    rows = swept(tmp_path, 1, 2, timeout=1.5)
    assert (rows[1]["status"], rows[1]["error"]) == ("failed", "timed out after 1.5 s")
    assert rows[2]["status"] == "done"
    assert 1.5 <= rows[1]["seconds"] < 8
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while the grandchild lives


@pytest.mark.slow
def test_process_that_ignores_the_request_to_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_process, "GRACE_SECONDS", 0.3)
    pretend(
        monkeypatch, {1: saying("import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)")}
    )
    assert swept(tmp_path, 1, timeout=1)[1]["error"] == "timed out after 1 s"
    with pytest.raises(UsageError, match="timeout is 0 s"):
        swept(tmp_path, 1, timeout=0)


def test_done_without_a_manifest_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = "import sys; open(sys.argv[1], 'w').write('{\"status\": \"done\"}')"
    pretend(monkeypatch, {1: lambda _plan, _folder, result: python(done, result)})
    row = swept(tmp_path, 1)[1]
    assert row["status"] == "failed"
    assert row["error"].startswith("not a readable manifest")


def test_interruption_keeps_what_was_done(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupt(_plan: Plan, _folder: Path, _result: Path) -> list[str]:
        raise KeyboardInterrupt

    pretend(monkeypatch, {2: interrupt})
    with pytest.raises(KeyboardInterrupt):
        swept(tmp_path, 1, 2)
    assert read_index(tmp_path)["batch"].to_list() == [1]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    started = pretend(monkeypatch, {})
    swept(tmp_path, 1, 2)
    assert started == [2]


def test_foreign_or_damaged_index_is_not_overwritten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started = pretend(monkeypatch, {})
    path = tmp_path / "index.parquet"
    buffer = BytesIO()
    index_of([]).drop("seconds").write_parquet(buffer)
    for content, kind in ((buffer.getvalue(), UsageError), (b"PAR1 no more", UnreadableTraceError)):
        path.write_bytes(content)
        with pytest.raises(kind, match=r"index\.parquet: "):
            swept(tmp_path, 1)
        assert path.read_bytes() == content
    assert started == []


def test_progress_estimates_the_time_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(monkeypatch, {2: refuse})
    told: list[Progress] = []
    swept(tmp_path, 1, 2, 4, progress=told.append)
    assert [(p.number, p.total, p.label, None if p.row is None else p.row["status"]) for p in told] == [
        (1, 3, "cnn batch 1", None),
        (1, 3, "cnn batch 1", "done"),
        (2, 3, "cnn batch 2", None),
        (2, 3, "cnn batch 2", "out of memory"),
        (3, 3, "cnn batch 4", None),
        (3, 3, "cnn batch 4", "skipped"),
    ]
    rows = [p.row for p in told if p.row is not None]
    assert told[0].seconds_left is None
    assert told[1].seconds_left == told[2].seconds_left == 2 * rows[0]["seconds"]
    assert told[3].seconds_left == pytest.approx((rows[0]["seconds"] + rows[1]["seconds"]) / 2)
    assert told[5].seconds_left == 0


def test_trimmed_mean_is_what_the_rows_hold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    times = [5, 1, 2, 3, 100]

    def uneven(plan: Plan, folder: Path, result: Path) -> list[str]:
        words = succeed(plan, folder, result)
        path = folder / "manifest.json"
        content = json.loads(path.read_text())
        content["runs"][0]["step_times_ns"] = times
        path.write_text(json.dumps(content))
        return words

    pretend(monkeypatch, {1: uneven})
    row = swept(tmp_path, 1)[1]
    assert (row["step_trimmed_mean_ns"], row["step_median_ns"], row["step_min_ns"]) == (10 / 3, 3.0, 1)
    assert row["step_trimmed_mean_ns"] == trimmed_mean(times)
    assert (row["profiling_overhead"], row["flops_per_step"], row["peak_memory_bytes"]) == (None, None, None)
    assert os.fspath(tmp_path) not in row["folder"]


def test_error_of_a_rank_out_of_memory_comes_before_those_that_it_causes(tmp_path: Path) -> None:
    assert type(ranks.error_of(0, [1, 1], tmp_path)) is TracekitError
    closed = ranks.Failure("UsageError", "the other side closed the connection")
    ranks.error_file(tmp_path, 0).write_bytes(msgspec.json.encode(closed))
    assert str(ranks.error_of(0, [1, 1], tmp_path)) == "rank 0: the other side closed the connection"
    killed = ranks.error_of(0, [1, -9], tmp_path)
    assert isinstance(killed, OutOfMemoryError)
    assert str(killed).startswith("rank 1: the system killed it")
    unfit = ranks.Failure("OutOfMemoryError", "a step does not fit")
    ranks.error_file(tmp_path, 1).write_bytes(msgspec.json.encode(unfit))
    full = ranks.error_of(0, [1, 1], tmp_path)
    assert isinstance(full, OutOfMemoryError)
    assert str(full) == "rank 1: a step does not fit"
