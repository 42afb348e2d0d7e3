"""Devices × models as a section: which device is fastest and by how much, where FLOPs mislead, what makes the difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import polars as pl

from tracekit.compare import Comparison
from tracekit.facts.units import NS_PER_MS, count_of, format_ns, format_share, listed
from tracekit.report.format import format_number
from tracekit.report.model import Column, Figure, Scalar, Section, Table, Unit, table_of

__all__ = ["compare_section"]

_MOST_TOLD: Final = 3
_MOST_NAMED: Final = 6
_MOST_DRAWN: Final = 6
_NARROW: Final = 1000
"""Axes over a smaller range have ticks at powers of 2."""
_LEAST_MODELS: Final = 3
"""Of two models every rank correlation is 1 or −1."""
_ROOM: Final = 36
"""Letters of the names of devices above a table, with a gap before each; longer ones give way to numbers."""
_RATIOS: Final = "cases speedup least most least_case most_case models"
_SHORT: Final = {
    "speedups": f"device over {_RATIOS}",
    "precisions": f"device precision over {_RATIOS}",
    "misleading": "model device precision setting flops_rank latency_rank disagreement flops latency_ns",
    "pareto_size": "model in_set latency_ns value device precision setting",
    "pareto_accuracy": "model in_set latency_ns value device precision setting",
    "layer_types": "model type one other difference_ns share at one_ns other_ns setting",
}
_TITLES: Final = {
    "number": "no.",
    "latency_ns": "latency",
    "throughput_per_s": "samples/s",
    "fastest": "fastest in",
    "fastest_models": "models won",
    "speedup": "speed-up",
    "least_case": "least for",
    "most_case": "most for",
    "tau": "Kendall's τ",
    "flops_rank": "rank by FLOPs",
    "latency_rank": "rank by latency",
    "in_set": "in the set",
    "one": "from",
    "other": "to",
    "one_ns": "time from",
    "other_ns": "time to",
}
_UNITS: Final[dict[str, Unit]] = {
    "number": "id",
    **dict.fromkeys(("speedup", "least", "most", "tau", "flops_rank", "latency_rank", "disagreement", "value"), "number"),
}  # fmt: skip


def compare_section(found: Comparison) -> Section:
    """The section: pivots of `latency` and `throughput`, a matrix of speed-ups and their pairs, precisions, rank correlations, Pareto
    sets, layer types and the `cases` themselves.
    """
    texts = (
        *_fastest(found),
        *_precisions(found),
        *_misleads(found),
        *_pareto(found),
        *_layer_types(found),
        *_rests_on(found),
    )
    return Section(
        "compare",
        "Which device is fastest for which models, by how much, and what misleads?",
        " ".join(texts),
        not_captured=_lacking(found),
        scalars=_counts(found),
        tables=tuple(_tables(found)),
        figures=tuple(_figures(found)),
    )


# -- the answer ------------------------------------------------------------------------------------


def _fastest(found: Comparison) -> Iterator[str]:
    """The fastest device, by how much and in how many cases."""
    devices = found.devices.rows(named=True)
    if len(devices) == 1:
        yield f"{count_of(devices[0]['cases'], 'case was', 'cases were')} measured on one device, {devices[0]['device']}, so no devices are compared."
        return
    compared = [row["device"] for row in devices if row["compared"]]
    if not compared:
        two = len(devices) == 2
        ignored = f"; if {listed(found.apart, 'or')} is ignored, {'they' if two else 'some'} would"
        none = "The two devices have no" if two else f"No two of the {len(devices)} devices have a"
        yield f"{none} case in common{ignored if found.apart else ''}."
        return
    first = compared[0]
    own = found.speedups.filter(pl.col("device") == first)
    pairs = own.rows(named=True)
    of_first = next(row for row in devices if row["device"] == first)
    cases = count_of(of_first["compared"], "case")
    if len(compared) == 2:
        yield f"{first} is {_ratio(pairs[0])}."
    elif (own["speedup"] <= 1).any() or len(pairs) + 1 < len(compared):
        ahead, others = (own["speedup"] > 1).sum(), len(compared) - 1
        yield f"No device is the fastest throughout: {first} is ahead of {ahead} of the {others} others that are compared."
    else:
        last = pairs[-1]
        yield f"{first} is the fastest of {len(compared)} devices: {_ratio(pairs[0])}."
        yield f"It is {last['speedup']:.2f} times as fast as {last['over']} ({count_of(last['cases'], 'case')})."
    if of_first["fastest"] == of_first["compared"]:
        yield f"It is the fastest in {'the one case' if of_first['compared'] == 1 else f'all {cases}'} in which it is compared."
    else:
        yield f"It is the fastest in {of_first['fastest']:,} of the {cases} in which it is compared."
    if alone := [row["device"] for row in devices if not row["compared"]]:
        yield f"{_named(alone)} {'has' if len(alone) == 1 else 'have'} no case in common with another device."


def _ratio(row: dict[str, Any]) -> str:
    """A pair in words, with its range over the cases."""
    if row["cases"] == 1:
        return f"{row['speedup']:.2f} times as fast as {row['over']} in the one case that both have ({row['least_case']})"
    if _span([row["least"], row["most"]])[1]:
        return f"{row['speedup']:.2f} times as fast as {row['over']} in each of the {row['cases']:,} cases that both have"
    span = f"from {row['least']:.2f} times for {row['least_case']} to {row['most']:.2f} times for {row['most_case']}"
    return f"{row['speedup']:.2f} times as fast as {row['over']} in the geometric mean over the {row['cases']:,} cases that both have ({span})"


def _precisions(found: Comparison) -> Iterator[str]:
    groups = found.precisions.partition_by("precision", "over", maintain_order=True)
    for rows in groups[:_MOST_TOLD]:
        row = rows.row(0, named=True)
        if rows.height == 1:
            yield f"On {row['device']}, {row['precision']} is {_ratio(row)}."
        else:
            span, each = _span(rows["speedup"].to_list())
            yield f"{row['precision']} is {span} times as fast as {row['over']} on {each}{rows.height} devices (geometric means)."
    if groups and not found.cases["accuracy"].count():
        yield "These figures do not show what a precision does to the accuracy."


def _span(values: Sequence[float]) -> tuple[str, str]:
    """The least and the greatest value; if they read alike one, and that each has it."""
    low, high = (f"{end:.2f}".replace("-", "−") for end in (min(values), max(values)))
    return (low, "each of ") if low == high else (f"{low} to {high}", "")


def _where(row: Mapping[str, Any]) -> str:
    """The device of a group of models, with its precision and setting."""
    more = ", ".join(filter(None, (row["precision"], row["setting"])))
    return f"{row['device']} ({more})" if more else str(row["device"])


def _misleads(found: Comparison) -> Iterator[str]:
    """How well FLOPs rank the models, and about which they mislead most."""
    known = found.correlation.filter(pl.col("models") >= _LEAST_MODELS, pl.col("tau").is_not_null())
    if not known.height:
        if found.cases["flops"].count():
            yield f"FLOPs are not compared with latency, since {_no_ranks(found)}."
        return
    span, each = _span(known["tau"].to_list())
    if known.height == 1:
        row = known.row(0, named=True)
        yield f"Kendall's τ of FLOPs and latency is {span} over {row['models']:,} models on {_where(row)}."
    else:
        yield f"Kendall's τ of FLOPs and latency is {span} in {each}{known.height:,} groups of models, which have a device, a precision and a setting in common."
    worst = found.misleading.filter(pl.col("models") >= _LEAST_MODELS).rows(named=True)
    if worst:
        row = worst[0]
        how = "slower" if row["disagreement"] > 0 else "faster"
        ranks = f"number {row['flops_rank']:g} by FLOPs and number {row['latency_rank']:g} by latency (1 is the least)"
        yield f"FLOPs mislead most about {row['model']}, which is {how} than they suggest: of {row['models']:,} models on {_where(row)} it is {ranks}."


def _no_ranks(found: Comparison) -> str:
    """Why no group of models has a rank correlation."""
    groups = found.cases.drop_nulls("flops").group_by("device", "precision", "setting")
    values = groups.agg(pl.len().alias("models"), pl.col("flops", "latency_ns").n_unique())
    large = values.filter(pl.col("models") >= _LEAST_MODELS)
    equal = [word for name, word in (("flops", "FLOPs"), ("latency_ns", "latency")) if 1 in large[name]]
    if not equal:
        return "no device has three models of known FLOPs in one setting"
    return f"all models of a device in one setting have the same {listed(equal, 'or the same')}"


def _pareto(found: Comparison) -> Iterator[str]:
    for against in ("size", "accuracy"):
        rows = found.pareto.filter(pl.col("against") == against)
        if not rows.height:
            continue
        group = _largest(rows)
        names = group.filter("in_set")["model"].to_list()
        verb, words = "is" if len(names) == 1 else "are", against.replace("size", found.measured.size_name)
        yield f"Of {group.height:,} models on {_where(group.row(0, named=True))}, {_named(names)} {verb} in the Pareto set of latency and {words}."


def _named(names: Sequence[str], word: str = "and") -> str:
    """At most so many names, and how many more there are."""
    more = [f"{len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
    return listed([*names[:_MOST_NAMED], *more], word)


def _largest(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows of the device, precision and setting that has most of them; of equals the first."""
    groups = rows.partition_by("device", "precision", "setting", maintain_order=True)
    return max(groups, key=lambda group: group.height)


