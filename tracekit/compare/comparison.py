"""Devices × models: what was measured of the same cases on several devices, and in several precisions, compared.

A case is a model with its options: mode, batch and whatever else was varied. Devices are compared over the cases that both have, in the
same precision, and precisions over those of one device. What was not measured is null, and takes part in nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import polars as pl

from tracekit.classes import dataclass
from tracekit.compare.measured import FIGURES, IDENTITY, OPTION, Measured
from tracekit.compare.ranks import kendall_taus, pareto_sets
from tracekit.errors import UsageError
from tracekit.facts.units import NS_PER_S
from tracekit.trace import Schema

__all__ = ["Comparison", "compare"]

_MOST: Final = 64
"""Devices, and precisions, of one comparison."""
_WIDEST: Final = ("fp64", "fp32", "tf32", "bf16", "fp16")
"""Other precisions follow these."""
_FIRST: Final = (f"{OPTION}mode", f"{OPTION}batch")
"""Options that are named before the others."""
_CASE: Final = ("model", "setting")
_GROUP: Final = ("device", "precision", "setting")
_RATIOS: Final[Schema] = {
    "cases": pl.Int64, "models": pl.Int64, "speedup": pl.Float64, "least": pl.Float64, "least_case": pl.String, "most": pl.Float64, "most_case": pl.String,
}  # fmt: skip
_SPEEDUPS: Final[Schema] = {"device": pl.String, "over": pl.String, **_RATIOS}
_PRECISIONS: Final[Schema] = {"device": pl.String, "precision": pl.String, "over": pl.String, **_RATIOS}
_CORRELATION: Final[Schema] = {**dict.fromkeys(_GROUP, pl.String), "models": pl.Int64, "tau": pl.Float64}
_RANKS: Final[Schema] = {
    **dict.fromkeys(("model", *_GROUP), pl.String), "flops": pl.Float64, "flops_rank": pl.Float64, "latency_ns": pl.Float64,
    "latency_rank": pl.Float64, "disagreement": pl.Float64, "models": pl.Int64,
}  # fmt: skip
_PARETO: Final[Schema] = {
    **dict.fromkeys((*_GROUP, "model", "against"), pl.String), "latency_ns": pl.Float64, "value": pl.Float64, "in_set": pl.Boolean,
}  # fmt: skip
_DIFFERENCES: Final[Schema] = {
    **dict.fromkeys(("model", "setting", "one", "other", "at", "type"), pl.String),
    **dict.fromkeys(("one_ns", "other_ns", "difference_ns", "share"), pl.Float64),
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Comparison:
    """What was measured, compared. Devices are in the order of `devices` everywhere."""

    cases: pl.DataFrame
    """A row for each `model`, `setting` (its options in words, without those that each model has one value of), `precision` and
    `device`: `latency_ns` (the median of its `measurements`), `throughput_per_s` (samples; null without a batch), `flops`,
    `flops_per_s`, `size` and `accuracy` (null if not known)."""
    devices: pl.DataFrame
    """A row for each `device`, those first that are faster than more of the others: its `cases` and `models`; `compared`, the cases
    that another device has too, and `fastest`, those of them in which none is faster; `fastest_models`, the models of which it is the
    fastest in every compared case."""
    speedups: pl.DataFrame
    """A row for each pair of devices with common cases: `speedup`, the geometric mean of the latency of `over` over that of `device`;
    `cases` and `models`, how many they are; `least` and `most` with their cases, and the precision of these if there are several."""
    precisions: pl.DataFrame
    """The same of each `device` for `precision` against `over`."""
    correlation: pl.DataFrame
    """A row for each device, precision and setting with several models whose FLOPs are known: `tau`, Kendall's τ-b of FLOPs and
    latency (null if all are equal)."""
    misleading: pl.DataFrame
    """Their models whose two ranks differ (1 is the least, ties share the mean): `disagreement` is the rank by latency minus that by
    FLOPs, so that a model is slower than its FLOPs suggest where it is above 0. The largest come first."""
    pareto: pl.DataFrame
    """A row for each device, precision, setting, model and figure `against` latency (`size` or `accuracy`, its `value`); `in_set` if
    no other model of them is at least as good in both and better in one."""
    layer_types: pl.DataFrame
    """A row for each case that two devices have in traces, and layer type: its time in a step on `one` and on the `other` device, the
    difference, and its `share` of the sum of all types' differences; `at` is the precision. Rows where `at` is a device compare two
    precisions on it."""
    repeated: int
    """How many rows of `cases` were measured more than once."""
    apart: tuple[str, ...]
    """If no two devices have a case in common, the options without which some would."""
    options: tuple[str, ...]
    """The options that tell the cases of a model apart."""
    measured: Measured


def compare(measured: Measured) -> Comparison:
    """All comparisons of these measurements, of which there is at least one.

    Raises UsageError for more than 64 devices or precisions.

    >>> rows = [("cnn", "old", "", 30.0, 8.0), ("cnn", "new", "", 10.0, 8.0), ("bert", "old", "", 80.0, 8.0), ("bert", "new", "", 20.0, 8.0)]
    >>> frame = pl.DataFrame(rows, schema=["model", "device", "precision", "latency_ns", "samples"], orient="row")
    >>> nothing = [pl.lit(None, pl.Float64).alias(name) for name in ("flops", "size", "accuracy")]
    >>> found = compare(Measured(rows=frame.with_columns(nothing)))
    >>> found.speedups.select("device", "over", "cases", pl.col("speedup").round(4)).row(0)
    ('new', 'old', 2, 3.4641)
    """
    for name in ("device", "precision"):
        if (count := measured.rows[name].n_unique()) > _MOST:
            raise UsageError(f"there are {count:,} {name}s", remedy=f"compare at most {_MOST} at once")
    rows = _with_settings(measured.rows)
    cases = _cases(rows)
    devices = _order(cases)
    precisions = sorted(set(cases["precision"]), key=lambda name: (_place(name, _WIDEST), name))
    cases = _sorted(cases, devices, precisions)
    types = _types(rows, measured.types)
    known = cases.filter(pl.col("precision") != "")
    of_devices = _ratios(cases, "device", ("precision",), devices)
    of_precisions = _ratios(known, "precision", ("device",), precisions[::-1])
    return Comparison(
        cases=cases,
        devices=_devices(cases, devices),
        speedups=_summary(of_devices, ("device", "over"), _SPEEDUPS),
        precisions=_summary(of_precisions, ("device", "precision", "over"), _PRECISIONS),
        correlation=_correlated(cases),
        misleading=_misleading(cases),
        pareto=_pareto(cases),
        layer_types=pl.concat(
            [
                _differences(types, "device", "precision", devices),
                _differences(
                    types.filter(pl.col("precision") != ""), "precision", "device", precisions[::-1]
                ),
            ]
        ),
        repeated=cases.filter(pl.col("measurements") > 1).height,
        apart=() if of_devices.height else tuple(_apart(measured.rows)),
        options=tuple(name.removeprefix(OPTION) for name in _telling(measured.rows)),
        measured=measured,
    )


def _place(name: str, names: Sequence[str]) -> int:
    """Where a name stands among these; behind all of them if it is none."""
    return names.index(name) if name in names else len(names)


# -- cases -----------------------------------------------------------------------------------------


def _with_settings(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with their options in words, in the order of the models and the options' values."""
    names = _telling(rows)
    number = [pl.col(name).cast(pl.Float64, strict=False).name.prefix("as a number: ") for name in names]
    order = ["model", *(each for name in names for each in (f"as a number: {name}", name)), "precision"]
    words = _words(rows, names)
    setting = pl.concat_str(words, separator=", ", ignore_nulls=True) if words else pl.lit("")
    place = pl.int_range(pl.len(), dtype=pl.Int64).alias("at")
    return (
        rows.with_columns(setting.alias("setting"), place, *number)
        .sort(order, maintain_order=True)
        .select(*IDENTITY, *FIGURES, "setting", "at")
    )


