"""Predictions, and how good they are, as sections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracekit.facts.units import count_of, format_share
from tracekit.names import clean
from tracekit.report.model import Figure, Section, Table, Unit, table_of

if TYPE_CHECKING:
    from tracekit.predict import Evaluation, Predictor, Runs

__all__ = ["answers_section", "evaluation_section", "model_section"]

_MOST_DRAWN: Final = 12
_MOST_DOTS: Final = 2_000
_UNITS: Final[Mapping[str, Unit]] = {
    **dict.fromkeys(("predicted", "low", "high", "cost", "value"), "number"),
    **dict.fromkeys(("mean_ape", "median_ape", "coverage", "weight"), "ratio"),
}
_TITLES: Final = {
    "mean_ape": "mean error", "median_ape": "median error", "fit_s": "fit, s", "coverage": "in the interval", "kind": "question", "rows": "rows",
    "configurations": "configurations",
}  # fmt: skip


# -- answers ---------------------------------------------------------------------------------------


def answers_section(fitted: Predictor, asked: Runs, answers: pl.DataFrame, *, price: float | None = None) -> Section:
    """The predicted times of rows, the shortest first, or with a price of a device's hour the cheapest; and what they consist of."""
    unit = fitted.description.unit
    roles = [name for name in asked.frame.columns if name not in ("id", "configuration", "target")]
    told = [name for name in roles if asked.frame[name].n_unique() > 1] or roles[:2]
    rows = asked.frame.select("id", *told).with_columns(
        answers.select("predicted", "low", "high", "note").get_columns()
    )
    if price is not None:
        hours = pl.col("predicted") * fitted.description.seconds / 3600
        devices = pl.Series(asked.numbers("gpus", 1.0))
        rows = rows.with_columns((hours * devices * price).alias("cost"))
    order = "predicted" if price is None else "cost"
    ordered = rows.with_row_index("at").sort(order, maintain_order=True, nulls_last=True)
    rows = ordered.drop("at")
    shown = [*([] if fitted.description.id == "" else ["id"]), *told, "predicted", "low", "high", "cost", "note"]
    titles = {"predicted": f"predicted, {unit}"}
    return Section(
        "prediction",
        "How long will it take?",
        " ".join(_answer(fitted, rows, told, order)),
        tables=(table_of("predictions", "Predictions", rows, shown, titles, _UNITS),),
        figures=tuple(_composition(fitted, asked, ordered["at"].to_numpy()[:_MOST_DRAWN], told)),
    )


def _answer(fitted: Predictor, rows: pl.DataFrame, told: list[str], order: str) -> Iterator[str]:
    known = rows.filter(pl.col("predicted").is_not_null())
    unit = fitted.description.unit
    if not known.height:
        yield "The runs that were measured do not tell."
    else:
        best = known.row(0, named=True)
        span = f"{best['predicted']:.4g} {unit} ({best['low']:.4g} to {best['high']:.4g} in {format_share(fitted.level)} of cases)"
        if rows.height == 1:
            yield f"It takes {span}."
        else:
            settings = ", ".join(f"{name} {_value(best[name])}" for name in told[:4])
            superlative = "cheapest" if order == "cost" else "shortest"
            cost = f" and costs {best['cost']:.4g}" if order == "cost" else ""
            yield f"Of {count_of(rows.height, 'configuration')} the {superlative} has {settings}: it takes {span}{cost}."
    outside = known.filter(pl.col("note").fill_null("") != "").height
    if outside:
        yield f"{count_of(outside, 'configuration lies', 'configurations lie')} outside what was measured; the notes say how far."
    if unanswered := rows.height - known.height:
        yield f"{count_of(unanswered, 'configuration is', 'configurations are')} too far from what was measured for an answer."


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else clean(str(value))


def _composition(fitted: Predictor, asked: Runs, rows: Any, told: list[str]) -> Iterator[Figure]:
    """What the predicted times consist of, if the model tells."""
    few = asked.where(np.isin(np.arange(asked.height), rows))
    parts = fitted.parts(few)
    if parts and few.height:
        labels = [", ".join(f"{name} {_value(row[name])}" for name in told[:3]) for row in few.frame.iter_rows(named=True)]
        bars = [
            {"label": label, "parts": [{"label": name, "value": float(values[at])} for name, values in parts.items()]}
            for at, label in enumerate(labels)
        ]  # fmt: skip
        yield Figure("composition", f"What the predicted times consist of, {fitted.description.unit}", "stack", {"unit": "number", "rows": bars})  # fmt: skip


# -- a model ---------------------------------------------------------------------------------------


def model_section(fitted: Predictor) -> Section:
    """What a model consists of, and how far its predictions were off for runs that it had not seen."""
    terms = pl.DataFrame(
        [(term.name, term.value, term.unit, term.meaning) for term in fitted.explain()],
        {"term": pl.String, "value": pl.Float64, "unit": pl.String, "meaning": pl.String},
        orient="row",
    )
    return Section(
        "model",
        "What is the prediction made of?",
        fitted.summary(),
        tables=tuple(_model_tables(fitted, terms)),
    )


def _model_tables(fitted: Predictor, terms: pl.DataFrame) -> Iterator[Table]:
    yield table_of("members", "What answers which question", fitted.members(), None, _TITLES, _UNITS)
    yield table_of("terms", "Terms", terms, "term value unit meaning", {}, _UNITS)


# -- an evaluation ---------------------------------------------------------------------------------


def evaluation_section(found: Evaluation) -> Section:
    """The errors of models for runs that they had not seen."""
    return Section(
        "evaluation",
        "How well are runs predicted that were not seen?",
        " ".join(_judgement(found)),
        tables=tuple(_evaluation_tables(found)),
        figures=tuple(_evaluation_figures(found)),
    )


def _judgement(found: Evaluation) -> Iterator[str]:
    raise NotImplementedError


def _evaluation_tables(found: Evaluation) -> Iterator[Table]:
    raise NotImplementedError


def _evaluation_figures(found: Evaluation) -> Iterator[Figure]:
    raise NotImplementedError
