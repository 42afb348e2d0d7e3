"""What every analysis returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final, Literal, get_args

import polars as pl

from tracekit.analyses.scope import Scope
from tracekit.classes import dataclass
from tracekit.facts.launch_apis import LAUNCH
from tracekit.facts.stack_names import PHASES
from tracekit.facts.units import count_of
from tracekit.findings import Finding
from tracekit.groups import any_known, distinct
from tracekit.name_table import any_matching
from tracekit.names import clean, clean_frame
from tracekit.notebook import ROWS, block, heading, items, paragraph
from tracekit.readers import how_to_record
from tracekit.trace import Trace

__all__ = [
    "AGGREGATES",
    "PHASE_COLUMNS",
    "UNITS",
    "Column",
    "NotCaptured",
    "Result",
    "TableView",
    "Unit",
    "column_of",
    "has_host_work",
    "has_launch_calls",
    "no_launches",
    "processor_word",
    "unit_of",
]


@dataclass(frozen=True, slots=True)
class NotCaptured:
    """What the profile lacks for an answer."""

    what: str
    remedy: str = ""
    """How to record it, as an imperative without a full stop."""
    instead: str = ""
    """The substitute in the result, as a clause."""

    def __str__(self) -> str:
        if self.instead:
            return f"{self.what}{f' ({self.remedy})' if self.remedy else ''}; {self.instead}"
        return f"{self.what}; {self.remedy}" if self.remedy else self.what


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Result:
    """The base of all results.

    Subclasses add frames and scalars as fields, with units in their names. `answer` is one sentence;
    `not_captured` says what the profile lacks and which flag captures it, and is None when the question could be
    answered.
    """

    answer: str
    not_captured: NotCaptured | str | None = None
    findings: tuple[Finding, ...] = ()

    def tables(self) -> dict[str, pl.DataFrame]:
        """The result's frames by field name; one that is None was not captured and is left out."""
        return {name: value for name, value in self._own_fields() if isinstance(value, pl.DataFrame)}

    def scalars(self) -> dict[str, int | float | str | None]:
        """The result's plain figures by field name."""
        return {
            name: value
            for name, value in self._own_fields()
            if value is None or isinstance(value, int | float | str)
        }

    def __init_subclass__(cls) -> None:
        cls.__repr__ = Result.__repr__  # type: ignore[method-assign] # else each has one that prints its frames

    def __repr__(self) -> str:
        """One line: the kind of the result, and the names of its tables."""
        return f"<{type(self).__name__}: {', '.join(self.tables()) or 'no table'}>"

    def __str__(self) -> str:
        """The answer, what was not captured, the findings, the figures, and the tables with the number of their rows."""
        lines = [self.answer]
        if self.not_captured is not None:
            lines.append(f"Not captured: {self.not_captured}.")
        lines += [f"· {one.title}. {one.advice}" for one in self.findings]
        for name, value in self.scalars().items():
            if value is not None:
                lines.append(f"  {name} = {value if isinstance(value, str) else f'{value:,}'}")
        lines += [f"  {name}: {count_of(frame.height, 'row')}" for name, frame in self.tables().items()]
        return "\n".join(map(clean, lines))

    def _repr_html_(self) -> str:
        """For notebooks: the answer, the findings, and the first rows of each table under the name of its field."""
        parts = [heading(type(self).__name__), paragraph(self.answer)]
        if self.not_captured is not None:
            parts.append(paragraph(str(self.not_captured), "Not captured:"))
        parts.append(items((f"{one.title}.", f"{one.evidence} {one.advice}") for one in self.findings))
        for name, frame in self.tables().items():
            parts += [paragraph(f"{frame.height:,} rows", name), clean_frame(frame.head(ROWS))._repr_html_()]
        return block(parts)

    def _own_fields(self) -> list[tuple[str, Any]]:
        base = {field.name for field in dataclasses.fields(Result)}
        return [(f.name, getattr(self, f.name)) for f in dataclasses.fields(self) if f.name not in base]


# -- tables -----------------------------------------------------------------------------------------
#
# How the tables of analyses are presented: titles, units, and the columns for a narrow page.
#
# An analysis declares its tables as `TABLES`, beside its result. Only names stand here, no figures. A table or column that is
# not declared is shown all the same: its title and its unit come from its name (`*_ns`, `*_bytes`, `*_gbps`, `*share`).

