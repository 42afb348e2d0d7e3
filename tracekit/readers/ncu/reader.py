"""Nsight Compute's metrics of single kernels, from the output of `ncu --csv`: the details page and the raw page.

The details page has one row per kernel and metric with labels ("Achieved Occupancy"), or with the names given
by --metrics; the raw page has one row per kernel, a column per metric, and below the header a row of units. Units are
converted to bytes, nanoseconds, fractions and hertz by one table (`tracekit.readers.ncu.units`). Names of programs and
machines are never read.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

import polars as pl

from tracekit.classes import dataclass
from tracekit.counted_work import WORK_SCHEMA, work_of
from tracekit.errors import UnreadableTraceError
from tracekit.facts.gpu_metrics import DURATIONS, REGISTERS
from tracekit.health import HealthLog
from tracekit.readers.ncu.csv_table import CsvTable, csv_tables, numbers, refuse_decimal_commas
from tracekit.readers.ncu.units import DETAILS_NAMES, base_unit
from tracekit.trace import Schema

__all__ = ["KERNEL_SCHEMA", "METRIC_SCHEMA", "NcuReport", "read_ncu", "values_as_counters"]

KERNEL_SCHEMA: Final[Schema] = {
    "profile_id": pl.Int64,  # the row number: launches in the order in which they were measured
    "table": pl.Int64,  # the number of the table in the file
    "id": pl.Int64,  # as printed
    "process_id": pl.Int64,
    "name": pl.String,
    "grid": pl.String,  # [x, y, z], as in a trace
    "block": pl.String,
    "device_id": pl.Int64,
    "stream_id": pl.Int64,
    "compute_capability": pl.String,
    "duration_ns": pl.Int64,  # of the measured launch, at the clocks that ncu sets
    "registers": pl.Int64,  # per thread
    **WORK_SCHEMA,
}
METRIC_SCHEMA: Final[Schema] = {
    "profile_id": pl.Int64,
    "section": pl.String,  # of the details page
    "metric": pl.String,  # the raw page's name if it is known, else as printed
    "unit": pl.String,  # base unit
    "value": pl.Float64,
}

_IDENTITY: Final = {
    "ID": "id",
    "Process ID": "process_id",
    "Kernel Name": "name",
    "Grid Size": "grid",
    "Block Size": "block",
    "Device": "device_id",
    "Stream": "stream_id",
    "CC": "compute_capability",
}
_NO_METRICS: Final = frozenset({*_IDENTITY, "Context", "Kernel Time", "Section Name"})
_OF_MACHINE: Final = r"^(device|c2clink|nvlink|numa|profiler)__"
"""Columns of the raw page that newer versions add about the machine and the tool: the same for each kernel, and no metric."""
_SIZES: Final = r"(\d+)\D+(\d+)\D+(\d+)"


@dataclass(frozen=True, slots=True, eq=False)
class NcuReport:
    """The measurements of Nsight Compute, kernel by kernel."""

    path: str
    page: str  # `details` or `raw`: the page of the first table
    kernels: pl.DataFrame  # one row per measured launch (KERNEL_SCHEMA)
    metrics: pl.DataFrame  # all numbers in long form (METRIC_SCHEMA)
    health: pl.DataFrame  # rows and lines that were left out (HEALTH_SCHEMA)


def read_ncu(path: str | os.PathLike[str]) -> NcuReport:
    """Read the output of `ncu --csv`, also if it contains output of the program.

    Several tables in one file (of several calls of ncu) stay apart: each counts its launches anew. Raises
    UnreadableTraceError if the file cannot be read, has no table with kernels, or has numbers with decimal commas.
    """
    file, log = Path(path), HealthLog()
    tables = csv_tables(file, log)
    identities: list[pl.DataFrame] = []
    metrics: list[pl.DataFrame] = []
    launches = 0
    for number, table in enumerate(tables):
        who, what = (_details if table.details else _raw)(table, file, log)
        identities.append(who.with_columns(pl.lit(number).alias("table"), pl.col("profile_id") + launches))
        metrics.append(what.with_columns(pl.col("profile_id") + launches))
        launches += who.height
    if not launches:
        raise UnreadableTraceError("its table holds no kernel", path=file, remedy="see the messages of ncu")
    long = pl.concat(metrics).select(pl.col(name).cast(kind) for name, kind in METRIC_SCHEMA.items())
    return NcuReport(
        path=os.fspath(path),
        page="details" if tables[0].details else "raw",
        kernels=_with_work(pl.concat(identities, how="diagonal"), long),
        metrics=long,
        health=log.frame(),
    )


def values_as_counters(metrics: pl.DataFrame) -> pl.Expr:
    """The column `value` of `metrics` in the units of CUPTI's counters, whose shares are percent."""
    share = (pl.col("value") * 100).round(9)
    return pl.when(metrics["unit"] == "fraction").then(share).otherwise("value").alias("value")


