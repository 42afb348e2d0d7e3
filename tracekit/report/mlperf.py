"""Results of MLPerf training as a section: how far each series scales, what limits it, scores, and their figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import polars as pl

from tracekit.facts.units import count_of, format_share
from tracekit.mlperf import (
    Cell,
    Results,
    cells_of,
    cells_table,
    compared,
    efficiency_parts,
    ends_of,
    enough_chips,
    forecast,
    laws_table,
    question_of,
    series_of,
    sizes_of,
    steps_table,
    techniques_table,
)
from tracekit.mlperf.forecast import without
from tracekit.report.model import Figure, Section, Table, Unit, table_of
from tracekit.trace import Schema

__all__ = ["mlperf_section"]

_MOST_TOLD: Final = 3
_MOST_DRAWN: Final = 6
_FEWEST_SIZES: Final = 2
_AHEAD: Final[Schema] = {
    "series": pl.String, "accelerators": pl.Int64, "batch": pl.Int64, "epochs": pl.Float64, "predicted_min": pl.Float64, "low_min": pl.Float64, "high_min": pl.Float64,
    "enough_fewest": pl.Int64, "enough_most": pl.Int64,
}  # fmt: skip
_ERRORS: Final[Schema] = {
    "series": pl.String,
    "accelerators": pl.Int64,
    **dict.fromkeys(("forecast", "amdahl", "power_law"), pl.Float64),
}
_SHARES: Final = ("init_share", "training_share", "evaluation_share", "start_share")
_LIMITS: Final = {
    "batch-limited": "its batch grows less than the chips, so each chip gets too little work at a time",
    "epoch-limited": "it needs more epochs with the larger batch",
    "evaluation-limited": "evaluations take a growing part of the time",
    "communication-limited": "training per chip gets slower by more than the batch of a chip explains: communication, or input",
    "batch- or communication-limited": "training per chip gets slower, and the logs do not tell whether the batch grows with the chips",
    "evaluation-, batch- or communication-limited": "an epoch takes more chip-seconds, and the logs have neither blocks nor epochs that tell what evaluations take of it",
}
_TITLES: Final = {
    "organisation": "by", "accelerators": "chips", "batch_per_chip": "per chip", "score_min": "score, min", "init_s": "init, s", "init_share": "init",
    "samples_per_s": "samples/s", "speedup": "speed-up", "training_share": "training", "evaluation_share": "evaluation", "start_share": "start",
    "from": "chips from", "batch_from": "batch from", "batch_to": "batch to", "chips": "chips ×", "throughput": "throughput ×", "evaluation": "evaluation ×",
    "training": "training ×", "predicted_min": "forecast, min", "low_min": "low", "high_min": "high", "enough_fewest": "enough chips, at least", "enough_most": "at most", "amdahl": "Amdahl", "run_s": "run, s",
    "compute_share": "compute", "fixed_share": "fixed", "messages_share": "messages", "error": "error on sizes left out", "at_most": "at most", "best": "best",
}  # fmt: skip
_UNITS: Final[dict[str, Unit]] = {
    **dict.fromkeys(("gain", "residual", "error", "efficiency", "forecast", "amdahl", "power_law"), "ratio"),
    **dict.fromkeys(("predicted_min", "low_min", "high_min", "score_min", "init_s", "epochs", "evaluations", "samples_per_s", "speedup", "batch_per_chip", "run_s", "chips", "throughput", "evaluation", "training"), "number"),
}  # fmt: skip


def mlperf_section(results: Results) -> Section:
    """The section: tables `cells` (a row per configuration), `steps` (from each size to the next) and `runs`, and two figures."""
    cells = cells_of(results.runs)
    steps = steps_table(cells)
    return Section(
        "mlperf",
        "How far does training scale, and what limits it?",
        " ".join(
            (
                *_headlines(cells, steps),
                *_foretold(cells),
                *_failed(cells),
                *_uncounted(cells),
                *_problems(results),
            )
        ),
        tables=tuple(_tables(results, cells, steps)),
        figures=tuple(_figures(cells)),
        title="MLPerf results",
    )


# -- the answer ------------------------------------------------------------------------------------


def _headlines(cells: Sequence[Cell], steps: pl.DataFrame) -> Iterator[str]:
    several = _several(cells)
    if not several:
        known = (
            ""
            if all(cell.accelerators and cell.score_s for cell in cells)
            else " whose score and chips are known"
        )
        yield f"The results hold {count_of(len(cells), 'configuration')} but no system in two sizes{known}, so they do not show how training scales."
        return
    explained: set[str] = set()
    for name, group in list(several.items())[:_MOST_TOLD]:
        small, large = ends_of(group)
        chips, speedup = (
            (large.accelerators or 1) / (small.accelerators or 1),
            (small.score_s or 1) / (large.score_s or 1),
        )
        most, least = large.epochs, small.epochs
        inflation = most / least if most and least else None
        why = (
            "; its logs have no epochs, so its throughput is not known."
            if inflation is None
            else f", with {speedup * inflation:.3g} times the throughput and {inflation:.2f} times the epochs."
        )
        batches = (f" at batch {cell.batch:,}" if len(group) > len(sizes_of(group)) and cell.batch else "" for cell in (large, small))  # fmt: skip
        on, than = (f"{cell.accelerators:,}" for cell in (large, small))
        yield f"{name}: {on} chips{next(batches)} train {speedup:.3g} times as fast as {than}{next(batches)} ({format_share(speedup / chips)} efficiency){why}"
        last = steps.filter((pl.col("series") == name) & (pl.col("limited_by") != "none"))
        last = last.sort("from", (pl.col("batch_to") == (large.batch or 0)).fill_null(value=False), maintain_order=True).tail(1)  # fmt: skip
        for low, high, limit in last[["from", "to", "limited_by"]].rows():
            why = "" if limit in explained else f": {_LIMITS[limit]}"
            yield f"From {low:,} to {high:,} chips it is {limit}{why}."
            explained.add(limit)
    if len(several) > _MOST_TOLD:
        yield f"The tables have {len(several) - _MOST_TOLD} more series."


def _several(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """The series with several sizes."""
    return {name: group for name, group in series_of(cells).items() if len(sizes_of(group)) > 1}


def _foretold(cells: Sequence[Cell]) -> Iterator[str]:
    """How well the forecasts do, where simpler laws can be compared with them."""
    rows = [row for row in compared(cells) if None not in row]
    if rows:
        ours, amdahl, power = (sum(abs(float(row[at] or 0)) for row in rows) / len(rows) for at in (2, 3, 4))
        yield (
            f"For the largest size of {count_of(len(rows), 'series', 'series')} with three or more sizes, the forecast from all others, given its batch and epochs, errs by {format_share(ours)} on average, Amdahl's law "
            f"by {format_share(amdahl)} and a power law of the chips by {format_share(power)}."
        )


def _failed(cells: Sequence[Cell]) -> Iterator[str]:
    ends = [run.status for cell in cells for run in cell.runs if not run.succeeded]
    timeless, silent = ends.count("success"), ends.count("unknown")
    for count, one, many in (
        (len(ends) - timeless - silent, "run failed or was cut short", "runs failed or were cut short"),
        (silent, "run does not say how it ended", "runs do not say how they ended"),
        (timeless, "run has no time by its clock", "runs have no time by their clocks"),
    ):
        if count:
            yield f"{count_of(count, f'{one}, and counts', f'{many}, and count')} as slowest."
    unscored = sum(cell.score_s is None for cell in cells)
    if unscored:
        told = (
            "configuration has no score, because too many of its runs",
            "configurations have no score, because too many of their runs",
        )
        yield f"{count_of(unscored, *told)} count as slowest."


def _uncounted(cells: Sequence[Cell]) -> Iterator[str]:
    unknown = sum(not cell.accelerators for cell in cells)
    if unknown:
        yield (
            f"The number of chips of {count_of(unknown, 'configuration')} is not known, as neither the logs nor the names of systems tell it; "
            "systems/SYSTEM.json in the folder of the organisation can, with number_of_nodes and accelerators_per_node."
        )


def _problems(results: Results) -> Iterator[str]:
    odd = sum(bool(run.problems) for run in results.runs)
    if odd:
        yield f"The {'log' if odd == 1 else 'logs'} of {count_of(odd, 'run')} {'has' if odd == 1 else 'have'} faults; the table of runs names them."


# -- tables ----------------------------------------------------------------------------------------


def _tables(results: Results, cells: Sequence[Cell], steps: pl.DataFrame) -> Iterator[Table]:
    found = cells_table(cells)
    apart = found.select("round", "organisation", "benchmark", "accelerators").is_duplicated().any()
    rounds = "round " if found["round"].n_unique() > 1 else ""
    shown = f"{rounds}organisation benchmark accelerators score_min speedup efficiency batch epochs{' system' if apart else ''}"
    scores = table_of("cells", "Scores", found, shown, _TITLES, _UNITS)
    yield replace(scores, main=True)
    names = [*f"{rounds}organisation benchmark system accelerators batch".split(), *_SHARES]
    shares = found.select(names).filter(pl.any_horizontal(pl.col(_SHARES).is_not_null()))
    if shares.height:
        shown = f"{rounds}organisation benchmark accelerators {' '.join(_SHARES)}{' system' if apart else ''}"
        yield table_of("shares", "Shares of the run (of initialisation: of both together)", shares, shown, _TITLES, _UNITS)  # fmt: skip
    if steps.height:
        titles = {**_TITLES, "epochs": "epochs ×", "speedup": "speed-up ×"}
        batches = "batch_from batch_to " if any(len(group) > len(sizes_of(group)) for group in _several(cells).values()) else ""  # fmt: skip
        table = table_of("steps", "From each size to the next", steps, f"series from to {batches}speedup epochs limited_by", titles, _UNITS)  # fmt: skip
        yield replace(table, kept=("series", "from", "to", "limited_by"))
    ahead = pl.DataFrame(
        [row for name, group in _several(cells).items() for row in _ahead(name, group, cells)],
        schema=_AHEAD,
        orient="row",
    )
    if ahead.height:
        yield table_of("forecasts", "Sizes that were not run, at the batch of the largest", ahead, "series accelerators predicted_min low_min high_min enough_fewest enough_most", _TITLES, _UNITS)  # fmt: skip
    errors = pl.DataFrame(compared(cells), schema=_ERRORS, orient="row")
    if errors.height:
        yield table_of("errors", "Errors for the largest size left out, its batch and epochs given", errors, "series accelerators forecast amdahl power_law", _TITLES, _UNITS)  # fmt: skip
    laws = laws_table(cells)
    if laws.height:
        yield table_of("laws", "Laws of the steps, and their parts on the most chips", laws, "series law compute_share fixed_share messages_share error", _TITLES, _UNITS)  # fmt: skip
    techniques = techniques_table(cells)
    if techniques.height:
        yield table_of("techniques", "What techniques would gain on the most chips", techniques, "series technique predicted_min gain at_most", _TITLES, _UNITS)  # fmt: skip
    rows = [
        {"run": run.name, "benchmark": run.benchmark, "accelerators": run.accelerators, "batch": run.batch, "status": run.status, "run_s": run.run_s, "init_s": run.init_s,
         "epochs": run.epochs, "evaluations": run.evaluations, "problems": "; ".join(run.problems) or None, "round": run.round or None}
        for run in sorted(results.runs, key=lambda run: not run.problems)  # those with faults first
    ]  # fmt: skip
    runs = pl.DataFrame(rows, infer_schema_length=None)
    yield table_of("runs", "Runs", runs, "run status run_s epochs problems", _TITLES, _UNITS)


def _ahead(name: str, group: Sequence[Cell], cells: Sequence[Cell]) -> Iterator[tuple[object, ...]]:
    """Twice and four times the chips of the largest size, and the fewest and the most from which on, the fewest that were run being the first, doubling ends."""
    least, most = ends_of(group)
    asked = question_of(most)
    enough = enough_chips(cells, replace(asked, accelerators=least.accelerators or 1)) or (None, None)
    for factor in (2, 4):
        found = forecast(cells, replace(asked, accelerators=factor * asked.accelerators))
        if found is not None and found.batch >= factor * asked.accelerators:
            minutes = (each / 60 for each in (found.seconds, found.low, found.high))
            yield (name, factor * asked.accelerators, found.batch, found.epochs, *minutes, *enough)


# -- figures ---------------------------------------------------------------------------------------


def _figures(cells: Sequence[Cell]) -> Iterator[Figure]:
    several = _several(cells)
    if not several:
        return
    series = [
        {"label": name, "style": "dots", "x": [cell.accelerators for cell in group], "y": [60 / (cell.score_s or 1) for cell in group],
         "marks": ["" for _ in group], "names": [f"{name}, {cell.accelerators:,} chips: {(cell.score_s or 0) / 60:.3g} min" for cell in group]}
        for name, group in list(several.items())[:_MOST_DRAWN]
    ]  # fmt: skip
    yield Figure("scaling", "Trainings a minute against chips", "curve", {"base": 10, "x_title": "chips", "y_title": "trainings a minute", "series": [*series, *_ideal(series)]})  # fmt: skip
    longest = max(several, key=lambda name: len(sizes_of(several[name])))
    yield from _fitted(longest, several[longest], cells)
    rows = [
        {"label": f"{chips:,} chips", "parts": [{"label": label, "value": value} for label, value in parts.items()]}
        for chips, parts in efficiency_parts(several[longest])
    ]  # fmt: skip
    if len(rows) > 1:
        yield Figure("efficiency", f"Efficiency, and what the rest is lost to: {longest}", "stack", {"unit": "ratio", "rows": rows})  # fmt: skip
    epochs = [
        {"label": name, "style": "dots", "x": [cell.batch for cell in group], "y": [cell.epochs for cell in group],
         "marks": ["" for _ in group], "names": [f"{name}, batch {cell.batch:,}: {cell.epochs:.3g} epochs" for cell in group]}
        for name, group in list(several.items())[:_MOST_DRAWN]
        if all(cell.batch and cell.epochs for cell in group)
    ]  # fmt: skip
    if epochs:
        yield Figure("epochs", "Epochs against batch", "curve", {"base": 2, "x_title": "batch of all chips", "y_title": "epochs", "series": epochs})  # fmt: skip


def _fitted(name: str, group: Sequence[Cell], cells: Sequence[Cell]) -> Iterator[Figure]:
    """The times of a series beside the forecasts: for each size from all other cells, and beyond the largest."""
    foretold: dict[int, tuple[float, float, float]] = {}
    sizes = sizes_of(group)
    for size in sizes if len(sizes) > _FEWEST_SIZES else ():
        one = min(size, key=lambda cell: cell.score_s or float("inf"))
        found = forecast(without(cells, group, one), question_of(one))
        if found is not None:
            foretold[one.accelerators or 1] = (60 / found.seconds, 60 / found.high, 60 / found.low)
    for row in _ahead(name, group, cells):
        chips, *minutes = (float(str(each)) for each in (row[1], *row[4:7]))
        foretold[int(chips)] = (1 / minutes[0], 1 / minutes[2], 1 / minutes[1])
    if len(foretold) < _FEWEST_SIZES:
        return
    at = sorted(foretold)
    middle, low, high = ([foretold[chips][place] for chips in at] for place in range(3))
    series = [
        {"label": "measured", "style": "dots", "x": [cell.accelerators for cell in group], "y": [60 / (cell.score_s or 1) for cell in group]},
        {"label": "forecast from the other sizes and its epochs, with its 95 % interval", "style": "line", "x": at, "y": middle, "low": low, "high": high},
    ]  # fmt: skip
    yield Figure("forecast", f"Trainings a minute, measured and forecast: {name}", "curve", {"base": 10, "x_title": "chips", "y_title": "trainings a minute", "series": series})  # fmt: skip


def _ideal(series: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """From the smallest system of the first series the line along which twice the chips take half the time."""
    first = series[0]
    x = (first["x"][0], first["x"][-1])
    yield {"label": f"linear in chips, from {first['label']}", "style": "dashes", "x": x, "y": (first["y"][0], first["y"][0] * x[1] / x[0])}  # fmt: skip
