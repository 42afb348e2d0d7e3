"""The part of an export that is copied: the tables and columns that tracekit reads, of programs that worked on a
device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import polars as pl

from tracekit.classes import dataclass
from tracekit.groups import at_rows
from tracekit.readers.nsys import vocabulary as facts
from tracekit.readers.nsys.columns import COLUMNS, STRING_COLUMNS
from tracekit.readers.nsys.ids import Texts, process_of
from tracekit.readers.nsys.pages import DTYPES, ColumnKind
from tracekit.readers.nsys.payloads import Payloads
from tracekit.readers.nsys.tables import Tables
from tracekit.scrub.words import Cleaner
from tracekit.scrub.write import Writer

__all__ = ["Kept", "copied"]

_STRINGS, _THREADS, _SAMPLES, _CHAINS = "StringIds", "ThreadNames", "COMPOSITE_EVENTS", "SAMPLING_CALLCHAINS"
_PROCESS: Final[dict[str, ColumnKind]] = {"globalPid": "int"}
_DEVICE_TABLES: Final = (facts.KERNEL_TABLE, facts.MEMCPY_TABLE, facts.MEMSET_TABLE, facts.GRAPH_TABLE)
_EVENT_TYPES: Final = (
    *(*facts.NESTED_RANGES, *facts.SPANNING_RANGES, *facts.MARKS),
    *(facts.NAMED_THREAD, facts.DOMAIN_CREATED),
)
_VERSION: Final = r"\d{1,4}(?:\.\d{1,6}){1,4}"
_METADATA_ROWS: Final = (
    rf"^(?:EXPORT_PRODUCT_NAME=NVIDIA Nsight Systems|EXPORT_PRODUCT_VERSION={_VERSION}|EXPORT_SCHEMA_VERSION={_VERSION}"
    rf"|{facts.NORMALISED_TIMES}=(?:true|false))$"
)
"""The rows of metadata in the copy, as NAME=VALUE."""

_THREAD: Final = "thread"
_THREAD_ID: Final = -1
"""The number of that string; no string of nsys has one below 0."""
_THREAD_NAMES: Final = (
    r"^(?:|MPI Rank \d{1,9}|NCCL [\w ]{1,20}|CUPTI worker th(?:read)?|cuda-EvtHandlr|cuda[0-9a-f]{8,11}"
    r"|pt_(?:main_thread|autograd_\d+|data_(?:worker|pin)|thread_pool|elastic|tcpstore_uv|nccl_\w{1,9}|gloo_\w{1,9})"
    r"|\[NSys(?: Comms)?\]|\*\d(?:Comm|Worker|MainService|TaskRunner|AnalysisServi|CommsProcesso)|nsys(?:-launcher|-tee)?"
    r"|python[\d.]{0,5}|pytest|torchrun|julia|java|node|jemalloc_bg_thd)$"
)
"""Names that PyTorch, CUDA, NCCL, MPI, nsys and interpreters give their threads."""


@dataclass(frozen=True)
class Kept:
    """The rows and columns of a table in the copy and in the original, and the number of replaced texts."""

    table: str
    rows: int
    rows_before: int
    columns: int
    columns_before: int
    replaced: int


def copied(tables: Tables, writer: Writer, cleaner: Cleaner, progress: Callable[[str], None]) -> list[Kept]:
    """Write the copy and return its tables. Raises UnreadableTraceError if the export is damaged."""
    copy, kept = _Copy(tables, cleaner), []
    for table in COLUMNS:
        if wanted := copy.wanted(table):
            progress(table)
            rows, before = 0, cleaner.replaced
            writer.begin(table, {name: DTYPES[kind] for name, kind in wanted.items()})
            for page in copy.pages(table):
                writer.add(page.select(list(wanted)))
                rows += page.height
            writer.end()
            there = tables.columns(table)
            columns = len(there & wanted.keys()), len(there)
            kept.append(Kept(table, rows, tables.count(table), *columns, cleaner.replaced - before))
    return kept


class _Copy:
    """One run over the tables, in the order of COLUMNS."""

    def __init__(self, tables: Tables, cleaner: Cleaner) -> None:
        self._tables, self._cleaner = tables, cleaner
        self._payloads = Payloads(tables)
        self._processes = _on_devices(tables)
        self._ids: dict[str, list[pl.Series]] = {_CHAINS: [], _STRINGS: [pl.Series([_THREAD_ID])]}
        """The ids in the copy, for tables of which only referenced rows are copied."""

    def wanted(self, table: str) -> dict[str, ColumnKind]:
        """The columns of a table in the copy; empty if the table is left out."""
        there = self._tables.columns(table)
        columns = {name: kind for name, kind in COLUMNS.get(table, {}).items() if name in there}
        # What payloads and the names of threads become stands in columns that an old version may lack.
        return dict(COLUMNS[table]) if columns and table in facts.NVTX_TABLES else columns

    def pages(self, table: str) -> Iterator[pl.DataFrame]:
        """The rows of a table that are kept, with all columns that the reader reads."""
        columns = COLUMNS[table]
        binary = self._payloads.columns if table in facts.NVTX_TABLES else {}
        texts = (
            [] if table in facts.METADATA_TABLES else [name for name in columns if columns[name] == "text"]
        )
        by_people = table in (
            *facts.NVTX_TABLES,
            _STRINGS,
        )  # others hold what NVIDIA calls devices and metrics
        named = _sorted(self._ids[table]) if table in self._ids else None
        if table == _STRINGS:
            yield pl.DataFrame({"id": [_THREAD_ID], "value": [_THREAD]})
        for page in self._tables.pages(table, {**columns, **binary}):
            rows = page if named is None else page.filter(_standing_in(page["id"], named))
            rows = self._kept(table, rows)
            rows = rows.with_columns(self._cleaner.cleaned(rows[name], by_people=by_people) for name in texts)
            self._ids[_STRINGS] += [rows[name].unique() for name in columns if name in STRING_COLUMNS]
            yield rows
        self._ids[_STRINGS] = [_sorted(self._ids[_STRINGS])]

    def _kept(self, table: str, rows: pl.DataFrame) -> pl.DataFrame:
        process = next((name for name in ("globalTid", "globalPid") if name in rows.columns), None)
        if process and self._processes:
            rows = rows.filter(process_of(process).is_in(self._processes).fill_null(value=True))
        if table in facts.NVTX_TABLES:
            return self._ranges(table, rows)
        if table in facts.METADATA_TABLES:
            return rows.filter(pl.format("{}={}", "name", "value").str.contains(_METADATA_ROWS))
        if table == _THREADS:
            other = self._is_other(Texts(self._tables, table, "nameId").strings(rows["nameId"]))
            return rows.with_columns(pl.when(other).then(_THREAD_ID).otherwise("nameId").alias("nameId"))
        if table == _SAMPLES:
            self._ids[_CHAINS].append(rows["id"])
        return rows

    def _ranges(self, table: str, rows: pl.DataFrame) -> pl.DataFrame:
        """Ranges, marks, and names of threads and domains; the numbers of binary payloads become text of JSON."""
        rows = rows.filter(pl.col("eventType").is_in(_EVENT_TYPES))
        threads = rows["eventType"] == facts.NAMED_THREAD
        if threads.any():
            ids = rows.select(pl.when(threads).then("textId")).to_series()
            names = rows.select(
                pl.coalesce("text", Texts(self._tables, table, "textId").strings(ids))
            ).to_series()
            other = self._is_other(pl.select(pl.when(threads).then(names)).to_series())
            name = (
                pl.when(other).then(pl.lit(_THREAD)).when(threads).then(names).otherwise("text").alias("text")
            )
            rows = rows.with_columns(name, pl.when(~threads).then("textId").alias("textId"))
        payload_texts = self._payloads.of(rows).cast(pl.String)
        return rows.with_columns(pl.coalesce("jsonText", payload_texts).alias("jsonText"))

    def _is_other(self, names: pl.Series) -> pl.Series:
        """Which names of threads do not come from a runtime."""
        other = ~names.str.contains(_THREAD_NAMES).fill_null(value=True)
        self._cleaner.replaced += int(other.sum())
        return other


def _on_devices(tables: Tables) -> list[int]:
    """The processes that worked on a device; empty if the file does not name them."""
    processes = [pl.Series(dtype=pl.Int64)]
    for table in _DEVICE_TABLES:
        processes += [
            page.select(process_of("globalPid").unique()).to_series()
            for page in tables.pages(table, _PROCESS)
        ]
    return _sorted(processes).to_list()


def _sorted(ids: list[pl.Series]) -> pl.Series:
    return (
        pl.concat([pl.Series(dtype=pl.Int64), *(one.rename("") for one in ids)]).drop_nulls().unique().sort()
    )


def _standing_in(ids: pl.Series, values: pl.Series) -> pl.Series:
    """Which ids are among `values`, which are sorted: a binary search for each id, because a join would hash all
    values.
    """
    if not values.len():
        return pl.Series([False]).new_from_index(0, ids.len())
    at = values.search_sorted(ids.fill_null(0)).clip(0, values.len() - 1)
    return (at_rows(values, at) == ids).fill_null(value=False)
