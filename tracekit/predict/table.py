"""Tables of runs: CSV or Parquet, with the columns that a description names."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.classes import dataclass
from tracekit.errors import InconclusiveError, UnreadableTraceError, UsageError, nearest, reason_of
from tracekit.facts.units import count_of
from tracekit.limits import LARGEST_NUMBER
from tracekit.names import clean
from tracekit.panics import panics_as_errors
from tracekit.predict.describe import CATEGORIES, MAY_BE_ZERO, NUMBERS, WORK, Description
from tracekit.predict.dies import die_of_name, die_of_peak

__all__ = ["Floats", "Runs", "columns_of", "read_runs", "runs_from"]

Floats = npt.NDArray[np.float64]

_MOST_BYTES: Final = 256 << 20
_MOST_ROWS: Final = 2_000_000
_MOST_NAMED: Final = 12
_MOST_LACKING: Final = 0.5
_MAY_LACK: Final = frozenset({"option", WORK, "flops", "bytes", "parameters", "bandwidth_gb_s"})
"""Roles that a row may have no value for: no option is one, and the others are used where every row has them."""
_MOST_HEADER: Final = 1 << 20
_GZIP: Final = b"\x1f\x8b"
_PACKED: Final = (_GZIP, b"x\x01", b"x\x9c", b"x\xda", b"\x28\xb5\x2f\xfd")
"""How files begin that Polars would unpack, however large they become."""


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
    """The rows of a CSV (also compressed with gzip) or a Parquet file, as `runs_from` takes them.

    Raises UnreadableTraceError for a file that is no table, and what `runs_from` raises.
    """
    return runs_from(_read(path), description, path, measured=measured)


def columns_of(path: Path) -> list[str]:
    """The names of a table's columns. Raises UnreadableTraceError for a file that is no table."""
    return _read(path).columns


def runs_from(raw: pl.DataFrame, description: Description, path: Path, *, measured: bool = True) -> Runs:
    """The rows of a table whose columns are texts; `path` is its file, for errors, `measured`: the target has to be there.

    Of measured rows, those whose time is missing, or not above 0, are left out and counted; so are those without a value of a role, or with
    a number that is not above 0. A column that most rows have no value in is left out instead. Of others every row is kept, and such a number is null. Raises UsageError for a column that it does not have,
    InconclusiveError if no row is left.
    """
    wanted = [*description.columns.values(), *description.features]
    wanted += (
        [*description.group, description.target] if measured else [description.id] * bool(description.id)
    )
    for name in wanted:
        if name not in raw.columns:
            remedy = nearest(
                name, raw.columns, f"its columns are {', '.join(map(clean, raw.columns[:_MOST_NAMED]))}"
            )
            raise UsageError(f"there is no column {name!r}", path=path, remedy=remedy)
    if measured:
        description, left_out = _with_columns_of_most(raw, description, path)
    columns = [_id(description, raw), *_columns(description), _configuration(description, measured=measured)]
    if description.target in raw.columns:
        columns.append(_number(description.target).alias("target"))
    frame = raw.select(columns)
    numbers = [name for name in description.columns if name in NUMBERS and name not in MAY_BE_ZERO]
    if not measured:
        if not frame.height:
            raise InconclusiveError("no row can be used", path=path, remedy="it has no rows")
        return Runs(frame.with_columns(pl.when(pl.col(name) > 0).then(name) for name in numbers), description)
    told = _told_by_all(description)
    faults = {f"without a positive {name}": (pl.col(name) <= 0).fill_null(name in told) for name in numbers}
    faults |= {f"without {name}": pl.col(name).is_null() for name in told if name not in numbers}
    faults["without a time above 0"] = ~(pl.col("target") > 0).fill_null(value=False)
    left_out += [
        f"{clean(path.name)}: {count_of(count, 'row')} {why}"
        for why, count in _counted(frame, faults)
        if count
    ]
    kept = frame.filter(~pl.any_horizontal(*faults.values()))
    if not kept.height:
        why = "; ".join(each.removeprefix(f"{clean(path.name)}: ") for each in left_out)
        raise InconclusiveError("no row can be used", path=path, remedy=why or "it has no rows")
    return Runs(kept, description, tuple(left_out))


def _told_by_all(description: Description) -> list[str]:
    """The roles and features that a row has to have a value for. Kernels lack the sizes that their operator does not have."""
    kernels = "op" in description.columns
    roles = [
        role for role in description.columns if role not in _MAY_LACK and not (kernels and role in NUMBERS)
    ]
    return [*roles, *description.features]


