"""When the ranks of a job were busy, communicated and waited: rows of ranks × bins of time, for a drawing and as data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import polars as pl

from tracekit.analyses.ranks.heat import PARTS
from tracekit.analyses.result import Column
from tracekit.job import Job
from tracekit.names import shorten_name
from tracekit.report.model import Figure, Table

__all__ = ["heat_figure", "heat_table"]

_TITLES: Final = {
    "busy": ("computing or copying", "compute"),
    "communication": ("only communicating, waits included", "exposed communication"),
    "wait": ("waiting in a collective for its last rank", "host wait"),
}
_MOST_ROWS: Final = 32
"""Up to so many ranks have a row each."""
_ALONE: Final = 8
"""Of more ranks, so many that delay others most have a row each, and the others stand in groups."""
_GROUPS: Final = 24
_LONGEST: Final = 20


def heat_figure(job: Job) -> Figure | None:
    """The figure of kind `heat`; None if the ranks were not recorded at one time."""
    if job.heat is None:
        return None
    maps = []
    for part in PARTS:
        label, kind = _TITLES[part]
        rows = []
        for name, places in _rows(job):
            middle, least, most = job.heat.row(part, places)
            spread = {"least": least, "most": most} if len(places) > 1 else {}
            rows.append({"label": name, "ranks": len(places), "percent": middle, **spread})
        maps.append({"label": label, "kind": kind, "rows": rows})
    columns = job.heat.parts[PARTS[0]].shape[1]
    return Figure("heat", "When the ranks worked and waited", "heat", {
        "bin_ns": job.heat.bin_ns, "span_ns": round(job.heat.bin_ns * columns), "maps": maps,
    })  # fmt: skip


def heat_table(job: Job, figure: Figure | None) -> Table | None:
    """The figure as data: one row for each of its rows and parts, with the percentages of its bins."""
    if figure is None or job.heat is None:
        return None
    rows = [
        (part, row["label"], row["ranks"], job.heat.start, round(job.heat.bin_ns), row["percent"])
        for part, one in zip(PARTS, figure.data["maps"], strict=True)
        for row in one["rows"]
    ]
    schema: dict[str, pl.DataType | type[pl.DataType]] = {
        "part": pl.String, "label": pl.String, "ranks": pl.Int64, "start": pl.Int64, "bin_ns": pl.Int64,
        "percent": pl.List(pl.Int64),
    }  # fmt: skip
    columns = [Column(name, name, "text") for name in schema]
    return Table(
        "heat",
        figure.title,
        pl.DataFrame(rows, schema=schema, orient="row"),
        tuple(columns),
        len(rows),
        series=True,
    )


def _rows(job: Job) -> Iterator[tuple[str, list[int]]]:
    """The rows of the figure: what each is called, and the places of its ranks."""
    ranks = job.table["rank"].to_list()
    names = [
        shorten_name(trace, _LONGEST) if rank is None else f"rank {rank}"
        for rank, trace in zip(ranks, job.table["trace"], strict=True)
    ]
    if len(names) <= _MOST_ROWS:
        yield from ((name, [at]) for at, name in enumerate(names))
        return
    late = job.table.sort("caused_ns", descending=True, nulls_last=True)["at"].head(_ALONE).to_list()
    yield from ((names[at], [at]) for at in late)
    size = -(-len(names) // _GROUPS)
    for begin in range(0, len(names), size):
        end = min(begin + size, len(names)) - 1
        both = (
            f"ranks {ranks[begin]} to {ranks[end]}"
            if None not in (ranks[begin], ranks[end])
            else f"{names[begin]} to {names[end]}"
        )
        yield both, list(range(begin, end + 1))
