"""What the collectives and point-to-point calls of a rank move, and how fast (DEFINITIONS §8)."""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.calls import CALLS, Calls, calls_of, of_one_rank
from tracekit.analyses.exposure import exposed_by
from tracekit.analyses.result import Result, TableView
from tracekit.analyses.scope import Scope, once
from tracekit.classes import dataclass
from tracekit.facts.device_peaks import peak_link_gbps
from tracekit.facts.units import count_of, format_bytes, format_count
from tracekit.groups import are_known, kept
from tracekit.trace import Schema, Trace, empty

__all__ = ["TABLES", "Collectives", "collectives"]

_SAME: Final = ("name", "group", "group_size", "bytes", "dtype")
"""What equal calls have in common."""

TABLES: Final = {
    "by_size": TableView(
        "By group and size",
        f"{' '.join(_SAME)} count total_ns exposed_ns min_ns median_ns max_ns algorithm_gbps bus_gbps link_share",
        short="name group_size bytes count exposed_ns bus_gbps total_ns min_ns link_share",
        titles={
            "min_ns": "shortest",
            "algorithm_gbps": "algorithm bandwidth",
            "bus_gbps": "bus bandwidth",
            "link_share": "of link, if one machine",
        },
        main=True,
    ),
    "pairs": TableView(
        "Between two ranks",
        "source destination count bytes total_ns bandwidth_gbps",
        titles={"bandwidth_gbps": "best bandwidth"},
    ),
    "calls": TableView(
        "Every call",
        " ".join(CALLS),
        short="name start duration_ns exposed_ns bytes group_size",
        hidden="group_ranks bus_bytes launched",
        titles={"duration_ns": "duration"},
    ),
}
"""How each table is presented."""

