"""Gates: how much a step, or a part of it, may grow, and whether two sides keep to it.

A gate fails if a figure of the new steps is larger by more than its threshold, and a test proves at 1 % that they are slower. The
figure is the median or the mean: a change that only some steps show moves the mean alone. A gate passes if neither figure grew
by more than the threshold, and the 95 % interval of one of them ends below it. Anything else is inconclusive, and so is a change of less than twice
the time for which a side stalled, if that is a twentieth of its time or more, unless both sides are identical.

Of a part, the threshold is its own growth; but a part may always grow by 0.1 % of the step, below which it does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.classes import dataclass
from tracekit.diff.compare import diff_of
from tracekit.diff.gated_layers import MeantLayers, meant_layers, pattern_of
from tracekit.diff.noise import FEWEST_STEPS, Estimate, Runs, StepComparison, StepFigures, compare_times
from tracekit.diff.notes import NO_STALL, Stall, stalled
from tracekit.diff.recorded import recorded
from tracekit.digest import Digest
from tracekit.errors import UsageError, nearest
from tracekit.facts.idle_names import CAUSES
from tracekit.facts.stack_names import PHASES
from tracekit.facts.units import count_of, format_ns, format_share
from tracekit.names import category_name
from tracekit.trace import CATEGORIES

__all__ = [
    "EXIT_CODES",
    "PARTS",
    "Gate",
    "Judgement",
    "judge",
    "judge_runs",
    "parse_gate",
    "step_times",
    "worst",
]

EXIT_CODES: Final = {"passed": 0, "inconclusive": 4, "failed": 1}
"""Of the outcomes, the worst last."""
_PROOF: Final = 0.01
"""A p value below it proves that new is slower."""
_MATTERS: Final = 0.001
"""By this share of the step a part may always grow."""

_WORK: Final = ("compute", "communication", "memory")
_KINDS: Final = (*_WORK, "idle")
PARTS: Final = {
    "compute": "category", "communication": "name", "memory": "name", "idle": "category", "layer": "layer", "type": "type",
    "phase": "phase", "operator": "operator", "category": "category", "kernel": "name",
}  # fmt: skip
"""What a gate can be on beside the step, and the column of a digest's leaves with its names. The first four, which are kinds of leaf,
need no name; kernels and their categories are those of work; of the others idle time is a part."""

_VOCABULARY: Final[dict[str, tuple[str, ...]]] = {
    "compute": CATEGORIES,
    "category": CATEGORIES,
    "idle": CAUSES,
    "phase": PHASES,
}
"""Names that mean something where no step has them too: 0 ns."""


@dataclass(frozen=True, slots=True)
class Gate:
    """A part of the step, empty for the whole, the name of what is meant in it, and by which share it may grow."""

    part: str
    name: str
    threshold: float

    def __str__(self) -> str:
        return ":".join(word for word in (self.part, self.name, f"{100 * self.threshold:g}%") if word)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What became of a gate."""

    gate: Gate
    outcome: str
    """`passed`, `failed` or `inconclusive`."""
    reason: str
    """One sentence: estimate, interval, test, numbers of steps, threshold."""
    change: StepComparison


def parse_gate(text: str) -> Gate:
    """The gate that `3%`, `idle:5%`, `layer:encoder:10%` … stand for. A name may hold colons, and * and ? for any text.

    >>> parse_gate("3%"), parse_gate("kernel:at::native::*:5%")
    (Gate(part='', name='', threshold=0.03), Gate(part='kernel', name='at::native::*', threshold=0.05))

    Raises UsageError for anything else.
    """
    what, _, limit = text.strip().rpartition(":")
    part, _, name = what.partition(":")
    number = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+) ?%", limit.strip())
    if number is None:
        raise UsageError(f"the gate {text!r} has no threshold", remedy="end it with one such as 3%")
    if part and part not in PARTS:
        raise UsageError(
            f"the gate {text!r}: a step has no {part!r}",
            remedy=nearest(part, PARTS, f"choose one of {', '.join(PARTS)}"),
        )
    if part and part not in _KINDS and not name:
        raise UsageError(f"the gate {text!r} names no {part}", remedy=f"such as {part}:NAME:{limit}")
    return Gate(part, name, float(number[1]) / 100)