def _telling(rows: pl.DataFrame) -> list[str]:
    """The options that tell the cases of a model apart.

    Not those of which each model has one value, and not those that only name the case: each value belongs to one model, and the
    other options tell as much.
    """
    names = [name for name in rows.columns if name.startswith(OPTION)]
    kept = sorted(names, key=lambda name: _place(name, _FIRST))
    cases = rows.select("model", *kept).unique()
    for name in reversed(kept.copy()):
        pairs, rest = cases.select("model", name).n_unique(), cases.drop(name).unique()
        only_a_name = pairs == cases[name].n_unique() and rest.height == cases.height
        if pairs == cases["model"].n_unique() or only_a_name:
            kept.remove(name)
            cases = rest
    return kept


def _words(rows: pl.DataFrame, options: Sequence[str]) -> list[pl.Expr]:
    """Each option with its value, a text alone where no other option has it; null if it is not given."""
    found = []
    for option in options:
        name, value = option.removeprefix(OPTION), pl.col(option)
        others = {text for other in options if other != option for text in rows[other].unique()}
        texts = rows[option].drop_nulls().unique()
        alone = not texts.str.contains(r"^[+-]?\.?\d").any() and others.isdisjoint(texts)
        named = value if alone else pl.lit(f"{name} ") + value
        flags = {"true": name, "false": f"no {name}"}
        found.append(pl.when(value.is_in([*flags])).then(value.replace(flags)).otherwise(named))
    return found


