"""From paths to runs: the same trace by any path is the same digest, ranks are one run, and what cannot be read is one line."""

from __future__ import annotations

import json
import random
from pathlib import Path

import msgspec
import pytest
import zstandard
from commands import ok
from paths import PUBLIC_NSYS
from planted_runs import BERT, CNN, DDP, cnn, planted, same, written

from tracekit.diff.runs import Run, keep, kept
from tracekit.diff.sides import read_kept, read_sides
from tracekit.errors import UnreadableTraceError, UsageError
from tracekit.job import Options
from tracekit.sweep_index import INDEX_FILE

TRACE = CNN / "trace.json.gz"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole report, of which tables are cut."""
    from tracekit.cli.main import main

    path = tmp_path_factory.mktemp("report") / "report.json"
    with pytest.raises(SystemExit):
        main(["report", str(TRACE), "--top", "3", "-o", str(path)])
    return path


def runs(*paths: object, **more: object) -> tuple[Run, ...]:
    (side,) = read_sides([[str(path) for path in paths]], **more)  # type: ignore[arg-type]
    assert not side.left_out
    return side.runs


def test_a_trace_is_the_same_run_by_any_path(report: Path, tmp_path: Path) -> None:
    saved = tmp_path / "main.runs"
    saved.write_bytes(keep(runs(TRACE)))
    pattern = str(TRACE).replace("trace.json", "tr*.json")
    found = [runs(path) for path in (TRACE, CNN, pattern, report, saved, tmp_path)]
    assert all(len(one) == 1 and same(one[0].digests[0], cnn()) for one in found)
    assert found[0][0].name == found[4][0].name == "cnn_cpu/trace.json.gz"


def test_a_sweep_is_no_side(tmp_path: Path) -> None:
    """Its runs differ in their settings; its index is no export of Nsight Systems."""
    (tmp_path / "cnn").mkdir()
    (tmp_path / "cnn" / "trace.json.gz").write_bytes(TRACE.read_bytes())
    (tmp_path / INDEX_FILE).write_bytes(b"PAR1")
    with pytest.raises(
        UnreadableTraceError, match="it is a sweep, whose runs differ in their settings; name the folders"
    ):
        runs(tmp_path)
    assert len(runs(tmp_path / "cnn")) == 1


def test_sides_keep_their_order_and_share_a_file(tmp_path: Path) -> None:
    one, other = (written(tmp_path / name / "r.json", workload=name) for name in ("one", "other"))
    base, new = read_sides([[other, one], [one]])
    assert [run.digests[0].facts.workload for run in (*base.runs, *new.runs)] == ["other", "one", "one"]
    assert base.runs[1].digests[0] is new.runs[0].digests[0]


def test_a_file_that_is_named_twice_is_one_run(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(CNN)
    assert len(runs(CNN, TRACE, link / "trace.json.gz")) == 1


def test_ranks_are_one_run_however_they_are_named(tmp_path: Path) -> None:
    flat, deep = ([written(tmp_path / name.format(rank), rank=rank, world_size=2) for rank in (1, 0)]
                  for name in ("flat/{}.json", "deep/{}/report.json"))  # fmt: skip
    for paths in (
        [tmp_path / "flat"],
        flat,
        [tmp_path / "flat" / "*.json"],
        [str(tmp_path / "deep" / "*" / "*.json")],
    ):
        (run,) = runs(*paths)
        assert [one.facts.rank for one in run.digests] == [0, 1]
    assert runs(*flat)[0].name == f"{tmp_path.name}/flat"
    assert len(runs(*deep)) == 2


def test_the_traces_of_a_job_are_one_run() -> None:
    (run,) = runs(DDP)
    assert run.name == "sample_traces/bert_cpu_ddp"
    assert [one.facts.rank for one in run.digests] == [0, 1]


def test_the_same_rank_twice_is_two_runs(tmp_path: Path) -> None:
    for name in ("a/0", "a/1", "b/0", "b/1"):
        written(tmp_path / f"{name}.json", rank=int(name[-1]), world_size=2)
    found = runs(tmp_path / "*" / "*.json")
    assert [[one.facts.rank for one in run.digests] for run in found] == [[0, 1], [0, 1]]
    assert [run.name for run in found] == [f"{tmp_path.name}/a", f"{tmp_path.name}/b"]
    other = written(tmp_path / "a" / "again.json", rank=0, world_size=2)
    assert len(runs(tmp_path / "a" / "0.json", other)) == 2


def test_of_a_rank_only_its_digests_count(tmp_path: Path) -> None:
    for rank in (0, 1):
        written(tmp_path / f"{rank}.json", rank=rank, world_size=2)
    (run,) = runs(tmp_path, rank=1)
    assert [one.facts.rank for one in run.digests] == [1]
    with pytest.raises(UsageError, match="no trace has rank 7; the ranks are 0, 1"):
        runs(tmp_path, rank=7)


def test_the_options_choose_the_part_of_a_trace() -> None:
    (run,) = runs(TRACE, options=Options(window="trace"))
    assert run.digests[0].steps["step"].to_list() == [-1]
    with pytest.raises(UsageError, match=r"^/\S*json.gz: no annotation matches --step"):
        runs(TRACE, options=Options(step="nothing"))


@pytest.mark.slow
@pytest.mark.skipif(not PUBLIC_NSYS, reason="no public traces beside the checkout")
def test_an_export_of_several_processes_is_one_run() -> None:
    (run,) = runs(next(path for path in PUBLIC_NSYS if "fsdp" in path.name))
    assert len(run.digests) == 2


@pytest.mark.slow
def test_workers_make_the_same_digests() -> None:
    here, there = (runs(CNN, BERT, DDP, jobs=jobs) for jobs in (1, 2))
    for one, other in zip(here, there, strict=True):
        assert one.name == other.name
        assert all(same(a, b) for a, b in zip(one.digests, other.digests, strict=True))


def test_what_cannot_be_read_is_left_out_with_a_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.runs"
    broken.write_bytes(keep([planted("one")])[:-9])
    (side,) = read_sides([[CNN, tmp_path / "no.json", broken, "a\0b"]])
    assert len(side.runs) == 1
    missing, odd, damaged = sorted(
        map(str, side.left_out), key=lambda line: ("broken" in line, "no.json" not in line)
    )
    assert missing == f"{tmp_path}/no.json: no such file; check the path"
    assert "a b" in odd
    assert damaged == f"{broken}: no valid file of saved runs (its bytes are not those that were saved); save it again"  # fmt: skip
    with pytest.raises(UnreadableTraceError, match="no such file"):
        read_sides([[CNN], [tmp_path / "no.json"]])


def test_a_report_of_one_analysis_says_how_to_write_a_whole_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    part = tmp_path / "kernels.json"
    part.write_text(ok(capsys, "kernels", TRACE, "-f", "json"))
    with pytest.raises(UnreadableTraceError, match="no digest to compare; write it with tracekit report"):
        read_sides([[part]])


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda digest: digest.update(version=3), "its digest has version 3, not 2; use a newer tracekit"),
        (lambda digest: digest["values"]["ns"].append(1), "not a valid digest"),
        (lambda digest: digest["values"]["ns"].__setitem__(0, 10**12), "not a valid digest"),
        (lambda digest: digest["values"]["leaf"].__setitem__(0, 10**9), "not a valid digest"),
        (lambda digest: digest["steps"].pop("time_ns"), "not a valid report"),
        (lambda digest: digest["facts"].update(devices=0), "not a valid report"),
    ],
)
def test_a_report_that_was_changed_is_one_line(
    report: Path, tmp_path: Path, change: object, fault: str
) -> None:
    data = json.loads(report.read_bytes())
    change(data["digest"])  # type: ignore[operator]
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(data, indent=1))
    with pytest.raises(UnreadableTraceError, match=fault):
        read_sides([[path]])


@pytest.mark.slow
def test_several_reports_in_one_file_are_one_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(ok(capsys, "report", DDP, "-f", "json"))
    (run,) = runs(path)
    assert all(same(a, b) for a, b in zip(run.digests, runs(DDP)[0].digests, strict=True))


# -- the file of saved runs -----------------------------------------------------------------------------


def test_saved_runs_come_back_as_they_were() -> None:
    saved = (*runs(DDP), planted("two", day=3))
    again = kept(keep(saved)).runs
    assert [(run.name, run.changed_ns, run.recorded_ns) for run in again] == [
        (run.name, run.changed_ns, run.recorded_ns) for run in saved
    ]
    assert all(
        same(a, b)
        for one, other in zip(again, saved, strict=True)
        for a, b in zip(one.digests, other.digests, strict=True)
    )


def test_bytes_of_saved_runs_may_be_anything() -> None:
    data, chance = keep([planted("one")]), random.Random(1)
    for _ in range(300):
        hostile = bytearray(data[: chance.choice([len(data), chance.randrange(len(data))])])
        at = chance.randrange(min(400, len(hostile)) + 1)
        hostile[at : at + 1] = bytes([chance.randrange(256)])
        try:
            kept(bytes(hostile))
        except UnreadableTraceError as error:
            assert error.remedy  # noqa: PT017


def test_a_file_that_was_made_to_harm_is_one_line(tmp_path: Path) -> None:
    import hashlib

    path = tmp_path / "bomb.runs"
    bomb = zstandard.compress(bytes(300 << 20))
    for sizes, body in (([len(bomb)], bomb), ([10**8, 10**8], b""), ([1], b"x")):
        head = {"tracekit_runs": 1, "saved_ns": 10**30, "runs": [{"name": "\x1b[31m", "changed_ns": None, "sizes": sizes}],
                "sha256": hashlib.sha256(body).hexdigest()}  # fmt: skip
        path.write_bytes(msgspec.json.encode(head) + b"\n" + body)
        with pytest.raises(UnreadableTraceError, match="save it again"):
            read_kept(path)


@pytest.mark.parametrize(("version", "remedy"), [(0, "save it again"), (2, "use a newer tracekit")])
def test_a_file_of_another_version_is_one_clear_line(tmp_path: Path, version: int, remedy: str) -> None:
    path = tmp_path / "other.runs"
    path.write_bytes(b'{"tracekit_runs":%d}\n' % version)
    with pytest.raises(UnreadableTraceError, match=f"other.runs: it has version {version}, not 1; {remedy}"):
        read_kept(path)