def _layer_types(found: Comparison) -> Iterator[str]:
    """Which layer type makes most of the difference between the first device and the slowest that has the same cases in traces."""
    if not found.layer_types.height:
        return
    rows = found.layer_types
    pair = (
        rows.filter(pl.col("one") == rows["one"][0])
        .select("one", "other")
        .unique(maintain_order=True)
        .row(-1)
    )
    own = rows.filter(pl.col("one") == pair[0], pl.col("other") == pair[1]).drop_nulls("share")
    largest = own.group_by("model", "setting", "at", maintain_order=True).first()
    if not largest.height:
        return
    if largest.height == 1:
        row = largest.row(0, named=True)
        yield f"{row['type']} accounts for {format_share(row['share'])} of the difference in layer time of {row['model']} between {pair[0]} and {pair[1]} ({format_ns(row['difference_ns'])} a step)."
        return
    counts = largest["type"].value_counts().sort("count", "type", descending=[True, False])
    name, count = counts.row(0)
    yield f"Between {pair[0]} and {pair[1]}, {name} accounts for the largest part of the difference in layer time in {count} of {largest.height} cases."


def _rests_on(found: Comparison) -> Iterator[str]:
    if found.options:
        yield f"Only cases with the same {listed(found.options)} are compared."
    if profiled := found.measured.profiled:
        which = "All" if profiled == found.measured.rows.height else "Some"
        yield f"{which} times are of profiled steps; capture the level M for undisturbed times."


