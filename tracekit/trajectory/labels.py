"""What the way from one point of a trajectory to the next means, by the algebra of logarithms (DEFINITIONS §12).

A point has an arithmetic intensity (FLOP per byte), a performance (FLOP/s) and a key. Between neighbouring points a, p and k are the
logarithms of the ratios of these. What lies within the noise of the points is no change.
"""

from __future__ import annotations

from math import exp, log
from typing import Final, Literal

from tracekit.classes import dataclass

__all__ = ["ABOVE", "ASSUMED_ERROR", "ASSUMED_SPREAD", "FELT", "KEYS", "NEAR", "Intensity", "Kind", "Label", "Point", "Segment", "segment_of"]  # fmt: skip

Kind = Literal["parallel", "work", "choice"]
KEYS: Final[dict[str, Kind]] = {
    **dict.fromkeys(("threads", "ranks"), "parallel"),
    **dict.fromkeys(("batch", "size", "accumulate"), "work"),
    **dict.fromkeys(("precision", "workers", "compile", "channels_last", "checkpoint_activations"), "choice"),
}
"""The settings that a trajectory can follow. `parallel`: more of what computes, so that performance should grow as the key does.
`work`: more work in a step, by which performance may grow. `choice`: values that have no ratio; the ceilings may differ."""

Label = Literal[
    "scaling", "contention", "gain of intensity", "loss of intensity", "bandwidth-saturated", "compute-saturated", "retrograde", "no change",
    "not comparable",
]  # fmt: skip
Intensity = Literal["gain", "loss", "cache loss", "same", "not comparable"]

FELT: Final = 0.05
"""A change by less than this share is none, however sure: XSP's threshold for a larger batch that is worth it."""
NEAR: Final = 0.8
"""From this part of the roof on, a point is at it: kernels that are known to be bound by a ceiling rarely come closer to it."""
ABOVE: Final = 1.1
"""A point further above its roof than this is under another one: caches serve its bytes, or the ceiling was measured too low."""
ASSUMED_ERROR: Final = 0.03
"""The standard error of a time without repetitions, relative to it."""
ASSUMED_SPREAD: Final = 0.03
"""By so much times differ from run to run, relative to them, where no settings were run twice."""
_FELT_LOG: Final = log(1 + FELT)
_CERTAIN: Final = 4.0
"""So many standard errors a change must exceed: one change in 16,000 that is noise does, by the normal distribution, and a sweep
with all its layers has hundreds of segments."""
_CLEAR: Final = 2.0
"""By so many standard errors a point must be above `NEAR`, which is no sharp limit."""


@dataclass(frozen=True, slots=True)
class Point:
    """Where a run is on the roofline."""

    key: float
    """More than 0; of a choice its place in the order."""
    intensity: float
    """FLOP per byte."""
    flops_per_s: float
    error: float = ASSUMED_ERROR
    """The standard error of the performance, relative to it."""
    peak: float | None = None
    """FLOP/s of what computes in this run; None if it is not known."""
    bandwidth: float | None = None
    """Bytes/s of its memory; None if it is not known."""
    measured_bytes: bool = False
    """Whether hardware counters gave the bytes, so that caches show in them."""
    work: float = 1.0
    """The known FLOPs of a sample."""
    known: float = 1.0
    """The share of the time of which FLOPs are known, more than 0."""

    @property
    def attainable(self) -> float | None:
        """FLOP/s at the roof; None if a ceiling is not known.

        >>> Point(1, 2.0, 10.0, peak=100.0, bandwidth=20.0).attainable
        40.0
        """
        if self.peak is None or self.bandwidth is None:
            return None
        return min(self.peak, self.intensity * self.bandwidth)

    @property
    def at_roof(self) -> bool:
        """Whether it is at its roof (from `NEAR` to `ABOVE`), the lower end clearly."""
        roof = self.attainable
        if roof is None or self.flops_per_s > ABOVE * roof:
            return False
        return log(self.flops_per_s / (NEAR * roof)) > _CLEAR * self.error

    @property
    def bound(self) -> Literal["bandwidth-saturated", "compute-saturated"] | None:
        """Which roof is above it; None if that is not known."""
        roof = self.attainable
        if roof is None:
            return None
        return "compute-saturated" if roof == self.peak else "bandwidth-saturated"


@dataclass(frozen=True, slots=True)
class Segment:
    """The way between two points."""

    label: Label
    intensity: Intensity
    """How the intensity changes. A cache loss is claimed of measured bytes only."""
    change: float
    """The later performance over the earlier one."""
    intensity_change: float
    """The same of the intensity."""
    noise: float
    """Performance counts as changed if it is more than so many times, or less than the inverse."""


def segment_of(one: Point, other: Point, kind: Kind) -> Segment:
    """The segment from one point to the next.

    Its label is the first of these that applies:

    * not comparable: the FLOPs of a sample, and the share of the time of which FLOPs are known, differ by more than `FELT`. Then other
      parts of the work are known, and less known work is no lower performance
    * bandwidth-, compute-saturated: both points are at the roof, and performance does not fall behind the roof's own change (with a
      parallel key: and it grows less than the key)
    * retrograde: performance falls
    * with a parallel key, where performance grows less than the key: bandwidth- or compute-saturated if the later point is at the
      roof, else loss of intensity if the intensity falls, else contention
    * scaling: performance grows, if the key is not parallel by more than a growing intensity
    * gain of intensity: the intensity grows
    * bandwidth-, compute-saturated: the later point is at the roof
    * loss of intensity: the intensity falls
    * no change

    >>> machine = {"peak": 100.0, "bandwidth": 10.0}
    >>> segment_of(Point(1, 50, 10, 0.01), Point(2, 50, 20, 0.01), "parallel").label
    'scaling'
    >>> segment_of(Point(1, 50, 10, 0.01), Point(2, 50, 13, 0.01), "parallel").label
    'contention'
    >>> segment_of(Point(1, 2, 19, 0.01, **machine), Point(2, 4, 38, 0.01, **machine), "work").label
    'bandwidth-saturated'
    """
    a, p = log(other.intensity / one.intensity), log(other.flops_per_s / one.flops_per_s)
    noise = max(_FELT_LOG, _CERTAIN * (one.error**2 + other.error**2) ** 0.5)
    parallel, more, less = kind == "parallel", a > _FELT_LOG, a < -_FELT_LOG
    short = parallel and p < log(other.key / one.key) - noise
    roofs = one.attainable, other.attainable
    along = one.at_roof and other.at_roof and p - log((roofs[1] or 1.0) / (roofs[0] or 1.0)) >= -noise
    other_parts = all(abs(log(two / first)) > _FELT_LOG for first, two in ((one.work, other.work), (one.known, other.known)))  # fmt: skip
    rules: tuple[tuple[bool, Label | None], ...] = (
        (other_parts, "not comparable"),
        (along and (short or not parallel), other.bound),
        (p < -noise, "retrograde"),
        (short and other.at_roof, other.bound),
        (short, "loss of intensity" if less else "contention"),
        (p > noise and (parallel or not more or p > a + noise), "scaling"),
        (more, "gain of intensity"),
        (other.at_roof, other.bound),
        (less, "loss of intensity"),
    )
    label: Label = next((name for holds, name in rules if holds and name), "no change")
    caches = one.measured_bytes and other.measured_bytes and kind != "choice"
    moved: Intensity = (
        "not comparable"
        if other_parts
        else "gain"
        if more
        else ("cache loss" if caches else "loss")
        if less
        else "same"
    )
    return Segment(label, moved, exp(p), exp(a), exp(noise))
