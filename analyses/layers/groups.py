"""Sums over the tree of layers: by class, by paths that differ only in numbers, and the host time of each layer."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import polars as pl

from tracekit.analyses.attribution.span_places import StackModel
from tracekit.analyses.scope import Scope
from tracekit.facts.stack_names import PHASES
from tracekit.spans import BoolArray, Int64Array, Nesting, nest
from tracekit.trees import has_same_above, parent_rows, rolled_up, rolled_up_least

__all__ = ["CHILDREN", "HostTimes", "by_group", "host_times", "pattern_of", "shares"]

_INCLUSIVE = ("device_ns", *(f"{name}_ns" for name in PHASES), "recomputed_ns", "host_ns")
_NUMBER = r"(^|[./])\d+([./]|$)"
_NUMBERED = r"(^|[_ #:\-])\d+([./]|$)"
"""A part of a path that is a number or ends in a number, which tells repeated layers apart."""

CHILDREN: Final = "<root>.*"
"""The pattern of layers whose whole path is a number."""


def pattern_of(tree: pl.DataFrame) -> pl.Series:
    """The path of each row, with `*` for the numbers that tell repeated layers apart; a layer that is alone keeps its path.

    In the paths of a capture, these are the parts that are numbers; in other paths also the numbers at the end of a
    part. Layers of different classes do not repeat each other. Those of a model that is a sequence itself are `CHILDREN`.
    """
    path = pl.col("path")
    # Twice, since two neighbours share the character between them.
    plain = path.str.replace_all(_NUMBER, "$1*$2").str.replace_all(_NUMBER, "$1*$2")
    ended = plain.str.replace_all(_NUMBERED, "$1*$2").str.replace_all(_NUMBERED, "$1*$2")
    of_model = pl.col("source").is_in(["module", "range", "compiled", "interval"])
    captured = pl.col("source") == "capture"
    pattern = pl.when(of_model).then(ended).when(captured).then(plain).otherwise(path)
    pattern = pl.when(pattern == "*").then(pl.lit(CHILDREN)).otherwise(pattern)
    return tree.select(
        pl.when(pl.len().over(pattern, "type") > 1).then(pattern).otherwise(path).alias("pattern")
    )["pattern"]


def by_group(tree: pl.DataFrame, keys: list[str], total: int) -> pl.DataFrame:
    """The rows by `keys`, with the most own time first.

    Columns: `layers`, `calls`, `device_ns` with its phases, `device_own_ns`, host times, the idle time that the layers
    caused, `share` (inclusive) and `own_share`. Inclusive times leave out layers inside another layer of their group,
    which has their time already.
    """
    number: dict[tuple[object, ...], int] = {}
    group = np.array([number.setdefault(row, len(number)) for row in tree[keys].rows()], dtype=np.int64)
    outer = pl.Series("outer", ~has_same_above(parent_rows(tree), group))
    inclusive = [pl.col(name).filter("outer").sum().alias(name) for name in _INCLUSIVE]
    sums = (
        tree.hstack([outer])
        .group_by(keys)
        .agg(
            pl.len().cast(pl.Int64).alias("layers"),
            _sum_or_null("calls"),
            *inclusive[:1],
            pl.col("device_own_ns").sum(),
            *inclusive[1:-1],
            _sum_or_null("host_ns", pl.col("outer")),
            _sum_or_null("host_self_ns"),
            _sum_or_null("idle_caused_own_ns"),
        )
    )
    mean = (pl.col("device_ns") / pl.col("layers")).alias("mean_ns")
    return sums.with_columns(mean, *shares(total)).sort(
        ["device_own_ns", "device_ns", *keys],
        descending=[True, True, *(False for _ in keys)],
        nulls_last=True,
    )


def shares(total: int) -> list[pl.Expr]:
    """`share` and `own_share` of the summed device time; null when that is 0."""
    nothing = pl.lit(None, dtype=pl.Float64)
    return [
        (pl.col(time) / total if total else nothing).alias(name)
        for name, time in (("share", "device_ns"), ("own_share", "device_own_ns"))
    ]


def _sum_or_null(column: str, wanted: pl.Expr | None = None) -> pl.Expr:
    values = pl.col(column) if wanted is None else pl.col(column).filter(wanted)
    return pl.when(values.is_not_null().any()).then(values.sum()).alias(column)


# -- host time by layer -----------------------------------------------------------------------------
#
# Host time by layer: each moment of a thread belongs to the innermost call that is open.


class HostTimes(msgspec.Struct, frozen=True, eq=False):
    """Per layer: `calls`, their `total` time in ns, the start of the `first`, and whether the layer `has_spans`."""

    calls: Int64Array
    total: Int64Array
    first: Int64Array
    has_spans: BoolArray

    def rolled_up(self, parent: Int64Array, depth: Int64Array) -> tuple[Int64Array, HostTimes]:
        """Each layer's own calls, and the same with `total`, `first` and `has_spans` over all layers below it."""
        has_spans = rolled_up(self.has_spans.astype(np.int64), parent, depth) > 0
        first = rolled_up_least(self.first, parent, depth)
        return self.calls, HostTimes(self.calls, rolled_up(self.total, parent, depth), first, has_spans)


def host_times(scope: Scope, model: StackModel, size: int) -> HostTimes:
    """The own host times of the layers in the scope's window on the host; `size` rows, one for each layer.

    A call's own time leaves out calls of other layers of the same source. The ranges of a pseudo-layer count where no
    layer is open; a range inside another of the same pseudo-layer is not a call.
    """
    times = HostTimes(
        np.zeros(size, dtype=np.int64),
        np.zeros(size, dtype=np.int64),
        np.full(size, np.iinfo(np.int64).max),
        np.zeros(size, dtype=bool),
    )
    for source in model.layers.sources:
        inside = _in_window(scope, source.nesting) & (source.layer >= 0)
        _add(times, source.nesting, source.layer, inside, inside)
    _add_pseudo_layers(times, scope, model)
    return times


def _add_pseudo_layers(times: HostTimes, scope: Scope, model: StackModel) -> None:
    layer = model.phases.marked_layer
    marks = np.flatnonzero(layer >= 0)
    if not marks.size:
        return
    stack = model.stack
    parts = [(stack.thread[marks], stack.start[marks], stack.end[marks], layer[marks])]
    for source in model.layers.sources:
        of = source.nesting
        parts.append((of.thread, of.start, of.end, np.full(source.layer.size, -1)))
    thread, start, end, owner = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.lexsort((-end, start, thread))
    nesting = nest(thread[order], start[order], end[order])
    owner = owner[order]
    counted = _in_window(scope, nesting) & (owner >= 0)
    again = (nesting.parent >= 0) & (owner[np.maximum(nesting.parent, 0)] == owner)
    _add(times, nesting, owner, counted, counted & ~again)


def _add(times: HostTimes, nesting: Nesting, layer: Int64Array, counted: BoolArray, calls: BoolArray) -> None:
    np.add.at(times.total, layer[counted], nesting.self_time()[counted])
    np.add.at(times.calls, layer[calls], 1)
    np.minimum.at(times.first, layer[counted], nesting.start[counted])
    times.has_spans[layer[layer >= 0]] = True


def _in_window(scope: Scope, nesting: Nesting) -> BoolArray:
    if scope.window != "steps" or not scope.steps.height:
        return np.ones(nesting.start.size, dtype=bool)
    low, high = scope.host_window()
    inside: BoolArray = (nesting.start >= low) & (nesting.start < high)
    return inside
