"""Jobs of many ranks: two processes against one, against HTA, and a generated job through Dask's workers.

    python benchmarks/ranks.py            8 ranks of 20 MB; jobs of 64, 256 and 1,024 ranks (some minutes)
    python benchmarks/ranks.py --short    8 ranks of 1 MB; a job of 16 ranks, for CI: it shows that all of it works

The ranks of a job are one real trace with shifted clocks; some of them are stragglers: one of their kernels takes longer, and the
collectives behind it begin late. All ranks leave a collective together, as they do in a real job. Wall time depends on what else
the machine does, so the ratios are medians of alternating runs.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import os
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from make_trace import enlarge, source_trace
from run import Cost, best, measure

from tracekit.analyses.ranks.summary import packed
from tracekit.cli.workers import NO_PROFILE
from tracekit.job import job_of, rank_sets, summarise
from tracekit.job.rank_set import Member

HERE: Final = Path(__file__).resolve().parent
MOST_STRAGGLERS: Final = 4
LATE_US: Final = 8_000.0
SKEW_US: Final = 3_000.0
BASE_NS: Final = 1_735_632_360_000_000_000


@dataclass(frozen=True)
class Planted:
    """A job on disk, and the ranks that come late."""

    paths: list[str]
    late: set[int]


def make_job(source: Path, folder: Path, ranks: int, seed: int = 0) -> Planted:
    """One file for each rank: the events of `source` on a clock of its own. Each straggler comes late to collectives of its own, and
    all ranks leave them together.
    """
    rng = random.Random(seed)
    document = json.loads(gzip.decompress(source.read_bytes()))
    events: list[dict[str, Any]] = document.pop("traceEvents")
    calls = [event for event in events if event.get("cat") == "kernel" and "nccl" in event["name"].lower()]
    for call in calls:
        call["name"] = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        call["late"] = min(LATE_US, call["dur"] / 2)
    late = rng.sample(range(ranks), min(MOST_STRAGGLERS, max(1, ranks // 16)))
    origin = min(event["ts"] for event in events if "ts" in event)
    folder.mkdir(exist_ok=True)
    paths = []
    for rank in range(ranks):
        shift = rng.uniform(-SKEW_US, SKEW_US) - origin
        own = {
            id(call) for at, call in enumerate(calls) if rank in late and at % len(late) == late.index(rank)
        }
        text = ",".join(json.dumps(_moved(event, shift, late=id(event) in own)) for event in events)
        head = {
            **document,
            "baseTimeNanoseconds": BASE_NS,
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": ranks},
        }
        path = folder / f"rank{rank}.json.gz"
        path.write_bytes(gzip.compress(f'{json.dumps(head)[:-1]}, "traceEvents": [{text}]}}'.encode(), 1))
        paths.append(str(path))
    return Planted(paths, set(late))


def _moved(event: dict[str, Any], shift: float, *, late: bool) -> dict[str, Any]:
    moved = {key: value for key, value in event.items() if key != "late"}
    if "ts" in event:
        moved["ts"] = round(event["ts"] + shift, 3)
    if late:
        moved["ts"] += event["late"]
        moved["dur"] -= event["late"]
    return moved


def eight_ranks(source: Path, work: Path, megabytes: float, rounds: int, *, with_hta: bool) -> list[str]:
    """What 8 ranks cost in one process, in two, and in HTA; the limits that were missed."""
    folder = work / "eight"
    folder.mkdir()
    single = make_job(source, work / "one", 8)
    for path in single.paths:
        enlarge(Path(path), folder / Path(path).name.removesuffix(".gz"), megabytes)
        target = folder / Path(path).name
        with gzip.open(target, "wb", 3) as packed:
            packed.write((plain := target.with_suffix("")).read_bytes())
        plain.unlink()
    code = "import sys; from pathlib import Path; from tracekit.job import summarise\nif __name__ == '__main__': summarise(sorted(map(str, Path(sys.argv[1]).iterdir())), jobs=int(sys.argv[2]))"
    # Polars uses all cores for parts of the work, in one process too.
    pinned = f"import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n{code}"
    script, on_one_core = work / "summarise.py", work / "on_one_core.py"
    script.write_text(code)
    on_one_core.write_text(pinned)
    reading = "import sys, tracekit; from pathlib import Path\nfor path in Path(sys.argv[1]).iterdir(): tracekit.read(path, cache=False)"
    commands = {
        "reading alone": [sys.executable, "-c", reading, str(folder)],
        "one core": [sys.executable, str(on_one_core), str(folder), "1"],
        "one process": [sys.executable, str(script), str(folder), "1"],
        "two processes": [sys.executable, str(script), str(folder), "2"],
    }
    if with_hta:
        commands["HTA"] = [sys.executable, str(HERE / "peer_hta.py"), str(folder), "load"]
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    for at in range(rounds):
        for name, command in commands.items():
            if name != "HTA" or at == 0:
                costs[name].append(measure(command, dict(os.environ)))
    print(f"\n8 ranks of {megabytes:g} MB       wall      CPU")
    for name, each in costs.items():
        print(f"  {name:<16}{best(each).wall_s:8.2f} s{best(each).cpu_s:8.2f} s")
    for name in ("one core", "one process"):
        pairs = zip(costs[name], costs["two processes"], strict=True)
        faster = statistics.median(one.wall_s / two.wall_s for one, two in pairs)
        print(f"  two processes are {faster:.2f} x as fast as {name} (median of {rounds})")
    if with_hta:
        hta, own = best(costs["HTA"]), best(costs["one process"])
        for name in ("reading alone", "one process"):
            other = best(costs[name])
            print(f"  HTA / {name:<14}{hta.wall_s / other.wall_s:6.1f} x {hta.cpu_s / other.cpu_s:6.1f} x")
        if hta.cpu_s < own.cpu_s and megabytes >= 10:
            return ["8 ranks take more CPU time than in HTA"]
    return []


def _used() -> tuple[float, float]:
    """CPU seconds and the largest memory in MB so far of the process that calls it."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def many_ranks(source: Path, work: Path, sizes: Sequence[int]) -> list[str]:
    """Jobs of these sizes through two Dask workers, which are the same for all; what was missed."""
    distributed: Any = importlib.import_module("distributed")
    problems = []
    print("\nranks   wall  CPU a rank  a summary  worker's peak  joint part  collector's peak  stragglers")
    with (
        importlib.import_module("dask").config.set(NO_PROFILE),
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            dashboard_address=None,
            env={"POLARS_MAX_THREADS": "1"},
            local_directory=str(work),
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        summarise(make_job(source, work / "warm", 2).paths, executor=client.get_executor(pure=False))
        for size in sizes:
            job = make_job(source, work / f"job{size}", size)
            before = sum(cpu for cpu, _ in client.run(_used).values())
            began = time.perf_counter()
            outcomes = summarise(job.paths, executor=client.get_executor(pure=False))
            wall = time.perf_counter() - began
            used = client.run(_used).values()
            cpu = (sum(each for each, _ in used) - before) / size
            members = [Member(one.path, summary) for one in outcomes for summary in one.summaries]
            began = time.process_time()
            table = job_of(rank_sets(members)[0]).table
            joint = time.process_time() - began
            worst = set(table.sort("caused_ns", descending=True)["rank"].head(len(job.late)).to_list())
            share = len(packed([members[0].summary]))
            print(
                f"{size:>5}{wall:>6.0f} s{cpu * 1000:>9.0f} ms{share / 1000:>8.1f} kB{max(peak for _, peak in used):>12.0f} MB"
                f"{joint:>10.2f} s{_used()[1]:>15.0f} MB  {len(worst & job.late)} of {len(job.late)}",
                flush=True,
            )
            if worst != job.late or any(one.error for one in outcomes):
                problems.append(
                    f"{size} ranks: the stragglers are {sorted(job.late)}, the answer is {sorted(worst)}"
                )
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=float)
    parser.add_argument("--ranks", type=int, nargs="*", help="sizes of the generated jobs")
    parser.add_argument("--no-hta", action="store_true")
    options = parser.parse_args()
    sizes = options.ranks if options.ranks is not None else [16] if options.short else [64, 256, 1024]
    megabytes = options.megabytes if options.megabytes is not None else 1.0 if options.short else 20.0
    problems = []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        source = source_trace(work)
        if megabytes:
            rounds = 1 if options.short else options.rounds
            problems += eight_ranks(source, work, megabytes, rounds, with_hta=not options.no_hta)
        if sizes:
            problems += many_ranks(source, work, sizes)
    for problem in problems:
        print(f"MISSED {problem}")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
