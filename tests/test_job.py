"""Jobs of many ranks: read by other processes, with ranks that fail, and traces that belong to no job or to another one."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import msgspec
import polars as pl
import pytest
from commands import run
from synthetic.job import Fault, simulate, write_job

from tracekit.analyses.ranks import Summary
from tracekit.analyses.ranks.heat import NOTHING, heat_of
from tracekit.cli.main import main
from tracekit.cli.sources import Sources
from tracekit.cli.workers import Workers
from tracekit.errors import UsageError
from tracekit.facts.units import format_ns, format_share
from tracekit.job import Options, engine, job_of, rank_sets, summarise
from tracekit.job.engine import Outcome
from tracekit.job.rank_set import Member
from tracekit.report.job import job_section
from tracekit.trace import Trace

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


def first_steps(one: Member, last: int) -> Member:
    """The same with the calls of these steps alone, as if there were no others."""
    calls = one.summary.calls.filter(pl.col("step") <= last)
    steps = one.summary.steps.filter(pl.col("step") <= last)
    facts = msgspec.structs.replace(one.summary.facts, all_calls=calls.height)
    return replace(one, summary=replace(one.summary, calls=calls, steps=steps, facts=facts))


@pytest.mark.slow
def test_of_too_many_calls_those_of_the_first_steps_are_compared(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks stopped in the middle of a step; their later steps counted as without waits, and delays were parts of the whole window."""
    whole = members(summarise(paths(folder), jobs=1))
    per_step = whole[0].summary.calls.group_by("step").len()["len"][0]
    # Room for all ranks together: two steps of a rank, and a call of the third.
    monkeypatch.setattr(engine, "_LEAST_CALLS", 1)
    monkeypatch.setattr(engine, "_MOST_CALLS", (2 * per_step + 1) * len(whole))
    cut = members(summarise(paths(folder), jobs=1))
    steps = sorted(whole[0].summary.calls["step"].unique().to_list())[:2]
    assert {step for one in cut for step in one.summary.calls["step"].to_list()} == set(steps)
    job, truth = (job_of(rank_sets(some)[0]) for some in (cut, [first_steps(one, steps[1]) for one in whole]))
    kept = [
        "rank",
        "own_ns",
        "speed",
        "wait_ns",
        "last",
        "caused_ns",
        "kind",
        "what",
        "longer_ns",
        "offset_ns",
    ]
    assert job.table[kept].equals(truth.table[kept])
    ends = [one.summary.calls["end"].max() for one in cut]
    starts = [one.summary.facts.window_start_ns for one in cut]
    assert job.table["compared_ns"].to_list() == [
        end - start for end, start in zip(ends, starts, strict=True)
    ]
    caused, every = job.table["caused_ns"].max(), whole[0].summary.calls.height
    answer = job_section(job).answer
    assert (
        f"Rank 5 keeps the others waiting for {format_ns(caused)} ({format_share(caused / job.compared_ns)} of the compared time)."
        in answer
    )
    share = format_share(job.compared_ns / job.table["window_ns"].median())
    assert (
        f"A rank has up to {every} calls, of which the first were compared: those of {share} of the window."
        in answer
    )
    waited = job.heat.parts["wait"][0] if job.heat else None
    assert waited is not None
    assert (waited == NOTHING).any()
    assert (waited != NOTHING).any()


