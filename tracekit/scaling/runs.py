"""The runs that are compared: of each the number of ranks, its step times, its batch, and where the time of its ranks went."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from fractions import Fraction
from pathlib import Path
from typing import Final

import polars as pl

from tracekit.analyses.ranks import Summary
from tracekit.classes import dataclass
from tracekit.job.job import Job, job_of
from tracekit.job.rank_set import Member, RankSet, rank_sets
from tracekit.manifest import Manifest, manifest_beside
from tracekit.names import clean, told_apart

__all__ = ["MESSAGES", "PARTS", "Run", "runs_of", "same_program"]

PARTS: Final = (
    "compute", "exposed_communication", "waits", "exposed_communication_and_waits", "exposed_copies", "idle", "shorter_steps",
)  # fmt: skip
"""The parts of the ranks' time. Exposed communication stands with its waits if these are unknown; by `shorter_steps` the steps of other ranks
are shorter than those of the slowest one."""

MESSAGES: Final = {
    "name": pl.String, "ranks": pl.Int64, "bytes": pl.Int64, "latency_ns": pl.Float64, "count": pl.Int64
}  # fmt: skip
"""Columns of `Run.messages`."""

_ALIKE: Final = 0.5
"""Programs without a manifest are the same if they have this part of their kinds of layers in common."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Run:
    """A run, whatever it was read from. Times are ns; a step takes as long as that of its slowest rank."""

    name: str
    ranks: int
    step_times: tuple[int, ...]
    """Of the recorded steps; empty if none is marked or inferred."""
    plain_times: tuple[int, ...] = ()
    """Of the steps without the profiler, if they were measured."""
    samples: int | None = None
    """The batch of all ranks together."""
    shares: Mapping[tuple[str, str], Fraction] = field(default_factory=dict)
    """The parts (`PARTS`) of the ranks' time in the recorded steps, idle time by cause (else the second is empty): they sum to 1."""
    messages: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=MESSAGES))
    """The collectives that all ranks share (`MESSAGES`), by name, ranks and size: `latency_ns` is the median."""
    on_cpu: bool = False
    program: str | None = None
    """What was run, from the manifest of a capture."""
    layers: frozenset[str] = frozenset()
    traced: int | None = None
    """How many of the ranks have a trace, if it was read from traces."""
    missing: tuple[int, ...] = ()
    """Those that have none, as far as traces say their ranks."""


def runs_of(groups: Iterable[Sequence[Member]]) -> list[Run]:
    """The runs of these traces, by the number of their ranks.

    Each group is a run, or several: those of its traces that cannot be ranks of one job. Traces of unknown rank in one folder are
    ranks of one run.

    >>> from glob import glob
    >>> from tracekit.job import summarise
    >>> files = ["sample_traces/bert_cpu/trace.json.gz", *sorted(glob("sample_traces/bert_cpu_ddp/*.gz"))]
    >>> members = [Member(one.path, each) for one in summarise(files) for each in one.summaries]
    >>> [(run.name, run.ranks, run.samples) for run in runs_of([members])]
    [('bert_cpu', 1, 2), ('bert_cpu_ddp', 2, 4)]
    """
    given = [ranks for members in groups for ranks in _sets(members)]
    sets = list({tuple(one.path for one in ranks.members): ranks for ranks in given}.values())
    places = [_place(ranks) for ranks in sets]
    runs = [_run(ranks, name) for ranks, name in zip(sets, told_apart(places), strict=True)]
    return sorted(runs, key=lambda run: (run.ranks, run.samples or 0, run.name))


def _sets(members: Sequence[Member]) -> Iterator[RankSet]:
    unknown: dict[Path, list[Member]] = {}
    ranked: list[Member] = []
    for one in members:
        if one.rank is None and one.summary.facts.world_size is None:
            unknown.setdefault(Path(one.path).parent, []).append(one)
        else:
            ranked.append(one)
    yield from (RankSet(tuple(together), None) for together in unknown.values())
    taken: set[tuple[Path, int | None]] = set()
    for ranks in rank_sets(ranked):
        taken |= {(Path(one.path).parent, one.rank) for one in ranks.members}
        yield ranks
    for one in ranked:  # another trace of a rank that is there says nothing more
        if (Path(one.path).parent, one.rank) not in taken:
            yield RankSet((one,), one.summary.facts.world_size)


