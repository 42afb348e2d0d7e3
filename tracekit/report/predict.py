"""Predictions, what they are made of, and how good they are, as sections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from tracekit.facts.units import NS_PER_S, count_of, format_ns, format_share
from tracekit.names import clean
from tracekit.report.model import Figure, Section, Unit, table_of

if TYPE_CHECKING:
    from tracekit.predict import Evaluation, FromTrace, Predictor, Runs

__all__ = ["answers_section", "evaluation_section", "model_section", "trace_section"]

_MOST_DRAWN: Final = 6
"""More bars have no labels."""
_MOST_DOTS: Final = 1_500
_MOST_TOLD: Final = 4
_UNITS: Final[Mapping[str, Unit]] = {
    **dict.fromkeys(("predicted", "low", "high", "cost", "value", "fit_s"), "number"),
    **dict.fromkeys(
        ("mean_error", "median_error", "coverage", "error", "weight", "interval", "mean_ape"), "ratio"
    ),
}
_TITLES: Final = {
    "mean_error": "mean error", "median_error": "median error", "fit_s": "fit, s", "coverage": "in its interval", "unanswered": "no answer",
    "mean_ape": "error when left out", "interval": "interval ±", "group": "of", "term": "term", "unit": "in",
}  # fmt: skip


# -- answers ---------------------------------------------------------------------------------------


def answers_section(fitted: Predictor, asked: Runs, answers: pl.DataFrame) -> Section:
    """The predicted times of rows, the shortest first, or, if they have a `cost`, the cheapest; and what they consist of.

    Table: `predictions`, with the settings that differ, `predicted_ns`, `low_ns` and `high_ns`, `cost`, and `note`.
    """
    roles = [name for name in asked.frame.columns if name not in ("id", "configuration", "target", "work")]
    told = [name for name in roles if asked.frame[name].n_unique() > 1] or roles[:2]
    priced = [name for name in answers.columns if name == "cost"]
    times = (pl.col("predicted", "low", "high") * fitted.description.seconds * NS_PER_S).name.suffix("_ns")
    rows = asked.frame.select("id", *told).with_columns(answers.select(times, "note", *priced))
    order = "cost" if priced else "predicted_ns"
    ordered = rows.with_row_index("at").sort(order, maintain_order=True, nulls_last=True)
    shown = [
        *(["id"] if fitted.description.id else []),
        *told,
        *priced,
        "predicted_ns",
        "low_ns",
        "high_ns",
        "note",
    ]
    titles = {f"{name}_ns": name for name in ("predicted", "low", "high")}
    outside = int(
        (fitted.support.places(asked).distance > 0)[answers["predicted"].is_not_null().to_numpy()].sum()
    )
    drawn = ordered.filter(pl.col("predicted_ns").is_not_null())["at"].to_numpy()[:_MOST_DRAWN]
    table = table_of("predictions", "Predictions", ordered.drop("at"), shown, titles, _UNITS)
    return Section(
        "prediction",
        "How long will it take?",
        " ".join(_answer(fitted, ordered, told, outside)),
        tables=(table,),
        figures=tuple(_composition(fitted, asked, drawn, told)),
    )


def _answer(fitted: Predictor, rows: pl.DataFrame, told: Sequence[str], outside: int) -> Iterator[str]:
    known = rows.filter(pl.col("predicted_ns").is_not_null())
    if known.height:
        best = known.row(0, named=True)
        times = " to ".join(format_ns(best[name]) for name in ("low_ns", "high_ns"))
        span = f"{format_ns(best['predicted_ns'])} ({times} in {_percent(fitted.level)} of cases)"
        cost = f" and costs {best['cost']:.4g}" if "cost" in best else ""
        if rows.height == 1:
            yield f"It takes {span}{cost}."
        else:
            superlative = "cheapest" if "cost" in best else "fastest"
            yield (
                f"Of {count_of(rows.height, 'configuration')}, the {superlative} has {_settings(best, told)}. "
                f"It takes {span}{cost}."
            )
    notes = [note for note in known["note"].fill_null("").to_list() if note]
    if notes and rows.height == 1:
        yield f"{clean(notes[0])[0].upper()}{clean(notes[0])[1:]}."
    elif outside:
        yield f"{count_of(outside, 'configuration lies', 'configurations lie')} outside what was measured; the notes say how far."
    if unknown := rows.height - known.height:
        yield f"{count_of(unknown, 'configuration has', 'configurations have')} no answer; the notes say why."


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %"


def _settings(row: Mapping[str, Any], names: Sequence[str]) -> str:
    values = [row[name] for name in names[:_MOST_TOLD]]
    texts = [f"{value:g}" if isinstance(value, float) else clean(str(value)) for value in values]
    return ", ".join(f"{name.replace('_', ' ')} {text}" for name, text in zip(names, texts, strict=False))


def _composition(fitted: Predictor, asked: Runs, rows: Any, told: Sequence[str]) -> Iterator[Figure]:
    """What the predicted times of these rows consist of, in their order, if the model tells."""
    few = asked.where(np.isin(np.arange(asked.height), rows))
    parts = fitted.parts(few) if few.height else {}
    settings = few.frame.rows(named=True)
    if parts:
        scale = fitted.description.seconds * NS_PER_S
        bars = [
            {"label": _settings(settings[at], told), "parts": [{"label": name, "value": float(values[at]) * scale} for name, values in parts.items()]}
            for at in np.argsort(np.argsort(rows)).tolist()
        ]  # fmt: skip
        yield Figure(
            "composition",
            "What the predicted times consist of",
            "stack",
            {"unit": "ns", "rows": bars, "apart": True},
        )


# -- a model ---------------------------------------------------------------------------------------


def model_section(fitted: Predictor) -> Section:
    """What a model consists of: tables `questions` (which model answers which kind of question, and its errors) and `terms`."""
    questions = fitted.members().with_columns(pl.col("mean_ape") / 100, interval=_intervals(fitted))
    terms = [
        {"term": term.name, "value": term.value, "unit": term.unit, "meaning": term.meaning}
        for term in fitted.explain()
    ]
    return Section(
        "model",
        "What are the predictions made of?",
        " ".join((f"The model is {fitted.summary()}.", *fitted.lacked())),
        tables=(
            table_of("questions", "Which model answers between the runs that were measured, and beyond them", questions, None, _TITLES, _UNITS),
            table_of("terms", "Terms", pl.DataFrame(terms, infer_schema_length=None), None, _TITLES, _UNITS),
        ),
    )  # fmt: skip


def _intervals(fitted: Predictor) -> pl.Series:
    """By question half of the interval's width at the distance where it was learnt, relative to the time."""
    widths = {kind: float(np.expm1(width)) for kind, (width, _) in fitted.intervals.widths.items()}
    return fitted.members()["question"].replace_strict(widths, default=None, return_dtype=pl.Float64)