def _counts(found: Comparison) -> dict[str, Scalar]:
    """How much was measured."""
    cases = found.cases[["model", "setting", "precision"]].n_unique()
    whole = cases * found.devices.height
    return {
        "models": found.cases["model"].n_unique(),
        "cases": cases,
        "measured": found.cases.height,
        "not_measured": whole - found.cases.height,
        "medians_of_several": found.repeated or None,
    }


def _lacking(found: Comparison) -> str | None:
    cases, texts = found.cases, []
    if not cases["flops"].count():
        texts.append("FLOPs (a column flops, or runs captured with shapes)")
    if not cases["size"].count() and not cases["accuracy"].count():
        texts.append("sizes and accuracies (columns parameters and accuracy)")
    if not found.measured.types.height:
        texts.append("layer types (runs captured at the level MLG)")
    return listed(texts) or None


# -- tables ----------------------------------------------------------------------------------------


def _tables(found: Comparison) -> Iterator[Table]:
    devices = found.devices["device"].to_list()
    yield _table("devices", "Devices, the fastest first", found.devices.with_row_index("number", 1))
    yield _pivot("latency", "Latency", found.cases, devices, "latency_ns", "ns")
    if found.cases["throughput_per_s"].count():
        yield _pivot("throughput", "Samples a second", found.cases, devices, "throughput_per_s", "number")
    if found.speedups.height:
        yield _matrix(found, devices)
    size = found.measured.size_name
    for name, title, frame in (
        ("speedups", "Speed-ups of pairs of devices (geometric means)", found.speedups),
        ("precisions", "Speed-ups of precisions (geometric means)", found.precisions),
        ("correlation", "Rank correlation of FLOPs and latency", found.correlation),
        ("misleading", "Models whose ranks by FLOPs and by latency differ (1 is the least)", found.misleading),
        ("pareto_size", f"Pareto sets of latency and {size}", found.pareto.filter(pl.col("against") == "size")),
        ("pareto_accuracy", "Pareto sets of latency and accuracy", found.pareto.filter(pl.col("against") == "accuracy")),
        ("layer_types", "Layer types: what they add to a step", found.layer_types),
    ):  # fmt: skip
        if frame.height:
            yield _table(name, title, frame, titles={"value": size if name == "pareto_size" else "accuracy"})
    yield _table("cases", "What was measured", found.cases)


