"""Two sides compared in every respect: what changed, whether it is more than noise, and the gates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracekit.classes import dataclass
from tracekit.diff.compare import diff_of
from tracekit.diff.gate import Gate, Judgement, judge_runs, step_times
from tracekit.diff.model import Diff
from tracekit.diff.noise import Runs, StepComparison, compare_times
from tracekit.diff.notes import stalled
from tracekit.digest import Digest
from tracekit.errors import UsageError
from tracekit.facts.units import count_of

__all__ = ["Compared", "compared"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Compared:
    """A comparison of two sides."""

    diff: Diff
    runs: tuple[Runs, Runs]
    """The times of the steps of each run of base and new, in ns, or of whole windows if `diff.per` says so; each that of the slowest rank."""
    times: StepComparison
    """How they differ; `inconclusive` if a side stalled so long that this may be why, or if both took no time."""
    stalled: str = ""
    """Which sides stalled for so long that this may be why they differ, in words; empty for none."""
    judgements: tuple[Judgement, ...] = ()
    """One for each gate."""

    @property
    def unchanged(self) -> bool:
        """Whether all figures of both sides are the same."""
        parts = (frame["base_ns"].equals(frame["new_ns"]) for frame in self.diff.by.values())
        compared = not self.diff.by["category"]["category"].has_nulls()  # else only steps are
        return self.times.identical and not self.diff.change and compared and all(parts)


def compared(
    base: Sequence[Sequence[Digest]],
    new: Sequence[Sequence[Digest]],
    gates: Sequence[Gate] = (),
    *,
    paired: bool = False,
) -> Compared:
    """The comparison of two sides, each of one run or several, and a run of the digests of its ranks or processes.

    The parts of a step are means over all ranks; its time is that of the slowest rank. `paired`: runs of one place belong together.

    >>> import tracekit
    >>> from tracekit.digest import digest_of
    >>> run = digest_of(tracekit.read("sample_traces/cnn_cpu/trace.json.gz"))
    >>> found = compared([[run]], [[run]])
    >>> found.times.verdict, found.diff.changes, found.unchanged
    ('same', (), True)

    Raises UsageError for pairs of which one is missing, and for a gate on something that no run has.
    """
    if paired and len(base) != len(new):
        raise UsageError(
            f"{count_of(len(base), 'run')} of the base and {len(new)} of the new side cannot be paired",
            remedy="name as many of both, or leave --paired out",
        )
    ranks = [[rank for run in side for rank in run] for side in (base, new)]
    sizes = [len(run) for run in base], [len(run) for run in new]
    found = diff_of(ranks[0], ranks[1], sizes, paired=paired)
    windows = found.per == "window"
    runs = [[step_times(run, windows=windows) for run in side] for side in (base, new)]
    times, stood = compare_times(runs[0], runs[1], paired=paired), stalled(*ranks)
    hidden = stood.hides(times.base.mean, times.new.mean)
    if (hidden and not times.identical) or times.base.mean == times.new.mean == 0:
        times = replace(times, verdict="inconclusive")
    return Compared(
        diff=found,
        runs=(runs[0], runs[1]),
        times=times,
        stalled=stood.told if hidden else "",
        judgements=tuple(
            judge_runs(gates, base, new, paired=paired, windows=windows, layers=found.by["layer"])
        ),
    )