def worst(judgements: Sequence[Judgement]) -> str:
    """The worst outcome: `failed` before `inconclusive` before `passed`; its exit code is in `EXIT_CODES`."""
    return max((each.outcome for each in judgements), key=list(EXIT_CODES).index, default="passed")


def judge(
    gate: Gate,
    base: Runs,
    new: Runs,
    *,
    paired: bool = False,
    step_times: tuple[Runs, Runs] | None = None,
    devices: int = 1,
    per: str = "step",
    stood: Stall = NO_STALL,
    layers: MeantLayers | None = None,
    untold: str = "",
) -> Judgement:
    """Whether two sides keep to a gate; a side is a list of runs, a run the times of its steps in ns, or those of the part.

    With a part, `step_times` are the times of the whole steps of both sides; that of the part is of so many `devices` together. `per` is what the times
    are of, in a word; `stood` says which side stalled (`notes.stalled`): then no change is proven that this may have made. `layers` are those
    that a gate on a layer means. `untold` says why a part cannot be compared.

    >>> fast, slow = [100, 101, 99, 100, 102, 98] * 5, [106, 107, 105, 106, 108, 104] * 5
    >>> judge(parse_gate("3%"), [fast], [slow]).outcome, judge(parse_gate("10%"), [fast], [slow]).outcome
    ('failed', 'passed')
    """
    change = compare_times(base, new, paired=paired, step_times=step_times)
    floor = 0.0
    if step_times is not None and (steps := [np.asarray(run) for run in step_times[0] if len(run)]):
        floor = _MATTERS * devices * float(np.median(np.concatenate(steps)))
    median = _Figure("median", change.base.median, change.new.median, change.median, gate.threshold, floor)
    mean = _Figure("mean", change.base.mean, change.new.mean, change.mean, gate.threshold, floor)
    grew = [each for each in (median, mean) if each.grew]
    proven = [each for each in grew if each.estimate.p < _PROOF]
    within = [each for each in (median, mean) if each.within]
    if step_times is None and change.base.mean == change.new.mean == 0:
        outcome, shown, why = "inconclusive", median, "no time was recorded on either side"
    elif change.identical:
        outcome, shown, why = "passed", median, "the limit is {}, and both sides are the same"
    elif layers is not None and layers.lost:
        outcome, shown, why = "inconclusive", median, "no layer of the new side stands for it, so nothing is compared"  # fmt: skip
    elif untold:
        outcome, shown, why = "inconclusive", median, untold
    elif stood.hides(change.base.mean, change.new.mean):
        outcome, shown, why = "inconclusive", median, "the limit is {}, but " + stood.told
    elif min(change.base.steps, change.new.steps) < FEWEST_STEPS:
        outcome, shown, why = "inconclusive", median, f"fewer than {FEWEST_STEPS} {per}s prove nothing"
    elif proven:
        outcome, shown, why = "failed", proven[0], "the limit is {}, and chance does not explain the growth"
    elif grew:
        outcome, shown, why = "inconclusive", grew[0], "the limit is {}, but chance may explain the growth"
    elif within:
        outcome, shown, why = "passed", within[0], "the limit is {}, and the change is below it"
    else:
        outcome, shown, why = "inconclusive", median, "the limit is {}, and the interval reaches beyond it"
    renamed = f" ({layers.renamed})" if layers is not None and layers.renamed else ""
    reason = f"{_told(shown, change, per, _subject(gate, per) + renamed)}: {why.format(shown.limit)}."
    return Judgement(gate=gate, outcome=outcome, reason=reason, change=change)


