"""Tables of runs: CSV or Parquet, with the columns that a description names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.errors import InconclusiveError, UnreadableTraceError, UsageError, nearest
from tracekit.names import clean
from tracekit.predict.describe import CATEGORIES, MAY_BE_ZERO, NUMBERS, WORK, Description
from tracekit.predict.dies import die_of_name, die_of_peak

__all__ = ["Floats", "Runs", "columns_of", "read_runs", "runs_from"]

Floats = npt.NDArray[np.float64]

_MOST_BYTES: Final = 256 << 20
_MOST_ROWS: Final = 2_000_000
_MOST_NAMED: Final = 12


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Rows of runs.

    * `frame`: a column for each role of the description (numbers as Float64, null where the table has none; names as String), for each
      feature, `id` (String), `configuration` (UInt32: rows with the same number are repetitions), and `target` (Float64, in the
      target's unit; absent where the table has none)
    * `left_out`: what was left out, in words
    """

    frame: pl.DataFrame
    description: Description
    left_out: tuple[str, ...] = ()

    @property
    def height(self) -> int:
        """How many rows there are."""
        return self.frame.height

    @property
    def roles(self) -> frozenset[str]:
        """The roles that every row has a value for."""
        known = [name for name in (*NUMBERS, *CATEGORIES) if name in self.frame.columns]
        return frozenset(name for name in known if not self.frame[name].null_count())

    @property
    def target(self) -> Floats:
        """The measured times, in the target's unit."""
        return self.numbers("target")

    @property
    def weights(self) -> Floats:
        """One over the number of repetitions of each row's configuration, so that all configurations weigh the same."""
        found = self.frame.select(1 / pl.len().over("configuration").cast(pl.Float64)).to_series()
        return found.to_numpy()

    @property
    def die_gflops(self) -> Floats:
        """The fp32 peak of one device of each row, GFLOP/s; NaN where neither the table nor the catalogue has one.

        A card of several dies counts as several devices, so the peak of a card is divided among them.
        """
        known = self.description.devices
        if "peak_gflops" in self.frame.columns:
            cards, row = np.unique(self.numbers("peak_gflops"), return_inverse=True)
            dies = [die_of_peak(card, known) if np.isfinite(card) else np.nan for card in cards]
        else:
            names, row = np.unique(np.array(self.names("device")), return_inverse=True)
            dies = [die_of_name(str(name), known) for name in names]
        return np.array(dies, dtype=np.float64)[row]

    def numbers(self, name: str, otherwise: float = float("nan")) -> Floats:
        """A column of numbers; `otherwise` where the table has none."""
        if name not in self.frame.columns:
            return np.full(self.height, otherwise)
        return self.frame[name].cast(pl.Float64).fill_null(otherwise).to_numpy().astype(np.float64)

    def names(self, name: str) -> list[str]:
        """A column of names; empty ones where the table has none."""
        return self.frame[name].fill_null("").to_list() if name in self.frame.columns else [""] * self.height

    def where(self, mask: npt.NDArray[np.bool_]) -> Runs:
        """The rows where the mask is true."""
        return replace(self, frame=self.frame.filter(pl.Series(mask)))


def read_runs(path: Path, description: Description, *, measured: bool = True) -> Runs:
    """The rows of a CSV (also compressed) or a Parquet file, as `runs_from` takes them.

    Raises UnreadableTraceError for a file that is no table, and what `runs_from` raises.
    """
    return runs_from(_read(path), description, path, measured=measured)


def columns_of(path: Path) -> list[str]:
    """The names of a table's columns. Raises UnreadableTraceError for a file that is no table."""
    return _read(path).columns


def runs_from(raw: pl.DataFrame, description: Description, path: Path, *, measured: bool = True) -> Runs:
    """The rows of a table whose columns are texts; `path` is its file, for errors, `measured`: the target has to be there.

    Of measured rows, those whose time is missing, or not above 0, are left out and counted; so are those with a number of a role that is
    not above 0. Of others every row is kept, and such a number is null. Raises UsageError for a column that it does not have,
    InconclusiveError if no row is left.
    """
    wanted = [*description.columns.values(), *description.features, *description.group]
    wanted += [name for name in (description.id, description.target if measured else "") if name]
    for name in wanted:
        if name not in raw.columns:
            remedy = nearest(
                name, raw.columns, f"its columns are {', '.join(map(clean, raw.columns[:_MOST_NAMED]))}"
            )
            raise UsageError(f"there is no column {name!r}", path=path, remedy=remedy)
    columns = [_id(description, raw.height), *_columns(description), _configuration(description)]
    if description.target in raw.columns:
        columns.append(_number(description.target).alias("target"))
    frame = raw.select(columns)
    numbers = [name for name in description.columns if name in NUMBERS and name not in MAY_BE_ZERO]
    if not measured:
        if not frame.height:
            raise InconclusiveError("no row can be used", path=path, remedy="it has no rows")
        return Runs(frame.with_columns(pl.when(pl.col(name) > 0).then(name) for name in numbers), description)
    faults = {f"without a positive {name}": (pl.col(name) <= 0).fill_null(value=False) for name in numbers}
    faults["without a time above 0"] = ~(pl.col("target") > 0).fill_null(value=False)
    left_out = [
        f"{clean(path.name)}: {count} {'row' if count == 1 else 'rows'} {why}"
        for why, count in _counted(frame, faults)
        if count
    ]
    kept = frame.filter(~pl.any_horizontal(*faults.values()))
    if not kept.height:
        raise InconclusiveError(
            "no row can be used", path=path, remedy="; ".join(left_out) or "it has no rows"
        )
    return Runs(kept, description, tuple(left_out))


def _counted(frame: pl.DataFrame, faults: dict[str, pl.Expr]) -> Sequence[tuple[str, int]]:
    return [(why, frame.filter(fault).height) for why, fault in faults.items()]


def _id(description: Description, height: int) -> pl.Expr:
    if description.id:
        return pl.col(description.id).alias("id")
    return pl.int_range(height, eager=False).cast(pl.String).alias("id")


def _columns(description: Description) -> list[pl.Expr]:
    found = [
        (_number(column) if role in NUMBERS else pl.col(column)).alias(role)
        for role, column in description.columns.items()
    ]
    return found + [_number(name).alias(name) for name in description.features]


def _configuration(description: Description) -> pl.Expr:
    columns = (column for role, column in description.columns.items() if role != WORK)
    told_apart = description.group or tuple(dict.fromkeys((*columns, *description.features)))
    return (pl.struct(told_apart).rank("dense") - 1).cast(pl.UInt32).alias("configuration")


def _number(column: str) -> pl.Expr:
    value = pl.col(column).str.strip_chars().cast(pl.Float64, strict=False)
    return pl.when(value.is_finite()).then(value)


def _read(path: Path) -> pl.DataFrame:
    """The table with every column as text, blanks as null."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UnreadableTraceError(
                "the table is larger than 256 MiB", path=path, remedy="keep fewer rows"
            )
        if path.suffix.lower() == ".parquet":
            return pl.read_parquet(BytesIO(path.read_bytes()), n_rows=_MOST_ROWS).cast(pl.String)
        return pl.read_csv(path, infer_schema=False, encoding="utf8-lossy", n_rows=_MOST_ROWS)
    except FileNotFoundError:
        raise UnreadableTraceError("no such file", path=path, remedy="check the path") from None
    except (pl.exceptions.PolarsError, OSError) as error:
        raise UnreadableTraceError(f"it is no table ({str(error).splitlines()[0]})", path=path) from error
