"""How much arithmetic a run did: FLOPs a step, their rate, and the part of the device time for which they are known.

Hardware counters of Nsight Compute come first (`counter`). Else the FLOPs of operators come from their shapes (`analytic`,
`analyses.flops`). Else those of a capture's manifest, which torch's own counter gave (`manifest`). The rate is over the whole
window, with its idle time. The share of the peak, by convention, is that of the FLOPs which the units for matrix products do: of
products, convolutions, fused attention and recurrent layers. They are also what torch's counter counts.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from tracekit.analyses.counters.analysis import has_ranges
from tracekit.analyses.program import program
from tracekit.analyses.recording import is_slowed
from tracekit.analyses.roofline.pieces import ANALYTIC
from tracekit.analyses.roofline.rated import (
    TELLING_SHARE,
    computing_share,
    lacks_peaks,
    matrix_utilisation,
    overhead,
    rated_pieces,
    uncounted_kernels,
)
from tracekit.analyses.scope import Scope, once
from tracekit.facts.units import format_flop, format_share
from tracekit.groups import are_known, kept, text_codes
from tracekit.readers import flag_for, format_named
from tracekit.trace import Trace

__all__ = ["Arithmetic", "arithmetic"]

_WHOLE: Final = 0.995
"""From this share on, the FLOPs are those of all the device time."""

_LEAST_SHARE: Final = 0.0005
"""A lower share of the peak would be shown as 0.0 %."""

_WORDS: Final = {
    "counter": "by hardware counters (counter)",
    "analytic": "by shapes (analytic)",
    "counter+analytic": "by hardware counters and else by shapes (counter, analytic)",
    "manifest": "by torch's counter (manifest)",
}


class Arithmetic(msgspec.Struct, frozen=True):
    """The FLOPs of the window; None where they were not captured."""

    flops: int | None
    matrix_flops: int | None
    """Those of them that the units for matrix products do; None where the source does not tell them apart."""
    flops_per_step: float | None
    """None without steps, too."""
    source: str | None
    """`counter`, `analytic`, `counter+analytic` or `manifest`."""
    covered: float | None
    """The share of the device time whose operators or kernels are counted, 0 to 1, without a device that of the operators' time in
    which they have work; None if that is not known.
    """
    tflops: float | None
    """10¹² FLOPs a second of the window; None where kernels were replayed to count their work."""
    precision: str | None
    """Of most of the matrix FLOPs (of all, if there are none), as the inputs' types and the kernels' names tell."""
    utilisation: float | None
    """Of the peak of the device for this precision, by the matrix FLOPs (MFU), 0 to 1; None if the peaks of most are not known."""
    flag: str
    """What records operators with their shapes; empty for a program without PyTorch."""
    computing: float | None
    """The share of the time of computation whose FLOPs are known, 0 to 1; None if that is not known."""
    uncounted: str
    """The replayed kernels of which the counters do not tell the FLOPs; empty if there are none."""
    on_cpu: bool
    """The time is that of operators, since no device was captured."""
    slowed: bool = False
    """The window of a device is longer than without recording; so rates are lower."""
    lacks_peaks: bool = False
    """The peaks of some matrix FLOPs are not known, so the utilisation is a lower bound."""

    @property
    def sentence(self) -> str:
        """The figures in one sentence."""
        figures = self.figures
        flag = f"; {self.flag} records them" if self.flag else ""
        return f"The run did {figures}." if figures else f"FLOPs were not captured{flag}."

    @property
    def figures(self) -> str:
        """The figures as `1.20 TFLOP a step by shapes (analytic): 4.10 TFLOP/s on average`; empty without any, or if they are of next
        to nothing of the computation.
        """
        nothing = self.computing is not None and self.computing < 1 - _WHOLE
        if self.source is None or self.flops is None or nothing:
            return ""
        amount = f"{format_flop(self.flops)} in the window"
        if self.flops_per_step is not None:
            amount = f"{format_flop(self.flops_per_step)} a step"
        text, least, more = f"{amount} {_WORDS[self.source]}", "", ""
        if self.covered is not None and self.covered < _WHOLE:
            time = "operators' time with work" if self.on_cpu else "device time"
            text += f", known for {format_share(self.covered)} of the {time}"
            least, more = "at least ", " or more"
        if self.uncounted:
            text, least = f"{text}, without {self.uncounted}", "at least "
        if self.computing is not None and self.computing < TELLING_SHARE:
            return f"{least}{text} and {format_share(self.computing)} of the computation"
        if self.tflops is not None:
            text += f": {least}{format_flop(self.tflops * 1e12, per_second=True)} on average{' over the recorded time' if self.slowed else ''}"
        if self.utilisation is not None:
            more = " or more" if self.lacks_peaks else more
            of_peak = f"{format_share(self.utilisation)}{more} of the peak for {self.precision}"
            text += f". Over the same time, its matrix products reach {of_peak}"
        return f"{least}{text}"


def arithmetic(of: Scope | Trace) -> Arithmetic:
    """The FLOPs of a scope and their source.

    >>> import tracekit
    >>> arithmetic(tracekit.read("sample_traces/bert_cpu/trace.json.gz")).source
    'analytic'
    """
    return once(of, _arithmetic)


def _arithmetic(scope: Scope) -> Arithmetic:
    flag = flag_for("shapes", scope.trace.meta.format) if program(scope.trace).pytorch else ""
    if flag and "ops" not in scope.trace.meta.captured and format_named(scope.trace.meta.format).of_pytorch:
        flag = f"{flag_for('ops', scope.trace.meta.format)} with {flag}"  # shapes are those of operators
    steps = scope.steps.height if scope.window == "steps" else 0
    manifest = scope.trace.manifest
    known = _recorded(scope)
    if known is None and manifest is not None and manifest.flops_per_step is not None and steps:
        flops = manifest.flops_per_step * steps
        known = _Known(flops, flops, "manifest", None, None)
    if known is None or scope.duration <= 0:
        return Arithmetic(None, None, None, None, None, None, None, None, flag, None, "", scope.on_cpu)
    timed = not has_ranges(scope.trace)
    utilisation = matrix_utilisation(scope) if timed and known.source != "manifest" else None
    sensible = utilisation is not None and _LEAST_SHARE <= utilisation <= 1
    return Arithmetic(
        flops=known.flops,
        matrix_flops=known.matrix,
        flops_per_step=known.flops / steps if steps else None,
        source=known.source,
        covered=known.covered,
        tflops=known.flops / scope.duration / 1e3 if timed else None,
        precision=known.precision,
        utilisation=utilisation if sensible else None,
        flag=flag,
        computing=computing_share(scope) if timed and known.source != "manifest" else None,
        uncounted=uncounted_kernels(scope),
        on_cpu=scope.on_cpu,
        slowed=is_slowed(scope),
        lacks_peaks=lacks_peaks(scope),
    )


class _Known(msgspec.Struct, frozen=True):
    flops: int
    matrix: int | None
    source: str
    covered: float | None
    precision: str | None


def _recorded(scope: Scope) -> _Known | None:
    """The FLOPs of all pieces of work (`analyses.roofline.pieces`), each by counters or by a model; None without any."""
    rows = rated_pieces(scope)[["flops", "unit", "precision", "source", "piece_ns"]]
    rows = kept(rows, are_known(rows["flops"]))
    working = kept(rows, rows["flops"] > 0)
    if not working.height:
        return None
    matrix = kept(working, working["unit"] == "matrix")
    counted = matrix if matrix.height else working
    of, precisions = text_codes(counted["precision"])
    sums = np.zeros(len(precisions), dtype=np.int64)
    np.add.at(sums, of, counted["flops"].to_numpy())
    alike = zip((-sums).tolist(), precisions, strict=True)
    precision = min(alike, key=lambda one: (one[0], one[1] is not None, one[1] or ""))[1]
    total = int(kept(rated_pieces(scope), ~overhead(scope))["duration"].sum())
    by_model = working["source"] == ANALYTIC
    sources = [name for name, some in (("counter", (~by_model).any()), (ANALYTIC, by_model.any())) if some]
    return _Known(
        flops=int(working["flops"].sum()),
        matrix=int(matrix["flops"].sum()) if by_model.all() else None,
        source="+".join(sources),
        covered=int(rows["piece_ns"].sum()) / total if total else None,
        precision=precision,
    )