def _with_columns_of_most(
    raw: pl.DataFrame, description: Description, path: Path
) -> tuple[Description, list[str]]:
    """The description without the columns that most rows have no value in, and these in words."""
    columns = {**description.columns, **{name: name for name in description.features}}
    few = {}
    for name in _told_by_all(description):
        value = _number(columns[name]) if name not in CATEGORIES else pl.col(columns[name])
        if (lack := raw.select(value.is_null().sum()).item()) > _MOST_LACKING * raw.height:
            few[name] = (
                f"{clean(path.name)}: column {clean(columns[name])}, as {lack:,} of {count_of(raw.height, 'row')} lack it"
            )
    return replace(
        description,
        columns={role: column for role, column in description.columns.items() if role not in few},
        features=tuple(name for name in description.features if name not in few),
    ), [*few.values()]


def _counted(frame: pl.DataFrame, faults: dict[str, pl.Expr]) -> Sequence[tuple[str, int]]:
    return [(why, frame.filter(fault).height) for why, fault in faults.items()]


def _id(description: Description, raw: pl.DataFrame) -> pl.Expr:
    taken = {*description.columns.values(), *description.features}
    for name in (
        description.id,
        "" if "id" in taken else "id",
    ):  # questions may have an id where runs had none
        if name and name in raw.columns:  # a column without a name is none
            return pl.col(name).alias("id")
    return pl.int_range(raw.height, eager=False).cast(pl.String).alias("id")


def _columns(description: Description) -> list[pl.Expr]:
    found = [
        (_number(column) if role in NUMBERS else _name(column)).alias(role)
        for role, column in description.columns.items()
    ]
    return found + [_number(name).alias(name) for name in description.features]


def _configuration(description: Description, *, measured: bool) -> pl.Expr:
    columns = (column for role, column in description.columns.items() if role != WORK)
    told_apart = (measured and description.group) or tuple(dict.fromkeys((*columns, *description.features)))
    if not told_apart:
        return pl.lit(0, pl.UInt32).alias("configuration")
    return (pl.struct(map(_name, told_apart)).rank("dense") - 1).cast(pl.UInt32).alias("configuration")


def _number(column: str) -> pl.Expr:
    value = pl.col(column).cast(pl.Float64, strict=False)
    return pl.when((value == 0) | value.abs().is_between(1 / LARGEST_NUMBER, LARGEST_NUMBER)).then(value)


def _name(column: str) -> pl.Expr:
    """A name; a number is the same name with and without its zeros after the point."""
    return pl.col(column).cast(pl.String).str.replace(r"^(-?\d+)\.0+$", "$1")


def _read(path: Path) -> pl.DataFrame:
    """The table with every column as text without blanks around it, null where there is none."""
    data = _bytes(path)
    try:
        if path.suffix.lower() == ".parquet":
            with panics_as_errors():
                raw = pl.read_parquet(BytesIO(data), n_rows=_MOST_ROWS + 1)
        else:
            sign = _separator(data, path)
            raw = pl.read_csv(
                data, infer_schema=False, encoding="utf8-lossy", n_rows=_MOST_ROWS + 1, separator=sign
            )
        texts = raw.select(map(_text, raw)).rename(str.strip)
    except pl.exceptions.PolarsError as error:
        raise UnreadableTraceError(f"it is not a table ({str(error).splitlines()[0]})", path=path) from error
    if raw.height > _MOST_ROWS:
        raise UnreadableTraceError(
            f"the table has more than {_MOST_ROWS:,} rows", path=path, remedy="keep fewer rows"
        )
    return texts


def _text(column: pl.Series) -> pl.Series:
    """A column as text; lists and the like have none."""
    if column.dtype.is_nested() or column.dtype in (pl.Binary, pl.Object):
        return pl.repeat(None, column.len(), dtype=pl.String, eager=True).alias(column.name)
    return column.cast(pl.String).str.strip_chars().replace("", None)


def _separator(data: bytes, path: Path) -> str:
    """What stands between the names of a CSV: a comma, else a semicolon or a tab."""
    line = data[:_MOST_HEADER].partition(b"\n")[0]
    if len(line) == _MOST_HEADER or data.startswith(_PACKED):
        raise UnreadableTraceError(
            "it is not a table", path=path, remedy="give a CSV, also compressed with gzip, or a .parquet file"
        )
    return next((sign for sign in ",;\t" if sign.encode() in line), ",")


def _bytes(path: Path) -> bytes:
    """What is in the file, unpacked if it is a gzip file."""
    try:
        with path.open("rb") as file:
            packed = file.read(len(_GZIP)) == _GZIP
            file.seek(0)
            data = (gzip.GzipFile(fileobj=file) if packed else file).read(_MOST_BYTES + 1)
    except FileNotFoundError:
        raise UnreadableTraceError("no such file", path=path, remedy="check the path") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UnreadableTraceError(f"it cannot be read ({reason_of(error)})", path=path) from error
    if len(data) > _MOST_BYTES:
        raise UnreadableTraceError("the table is larger than 256 MiB", path=path, remedy="keep fewer rows")
    return data