_MOST_KINDS: Final = 4
_ONE_MACHINE: Final = 8
"""Boards of one machine that the links of the catalogue connect."""
_ADDED_IN_SWITCH: Final = r"nvls|collnet"
"""Algorithms in which the network sums: the links carry less than the factor of nccl-tests says."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Collectives(Result):
    """The calls of a scope, and what equal ones have in common."""

    by_size: pl.DataFrame
    """One row per `name`, `group`, `group_size`, `bytes` and `dtype`.

    All-to-alls of sizes that hardly ever come again, as of uneven ones, are one row with their median size.
    `total_ns` is the sum of durations; `exposed_ns` the time in which one of them runs and nothing computes on its device. The
    bandwidths are those of the shortest call, which waited least: `algorithm_gbps` = bytes / time, `bus_gbps` = bus bytes / time,
    in 10⁹ bytes a second; null without sizes, and in groups of one rank, which exchange nothing. `link_share` is `bus_gbps` over the peak of the link between boards, and holds if the
    group is within one machine, which one trace cannot prove. It is null for groups of more than 8 ranks, boards without a listed
    link, sends and receives, algorithms that sum in the network, and where it would exceed 1.
    """
    pairs: pl.DataFrame | None
    """Sends and receives by `source` and `destination` (ranks), where these were recorded: `count`, `bytes`, `total_ns`, and
    `bandwidth_gbps`, the highest of a call, in 10⁹ bytes a second. None where they were not.
    """
    calls: pl.DataFrame
    """One row per call by start, with the columns of `analyses.calls.CALLS`."""


def collectives(scope: Scope | Trace) -> Collectives:
    """The collectives and point-to-point calls of the scope.

    >>> import tracekit
    >>> result = collectives(tracekit.read("sample_traces/bert_cpu_ddp/trace-rank0.json.gz"))
    >>> result.calls["name", "bytes"].unique().sort("bytes").rows()
    [('broadcast', 1024), ('all_reduce', 153608)]
    """
    return once(scope, _collectives)


def _collectives(scope: Scope) -> Collectives:
    calls = calls_of(scope)
    by_size = _by_size(scope, calls)
    none = f"no communication ran {'' if scope.on_cpu else 'on a device '}in this window"
    return Collectives(
        answer=_answer(calls.table, by_size) if by_size.height else f"{none.capitalize()}.",
        calls=calls.table,
        by_size=by_size,
        pairs=_pairs(calls.table),
        not_captured=None if by_size.height else none,
    )


_BY_SIZE: Final[Schema] = {
    **{name: CALLS[name] for name in _SAME},
    **dict.fromkeys(("count", "total_ns", "exposed_ns", "min_ns"), pl.Int64),
    "median_ns": pl.Float64,
    "max_ns": pl.Int64,
    **dict.fromkeys(("algorithm_gbps", "bus_gbps", "link_share"), pl.Float64),
}


def _by_size(scope: Scope, calls: Calls) -> pl.DataFrame:
    if not calls.table.height:
        return empty(_BY_SIZE)
    time = pl.col("duration_ns")
    others = pl.col("group_size").first().fill_null(2) > 1
    shortest = pl.when((time.min() > 0) & others).then(time.min())
    alike = [name for name in _SAME if name != "bytes"]
    once_only = (pl.col("name") == "all_to_all") & (
        2 * pl.col("bytes").n_unique().over(alike) > pl.len().over(alike)
    )
    kinds = calls.table.with_columns(
        pl.int_range(pl.len(), dtype=pl.Int64).alias("call"), pl.when(~once_only).then("bytes").alias("size")
    )
    number: dict[tuple[object, ...], int] = {}
    same = [number.setdefault(row, len(number)) for row in kinds[[*alike, "size"]].rows()]
    kinds = kinds.hstack([pl.Series("kind", same, dtype=pl.Int64)])
    exposed = exposed_by(scope, calls.parts.join(kinds[["call", "kind"]], on="call"), "kind")
    return (
        kinds.group_by("kind")
        .agg(
            *(pl.col(name).first() for name in alike),
            pl.col("bytes").median().round().cast(pl.Int64),
            pl.len().cast(pl.Int64).alias("count"),
            time.sum().alias("total_ns"),
            time.min().alias("min_ns"),
            time.median().alias("median_ns"),
            time.max().alias("max_ns"),
            (pl.col("bytes").get(time.arg_min()) / shortest).alias("algorithm_gbps"),
            (pl.col("bus_bytes").get(time.arg_min()) / shortest).alias("bus_gbps"),
            pl.col("algorithm").str.contains(_ADDED_IN_SWITCH).any().alias("in_switch"),
        )
        .join(exposed, on="kind", how="left")
        .with_columns(_link_share(scope).alias("link_share"))
        .sort("total_ns", "name", "bytes", descending=[True, False, False])[list(_BY_SIZE)]
    )


def _link_share(scope: Scope) -> pl.Expr:
    peaks = {peak_link_gbps(device.name) for device in scope.trace.meta.devices}
    peak = next(iter(peaks)) if len(peaks) == 1 else None
    share = pl.col("bus_gbps") / peak if peak else pl.lit(None, dtype=pl.Float64)
    within = pl.col("group_size").is_between(2, _ONE_MACHINE) & ~pl.col("name").is_in(
        ["send", "recv", "send_recv"]
    )
    return pl.when(within & ~pl.col("in_switch").fill_null(value=False) & (share <= 1)).then(share)


def _pairs(calls: pl.DataFrame) -> pl.DataFrame | None:
    rate = pl.col("bytes") / pl.when(pl.col("duration_ns") > 0).then("duration_ns")
    named = kept(calls, are_known(calls["source"]) | are_known(calls["destination"]))
    if not named.height:
        return None
    return (
        named.group_by("source", "destination")
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            pl.when(pl.col("bytes").is_not_null().all()).then(pl.col("bytes").sum()).alias("bytes"),
            pl.col("duration_ns").sum().alias("total_ns"),
            rate.max().alias("bandwidth_gbps"),
        )
        .sort("total_ns", "source", "destination", descending=[True, False, False])
    )


def _answer(calls: pl.DataFrame, by_size: pl.DataFrame) -> str:
    counts = (
        calls["name"].value_counts(sort=True, name="n").sort("n", "name", descending=[True, False]).rows()
    )
    kinds = ", ".join(f"{format_count(n)} {name}" for name, n in counts[:_MOST_KINDS])
    kinds += ", …" if len(counts) > _MOST_KINDS else ""
    sizes = calls["bytes"].drop_nulls()
    moved = (
        f" {'moves' if calls.height == 1 else 'move'} {format_bytes(int(sizes.sum()))}"
        if sizes.len() == calls.height
        else ""
    )
    says = f"{count_of(calls.height, 'call')} {f'of {counts[0][0]}' if len(counts) == 1 else f'({kinds})'}{moved}."
    if of_one_rank(calls):
        return f"{says.removesuffix('.')} within a group of one rank, so nothing is exchanged."
    best = by_size.filter(pl.col("bus_gbps").is_not_null()).sort("bus_gbps", descending=True).head(1)
    for row in best.iter_rows(named=True):
        says += f" The highest bus bandwidth is {format_bytes(row['bus_gbps'] * 1e9)}/s ({row['name']} of {format_bytes(row['bytes'])})."
    return says
