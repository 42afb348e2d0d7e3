"""What broke once, each under its own name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from planted import US, Planted
from synthetic import generate, oracle, write

import tracekit
from tracekit.analyses.idle import idle
from tracekit.analyses.idle.gaps import device_gaps
from tracekit.analyses.launches import launches
from tracekit.analyses.memory import copies_of, memory
from tracekit.analyses.scope import select
from tracekit.analyses.steps import steps
from tracekit.trace import Trace


def read(tmp_path: Path, **changes: object) -> Trace:
    return tracekit.read(write(generate(5, **changes), tmp_path / "t.json"))


def test_unknown_sizes_were_printed_as_zero_bytes(tmp_path: Path) -> None:
    trace = read(tmp_path, vendor="amd")
    blank = replace(trace, device=trace.device.with_columns(pl.lit(None, dtype=pl.Int64).alias("bytes")))
    result = memory(blank)
    assert result.copies.height > 0
    assert result.copies["bytes"].null_count() == result.copies.height
    assert "0 B" not in result.answer
    assert "not recorded" in result.answer


def test_gaps_in_which_no_stream_works_were_lost_when_streams_take_turns(tmp_path: Path) -> None:
    truth = generate(5, steps=3, orphans=0, lost_launches=0)
    trace = tracekit.read(write(truth, tmp_path / "t.json"))
    gaps = device_gaps(select(trace, window="trace"))
    expected = oracle.idle_gaps(truth.activities, 0, truth.window)
    origin = trace.meta.origin_ns
    got = {(row["start"] + origin, row["end"] + origin) for row in gaps.iter_rows(named=True)}
    assert got == {(low, high) for low, high, _ in expected}


def test_waits_without_launches_had_a_cause_of_zero_percent(tmp_path: Path) -> None:
    result = idle(read(tmp_path, host_recorded=False))
    assert result.host_wait_ns is None
    assert "not captured" in result.answer


def test_a_full_queue_looked_like_a_slow_host(tmp_path: Path) -> None:
    """A median launch delay of 60 ms is the sign of a host that runs ahead."""
    truth = generate(5, orphans=0, lost_launches=0)
    trace = tracekit.read(write(truth, tmp_path / "t.json"))
    result = launches(select(trace, window="trace"))
    late = 0
    for key in {(a.device, a.stream) for a in truth.activities}:
        own = sorted(
            (a for a in truth.activities if (a.device, a.stream) == key), key=lambda a: (a.start_ns, a.end_ns)
        )
        reach = None
        for a in own:
            late += reach is None or (a.launch_start_ns or 0) > reach
            reach = a.end_ns if reach is None else max(reach, a.end_ns)
    assert result.host_late_share == pytest.approx(late / len(truth.activities))


def test_the_window_of_a_cpu_trace_dropped_python_at_the_ends_of_steps(tmp_path: Path) -> None:
    trace = read(tmp_path, device_recorded=False)
    scope = select(trace)
    table = steps(scope).table
    assert scope.start == table["start"][0]
    assert scope.end == table["start"][-1] + table["duration_ns"][-1]


def test_a_step_that_the_profiler_opened_before_it_stopped_was_counted_as_one(tmp_path: Path) -> None:
    truth = generate(1, steps=2)
    last = truth.steps[-1]
    stub = {
        "ph": "X",
        "cat": "user_annotation",
        "name": f"ProfilerStep#{last.number + 1}",
        "pid": truth.main_thread[0],
        "tid": truth.main_thread[1],
        "ts": last.end_ns + 200_000,
        "dur": 40_000,
        "args": {},
    }
    truth.events.append(stub)
    scope = select(tracekit.read(write(truth, tmp_path / "t.json")))
    assert scope.steps["step"].to_list() == [step.number for step in truth.steps]
    assert steps(scope).table.height == 2


def test_earlier_work_that_outlasts_the_steps_work_left_nothing_in_the_window() -> None:
    """The window began where a kernel on another stream ended, after all that the steps had launched: figures of no device."""
    made = Planted()
    for number in range(2):
        made.step(number, (100 + 100 * number) * US, (200 + 100 * number) * US)
        made.activity("k", (120 + 100 * number) * US, 20 * US, launch=(110 + 100 * number) * US)
    made.activity("before", 60 * US, 220 * US, launch=50 * US, stream=8)
    scope = select(made.trace())
    assert (scope.start, scope.end) == (100 * US, 300 * US)
    assert scope.device_ids == [0]
    assert scope.activities.height == 2


@pytest.mark.parametrize(
    ("changes", "peak"), [([-8], 8), ([-8, 5, -9, 2], 12), ([3, -1, 4], 6), ([-2, 9, -9], 9), ([4, -7], 7)]
)
def test_memory_that_was_freed_first_peaked_at_a_negative_amount(changes: list[int], peak: int) -> None:
    made = Planted()
    made.activity("k", 0, 10 * US)
    made.memory = [
        {"start": at * US, "process_id": 1, "thread_id": 1, "device_id": 0, "address": 1, "bytes": change}
        for at, change in enumerate(changes)
    ]
    result = memory(made.trace())
    assert result.peaks is not None
    assert result.timeline is not None
    assert result.peaks["relative"].all()
    assert result.peaks["peak_bytes"].to_list() == [peak]
    assert result.timeline["allocated"].min() >= 0


def test_copies_that_took_as_long_changed_places_from_run_to_run() -> None:
    places = [(kind, device) for kind in ("pageable", "pinned", "device") for device in range(20)]
    copies = pl.DataFrame(
        {
            "device_id": [device for _, device in places],
            "kind": "memcpy",
            "name": [f"Memcpy HtoD ({kind.title()} -> Device)" for kind, _ in places],
            "duration": 5,
            "bytes": 7,
        }
    )
    found = copies_of(copies)
    assert found.columns == copies_of(copies.clear()).columns
    assert found["device_id"].to_list() == [device for _, device in [*places[40:], *places[:40]]]
    for seed in range(3):
        assert copies_of(copies.sample(fraction=1, shuffle=True, seed=seed)).equals(found)
