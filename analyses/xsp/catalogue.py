"""The 15 analyses of XSP by number, each a record: its question, the table of which it is a view, and its needs.

They follow Li, Dakkak, Xiong, Wei, Xu and Hwu, "XSP: Across-Stack Profiling and Analysis of Machine Learning Models on GPUs"
(IPDPS 2020). `overhead` is not in the paper's list: it shows why each figure needs a level of its own.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import polars as pl

from tracekit.analyses.stated import Entry
from tracekit.classes import dataclass

__all__ = ["CATALOGUE", "COLUMNS", "MISSING", "Analysis", "Figure"]

_T, _N, _F, _B = pl.String(), pl.Int64(), pl.Float64(), pl.Boolean()

COLUMNS: Final[dict[str, tuple[pl.DataType, str]]] = {
    "index": (_N, "position in the order of execution, from 1"),
    "run": (_T, "name of the run"),
    "workload": (_T, "name of the workload"),
    "device_name": (_T, "name of the device"),
    "precision": (_T, "precision of the operator, else of the run; it decides the peak"),
    "batch": (_N, "samples in a batch of one rank"),
    "samples_per_step": (_N, "samples in a step, over all ranks"),
    "parameters": (_N, "number of parameters; for a layer, its own parameters only"),
    "latency_ns": (_F, "for the model, a step at level M; for a layer, its calls in a step at level ML"),
    "throughput_per_s": (_F, "samples per second: samples in a step divided by its latency"),
    "optimal": (_B, "true if this is the optimal batch"),
    "layer": (_T, "path of the layer; work outside layers has a name in angle brackets"),
    "type": (_T, "class of the layer; null if the profile does not name it"),
    "leaf": (_B, "true if it calls no other layer"),
    "calls": (_F, "calls per step"),
    "self_ns": (_F, "own time: the latency minus the time of the layers inside"),
    "input_shapes": (_T, "input shapes of the layer's first call, as JSON"),
    "output_shapes": (_T, "output shapes of the layer's first call, as JSON"),
    "allocated_bytes": (_F, "bytes allocated per step, in all phases, without those of the layers inside"),
    "forward_bytes": (_F, "the part of allocated_bytes in calls of the layer itself"),
    "layers": (_N, "number of layers of this type that were called"),
    "leaves": (_N, "number of these layers that call no other layer"),
    "share": (_F, "share of the sum over all rows"),
    "name": (_T, "kernel, copy or fill; the operator if no device was captured"),
    "kind": (_T, "kernel, memcpy, memset, graph, or op"),
    "phase": (_T, "phase of the step in which it was launched"),
    "operator": (_T, "innermost operator around the launch"),
    "steps": (_N, "number of steps in which it occurs"),
    "grid": (_T, "number of thread blocks in each dimension"),
    "block": (_T, "number of threads per block in each dimension"),
    "duration_ns": (_F, "device time of the call at level MLG"),
    "kernels": (_F, "number of kernels, copies and fills per step"),
    "sum_ns": (_F, "sum of their durations per step, at level MLG"),
    "gpu_ns": (_F, "time per step in which at least one of them runs (union)"),
    "non_gpu_ns": (_F, "self_ns − gpu_ns; null if the device worked on after the call"),
    "gpu_share": (_F, "gpu_ns divided by the latency (model; null without a device) or by self_ns (layer)"),
    "flops": (_F, "floating-point operations"),
    "flops_source": (_T, "counter (ncu), counter, analytic (from shapes), or several of these"),
    "counted_flops": (_N, "FLOPs of a step by torch's counter, at level metrics"),
    "dram_read_bytes": (_F, "bytes read from device memory"),
    "dram_write_bytes": (_F, "bytes written to device memory"),
    "dram_bytes": (_F, "bytes read and written"),
    "dram_source": (_T, "counter (ncu), counter, derived (rate × time), or several of these"),
    "occupancy": (_F, "achieved occupancy, 0 to 1, weighted by duration"),
    "occupancy_source": (_T, "counter (ncu), counter, estimate (of the profiler), or several of these"),
    "intensity": (_F, "arithmetic intensity: flops divided by the bytes read and written"),
    "tflops": (_F, "10¹² flops per second of gpu_ns or duration_ns"),
    "attainable_tflops": (_F, "roofline at this intensity: min(peak, intensity × bandwidth)"),
    "memory_bound": (_B, "true if the intensity is below peak / bandwidth"),
    "level": (_T, "level of recording"),
    "quantity": (_T, "the latency that is compared"),
    "added_ns": (_F, "time that this level adds to the quantity, compared with the level above"),
    "ratio": (_F, "latency_ns divided by that at the level that is valid for the quantity"),
}
"""Every column of the tables: its type and its meaning. Means are 20 % trimmed means over the steps."""

MISSING: Final = {
    "M": "the latency of the model needs level M{M}",
    "ML": "the latency of layers needs level ML{ML}",
    "MLG": "kernels and their times need level MLG{MLG}",
    "layers": "the trace has no layers: record with {layers}",
    "memory": "the trace has no allocations: record with {memory}",
    "bytes": (
        "bytes to and from device memory need hardware counters: a trace with the CUPTI metrics dram__bytes_read.sum and"
        " dram__bytes_write.sum (--metrics), or an Nsight Compute table (--ncu)"
    ),
    "shapes": "FLOPs need recorded shapes ({shapes}) or hardware counters",
}
"""Data that a table may lack, and how to record them; the braces hold levels and keys of `tracekit.readers.RECORDABLE`."""

Base = Literal["runs", "levels", "layers", "memory", "kernels"]
Figure = Literal["order", "type", "device", "roofline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis(Entry):
    """One analysis: the facts from which its table, its figure and its documentation are made.

    `key` is A1 … A15, or overhead; `needs` are keys of MISSING, "kernels", or "layer_kernels".

    * `levels`: the levels of recording that it needs
    * `base`: the table of which it is a view: the runs of a series; the levels, layers or kernels of a run; or the memory
      of its layers and of the work outside layers
    * `by`: the columns by which it groups the base table; empty if it shows the rows as they are
    * `filled`: a column; rows in which it is null are left out
    * `share`: the column whose share per row is the column `share`
    * `wants`: needs without which some of its columns are null
    * `answer`: one sentence, with figures in braces (`answers.figures_of`)
    * `otherwise`: the answer if no share, or no bound, is known
    * `figure`: the kind of its figure
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
A3: Layer latency: How long does each layer take, in execution order?
A4: Layer memory allocation: How much memory does each layer allocate, in execution order?
A5: Layer type distribution: How many layers are there of each type?
A6: Layer latency by type: Which types of layers take the most time?
A7: Layer memory allocation by type: Which types of layers allocate the most memory?
A8: GPU kernel information: Which kernels run in a step, in order?
A9: GPU kernel roofline: Is each kernel bound by memory or by arithmetic?
A10: GPU kernel information by name: Which kernels take the most time?
A11: GPU kernel information by layer: Which layers take the most device time?
A12: GPU metrics by layer: How much arithmetic and memory traffic does each layer cause?
A13: GPU and non-GPU latency of layers: How long does the device work in each layer's own time?
A14: Layer roofline: Is each layer bound by memory or by arithmetic?
A15: GPU kernel information by model: What work do the model's kernels do, and what bounds it?
overhead: What each level adds: How much does each level of recording slow down the model and its layers?
"""
"""One line per analysis: the key, the title and the question."""

_OF_KEY: Final = {key: texts for key, *texts in (line.split(": ", 2) for line in _TEXTS.strip().split("\n"))}


def _analysis(key: str, levels: str, base: Base, columns: str, shown: str = "", **more: Any) -> Analysis:
    """A record; its lists are given as texts separated by blanks."""
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
    "answer": "{top[layer]} takes the most time, {top[share]}.",
    "otherwise": "Kernels belong to {rows[layer]}.",
}


def _by_type(share: str) -> dict[str, Any]:
    return {"by": "type", "share": share, "order": f"-{share} type", "figure": "type"}


def _roofline(of: str) -> dict[str, Any]:
    return {
        "answer": f"Memory bounds {{bound}} of {{rows[{of}]}}.{{sources}}{{bandwidth}}",
        "otherwise": f"The intensity of {{rows[{of}]}} is known, but {{unknown}} not.{{sources}}",
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
        answer="The model runs {rows[layer]}, {sum[leaf]} of them without layers inside.",
    ),
    _analysis(
        *("A3", "ML", "layers"),
        f"{_LAYER} leaf latency_ns self_ns share",
        f"{_LAYER} latency_ns self_ns share",
        share="self_ns",
        needs="ML layers",
        answer="{top[layer]} has the longest own time: {top[self_ns]}, {top[share]} of that of all layers.",
        figure="order",
    ),
    _analysis(
        *("A4", "MLG", "memory", f"{_LAYER} {_ALLOCATED} share"),
        share="allocated_bytes",
        needs="memory layers",
        answer="A step allocates {sum[allocated_bytes]}, of which layers allocate {layers[allocated_bytes]}.",
        figure="order",
    ),
    _analysis(
        *("A5", "ML", "layers", "type layers leaves calls share"),
        **_by_type("layers"),
        needs="layers",
        answer="The layers have {rows[type]}; {top[share]} of the layers are {top[type]}.",
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
        answer="{top[type]} allocates {top[share]} of the memory that layers allocate.",
    ),
    _analysis(
        *("A8", "MLG", "kernels"),
        f"index name kind layer phase operator steps grid block duration_ns {_WORK} {_BOUND}",
        "index name layer duration_ns flops dram_read_bytes dram_write_bytes occupancy",
        **_BY_CALL,
        wants=_OF_DEVICE,
        answer="A step has {rows} {calls}.",
    ),
    _analysis(
        *("A9", "MLG metrics", "kernels"),
        f"index name layer duration_ns {_ROOF}",
        f"index name layer {_ON_ROOF}",
        **_BY_CALL | _roofline("kernel"),
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
        answer="Of {rows[name]}, {top[name]} takes the most time, {top[share]}.",
        otherwise="The kernels have {rows[name]}.",
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
        answer="During {part} of the layers' own time, {works}: {sum[gpu_ns]} of {sum[self_ns]}.",
        figure="device",
    ),
    _analysis(
        *("A14", "MLG metrics", "kernels", f"{_LAYER} gpu_ns {_ROOF}", f"{_LAYER} {_ON_ROOF}"),
        **_BY_LAYER | _roofline("layer"),
        needs="kernels",
    ),
    _analysis(
        *("A15", "M MLG metrics", "kernels"),
        f"run batch latency_ns {_GROUP} gpu_share {_WORK} counted_flops {_BOUND}",
        "run batch latency_ns gpu_ns gpu_share flops occupancy memory_bound",
        by="run",
        needs="kernels",
        wants=f"M {_OF_DEVICE}",
        answer="In a step, {works} for {top[gpu_ns]}.{bandwidth}",
    ),
    _analysis(*("overhead", "M", "levels"), "quantity level latency_ns added_ns ratio"),
)
CATALOGUE: Final[dict[str, Analysis]] = {analysis.key: analysis for analysis in _ANALYSES}
"""The analyses by key, in order."""