def _cases(rows: pl.DataFrame) -> pl.DataFrame:
    key = ["model", "setting", "precision", "device"]
    of_case = rows.group_by(key, maintain_order=True).agg(
        *(pl.col(name).median() for name in FIGURES), pl.len().cast(pl.Int64).alias("measurements")
    )
    seconds = pl.col("latency_ns") / NS_PER_S
    return of_case.select(
        *key,
        "latency_ns",
        (pl.col("samples") / seconds).alias("throughput_per_s"),
        "flops",
        (pl.col("flops") / seconds).alias("flops_per_s"),
        *("size", "accuracy", "measurements"),
    )


def _sorted(cases: pl.DataFrame, devices: Sequence[str], precisions: Sequence[str]) -> pl.DataFrame:
    """The cases in their order, each with its precisions and devices in these orders."""
    first = pl.col("at").min().over(_CASE)
    places = (pl.col(name).cast(pl.Enum(values)) for name, values in (("precision", precisions), ("device", devices)))  # fmt: skip
    return cases.with_row_index("at").sort(first, *places).drop("at")


def _apart(rows: pl.DataFrame) -> Iterator[str]:
    """The options without which two devices would have a common case."""
    names = [name for name in rows.columns if name.startswith(OPTION)]
    for name in names:
        key = ["model", "precision", *(other for other in names if other != name)]
        if (rows.group_by(key).agg(pl.col("device").n_unique())["device"] > 1).any():
            yield name.removeprefix(OPTION)


# -- devices and precisions against each other -----------------------------------------------------


def _ratios(cases: pl.DataFrame, of: str, alike: Sequence[str], values: Sequence[str]) -> pl.DataFrame:
    """For each pair of values of the column `of`, in this order, and each case that both have, how many times as fast the first
    is as the second, `over`.
    """
    key = [*_CASE, *alike]
    one = cases.select(*key, of, "latency_ns", pl.col(of).cast(pl.Enum(values)).alias("place"))
    pairs = one.join(one, on=key, suffix=" over").filter(pl.col("place") < pl.col("place over"))
    ratio = (pl.col("latency_ns over") / pl.col("latency_ns")).alias("ratio")
    return pairs.sort("place", "place over", maintain_order=True).select(
        *key, of, pl.col(f"{of} over").alias("over"), ratio
    )


