"""A trace with more events than are wanted: the steps around its middle are read, whole and nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from synthetic import dump, generate, write
from synthetic.nsys_export import Program, write_sqlite

import tracekit
from tracekit.analyses.breakdown import breakdown
from tracekit.analyses.kernels import kernels
from tracekit.analyses.launches import launches
from tracekit.analyses.scope import Scope, select
from tracekit.cli.main import main
from tracekit.errors import TracekitError
from tracekit.intervals import IntervalSet
from tracekit.limits import Limits
from tracekit.readers import cache
from tracekit.readers.common import store as _store
from tracekit.readers.common.excerpt import _window
from tracekit.readers.common.store import FrameStore, TimeSample
from tracekit.report.build import build_report
from tracekit.trace import Trace

STEPS = 9


@pytest.fixture(scope="module", params=[11, 12, 13])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    planted = generate(seed=request.param, steps=STEPS, layers=4, devices=1 + request.param % 2)
    return write(planted, tmp_path_factory.mktemp("large") / "rank-0.json")


@pytest.fixture
def whole(path: Path) -> Trace:
    return tracekit.read(path)


def part_of(path: Path, rows: int) -> Trace:
    return tracekit.read(path, limits=Limits(max_events=rows))


def rows_of(trace: Trace) -> int:
    return sum(
        frame.height for frame in (trace.host, trace.device, trace.memory, trace.syncs) if frame is not None
    )


@pytest.mark.quick(1)
def test_a_trace_that_fits_is_read_whole(path: Path, whole: Trace) -> None:
    same = part_of(path, 10 * rows_of(whole))
    assert same.meta.excerpt is None
    assert same.equals(whole)


@pytest.mark.quick(1)
@pytest.mark.parametrize("share", [0.2, 0.4, 0.7])
def test_the_steps_read_are_whole_and_around_the_middle(path: Path, whole: Trace, share: float) -> None:
    part = part_of(path, int(share * rows_of(whole)))
    excerpt = part.meta.excerpt
    assert excerpt is not None
    all_steps, steps = select(whole).steps, select(part).steps
    assert 1 <= steps.height == excerpt.steps < STEPS == excerpt.total_steps
    names = all_steps["name"].to_list()
    first = names.index(steps["name"][0])
    assert steps["name"].to_list() == names[first : first + steps.height]
    assert abs(first - (STEPS - first - steps.height)) <= 1, "as many steps before as after"
    assert excerpt.rows <= 1.5 * share * excerpt.total_rows


def absolute(trace: Trace, frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.col("start") + trace.meta.origin_ns)


def scope_of_same_steps(whole: Trace, steps: list[str]) -> Scope:
    return select(whole, step="^(" + "|".join(steps).replace("#", r"\#") + ")$")


@pytest.mark.quick(1)
@pytest.mark.parametrize("share", [0.3, 0.6])
def test_the_figures_are_those_of_the_same_steps_in_the_whole_trace(
    path: Path, whole: Trace, share: float
) -> None:
    part = part_of(path, int(share * rows_of(whole)))
    own = select(part)
    same = scope_of_same_steps(whole, own.steps["name"].to_list())
    assert same.steps.height == own.steps.height
    # Every activity that the steps launched, and every one that runs while they do.
    columns = ["name", "kind", "category", "device_id", "stream_id", "start", "duration", "correlation"]
    for rows in ("activities", "overlapping"):
        mine = absolute(part, getattr(own, rows)).select(columns).sort(columns)
        theirs = absolute(whole, getattr(same, rows)).select(columns).sort(columns)
        assert mine.equals(theirs), rows
    mine, theirs = breakdown(own).devices, breakdown(same).devices
    assert mine.equals(theirs)
    assert kernels(own).by_name.equals(kernels(same).by_name)
    assert launches(own).scalars() == launches(same).scalars()


@pytest.mark.quick(1)
def test_every_launch_of_what_was_read_was_read(path: Path, whole: Trace) -> None:
    part = part_of(path, rows_of(whole) // 3)
    unlinked = whole.device.filter(pl.col("launch_id").is_null())["correlation"].drop_nulls().to_list()
    left = part.device.filter(pl.col("launch_id").is_null())["correlation"].drop_nulls().to_list()
    assert set(left) <= set(unlinked)


@pytest.mark.slow
def test_health_and_verdict_say_that_it_is_a_part(path: Path, whole: Trace) -> None:
    part = part_of(path, rows_of(whole) // 3)
    excerpt = part.meta.excerpt
    assert excerpt is not None
    row = part.health.filter(pl.col("kind") == "excerpt").row(0, named=True)
    assert row["count"] == excerpt.total_rows - excerpt.rows
    report = build_report(part)
    assert "--max-events 0" in report.verdict.notes[0]
    assert report.trace.excerpt == excerpt
    assert "part of the trace" in build_report(part, window="trace").window.label


@pytest.mark.slow
def test_without_steps_a_stretch_of_the_middle_is_read(tmp_path: Path) -> None:
    planted = json.loads(dump(generate(seed=5, steps=6, layers=4)))
    planted["traceEvents"] = [
        e for e in planted["traceEvents"] if not str(e.get("name")).startswith("ProfilerStep")
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps(planted))
    whole = tracekit.read(path)
    part = part_of(path, rows_of(whole) // 4)
    excerpt = part.meta.excerpt
    assert excerpt is not None
    assert excerpt.steps == 0
    length = int((whole.host["start"] + whole.host["duration"]).max())  # type: ignore[call-overload]
    middle = (excerpt.start + excerpt.end) / 2 + part.meta.origin_ns - whole.meta.origin_ns
    assert 0.3 * length < middle < 0.7 * length
    devices = breakdown(part).devices
    parts = ["compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns"]
    assert (devices.select(pl.sum_horizontal(parts)).to_series() == devices["window_ns"]).all()


@pytest.mark.slow
@pytest.mark.quick(1)
def test_a_step_that_is_too_large_is_cut(path: Path, whole: Trace) -> None:
    part = part_of(path, rows_of(whole) // (4 * STEPS))
    excerpt = part.meta.excerpt
    assert excerpt is not None
    assert (excerpt.steps, excerpt.total_steps) == (0, STEPS)
    assert not select(part).steps.height, "what is cut is no step"
    assert "no whole step" in build_report(part).verdict.notes[0]


def test_events_at_one_time_cannot_be_cut(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 5, "dur": 1, "args": {}}
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events * 4000}))
    with pytest.raises(TracekitError, match="--max-events 0"):
        part_of(path, 100)


@pytest.mark.quick(1)
def test_nothing_is_left_on_disk(
    path: Path, whole: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    made: list[Path] = []
    real = FrameStore.keep_only

    def watch(self: FrameStore, *arguments: object) -> int:
        made.extend(tmp_path.rglob("*.arrow"))
        return real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(FrameStore, "keep_only", watch)
    part_of(path, rows_of(whole) // 3)
    assert made, "the test must see the files"
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("form", ["kineto", "nsys"])
def test_events_too_close_together_are_told_in_one_line(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spans that all reach over the whole recording: no window holds few of them."""
    path = tmp_path / ("t.json" if form == "kineto" else "t.sqlite")
    if form == "kineto":
        spans = [
            {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": i, "ts": i, "dur": 10_000}
            for i in range(5_000)
        ]
        path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": spans}))
    else:
        program = Program()
        for i in range(5_000):
            program.push_pop("all", i, 10_000_000, tid=i)
        write_sqlite(program, path)
    with pytest.raises(SystemExit) as left:
        main(["report", str(path), "--no-cache", "--max-events", "500"])
    out = capsys.readouterr()
    assert (left.value.code, out.out) == (2, "")
    (line,) = out.err.strip().splitlines()
    assert line.startswith(f"tracekit: error: {path}: its events lie too close together")
    assert "--max-events 0" in line


def test_no_room_to_put_rows_aside(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_store, "roomy_place", lambda: "/nowhere")
    with pytest.raises(TracekitError, match="set TMPDIR"):
        part_of(path, 100)


@pytest.mark.quick(1)
def test_the_cache_keeps_parts_and_wholes_apart(path: Path, whole: Trace) -> None:
    few, more = rows_of(whole) // 4, rows_of(whole) // 2

    def read(most: int | None) -> Trace:
        return tracekit.read(path, limits=Limits(max_events=most), cache=True)

    first = read(few)
    again = read(few)
    assert again.equals(first)
    assert again.meta.excerpt == first.meta.excerpt
    assert read(more).device.height > first.device.height
    assert read(None).equals(whole)
    assert read(few).equals(first), "a whole trace in the cache is too large all the same"
    assert len([e for e in Path(os.environ["TRACEKIT_CACHE_DIR"]).iterdir() if e.is_dir()]) == 3
    assert cache.clear() > 0


def test_the_sample_of_starts_stays_small_and_even(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_store, "_SAMPLES", 1000)
    sample = TimeSample()
    for block in range(50):
        sample.add(pl.Series(np.arange(block * 1000, block * 1000 + 1000)))
    kept = sample.sorted()
    assert 250 <= kept.size <= 1000
    assert np.median(kept) == pytest.approx(25_000, rel=0.05)
    assert np.quantile(kept, 0.9) == pytest.approx(45_000, rel=0.05)


def test_uneven_steps_are_chosen_by_what_they_hold() -> None:
    starts = np.array([0, 100, 200, 300])
    ends = starts + 100
    sample = np.sort(np.concatenate([np.arange(0, 400, 4), np.linspace(200, 299, 900).astype(np.int64)]))
    assert _window(starts, ends, sample, 0.5) == (100, 200, 1), (
        "two steps hold too much, the heavy one alone too"
    )
    assert _window(starts, ends, sample, 0.01)[2] == 0
    gapless = IntervalSet.of(starts, ends)
    assert gapless.measure == 400
