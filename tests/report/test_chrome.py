"""`export --to chrome`: the original byte by byte, tracks that nest, and frames that stay the same."""

from __future__ import annotations

import gzip
import json
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import small_traces
from paths import PUBLIC, SAMPLES
from polars.testing import assert_frame_equal
from real_traces import trace_of, traces
from synthetic import STYLES, generate, write

import tracekit
from tracekit.analyses.idle.causes import idle_causes
from tracekit.analyses.scope import select
from tracekit.errors import UsageError
from tracekit.report import chrome
from tracekit.trace import Trace

FRAMES = ("host", "device", "threads", "flows", "syncs", "memory", "collectives", "counters")


def _plain(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def _events(data: bytes) -> list[dict[str, Any]]:
    document = json.loads(data)
    events: list[dict[str, Any]] = document["traceEvents"] if isinstance(document, dict) else document
    return events


def _same_frames(one: Trace, other: Trace) -> None:
    for name in FRAMES:
        a, b = getattr(one, name), getattr(other, name)
        assert (a is None) == (b is None), name
        if a is not None:
            assert_frame_equal(a, b, categorical_as_str=True)
    assert (one.meta.origin_ns, one.meta.rank) == (other.meta.origin_ns, other.meta.rank)


def enriched(trace: Trace, target: Path) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The events that were added; everything else is checked to be as it was."""
    counts = chrome.write(trace, target)
    source, made = _plain(Path(trace.meta.path)), _plain(target)
    mine = [event for event in _events(made) if event.get("cat") == "tracekit"]
    assert _events(made)[len(mine) :] == _events(source)
    bracket = source.index(b"[", source.index(b'"traceEvents"') if source.lstrip()[:1] == b"{" else 0)
    assert made.startswith(source[: bracket + 1])
    assert made.endswith(source[bracket + 1 :])
    _same_frames(trace, tracekit.read(target))
    counts = dict(counts)
    assert [sum(event["ph"] == phase for event in mine) for phase in "sf"] == [counts.pop("arrows")] * 2
    assert sum(event["ph"] == "X" for event in mine) == sum(counts.values())
    return mine, counts


@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "path", traces(*(path for path in (*SAMPLES, *PUBLIC) if path.stat().st_size < 300_000))
)
@pytest.mark.sampled(4)
def test_real_traces_go_round(path: Path, tmp_path: Path) -> None:
    enriched(trace_of(path), tmp_path / ("rank0.json.gz" if "rank0" in path.name else "x.json.gz"))


@pytest.mark.quick(1)
@pytest.mark.parametrize("style", sorted(STYLES))
@pytest.mark.sampled(4)
def test_every_way_of_writing_a_trace(style: str, tmp_path: Path) -> None:
    source = write(generate(seed=11, steps=2, workers=1, tick_ns=1000), tmp_path / "rank-0.json", style)
    mine, counts = enriched(tracekit.read(source), tmp_path / "out-rank-0.json")
    assert counts["pieces of idle time"] > 0
    assert mine


@pytest.mark.slow
def test_bars_of_a_track_nest(tmp_path: Path) -> None:
    trace = tracekit.read(SAMPLES[0])
    mine, _ = enriched(trace, tmp_path / "x.json")
    tracks = defaultdict(list)
    for event in mine:
        if event["ph"] == "X":
            start = round(event["ts"] * 1000)
            tracks[event["pid"], event["tid"]].append((start, start + round(event["dur"] * 1000)))
    assert tracks
    for bars in tracks.values():
        assert bars == sorted(bars, key=lambda bar: (bar[0], -bar[1]))
        open_: list[int] = []
        for start, end in bars:
            while open_ and open_[-1] <= start:
                open_.pop()
            assert not open_ or end <= open_[-1]
            open_.append(end)


@pytest.mark.slow
def test_tracks_have_names_and_threads_of_their_own(tmp_path: Path) -> None:
    trace = tracekit.read(SAMPLES[0])
    mine, _ = enriched(trace, tmp_path / "x.json")
    names = {e["tid"]: e["args"]["name"] for e in mine if e["ph"] == "M" and e["name"] == "thread_name"}
    assert {"layers (forward)", "layers (backward)"} <= set(names.values())
    assert {e["tid"] for e in mine} == set(names)
    assert not set(names) & set(trace.host["thread_id"])
    assert {e["pid"] for e in mine} == set(trace.host["process_id"].unique())


@pytest.mark.slow
def test_idle_time_is_that_of_the_causes(tmp_path: Path) -> None:
    trace = tracekit.read(write(generate(seed=2, steps=2), tmp_path / "rank-0.json"))
    mine, _ = enriched(trace, tmp_path / "out-rank-0.json")
    tids = {e["tid"] for e in mine if e["ph"] == "M" and e["args"].get("name") == "idle, by cause"}
    told = [e for e in mine if e["ph"] == "X" and e["tid"] in tids]
    pieces = idle_causes(select(trace, window="trace")).pieces.sort("device_id", "start")
    by_cause = dict(
        pieces.group_by(pl.col("cause").cast(pl.String)).agg(pl.col("duration_ns").sum()).iter_rows()
    )
    found: dict[str, int] = defaultdict(int)
    for event in told:
        found[event["args"]["cause"]] += round(event["dur"] * 1000)
    assert dict(found) == by_cause


def test_times_are_exact_far_from_zero(tmp_path: Path) -> None:
    """A clock that counts from 1970 in µs leaves a double no room for ns; the text has them."""
    source = write(generate(seed=3, steps=1, origin_ns=1_735_632_360_123_456_789), tmp_path / "rank-0.json")
    trace = tracekit.read(source)
    chrome.write(trace, tmp_path / "o.json")
    text = (tmp_path / "o.json").read_text()
    piece = idle_causes(select(trace, window="trace")).pieces["start"].min()
    assert isinstance(piece, int)
    ns = trace.meta.origin_ns + piece
    assert f'"ts":{ns // 1000}.{ns % 1000:03d},' in text


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    trace = small_traces.hostile(tmp_path)
    mine, _ = enriched(trace, tmp_path / "out.json")
    assert {"</script><script>document.title='PWNED'</script>"} & {e["name"] for e in mine}


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    trace = small_traces.host_bound(tmp_path)
    source = Path(trace.meta.path)
    before = source.read_bytes()
    with pytest.raises(UsageError, match="the trace itself"):
        chrome.write(trace, source)
    (tmp_path / "link.json").symlink_to(source)
    with pytest.raises(UsageError, match="the trace itself"):
        chrome.write(trace, tmp_path / "link.json")
    with pytest.raises(UsageError, match=r"a \.json or"):
        chrome.write(trace, tmp_path / "out.parquet")
    chrome.write(trace, tmp_path / "out.json")
    again = tracekit.read(tmp_path / "out.json")
    with pytest.raises(UsageError, match="already"):
        chrome.write(again, tmp_path / "twice.json")
    with pytest.raises(UsageError, match="cannot be written"):
        chrome.write(trace, tmp_path / "missing" / "out.json")
    assert source.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.json", "out.json", "small.json"]


def test_a_damaged_trace_is_copied_as_far_as_it_goes(tmp_path: Path) -> None:
    whole = write(generate(seed=8, steps=2), tmp_path / "rank-0.json")
    data = whole.read_bytes()
    cut = tmp_path / "cut-rank-0.json"
    cut.write_bytes(data[: int(len(data) * random.Random(4).uniform(0.5, 0.9))])
    trace = tracekit.read(cut)
    chrome.write(trace, tmp_path / "out-rank-0.json")
    _same_frames(trace, tracekit.read(tmp_path / "out-rank-0.json"))


def test_a_failure_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = small_traces.host_bound(tmp_path)
    target = tmp_path / "out.json.gz"
    target.write_bytes(b"old")

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(UsageError, match="No space left"):
        chrome.write(trace, target)
    assert target.read_bytes() == b"old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.json.gz", "small.json"]