def _summary(ratios: pl.DataFrame, key: Sequence[str], schema: Schema) -> pl.DataFrame:
    ratio = pl.col("ratio")
    several = (
        pl.col("precision").n_unique().over(key) > 1
    )  # of which one case may be the least in one and the most in another
    parts = (
        pl.when(several & (pl.col("precision") != "")).then("precision"),
        pl.when(pl.col("setting") != "").then("setting"),
    )
    inside = pl.concat_str(*parts, separator=", ", ignore_nulls=True)
    named = pl.when(inside == "").then("model").otherwise(pl.format("{} ({})", "model", inside))
    words = pl.col("named")
    found = (
        ratios.with_columns(named.alias("named"))
        .group_by(key, maintain_order=True)
        .agg(
            pl.len().alias("cases"),
            pl.col("model").n_unique().alias("models"),
            ratio.log().mean().exp().alias("speedup"),
            ratio.min().alias("least"),
            words.get(ratio.arg_min()).alias("least_case"),
            ratio.max().alias("most"),
            words.get(ratio.arg_max()).alias("most_case"),
        )
    )
    return found.select(pl.col(name).cast(kind) for name, kind in schema.items())


def _order(cases: pl.DataFrame) -> list[str]:
    """The devices: first those that are faster, in the geometric mean of the common cases, than more of the others; those that have no
    case in common with another come last.
    """
    names = sorted(set(cases["device"]))
    ratios = _ratios(cases, "device", ("precision",), names)
    score: dict[str, int] = {}
    for device, over, mean in ratios.group_by("device", "over").agg(pl.col("ratio").log().mean()).rows():
        sign = (mean > 0) - (mean < 0)
        score[device] = score.get(device, 0) + sign
        score[over] = score.get(over, 0) - sign
    return sorted(names, key=lambda name: (name not in score, -score.get(name, 0), name))


def _devices(cases: pl.DataFrame, devices: Sequence[str]) -> pl.DataFrame:
    key = [*_CASE, "precision"]
    rows = cases.with_columns(
        (pl.len().over(key) > 1).alias("compared"),
        (pl.col("latency_ns") == pl.col("latency_ns").min().over(key)).alias("first"),
    )
    fastest = pl.col("compared") & pl.col("first")
    of_model = rows.filter("compared").group_by("device", "model").agg(pl.col("first").all())
    models = of_model.group_by("device").agg(pl.col("first").sum().cast(pl.Int64).alias("fastest_models"))
    found = rows.group_by("device").agg(
        pl.len().cast(pl.Int64).alias("cases"),
        pl.col("model").n_unique().cast(pl.Int64).alias("models"),
        pl.col("compared").sum().cast(pl.Int64),
        fastest.sum().cast(pl.Int64).alias("fastest"),
    )
    joined = found.join(models, on="device", how="left").with_columns(pl.col("fastest_models").fill_null(0))
    return joined.sort(pl.col("device").cast(pl.Enum(devices)))


# -- models against each other ---------------------------------------------------------------------


def _groups(rows: pl.DataFrame) -> pl.DataFrame:
    """The models of each device, precision and setting that has several, one `group` (its number) after the other."""
    first = pl.col("row").min().over(_GROUP)
    several = rows.with_row_index("row").filter(pl.len().over(_GROUP) > 1).with_columns(first)
    return several.sort("row", maintain_order=True).with_columns(
        group=pl.col("row").rank("dense").cast(pl.Int64) - 1
    )


def _correlated(cases: pl.DataFrame) -> pl.DataFrame:
    rows = _groups(cases.drop_nulls("flops"))
    taus = kendall_taus(*(rows[name].to_numpy() for name in ("flops", "latency_ns", "group")))
    groups = rows.group_by(_GROUP, maintain_order=True).agg(pl.len().alias("models"))
    found = groups.with_columns(pl.Series("tau", taus, dtype=pl.Float64))
    return found.select(pl.col(name).cast(kind) for name, kind in _CORRELATION.items())


