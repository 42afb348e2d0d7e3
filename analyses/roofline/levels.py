"""Pieces of work against the ceilings of their device, and their sums at any level.

The least time of a piece is that at its roof: the longer of its FLOPs at the peak and its bytes at the bandwidth. It is memory-bound
if the bytes take longer, so if its intensity is below the ridge. A row of a level adds the least times of its pieces, not their
FLOPs and bytes under one roof: operators run one after the other, each under its own roof and in its own precision. So the
figures of all levels have the same sums.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Final

import msgspec
import numpy as np
import polars as pl

from tracekit.facts.ceilings import Ceilings
from tracekit.groups import (
    Groups,
    any_known,
    are_known,
    distinct,
    distinct_counts,
    groups,
    or_none,
    text_numbers,
    with_series,
)
from tracekit.spans import Int64Array
from tracekit.trace import Schema

__all__ = [
    "BOUNDS",
    "BOUND_OF_SUMS",
    "FIGURES",
    "LEVEL_SCHEMA",
    "level",
    "levels",
    "under_roofs",
    "with_parts",
]

LEVEL_SCHEMA: Final[Schema] = {
    "calls": pl.Int64,  # activities; of operators, and without a device, calls of operators
    "device_ns": pl.Int64,  # of all activities of the row; null where times were not recorded
    "flops": pl.Int64,
    "source": pl.String,  # of the FLOPs: counter (ncu), counter, analytic, recorded (a copy), or several, joined by +
    "bytes": pl.Int64,  # read and written
    "bytes_source": pl.String,  # as of the FLOPs; also derived (a counter's rate × time)
    "precision": pl.String,  # in which most of the FLOPs are
    "unit": pl.String,  # matrix or vector, of the same
    "intensity": pl.Float64,  # FLOP per byte, of the pieces of which both are known
    "flops_per_s": pl.Float64,  # over flops_ns; null without FLOPs
    "bytes_per_s": pl.Float64,  # over bytes_ns
    "attainable_flops_per_s": pl.Float64,  # FLOPs over the least time; null without FLOPs
    "efficiency": pl.Float64,  # the least time, not rounded, over rated_ns
    "bound": pl.String,  # compute, memory, L2 or L1: what most of the least time is spent on
    "least_ns": pl.Int64,  # at the roof, of each piece in whole ns
    "wasted_ns": pl.Int64,  # the rest, of the pieces that took longer than that
    "faster_ns": pl.Int64,  # the time of the pieces that took less than that
    "flops_ns": pl.Int64,  # the time of the pieces whose FLOPs are known
    "bytes_ns": pl.Int64,  # … whose bytes are
    "rated_ns": pl.Int64,  # … whose FLOPs, bytes and ceilings are
    "rated_share": pl.Float64,  # of device_ns
    "bandwidth_efficiency": pl.Float64,  # bytes_per_s over the peak
    "l2_intensity": pl.Float64,  # FLOP per byte through L2, by counters
    "l1_intensity": pl.Float64,
}
"""The figures of a row of any level, null where they are not known. Times of pieces are counted at their longest kernel: the other
kernels of its operator have a `device_ns`, and no figures.
"""

BOUNDS: Final = {"compute": "compute_ns", "memory": "memory_ns", "L2": "l2_ns", "L1": "l1_ns"}
"""What may bound a piece, each with the column that says how long it alone would take."""


def under_roofs(rows: pl.DataFrame, ceilings: Mapping[int, Ceilings]) -> pl.DataFrame:
    """The pieces (`analyses.roofline.pieces`) with `least_ns`, not rounded, and their `bound`, null where a ceiling is not known.

    `ceilings` are those of each device by its number. Beside them `compute_ns` and `memory_ns`: how long each alone would take.
    """
    kinds = ["device_id", "precision", "unit"]
    alike = groups(*(_number(rows[name]) for name in kinds))
    of = rows[kinds][alike.first].rows()
    found = {"peak": [_peak(ceilings.get(device), *work) for device, *work in of]}
    for name in ("DRAM", "L2", "L1"):
        found[name] = [_bandwidth(ceilings.get(device), name, unit) for device, _, unit in of]
    peaks = pl.DataFrame(found, schema=dict.fromkeys(found, pl.Float64))[alike.of]
    timed = rows[_RATED].hstack(peaks.get_columns()).with_columns(_ALONE).select(*_KEPT, *_AT_ROOF)
    # The pieces themselves are not copied, and nulls that are made, unlike those of a query, take no memory.
    return rows.hstack([column if any_known(column) else column.clear(rows.height) for column in timed])


def with_parts(rows: pl.DataFrame, names: Collection[str]) -> pl.DataFrame:
    """The pieces `under_roofs` with these of what levels add up; all of it takes more room than the pieces do."""
    parts = {**_of_each(), **_where_known()}
    return rows.with_columns(part.alias(name) for name, part in parts.items() if name in names)


def _at_roof() -> list[pl.Expr]:
    known = pl.col("compute_ns").is_not_null() & pl.col("memory_ns").is_not_null()
    # Of what took no tick of the clock no rate is known.
    known &= (pl.col("piece_ns") > 0).fill_null(value=True)
    least = pl.max_horizontal(*BOUNDS.values())
    bound = pl.coalesce(pl.when(pl.col(time) == least).then(pl.lit(name)) for name, time in BOUNDS.items())
    return [
        pl.when(known).then(least).alias("least_ns"),
        pl.when(known).then(bound).alias("bound"),
    ]


_ALONE: Final = [
    pl.when(pl.col("flops") == 0)
    .then(0.0)
    .otherwise(pl.col("flops") / pl.col("peak") * 1e9)
    .alias("compute_ns"),
    (pl.col("bytes") / pl.col("DRAM") * 1e9).alias("memory_ns"),
    (pl.col("l2_bytes") / pl.col("L2") * 1e9).alias("l2_ns"),
    (pl.col("l1_bytes") / pl.col("L1") * 1e9).alias("l1_ns"),
]
_AT_ROOF: Final = _at_roof()
_RATED: Final = ["flops", "bytes", "l2_bytes", "l1_bytes", "piece_ns"]
_KEPT: Final = ("compute_ns", "memory_ns")


def _peak(ceilings: Ceilings | None, precision: str | None, unit: str | None) -> float | None:
    if ceilings is None or precision is None:
        return None
    found = ceilings.peak(precision, unit or "vector")
    # A processor computes products in the lanes that do all else.
    return ceilings.peak(precision) if found is None and ceilings.threads is not None else found


def _bandwidth(ceilings: Ceilings | None, level: str, unit: str | None) -> float | None:
    return None if ceilings is None or unit == "link" else ceilings.bandwidth.get(level)


_INTENSITIES: Final = {"bytes": "intensity", "l2_bytes": "l2_intensity", "l1_bytes": "l1_intensity"}


def _of_each() -> dict[str, pl.Expr]:
    """What is told of each piece under its roof."""
    time, least = pl.col("piece_ns"), pl.col("least_ns")
    whole = least.round().cast(pl.Int64)  # so that the rows of all levels have the same sum
    return {
        "timed_least_ns": pl.when(time.is_not_null()).then(whole),
        "at_roof_ns": pl.when(time.is_not_null()).then(least),
        "wasted_ns": pl.when(time >= whole).then(time - whole),
        "faster_ns": pl.when(time < whole).then(time),
        "moving_ns": pl.when(time > 0).then("memory_ns"),
        **{f"{name}-bound ns": pl.when(pl.col("bound") == name).then(least) for name in BOUNDS},
    }


def _where_known() -> dict[str, pl.Expr]:
    """A figure where another one is known as well, of a piece or of several alike in what is known."""
    time, counted, rated = pl.col("piece_ns"), pl.col("flops").is_not_null(), pl.col("least_ns").is_not_null()
    return {
        "flops_ns": pl.when(counted).then(time),
        "bytes_ns": pl.when(pl.col("bytes").is_not_null()).then(time),
        "rated_ns": pl.when(rated).then(time),
        "rated_flops": pl.when(rated).then("flops"),
        **{f"flops with {name}": pl.when(pl.col(name).is_not_null()).then("flops") for name in _INTENSITIES},
        **{f"{name} with flops": pl.when(counted).then(name) for name in _INTENSITIES},
    }


def _named(parts: Mapping[str, pl.Expr]) -> list[pl.Expr]:
    return [part.alias(name) for name, part in parts.items()]


_OF_EACH: Final = _named(_of_each())
_WHERE_KNOWN: Final = _named(_where_known())
_SUMMED: Final = ("duration", "flops", *_INTENSITIES, "piece_ns")
"""What levels add up of the pieces as they are."""
_ADDED: Final = ("duration", "flops", "bytes", *_where_known())
_WORDS: Final = ("source", "bytes_source", "precision", "unit")
_KNOWN: Final = ["duration", "flops", "bytes", "timed_least_ns", "flops_ns", "bytes_ns", "rated_ns"]
"""Of these the sum is null if nothing is known."""


def level(rows: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """The pieces `under_roofs` by these keys: the keys and the columns of LEVEL_SCHEMA, the most wasted time first, then
    what is known without a roof.
    """
    return levels(rows, (keys, "call"))[0]


def levels(rows: pl.DataFrame, *wanted: tuple[list[str], str]) -> list[pl.DataFrame]:
    """Several levels of the same pieces: for each its keys, and the column whose distinct values are its `calls`."""
    kinds = _kinds(rows, list(dict.fromkeys(key for keys, _ in wanted for key in keys)))
    calls = {call: _number(rows[call]) for call in dict.fromkeys(call for _, call in wanted)}
    groups_of = [kinds.level(keys) for keys, _ in wanted]
    # All rows of all levels at once: the figures of few rows cost as much as those of many.
    whole = pl.concat([kinds.sums(by, calls[call]) for by, (_, call) in zip(groups_of, wanted, strict=True)])
    figures = whole.select(_FIGURES)
    ends = np.cumsum([by.size for by in groups_of]).tolist()
    return [
        _ordered([kinds.rows[key][by.first].cast(pl.String) for key in keys], figures[end - by.size : end])
        for by, end, (keys, _) in zip(groups_of, ends, wanted, strict=True)
    ]


class _Kinds(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Pieces by what they are: those with equal keys, sources and units, of which the same is known, are one of the `rows`, with the sums
    of their figures. They are few, however many pieces there are, so levels add up these. `of` is the row of each piece.

    `each` is what the roofs tell of each piece, without rows where they tell nothing.
    """

    rows: pl.DataFrame
    of: Int64Array
    each: pl.DataFrame

    def level(self, keys: list[str]) -> Groups:
        """The rows by these keys."""
        return groups(*(_number(self.rows[key]) for key in keys))

    @cached_property
    def added(self) -> dict[str, Int64Array]:
        """What levels add up of the rows."""
        sums = {name: or_none(self.rows[name], 0) for name in _ADDED}
        return sums | {f"known {name}": are_known(self.rows[name]).astype(np.int64) for name in _KNOWN}

    @cached_property
    def words(self) -> dict[str, tuple[list[str], Int64Array]]:
        """The distinct sources, and a bit for that of each row."""
        found = {}
        for column in self.rows["source", "bytes_source"]:
            texts = sorted(distinct(column))
            bits = {text: 1 << at for at, text in enumerate(texts)}
            found[column.name] = texts, np.array([bits.get(text, 0) for text in column], dtype=np.int64)
        return found

    @cached_property
    def works(self) -> tuple[list[tuple[str | None, str | None]], Int64Array]:
        """The distinct pairs of precision and unit, and the number of that of each row."""
        pairs = self.rows[["precision", "unit"]].rows()
        works = sorted(set(pairs), key=lambda work: [(word is None, word) for word in work])
        return works, np.array([works.index(pair) for pair in pairs], dtype=np.int64)

    def sums(self, by: Groups, call: Int64Array) -> pl.DataFrame:
        """The sums of a level, whose rows are these groups; `call` is the number of each piece's call."""
        level = by.of[self.of]
        found = [pl.Series("calls", distinct_counts(call, Groups(level, by.keys)))]
        found += [pl.Series(name, by.sums(values)) for name, values in self.added.items()]
        found += self._sums_of_each(level if self.each.height else level[:0], by.size)
        found += [_joined(name, texts, bits, by) for name, (texts, bits) in self.words.items()]
        return pl.DataFrame([*found, *self._main_work(by)])

    def _sums_of_each(self, level: Int64Array, size: int) -> list[pl.Series]:
        """Polars carries on what it rounds when it adds fractions, and adds in the order of the pieces, unless sums are all it is asked for."""
        names, rows = self.each.columns, self.each.hstack([pl.Series("level", level)])
        if size == 1 and rows.height:
            sums = rows.sum()
        else:
            sums = rows.group_by("level").agg(pl.col(names).sum(), pl.first().head(1).alias("no sum"))
        found = []
        for column in sums[names]:
            values = column.to_numpy()
            whole = np.zeros(size, dtype=values.dtype)
            whole[sums["level"].to_numpy()] = values
            found.append(pl.Series(column.name, whole))
        return found

    def _main_work(self, by: Groups) -> list[pl.Series]:
        """The `precision` and `unit` of most of the FLOPs of each group, null without FLOPs."""
        works, number = self.works
        flops = np.zeros((by.size, max(len(works), 1)), dtype=np.int64)
        np.add.at(flops, (by.of, number), self.added["flops"])
        told = zip(flops.argmax(axis=1).tolist(), flops.max(axis=1).tolist(), strict=True)
        most = [works[at] if largest > 0 else (None, None) for at, largest in told]
        return [
            pl.Series(name, [work[at] for work in most], dtype=pl.String)
            for at, name in enumerate(("precision", "unit"))
        ]


