"""How much arithmetic a run did: FLOPs a step, their rate, and the part of the device time for which they are known.

Hardware counters of Nsight Compute come first (`counter`). Else the FLOPs of operators come from their shapes (`analytic`,
`analyses.flops`). Else those of a capture's manifest, which torch's own counter gave (`manifest`). The rate is over the whole
window, with its idle time. The share of the peak, by convention, is that of the FLOPs which the units for matrix products do: of
products, convolutions, fused attention and recurrent layers. They are also what torch's counter counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.counters.analysis import measured_kernels
from tracekit.analyses.flops import counted
from tracekit.analyses.program import program
from tracekit.analyses.scope import Scope, once
from tracekit.facts.device_peaks import peak_tflops
from tracekit.facts.units import format_flop, format_share
from tracekit.readers import flag_for
from tracekit.spans import take
from tracekit.trace import Trace, one_of

__all__ = ["Arithmetic", "arithmetic"]

_NO_ARITHMETIC: Final = ("memcpy", "memset")
_PEAKED: Final = ("fp32", "tf32", "bf16", "fp16")
_TF32: Final = r"(?i)tf32|s1688|_1688"
"""Kernels that multiply fp32 inputs in TF32."""

_WHOLE: Final = 0.995
"""From this share on, the FLOPs are those of all the device time."""

_LEAST_SHARE: Final = 0.0005
"""A lower share of the peak would be shown as 0.0 %."""

_WORDS: Final = {
    "counter": "by hardware counters (counter)",
    "analytic": "by shapes (analytic)",
    "manifest": "by torch's counter (manifest)",
}


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The FLOPs of the window; None where they were not captured."""

    flops: int | None
    matrix_flops: int | None
    """Those of them that the units for matrix products do; None where the source does not tell them apart."""
    flops_per_step: float | None
    """None without steps, too."""
    source: str | None
    """`counter`, `analytic` or `manifest`."""
    covered: float | None
    """The share of the device time whose operators or kernels are counted, 0 to 1; None if that is not known."""
    tflops: float | None
    """10¹² FLOPs a second of the window."""
    precision: str | None
    """Of most of the matrix FLOPs (of all, if there are none), as the inputs' types and the kernels' names tell."""
    utilisation: float | None
    """Of the peak of the device for this precision, by the matrix FLOPs (MFU), 0 to 1; None if the peak is not known."""
    flag: str
    """What records the shapes of operators; empty for a program without PyTorch."""
    on_cpu: bool
    """The time is that of operators, since no device was captured."""

    @property
    def sentence(self) -> str:
        """The figures in one sentence."""
        figures = self.figures
        flag = f"; {self.flag} records them" if self.flag else ""
        return f"The run did {figures}." if figures else f"FLOPs were not captured{flag}."

    @property
    def figures(self) -> str:
        """The figures as `1.20 TFLOP a step by shapes (analytic): 4.10 TFLOP/s on average`; empty without any."""
        if self.source is None or self.flops is None or self.tflops is None:
            return ""
        amount = f"{format_flop(self.flops)} in the window"
        if self.flops_per_step is not None:
            amount = f"{format_flop(self.flops_per_step)} a step"
        text = f"{amount} {_WORDS[self.source]}"
        if self.covered is not None and self.covered < _WHOLE:
            time = "operators' time" if self.on_cpu else "device time"
            text += f", known for {format_share(self.covered)} of the {time}"
        text += f": {format_flop(self.tflops * 1e12, per_second=True)} on average"
        if self.utilisation is not None:
            text += (
                f", its matrix products at {format_share(self.utilisation)} of the peak for {self.precision}"
            )
        return text


def arithmetic(of: Scope | Trace) -> Arithmetic:
    """The FLOPs of a scope and their source.

    >>> import tracekit
    >>> arithmetic(tracekit.read("sample_traces/bert_cpu/trace.json.gz")).source
    'analytic'
    """
    return once(of, _arithmetic)


