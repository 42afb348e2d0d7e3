"""A report is data: sections, each with a question, an answer, tables and figures. Renderers only format it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from importlib import import_module
from typing import Any, Final, Literal

import polars as pl

from tracekit.analyses.result import UNITS, Column, Unit, column_of
from tracekit.classes import dataclass
from tracekit.digest import Digest
from tracekit.findings import BOUNDS, Bound, Finding
from tracekit.names import clean_frame
from tracekit.trace import DeviceInfo, Excerpt
from tracekit.verdict.model import Advice, Cost, Verdict

__all__ = [
    "BOUNDS",
    "SCHEMA_VERSION",
    "UNITS",
    "Advice",
    "Bound",
    "Column",
    "Cost",
    "Figure",
    "FigureKind",
    "HealthItem",
    "Report",
    "Scalar",
    "Section",
    "Step",
    "Table",
    "TraceInfo",
    "Tree",
    "Unit",
    "Verdict",
    "Window",
    "table_of",
]

SCHEMA_VERSION: Final = "1.0"
"""Of the JSON report: the first number changes when a key is removed or changes its meaning."""

FigureKind = Literal["stack", "bars", "line", "icicle", "curve", "heat"]
Scalar = int | float | str | None


@dataclass(frozen=True, slots=True)
class Tree:
    """How the rows of a tree are shown: bars and order by `measure`; with `largest_first` false, as they come.

    Such a table has the columns `layer_id`, `parent_layer_id` (null for a root), `name` and `depth`, and each row
    before those below it.
    """

    measure: str = "device_ns"
    largest_first: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Rows of one kind. `frame` has exactly the `columns`; `total_rows` counts the rows before any limit.

    `short` names the columns that fit a narrow page; `series` marks a time series, which is drawn, not listed. `hidden` names columns that only data have, no page.
    `detail` marks what only a page with room for it lists, or data. `summed` says that a page that has no room for all rows ends with one that sums the others. `tree` is set when the rows form a tree. `kept` names columns that say what a row is, and go last where a page is narrow. Without a row in a
    `main` table the section says nothing. A `whole` one shows all its columns at first wherever there is room to scroll.
    """

    name: str
    title: str
    frame: pl.DataFrame
    columns: tuple[Column, ...]
    total_rows: int
    short: tuple[str, ...] = ()
    series: bool = False
    hidden: tuple[str, ...] = ()
    tree: Tree | None = None
    kept: tuple[str, ...] = ()
    main: bool = False
    summed: bool = False
    detail: bool = False
    whole: bool = False

    def column(self, name: str) -> Column | None:
        """The column of this name, None when there is none."""
        return next((column for column in self.columns if column.name == name), None)


def table_of(
    name: str,
    title: str,
    frame: pl.DataFrame,
    short: str | Sequence[str] | None = None,
    titles: Mapping[str, str] = {},
    units: Mapping[str, Unit] = {},
) -> Table:
    """A table of all rows of a frame: the columns are titled as usual but for `titles`, texts are texts, and other units as usual but for
    `units`. Of `short` (names with blanks between; None: all) columns that are not there or hold nothing are left out.

    >>> made = table_of("t", "T", pl.DataFrame({"time_ns": [5], "gain": [2.0], "note": [None]}), "gain note", {"gain": "gain ×"})
    >>> [(column.title, column.unit) for column in made.columns], made.short
    ([('step time', 'ns'), ('gain ×', 'number'), ('note', 'text')], ('gain',))
    """
    columns = []
    for key, dtype in frame.schema.items():
        column = column_of(key, dtype)
        unit = "text" if dtype == pl.String else units.get(key, column.unit)
        columns.append(Column(key, titles.get(key, column.title), unit))
    names = frame.columns if short is None else short.split() if isinstance(short, str) else short
    shown = tuple(key for key in names if key in frame.columns and (not frame.height or frame[key].count()))
    return Table(name, title, clean_frame(frame), tuple(columns), frame.height, short=shown)


@dataclass(frozen=True, slots=True)
class Figure:
    """What to draw, as plain lists.

    `stack`: `{"unit", "rows": [{"label", "parts": [{"label", "value"}]}]}`; `bars`: `{"unit", "bars": [{"label",
    "value"}]}`; `line`: `{"unit", "series": [{"label", "x": [ns], "y": [value]}]}`, where y holds until the next x; where x is no time, words for both `ends`;
    `icicle`: `{"unit", "total", "nodes": [{"label", "kind", "depth", "start", "value"}]}`, boxes below each other; they may have a `hint`, and the figure words for its `kinds`;
    `curve`, on logarithmic axes: `{"x_title", "y_title", "series": [{"label", "style", "x", "y"}]}`, the style `dots`, `dashes`, or
    `line`, which has a band from `low` to `high`; dots may have `names`, `sizes` (0 to 1) and `marks` (texts beside them; a line joins such dots), the axes a `base` other than 2, where 0 makes them linear;
    `heat`: `{"bin_ns", "span_ns", "maps": [{"label", "kind", "rows": [{"label", "ranks", "percent": [0 to 100, −1 for
    nothing]}]}]}`; rows of several ranks have their middle, and `least` and `most`.
    """

    name: str
    title: str
    kind: FigureKind
    data: dict[str, Any]