def _kinds(rows: pl.DataFrame, keys: list[str]) -> _Kinds:
    known = np.zeros(rows.height, dtype=np.int64)
    for name in (*_SUMMED, "least_ns"):
        known = 2 * known + are_known(rows[name])
    alike = groups(known, *(_number(rows[name]) for name in (*keys, *_WORDS)))
    first = rows[[*keys, *_WORDS, *_SUMMED, "least_ns"]][alike.first]
    sums = [pl.Series(name, alike.sums(or_none(rows[name], 0))) for name in _SUMMED]
    sums = [each.set(first[each.name].is_null(), None) for each in sums]
    timed = pl.when(pl.col("piece_ns").is_not_null()).then("least_ns").alias("timed_least_ns")
    whole = with_series(first, *sums).with_columns(timed, *_WHERE_KNOWN)
    rated = any_known(rows["least_ns"]) or any_known(rows["memory_ns"])
    return _Kinds(whole, alike.of, (rows if rated else rows.clear()).select(_OF_EACH))


def _number(column: pl.Series) -> Int64Array:
    """For each row a number of its value."""
    if not column.dtype.is_integer():
        return text_numbers(column)
    least = column.min()
    return or_none(column, min(least if isinstance(least, int) else 0, 0) - 1)


def _joined(name: str, texts: list[str], bits: Int64Array, by: Groups) -> pl.Series:
    """The distinct words of each group, joined by +; null without any."""
    found = np.zeros(by.size, dtype=np.int64)
    np.bitwise_or.at(found, by.of, bits)
    joined = {
        each: "+".join(text for at, text in enumerate(texts) if each >> at & 1) or None
        for each in set(found.tolist())
    }
    return pl.Series(name, [joined[each] for each in found.tolist()], dtype=pl.String)


