"""How a program scales as a section: the speed-up in words, what efficiency is lost to, the laws, and their figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import polars as pl

from tracekit.facts.idle_names import cause_name
from tracekit.facts.units import count_of, format_bytes, format_ns, format_share, listed
from tracekit.names import category_name
from tracekit.report.model import Figure, Section, Table, Unit, table_of
from tracekit.scaling import HOPS, PARTS, Fit, Run, Scaling

__all__ = ["scaling_section"]

FELT: Final = 0.01
"""A smaller loss is not worth a word."""
MOST_NAMED: Final = 4
TEN: Final = 10
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
_RUNS: Final = "run ranks traced_ranks samples batch_per_rank step_ns steps throughput_per_s speedup efficiency efficiency_low efficiency_high"
_SHORT: Final = ("ranks", "batch_per_rank", "step_ns", "throughput_per_s", "speedup", "efficiency")
_PARTS: Final = ("ranks", "part", "cause", "per_sample_ns", "per_batch_ns", "loss_share")
_LAWS: Final = (
    "law",
    "compute_ns",
    "fixed_ns",
    "alpha_ns",
    "bandwidth_gbps",
    "serial_share",
    "error",
    "best",
)
_TITLES: Final = {
    "traced_ranks": "ranks with a trace",
    "samples": "batch of all",
    "batch_per_rank": "batch per rank",
    "step_ns": "step",
    "throughput_per_s": "samples/s",
    "speedup": "speed-up",
    "lost_share": "lost",
    "serial_share": "serial",
    "exposed_communication_loss_share": "exposed comm.",
    "exposed_communication_and_waits_loss_share": "comm. and waits",
    "loss_share": "lost",
    "error": "error on runs left out",
    "aicc": "AICc",
    "alpha_ns": "α",
    "beta_ns": "β a byte",
    "bandwidth_gbps": "1/β",
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
    first, last = rows[0], rows[-1]
    most, step, longest = (
        count_of(last["ranks"], "rank"),
        format_ns(first["step_ns"]),
        format_ns(last["step_ns"]),
    )
    if len(rows) == 1:
        yield f"There is one run, on {most}, so there is nothing to compare; its step takes {step}."
    elif first["ranks"] == last["ranks"]:
        several = "Both" if len(rows) == 2 else f"All {len(rows)}"
        yield f"{several} runs are on {most}, so they do not show how the program scales."
    elif scaling.kind == "unknown":
        yield (
            f"A step takes {step} on {count_of(first['ranks'], 'rank')} and {longest} on {most}. Without the batches of the runs, only "
            "their step times can be compared: give --scaling strong if all ranks together had the same batch in every run, or --scaling "
            "weak if each rank had."
        )
    else:
        known = [row for row in rows if row["efficiency"] is not None]
        yield from _compared(
            scaling, known[0]["ranks"], [row for row in known if row["ranks"] == known[-1]["ranks"]]
        )


def _compared(scaling: Scaling, least: int, rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The speed-up on most ranks, and what costs efficiency there; of several runs that of the middle one."""
    row = sorted(rows, key=lambda row: row["efficiency"])[len(rows) // 2]
    strong = scaling.kind == "strong"
    verb, much = ("is", "fast") if strong else ("processes", "many samples a second")
    low, high = row["efficiency_low"], row["efficiency_high"]
    within = (
        "" if low is None else f", {format_share(low)} to {format_share(high)} by the scatter of the steps"
    )
    yield (
        f"On {count_of(row['ranks'], 'rank')} the program {verb} {row['speedup']:.{2 if row['speedup'] < TEN else 1}f} times as {much} as on {least} "
        f"({format_share(row['efficiency'])} efficiency{within})."
    )
    yield from _costs(scaling, row)


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
    texts = ([f"it loses {listed(cost)}"] if cost else []) + ([listed(gain)] if gain else [])
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
        yield "The batch differs between runs, both of a rank and of all together, so samples a second are compared."
    lacking = scaling.table.height - rows.height
    if lacking:
        yield f"{count_of(lacking, 'run')} without a recorded batch cannot be compared."


def _limit(scaling: Scaling) -> Iterator[str]:
    if (limit := scaling.batch_limit) is None:
        return
    change, way = abs(1 - limit.left), "shorter" if limit.left < 1 else "longer"
    unless = ", unless the ranks share processors" if scaling.runs[0].on_cpu else ""
    yield (
        f"From {limit.ranks} ranks on, the batch limits it{unless}: a rank's batch is {format_share(1 - limit.after / limit.before)} "
        f"smaller, but the time in which it computes is {format_share(change)} {way}."
    )


def _law(scaling: Scaling) -> Iterator[str]:
    best = [fit for fit in scaling.steps if fit.best]
    amdahl = next((fit for fit in scaling.steps if fit.law == "amdahl" and (fit.best or not best)), None)
    if len(best) > 1:
        yield f"Step times fit {listed([LAWS[fit.law] for fit in best], 'or')} equally well."
    elif best and not amdahl:
        yield f"Step times fit {LAWS[best[0].law]} best."
    elif scaling.kind != "unknown" and not best:
        judged = len(scaling.steps) > len(HOPS) and all(fit.aicc is not None for fit in scaling.steps)
        counts = count_of(len({run.ranks for run in scaling.runs}), "different number")
        few = f"Runs on {counts} of ranks are too few to tell laws of scaling apart."
        yield "No law of scaling fits the step times." if judged else few
    if amdahl:
        share, (low, high) = amdahl.values["serial_share"], amdahl.intervals["serial_share"]
        if high - low <= _NARROW:
            least = count_of(min(run.ranks for run in scaling.runs), "rank")
            most = f"more ranks make it at most {1 / share:.3g} times as fast" if share else ""
            limit = (
                f", so {most if share < 1 - FELT else 'more ranks do not make it faster'}" if share else ""
            )
            within = f"({format_share(low)} to {format_share(high)})"
            yield f"By Amdahl's law, {format_share(share)} {within} of a step on {least} does not shrink{limit}."
    network = [fit for fit in scaling.messages if fit.best]
    if len(network) == 1:
        alpha, beta = network[0].values["alpha_ns"], network[0].values["beta_ns"]
        rate = f" and {format_bytes(1e9 / beta)}/s" if beta else ""
        yield f"Collectives fit {LAWS[network[0].law]} best: {format_ns(alpha)} a hop{rate}."


def _rests_on(scaling: Scaling) -> Iterator[str]:
    how = "without the profiler" if scaling.plain else "of the recorded steps"
    split = scaling.plain and scaling.kind != "unknown"
    shares = "; the parts are their shares of the recorded steps" if split else ""
    yield f"Step times are medians {how}, each step being that of its slowest rank{shares}."
    gaps = [_gap(run) for run in scaling.runs if run.traced and run.traced < run.ranks]
    if gaps:
        yield f"Not all ranks have a trace: {'; '.join(gaps)}."


def _gap(run: Run) -> str:
    which = (
        f" (not {listed([str(rank) for rank in run.missing])})" if 0 < len(run.missing) <= MOST_NAMED else ""
    )
    return f"{run.name} has {run.traced} of {run.ranks}{which}"


# -- tables ----------------------------------------------------------------------------------------


def _tables(scaling: Scaling) -> Iterator[Table]:
    frame = scaling.table
    named = [] if frame["ranks"].n_unique() == frame.height else ["run"]
    yield _table("runs", "Runs", frame.select(_RUNS.split()), [*named, *_SHORT])
    lost = frame.filter(pl.col("efficiency").is_not_null()).select(
        "run", "ranks", "lost_share", *(name for name in frame.columns if name.endswith("_loss_share"))
    )
    lost = lost.filter(pl.col("ranks") > pl.col("ranks").min())
    if lost.height:
        some = [name for name in lost.columns[3:] if (lost[name].abs() >= FELT / 20).any()]
        named = [] if lost["ranks"].n_unique() == lost.height else ["run"]
        yield _table("losses", "Efficiency lost to", lost, [*named, "ranks", "lost_share", *some])
        parts = scaling.losses.rename({"per_sample_ns": f"per_{_work(scaling)}_ns"})
        yield _table("parts", "Parts by cause", parts, _PARTS)
    if any(fit.law != "constant" for fit in scaling.steps):  # a constant step alone is no comparison
        yield _table("laws", "Laws of the step time", _laws(scaling.steps), _LAWS)
    if scaling.messages:
        yield _table("collectives", "Laws of a collective's time", _laws(scaling.messages), _LAWS)


def _table(name: str, title: str, frame: pl.DataFrame, short: Sequence[str]) -> Table:
    parts = {
        key: key.removesuffix("_loss_share").replace("_", " ")
        for key in frame.columns
        if key.endswith("_loss_share")
    }
    untold = {"best"} if "best" in frame.columns and not frame["best"].any() else set[str]()
    shown = [key for key in short if key not in untold]
    return table_of(name, title, frame, shown, {**parts, **_TITLES}, _UNITS)


def _work(scaling: Scaling) -> str:
    """What costs are those of: the batch that is the same in all runs, if no run has a number of samples."""
    return "sample" if scaling.table["samples"].count() else "batch"


def _laws(fits: Sequence[Fit]) -> pl.DataFrame:
    """One row per law, with the ends of the interval of each parameter."""
    rows: list[dict[str, Any]] = []
    for fit in fits:
        row: dict[str, Any] = {"law": "Amdahl" if fit.law == "amdahl" else fit.law}
        for name, value in fit.values.items():
            stem, _, unit = name.rpartition("_")
            low, high = fit.intervals[name]
            row |= {name: value, f"{stem}_low_{unit}": low, f"{stem}_high_{unit}": high}
        if "beta_ns" in fit.values:
            row["bandwidth_gbps"] = 1 / fit.values["beta_ns"] if fit.values["beta_ns"] else None
        rows.append(row | {"points": fit.points, "error": fit.error, "aicc": fit.aicc, "best": fit.best})
    return pl.DataFrame(rows, infer_schema_length=None)


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
        for run, ranks in known[["run", "ranks"]].rows()
    ]  # fmt: skip
    yield Figure("cost", f"Time of all ranks for a {_work(scaling)}", "stack", {"unit": "ns", "rows": rows})


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
        [gain * base / max(each[end], each[0] / _WIDEST_BAND) for gain, each in zip(gains, ends, strict=True)]
        for end in (0, 2, 1)
    )
    yield {"label": f"by {LAWS[fit.law]}", "style": "line", "x": at, "y": middle, "low": low, "high": high}
