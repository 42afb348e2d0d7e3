"""Jobs of many ranks: read by other processes, with ranks that fail, and traces that belong to no job or to another one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import msgspec
import pytest
from synthetic.job import Fault, simulate, write_job

from tracekit.analyses.ranks import Summary
from tracekit.cli.main import main
from tracekit.job import Options, job_of, rank_sets, summarise
from tracekit.job.engine import Outcome
from tracekit.job.rank_set import Member

FAULT = Fault(rank=5, kind="compute", ns=300_000, layer=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("job")
    write_job(simulate(seed=1, ranks=8, columns=4, faults=(FAULT,)), made)
    return made


def paths(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.glob("*.json"))


def members(outcomes: list[Outcome]) -> list[Member]:
    return [Member(one.path, summary) for one in outcomes for summary in one.summaries]


def same(one: Summary, other: Summary) -> bool:
    return one.facts == other.facts and all(
        getattr(one, name).equals(getattr(other, name))
        for name in ("steps", "calls", "layers", "causes", "work", "timeline")
    )


@pytest.mark.slow
def test_processes_answer_as_this_one_does(folder: Path) -> None:
    here, there = (summarise(paths(folder), jobs=jobs) for jobs in (1, 2))
    assert [one.path for one in here] == [one.path for one in there] == paths(folder)
    assert all(same(a.summaries[0], b.summaries[0]) for a, b in zip(here, there, strict=True))


@pytest.mark.slow
def test_the_job_names_its_late_rank(folder: Path) -> None:
    (ranks,) = rank_sets(members(summarise(paths(folder), jobs=1)))
    job = job_of(ranks)
    worst = job.table.sort("caused_ns", descending=True).row(0, named=True)
    assert (worst["rank"], worst["what"]) == (5, "block.1")
    assert (ranks.missing, ranks.repeated) == ([], ())


@pytest.mark.slow
def test_one_broken_file_of_a_few_is_left_out(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in sorted(folder.glob("*.json"))[:4]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "rank-1.json").write_bytes(b'{"traceEvents": [{"ph": "X"')
    (tmp_path / "rank-2.json").write_bytes(b"nothing")
    with pytest.raises(SystemExit) as left:
        main(["report", *map(str, tmp_path.glob("*.json")), "--no-cache"])
    assert not left.value.code
    shown = capsys.readouterr()
    assert shown.err.count("\n") == shown.err.count("left out: ") == 1
    assert "1 file could not be read" in " ".join(shown.out.split())


@pytest.mark.slow
def test_one_broken_rank_is_a_row(folder: Path, tmp_path: Path) -> None:
    for path in folder.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "rank-3.json").write_bytes(b"nothing")
    outcomes = summarise([*paths(tmp_path), str(tmp_path / "rank-99.json")], jobs=2)
    errors = {Path(one.path).name: one.error for one in outcomes if one.error}
    assert set(errors) == {"rank-3.json", "rank-99.json"}
    (ranks,) = rank_sets(members(outcomes))
    assert ranks.missing == [3]
    assert job_of(ranks).table.height == 7


@pytest.mark.slow
def test_two_recordings_of_one_job_in_one_folder(folder: Path) -> None:
    ranks = members(summarise(paths(folder)[:2], jobs=1))
    later = [
        Member(one.path.replace("rank", "late"), replace(one.summary, facts=msgspec.structs.replace(
            one.summary.facts, origin_utc_ns=(one.summary.facts.origin_utc_ns or 0) + 10**10)))
        for one in ranks
    ]  # fmt: skip
    found = rank_sets([*ranks, *later])
    assert [[Path(member.path).name for member in one.members] for one in found] == [
        ["rank-0.json", "rank-1.json"],
        ["late-0.json", "late-1.json"],
    ]
    (once,) = rank_sets([*ranks, ranks[0]])
    assert (len(once.members), once.repeated, once.copies) == (2, (), 1)


class _Dying(ProcessPoolExecutor):
    """Kills a worker once it has work."""

    killed = 0

    def submit(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        future = super().submit(*args, **kwargs)
        if self.killed < 1 and self._processes:
            type(self).killed += 1
            os.kill(next(iter(self._processes)), signal.SIGKILL)
        return future


@pytest.mark.slow
def test_a_worker_that_dies_changes_no_figure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracekit.job.engine.ProcessPoolExecutor", _Dying)
    outcomes = summarise(paths(folder), jobs=2)
    assert _Dying.killed == 1
    assert [one.error for one in outcomes] == [None] * 8
    alone = summarise(paths(folder), jobs=1)
    assert all(same(a.summaries[0], b.summaries[0]) for a, b in zip(outcomes, alone, strict=True))


@pytest.mark.slow
def test_a_given_executor_does_the_work(folder: Path) -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        made = summarise(paths(folder)[:2], Options(window="trace"), executor=pool)
    assert [one.summaries[0].facts.rank for one in made] == [0, 1]


@pytest.mark.slow
def test_two_jobs_in_two_folders(folder: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for path in paths(folder)[:3]:
            (tmp_path / name / Path(path).name).write_bytes(Path(path).read_bytes())
    found = rank_sets(members(summarise(sorted(map(str, tmp_path.rglob("*.json"))), jobs=1)))
    assert [[member.rank for member in one.members] for one in found] == [[0, 1, 2], [0, 1, 2]]
    assert [one.folder for one in found] == ["a", "b"]
    assert found[0].missing == [3, 4, 5, 6, 7]


@pytest.fixture(scope="module")
def scheduler(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A scheduler and two workers, each a program of its own; the address is in a file."""
    file = tmp_path_factory.mktemp("dask") / "scheduler.json"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    roots = [str(Path(__file__).parents[1]), *sys.path]
    here = {**os.environ, "POLARS_MAX_THREADS": "1", "PYTHONPATH": os.pathsep.join(roots)}
    dask = [
        sys.executable,
        "-m",
        "distributed.cli.dask_scheduler",
        "--scheduler-file",
        str(file),
        "--port",
        "0",
        "--no-dashboard",
    ]
    running = [subprocess.Popen([*dask, "--host", "127.0.0.1"], env=here, **quiet)]  # type: ignore[call-overload]
    worker = [
        sys.executable,
        "-m",
        "distributed.cli.dask_worker",
        "--scheduler-file",
        str(file),
        "--nthreads",
        "1",
        "--no-dashboard",
        "--no-nanny",
    ]
    running += [subprocess.Popen(worker, env=here, **quiet) for _ in range(2)]  # type: ignore[call-overload]
    try:
        yield str(file), running
    finally:
        for process in running:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_dask_workers_answer_as_this_process_does_and_one_may_die(
    folder: Path, scheduler: tuple[str, list[subprocess.Popen[bytes]]]
) -> None:
    distributed = pytest.importorskip("distributed")
    file, running = scheduler
    with distributed.Client(scheduler_file=file, timeout=60) as client:
        client.wait_for_workers(2, timeout=60)
        alone = summarise(paths(folder), jobs=1)
        for kills in (False, True):
            if kills:
                threading.Timer(0.3, running[-1].kill).start()
            made = summarise(paths(folder), executor=client.get_executor(pure=False))
            assert [one.error for one in made] == [None] * 8
            assert all(same(a.summaries[0], b.summaries[0]) for a, b in zip(made, alone, strict=True))
