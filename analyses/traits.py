"""What kind of run a trace shows: training, serving, compiled, on graphs, in which precision, what it already uses.

Advice depends on it: it does not name what the run does already, what its device lacks, or what the program is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import polars as pl

from tracekit.analyses.attribution import attributed
from tracekit.analyses.idle.causes import idle_causes
from tracekit.analyses.kernels import kernels
from tracekit.analyses.program import program
from tracekit.analyses.scope import Scope, once
from tracekit.facts.idle_names import PAGEABLE_COPY
from tracekit.facts.launch_apis import GRAPH_LAUNCH
from tracekit.facts.program_names import LOW_PRECISION, TRAITS
from tracekit.facts.stack_names import HOST_TO_DEVICE
from tracekit.groups import distinct, kept
from tracekit.trace import Trace, one_of

__all__ = ["WORDS", "traits"]

WORDS: Final = frozenset(
    {
        "pytorch",
        "python",
        "inference",
        "graphs",
        "stacks",
        "low_precision",
        "pageable",
        "waits",
        "optimizer_launches",
        "small_operators",
        "processor",
        "streams",
        "recomputation",
        "fp16_only",
        "compared",
        *TRAITS,
    }
)
"""All traits that a run may have."""

_WAITS_SHARE: Final = 0.02
"""From this share of the window on, idle time by synchronisation is worth advice."""
_OPTIMIZER_SHARE: Final = 0.1
"""With fewer of the kernels than this, a fused optimizer saves few launches."""
_SMALL_NS: Final = 20_000
"""A call of an operator costs some µs beside its work."""
_FIRST_BF16: Final = (8, 0)
"""Of NVIDIA's devices, those from this compute capability on compute in bf16."""
_MATRIX: Final = ("gemm", "convolution", "attention", "rnn")


def traits(of: Scope | Trace) -> frozenset[str]:
    """The traits of a run, of `WORDS`; what the trace does not show is absent.

    >>> import tracekit
    >>> shown = traits(tracekit.read("sample_traces/cnn_cpu/trace.json.gz"))
    >>> sorted(shown & {"pytorch", "training", "compiled", "processor"})
    ['processor', 'pytorch', 'training']
    """
    return once(of, _traits)


def _traits(scope: Scope) -> frozenset[str]:
    trace = scope.trace
    host, device = _names(trace.host["name"]), _names(trace.device["name"])
    shown = _shown(
        host, {**{trait: pattern for trait, (pattern, _) in TRAITS.items()}, "graphs": GRAPH_LAUNCH}
    )
    shown |= _shown(device, {trait: pattern for trait, (_, pattern) in TRAITS.items() if trait not in shown})
    shown |= {"amd"} if any(info.is_amd for info in trace.meta.devices) else set()
    pytorch = program(trace).pytorch
    further = {
        "pytorch": pytorch,
        "inference": pytorch and "training" not in shown and ("serving" in shown or _forward(trace)),
        "python": program(trace).python,
        "graphs": bool((trace.device["kind"] == "graph").any()),
        "stacks": "stacks" in trace.meta.captured,
        "low_precision": _low_precision(scope),
        "pageable": trace.has_device
        and bool((device.str.contains(PAGEABLE_COPY) & device.str.contains(HOST_TO_DEVICE)).any()),
        "waits": _waits(scope),
        "optimizer_launches": bool(
            {"training", "fused_optimizer", "sparse_gradients"} & shown == {"training"}
        )
        and _optimizer_launches(scope),
        "small_operators": scope.on_cpu and _small_operators(scope),
        "processor": scope.on_cpu,
        "compared": scope.compared is not None,
        "streams": scope.activities["stream_id"].n_unique() > 1,
        "recomputation": bool(attributed(scope)["recomputed"].any()),
        "fp16_only": any(
            one.compute_capability is not None and one.compute_capability < _FIRST_BF16
            for one in trace.meta.devices
            if not one.is_amd
        ),
    }
    return frozenset(shown | {trait for trait, there in further.items() if there})


def _shown(names: pl.Series, patterns: Mapping[str, str | None]) -> set[str]:
    """The traits whose pattern one of the names matches."""
    if not names.len():
        return set()
    text = pl.col(names.name).str
    columns = [text.contains(pattern).any().alias(trait) for trait, pattern in patterns.items() if pattern]
    return {trait for trait, there in names.to_frame().select(columns).row(0, named=True).items() if there}


def _names(names: pl.Series) -> pl.Series:
    return distinct(names).cast(pl.String)


def _forward(trace: Trace) -> bool:
    """Whether operators or modules show that the host ran a model."""
    return any((trace.host["kind"] == kind).any() for kind in ("op", "module"))


def _small_operators(scope: Scope) -> bool:
    """Whether half of the operators' time is that of short stretches."""
    took = scope.activities["duration"]
    return int(took.filter(took < _SMALL_NS).sum()) * 2 > int(took.sum())


def _low_precision(scope: Scope) -> bool:
    """Whether most of the time of matrix kernels is that of kernels with 16 bits or fewer."""
    matrix = kernels(scope).by_name.filter(one_of("category", *_MATRIX))
    low = matrix.filter(pl.col("name").cast(pl.String).str.contains(LOW_PRECISION))
    return int(low["total_ns"].sum()) * 2 > int(matrix["total_ns"].sum())


def _optimizer_launches(scope: Scope) -> bool:
    """Whether the optimizer starts a large part of the kernels: one that handles many parameters in a call does not.

    What runs beside it in its phase, such as an average of the weights, is not its work.
    """
    rows = attributed(scope)
    return int((rows["category"] == "optimizer").sum()) >= max(_OPTIMIZER_SHARE * rows.height, 1)


def _waits(scope: Scope) -> bool:
    causes = idle_causes(scope).by_cause
    causes = kept(causes, causes["cause"] == "synchronisation")
    return int(causes["total_ns"].sum()) >= max(_WAITS_SHARE * scope.duration, 1)