AGGREGATES: Final = "count total_ns mean_ns median_ns p95_ns min_ns max_ns std_ns"
"""The columns of `statistics.duration_aggregates`."""
PHASE_COLUMNS: Final = " ".join(f"{name}_ns" for name in PHASES)

Unit = Literal[
    "text",
    "id",
    "device",
    "ns",
    "change",
    "time",
    "bytes",
    "byte_rate",
    "flop",
    "flop_rate",
    "ratio",
    "count",
    "number",
    "gbps",
    "flag",
]
UNITS: Final[tuple[Unit, ...]] = get_args(Unit)
"""`ns` is a duration, `change` by how much one differs, `time` an instant in ns from the trace's origin, `ratio` runs from 0 to 1 (or above, for a
coefficient of variation), `gbps` is 10⁹ bytes a second, `byte_rate` bytes and `flop_rate` FLOPs a second, `id` a number that is no quantity, `device` such a
number where −1 stands for the host."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: its stable `name`, the `title` that a reader sees, and its unit."""

    name: str
    title: str
    unit: Unit


@dataclass(frozen=True, slots=True)
class TableView:
    """How a table is presented. Lists of columns are texts, the names separated by blanks."""

    title: str
    columns: str = ""
    """Every column that the analysis promises."""
    short: str | None = None
    """Those for a narrow page; None: all."""
    titles: Mapping[str, str] = field(default_factory=dict)
    """Columns that mean something else here than elsewhere."""
    hidden: str = ""
    """Columns that mean nothing to a reader, such as sums of delays that overlap."""
    series: bool = False
    """A time series, which is drawn, not listed."""
    tree: bool = False
    """The rows form a tree."""
    main: bool = False
    """Without a row in a table like this a section says nothing."""
    processor_title: str = ""
    """The title where no device was captured; empty: the same."""


_OF_UNIT: Final[dict[Unit, str]] = {
    "device": "device_id",
    "id": "step sequence destination",
    "time": "start time span_start peak_time",
    "bytes": "allocated reserved bytes",
    "byte_rate": "bytes_per_s",
    "flop": "flops flops_per_step",
    "flop_rate": "flops_per_s attainable_flops_per_s",
    "ratio": (
        "replay_error share overlap utilisation kernel_utilisation sm_efficiency occupancy variation flops_utilisation efficiency bandwidth_efficiency "
        "model_utilisation hardware_utilisation"
    ),
    "number": (
        "overhead throughput_per_s achieved_tflops intensity l1_intensity l2_intensity tflops total mean min max "
        "mean_length"
    ),
    "text": (
        "phase method layer path parent type source pattern level name category kind operator frame range "
        "call os_call function cause dependency shapes dtypes measure part role direction host_memory series "
        "dram_source bytes_source bound precision unit figure device reason group group_ranks dtype algorithm protocol carries"
    ),
    "count": "ranks",
    "flag": "outlier relative",
}
_UNITS: Final[dict[str, Unit]] = {name: unit for unit, names in _OF_UNIT.items() for name in names.split()}
_SUFFIXES: Final[tuple[tuple[str, Unit], ...]] = (
    ("delta_ns", "change"),
    ("_ns", "ns"),
    ("_bytes", "bytes"),
    ("_gbps", "gbps"),
    ("_share", "ratio"),
    ("_ratio", "ratio"),
    ("_id", "id"),
)
_TITLES: Final[dict[str, str]] = {
    "device_id": "device",
    "stream_id": "stream",
    "duration_ns": "own range",
    "time_ns": "step time",
    "exposed_communication_ns": "exposed comm.",
    "communication_ns": "communication",
    "exposed_memory_ns": "exposed copies",
    "memory_ns": "copies",
    "overlap_ns": "comm. overlapped",
    "kernel_utilisation": "kernel util.",
    "sm_efficiency": "SM efficiency",
    "launch_bound_share": "launch-bound",
    "bandwidth_gbps": "bandwidth",
    "trimmed_mean_ns": "trimmed mean",
    "mean_device_ns": "mean on device",
    "mean_call_ns": "mean launch call",
    "mean_delay_ns": "mean delay",
    "std_ns": "std dev.",
    "p95_ns": "p95",
    "host_memory": "host memory",
    "device_ns": "on device",
    "device_own_ns": "own on device",
    "own_share": "own share",
    "host_ns": "on host",
    "host_self_ns": "own on host",
    "union_ns": "any running",
    "flops": "FLOPs",
    "flops_per_s": "FLOP/s",
    "bytes_per_s": "bandwidth",
    "attainable_flops_per_s": "attainable",
    "l1_intensity": "intensity at L1",
    "l2_intensity": "intensity at L2",
    "bandwidth_efficiency": "of the bandwidth",
    "rated_share": "known",
    "model_utilisation": "MFU",
    "hardware_utilisation": "HFU",
    "bytes_source": "bytes from",
    "faster_ns": "faster than the roof",
    "least_ns": "at the roof",
    "delta_ns": "change",
    "class_compute_ns": "computing",
    "class_communication_ns": "communicating",
    "class_memory_ns": "copying",
}


