"""How a program scales as a section: the speed-up in words, what efficiency is lost to, the laws, and their figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import polars as pl

from tracekit.analyses.idle.causes import cause_name
from tracekit.analyses.result import Unit, column_of
from tracekit.facts.units import count_of, format_bytes, format_ns, format_share
from tracekit.names import category_name, clean_frame
from tracekit.report.model import Column, Figure, Section, Table
from tracekit.scaling import HOPS, PARTS, Fit, Run, Scaling

__all__ = ["scaling_section"]

FELT: Final = 0.01
"""A smaller loss is not worth a word."""
MOST_NAMED: Final = 4
MOSTLY: Final = 0.5
_NARROW: Final = 0.5
"""A share that may be anything in a wider range than this is not known."""
_MOST_CURVE: Final = 24
_WIDEST_BAND: Final = 1000

_WORDS: Final = {
    "waits": "waits for other ranks",
    "shorter_steps": "ranks with shorter steps",
}
"""Parts that their names do not say in a sentence."""
LAWS: Final = {
    "amdahl": "Amdahl's law",
    "constant": "a constant step",
    "ring": "messages around a ring",
    "tree": "messages along a tree",
    "torus": "messages on a 2-D torus",
}
_RUNS: Final = "run ranks traced_ranks samples batch_per_rank step_ns steps recorded_step_ns throughput_per_s speedup efficiency efficiency_low efficiency_high"
_SHORT: Final = "ranks batch_per_rank step_ns throughput_per_s speedup efficiency"
_TITLES: Final = {
    "traced_ranks": "ranks with a trace",
    "samples": "batch of all",
    "batch_per_rank": "batch per rank",
    "step_ns": "step",
    "recorded_step_ns": "step with the profiler",
    "throughput_per_s": "samples/s",
    "speedup": "speed-up",
    "lost_share": "lost",
    "exposed_communication_loss_share": "exposed comm.",
    "exposed_communication_and_waits_loss_share": "comm. and waits",
    "loss_share": "lost",
    "error": "error on runs left out",
    "aicc": "AICc",
    "alpha_ns": "α",
    "beta_ns": "β a byte",
    "bandwidth_gbps": "1/β",
    "best": "best",
}
_UNITS: Final[dict[str, Unit]] = dict.fromkeys(
    ("efficiency", "efficiency_low", "efficiency_high", "error"), "ratio"
)


def scaling_section(scaling: Scaling) -> Section:
    """The section: tables `runs`, `losses` (one row per run), `parts` (one per part and cause), `laws` and `collectives`."""
    texts = (
        *_headline(scaling),
        *_batches(scaling),
        *_limit(scaling),
        *_law(scaling),
        *_network(scaling),
        *_rests_on(scaling),
    )
    return Section(
        "scaling",
        "How well does the program scale, and what is efficiency lost to?",
        " ".join(texts),
        tables=tuple(_tables(scaling)),
        figures=tuple(_figures(scaling)),
    )


# -- the answer ------------------------------------------------------------------------------------


def _headline(scaling: Scaling) -> Iterator[str]:
    rows = scaling.table.rows(named=True)
    if len(rows) == 1:
        one = rows[0]
        yield f"There is one run, on {_ranks(one)}, so there is nothing to compare; a step of it takes {format_ns(one['step_ns'])}."
        return
    if scaling.table["ranks"].n_unique() == 1:
        yield f"All {len(rows)} runs are on {_ranks(rows[0])}, so they do not show how the program scales."
        return
    known = [row for row in rows if row["efficiency"] is not None]
    if len({row["ranks"] for row in known}) == 1 or not known:
        first, last = rows[0], rows[-1]
        yield (
            f"A step takes {format_ns(first['step_ns'])} on {_ranks(first)} and {format_ns(last['step_ns'])} on {_ranks(last)}. "
            "Without the batches of the runs, only their step times compare: give --scaling strong if all ranks together had the "
            "same batch in every run, or --scaling weak if each rank had."
        )
        return
    first, last = known[0], _middle([row for row in known if row["ranks"] == known[-1]["ranks"]])
    faster = (
        "is {} times as fast as on"
        if scaling.kind == "strong"
        else "processes {} times as many samples a second as on"
    ).format(f"{last['speedup']:.3g}")
    yield f"On {_ranks(last)} the program {faster} {first['ranks']} ({format_share(last['efficiency'])} efficiency{_within(last)})."
    yield from _costs(scaling, last)


def _within(row: dict[str, Any]) -> str:
    low, high = row["efficiency_low"], row["efficiency_high"]
    return "" if low is None else f", {format_share(low)} to {format_share(high)} by the scatter of the steps"


def _middle(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of runs on as many ranks the one whose efficiency is in the middle."""
    return sorted(rows, key=lambda row: row["efficiency"])[len(rows) // 2]


def _ranks(row: dict[str, Any]) -> str:
    return count_of(row["ranks"], "rank")


def _costs(scaling: Scaling, row: dict[str, Any]) -> Iterator[str]:
    """What costs efficiency, the most first, and what gains some."""
    losses = {part: row[f"{part}_loss_share"] for part in PARTS}
    told = sorted((part for part in losses if abs(losses[part]) >= FELT), key=lambda part: -losses[part])
    cost = [
        f"{format_share(losses[part])} to {_in_words(scaling, row, part)}"
        for part in told
        if losses[part] > 0
    ]
    gain = [
        f"{_in_words(scaling, row, part, less=True)} gains {format_share(-losses[part])}"
        for part in reversed(told)
        if losses[part] < 0
    ]
    texts = ([f"it loses {_listed(cost)}"] if cost else []) + ([_listed(gain)] if gain else [])
    if texts:
        text = "; ".join(texts)
        yield f"{text[:1].upper()}{text[1:]}."


def _in_words(scaling: Scaling, row: dict[str, Any], part: str, *, less: bool = False) -> str:
    on_cpu = scaling.runs[0].on_cpu
    if part == "compute":
        return f"{'faster' if less else 'slower'} compute per sample"
    if part != "idle":
        name = _WORDS.get(part, category_name(part))
        return f"less time in {name}" if less else name
    words = "time outside operators" if on_cpu else "idle time"
    if less:
        return f"less {words}"
    causes = scaling.losses.filter((pl.col("run") == row["run"]) & (pl.col("part") == "idle"))
    most = causes.sort("loss_share", descending=True).row(0, named=True)
    mostly = most["cause"] and most["loss_share"] >= MOSTLY * row["idle_loss_share"]
    return f"{words} (mostly {cause_name(most['cause'])})" if mostly else words


def _listed(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _batches(scaling: Scaling) -> Iterator[str]:
    rows = scaling.table.filter(pl.col("efficiency").is_not_null())
    if scaling.kind == "unknown":
        return
    size = rows["samples"][0]
    if scaling.kind == "strong":
        yield f"All ranks together have the same batch in every run{f', {size:,}' if size else ''}: strong scaling."
    elif scaling.kind == "weak":
        each = rows["batch_per_rank"][0]
        yield f"Each rank has the same batch in every run{f', {each:,g}' if each else ''}: weak scaling."
    else:
        yield "The batch differs between runs, both of a rank and of all together, so samples a second compare."
    lacking = scaling.table.height - rows.height
    if lacking:
        yield f"{count_of(lacking, 'run')} without a recorded batch cannot be compared."


def _limit(scaling: Scaling) -> Iterator[str]:
    limit = scaling.batch_limit
    if limit is None:
        return
    smaller = 1 - limit.after / limit.before
    change = (
        f"{format_share(1 - limit.left)} shorter"
        if limit.left < 1
        else f"{format_share(limit.left - 1)} longer"
    )
    unless = ", unless the ranks share processors" if scaling.runs[0].on_cpu else ""
    yield (
        f"From {limit.ranks} ranks on the batch limits it{unless}: a rank's batch is {format_share(smaller)} smaller, but the time in which it computes is "
        f"{change}."
    )


def _law(scaling: Scaling) -> Iterator[str]:
    best = [fit for fit in scaling.steps if fit.best]
    amdahl = next((fit for fit in scaling.steps if fit.law == "amdahl"), None)
    counts = len({run.ranks for run in scaling.runs})
    if len(best) > 1:
        yield f"Step times fit {_or([LAWS[fit.law] for fit in best])} equally well."
    elif best and best[0].law != "amdahl":
        yield f"Step times fit {LAWS[best[0].law]} best."
    elif scaling.kind != "unknown" and not best:
        judged = len(scaling.steps) > len(HOPS) and all(fit.aicc is not None for fit in scaling.steps)
        few = f"Runs on {count_of(counts, 'number')} of ranks are too few to tell laws of scaling apart."
        yield "No law of scaling fits the step times." if judged else few
    if amdahl is not None and (amdahl.best or not best):
        low, high = amdahl.intervals["serial_share"]
        if high - low <= _NARROW:
            base = min(run.ranks for run in scaling.runs)
            share = amdahl.values["fixed_ns"] / (amdahl.values["fixed_ns"] + amdahl.values["compute_ns"])
            limit = f", so more ranks make it at most {1 / share:.3g} times as fast" if share else ""
            yield (
                f"By Amdahl's law {format_share(share)} ({format_share(low)} to {format_share(high)}) of a step on {count_of(base, 'rank')} "
                f"does not shrink{limit}."
            )


def _network(scaling: Scaling) -> Iterator[str]:
    best = [fit for fit in scaling.messages if fit.best]
    if len(best) != 1:
        return
    alpha, beta = best[0].values["alpha_ns"], best[0].values["beta_ns"]
    rate = f" and {format_bytes(1e9 / beta)}/s" if beta else ""
    yield f"Collectives fit {LAWS[best[0].law]} best: {format_ns(alpha)} a hop{rate}."


def _or(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _rests_on(scaling: Scaling) -> Iterator[str]:
    how = "without the profiler" if scaling.plain else "of the recorded steps"
    split = scaling.plain and scaling.kind != "unknown"
    shares = "; the parts are their shares of the recorded steps" if split else ""
    yield f"Step times are medians {how}, each step that of its slowest rank{shares}."
    gaps = [_gap(run) for run in scaling.runs if run.traced and run.traced < run.ranks]
    if gaps:
        yield f"Not all ranks have a trace: {'; '.join(gaps)}."


def _gap(run: Run) -> str:
    which = (
        f" (not {_listed([str(rank) for rank in run.missing])})" if 0 < len(run.missing) <= MOST_NAMED else ""
    )
    return f"{run.name} has {run.traced} of {run.ranks}{which}"


# -- tables ----------------------------------------------------------------------------------------


def _tables(scaling: Scaling) -> Iterator[Table]:
    frame = scaling.table
    yield _table("runs", "Runs", frame.select(_RUNS.split()), _SHORT, named=True)
    lost = frame.filter(pl.col("efficiency").is_not_null()).select(
        "run", "ranks", "lost_share", *(name for name in frame.columns if name.endswith("_loss_share"))
    )
    lost = lost.filter(pl.col("ranks") > pl.col("ranks").min())
    if lost.height:
        some = [name for name in lost.columns[3:] if (lost[name].abs() >= FELT / 20).any()]
        yield _table(
            "losses", "Efficiency lost to", lost, " ".join(["ranks", "lost_share", *some]), named=True
        )
        yield _table("parts", "Parts by cause", scaling.losses, "ranks part cause per_sample_ns loss_share")
    if scaling.steps:
        yield _table(
            "laws",
            "Laws of the step time",
            _laws(scaling.steps),
            "law compute_ns fixed_ns alpha_ns serial_share error best",
        )
    if scaling.messages:
        yield _table(
            "collectives",
            "Laws of a collective's time",
            _laws(scaling.messages),
            "law alpha_ns bandwidth_gbps error best",
        )


def _laws(fits: Sequence[Fit]) -> pl.DataFrame:
    """One row per law, with the ends of the interval of each parameter."""
    rows: list[dict[str, Any]] = []
    for fit in fits:
        values: dict[str, float] = dict(fit.values)
        if "serial_share" in fit.intervals:
            values["serial_share"] = fit.values["fixed_ns"] / (
                fit.values["fixed_ns"] + fit.values["compute_ns"]
            )
        row: dict[str, Any] = {"law": "Amdahl" if fit.law == "amdahl" else fit.law}
        for name, value in values.items():
            stem, _, unit = name.rpartition("_")
            low, high = fit.intervals[name]
            row |= {name: value, f"{stem}_low_{unit}": low, f"{stem}_high_{unit}": high}
        if "beta_ns" in fit.values:
            row["bandwidth_gbps"] = 1 / fit.values["beta_ns"] if fit.values["beta_ns"] else None
        rows.append(row | {"points": fit.points, "error": fit.error, "aicc": fit.aicc, "best": fit.best})
    return pl.DataFrame(rows, infer_schema_length=None)


def _table(name: str, title: str, frame: pl.DataFrame, short: str, *, named: bool = False) -> Table:
    columns = []
    for key, dtype in frame.schema.items():
        column = column_of(key, dtype)
        title_ = _TITLES.get(key, column.title.removesuffix(" loss share").removesuffix(" share"))
        columns.append(Column(key, title_, _UNITS.get(key, column.unit)))
    shown = tuple(key for key in short.split() if key in frame.columns)
    if named and frame["ranks"].n_unique() < frame.height:
        shown = ("run", *shown)
    untold = ("best",) if "best" in frame.columns and not frame["best"].any() else ()
    return Table(name, title, clean_frame(frame), tuple(columns), frame.height, short=shown, hidden=untold)


# -- figures ---------------------------------------------------------------------------------------


def _figures(scaling: Scaling) -> Iterator[Figure]:
    known = scaling.table.filter(pl.col("efficiency").is_not_null())
    if known["ranks"].n_unique() <= 1:
        return
    counts, speed = known["ranks"].to_list(), known["speedup"].to_list()
    ends = [min(counts), max(counts)]
    series = [
        {"label": "measured", "style": "dots", "x": counts, "y": speed},
        {"label": "ideal", "style": "dashes", "x": ends, "y": [1.0, ends[1] / ends[0]]},
        *_fitted(scaling, known),
    ]
    yield Figure(
        "speedup", "Speed-up", "curve", {"x_title": "ranks", "y_title": "speed-up", "series": series}
    )
    costs = scaling.losses.group_by("run", "part", maintain_order=True).agg(pl.col("per_sample_ns").sum())
    rows = [
        {"label": f"{run}: {count_of(ranks, 'rank')}", "parts": [
            {"label": category_name(part), "value": round(float(costs.filter((pl.col("run") == run) & (pl.col("part") == part))["per_sample_ns"].sum()))}
            for part in PARTS
        ]}
        for run, ranks in known.select("run", "ranks").rows()
    ]  # fmt: skip
    yield Figure("cost", "Time of all ranks for a sample", "stack", {"unit": "ns", "rows": rows})


def _fitted(scaling: Scaling, known: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """The speed-up by the best law, else Amdahl's, and the band in which it lies in 95 % of cases."""
    fit = next((fit for fit in scaling.steps if fit.best or fit.law == "amdahl"), None)
    if fit is None or scaling.kind not in ("strong", "weak"):
        return
    counts = sorted(known["ranks"].unique().to_list())
    least, weak = counts[0], scaling.kind == "weak"
    times = known.filter(pl.col("ranks") == least)["step_ns"].to_list()
    base = sum(times) / len(times)
    between = {least * 2**power for power in range(_MOST_CURVE) if least * 2**power < counts[-1]}
    at = sorted({*counts, *between})
    ends = [fit.step_at(count, 1.0 if weak else least / count) for count in at]
    gains = [count / least if weak else 1.0 for count in at]
    middle, low, high = (
        [gain * base / (each[end] or each[0]) for gain, each in zip(gains, ends, strict=True)]
        for end in (0, 2, 1)
    )
    yield {"label": f"by {LAWS[fit.law]}", "style": "line", "x": at, "y": middle, "low": low, "high": high}