def _misleading(cases: pl.DataFrame) -> pl.DataFrame:
    rank = {
        f"{name}_rank": pl.col(of).rank("average").over(_GROUP)
        for name, of in (("flops", "flops"), ("latency", "latency_ns"))
    }
    ranked = cases.drop_nulls("flops").with_columns(**rank, models=pl.len().over(_GROUP).cast(pl.Int64))
    ranked = ranked.with_columns(disagreement=pl.col("latency_rank") - pl.col("flops_rank"))
    # Where all values of one of them are equal, its ranks suggest nothing.
    told = [pl.col(name).n_unique().over(_GROUP) > 1 for name in rank]
    wrong = ranked.filter(pl.col("disagreement") != 0, *told).select(pl.col(name).cast(kind) for name, kind in _RANKS.items())  # fmt: skip
    share = pl.col("disagreement").abs() / (pl.col("models") - 1)
    return wrong.sort(share, descending=True, maintain_order=True)


def _pareto(cases: pl.DataFrame) -> pl.DataFrame:
    found = []
    for against, sign in (("size", 1), ("accuracy", -1)):
        rows = _groups(cases.drop_nulls(against)).sort("group", "latency_ns", maintain_order=True)
        inside = pareto_sets(rows["latency_ns"].to_numpy(), sign * rows[against].to_numpy(), rows["group"].to_numpy())  # fmt: skip
        found.append(
            rows.with_columns(pl.lit(against).alias("against"), pl.col(against).alias("value"), in_set=inside)
        )
    return pl.concat(each.select(pl.col(name).cast(kind) for name, kind in _PARETO.items()) for each in found)


# -- layer types -----------------------------------------------------------------------------------


def _types(rows: pl.DataFrame, types: pl.DataFrame) -> pl.DataFrame:
    """The time of each layer type of each case; of several measurements the median."""
    key = [*_CASE, "precision", "device", "type"]
    return types.join(rows, on="at").group_by(key, maintain_order=True).agg(pl.col("time_ns").median())


def _differences(types: pl.DataFrame, of: str, at: str, values: Sequence[str]) -> pl.DataFrame:
    """The layer types of each case that two devices, or two precisions, have in traces; a type that one does not run takes no time."""
    key = [*_CASE, at]
    place = pl.col(of).cast(pl.Enum(values))
    both = types.select(*key, of).unique()
    pairs = both.join(both, on=key, suffix=" other").filter(place < pl.col(f"{of} other").cast(pl.Enum(values)))  # fmt: skip
    one = pairs.join(types, on=[*key, of])
    other = pairs.join(types.rename({of: f"{of} other"}), on=[*key, f"{of} other"])
    pair = [*key, of, f"{of} other"]
    rows = one.join(other, on=[*pair, "type"], how="full", coalesce=True, suffix=" there")
    rows = rows.with_columns(pl.col("time_ns", "time_ns there").fill_null(0.0))
    difference = pl.col("time_ns there") - pl.col("time_ns")
    whole = difference.sum().over(pair)
    made = rows.select(
        *_CASE,
        pl.col(of).alias("one"),
        pl.col(f"{of} other").alias("other"),
        pl.col(at).alias("at"),
        "type",
        pl.col("time_ns").alias("one_ns"),
        pl.col("time_ns there").alias("other_ns"),
        difference.alias("difference_ns"),
        pl.when(whole != 0).then(difference / whole).alias("share"),
        *(pl.col(name).cast(pl.Enum(values)).alias(place) for name, place in ((of, "place"), (f"{of} other", "place other"))),
    )  # fmt: skip
    order = ["place", "place other", *_CASE, "at"]
    descending = [False] * len(order) + [True]
    return made.sort(*order, "share", descending=descending, nulls_last=True).select(
        pl.col(name).cast(kind) for name, kind in _DIFFERENCES.items()
    )