def unit_of(name: str, dtype: pl.DataType | None = None) -> Unit:
    """The unit of a column, by its name first and by its type second.

    >>> unit_of("total_ns"), unit_of("largest_bytes"), unit_of("mean", pl.Float64()), unit_of("count", pl.Int64())
    ('ns', 'bytes', 'number', 'count')
    """
    if name in _UNITS:  # the source of FLOPs is a text, that of a message a rank
        return "id" if _UNITS[name] == "text" and dtype is not None and dtype.is_integer() else _UNITS[name]
    for suffix, unit in _SUFFIXES:
        if name.endswith(suffix):
            return unit
    if dtype is None or dtype.is_integer():
        return "count"
    if dtype == pl.Boolean:
        return "flag"
    return "number" if dtype.is_numeric() else "text"


def column_of(name: str, dtype: pl.DataType | None = None) -> Column:
    """The column with its unit and the title that a reader sees.

    >>> column_of("host_wait_ns").title
    'host wait'
    """
    plain = name
    for suffix in ("_ns", "_bytes", "_gbps"):
        plain = plain.removesuffix(suffix)
    return Column(name, _TITLES.get(name, plain.replace("_", " ")), unit_of(name, dtype))


def processor_word(title: str) -> str:
    """A column's title where no device was captured: a stream is a thread there, and what runs are operators.

    >>> processor_word("stream"), processor_word("share")
    ('thread', 'share')
    """
    return _ON_PROCESSORS.get(title, title)


_ON_PROCESSORS: Final = {
    "stream": "thread",
    "on device": "time",
    "launched work": "in operators",
    "own on device": "own time",
    "host wait": "between operators",
    "of idle time": "of this time",
}


# -- launches that are not known --------------------------------------------------------------------
#
# Why launches are not known, in one place: they were not recorded, or nothing could be linked to them.


def has_host_work(trace: Trace) -> bool:
    """Whether the trace tells what the host did, by calls, operators or code.

    >>> import tracekit
    >>> has_host_work(tracekit.read("sample_traces/cnn_cpu/trace.json.gz"))
    True
    """
    return any((trace.host["kind"] == kind).any() for kind in ("runtime", "op", "python"))


def has_launch_calls(trace: Trace) -> bool:
    """Whether the host has calls that put work on a device, whatever became of it.

    >>> import tracekit
    >>> has_launch_calls(tracekit.read("sample_traces/cnn_cpu/trace.json.gz"))
    False
    """
    names = distinct(trace.host["name"].filter(trace.host["kind"] == "runtime"))
    return any_matching(names.cast(pl.String).to_list(), LAUNCH)


def no_launches(scope: Scope, so: str = "") -> str | None:
    """Why no activity of the scope has a launch, the consequence (`so`), and what to do; None if one has a launch.

    If there are launch calls but none has an activity, the correlation ids are missing, and no flag of the profiler brings
    them back.
    """
    if scope.on_cpu or not scope.activities.height or any_known(scope.activities["launch_id"]):
        return None
    follows = f", {so}" if so else ""
    if has_launch_calls(scope.trace):
        return (
            "no activity could be linked to its launch call, because correlation ids are missing or match nothing"
            f"{follows}; use the file as the profiler wrote it"
        )
    return f"no launch calls{follows}; {how_to_record('launches', scope.trace.meta.format)}"
