"""`index.parquet`: the runs of a sweep, one row each, with their settings and what was measured.

`tracekit.capture.sweep` writes it after every run, and `tracekit.report.characterize` reads it.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any, Final, Literal, get_args

import polars as pl

from tracekit.errors import UnreadableTraceError, UsageError, reason_of
from tracekit.facts.capture_names import INDEX_FILE
from tracekit.files import read_small
from tracekit.panics import panics_as_errors

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
    "typed",
]

Status = Literal["done", "out of memory", "failed", "skipped"]
STATUSES: Final[tuple[Status, ...]] = get_args(Status)
DONE: Final = "done"
OUT_OF_MEMORY: Final = "out of memory"
SKIPPED: Final = "skipped"

_TYPES: Final = {"text": pl.String(), "int": pl.Int64(), "float": pl.Float64(), "flag": pl.Boolean()}


def typed(columns: str) -> dict[str, pl.DataType]:
    """A schema from a text: names with commas, each with its type."""
    return {name: _TYPES[kind] for name, kind in map(str.split, columns.split(","))}


ASKED: Final = typed(
    "key text, series text, workload text, device text, batch int, size int, precision text, compile flag, "
    "channels_last flag, checkpoint_activations flag, accumulate int, workers int, threads int, "
    "pin_memory flag, tiny flag, max_rows int, ranks int, parallel text, seed int, real_data flag, "
    "levels text, steps int, warmup int"
)
"""What was asked for. `key` is a hash of the workload, all its settings, the profiler's options, the levels and the
place of the data; `series` is the same hash without the batch and the seed. Null leaves the choice to the workload, or to torch."""

MEASURED: Final = typed(
    "status text, error text, device_name text, step_median_ns float, step_trimmed_mean_ns float, "
    "step_min_ns int, profiling_overhead float, samples_per_step int, throughput_per_s float, "
    "flops_per_step int, peak_memory_bytes int, parameters int, folder text, seconds float, "
    "tracekit_version text"
)
"""What came of it; figures are null where they were not measured. Step times are of the level M, of the slowest rank
of each step; `profiling_overhead` is the median step of the level MLG over that of M. `throughput_per_s` is samples a
second. `flops_per_step` is of one rank. `peak_memory_bytes` is the most on one device, at level M where that was run.
`folder` is relative to the index. `seconds` is how long the process took, with its start."""

_LARGEST: Final = 256 << 20
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
        with panics_as_errors():
            index = pl.read_parquet(BytesIO(read_small(path, at_most=_LARGEST)))
    except (FileNotFoundError, NotADirectoryError):
        raise UnreadableTraceError(
            "there is no such file", path=path, remedy="name the folder of a tracekit sweep"
        ) from None
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = " ".join(reason_of(error).split())[:120]
        raise UnreadableTraceError(f"not a readable Parquet file ({reason})", path=path) from error
    if dict(index.schema) != SCHEMA:
        raise UsageError(
            "its columns are not those of a sweep's index of this version",
            path=path,
            remedy="choose another folder, or move the file away",
        )
    return index
