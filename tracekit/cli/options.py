"""The flags that commands share, each declared once."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Final

import typer

__all__ = [
    "MAX_EVENTS",
    "CommPatterns",
    "ExportKind",
    "ExportTo",
    "FigureFormat",
    "FigureKind",
    "Figures",
    "Format",
    "FormatFlag",
    "MaxEvents",
    "Ncu",
    "NoCache",
    "NoSizeLimit",
    "NvtxDepth",
    "NvtxDomain",
    "NvtxExclude",
    "NvtxInclude",
    "Only",
    "Output",
    "Process",
    "Rank",
    "Sort",
    "Step",
    "TableName",
    "Top",
    "TraceFile",
    "TraceFiles",
    "WindowFlag",
    "WindowKind",
]


class Format(str, Enum):
    """How a result is written."""

    table = "table"
    html = "html"
    json = "json"
    md = "md"
    csv = "csv"
    parquet = "parquet"


class FigureKind(str, Enum):
    """How figures are written."""

    svg = "svg"
    png = "png"
    pdf = "pdf"


class ExportKind(str, Enum):
    """What is exported."""

    frames = "frames"
    chrome = "chrome"


class WindowKind(str, Enum):
    """Which part of the trace is analysed."""

    steps = "steps"
    trace = "trace"


_READ = "Reading"
_SELECT = "Selection"
_WRITE = "Output"

_FORMS = "of PyTorch's profiler (.json, .json.gz) or Nsight Systems (.sqlite, a folder of Parquet files, .nsys-rep)"
TraceFile = Annotated[
    Path, typer.Argument(metavar="TRACE", help=f"A trace {_FORMS}, or the folder of a capture.")
]
TraceFiles = Annotated[
    list[Path], typer.Argument(metavar="TRACE...", help=f"Traces {_FORMS}, or folders of captures.")
]

Rank = Annotated[
    int | None, typer.Option(help="Only the trace of this rank, of several given.", rich_help_panel=_SELECT)
]
Process = Annotated[
    int | None,
    typer.Option(
        metavar="PID",
        help="Only this process, of a file that holds several.",
        rich_help_panel=_SELECT,
    ),
]
Step = Annotated[
    str | None,
    typer.Option(
        metavar="REGEX",
        help="Take annotations that match as steps, instead of ProfilerStep# or inferred ones.",
        rich_help_panel=_SELECT,
    ),
]
WindowFlag = Annotated[
    WindowKind,
    typer.Option(
        "--window",
        help="The activities of all complete steps, or the whole trace (which infers no steps).",
        rich_help_panel=_SELECT,
    ),
]
CommPatterns = Annotated[
    list[str] | None,
    typer.Option(
        "--comm-pattern",
        metavar="REGEX",
        help="Count kernels whose name matches as communication; repeatable.",
        rich_help_panel=_SELECT,
    ),
]
NvtxDepth = Annotated[
    int | None,
    typer.Option(
        "--nvtx-depth",
        min=1,
        help="Of named ranges (NVTX, record_function), only so many levels are layers.",
        rich_help_panel=_SELECT,
    ),
]
NvtxInclude = Annotated[
    list[str] | None,
    typer.Option(
        "--nvtx-include",
        metavar="REGEX",
        help="Only named ranges that match are layers; repeatable.",
        rich_help_panel=_SELECT,
    ),
]
NvtxExclude = Annotated[
    list[str] | None,
    typer.Option(
        "--nvtx-exclude",
        metavar="REGEX",
        help="Named ranges that match are no layers; repeatable.",
        rich_help_panel=_SELECT,
    ),
]
NvtxDomain = Annotated[
    list[str] | None,
    typer.Option(
        "--nvtx-domain",
        metavar="NAME",
        help="Only ranges of this NVTX domain (`default`: the one without a name) are layers; repeatable.",
        rich_help_panel=_SELECT,
    ),
]
Top = Annotated[
    int | None, typer.Option(min=1, max=10**9, help="Rows of each table.", rich_help_panel=_SELECT)
]
Sort = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="Sort tables by this column.", rich_help_panel=_SELECT)
]
TableName = Annotated[
    str | None,
    typer.Option("--table", metavar="NAME", help="Only this table of the analysis.", rich_help_panel=_SELECT),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only", metavar="ANALYSIS", help="Only this analysis; repeatable.", rich_help_panel=_SELECT
    ),
]

FormatFlag = Annotated[
    Format | None,
    typer.Option(
        "--format",
        "-f",
        help="Default: from the suffix of -o, else a table for reading.",
        rich_help_panel=_WRITE,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="Write here instead of stdout.", rich_help_panel=_WRITE
    ),
]
Every = Annotated[
    bool,
    typer.Option(
        "--all", help="Of more than 8 traces, too, the full report of each.", rich_help_panel=_SELECT
    ),
]
Figures = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Also draw the figures into this folder.", rich_help_panel=_WRITE),
]

FigureFormat = Annotated[
    FigureKind, typer.Option("--figure-format", help="How figures are written.", rich_help_panel=_WRITE)
]

ExportTo = Annotated[
    ExportKind,
    typer.Option(
        "--to",
        help="The frames that were read, or the file for Perfetto with tracks of layers and idle time.",
        rich_help_panel=_WRITE,
    ),
]

Ncu = Annotated[
    list[Path] | None,
    typer.Option(
        "--ncu",
        metavar="FILE",
        help="Metrics of Nsight Compute (ncu --csv) of the same program, joined to the kernels; repeatable.",
        rich_help_panel=_READ,
    ),
]

MaxEvents = Annotated[
    int,
    typer.Option(
        "--max-events",
        min=0,
        help="Of a trace with more, read only the steps around its middle that hold as many; 0 reads all.",
        rich_help_panel=_READ,
    ),
]
MAX_EVENTS: Final = 4_000_000
"""About 1.6 GB of JSON, and as much memory."""

NoCache = Annotated[
    bool, typer.Option("--no-cache", help="Neither use nor keep the parsed trace.", rich_help_panel=_READ)
]
NoSizeLimit = Annotated[
    bool,
    typer.Option(
        "--no-size-limit", help="Read a compressed file however much it grows.", rich_help_panel=_READ
    ),
]