def _arithmetic(scope: Scope) -> Arithmetic:
    flag = flag_for("shapes", scope.trace.meta.format) if program(scope.trace).pytorch else ""
    steps = scope.steps.height if scope.window == "steps" else 0
    manifest = scope.trace.manifest
    known = _counted(scope) or _analytic(scope)
    if known is None and manifest is not None and manifest.flops_per_step is not None and steps:
        flops = manifest.flops_per_step * steps
        known = _Known(flops, flops, "manifest", None, None)
    if known is None or scope.duration <= 0:
        return Arithmetic(None, None, None, None, None, None, None, None, flag, scope.on_cpu)
    tflops = known.flops / scope.duration / 1e3
    return Arithmetic(
        flops=known.flops,
        matrix_flops=known.matrix,
        flops_per_step=known.flops / steps if steps else None,
        source=known.source,
        covered=known.covered,
        tflops=tflops,
        precision=known.precision,
        utilisation=_utilisation(scope, known),
        flag=flag,
        on_cpu=scope.on_cpu,
    )


@dataclass(frozen=True, slots=True)
class _Known:
    flops: int
    matrix: int | None
    source: str
    covered: float | None
    precision: str | None


def _counted(scope: Scope) -> _Known | None:
    """The FLOPs that Nsight Compute counted, of kernels of which it measured all launches."""
    kernels = measured_kernels(scope)
    if kernels is None:
        return None
    whole = kernels.filter((pl.col("measured") == pl.col("count")) & pl.col("flops").is_not_null())
    total = int(scope.activities["duration"].sum())
    if not whole.height or not total:
        return None
    return _Known(int(whole["flops"].sum()), None, "counter", int(whole["total_ns"].sum()) / total, None)


def _analytic(scope: Scope) -> _Known | None:
    """The FLOPs of the operators that have shapes and launched an activity of the scope, each once."""
    if "shapes" not in scope.trace.meta.captured or not scope.activities.height:
        return None
    work = counted(scope)
    rows = scope.activities.select("kind", "name", "launch_id", "op_id", "duration")
    copies = rows.select(one_of("kind", *_NO_ARITHMETIC)).to_series().to_numpy()
    anchor = rows.select(pl.coalesce("launch_id", "op_id").fill_null(-1)).to_series().to_numpy()
    owner = np.where(copies, -1, take(work.owner, anchor))
    owner[take(work.flops, owner) < 0] = -1
    owners = np.unique(owner[owner >= 0])
    flops = work.flops[owners]
    if not flops.any():
        return None
    duration = rows["duration"].to_numpy()
    total = int(duration.sum())
    covered = int(duration[copies | (owner >= 0)].sum()) / total if total else None
    products = work.matrix[owners]
    weights = flops * products if products.any() else flops
    by_precision = np.bincount(work.precision[owners] + 1, weights=weights, minlength=len(work.names) + 1)
    precision = (None, *work.names)[int(by_precision.argmax())]
    if precision == "fp32":
        of_products = (owner >= 0) & work.matrix[np.maximum(owner, 0)]
        names = rows["name"].filter(pl.Series(of_products)).unique().cast(pl.String)
        precision = "tf32" if names.str.contains(_TF32).any() else precision
    return _Known(int(flops.sum()), int(flops[products].sum()), "analytic", covered, precision)


def _utilisation(scope: Scope, known: _Known) -> float | None:
    """The share of the peak; None if there are devices of several kinds, or the rate is next to nothing or above the peak."""
    devices = scope.trace.meta.devices
    if scope.on_cpu or len({device.name for device in devices}) != 1 or known.precision not in _PEAKED:
        return None
    peak = peak_tflops(devices[0].name, known.precision, devices[0].memory_bytes)
    if peak is None or known.matrix is None:
        return None
    share = known.matrix / scope.duration / 1e3 / (peak * scope.activities["device_id"].n_unique())
    return share if _LEAST_SHARE <= share <= 1 else None