@pytest.mark.slow
def test_a_rank_whose_file_breaks_off_lacks_records(folder: Path, tmp_path: Path) -> None:
    """What could be read of it stood among the others, without a word about the rest."""
    for rank, path in enumerate(map(Path, paths(folder))):
        text = path.read_bytes()
        (tmp_path / path.name).write_bytes(text if rank != 3 else text[: len(text) // 3])
    made = members(summarise(paths(tmp_path), jobs=1))
    broken = [one.rank for one in made if one.summary.facts.incomplete]
    assert len(made) == 8
    assert broken == [3]
    assert "The trace of rank 3 lacks records." in job_section(job_of(rank_sets(made)[0])).answer


@pytest.mark.slow
def test_a_rank_with_too_many_calls_of_which_none_is_matched_has_no_waits(folder: Path) -> None:
    """The figure looked for the end of its last matched call."""
    whole = members(summarise(paths(folder), Options(most_calls=10), jobs=1))
    job = job_of(rank_sets(whole)[0])
    without = replace(job.waits, calls=job.waits.calls.filter(pl.col("at") != 0))
    heat = heat_of([one.summary for one in job.ranks.members], job.aligned, without)
    assert heat is not None
    assert (heat.parts["wait"][0] == NOTHING).all()


@pytest.mark.slow
def test_the_job_names_its_late_rank(folder: Path) -> None:
    (ranks,) = rank_sets(members(summarise(paths(folder), jobs=1)))
    job = job_of(ranks)
    worst = job.table.sort("caused_ns", descending=True).row(0, named=True)
    assert (worst["rank"], worst["what"]) == (5, "block.1")
    assert (ranks.missing, ranks.repeated) == ([], ())


@pytest.mark.slow
def test_a_file_that_ends_before_its_first_event_is_no_rank_of_another_job(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in sorted(folder.glob("*.json"))[:3]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "rank-3.json").write_bytes(b'{"traceEvents": [')
    code, shown, err = run(capsys, "report", tmp_path, "--no-cache")
    assert (code, err.count("truncated before its first event")) == (0, 1)
    assert "of the 3 ranks" in shown
    assert "another number of ranks" not in shown


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
    assert shown.err.count("\n") == shown.err.count("left out: ") == 2
    assert "2 files could not be read" in " ".join(shown.out.split())


@pytest.mark.slow
def test_a_damaged_file_beside_one_trace_stopped_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "b.json").write_bytes(b"nothing")
    sample = Path(__file__).parents[1] / "sample_traces" / "cnn_cpu" / "trace.json.gz"
    for _ in range(2):  # the second time its answer is at hand, and the damaged file is still said
        code, shown, err = run(capsys, "report", sample, tmp_path / "b.json")
        assert (code, err.count("\n"), "left out: " in err) == (0, 1, True)
        assert "Which of the" not in shown
        assert "trace.json.gz" in shown


@pytest.mark.slow
def test_the_page_of_a_job_shows_the_late_rank_first(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "job.html"
    assert run(capsys, "report", *sorted(folder.glob("*.json")), "-o", page)[0] == 0
    text = page.read_text("utf-8")
    assert re.findall(r'aria-current="true">([^<]*)<', text)[:2] == ["rank 5", "rank 0"]
    assert 0 < text.index('id="traces"') < text.index('id="rank-0"')


def tables(text: str) -> dict[str, list[dict[str, object]]]:
    found: dict[str, list[dict[str, object]]] = json.loads(text)["job"]["tables"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["--window", "trace", "--max-events", "150"],
        ["--step", "ProfilerStep#[67]", "--comm-pattern", "sgemm"],
    ],
)
def test_flags_reach_the_workers(folder: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    """The figures are those without workers; and the flags change them."""
    few = [*paths(folder)[:4], "--no-cache", "-f", "json"]
    alone, plain, by_workers = (
        tables(run(capsys, "report", *few, *more)[1]) for more in (words, [], [*words, "--jobs", "2"])
    )
    assert by_workers == alone
    assert plain != alone


@pytest.mark.slow
@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("form", ["table", "html"])
@pytest.mark.sampled(2)
def test_large_traces_of_few_ranks_are_read_one_by_one(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, broken: bool, form: str
) -> None:  # fmt: skip
    """All ranks of a machine were in memory at once, though text has one of them in full, and a page one after the other."""
    for path in paths(folder)[: 8 if form == "table" else 4]:
        shutil.copy(path, tmp_path)
    if broken:
        (tmp_path / "rank-1.json").write_bytes(b"nothing")
    words = ["report", tmp_path, "-f", form]
    at_once = run(capsys, *words, "--no-cache")
    monkeypatch.setattr("tracekit.cli.commands.report.APART_BYTES", 0)
    read: list[int] = []
    real = Sources.read

    def counted(sources: Sources) -> tuple[list[Trace], bool]:
        traces = real(sources)
        read.append(len(traces[0]))
        return traces

    monkeypatch.setattr(Sources, "read", counted)
    assert run(capsys, *words, "--no-cache") == at_once
    for _ in range(2):  # the second time the answer is at hand, and what is to be said is still said
        assert run(capsys, *words) == at_once
    assert set(read) <= {1}


@pytest.mark.slow
def test_a_page_of_large_traces_without_ranks_is_as_of_small_ones(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have one name, and no rank tells them apart."""
    for number, path in enumerate(paths(folder)[:4]):
        made = tmp_path / str(number) / "trace.json"
        made.parent.mkdir()
        text = Path(path).read_text("utf-8")
        made.write_text(re.sub(r'"rank": \d+', '"unknown": 0', text) if number < 2 else text, "utf-8")
    for few in (["[23]"], ["*"]):
        words = ["report", *sorted(tmp_path.glob(f"{few[0]}/*.json")), "-f", "html", "--no-cache"]
        monkeypatch.setattr("tracekit.cli.commands.report.LEAST_APART", 2)
        monkeypatch.setattr("tracekit.cli.commands.report.APART_BYTES", 1 << 40)
        at_once = run(capsys, *words)
        monkeypatch.setattr("tracekit.cli.commands.report.APART_BYTES", 0)
        assert run(capsys, *words) == at_once
        assert ("3/trace.json" in at_once[1], at_once[0]) == (True, 0)


@pytest.mark.slow
def test_what_no_worker_can_use_is_wrong_usage(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["report", *paths(folder)[:2], "--no-cache", "--jobs", "1", "--nvtx-include", "nothing"]
    code, _, err = run(capsys, *words)
    assert code == 2
    assert "leaves no range" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("--engine dusk", "did you mean dask?"),
        ("--engine processes --scheduler x.json", "--scheduler is for --engine dask"),
        ("--jobs 2 --scheduler x.json", "--jobs does not change the workers"),
        ("--scheduler x.json", "is not a file; give tcp://HOST:PORT"),
    ],
)
def test_flags_of_workers_that_do_not_fit(
    folder: Path, capsys: pytest.CaptureFixture[str], words: str, fault: str
) -> None:
    code, _, err = run(capsys, "report", *paths(folder)[:2], *words.split())
    assert (code, err.count("\n")) == (2, 1)
    assert fault in err


@pytest.mark.slow
def test_two_ranks_that_the_reader_chooses_are_compared(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, shown, _ = run(capsys, "report", *paths(folder)[:4], "--compare", "1,0")
    assert code == 0
    answer = " ".join(shown.split())
    assert "rank 1" in answer
    assert "rank 0" in answer
    assert "The report below is for rank 1" in answer
    for words in ("9", "1,2,3", "x"):
        assert run(capsys, "report", *paths(folder)[:2], "--compare", words)[0] == 2
    assert "names one rank twice" in run(capsys, "report", *paths(folder)[:2], "--compare", "1,1")[2]


@pytest.mark.slow
def test_one_broken_rank_is_a_row(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in folder.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "rank-3.json").write_bytes(b"nothing")
    outcomes = summarise([*paths(tmp_path), str(tmp_path / "rank-99.json")], jobs=2)
    errors = {Path(one.path).name: one.error for one in outcomes if one.error}
    assert set(errors) == {"rank-3.json", "rank-99.json"}
    (ranks,) = rank_sets(members(outcomes))
    assert ranks.missing == [3]
    assert job_of(ranks).table.height == 7
    _, out, err = run(
        capsys, "report", tmp_path / "rank-3.json", *paths(folder)[:3], "--jobs", "1", "-f", "json"
    )
    (row,) = tables(out)["unread"]
    assert (row["rank"], row["trace"]) == (3, "rank-3.json")
    assert str(row["error"]) in err
    assert "1 file could not be read: rank-3.json." in json.loads(out)["job"]["answer"]


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


class _Dying(engine._Pool):
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
    monkeypatch.setattr("tracekit.job.engine._Pool", _Dying)
    outcomes = summarise(paths(folder), jobs=2)
    assert _Dying.killed == 1
    assert [one.error for one in outcomes] == [None] * 8
    alone = summarise(paths(folder), jobs=1)
    assert all(same(a.summaries[0], b.summaries[0]) for a, b in zip(outcomes, alone, strict=True))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "killpg"), reason="a group of processes is needed")
def test_ctrl_c_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    """Every process of the group gets the signal, as from a terminal."""
    words = [sys.executable, "-m", "tracekit", "report", *paths(folder), "--jobs", "2", "--no-cache"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment, start_new_session=True
    ) as process:
        while not [*tmp_path.iterdir()]:  # which the pool makes first
            time.sleep(0.02)
            assert process.poll() is None
        time.sleep(0.5)
        os.killpg(process.pid, signal.SIGINT)
        # To a shell both are 130: a signal that comes while Python ends is left to the system.
        assert process.wait(60) in (130, -signal.SIGINT)
        assert process.stderr is not None
        assert process.stderr.read() == b"tracekit: error: interrupted\n"
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [3, 1])
@pytest.mark.parametrize("pool", [_Dying, engine._Pool])
def test_workers_that_join_several_ranks_change_no_figure(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: int, pool: type
) -> None:
    """What a dead worker had joined is read again, each rank alone; a rank that cannot be read takes no other with it."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "rank-3.json").write_bytes(b"nothing")
    alone = summarise(paths(tmp_path), jobs=1)
    monkeypatch.setattr(engine, "_LEAST_TASKS", tasks)
    monkeypatch.setattr(engine, "_Pool", pool)
    monkeypatch.setattr(_Dying, "killed", 0)
    seen: list[int] = []
    outcomes = summarise(paths(tmp_path), jobs=2, progress=lambda done, _size: seen.append(done))
    assert seen[-1] == 8
    assert pool is _Dying or seen[0] == 8 // tasks
    assert [one.path for one in outcomes] == paths(tmp_path)
    assert [one.error for one in outcomes] == [one.error for one in alone]
    assert [one.error is not None for one in outcomes] == [rank == 3 for rank in range(8)]
    assert all(
        same(a.summaries[0], b.summaries[0]) for a, b in zip(outcomes, alone, strict=True) if a.error is None
    )


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


LACKING = """
import sys

class Finder:
    def find_spec(self, name, *_):
        if name.partition(".")[0] == "tracekit":
            raise ModuleNotFoundError("No module named 'tracekit'")

sys.meta_path.insert(0, Finder())
from distributed.cli.dask_worker import main
main()
"""


@pytest.fixture
def dask(tmp_path: Path) -> Iterator[tuple[str, Callable[..., subprocess.Popen[bytes]]]]:
    """The file of a scheduler, and how to start a worker; each is a program of its own."""
    file = str(tmp_path / "scheduler.json")
    roots = [str(Path(__file__).parents[1]), *sys.path]
    here = {**os.environ, "POLARS_MAX_THREADS": "1", "PYTHONPATH": os.pathsep.join(roots)}
    running: list[subprocess.Popen[bytes]] = []

    def start(*words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, *words, "--scheduler-file", file, "--no-dashboard"]
        quiet = subprocess.DEVNULL
        running.append(subprocess.Popen(command, env=here, stdout=quiet, stderr=quiet))
        return running[-1]

    def worker(*words: str) -> subprocess.Popen[bytes]:
        return start(*(words or ("-m", "distributed.cli.dask_worker")), "--nthreads", "1", "--no-nanny")

    running.append(start("-m", "distributed.cli.dask_scheduler", "--port", "0", "--host", "127.0.0.1"))
    try:
        yield file, worker
    finally:
        for process in running:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_dask_workers_answer_as_this_process_does_and_one_may_die(
    folder: Path, dask: tuple[str, Callable[..., subprocess.Popen[bytes]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = pytest.importorskip("distributed")
    file, start = dask
    workers = [start(), start()]
    alone = summarise(paths(folder), jobs=1)
    with distributed.Client(scheduler_file=file, timeout=60) as client:
        client.wait_for_workers(2, timeout=60)
        for kills, tasks in ((False, 8), (True, 4)):
            monkeypatch.setattr(engine, "_LEAST_TASKS", tasks)
            seen: list[int] = []

            def kill(done: int, _size: int, kills: bool = kills, seen: list[int] = seen) -> None:
                seen.append(done)
                if kills and done == 2:  # while it reads another one
                    workers[1].kill()

            made = summarise(paths(folder), executor=client.get_executor(pure=False), progress=kill)
            assert [one.error for one in made] == [None] * 8
            assert all(same(a.summaries[0], b.summaries[0]) for a, b in zip(made, alone, strict=True))
            assert seen == [*range(8 // tasks, 9, 8 // tasks)]


@pytest.mark.slow
def test_a_dask_worker_without_tracekit_and_a_scheduler_that_ends(
    folder: Path, dask: tuple[str, Callable[..., subprocess.Popen[bytes]]]
) -> None:
    distributed = pytest.importorskip("distributed")
    file, start = dask
    with distributed.Client(scheduler_file=file, timeout=60) as client:
        lacking = start("-c", LACKING)
        client.wait_for_workers(1, timeout=60)
        with (
            pytest.raises(UsageError, match=r"cannot use tracekit \(No module named 'tracekit'\); install "),
            Workers(scheduler=file).executor(8),
        ):
            pass
        lacking.kill()
        while client.scheduler_info()["workers"]:
            time.sleep(0.1)
        start()
        client.wait_for_workers(1, timeout=60)
        scheduler = client.run_on_scheduler(os.getpid)

    def end(done: int, _size: int) -> None:
        if done == 1:
            os.kill(scheduler, signal.SIGKILL)

    with (
        pytest.raises(UsageError, match=r"scheduler has ended, and \d of 8 traces are not read"),
        Workers(scheduler=file).executor(8) as executor,
    ):
        summarise(paths(folder), executor=executor, progress=end)


@pytest.mark.slow
def test_dask_is_started_here(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("distributed")
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    words = ["report", *paths(folder)[:3], "--no-cache", "-f", "json"]
    made = subprocess.run(
        [sys.executable, "-m", "tracekit", *words, "--engine", "dask"],
        capture_output=True,
        check=True,
        env=environment,
    )
    assert "Traceback" not in made.stderr.decode()
    assert tables(made.stdout.decode()) == tables(run(capsys, *words)[1])
    assert not [*tmp_path.iterdir()]