@dataclass(frozen=True, slots=True, repr=False)
class Section:
    """What one analysis found. `not_captured` says what the profile lacks and which flag captures it.

    A page of its own is called `title`, without one by the `name`. A `tag` of a word or two stands before the answer; the `points` below it are pairs of a label and a text. `error` is the one line of an analysis from another package that failed; None otherwise. `on_cpu`: its times are those of operators, because no device was captured.
    """

    name: str
    question: str
    answer: str
    not_captured: str | None = None
    findings: tuple[Finding, ...] = ()
    tables: tuple[Table, ...] = ()
    scalars: dict[str, Scalar] = field(default_factory=dict)
    figures: tuple[Figure, ...] = ()
    error: str | None = None
    title: str = ""
    tag: str = ""
    points: tuple[tuple[str, str], ...] = ()
    on_cpu: bool = False

    def table(self, name: str) -> Table | None:
        """The table of this name, None when there is none."""
        return next((table for table in self.tables if table.name == name), None)

    def figure(self, name: str) -> Figure | None:
        """The figure of this name, None when there is none."""
        return next((figure for figure in self.figures if figure.name == name), None)

    def plot(self) -> Any:
        """The figures, which a notebook shows (`tracekit.report.notebook.Plots`)."""
        return _renderer("notebook").Plots(self.figures)

    def __repr__(self) -> str:
        """One line: its name, and those of its tables."""
        return f"<Section {self.name}: {', '.join(table.name for table in self.tables) or 'no table'}>"

    def __str__(self) -> str:
        """What the command of its analysis prints."""
        return str(_renderer("terminal").section_text(self))

    def _repr_html_(self) -> str:
        return str(_renderer("notebook").section_html(self))


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the window: its number, its name, start and end on the host in ns from the trace's origin."""

    step: int
    name: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Window:
    """What was analysed. `kind` is `steps` or `trace`; times are ns from the trace's origin.

    `on_cpu`: no device was captured, and the self time of operators takes its place. `steps_inferred_from` names
    what was taken for the step of a trace that marks none: a range, or a period of launches; null when steps were marked or
    asked for.
    """

    kind: str
    label: str
    start_ns: int
    end_ns: int
    duration_ns: int
    steps: tuple[Step, ...] = ()
    on_cpu: bool = False
    steps_inferred_from: str | None = None


@dataclass(frozen=True, slots=True)
class TraceInfo:
    """Where the report comes from. `path` is the file's name only, among several files of
    one name with its folder's; nothing tells the host or the user.

    `excerpt` says which part was read of a trace that is too large; None when all was. `process_id` is that of one of
    several processes in the file; None when the file holds one trace.
    """

    path: str
    name: str
    format: str
    format_version: str = ""
    producer: dict[str, str] = field(default_factory=dict)
    rank: int | None = None
    process_id: int | None = None
    world_size: int | None = None
    backend: str | None = None
    devices: tuple[DeviceInfo, ...] = ()
    captured: tuple[str, ...] = ()
    excerpt: Excerpt | None = None
    origin_utc_ns: int | None = None
    event_count: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class HealthItem:
    """One kind of defect that the reader met, how often, and one example. `severity` is info, warning or error."""

    kind: str
    severity: str
    count: int
    meaning: str
    example: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """Everything that a report shows, in order. The JSON report has a `digest` as well, if there is one."""

    trace: TraceInfo
    window: Window
    verdict: Verdict
    sections: tuple[Section, ...]
    health: tuple[HealthItem, ...] = ()
    schema_version: str = SCHEMA_VERSION
    digest: Digest | None = None

    def section(self, name: str) -> Section | None:
        """The section of this name, None when there is none."""
        return next((section for section in self.sections if section.name == name), None)

    def plot(self) -> Any:
        """The figures of all sections, which a notebook shows (`tracekit.report.notebook.Plots`)."""
        figures = tuple(figure for section in self.sections for figure in section.figures)
        return _renderer("notebook").Plots(figures)

    def __repr__(self) -> str:
        """One line: its trace, and its sections."""
        return f"<Report {self.trace.path}: {', '.join(section.name for section in self.sections)}>"

    def __str__(self) -> str:
        """The verdict, and how to see more; `tracekit.report.terminal.render` gives the whole report."""
        return str(_renderer("terminal").summary(self))

    def _repr_html_(self) -> str:
        return str(_renderer("notebook").report_html(self))


def _renderer(name: str) -> Any:
    """A module that formats a report; all of them stand above the data."""
    return import_module(f"tracekit.report.{name}")