def same_program(runs: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """The runs of the program that most of them are of, of equals that with the most ranks, and the others.

    A manifest names the program; without one, runs with other kinds of layers are of another program.
    """
    kinds: list[list[Run]] = []
    for run in runs:
        for kind in kinds:
            if _alike(kind[0], run):
                kind.append(run)
                break
        else:
            kinds.append([run])
    most = max(kinds, key=lambda kind: (len(ranks := {run.ranks for run in kind}), max(ranks)), default=[])
    return most, [run for run in runs if run not in most]


def _alike(one: Run, other: Run) -> bool:
    if one.program is not None and other.program is not None:
        return one.program == other.program
    either = one.layers | other.layers
    return not one.layers or not other.layers or len(one.layers & other.layers) >= _ALIKE * len(either)


# -- names -----------------------------------------------------------------------------------------


def _place(ranks: RankSet) -> Path:
    """The folder of a run, or its one file where the folder may hold others."""
    first = Path(ranks.members[0].path)
    if len(ranks.members) == 1 and manifest_beside(first) is None:
        return first
    return Path(os.path.commonpath([Path(one.path).absolute().parent for one in ranks.members]))


# -- one run ---------------------------------------------------------------------------------------


def _run(ranks: RankSet, name: str) -> Run:
    summaries = [one.summary for one in ranks.members]
    manifest = manifest_beside(Path(ranks.members[0].path))
    job = job_of(ranks) if len(summaries) > 1 else None
    run = Run(
        name=name,
        ranks=max(ranks.world_size or 0, len(summaries)),
        step_times=_step_times(summaries),
        on_cpu=summaries[0].facts.on_cpu,
        layers=frozenset(_kinds(summaries[0])),
        traced=len(summaries),
        missing=tuple(ranks.missing) if all(one.rank is not None for one in ranks.members) else (),
    )
    if run.step_times:
        alone = {0: (0, 0)} if ranks.world_size == 1 else {}  # it waits for none
        run = replace(run, shares=_shares(summaries, alone if job is None else _exposed_waits(job)))
    if job is not None:
        run = replace(run, messages=_messages(job))
    if manifest is None:
        return run
    return replace(
        run,
        plain_times=tuple(manifest.step_times_ns("M")),
        samples=manifest.samples_per_step,
        program=_program(manifest),
    )


def _program(manifest: Manifest) -> str:
    words = [f"{manifest.parameters:,} parameters"]
    if manifest.settings is not None:
        chosen = manifest.settings
        words = [chosen.precision, *words, *(["compiled"] if chosen.compile else [])]
        words += [f"size {chosen.size}"] if chosen.size else []
    return clean(f"{manifest.workload} ({', '.join([*words, manifest.device_name])})")


def _kinds(summary: Summary) -> Iterator[str]:
    for pattern, kind in summary.layers.select("pattern", "type").rows():
        if not pattern.startswith("<"):
            yield f"{pattern.rpartition('.')[2]} {kind}"


def _step_times(summaries: Sequence[Summary]) -> tuple[int, ...]:
    """The time of each step on its slowest rank, by the steps' numbers; by their order if ranks count differently."""
    times = [
        dict(one.steps.filter(pl.col("time_ns") > 0).select("step", "time_ns").rows()) for one in summaries
    ]
    if not all(times):
        return ()
    common = sorted(set(times[0]).intersection(*times[1:]))
    if len(common) * 2 >= min(map(len, times)):
        return tuple(max(rank[step] for rank in times) for step in common)
    return tuple(map(max, zip(*(list(rank.values()) for rank in times), strict=False)))


def _shares(
    summaries: Sequence[Summary], waits: Mapping[int, tuple[int, int]]
) -> dict[tuple[str, str], Fraction]:
    """Exact: sums of ns over ns. `waits` are those of `_parts`, by rank."""
    sums: defaultdict[tuple[str, str], Fraction] = defaultdict(Fraction)
    steps = [Fraction(one.facts.window_ns, one.facts.all_steps) for one in summaries]
    for at, (one, step) in enumerate(zip(summaries, steps, strict=True)):
        sums["shorter_steps", ""] += max(steps) - step
        for part, ns in _parts(one, waits.get(at)).items():
            sums[part] += Fraction(ns, max(one.facts.active_devices, 1) * one.facts.all_steps)
    whole = max(steps) * len(summaries)
    return {part: ns / whole for part, ns in sums.items() if ns and whole}


def _parts(one: Summary, waits: tuple[int, int] | None) -> Counter[tuple[str, str]]:
    """The parts of a rank's window in ns, summed over its devices; `waits` are the exposed time of its calls, and the waits in it."""
    facts, parts = one.facts, Counter[tuple[str, str]]()
    exposed = facts.exposed_communication_ns
    parts["compute", ""] = facts.compute_ns
    parts["exposed_copies", ""] = facts.exposed_memory_ns
    if waits is None:
        parts["exposed_communication_and_waits", ""] = exposed
    else:  # calls may overlap, or not all be there: their waits are taken as a part of their time
        waited = exposed * waits[1] // waits[0] if waits[0] else 0
        parts["waits", ""], parts["exposed_communication", ""] = waited, exposed - waited
    for cause, ns in one.causes.select("cause", "total_ns").rows():
        parts["idle", cause] += ns
    if not facts.active_devices:  # nothing ran on it
        parts["idle", "unexplained"] = facts.window_ns
    else:
        parts["idle", "unexplained"] += facts.idle_ns - int(one.causes["total_ns"].sum())
    return parts


def _exposed_waits(job: Job) -> dict[int, tuple[int, int]]:
    """Of each rank the exposed time of its calls, and how much of it are waits: what computes beside a call does so at its
    beginning, so exposed time is transfer first. Empty if no call could be matched.
    """
    if not job.waits.calls.height:
        return {}
    waits = job.waits.calls.select("match", "at", "wait_ns")
    calls = job.aligned.calls.join(waits, on=["match", "at"], how="left").with_columns(
        pl.col("wait_ns").fill_null(0)
    )
    waited = (pl.col("exposed_ns") - (pl.col("duration_ns") - pl.col("wait_ns"))).clip(lower_bound=0)
    sums = calls.group_by("at").agg(pl.col("exposed_ns").sum(), waited.sum().alias("waited"))
    return {at: (exposed, waited) for at, exposed, waited in sums.rows()}


def _messages(job: Job) -> pl.DataFrame:
    sizes = job.aligned.calls.group_by("match").agg(pl.col("group_size").first())
    return (
        job.waits.collectives.join(sizes, on="match")
        .filter(pl.col("bytes").is_not_null() & (pl.col("latency_ns") > 0))
        .group_by("name", pl.coalesce("group_size", "ranks").alias("ranks"), "bytes")
        .agg(pl.col("latency_ns").median(), pl.len().cast(pl.Int64).alias("count"))
        .select(pl.col(name).cast(kind) for name, kind in MESSAGES.items())
        .sort("name", "ranks", "bytes")
    )
