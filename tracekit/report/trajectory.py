"""Trajectories as a section: the best configuration in words, what each segment means, tables, and rooflines with joined points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import polars as pl

from tracekit.facts.units import count_of, format_flop, format_ns, format_share
from tracekit.names import category_name, clean
from tracekit.report.format import format_cell, format_number
from tracekit.report.model import Figure, Section, Table, Unit, table_of
from tracekit.trajectory import (
    ABOVE,
    ASSUMED_SPREAD,
    KEYS,
    Prediction,
    Recommendation,
    Trajectories,
    Trial,
    described,
)

__all__ = ["trajectory_section"]

_MOST_TOLD: Final = 3
"""Trajectories whose segments a sentence tells, and configurations that may be as fast as the best."""
_MOST_DRAWN: Final = 6
_NARROW: Final = 1000
"""Axes over a smaller range have ticks at powers of 2."""
_MARGIN: Final = 1.5
"""By how much roofs reach beyond the points."""

_POINTS: Final = "trajectory level name key time_ns flops_per_s intensity efficiency source bytes_source"
_SEGMENTS: Final = (
    "trajectory level name from to label intensity performance_ratio intensity_ratio noise_ratio share"
)
_TITLES: Final = {
    "time_ns": "time",
    "source": "FLOPs by",
    "bytes_source": "bytes by",
    "performance_ratio": "FLOP/s ×",
    "intensity_ratio": "intensity ×",
    "noise_ratio": "noise ×",
    "rate_per_s": "samples/s",
    "gain": "gain ×",
}
_UNITS: Final[dict[str, Unit]] = {
    **dict.fromkeys(
        ("performance_ratio", "intensity_ratio", "noise_ratio", "rate_per_s", "low", "high", "gain"), "number"
    ),
    "error": "ratio",
    "peak_flops_per_s": "flop_rate",
    "bandwidth_bytes_per_s": "byte_rate",
}
_WORDS: Final = {
    "batch": "batch size",
    "compile": "use of torch.compile",
    "channels_last": "order of channels",
    "checkpoint_activations": "use of activation checkpointing",
}
_MEANINGS: Final = {
    "scaling": "performance grows",
    "retrograde": "performance falls",
    "contention": "each thread or rank does less at the same intensity",
    "gain of intensity": "more arithmetic for each byte",
    "loss of intensity": "less arithmetic for each byte",
    "bandwidth-saturated": "the memory delivers no more",
    "compute-saturated": "performance is at its peak",
    "not comparable": "FLOPs are known for other parts of the work, so FLOP/s do not compare",
}
"""What labels of segments mean, but for those that say it."""
_SWITCHES: Final = ("compile", "channels_last", "checkpoint_activations")
"""Keys whose values name them."""


def trajectory_section(found: Trajectories) -> Section:
    """The section: tables `points`, `segments` and `configurations`, and a figure for each level."""
    texts = (*_best(found), *_moves(found), *_rests_on(found))
    return Section(
        "trajectory",
        f"How does performance move along the {_word(found.key)}, and which configuration is best?",
        " ".join(texts),
        tables=tuple(_tables(found)),
        figures=tuple(_figures(found)),
    )


def _word(key: str) -> str:
    return _WORDS.get(key, key.replace("_", " "))


def _before_value(key: str) -> str:
    return "" if key in _SWITCHES else f"{_word(key)} "


# -- the answer ------------------------------------------------------------------------------------


def _best(found: Trajectories) -> Iterator[str]:
    """The best configuration of each program, or why none is named."""
    if found.key == "size" and not found.recommendations:
        yield "No size is recommended, since a different size is different work."
    for program, one in found.recommendations:
        names = _varied(one)
        best, default = _settings(one.best), described(_settings(one.default), names)
        name, rate = described(best, names), format_number(one.best.rate)
        if one.best is one.default:
            yield f"No configuration of {program} that was run is faster than {name}: {rate} samples a second."
            continue
        own = "" if one.default.chosen else "the default, "
        gain = f"{one.gain:.2f} times ({one.low:.2f} to {one.high:.2f}) as many as with {own}{default}"
        if isinstance(one.best, Prediction):
            yield f"{program} should be fastest with {name}, which was not run: about {rate} samples a second, {gain}."
            if one.best.extrapolated:
                yield "This lies beyond the runs, so it is an extrapolation: run it to be sure."
        else:
            yield f"{program} is fastest with {name}: {rate} samples a second, {gain}."
        yield from _how_sure(one, names)
    if found.recommendations and not any(run.repeats for run in found.runs):
        yield f"Each configuration was run once, so the variation between runs is taken to be {format_share(ASSUMED_SPREAD)}; `tracekit sweep --repeat 3` measures it."


def _how_sure(one: Recommendation, names: Sequence[str]) -> Iterator[str]:
    rivals = [
        described(_settings(each), names) + (" (not run)" if isinstance(each, Prediction) else "")
        for each in one.rivals
    ]
    if rivals:
        more = f"; and {len(rivals) - _MOST_TOLD} more" if len(rivals) > _MOST_TOLD else ""
        yield f"Within the noise these may be as fast: {'; '.join(rivals[:_MOST_TOLD])}{more}."
    if one.knee is not None:
        yield f"With {described(_settings(one.knee), names)} it is less than 5 % slower."
    if one.predictions and one.error is not None:
        workers = (
            "threads" if "ranks" not in names else "ranks" if "threads" not in names else "(threads × ranks)"
        )
        terms = " + ".join(f"{format_ns(ns)} {term}".strip() for term, ns in one.terms.items())
        laws = "a law" if one.laws == 1 else f"{one.laws} laws that explain the runs about as well, the best of them"  # fmt: skip
        yield (
            f"What was not run is predicted by {laws}, a step of {terms.replace('workers', workers)}, and by the runs near it; for a run "
            f"that is left out the prediction errs by {format_share(one.error)} on average."
        )
    if one.unknown:
        yield f"The runs do not predict {count_of(len(one.unknown), 'combination')} of their settings."
    if _settings(one.best).get("precision") != _settings(one.default).get("precision"):
        yield "Another precision may change what the model learns, which these figures do not show."


def _settings(one: Trial | Prediction) -> dict[str, object]:
    return {**{name: round(value) for name, value in one.place.items()}, **dict(one.choice)}  # type: ignore[arg-type]


def _varied(one: Recommendation) -> list[str]:
    """The settings in which the compared configurations differ, at least one."""
    settings = [_settings(each) for each in one.configurations]
    return [name for name in settings[0] if len({each[name] for each in settings}) > 1]


def _moves(found: Trajectories) -> Iterator[str]:
    """What the segments of the models are."""
    models = found.segments.filter(pl.col("level") == "model")
    if not models.height:
        values = found.points["key"].n_unique()
        if values:
            yield f"There is no trajectory: no two runs differ in the {_word(found.key)} alone."
        return
    titles = models["trajectory"].unique(maintain_order=True).to_list()
    told = models.filter(pl.col("trajectory").is_in(titles[:_MOST_TOLD]))["label"].unique(maintain_order=True)
    for title in titles[:_MOST_TOLD]:
        rows = models.filter(pl.col("trajectory") == title)[["label", "from", "to"]].rows()
        alike = [(label, [row[1:] for row in several]) for label, several in groupby(rows, itemgetter(0))]
        parts = [f"{label} from {several[0][0]} to {several[-1][1]}" for label, several in alike]
        yield f"The trajectory of {title} along the {_word(found.key)}: {', '.join(parts)}."
    if meanings := [f"{label}: {_MEANINGS[label]}" for label in told if label in _MEANINGS]:
        words = "; ".join(meanings)
        yield f"{words[0].upper()}{words[1:]}."
    if len(titles) > _MOST_TOLD:
        more = len(titles) - _MOST_TOLD
        yield f"The table has {more} more {'trajectory' if more == 1 else 'trajectories'}."


def _rests_on(found: Trajectories) -> Iterator[str]:
    models = found.points.filter(pl.col("level") == "model")
    if not models.height:
        yield "No point is known: the FLOPs and bytes of the runs were not captured (level MLG, with shapes)."
        return
    if lacking := sum(not run.work.height for run in found.runs):
        which = f"{lacking} of {count_of(len(found.runs), 'configuration')}"
        yield f"The FLOPs or bytes of {which} were not captured (level MLG, with shapes): only their step times count."
    profiled = models["time_source"] != "undisturbed"
    if profiled.any():
        yield f"{'All' if profiled.all() else 'Some'} times are of profiled steps; capture the level M for undisturbed times."
    else:
        yield "Times of the model are step times without the profiler; those of layers and kernels are profiled."
    low, high = (format_share(getattr(models["covered_share"], end)()) for end in ("min", "max"))
    yield f"FLOPs are known for {low if low == high else f'{low} to {high}'} of the time that work took."
    if not models["efficiency"].count():
        yield "Ceilings are not known, so saturation does not show: `tracekit machine` measures them."
    elif models["efficiency"].null_count():
        yield "Ceilings are not known for all runs, so saturation shows only where they are: `tracekit machine` measures them."
    if (found.points["efficiency"] > ABOVE).any():
        yield "Points above their roofs have bytes from caches, or ceilings that were measured too low; they are not called saturated."
    if models["bytes_source"].str.contains("analytic").any() and KEYS[found.key] != "choice":
        yield "Bytes come from shapes, which no cache changes, so they show no cache loss: that needs bytes of hardware counters."


# -- tables ----------------------------------------------------------------------------------------


def _tables(found: Trajectories) -> Iterator[Table]:
    rows = [
        {"program": program, "configuration": described(_settings(each), _varied(one)), "rate_per_s": each.rate,
         "low": each.interval[0], "high": each.interval[1], "gain": each.rate / one.default.rate,
         "how": "measured" if isinstance(each, Trial) else "extrapolated" if each.extrapolated else "interpolated"}
        for program, one in found.recommendations
        for each in one.configurations
    ]  # fmt: skip
    for name, title, frame, short in (
        ("configurations", "Configurations, the fastest first", pl.DataFrame(rows), "program configuration rate_per_s low high gain how"),
        ("segments", "Segments", found.segments, _SEGMENTS),
        ("points", "Points", found.points, _POINTS),
    ):  # fmt: skip
        if frame.height:
            alike = {key for key in ("trajectory", "program") if key in frame.columns and frame[key].n_unique() == 1}  # fmt: skip
            shown = [key for key in short.split() if key not in alike]
            yield table_of(name, title, frame, shown, _TITLES, _UNITS)


# -- figures ---------------------------------------------------------------------------------------


def _figures(found: Trajectories) -> Iterator[Figure]:
    """The models of all trajectories, and the layer types and categories of the first."""
    if not found.segments.height:
        return
    first = found.segments["trajectory"][0]
    of_first = pl.col("trajectory") == first
    for level, title, rows, label in (
        ("model", "Trajectories", found.points, "trajectory"),
        ("layer type", f"Trajectories of layer types, {first}", found.points.filter(of_first), "name"),
        ("kernel class", f"Trajectories of kernel classes, {first}", found.points.filter(of_first), "name"),
    ):
        points = rows.filter(pl.col("level") == level)
        if points.height:
            yield Figure(level.replace(" ", "_"), title, "curve", _drawn(points, label, found.key))


def _drawn(points: pl.DataFrame, label: str, key: str) -> dict[str, Any]:
    """The points of each name joined in the order of the key, below the roofs of all of them."""
    names = points[label].unique(maintain_order=True).to_list()[:_MOST_DRAWN]
    points = points.filter(pl.col(label).is_in(names))
    series: list[dict[str, Any]] = []
    for name in names:
        rows = points.filter(pl.col(label) == name)[["intensity", "flops_per_s", "key"]].rows()
        x, y, values = zip(*rows, strict=True)
        hints = [
            f"{_before_value(key)}{value}: {format_flop(rate, per_second=True)}" for _, rate, value in rows
        ]
        # Beside several other names only the ends have room for a mark.
        marks = values if label == "trajectory" else [value if value in (values[0], values[-1]) else "" for value in values]  # fmt: skip
        title = category_name(name) if label == "name" else name
        series.append({"label": clean(title), "style": "dots", "x": x, "y": y, "names": hints, "marks": marks})  # fmt: skip
    series += _roofs(points, label, key)
    power, unit = (12, "10¹² FLOP/s") if max(points["flops_per_s"]) >= 1e12 else (9, "10⁹ FLOP/s")
    series = [{**one, "x": list(one["x"]), "y": [rate / 10**power for rate in one["y"]]} for one in series]
    spans = [[value for one in series for value in one[axis]] for axis in ("x", "y")]
    base = 2 if all(max(each) < _NARROW * min(each) for each in spans) else 10
    return {"base": base, "x_title": "FLOP per byte", "y_title": unit, "series": series}


def _roofs(points: pl.DataFrame, label: str, key: str) -> Iterator[dict[str, Any]]:
    """A line for each pair of ceilings, with their rates; of several, with the names or the values of the key below it."""
    at = points["intensity"].to_list()
    ceilings = ["peak_flops_per_s", "bandwidth_bytes_per_s"]
    known = points.drop_nulls("efficiency")
    for (peak, bandwidth), rows in known.group_by(ceilings, maintain_order=True):
        title = f"{format_cell(peak, 'flop_rate')}, {format_cell(bandwidth, 'byte_rate')}"
        for column, words in (("key", _before_value(key)), (label, "")):
            values = rows[column].unique(maintain_order=True).to_list()
            if len(values) < known[column].n_unique():
                title = f"roof of {words}{', '.join(values)}"
        ridge = peak / bandwidth
        x = (min(*at, ridge) / _MARGIN, ridge, max(*at, ridge) * _MARGIN)
        yield {"label": clean(title), "style": "dashes", "x": x, "y": (x[0] * bandwidth, peak, peak)}
