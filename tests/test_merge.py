"""The traces of a job as one file: the archive as Perfetto documents it, and a Chrome trace from which each rank reads as from its own."""

from __future__ import annotations

import gzip
import json
import tarfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from synthetic.job import Fault, Job, simulate, write_job

import tracekit
from tracekit.analyses.breakdown import breakdown
from tracekit.analyses.scope import select
from tracekit.cli.main import main
from tracekit.report.build import build_report
from tracekit.trace import Trace

SAMPLE = Path("sample_traces/bert_cpu_ddp")


def merge(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        main(["merge", *map(str, arguments), "--no-cache"])
    return int(left.value.code or 0)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Path]:
    folder = tmp_path_factory.mktemp("job")
    made = simulate(seed=4, ranks=3, columns=3, steps=2, faults=(Fault(rank=1, kind="compute", ns=200_000),))
    write_job(made, folder)
    packed = folder / "rank-2.json"
    (folder / "rank-2.json.gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()
    return made, folder


def members(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        return {one.name: tar.extractfile(one).read() for one in tar.getmembers()}  # type: ignore[union-attr]


@pytest.mark.slow
def test_the_archive_holds_the_traces_and_their_clocks(job: tuple[Job, Path], tmp_path: Path) -> None:
    truth, folder = job
    assert merge(folder, "-o", tmp_path / "job.tar") == 0
    held = members(tmp_path / "job.tar")
    manifest = json.loads(held.pop("perfetto_manifest.json"))["perfetto_manifest"]
    assert set(manifest) == {"version", "files"}
    assert manifest["version"] == 1
    assert [one["path"] for one in manifest["files"]] == sorted(held)
    first = manifest["files"][0]["path"]
    assert "clocks" not in manifest["files"][0]
    moved = {}
    for entry in manifest["files"]:
        rank = int(entry["machine"]["name"].removeprefix("rank "))
        original = folder / f"rank-{rank}.json"
        plain = (
            original.read_bytes()
            if original.exists()
            else gzip.decompress(original.with_suffix(".json.gz").read_bytes())
        )
        assert held[entry["path"]] == plain
        clocks = entry.get("clocks", {"sync_to": {"file": first}, "offset_ns": 0})
        assert clocks["sync_to"] == {"file": first}
        assert clocks["offset_ns"] >= 0  # else Perfetto may drop events
        moved[rank] = clocks["offset_ns"] + truth.offsets[rank]
    # By the true offsets of the clocks, all are on one clock.
    assert len(set(moved.values())) == 1
    again = tmp_path / "again.tar"
    assert merge(folder, "-o", again) == 0
    assert again.read_bytes() == (tmp_path / "job.tar").read_bytes()


def events_of(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    tree = json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())
    return tree["traceEvents"], tree


def ranks_by_process(events: list[dict[str, Any]]) -> dict[int, int]:
    names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    return {pid: int(name.split(":")[0].removeprefix("rank ")) for pid, name in names.items()}


@pytest.fixture(scope="module")
def merged(job: tuple[Job, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("merged") / "job.json.gz"
    assert merge(job[1], "--to", "chrome", "-o", path) == 0
    return path


KERNEL = ("name", "stream_id", "start", "duration", "grid", "launched")


def kernels(trace: Trace) -> pl.DataFrame:
    launches = trace.host.select(pl.col("span_id").alias("launch_id"), pl.col("start").alias("launched"))
    rows = trace.device.join(launches, on="launch_id", how="left")
    return rows.with_columns(pl.col("name").cast(pl.String), pl.col("grid").cast(pl.String)).sort("start")


def busy(trace: Trace) -> pl.DataFrame:
    parts = breakdown(select(trace, window="trace")).devices
    return parts.select("device_id", "compute_ns", "communication_ns", "exposed_communication_ns")


@pytest.mark.slow
def test_each_rank_reads_as_from_its_own_file(job: tuple[Job, Path], merged: Path) -> None:
    truth, folder = job
    events, _ = events_of(merged)
    rank_of = ranks_by_process(events)
    whole = tracekit.read(merged)
    assert [one.device_id for one in whole.meta.devices] == sorted(
        {e["pid"] for e in events if e.get("cat") == "kernel"}
    )
    zero = set()
    for rank in range(truth.ranks):
        path = folder / f"rank-{rank}.json"
        own = tracekit.read(path if path.exists() else path.with_suffix(".json.gz"))
        theirs = kernels(whole).filter(pl.col("device_id").replace_strict(rank_of) == rank)
        mine = kernels(own)
        assert theirs.height == mine.height > 0
        shift = theirs["start"][0] - mine["start"][0]
        moved = mine.with_columns(pl.col("start", "launched") + shift)
        assert theirs.select(KERNEL).equals(moved.select(KERNEL))
        assert theirs["process_id"].replace_strict(rank_of).unique().to_list() == [rank]
        device = theirs["device_id"][0]
        assert (
            busy(whole)
            .filter(pl.col("device_id") == device)
            .drop("device_id")
            .equals(busy(own).drop("device_id"))
        )
        zero.add(shift - truth.origins[rank])
    assert len(zero) == 1  # all on one clock, as simulated
    (note,) = (each for each in build_report(whole).verdict.notes if "several ranks" in each)
    assert note.startswith("The file holds the traces of several ranks, which count as one program here.")


@pytest.mark.slow
def test_the_waits_are_those_of_the_job(job: tuple[Job, Path], merged: Path) -> None:
    truth, _ = job
    events, tree = events_of(merged)
    rank_of = ranks_by_process(events)
    assert len(tree["deviceProperties"]) == truth.ranks
    waits = Counter()
    for event in events:
        if event.get("cat") == "tracekit" and event["name"].startswith("waits for"):
            waits[rank_of[event["pid"]]] += round(event["dur"] * 1000)
    expected = Counter()
    for call in truth.calls:
        expected[call.rank] += call.ready - call.start
    assert +waits == +expected
    late = sum(call.ready > call.start for call in truth.calls)
    starts = [e for e in events if e["ph"] == "s"]
    ends = [e for e in events if e["ph"] == "f"]
    assert len(starts) == len(ends) == late
    assert {e["id"] for e in starts} == {e["id"] for e in ends}
    assert len({e["id"] for e in starts}) == late
    slices = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            begin = round(event["ts"] * 1000)
            slices[event["pid"], event["tid"]].append((begin, begin + round(event["dur"] * 1000)))
    for event in starts + ends:
        at = round(event["ts"] * 1000)
        assert any(begin <= at < end for begin, end in slices[event["pid"], event["tid"]])
    tracks = [
        key
        for key in slices
        if any(e.get("cat") == "tracekit" and (e["pid"], e["tid"]) == key for e in starts)
    ]
    assert tracks
    assert all(_nest(slices[key]) for key in tracks)


def _nest(spans: list[tuple[int, int]]) -> bool:
    ends: list[int] = []
    for begin, end in sorted(spans, key=lambda one: (one[0], -one[1])):
        while ends and ends[-1] <= begin:
            ends.pop()
        if ends and end > ends[-1]:
            return False
        ends.append(end)
    return True


@pytest.mark.slow
def test_operators_and_flows_of_a_capture(tmp_path: Path) -> None:
    assert merge(SAMPLE, "--to", "chrome", "-o", tmp_path / "ddp.json") == 0
    events, tree = events_of(tmp_path / "ddp.json")
    rank_of = ranks_by_process(events)
    assert tree["distributedInfo"] == {"backend": "gloo", "world_size": 2}
    whole = tracekit.read(tmp_path / "ddp.json")
    columns = ("kind", "name", "start", "duration", "depth", "shapes", "sequence")
    for rank in range(2):
        own = tracekit.read(SAMPLE / f"trace-rank{rank}.json.gz")
        theirs, mine = (
            one.host.with_columns(pl.col("kind", "name", "shapes").cast(pl.String)).sort("start", "depth")
            for one in (whole, own)
        )
        theirs = theirs.filter(pl.col("process_id").replace_strict(rank_of, default=None) == rank)
        shift = theirs["start"][0] - mine["start"][0]
        assert theirs.select(columns).equals(mine.with_columns(pl.col("start") + shift).select(columns))
        assert own.flows is not None
        assert whole.flows is not None
        assert (
            whole.flows.filter(pl.col("source_process").replace_strict(rank_of) == rank).height
            == own.flows.height
        )


def wrong(folder: Path) -> Iterator[tuple[list[object], str]]:
    first = folder / "rank-0.json"
    yield [folder, "-o", folder / "job.json"], "--to chrome"
    yield [folder, "--to", "chrome", "-o", first], "it is an input"
    yield [folder, "--ranks", "0-1,9", "-o", folder / "a.tar"], "no trace of rank 9"
    yield [folder, "--ranks", "x", "-o", folder / "a.tar"], "write it like 0-3,7"
    yield [first, "-o", folder / "a.tar"], "not two traces"


@pytest.mark.slow
def test_wrong_usage_is_said_and_writes_nothing(
    job: tuple[Job, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = job[1]
    before = sorted(path.name for path in folder.iterdir())
    for arguments, said in wrong(folder):
        assert merge(*arguments) == 2
        told = capsys.readouterr().err
        assert said in told
        assert told.count("\n") == 1
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.slow
def test_some_ranks(job: tuple[Job, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert merge(job[1], "--ranks", "0,2-2", "-o", tmp_path / "few.tar") == 0
    assert len(members(tmp_path / "few.tar")) == 3
    assert "2 traces" in capsys.readouterr().out


@pytest.mark.slow
def test_some_ranks_wait_for_whom_they_wait_for_in_the_whole_job(
    job: tuple[Job, Path], merged: Path, tmp_path: Path
) -> None:
    """Ranks were left out before the others were compared: rank 0 waited 7 µs for rank 2, and its wait of 200 µs for rank 1 was none."""

    def waits(path: Path) -> dict[int, list[tuple[str, float, int]]]:
        events, _ = events_of(path)
        rank_of = ranks_by_process(events)
        found = defaultdict(list)
        for event in events:
            if event.get("cat") == "tracekit" and event["name"].startswith("waits for"):
                found[rank_of[event["pid"]]].append(
                    (event["name"], event["dur"], event["args"]["collective"])
                )
        return found

    def arrows(path: Path) -> list[tuple[int, int]]:
        events, _ = events_of(path)
        rank_of = ranks_by_process(events)
        begins = {e["id"]: rank_of[e["pid"]] for e in events if e["ph"] == "s"}
        return sorted((begins[e["id"]], rank_of[e["pid"]]) for e in events if e["ph"] == "f")

    few = tmp_path / "few.json"
    assert merge(job[1], "--ranks", "0,2", "--to", "chrome", "-o", few) == 0
    whole, part = waits(merged), waits(few)
    assert set(part) == {0, 2}
    assert all(part[rank] == whole[rank] for rank in part)
    assert any(name == "waits for rank 1" and ns > 190 for name, ns, _ in part[0])
    # No arrow leads from a rank that is not there.
    assert arrows(few) == [pair for pair in arrows(merged) if 1 not in pair]