def _table(name: str, title: str, frame: pl.DataFrame, titles: Mapping[str, str] = {}) -> Table:  # fmt: skip
    return replace(table_of(name, title, frame, _SHORT.get(name), {**_TITLES, **titles}, _UNITS), whole=True)


def _pivot(
    name: str, title: str, cases: pl.DataFrame, devices: Sequence[str], value: str, unit: Unit
) -> Table:
    """A row for each case and precision, a column for each device; null where it was not measured."""
    index = ["model", "setting", "precision"]
    names = [f"{value} {device}" for device in devices]
    named = cases.with_columns(pl.format("{} {}", pl.lit(value), "device").alias("device"))
    frame = named.pivot("device", index=index, values=value, maintain_order=True).select(*index, *names)
    return _wide(name, title, frame, [(column, unit) for column in names], devices)


def _matrix(found: Comparison, devices: Sequence[str]) -> Table:
    """How many times as fast the device of a row is as that of a column; null where no case is common."""
    means: dict[tuple[str, str], float] = {(device, device): 1.0 for device in devices}
    for device, over, mean in found.speedups[["device", "over", "speedup"]].rows():
        means[device, over], means[over, device] = mean, 1 / mean
    rows = {f"speedup over {over}": [means.get((device, over)) for device in devices] for over in devices}
    frame = pl.DataFrame({"device": devices, **rows}, schema_overrides=dict.fromkeys(rows, pl.Float64))
    title = "Times as fast, row over column (geometric means)"
    return _wide("matrix", title, frame, [(column, "number") for column in rows], devices)


def _wide(
    name: str, title: str, frame: pl.DataFrame, columns: Sequence[tuple[str, Unit]], devices: Sequence[str]
) -> Table:
    """A table with a column for each device: below its name, or its number in the table of devices if the names have no room."""
    roomy = sum(len(device) + 2 for device in devices) <= _ROOM
    heads = devices if roomy else [str(number + 1) for number in range(len(devices))]
    own = {column: Column(column, head, unit) for (column, unit), head in zip(columns, heads, strict=True)}
    whole = _table(name, title, frame)
    return replace(whole, columns=tuple(own.get(each.name, each) for each in whole.columns))


