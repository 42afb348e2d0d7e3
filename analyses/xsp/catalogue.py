"""The 15 analyses of XSP by its numbers, each a record: what it asks, of which table it is a view, and what it needs.

After Li, Dakkak, Xiong, Wei, Xu and Hwu, "XSP: Across-Stack Profiling and Analysis of Machine Learning Models on GPUs"
(IPDPS 2020). `overhead` is no analysis of the paper's list: it shows what the ladder of levels is for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import polars as pl

from tracekit.analyses.result import Entry

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
class Analysis(Entry):
    """One analysis: all that its table, its figure and its documentation are made of.

    `key` is A1 … A15, or overhead; `needs` are keys of MISSING, "kernels", or "layer_kernels".

    * `levels`: the levels of recording that it needs
    * `base`: the table that it is a view of: the runs of a series; the levels, layers or kernels of a run; or the memory of
      its layers and of what is in none
    * `by`: the columns by which the base table is grouped; none when its rows are shown as they are
    * `filled`: the column that is null in the rows that are left out
    * `share`: the column of which `share` gives each row's part
    * `wants`: what it needs besides, and without which it has columns that are null
    * `answer`: in one sentence, with figures in braces (`answers.figures_of`)
    * `otherwise`: the same when no share, or no bound, is known
    * `figure`: how it is drawn
    """

    levels: tuple[str, ...]
    base: Base
    by: tuple[str, ...] = ()
    filled: str | None = None
    share: str | None = None
    wants: tuple[str, ...] = ()
    answer: str = ""
    otherwise: str = ""
    figure: Figure | None = None


_TEXTS: Final = """
A1: Model information: How fast is the model, and at which batch?
A2: Layer information: Which layers does the model run?
A3: Layer latency: How long does each layer take, in the order of execution?
A4: Layer memory allocation: How much memory does each layer allocate, in the order of execution?
A5: Layer type distribution: How many layers are there of each type?
A6: Layer latency by type: Which types of layers take the time?
A7: Layer memory allocation by type: Which types of layers allocate the memory?
A8: GPU kernel information: Which kernels run, call by call?
A9: GPU kernel roofline: Is each kernel bound by memory or by arithmetic?
A10: GPU kernel information by name: Which kernels take the time?
A11: GPU kernel information by layer: Which layers take the device's time?
A12: GPU metrics by layer: How much arithmetic and memory traffic does each layer cause?
A13: GPU and non-GPU latency of layers: How much of each layer's time does the device work?
A14: Layer roofline: Is each layer bound by memory or by arithmetic?
A15: GPU kernel information by model: What do the kernels of the model do, and what bounds it?
overhead: What each level adds: How much does each level of recording slow down what lies above it?
"""
"""A line each: the key, the title and the question."""

_OF_KEY: Final = {key: texts for key, *texts in (line.split(": ", 2) for line in _TEXTS.strip().split("\n"))}


def _analysis(key: str, levels: str, base: Base, columns: str, shown: str = "", **more: Any) -> Analysis:
    """A record whose lists are texts with blanks."""
    title, question = _OF_KEY[key]
    texts = {"levels": levels, "shown": shown}
    texts |= {name: more.pop(name) for name in ("by", "order", "needs", "wants") if name in more}
    lists: dict[str, Any] = {name: tuple(text.split()) for name, text in texts.items()}
    schema = {name: COLUMNS[name][0] for name in columns.split()}
    return Analysis(key=key, title=title, question=question, schema=schema, base=base, **lists, **more)


_LAYER = "index layer type"
_WORK = (
    "flops flops_source dram_read_bytes dram_write_bytes dram_bytes dram_source occupancy occupancy_source"
)
_BOUND = "precision intensity tflops attainable_tflops memory_bound"
_ROOF = f"flops flops_source dram_bytes dram_source {_BOUND}"
_GROUP = "kernels sum_ns gpu_ns"
_ALLOCATED = "allocated_bytes forward_bytes"
_ON_ROOF = "intensity tflops attainable_tflops memory_bound"
_OF_DEVICE = "MLG shapes bytes"

_BY_CALL: dict[str, Any] = {"by": "layer phase name turn", "order": "order first_step", "needs": "kernels"}
_BY_LAYER: dict[str, Any] = {"by": "layer", "order": "order layer"}
_LAYERS_OF_KERNELS: Final[dict[str, Any]] = {
    **(_BY_LAYER | {"share": "sum_ns", "needs": "kernels layer_kernels", "wants": _OF_DEVICE}),
    "answer": "{top[layer]} takes {top[share]} of the kernels' time.",
    "otherwise": "{rows} layers with kernels.",
}


def _by_type(share: str) -> dict[str, Any]:
    return {"by": "type", "share": share, "order": f"-{share} type", "figure": "type"}


def _roofline(of: str) -> dict[str, Any]:
    return {
        "answer": f"{{bound}} of {{rows}} {of} are bound by memory, the others by arithmetic.{{sources}}{{bandwidth}}",
        "otherwise": f"The intensity of {{rows}} {of} is known; {{unknown}} not known.{{sources}}",
        **{"filled": "intensity", "figure": "roofline"},
    }


_ANALYSES: Final = (
    _analysis(
        *("A1", "M", "runs"),
        "run workload device_name precision batch samples_per_step parameters latency_ns throughput_per_s "
        "optimal",
        "run batch latency_ns throughput_per_s optimal",
        order="batch",
    ),
    _analysis(
        *("A2", "ML MLG", "layers"),
        f"{_LAYER} leaf calls latency_ns self_ns {_ALLOCATED} parameters input_shapes output_shapes",
        f"{_LAYER} output_shapes latency_ns self_ns allocated_bytes",
        needs="layers",
        wants="ML memory",
        answer="{rows} layers, {sum[leaf]} of them without layers inside.",
    ),
    _analysis(
        *("A3", "ML", "layers"),
        f"{_LAYER} leaf latency_ns self_ns share",
        f"{_LAYER} latency_ns self_ns share",
        share="self_ns",
        needs="ML layers",
        answer="{top[layer]} takes the most: {top[self_ns]} of its own, {top[share]} of all layers.",
        figure="order",
    ),
    _analysis(
        *("A4", "MLG", "memory", f"{_LAYER} {_ALLOCATED} share"),
        share="allocated_bytes",
        needs="memory layers",
        answer="{sum[allocated_bytes]} are allocated a step, {layers[allocated_bytes]} of them by layers.",
        figure="order",
    ),
    _analysis(
        *("A5", "ML", "layers", "type layers leaves calls share"),
        **_by_type("layers"),
        needs="layers",
        answer="{rows} types; {top[share]} of the layers are {top[type]}.",
    ),
    _analysis(
        *("A6", "ML", "layers", "type layers self_ns share"),
        **_by_type("self_ns"),
        needs="ML layers",
        answer="{top[type]} takes {top[share]} of the layers' own time.",
    ),
    _analysis(
        *("A7", "MLG", "layers", f"type layers {_ALLOCATED} share"),
        **_by_type("allocated_bytes"),
        needs="memory layers",
        answer="{top[type]} allocates {top[share]} of what layers allocate.",
    ),
    _analysis(
        *("A8", "MLG", "kernels"),
        f"index name kind layer phase operator steps grid block duration_ns {_WORK} {_BOUND}",
        "index name layer duration_ns flops dram_read_bytes dram_write_bytes occupancy",
        **_BY_CALL,
        wants=_OF_DEVICE,
        answer="{rows} {calls} a step.",
    ),
    _analysis(
        *("A9", "MLG metrics", "kernels"),
        f"index name layer duration_ns {_ROOF}",
        f"index name layer {_ON_ROOF}",
        **_BY_CALL | _roofline("kernels"),
    ),
    _analysis(
        *("A10", "MLG", "kernels"),
        f"name kind {_GROUP} share {_WORK} {_BOUND}",
        "name kernels sum_ns share flops occupancy memory_bound",
        by="name",
        share="sum_ns",
        order="-sum_ns -kernels name",
        needs="kernels",
        wants=_OF_DEVICE,
        answer="{rows} names; {top[name]} takes {top[share]}.",
        otherwise="{rows} names.",
    ),
    _analysis(
        *("A11", "MLG", "kernels"),
        f"{_LAYER} {_GROUP} share {_WORK} {_BOUND}",
        f"{_LAYER} kernels gpu_ns share flops occupancy memory_bound",
        **_LAYERS_OF_KERNELS,
    ),
    _analysis(
        *("A12", "MLG metrics", "kernels"),
        f"{_LAYER} gpu_ns {_WORK}",
        f"{_LAYER} flops flops_source dram_read_bytes dram_write_bytes occupancy",
        **_LAYERS_OF_KERNELS,
    ),
    _analysis(
        *("A13", "ML MLG", "layers", f"{_LAYER} self_ns gpu_ns non_gpu_ns gpu_share"),
        needs="ML MLG layers",
        answer="In {part} of the layers' own time {works}, {sum[gpu_ns]} of {sum[self_ns]}.",
        figure="device",
    ),
    _analysis(
        *("A14", "MLG metrics", "kernels", f"{_LAYER} gpu_ns {_ROOF}", f"{_LAYER} {_ON_ROOF}"),
        **_BY_LAYER | _roofline("layers"),
        needs="kernels",
    ),
    _analysis(
        *("A15", "M MLG metrics", "kernels"),
        f"run batch latency_ns {_GROUP} gpu_share {_WORK} counted_flops {_BOUND}",
        "run batch latency_ns gpu_ns gpu_share flops occupancy memory_bound",
        by="run",
        needs="kernels",
        wants=f"M {_OF_DEVICE}",
        answer="In a step {works} for {top[gpu_ns]}.{bandwidth}",
    ),
    _analysis(*("overhead", "M", "levels"), "quantity level latency_ns added_ns ratio"),
)
CATALOGUE: Final[dict[str, Analysis]] = {analysis.key: analysis for analysis in _ANALYSES}
"""The analyses by key, in order."""
