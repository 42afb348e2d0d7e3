"""The tables in the output of `ncu --csv`, which may stand between lines of the program or in a damaged file."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from tracekit.classes import dataclass
from tracekit.errors import UnreadableTraceError, reason_of
from tracekit.health import HealthLog

__all__ = ["NUMBER", "CsvTable", "csv_tables", "numbers", "refuse_decimal_commas"]

_MOST_BYTES: Final = 256 << 20
"""Enough for thousands of kernels with every metric; the whole file is held in memory."""
_MOST_COLUMNS: Final = 20_000
"""Nsight Compute has about a thousand metrics for a device."""
_MOST_TABLES: Final = 1_000

_HEADER: Final = re.compile(rb'^(?:\xef\xbb\xbf)?"?ID"?,[^\n]*"?Kernel Name"?[^\n]*$', re.MULTILINE)
_ROW: Final = re.compile(rb'^(?:"\d*"|\d*),', re.MULTILINE)
_BOM: Final = b"\xef\xbb\xbf"
_NEVER_READ: Final = re.compile(r"Process Name|Host Name|Rule .*|Estimated Speedup.*")
"""Columns with names of programs and machines, and prose."""

NUMBER: Final = r"^\s*([-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,3})?)(?: \(.*\))?\s*$"
"""A number with or without thousands separators; the values of instances may follow in parentheses."""
_DECIMAL_COMMA: Final = r"^[-+]?\d{1,3}(?:[. '’\x{a0}\x{202f}]?\d{3})*,(?:\d{1,2}|\d{4,})$|^\d{1,3}(?:[. '’\x{a0}\x{202f}]\d{3})+,\d+$"

_REMEDY: Final = "write one with ncu --csv --page raw"
_IMPORT: Final = "write its table with ncu --import FILE --csv --page raw"
_FOREIGN: Final = (
    ((b"\x1f\x8b",), "it is compressed", "unpack it first"),
    ((b"\xff\xfe", b"\xfe\xff"), "it is UTF-16", "save it as UTF-8"),
    ((b"SQLite format 3", b"PK\x03\x04", b"\x7fELF", b"\x89PNG"), "it is not a text file", _REMEDY),
)


@dataclass(frozen=True, slots=True, eq=False)
class CsvTable:
    """One table: every column that is read, as text, and True for the details page (one row per metric)."""

    frame: pl.DataFrame
    details: bool


def csv_tables(path: Path, log: HealthLog) -> list[CsvTable]:
    """The tables of the file in order; lines outside tables are counted.

    Raises UnreadableTraceError for a file that cannot be read, is too large, or has no table with kernels.
    """
    data = _content(path).replace(b"\r\n", b"\n")
    heads = list(_HEADER.finditer(data))
    if not heads:
        raise UnreadableTraceError("it holds no Nsight Compute table", path=path, remedy=_REMEDY)
    if len(heads) > _MOST_TABLES:
        raise UnreadableTraceError(f"it holds {len(heads):,} tables", path=path, remedy="split the file")
    log.count("ncu_other_lines", data.count(b"\n", 0, heads[0].start()))
    ends = [*(head.start() for head in heads[1:]), len(data)]
    tables = []
    for head, end in zip(heads, ends, strict=True):
        body = data[head.start() : end].removeprefix(_BOM)
        tables.append(_parsed(_rows(body, log), path))
    if not data.endswith(b"\n") and _ends_early(tables[-1]):
        log.count("truncated_file", 1, "the last row")
        tables[-1] = replace(tables[-1], frame=tables[-1].frame.head(-1))
    return tables


def _ends_early(table: CsvTable) -> bool:
    """True if the last row has no value in the column that ends a row."""
    column = "Metric Value" if table.details else table.frame.columns[-1]
    return table.frame.height > 0 and table.frame[column][-1] is None


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError as error:
        raise UnreadableTraceError("no such file", path=path, remedy="check the path") from error
    except IsADirectoryError as error:
        raise UnreadableTraceError("it is a directory", path=path, remedy="give one CSV file") from error
    except (OSError, ValueError) as error:
        raise UnreadableTraceError(f"it cannot be opened ({reason_of(error)})", path=path) from error
    if not data:
        raise UnreadableTraceError("the file is empty", path=path, remedy=_REMEDY)
    if len(data) > _MOST_BYTES:
        raise UnreadableTraceError(
            f"it is larger than {_MOST_BYTES >> 20} MiB", path=path, remedy="export fewer kernels or metrics"
        )
    for signatures, fault, remedy in _FOREIGN:
        if data.startswith(signatures):
            raise UnreadableTraceError(fault, path=path, remedy=remedy)
    if b"\0" in data[:4096]:
        raise UnreadableTraceError("it is a binary file, maybe a report", path=path, remedy=_IMPORT)
    return data


def _rows(body: bytes, log: HealthLog) -> bytes:
    """The rows of a table alone. A row begins with an ID, which is empty in the row of units, and ends with the first end of a
    line outside quotes. Lines between rows are from the program or from ncu.
    """
    starts = np.array([0, *(row.start() for row in _ROW.finditer(body, body.find(b"\n") + 1))])
    data = np.frombuffer(body, dtype=np.uint8)
    quoted = np.cumsum(data == ord('"'), dtype=np.uint8) & 1  # whether a quote is open after each byte
    lines = np.append(np.flatnonzero(data == ord("\n")), data.size - 1)
    of = np.searchsorted(starts, lines, side="right") - 1
    before = np.where(starts > 0, quoted[starts - 1], 0)
    closes = quoted[lines] == before[of]
    complete, first = np.unique(of[closes], return_index=True)
    if not complete.size or complete[0] != 0:
        return b""  # the header does not end
    ends = lines[closes][first] + 1
    lost = starts.size - complete.size
    torn = bool(lost) and int(complete[-1]) < starts.size - 1
    lost -= torn
    # So little of a row may be left that it does not look like a row.
    torn |= re.fullmatch(rb'"\d*"?', body[int(ends[-1]) :]) is not None
    log.count("truncated_file", int(torn), "the last row")
    log.count("ncu_damaged_row", lost)
    begins = starts[complete]
    if int((ends - begins).sum()) == len(body):
        return body
    rows = [body[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
    gaps = np.append(begins[1:], len(body))
    log.count(
        "ncu_other_lines",
        sum(body.count(b"\n", *gap) for gap in zip(ends.tolist(), gaps.tolist(), strict=True)),
    )
    return b"".join(row if row.endswith(b"\n") else row + b"\n" for row in rows)


def _parsed(body: bytes, path: Path) -> CsvTable:
    line = body.partition(b"\n")[0].decode("utf-8", "replace")
    try:
        header = next(
            csv.reader([line.replace("\r", " ")])
        )  # in the middle of a line it is damage, not the end
    except csv.Error as error:
        raise UnreadableTraceError("its header cannot be parsed", path=path, remedy=_REMEDY) from error
    if len(header) > _MOST_COLUMNS:
        raise UnreadableTraceError(
            f"it has {len(header):,} columns", path=path, remedy="export fewer metrics"
        )
    wanted = [at for at, name in enumerate(header) if name and not _NEVER_READ.fullmatch(name)]
    try:
        frame = pl.read_csv(
            io.BytesIO(body),
            columns=wanted,
            infer_schema=False,
            encoding="utf8-lossy",
            truncate_ragged_lines=True,
        )
    except (pl.exceptions.PolarsError, ValueError) as error:
        # The parser's message may quote the row, with names of programs and machines.
        raise UnreadableTraceError("its table cannot be parsed", path=path, remedy=_REMEDY) from error
    columns = set(frame.columns)
    if not {"ID", "Kernel Name"} <= columns:
        raise UnreadableTraceError("the header of its table is damaged", path=path, remedy=_REMEDY)
    return CsvTable(frame, {"Metric Name", "Metric Unit", "Metric Value"} <= columns)


def refuse_decimal_commas(values: pl.Series, path: Path) -> None:
    """Raise UnreadableTraceError if a number has a decimal comma: 1,234 would be read wrongly."""
    odd = values.filter(values.str.contains(_DECIMAL_COMMA))
    if odd.len():
        raise UnreadableTraceError(
            f"its numbers have decimal commas ({str(odd[0])[:20]})",
            path=path,
            remedy="write it with LC_ALL=C in the environment of ncu",
        )


def numbers(text: pl.Expr) -> pl.Expr:
    """The numbers in a column of text; null for other texts.

    >>> pl.DataFrame({"v": ["4,963,609.5", "n/a", "7 (1; 6)", "1e3"]}).select(numbers(pl.col("v")))["v"].to_list()
    [4963609.5, None, 7.0, 1000.0]
    """
    plain = text.str.extract(NUMBER, 1).str.replace_all(",", "", literal=True)
    value = plain.cast(pl.Float64, strict=False)
    return pl.when(value.is_finite()).then(value)