# -- figures ---------------------------------------------------------------------------------------


def _figures(found: Comparison) -> Iterator[Figure]:
    if found.speedups.height:
        yield _bars("speedups", found.speedups.select("over", "cases", one="device", speedup="speedup"))
    elif found.precisions.height:
        first = found.precisions.filter(pl.col("device") == found.precisions["device"][0])
        yield _bars("precisions", first.select("over", "cases", one="precision", speedup="speedup"))
    known = found.cases.filter(pl.col("flops") > 0, pl.col("latency_ns").is_not_null())
    if found.correlation.height and known.height:
        yield _flops(known)
    for against, words in (("size", found.measured.size_name), ("accuracy", "accuracy")):
        rows = found.pareto.filter(pl.col("against") == against, pl.col("value") > 0)
        if rows.height:
            yield _front(_largest(rows), against, words)


def _bars(name: str, pairs: pl.DataFrame) -> Figure:
    """The speed-ups of `one` over the device or precision with which most others share a case, and most cases; of equals the fastest."""
    inverse = pairs.select(over="one", cases="cases", one="over", speedup=1 / pl.col("speedup"))
    both = pl.concat([inverse, pairs])
    shared = both.group_by("over", maintain_order=True).agg(pl.len(), pl.col("cases").sum())
    base = shared.sort("len", "cases", descending=True, maintain_order=True)["over"][0]
    rows = [*both.filter(pl.col("over") == base)[["one", "speedup"]].rows(), (base, 1.0)]
    bars = [{"label": label, "value": value} for label, value in sorted(rows, key=lambda row: -row[1])]
    title = f"Times as fast as {base} (geometric means)"
    return Figure(name, title, "bars", {"unit": "number", "bars": bars})


def _flops(known: pl.DataFrame) -> Figure:
    """Latency against FLOPs, the models of each device in the precision and setting that has most of them."""
    groups = known.partition_by("precision", "setting", maintain_order=True)
    rows = max(groups, key=lambda group: group["model"].n_unique())
    devices = rows.partition_by("device", maintain_order=True)[:_MOST_DRAWN]
    series = [_dots(group["device"][0], group, "flops", 1e9, "GFLOP") for group in devices]
    where = ", ".join(filter(None, rows[["precision", "setting"]].row(0)))
    title = f"Latency by FLOPs{f', {where}' if where else ''}"
    return _curve("flops", title, "GFLOP", series)


def _curve(name: str, title: str, x_title: str, series: Sequence[dict[str, Any]]) -> Figure:
    spans = [[value for one in series for value in one[axis]] for axis in ("x", "y")]
    base = 2 if all(max(each) < _NARROW * min(each) for each in spans) else 10
    return Figure(name, title, "curve", {"base": base, "x_title": x_title, "y_title": "ms", "series": series})


def _dots(label: str, rows: pl.DataFrame, x: str, scale: float, unit: str) -> dict[str, Any]:
    across, up = (rows[x] / scale).to_list(), (rows["latency_ns"] / NS_PER_MS).to_list()
    names = [
        f"{model}: {format_number(value)} {unit}, {format_ns(ns)}"
        for model, value, ns in zip(rows["model"], across, rows["latency_ns"], strict=True)
    ]
    return {"label": label, "style": "dots", "x": across, "y": up, "names": names}


def _front(rows: pl.DataFrame, against: str, words: str) -> Figure:
    """The models of a device by latency and size, or accuracy, those of the Pareto set joined and named."""
    inside = rows.filter("in_set")
    series = [{**_dots("Pareto set", inside, "value", 1.0, words), "marks": inside["model"].to_list()}]
    if inside.height < rows.height:
        series.append(_dots("other models", rows.filter(~pl.col("in_set")), "value", 1.0, words))
    title = f"Latency and {words} on {', '.join(filter(None, rows.select('device', 'precision', 'setting').row(0)))}"
    return _curve(f"pareto_{against}", title, words, series)