def _details(table: CsvTable, path: Path, log: HealthLog) -> tuple[pl.DataFrame, pl.DataFrame]:
    rows = _with_ids(table.frame, log)
    same = ["id", "process_id"]
    kernels = rows.group_by(same, maintain_order=True).agg(
        pl.col(name).first() for name in _IDENTITY.values() if name not in same
    )
    kernels = _with_sizes(
        kernels.with_row_index("profile_id").with_columns(pl.col("profile_id").cast(pl.Int64))
    )
    # Rows without a metric belong to rules: advice in prose.
    rows = rows.filter(pl.col("Metric Name").str.len_chars() > 0)
    refuse_decimal_commas(rows["Metric Value"], path)
    units = _units(rows["Metric Unit"].unique().drop_nulls().to_list())
    labels = [(label, unit, name) for (label, unit), name in DETAILS_NAMES.items()]
    names = pl.DataFrame(labels, schema=["Metric Name", "unit", "metric"], orient="row")
    section = pl.col("Section Name") if "Section Name" in rows.columns else pl.lit(None, dtype=pl.String)
    values = (
        rows.join(units, left_on="Metric Unit", right_on="printed", how="left", maintain_order="left")
        .join(names, on=["Metric Name", "unit"], how="left", maintain_order="left")
        .join(kernels.select("profile_id", *same), on=same, nulls_equal=True, maintain_order="left")
        .select(
            "profile_id",
            section.alias("section"),
            pl.coalesce("metric", "Metric Name").alias("metric"),
            "unit",
            (numbers(pl.col("Metric Value")) * pl.col("factor").fill_null(1.0)).alias("value"),
        )
    )
    return kernels, _numbers_only(values)


def _raw(table: CsvTable, path: Path, log: HealthLog) -> tuple[pl.DataFrame, pl.DataFrame]:
    frame = table.frame
    names = [name for name in frame.columns if name not in _NO_METRICS and not re.match(_OF_MACHINE, name)]
    # The row below the header holds units and has no ID.
    has_units = frame.height > 0 and not (frame["ID"][0] or "").strip()
    printed = dict(zip(frame.columns, frame.row(0), strict=True)) if has_units else {}
    rows = _with_ids(frame.slice(1) if has_units else frame, log)
    units = {name: base_unit(str(printed.get(name) or "")) for name in names}
    rows = rows.with_row_index("profile_id").with_columns(pl.col("profile_id").cast(pl.Int64))
    for name in names:
        refuse_decimal_commas(rows[name], path)
    values = rows.select("profile_id", *(numbers(pl.col(name)) * units[name][1] for name in names))
    long = values.unpivot(index="profile_id", variable_name="metric", value_name="value")
    of = pl.DataFrame(
        {"metric": names, "unit": [units[name][0] for name in names]},
        schema_overrides={"metric": pl.String, "unit": pl.String},
    )
    metrics = long.join(of, on="metric", how="left", maintain_order="left").select(
        "profile_id",
        pl.lit(None, dtype=pl.String).alias("section"),
        "metric",
        "unit",
        pl.col("value").cast(pl.Float64),
    )
    return _with_sizes(rows.select("profile_id", *_IDENTITY.values())), _numbers_only(metrics)


def _with_ids(frame: pl.DataFrame, log: HealthLog) -> pl.DataFrame:
    """The rows of kernels, with the columns of `_IDENTITY` and of the table; other rows are counted."""
    identity = [
        (pl.col(column) if column in frame.columns else pl.lit(None, dtype=pl.String)).alias(name)
        for column, name in _IDENTITY.items()
    ]
    rows = frame.with_columns(identity).with_columns(
        pl.col("id", "process_id", "device_id", "stream_id").cast(pl.Int64, strict=False)
    )
    kernels = rows.filter(pl.col("id").is_not_null() & pl.col("name").is_not_null())
    log.count("ncu_damaged_row", rows.height - kernels.height)
    return kernels


def _with_sizes(kernels: pl.DataFrame) -> pl.DataFrame:
    """Grid and block as in a trace; null for a text without three numbers."""
    texts = [
        pl.format("[{}, {}, {}]", *(pl.col(name).str.extract(_SIZES, part) for part in (1, 2, 3))).alias(name)
        for name in ("grid", "block")
    ]
    return kernels.with_columns(texts)


def _units(printed: list[str]) -> pl.DataFrame:
    rows = [(unit, *base_unit(unit)) for unit in printed]
    schema = {"printed": pl.String, "unit": pl.String, "factor": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _numbers_only(values: pl.DataFrame) -> pl.DataFrame:
    """The rows with a number, one row per kernel and metric."""
    kept = values.drop_nulls("value").with_columns(pl.col("unit").fill_null(""))
    return kept.unique(["profile_id", "metric", "unit"], keep="first", maintain_order=True)


def _with_work(kernels: pl.DataFrame, metrics: pl.DataFrame) -> pl.DataFrame:
    rows = metrics.with_columns(values_as_counters(metrics), pl.col("metric").alias("series")).join(
        kernels.select("profile_id", "name"), on="profile_id", how="left", maintain_order="left"
    )
    work = work_of(rows, ["profile_id", "name"]).drop("name")
    plain = metrics.group_by("profile_id").agg(
        *(
            pl.coalesce(*(pl.col("value").filter(pl.col("metric") == name).first() for name in wanted))
            .round()
            .cast(pl.Int64, strict=False)
            .alias(column)
            for column, wanted in (("duration_ns", DURATIONS), ("registers", (REGISTERS,)))
        )
    )
    joined = kernels.join(work, on="profile_id", how="left", maintain_order="left").join(
        plain, on="profile_id", how="left", maintain_order="left"
    )
    return joined.select(pl.col(name).cast(kind) for name, kind in KERNEL_SCHEMA.items())