@dataclass(frozen=True, slots=True)
class _Figure:
    """The median or the mean of both sides, and the growth that a gate allows."""

    word: str
    base: float
    new: float
    estimate: Estimate
    threshold: float
    floor: float

    @property
    def grew(self) -> bool:
        """Whether it grew by more than is allowed."""
        return self.new - self.base > max(self.threshold * self.base, self.floor)

    @property
    def within(self) -> bool:
        """Whether the interval ends below what is allowed; a part that was 0 has none, and must be below itself."""
        high = self.estimate.high
        if high is None:
            return not self.grew
        return (high - 1) * self.base < max(self.threshold * self.base, self.floor)

    @property
    def limit(self) -> str:
        """What is allowed, in words."""
        if self.floor > self.threshold * self.base:
            return f"{100 * _MATTERS:g} % of the step"
        return f"{100 * self.threshold:g} %"


def _told(figure: _Figure, change: StepComparison, per: str, subject: str) -> str:
    """What changed, with the interval, the test and the numbers of steps; without its full stop."""
    estimate, grown = figure.estimate, figure.new - figure.base
    by = "" if estimate.ratio is None else f" by {format_share(abs(estimate.ratio - 1))}"
    verb = f"grew{by}" if grown > 0 else f"fell{by}" if grown < 0 else "did not change"
    facts = [f"{format_ns(figure.base)} to {format_ns(figure.new)}"]
    if estimate.unbounded:
        facts.append("95 % interval of more than a thousand times either way")
    elif estimate.low is not None and estimate.high is not None:
        facts.append(f"95 % interval {_signed(estimate.low)} to {_signed(estimate.high)}")
    if estimate.test:
        p = "one-sided p < 0.001" if estimate.p < 0.001 else f"one-sided p = {estimate.p:.3g}"
        facts.append(f"{p}, {estimate.test}")
    facts.append(" against ".join(_steps(side, per) for side in (change.base, change.new)))
    return f"The {figure.word} {subject} {verb} ({'; '.join(facts)})"


def _signed(ratio: float) -> str:
    return f"{'−' if ratio < 1 else '+'}{format_share(abs(ratio - 1))}"


def _steps(side: StepFigures, per: str) -> str:
    return count_of(side.steps, per) + (f" of {side.runs} runs" if side.runs > 1 else "")


def _subject(gate: Gate, per: str) -> str:
    if not gate.part:
        return f"{per} time"
    if gate.part in _KINDS:
        return f"{gate.part} time" + (f" ({gate.name})" if gate.name else "")
    return f"time of {gate.part} {gate.name}"


# -- gates on runs ----------------------------------------------------------------------------------


def step_times(run: Sequence[Digest], *, windows: bool = False) -> npt.NDArray[np.int64]:
    """The times of a run's steps in ns: with several ranks, of the steps that all have, each as long as that of the slowest rank.

    With `windows` the steps are summed, so that they compare with a run that has none.
    """
    return _by_step(run, [one.steps for one in run], pl.col("time_ns").max(), windows=windows)


def judge_runs(
    gates: Sequence[Gate],
    base: Sequence[Sequence[Digest]],
    new: Sequence[Sequence[Digest]],
    *,
    paired: bool = False,
    windows: bool = False,
    layers: pl.DataFrame | None = None,
) -> list[Judgement]:
    """Whether two sides keep to each gate; a side is a list of runs, a run the digests of its ranks, of which whole `windows` may be compared.

    The time of a part is that of all ranks and devices together. `layers` is that frame of `Diff.by`, which is made for a gate on a
    layer if it is not given. Raises UsageError for a gate on a name that no run has.
    """
    sides, found, per = (base, new), list[Judgement](), "window" if windows else "step"
    ranks = [[rank for run in side for rank in run] for side in sides]
    stood, has = stalled(*ranks), recorded(*([one.facts for one in side] for side in ranks))
    whole = [[step_times(run, windows=windows) for run in side] for side in sides]
    if layers is None and any(gate.part == "layer" or (gate.part and not has.same_frames) for gate in gates):
        layers = diff_of(ranks[0], ranks[1]).by["layer"]
    compared = layers is not None and bool((layers["status"] != "none").any())
    for gate in gates:
        if not gate.part:
            found.append(judge(gate, whole[0], whole[1], paired=paired, per=per, stood=stood))
            continue
        names, of_layers = _meant(gate, ranks, layers)
        parts = [
            [
                _by_step(run, [_part(gate, one, own) for one in run], pl.col("ns").sum(), windows=windows)
                for run in side
            ]
            for side, own in zip(sides, names, strict=True)
        ]
        judged = judge(
            gate,
            parts[0],
            parts[1],
            paired=paired,
            step_times=(whole[0], whole[1]),
            devices=max(sum(one.facts.devices for one in run) for run in base),
            per=per,
            stood=stood,
            layers=of_layers,
            untold=has.untold(gate.part, gate.name, layers=compared),
        )
        found.append(judged)
    return found