# -- an evaluation ---------------------------------------------------------------------------------


def evaluation_section(found: Evaluation) -> Section:
    """The errors of models for runs that they had not seen: tables `models`, `groups` and `rows`, and two figures."""
    own = found.models.filter(pl.col("coverage").is_not_null())["model"].to_list()
    rows = (
        found.rows.filter(pl.col("model").is_in(own))
        .with_columns((pl.col("ape") / 100).alias("error"))
        .drop("ape")
    )
    tables = [table_of("models", "Models and baselines", _errors(found.models), "model rows mean_error median_error coverage fit_s", _TITLES, _UNITS)]  # fmt: skip
    if found.groups.height:
        tables.append(table_of("groups", "By group", _errors(found.groups), "model group rows mean_error coverage", _TITLES, _UNITS))  # fmt: skip
    tables.append(table_of("rows", "Rows", rows, "model id measured predicted low high error note", {"error": "error"}, _UNITS))  # fmt: skip
    return Section(
        "evaluation",
        "How well are runs predicted that were not seen?",
        " ".join(_judgement(found)),
        tables=tuple(tables),
        figures=tuple(_figures(rows)),
    )


def _errors(frame: pl.DataFrame) -> pl.DataFrame:
    """Percent as ratios."""
    return frame.with_columns(
        (pl.col("mean_ape") / 100).alias("mean_error"),
        (pl.col("median_ape") / 100).alias("median_error"),
        pl.col("coverage") / 100,
    ).drop("mean_ape", "median_ape")


