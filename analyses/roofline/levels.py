"""Pieces of work against the ceilings of their device, and their sums at any level.

The least time of a piece is that at its roof: the longer of its FLOPs at the peak and its bytes at the bandwidth. It is memory-bound
if the bytes take longer, so if its intensity is below the ridge. A row of a level adds the least times of its pieces, not their
FLOPs and bytes under one roof: operators run one after the other, each under its own roof and in its own precision. So the
figures of all levels have the same sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import polars as pl

from tracekit.facts.ceilings import Ceilings
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
    peaks = rows[kinds].unique()
    of = peaks.rows()
    found = {"peak": [_peak(ceilings.get(device), *work) for device, *work in of]}
    for name in ("DRAM", "L2", "L1"):
        found[name] = [_bandwidth(ceilings.get(device), name, unit) for device, _, unit in of]
    peaks = peaks.hstack([pl.Series(name, values, dtype=pl.Float64) for name, values in found.items()])
    timed = rows.join(peaks, on=kinds, how="left", nulls_equal=True, maintain_order="left")
    timed = timed.with_columns(_ALONE).with_columns(_AT_ROOF)
    return timed[[*rows.columns, "compute_ns", "memory_ns", "least_ns", "bound"]]


def with_parts(rows: pl.DataFrame) -> pl.DataFrame:
    """The pieces `under_roofs` with what levels add up; it is made when it is asked for, since it takes more room than they do."""
    return rows.with_columns(_PARTS)


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


def _peak(ceilings: Ceilings | None, precision: str | None, unit: str | None) -> float | None:
    if ceilings is None or precision is None:
        return None
    found = ceilings.peak(precision, unit or "vector")
    # A processor computes products in the lanes that do all else.
    return ceilings.peak(precision) if found is None and ceilings.threads is not None else found


def _bandwidth(ceilings: Ceilings | None, level: str, unit: str | None) -> float | None:
    return None if ceilings is None or unit == "link" else ceilings.bandwidth.get(level)


_INTENSITIES: Final = {"bytes": "intensity", "l2_bytes": "l2_intensity", "l1_bytes": "l1_intensity"}


def _parts() -> dict[str, pl.Expr]:
    """What a level adds up beside the columns of each piece: a figure where another one is known as well."""
    time, least = pl.col("piece_ns"), pl.col("least_ns")
    whole = least.round().cast(pl.Int64)  # so that the rows of all levels have the same sum
    counted, rated = pl.col("flops").is_not_null(), least.is_not_null()
    return {
        "flops_ns": pl.when(counted).then(time),
        "bytes_ns": pl.when(pl.col("bytes").is_not_null()).then(time),
        "rated_ns": pl.when(rated).then(time),
        "rated_flops": pl.when(rated).then("flops"),
        "timed_least_ns": pl.when(time.is_not_null()).then(whole),
        "at_roof_ns": pl.when(time.is_not_null()).then(least),
        "wasted_ns": pl.when(time >= whole).then(time - whole),
        "faster_ns": pl.when(time < whole).then(time),
        "moving_ns": pl.when(time > 0).then("memory_ns"),
        **{f"{name}-bound ns": pl.when(pl.col("bound") == name).then(least) for name in BOUNDS},
        **{f"flops with {name}": pl.when(pl.col(name).is_not_null()).then("flops") for name in _INTENSITIES},
        **{f"{name} with flops": pl.when(counted).then(name) for name in _INTENSITIES},
    }


_PARTS: Final = [part.alias(name) for name, part in _parts().items()]
_SUMMED: Final = ["duration", "flops", "bytes", *_parts()]
_KNOWN: Final = ["duration", "flops", "bytes", "timed_least_ns", "flops_ns", "bytes_ns", "rated_ns"]
"""Of these the sum is null if nothing is known."""


def level(rows: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """The pieces `under_roofs` by these keys: the keys and the columns of LEVEL_SCHEMA, the most wasted time first, then
    what is known without a roof.
    """
    return levels(rows, (keys, "call"))[0]


def levels(rows: pl.DataFrame, *wanted: tuple[list[str], str]) -> list[pl.DataFrame]:
    """Several levels of the same pieces: for each its keys, and the column whose distinct values are its `calls`."""
    found = rows[["precision", "unit"]].unique().rows()
    works = sorted(found, key=lambda work: [(word is None, word) for word in work]) or [(None, None)]
    of_works = [f"work {number}" for number in range(len(works))]
    rows = rows.with_columns(
        *_PARTS, *(_flops_of(*work).alias(name) for work, name in zip(works, of_works, strict=True))
    )
    sums = [
        rows.group_by(keys).agg(
            pl.col(call).n_unique().cast(pl.Int64).alias("calls"),
            pl.col(*_SUMMED, *of_works).sum(),
            pl.col(_KNOWN).count().name.prefix("known "),
            pl.col("source", "bytes_source").unique(),
        )
        for keys, call in wanted
    ]
    # All rows of all levels at once: the figures of few rows cost as much as those of many.
    whole = pl.concat([each[:, len(keys) :] for each, (keys, _) in zip(sums, wanted, strict=True)])
    flops = whole[of_works].to_numpy()
    most = [
        works[number] if most_flops > 0 else (None, None)
        for number, most_flops in zip(flops.argmax(axis=1).tolist(), flops.max(axis=1).tolist(), strict=True)
    ]
    told = [
        pl.Series("precision", [precision for precision, _ in most], dtype=pl.String),
        pl.Series("unit", [unit for _, unit in most], dtype=pl.String),
    ]
    figures = whole.hstack(told).select(_FIGURES)
    ends = np.cumsum([each.height for each in sums]).tolist()
    return [
        _ordered([each[key].cast(pl.String) for key in keys], figures[end - each.height : end])
        for each, end, (keys, _) in zip(sums, ends, wanted, strict=True)
    ]


def _ordered(keys: list[pl.Series], figures: pl.DataFrame) -> pl.DataFrame:
    order = ["wasted_ns", "bytes_ns", "device_ns", "flops", *(key.name for key in keys)]
    falling = [True, True, True, True, *(False for _ in keys)]
    return pl.DataFrame([*keys, *figures]).sort(order, descending=falling, nulls_last=True)


def _flops_of(precision: str | None, unit: str | None) -> pl.Expr:
    """The FLOPs of this kind of work."""
    same = pl.col("precision").eq_missing(precision) & pl.col("unit").eq_missing(unit)
    return pl.when(same).then("flops")


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
        "source": pl.when(told).then(_joined("source")),
        "bytes": _some("bytes"),
        "bytes_source": _joined("bytes_source"),
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


def _joined(name: str) -> pl.Expr:
    texts = pl.col(name).list.drop_nulls().list.sort().list.join("+")
    return pl.when(texts != "").then(texts)


FIGURES: Final = _figures()
"""The columns of LEVEL_SCHEMA, from sums of the pieces."""
_FIGURES: Final = [FIGURES[name].cast(kind).alias(name) for name, kind in LEVEL_SCHEMA.items()]