def _meant(
    gate: Gate, ranks: Sequence[Sequence[Digest]], layers: pl.DataFrame | None
) -> tuple[Sequence[Collection[str]], MeantLayers | None]:
    """The names that a gate is on, of base and new, and of a gate on a layer how they were found."""
    names = [
        {name for one in side for name in _leaves(gate, one)[PARTS[gate.part]].drop_nulls()} for side in ranks
    ]
    meant, of_layers = [set(filter(re.compile(f"(?s:{pattern_of(gate.name)})").fullmatch, own)) for own in names], None  # fmt: skip
    if gate.part == "layer" and layers is not None:
        of_layers = meant_layers(gate.name, layers, (names[0], names[1]))
        meant = [own & paths for own, paths in zip(names, of_layers.paths, strict=True)]
    if gate.name and not any(meant) and gate.name not in _VOCABULARY.get(gate.part, ()):
        raise _nothing_meant(gate, names[0] | names[1])
    return meant, of_layers


def _nothing_meant(gate: Gate, names: set[str]) -> UsageError:
    """The error for a gate whose name no part of a step has; `names` are those that there are."""
    words = _VOCABULARY.get(gate.part, ())
    if shown := [name for name in words if category_name(name) == gate.name]:
        remedy = f"write {gate.part}:{shown[0]}:LIMIT"
    elif holding := [name for name in names if gate.name in name]:
        after = "" if any(name.endswith(gate.name) for name in holding) else "*"
        remedy = f"write {gate.part}:*{gate.name}{after}:LIMIT"
    else:
        listed = (
            f"choose one of {', '.join(words)}" if words else "the tables of the comparison have the names"
        )
        remedy = nearest(gate.name, names.union(words), listed)
    what = f"idle time by the cause {gate.name!r}" if gate.part == "idle" else f"{gate.part} {gate.name!r}"
    return UsageError(f"no step has {'' if gate.part == 'idle' else 'the '}{what}", remedy=remedy)


def _by_step(
    run: Sequence[Digest], frames: Sequence[pl.DataFrame], value: pl.Expr, *, windows: bool
) -> npt.NDArray[np.int64]:
    """A value of the steps that all ranks have, in order; with `windows` their sum."""
    steps = pl.concat(frames).group_by("step").agg(value.alias("value"), pl.len())
    values = steps.filter(pl.col("len") == len(run)).sort("step")["value"].to_numpy()
    return values.sum(keepdims=True) if windows else values


def _leaves(gate: Gate, digest: Digest) -> pl.DataFrame:
    """The leaves of the kinds that a gate is on."""
    if gate.part in _KINDS:
        return digest.leaves.filter(pl.col("kind") == gate.part)
    kinds = _WORK if gate.part in ("category", "kernel") else _KINDS
    return digest.leaves.filter(pl.col("kind").is_in(kinds))


def _part(gate: Gate, digest: Digest, names: Collection[str]) -> pl.DataFrame:
    """`step` and `ns` of the part of these names; of all of its kind if the gate has none."""
    leaves = _leaves(gate, digest)
    meant = leaves.filter(pl.col(PARTS[gate.part]).is_in(list(names))) if gate.name else leaves
    sums = digest.values.join(meant, on="leaf", how="semi").group_by("step").agg(pl.col("ns").sum())
    return digest.steps.join(sums, on="step", how="left").select("step", pl.col("ns").fill_null(0))
