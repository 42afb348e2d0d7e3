"""How the tables of the analyses are presented: their titles, and their columns for a narrow page.

Only names stand here, no figures. A table that is not declared is shown all the same, under its own name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tracekit.facts.stack_names import PHASES

__all__ = ["TABLES", "TableView", "view_of"]


@dataclass(frozen=True, slots=True)
class TableView:
    """How a table is presented: its title, the columns for a narrow page, whether it is a time series.

    `schema` names every column that the analysis promises; `titles` those that mean something else here than
    elsewhere; `hidden` those that mean nothing to a reader (sums of delays that overlap); `tree`: the rows form one.
    """

    title: str
    short: tuple[str, ...] = ()
    schema: tuple[str, ...] = ()
    series: bool = False
    titles: Mapping[str, str] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    tree: bool = False


_AGGREGATES: Final = ("count", "total_ns", "mean_ns", "median_ns", "p95_ns", "min_ns", "max_ns", "std_ns")
_GAP_TITLES: Final = {"duration_ns": "gap", "name": "ended by", "category": "reason"}
_PHASES: Final = tuple(f"{name}_ns" for name in PHASES)
_SHARES: Final = ("share", "own_share")
_LAYER_GROUP: Final = (
    *("layers", "calls", "device_ns", "device_own_ns", *_PHASES, "recomputed_ns", "host_ns", "host_self_ns"),
    *("idle_caused_own_ns", "mean_ns", *_SHARES),
)
_LAYER_SHORT: Final = ("device_own_ns", "own_share", "device_ns", "layers", "calls", "host_ns")
_LAYER_TITLES: Final = {
    "mean_ns": "mean of a layer",
    "communication_ns": "reducing gradients",
    "device_own_ns": "own",
    "idle_caused_own_ns": "idle caused",
}
_OPS: Final = (
    *("calls", "host_total_ns", "host_self_ns", "mean_host_ns", "device_total_ns", "device_self_ns"),
    *("mean_device_ns", "launched", *_PHASES, "share"),
)
_OPS_SHORT: Final = ("device_self_ns", "share", "device_total_ns", "calls", "host_self_ns", "host_total_ns")
_OPS_TITLES: Final = {
    "host_total_ns": "host",
    "host_self_ns": "host self",
    "device_total_ns": "device",
    "device_self_ns": "device self",
    "communication_ns": "reducing gradients",
}
_PARTS: Final = ("kernel", "memcpy", "memset", "communication", "runtime", "data_loader", "operator", "other")


def _idle_by(column: str, what: str) -> TableView:
    columns = (column, "cause", "total_ns", "share")
    return TableView(f"Idle time by {what}", columns, columns, titles={"share": "of idle time"})


TABLES: Final[dict[str, TableView]] = {
    "workload.phases": TableView(
        "Phases of the steps",
        ("phase", "mean_ns", "share", "mean_device_ns"),
        ("phase", "count", "total_ns", "mean_ns", "share", "device_ns", "mean_device_ns"),
        titles={
            "device_ns": "launched work, in all",
            "mean_device_ns": "launched work",
            "mean_ns": "per step",
        },
    ),
    "workload.levels": TableView(
        "Step times, by how much was recorded",
        ("level", "count", "median_ns", "overhead"),
        ("level", "ranks", "count", "median_ns", "trimmed_mean_ns", "min_ns", "overhead"),
        titles={"count": "steps"},
    ),
    "breakdown.devices": TableView(
        "Time per device",
        ("device_id", "window_ns", "compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns"),
        (
            *("device_id", "name", "window_ns", "busy_ns", "compute_ns", "communication_ns", "memory_ns"),
            *("exposed_communication_ns", "exposed_memory_ns", "overlap_ns", "idle_ns", "utilisation"),
            *("kernel_utilisation", "sm_efficiency", "occupancy"),
        ),
    ),
    "steps.table": TableView(
        "Steps",
        (
            "name",
            "time_ns",
            "span_ns",
            "kernel_ns",
            "communication_ns",
            "runtime_ns",
            "data_loader_ns",
            "operator_ns",
            "other_ns",
        ),
        (
            *("step", "name", "start", "duration_ns", "time_ns", "outlier", "span_start", "span_ns"),
            *(f"{part}_ns" for part in _PARTS),
        ),
    ),
    "steps.composition": TableView(
        "All steps together", ("part", "total_ns", "share"), ("part", "total_ns", "share")
    ),
    "idle.by_cause": TableView(
        "Idle time by cause",
        ("device_id", "cause", "total_ns", "share", "gaps"),
        ("device_id", "cause", "total_ns", "share", "gaps"),
        titles={"share": "of the window"},
    ),
    "idle.by_layer": _idle_by("layer", "layer"),
    "idle.by_operator": _idle_by("operator", "operator"),
    "idle.by_frame": _idle_by("frame", "line of your code"),
    "idle.by_range": _idle_by("range", "range of yours"),
    "idle.by_os_call": TableView(
        "Idle time outside recorded calls, by call of the operating system",
        ("os_call", "total_ns", "share", "calls"),
        ("os_call", "total_ns", "share", "calls"),
        titles={"os_call": "OS call", "share": "of this time"},
    ),
    "idle.by_function": TableView(
        "Idle time outside recorded calls, by the function that samples found running",
        ("function", "samples", "share"),
        ("function", "samples", "share"),
    ),
    "idle.device_gaps": TableView(
        "Longest gaps of a whole device, and why",
        ("start", "duration_ns", "cause", "operator", "layer", "range", "frame"),
        (
            *("device_id", "stream_id", "start", "duration_ns", "cause", "cause_ns", "operator", "layer"),
            *("frame", "range", "dependency", "name", "activity_id"),
        ),
        titles={"duration_ns": "gap", "name": "ended by", "cause_ns": "of this cause"},
    ),
    "idle.streams": TableView(
        "Waiting per stream",
        ("device_id", "stream_id", "busy_ns", "idle_ns", "host_wait_ns", "kernel_wait_ns", "other_ns"),
        (
            *(
                "device_id",
                "stream_id",
                "idle_ns",
                "host_wait_ns",
                "kernel_wait_ns",
                "other_ns",
                "unknown_ns",
            ),
            *("gaps", "busy_ns"),
        ),
    ),
    "idle.gaps": TableView(
        "Longest gaps, and what ended them",
        ("name", "stream_id", "start", "duration_ns", "category"),
        ("device_id", "stream_id", "start", "duration_ns", "category", "name", "activity_id"),
        titles=_GAP_TITLES,
    ),
    "layers.tree": TableView(
        "Layers",
        (
            "path",
            "device_ns",
            "share",
            "device_own_ns",
            "calls",
            "host_ns",
            "idle_caused_ns",
            "union_ns",
            "type",
        ),
        (
            *("layer_id", "parent_layer_id", "path", "parent", "name", "type", "source", "depth", "calls"),
            *("device_ns", "device_own_ns", *_PHASES, "class_compute_ns", "class_communication_ns"),
            *("class_memory_ns", "recomputed_ns", "activities", "union_ns", "host_ns", "host_self_ns"),
            *("idle_caused_ns", "idle_caused_own_ns", *_SHARES),
        ),
        titles={
            "communication_ns": "reducing gradients",
            "device_own_ns": "own",
            "idle_caused_ns": "idle caused",
        },
        hidden=("layer_id", "parent_layer_id", "parent", "depth"),
        tree=True,
    ),
    "layers.by_type": TableView(
        "By type of layer", ("type", *_LAYER_SHORT), ("type", *_LAYER_GROUP), titles=_LAYER_TITLES
    ),
    "layers.by_pattern": TableView(
        "Repeated layers as one",
        ("pattern", *_LAYER_SHORT),
        ("pattern", *_LAYER_GROUP),
        titles={**_LAYER_TITLES, "pattern": "layer"},
    ),
    "layers.by_phase": TableView(
        "By phase",
        ("phase", "device_ns", "share", "activities"),
        ("phase", "activities", "device_ns", "share"),
    ),
    "layers.coverage": TableView(
        "How the layer is known",
        ("method", "duration_ns", "share", "activities"),
        ("method", "activities", "duration_ns", "share"),
        titles={"duration_ns": "on device"},
    ),
    "ops.by_operator": TableView(
        "By operator", ("operator", *_OPS_SHORT), ("operator", *_OPS), titles=_OPS_TITLES
    ),
    "ops.by_shape": TableView(
        "By operator and shape",
        ("operator", "shapes", *_OPS_SHORT),
        ("operator", "shapes", "dtypes", *_OPS),
        titles=_OPS_TITLES,
    ),
    "kernels.by_name": TableView(
        "By name",
        ("name", "category", "count", "total_ns", "share"),
        ("name", "category", "kind", *_AGGREGATES, "share"),
    ),
    "kernels.by_category": TableView(
        "By category",
        ("category", "count", "total_ns", "share", "mean_ns"),
        ("category", *_AGGREGATES, "share"),
    ),
    "kernels.by_operator": TableView(
        "By operator",
        ("operator", "count", "total_ns", "share", "mean_ns"),
        ("operator", *_AGGREGATES, "share"),
    ),
    "kernels.by_layer": TableView(
        "By layer and name",
        ("layer", "name", "count", "total_ns", "share"),
        ("layer", "name", "category", *_AGGREGATES, "share"),
    ),
    "kernels.by_shape": TableView(
        "By operator and shape",
        ("operator", "shapes", "count", "total_ns", "share"),
        ("operator", "shapes", "dtypes", *_AGGREGATES, "share"),
    ),
    "kernels.measured": TableView(
        "Measured by Nsight Compute",
        ("name", "measured", "total_ns", "intensity", "tflops", "bandwidth_gbps", "occupancy"),
        (
            *("name", "count", "measured", "total_ns", "flops", "dram_bytes", "dram_source", "intensity"),
            *("tflops", "bandwidth_gbps", "occupancy"),
        ),
    ),
    "launches.delays": TableView(
        "Delays",
        ("measure", "count", "median_ns", "mean_ns", "p95_ns", "max_ns"),
        ("measure", *_AGGREGATES),
        hidden=("total_ns",),
    ),
    "launches.by_name": TableView(
        "Launches by name",
        ("name", "count", "mean_device_ns", "mean_call_ns", "mean_delay_ns", "launch_bound_share"),
        ("name", "count", "mean_device_ns", "mean_call_ns", "mean_delay_ns", "launch_bound_share"),
    ),
    "launches.queues": TableView(
        "Queue length per stream",
        ("device_id", "stream_id", "mean_length", "max_length"),
        ("device_id", "stream_id", "mean_length", "max_length"),
    ),
    "launches.queue": TableView(
        "Queue length over time", (), ("device_id", "stream_id", "time", "length"), series=True
    ),
    "launches.calls": TableView(
        "Host API calls", ("name", "role", "count", "total_ns", "mean_ns"), ("name", "role", *_AGGREGATES)
    ),
    "overlap.devices": TableView(
        "Communication per device",
        ("device_id", "communication_ns", "compute_ns", "overlap_ns", "exposed_ns", "overlap"),
        ("device_id", "communication_ns", "compute_ns", "overlap_ns", "exposed_ns", "overlap"),
    ),
    "overlap.collectives": TableView(
        "Communication by name",
        ("name", "count", "total_ns", "exposed_ns", "mean_ns"),
        ("name", *_AGGREGATES, "exposed_ns"),
    ),
    "memory.copies": TableView(
        "Copies and fills",
        ("device_id", "kind", "direction", "host_memory", "count", "total_ns", "bytes", "bandwidth_gbps"),
        (
            *("device_id", "kind", "direction", "host_memory", "count", "total_ns", "bytes", "largest_bytes"),
            "bandwidth_gbps",
        ),
    ),
    "memory.peaks": TableView(
        "Peaks of the allocator",
        ("device_id", "peak_bytes", "reserved_bytes", "capacity_bytes", "allocations", "frees"),
        (
            *("device_id", "peak_bytes", "peak_time", "reserved_bytes", "allocations", "frees", "relative"),
            "capacity_bytes",
        ),
    ),
    "memory.timeline": TableView(
        "Allocated memory over time",
        (),
        ("device_id", "time", "allocated", "reserved", "relative"),
        series=True,
    ),
    "counters.series": TableView(
        "Counters",
        ("series", "samples", "total", "mean", "min", "max"),
        ("series", "samples", "total", "mean", "min", "max"),
    ),
    "counters.by_name": TableView(
        "Counters by kernel or track",
        ("name", "series", "samples", "total", "mean"),
        ("name", "series", "samples", "total", "mean", "min", "max"),
    ),
}
"""`section.table` → its presentation."""


def view_of(section: str, name: str, columns: list[str]) -> TableView:
    """The presentation of a table: the declared one, else one made from its name and first columns."""
    declared = TABLES.get(f"{section}.{name}")
    if declared is not None:
        return declared
    return TableView(name.replace("_", " ").capitalize(), tuple(columns[:6]), tuple(columns))
