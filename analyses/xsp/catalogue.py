"""The 15 analyses of XSP by its numbers, each a record: what it asks, of which table it is a view, and what it needs.

After Li, Dakkak, Xiong, Wei, Xu and Hwu, "XSP: Across-Stack Profiling and Analysis of Machine Learning Models on GPUs"
(IPDPS 2020). `overhead` is no analysis of the paper's list: it shows what the ladder of levels is for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import polars as pl

__all__ = ["CATALOGUE", "COLUMNS", "MISSING", "Analysis", "Figure"]

_T, _N, _F, _B = pl.String(), pl.Int64(), pl.Float64(), pl.Boolean()

COLUMNS: Final[dict[str, tuple[pl.DataType, str]]] = {
    "index": (_N, "place in the order of execution, from 1"),
    "run": (_T, "name of the run"),
    "workload": (_T, "what was run"),
    "device_name": (_T, "where it ran"),
    "precision": (_T, "precision whose peak holds: of the operator, else of the run"),
    "batch": (_N, "samples of a batch of one rank"),
    "samples_per_step": (_N, "samples of a step over all ranks"),
    "parameters": (_N, "parameters; of a layer its own"),
    "latency_ns": (_F, "of the model a step at level M, of a layer its calls in a step at level ML"),
    "throughput_per_s": (_F, "samples a second: samples of a step over its latency"),
    "optimal": (_B, "whether this is the optimal batch"),
    "layer": (_T, "path of the layer; what is in no layer stands under a name in angle brackets"),
    "type": (_T, "class of the layer; null where the profile does not tell"),
    "leaf": (_B, "no other layer is called in it"),
    "calls": (_F, "calls a step"),
    "self_ns": (_F, "own time: the latency without the layers inside"),
    "input_shapes": (_T, "of the layer's first call, JSON"),
    "output_shapes": (_T, "of the layer's first call, JSON"),
    "allocated_bytes": (_F, "bytes allocated a step, in all phases, without the layers inside"),
    "forward_bytes": (_F, "the part of it in calls of the layer itself"),
    "layers": (_N, "layers of the type that were called"),
    "leaves": (_N, "those in which no other layer is called"),
    "share": (_F, "of the sum over all rows"),
    "name": (_T, "kernel, copy or fill; operator where no device was captured"),
    "kind": (_T, "kernel, memcpy, memset, graph, or op"),
    "phase": (_T, "phase of the step in which it was launched"),
    "operator": (_T, "innermost operator around the launch"),
    "steps": (_N, "steps in which it was seen"),
    "grid": (_T, "thread blocks"),
    "block": (_T, "threads of a block"),
    "duration_ns": (_F, "device time of the call at level MLG"),
    "kernels": (_F, "kernels, copies and fills a step"),
    "sum_ns": (_F, "their durations at level MLG a step, summed"),
    "gpu_ns": (_F, "the time a step in which at least one of them runs (union)"),
    "non_gpu_ns": (_F, "self_ns − gpu_ns; null where the device worked on after the call"),
    "gpu_share": (_F, "gpu_ns over the latency, of a layer over self_ns; of a model null without a device"),
    "flops": (_F, "floating-point operations"),
    "flops_source": (_T, "counter (ncu), counter, analytic (from shapes), or several"),
    "counted_flops": (_N, "of a step, counted by torch's counter at level metrics"),
    "dram_read_bytes": (_F, "bytes read from device memory (counter)"),
    "dram_write_bytes": (_F, "bytes written to device memory (counter)"),
    "dram_bytes": (_F, "bytes read and written"),
    "dram_source": (
        _T,
        "counter (ncu), counter, derived (from their rate and the time that ncu measured), or several",
    ),
    "occupancy": (_F, "achieved occupancy, 0 to 1, weighted by duration"),
    "occupancy_source": (_T, "counter (ncu), counter, estimate (the profiler's), or several"),
    "intensity": (_F, "arithmetic intensity: flops over bytes read and written"),
    "tflops": (_F, "10¹² flops a second of gpu_ns or duration_ns"),
    "attainable_tflops": (_F, "roofline at this intensity: min(peak, intensity × bandwidth)"),
    "memory_bound": (_B, "the intensity is below peak / bandwidth"),
    "level": (_T, "level of the run"),
    "quantity": (_T, "what was measured"),
    "added_ns": (_F, "what this level adds to the same quantity at the level above"),
    "ratio": (_F, "over the quantity at the level at which it counts"),
}
"""Every column of the tables: its type and what it means. Means are 20 % trimmed means over the steps."""

MISSING: Final = {
    "M": "the latency of the model needs level M: tracekit capture … --levels M",
    "ML": "the latency of layers needs level ML: tracekit capture … --levels ML",
    "MLG": "kernels and their times need level MLG: tracekit capture … --levels MLG",
    "layers": "the trace has no layers: record with {layers}",
    "memory": "no allocations: record with {memory}",
    "bytes": (
        "bytes to and from device memory need hardware counters: a trace with the CUPTI metrics dram__bytes_read.sum and"
        " dram__bytes_write.sum, as --metrics, or a table of Nsight Compute, as --ncu"
    ),
    "shapes": "FLOPs need recorded shapes ({shapes}) or hardware counters",
}
"""What a table lacks, and how it is recorded; in braces keys of `tracekit.readers.RECORDABLE`."""

Base = Literal["runs", "levels", "layers", "memory", "kernels"]
Figure = Literal["order", "type", "device", "roofline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """One analysis: all that its table, its figure and its documentation are made of.

    * `key`: A1 … A15, or overhead
    * `title`, `question`: what it shows, and what it answers
    * `levels`: the levels of recording that it needs
    * `columns`: of its table, in order (names in COLUMNS)
    * `shown`: those of them that a narrow page shows; all when none is named
    * `base`: the table that it is a view of: the runs of a series; the levels, layers or kernels of a run; or the memory of
      its layers and of what is in none
    * `by`: the columns by which the base table is grouped; none when its rows are shown as they are
    * `known`: the column that is null in the rows that are left out
    * `share`: the column of which `share` gives each row's part
    * `order`: the columns that it is sorted by, after a minus from the largest down
    * `needs`: without these it has no rows: keys of MISSING, or "kernels"
    * `wants`: without these it has columns that are null
    * `answer`: in one sentence, with figures in braces (`answers.figures_of`)
    * `otherwise`: the same when no share, or no bound, is known
    * `figure`: how it is drawn
    """

    key: str
    title: str
    question: str
    levels: tuple[str, ...]
    columns: tuple[str, ...]
    base: Base
    shown: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    known: str | None = None
    share: str | None = None
    order: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    wants: tuple[str, ...] = ()
    answer: str = ""
    otherwise: str = ""
    figure: Figure | None = None

    @property
    def schema(self) -> dict[str, pl.DataType]:
        """The types of the columns."""
        return {name: COLUMNS[name][0] for name in self.columns}


_LAYER = ("index", "layer", "type")
_TRAFFIC = ("dram_read_bytes", "dram_write_bytes", "dram_bytes", "dram_source")
_WORK = ("flops", "flops_source", *_TRAFFIC, "occupancy", "occupancy_source")
_BOUND = ("precision", "intensity", "tflops", "attainable_tflops", "memory_bound")
_ROOF = ("flops", "flops_source", "dram_bytes", "dram_source", *_BOUND)
_GROUP = ("kernels", "sum_ns", "gpu_ns")
_ALLOCATED = ("allocated_bytes", "forward_bytes")
_ON_ROOF = ("intensity", "tflops", "attainable_tflops", "memory_bound")
_OF_DEVICE = ("MLG", "shapes", "bytes")
_BOUNDS = "{bound} of {rows} %s are bound by memory, the others by arithmetic.{sources}{bandwidth}"
_NO_BOUND = "The intensity of {rows} %s is known; {unknown} not known.{sources}"
_CALL = ("layer", "phase", "name", "turn")

_ANALYSES: Final = (
    Analysis(
        key="A1",
        title="Model information",
        question="How fast is the model, and at which batch?",
        levels=("M",),
        columns=(
            *("run", "workload", "device_name", "precision", "batch", "samples_per_step", "parameters"),
            *("latency_ns", "throughput_per_s", "optimal"),
        ),
        shown=("run", "batch", "latency_ns", "throughput_per_s", "optimal"),
        base="runs",
        order=("batch",),
    ),
    Analysis(
        key="A2",
        title="Layer information",
        question="Which layers does the model run?",
        levels=("ML", "MLG"),
        columns=(
            *(*_LAYER, "leaf", "calls", "latency_ns", "self_ns", *_ALLOCATED),
            *("parameters", "input_shapes", "output_shapes"),
        ),
        shown=(*_LAYER, "output_shapes", "latency_ns", "self_ns", "allocated_bytes"),
        base="layers",
        needs=("layers",),
        wants=("ML", "memory"),
        answer="{rows} layers, {sum[leaf]} of them without layers inside.",
    ),
    Analysis(
        key="A3",
        title="Layer latency",
        question="How long does each layer take, in the order of execution?",
        levels=("ML",),
        columns=(*_LAYER, "leaf", "latency_ns", "self_ns", "share"),
        shown=(*_LAYER, "latency_ns", "self_ns", "share"),
        base="layers",
        share="self_ns",
        needs=("ML", "layers"),
        answer="{top[layer]} takes the most: {top[self_ns]} of its own, {top[share]} of all layers.",
        figure="order",
    ),
    Analysis(
        key="A4",
        title="Layer memory allocation",
        question="How much memory does each layer allocate, in the order of execution?",
        levels=("MLG",),
        columns=(*_LAYER, *_ALLOCATED, "share"),
        base="memory",
        share="allocated_bytes",
        needs=("memory", "layers"),
        answer="{sum[allocated_bytes]} are allocated a step, {layers[allocated_bytes]} of them by layers.",
        figure="order",
    ),
    Analysis(
        key="A5",
        title="Layer type distribution",
        question="Of which types are the layers?",
        levels=("ML",),
        columns=("type", "layers", "leaves", "calls", "share"),
        base="layers",
        by=("type",),
        share="layers",
        order=("-layers", "type"),
        needs=("layers",),
        answer="{rows} types; {top[share]} of the layers are {top[type]}.",
        figure="type",
    ),
    Analysis(
        key="A6",
        title="Layer latency by type",
        question="Which types of layers take the time?",
        levels=("ML",),
        columns=("type", "layers", "self_ns", "share"),
        base="layers",
        by=("type",),
        share="self_ns",
        order=("-self_ns", "type"),
        needs=("ML", "layers"),
        answer="{top[type]} takes {top[share]} of the layers' own time.",
        figure="type",
    ),
    Analysis(
        key="A7",
        title="Layer memory allocation by type",
        question="Which types of layers allocate the memory?",
        levels=("MLG",),
        columns=("type", "layers", *_ALLOCATED, "share"),
        base="layers",
        by=("type",),
        share="allocated_bytes",
        order=("-allocated_bytes", "type"),
        needs=("memory", "layers"),
        answer="{top[type]} allocates {top[share]} of what layers allocate.",
        figure="type",
    ),
    Analysis(
        key="A8",
        title="GPU kernel information",
        question="Which kernels run, call by call?",
        levels=("MLG",),
        columns=(
            *("index", "name", "kind", "layer", "phase", "operator", "steps", "grid", "block", "duration_ns"),
            *(*_WORK, *_BOUND),
        ),
        shown=(
            *("index", "name", "layer", "duration_ns", "flops", "dram_read_bytes", "dram_write_bytes"),
            "occupancy",
        ),
        base="kernels",
        by=_CALL,
        order=("order", "first_step"),
        needs=("kernels",),
        wants=_OF_DEVICE,
        answer="{rows} {calls} a step.",
    ),
    Analysis(
        key="A9",
        title="GPU kernel roofline",
        question="Is each kernel bound by memory or by arithmetic?",
        levels=("MLG", "metrics"),
        columns=("index", "name", "layer", "duration_ns", *_ROOF),
        shown=("index", "name", "layer", *_ON_ROOF),
        base="kernels",
        by=_CALL,
        known="intensity",
        order=("order", "first_step"),
        needs=("kernels",),
        answer=_BOUNDS % "kernels",
        otherwise=_NO_BOUND % "kernels",
        figure="roofline",
    ),
    Analysis(
        key="A10",
        title="GPU kernel information by name",
        question="Which kernels take the time?",
        levels=("MLG",),
        columns=("name", "kind", *_GROUP, "share", *_WORK, *_BOUND),
        shown=("name", "kernels", "sum_ns", "share", "flops", "occupancy", "memory_bound"),
        base="kernels",
        by=("name",),
        share="sum_ns",
        order=("-sum_ns", "-kernels", "name"),
        needs=("kernels",),
        wants=_OF_DEVICE,
        answer="{rows} names; {top[name]} takes {top[share]}.",
        otherwise="{rows} names.",
    ),
    Analysis(
        key="A11",
        title="GPU kernel information by layer",
        question="Which layers take the device's time?",
        levels=("MLG",),
        columns=(*_LAYER, *_GROUP, "share", *_WORK, *_BOUND),
        shown=(*_LAYER, "kernels", "gpu_ns", "share", "flops", "occupancy", "memory_bound"),
        base="kernels",
        by=("layer",),
        share="sum_ns",
        order=("order", "layer"),
        needs=("kernels", "kernels of layers"),
        wants=_OF_DEVICE,
        answer="{top[layer]} takes {top[share]} of the kernels' time.",
        otherwise="{rows} layers with kernels.",
    ),
    Analysis(
        key="A12",
        title="GPU metrics by layer",
        question="How much arithmetic and memory traffic does each layer cause?",
        levels=("MLG", "metrics"),
        columns=(*_LAYER, "gpu_ns", *_WORK),
        shown=(*_LAYER, "flops", "flops_source", "dram_read_bytes", "dram_write_bytes", "occupancy"),
        base="kernels",
        by=("layer",),
        share="sum_ns",
        order=("order", "layer"),
        needs=("kernels", "kernels of layers"),
        wants=_OF_DEVICE,
        answer="{top[layer]} takes {top[share]} of the kernels' time.",
        otherwise="{rows} layers with kernels.",
    ),
    Analysis(
        key="A13",
        title="GPU and non-GPU latency of layers",
        question="What of each layer's time does the device work?",
        levels=("ML", "MLG"),
        columns=(*_LAYER, "self_ns", "gpu_ns", "non_gpu_ns", "gpu_share"),
        base="layers",
        needs=("ML", "MLG", "layers"),
        answer="In {part} of the layers' own time {works}, {sum[gpu_ns]} of {sum[self_ns]}.",
        figure="device",
    ),
    Analysis(
        key="A14",
        title="Layer roofline",
        question="Is each layer bound by memory or by arithmetic?",
        levels=("MLG", "metrics"),
        columns=(*_LAYER, "gpu_ns", *_ROOF),
        shown=(*_LAYER, *_ON_ROOF),
        base="kernels",
        by=("layer",),
        known="intensity",
        order=("order", "layer"),
        needs=("kernels",),
        answer=_BOUNDS % "layers",
        otherwise=_NO_BOUND % "layers",
        figure="roofline",
    ),
    Analysis(
        key="A15",
        title="GPU kernel information by model",
        question="What do the kernels of the model do, and what bounds it?",
        levels=("M", "MLG", "metrics"),
        columns=("run", "batch", "latency_ns", *_GROUP, "gpu_share", *_WORK, "counted_flops", *_BOUND),
        shown=("run", "batch", "latency_ns", "gpu_ns", "gpu_share", "flops", "occupancy", "memory_bound"),
        base="kernels",
        by=("run",),
        needs=("kernels",),
        wants=("M", *_OF_DEVICE),
        answer="In a step {works} for {top[gpu_ns]}.{bandwidth}",
    ),
    Analysis(
        key="overhead",
        title="What each level adds",
        question="How much does each level of recording slow down what lies above it?",
        levels=("M",),
        columns=("quantity", "level", "latency_ns", "added_ns", "ratio"),
        base="levels",
    ),
)
CATALOGUE: Final[dict[str, Analysis]] = {analysis.key: analysis for analysis in _ANALYSES}
"""The analyses by key, in order."""