def _ordered(keys: list[pl.Series], figures: pl.DataFrame) -> pl.DataFrame:
    order = ["wasted_ns", "bytes_ns", "device_ns", "flops", *(key.name for key in keys)]
    falling = [True, True, True, True, *(False for _ in keys)]
    return pl.DataFrame([*keys, *figures]).sort(order, descending=falling, nulls_last=True)


_BOUND_SUMS: Final = {name: pl.col(f"{name}-bound ns") for name in BOUNDS}
BOUND_OF_SUMS: Final = pl.when(pl.max_horizontal(_BOUND_SUMS.values()) > 0).then(
    pl.coalesce(
        pl.when(ns == pl.max_horizontal(_BOUND_SUMS.values())).then(pl.lit(name))
        for name, ns in _BOUND_SUMS.items()
    )
)
"""What most of the least time is spent on; null where none is known."""


def _figures() -> dict[str, pl.Expr]:
    least = _some("timed_least_ns")
    rated = least.is_not_null()
    # Copies compute nothing, which says nothing of what runs beside them.
    told = (pl.col("flops") > 0) | ~(pl.col("flops_ns") < pl.col("duration"))
    return {
        "calls": pl.col("calls"),
        "device_ns": _some("duration"),
        "flops": pl.when(told).then(_some("flops")),
        "source": pl.when(told).then("source"),
        "bytes": _some("bytes"),
        "bytes_source": pl.col("bytes_source"),
        "precision": pl.col("precision"),
        "unit": pl.col("unit"),
        "flops_per_s": pl.when(pl.col("flops") > 0).then(_over("flops", pl.col("flops_ns"), 1e9)),
        "bytes_per_s": _over("bytes", pl.col("bytes_ns"), 1e9),
        "attainable_flops_per_s": pl.when(pl.col("rated_flops") > 0).then(
            _over("rated_flops", pl.col("at_roof_ns"), 1e9)
        ),
        "efficiency": _over("at_roof_ns", pl.col("rated_ns"), 1),
        "bound": pl.when(rated).then(BOUND_OF_SUMS),
        "least_ns": least,
        "wasted_ns": pl.when(rated).then("wasted_ns"),
        "faster_ns": pl.when(rated).then("faster_ns"),
        "flops_ns": _some("flops_ns"),
        "bytes_ns": _some("bytes_ns"),
        "rated_ns": _some("rated_ns"),
        # An operator's time stands at its longest activity; in odd traces others of it lie in another layer.
        "rated_share": pl.when(pl.col("known rated_ns") > 0).then(
            _over("rated_ns", pl.col("duration"), 1).clip(upper_bound=1.0)
        ),
        "bandwidth_efficiency": pl.when(pl.col("moving_ns") > 0).then(
            _over("moving_ns", pl.col("bytes_ns"), 1)
        ),
        **{
            title: pl.when(told).then(_over(f"flops with {name}", pl.col(f"{name} with flops"), 1))
            for name, title in _INTENSITIES.items()
        },
    }


def _some(name: str) -> pl.Expr:
    """The sum of what is known; null if nothing is."""
    return pl.when(pl.col(f"known {name}") > 0).then(name)


def _over(name: str, time: pl.Expr, times: float) -> pl.Expr:
    return pl.when(time > 0).then(pl.col(name) / time * times)


FIGURES: Final = _figures()
"""The columns of LEVEL_SCHEMA, from sums of the pieces."""
_FIGURES: Final = [FIGURES[name].cast(kind).alias(name) for name, kind in LEVEL_SCHEMA.items()]
