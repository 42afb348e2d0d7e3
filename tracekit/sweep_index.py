"""`index.parquet`: the runs of a sweep, one row each, with their settings and what was measured.

`tracekit.capture.sweep` writes it after every run, and `tracekit.report.characterize` reads it.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any, Final, Literal, get_args

import polars as pl

from tracekit.errors import UnreadableTraceError, UsageError

__all__ = [
    "ASKED",
    "DONE",
    "INDEX_FILE",
    "MEASURED",
    "OUT_OF_MEMORY",
    "SCHEMA",
    "SKIPPED",
    "STATUSES",
    "Status",
    "index_of",
    "read_index",
]

INDEX_FILE: Final = "index.parquet"

Status = Literal["done", "out of memory", "failed", "skipped"]
STATUSES: Final[tuple[Status, ...]] = get_args(Status)
DONE: Final = "done"
OUT_OF_MEMORY: Final = "out of memory"
SKIPPED: Final = "skipped"

ASKED: Final[dict[str, pl.DataType]] = {
    "key": pl.String(),
    "series": pl.String(),
    "workload": pl.String(),
    "device": pl.String(),
    "batch": pl.Int64(),
    "size": pl.Int64(),
    "precision": pl.String(),
    "compile": pl.Boolean(),
    "channels_last": pl.Boolean(),
    "checkpoint_activations": pl.Boolean(),
    "accumulate": pl.Int64(),
    "workers": pl.Int64(),
    "threads": pl.Int64(),
    "pin_memory": pl.Boolean(),
    "tiny": pl.Boolean(),
    "max_rows": pl.Int64(),
    "ranks": pl.Int64(),
    "parallel": pl.String(),
    "seed": pl.Int64(),
    "real_data": pl.Boolean(),
    "levels": pl.String(),
    "steps": pl.Int64(),
    "warmup": pl.Int64(),
}
"""What was asked for. `key` is a hash of the workload, all its settings, the profiler's options, the levels and the
place of the data; `series` is the same hash without the batch. Null leaves the choice to the workload, or to torch."""

MEASURED: Final[dict[str, pl.DataType]] = {
    "status": pl.String(),
    "error": pl.String(),
    "device_name": pl.String(),
    "step_median_ns": pl.Float64(),
    "step_trimmed_mean_ns": pl.Float64(),
    "step_min_ns": pl.Int64(),
    "profiling_overhead": pl.Float64(),
    "samples_per_step": pl.Int64(),
    "throughput_per_s": pl.Float64(),
    "flops_per_step": pl.Int64(),
    "peak_memory_bytes": pl.Int64(),
    "parameters": pl.Int64(),
    "folder": pl.String(),
    "seconds": pl.Float64(),
    "tracekit_version": pl.String(),
}
"""What came of it; figures are null where they were not measured. Step times are of the level M, of the slowest rank
of each step; `profiling_overhead` is the median step of the level MLG over that of M. `throughput_per_s` is samples a
second. `flops_per_step` is of one rank. `peak_memory_bytes` is the most on one device, at level M where that was run.
`folder` is relative to the index. `seconds` is how long the process took, with its start."""

SCHEMA: Final[dict[str, pl.DataType]] = {**ASKED, **MEASURED}


def index_of(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """The rows as an index with the columns of `SCHEMA`; what a row lacks is null."""
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def read_index(folder: Path) -> pl.DataFrame:
    """The index of the sweep in `folder`: the columns of `SCHEMA`, one row per run.

    Raises `UnreadableTraceError` when there is none or it is damaged, and `UsageError` when its columns are others,
    because another version of tracekit, or another program, wrote it.
    """
    path = folder / INDEX_FILE
    try:
        # Polars would take brackets in the name of a folder for a pattern, so it gets the content.
        index = pl.read_parquet(BytesIO(path.read_bytes()))
    except (FileNotFoundError, NotADirectoryError):
        raise UnreadableTraceError(
            "there is no such file", path=path, remedy="name the folder of a tracekit sweep"
        ) from None
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = " ".join(str(error).split())[:120]
        raise UnreadableTraceError(f"not a readable Parquet file ({reason})", path=path) from error
    if dict(index.schema) != SCHEMA:
        raise UsageError(
            "its columns are not those of a sweep's index of this version",
            path=path,
            remedy="choose another folder, or move the file away",
        )
    return index
