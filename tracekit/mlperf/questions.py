"""A table of configurations to forecast, and the table of answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any, Final

import polars as pl

from tracekit.errors import UnreadableTraceError, UsageError
from tracekit.facts.units import count_of
from tracekit.mlperf.cells import Cell, series_of
from tracekit.mlperf.forecast import Question, benchmark_of, forecast
from tracekit.mlperf.results import round_of
from tracekit.names import clean
from tracekit.trace import Schema

__all__ = ["ANSWERS", "answers_of", "borrowed", "read_questions"]

ANSWERS: Final[Schema] = {
    "id": pl.String, "predicted": pl.Float64, "low": pl.Float64, "high": pl.Float64, "batch": pl.Int64, "epochs": pl.Float64, "from_chips": pl.Int64,
    "from_series": pl.String, "same_system": pl.Boolean,
}  # fmt: skip
"""Columns of the answers: `predicted`, `low` and `high` are minutes, null where nothing is known. `same_system`: `from_series`, from whose results it is
answered, is of the system, organisation and round that were asked for."""
_NAMES: Final = {
    "id": ("id", "cell", "name"),
    "organisation": ("organisation", "org", "submitter"),
    "system": ("system",),
    "benchmark": ("benchmark",),
    "accelerators": ("accelerators", "chips"),
    "batch": ("batch", "global_batch"),
    "epochs": ("epochs",),
    "last_epoch": ("last_epoch",),
    "round": ("round",),
}
"""How a column may be called."""

_NUMBERS: Final = {
    "accelerators": "number of chips",
    "batch": "batch",
    "epochs": "number of epochs",
    "last_epoch": "number of an epoch",
}
"""The columns of numbers, and what their values are."""
_MOST: Final = 10**12
"""Chips, samples of a batch or epochs: no run has so many."""


def read_questions(path: Path) -> list[dict[str, Any]]:
    """The rows of a CSV: `benchmark` and `accelerators` (chips), and `id`, `organisation`, `system`, `round`, `batch`, and `epochs` or `last_epoch` (the
    number that the last evaluation carries) where they are given.

    Raises UnreadableTraceError for what is no table, and UsageError if a column or a value is missing.
    """
    try:
        frame = pl.read_csv(path, infer_schema_length=None)
    except FileNotFoundError as error:
        raise UnreadableTraceError("no such file", path=path, remedy="check the path") from error
    except (pl.exceptions.PolarsError, OSError) as error:
        raise UnreadableTraceError(f"it is not a CSV ({str(error).splitlines()[0]})", path=path) from error
    frame = _plain(frame)
    chosen = {
        name: next((each for each in words if each in frame.columns), None) for name, words in _NAMES.items()
    }
    for name in ("benchmark", "accelerators"):
        if chosen[name] is None:
            raise UsageError(
                f"it has no column {name}", path=path, remedy="give benchmark and accelerators for each row"
            )
    rows = frame.select(pl.col(column).alias(name) for name, column in chosen.items() if column is not None)
    _refuse(rows["benchmark"].is_not_null(), "no benchmark", path)
    for name in _NUMBERS:
        if name in rows.columns:
            rows = rows.with_columns(_numbers(rows[name], path))
    return [{"id": number, **row} for number, row in enumerate(rows.iter_rows(named=True))]


def _numbers(column: pl.Series, path: Path) -> pl.Series:
    """The column as numbers; but for the number of chips they may be missing. Raises UsageError for what is none, or no possible one."""
    chips = column.name == "accelerators"
    numbers = column.cast(pl.Float64, strict=False)
    least = (
        numbers >= 0 if column.name == "last_epoch" else numbers > 0
    )  # the number of an epoch may count from 0
    good = (numbers.is_finite() & least & (not chips or numbers == numbers.floor())).fill_null(value=False)
    _refuse(good if chips else good | column.is_null(), f"no {_NUMBERS[column.name]}", path)
    _refuse((numbers <= _MOST).fill_null(value=True), f"{column.name} beyond {_MOST:,}", path)
    return numbers


def _plain(frame: pl.DataFrame) -> pl.DataFrame:
    """The table with titles in small letters, and titles and texts without spaces around them; an empty text is no value."""
    titles = {title: title.strip().lower() for title in frame.columns}
    if len(set(titles.values())) == len(titles):
        frame = frame.rename(titles)
    stripped = pl.col(pl.String).str.strip_chars()
    return frame.with_columns(pl.when(stripped != "").then(stripped))


def _refuse(good: pl.Series, fault: str, path: Path) -> None:
    """Raise UsageError for the first row that is not good."""
    if not good.all():
        place = good.fill_null(value=False).arg_min() or 0
        raise UsageError(
            f"row {place + 1:,} below the titles has {fault}",
            path=path,
            remedy="correct it, or leave the row out",
        )


def answers_of(cells: Sequence[Cell], rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """One row per question, in their order (`ANSWERS`)."""
    return pl.DataFrame([_answer(cells, row) for row in rows], schema=ANSWERS, orient="row")


def _answer(cells: Sequence[Cell], row: Mapping[str, Any]) -> dict[str, object]:
    question = Question(
        benchmark=str(row["benchmark"]),
        accelerators=int(row["accelerators"]),
        batch=None if row.get("batch") is None else max(int(row["batch"]), 1),
        epochs=row.get("epochs"),
        organisation=str(row.get("organisation") or ""),
        system=str(row.get("system") or ""),
        round=_round(row.get("round")),
    )
    if question.epochs is None and (last := row.get("last_epoch")) is not None:
        question = replace(question, epochs=_true_epochs(cells, question, last))
    found = forecast(cells, question)
    minutes = (None,) * 3 if found is None else (found.seconds / 60, found.low / 60, found.high / 60)
    known = (
        (None,) * 5
        if found is None
        else (found.batch, found.epochs, found.from_chips, clean(found.series), found.own)
    )
    values = (clean(str(row["id"])), *minutes, *known)
    return dict(zip(ANSWERS, values, strict=True))


def borrowed(answers: pl.DataFrame) -> Iterator[str]:
    """Of answers that are from results of another system, organisation or round than was asked for, how many and from which, a sentence for each series."""
    for series, count in (
        answers.filter(~pl.col("same_system")).group_by("from_series", maintain_order=True).len().rows()
    ):
        yield f"{count_of(count, 'answer is', 'answers are')} from another system or round, {series}: the results lack the one that was asked for"


def _round(value: Any) -> str:
    """A round as results have it, `v0.6`, whether it is written so, as `0.6` or as the name of a folder."""
    text = "" if value is None else str(value)
    return round_of(text) or text


def _true_epochs(cells: Sequence[Cell], question: Question, last: float) -> float:
    """The epochs of a run whose last evaluation carries this number, which may count from 0 or lag: as on the size of the series with the nearest
    batch.
    """
    told = [
        (
            bool(question.round) and cell.round != question.round,
            abs(log(cell.batch / question.batch)) if cell.batch and question.batch else 0.0,
            epochs - number,
        )
        for group in series_of(cells).values()
        for cell in group
        if question.organisation.lower() in ("", cell.organisation.lower())
        and benchmark_of(cell.benchmark) == benchmark_of(question.benchmark)
        and (epochs := cell.mean("epochs")) is not None
        and (number := cell.mean("last_epoch")) is not None
    ]
    return last + min(told)[-1] if told else last