def _judgement(found: Evaluation) -> Iterator[str]:
    models = found.models.filter(pl.col("coverage").is_not_null() & pl.col("mean_ape").is_not_null())
    others = found.models.filter(pl.col("coverage").is_null() & pl.col("mean_ape").is_not_null())
    for row in models.sort("mean_ape").iter_rows(named=True):
        yield (
            f"{row['model']} predicts {count_of(row['rows'] - row['unanswered'], 'run')} left out by {clean(found.split)} with a mean error of "
            f"{format_share(row['mean_ape'] / 100)} (median {format_share(row['median_ape'] / 100)}); "
            f"{format_share(row['coverage'] / 100)} lie in their intervals, which are made for {_percent(found.level)}."
        )
    if others.height:
        best = others.sort("mean_ape").row(0, named=True)
        yield f"The best of the baselines, {best['model']}, errs by {format_share(best['mean_ape'] / 100)}."
    if found.spread:
        yield f"Repetitions of a configuration differ from their median by {format_share(found.spread / 100)}: no model's error can be much smaller than that."
    for name, why in found.failed.items():
        yield f"{clean(name)} could not be fitted to every part: {clean(why)}."


def _figures(rows: pl.DataFrame) -> Iterator[Figure]:
    rows = rows.filter(pl.col("predicted").is_not_null())
    if not rows.height:
        return
    rows = rows.gather_every(max(1, rows.height // _MOST_DOTS))
    ends = [rows["measured"].min(), rows["measured"].max()]
    dots = [
        {"label": name, "style": "dots", "x": part["measured"].to_list(), "y": part["predicted"].to_list(), "names": part["id"].to_list()}
        for (name,), part in rows.group_by("model", maintain_order=True)
    ]  # fmt: skip
    exact = {"label": "exact", "style": "dashes", "x": ends, "y": ends}
    yield Figure("measured", "Predicted against measured", "curve", {"base": 10, "x_title": "measured", "y_title": "predicted", "series": [*dots, exact]})  # fmt: skip
    far = rows.filter((pl.col("distance") > 0) & (pl.col("error") > 0))
    if far.height:
        series = [
            {"label": name, "style": "dots", "x": part["distance"].to_list(), "y": (100 * part["error"]).to_list(), "names": part["id"].to_list()}
            for (name,), part in far.group_by("model", maintain_order=True)
        ]  # fmt: skip
        yield Figure("distance", "Error by the distance from what was measured", "curve", {"base": 10, "x_title": "doublings beyond the measured range", "y_title": "error, %", "series": series})  # fmt: skip


# -- from a trace ----------------------------------------------------------------------------------


def trace_section(found: FromTrace) -> Section:
    """A step as it is and as it would be: table `parts`, and the figure `composition` of both."""
    now, then, low, high = (
        format_ns(each) for each in (found.now_ns, found.step_ns, found.low_ns, found.high_ns)
    )
    when = f"{found.asked[:1].upper()}{found.asked[1:]}, a" if found.asked else "A"
    text = f"{when} step would take {then}"
    within = f" ({low} to {high})" if (low, high) != (then, then) else ""
    text += f", as now{within}." if then == now else f"{within} instead of {now}."
    if found.samples != 1 and found.low_ns > 0:
        times = (found.step_ns, found.high_ns, found.low_ns)
        rates = (min(found.samples * found.now_ns / each, found.most) for each in times)
        rate, least, most = (f"{each:.2f}" for each in rates)
        within = f" ({least} to {most})" if (least, most) != (rate, rate) else ""
        text += f" That is {rate} times as many samples a second{within}."
    notes = [f"{note[:1].upper()}{note[1:].rstrip('.')}." for note in found.notes]
    bars = [
        {"label": label, "parts": [{"label": part, "value": round(value)} for part, value in found.parts.select("part", column).rows()]}
        for label, column in (("now", "now_ns"), ("then", "predicted_ns"))
    ]  # fmt: skip
    titles = {"now_ns": "now", "predicted_ns": "then", "low_ns": "low", "high_ns": "high"}
    return Section(
        "prediction",
        "How long would a step take?",
        " ".join((text, *notes)),
        tables=(table_of("parts", "What a step consists of", found.parts, None, titles),),
        figures=(
            Figure(
                "composition", "What a step consists of", "stack", {"unit": "ns", "rows": bars, "apart": True}
            ),
        ),
    )
