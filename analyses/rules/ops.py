"""A rule about operators that a device computes slowly for their sizes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Final

import msgspec
import numpy as np
import polars as pl

from tracekit.analyses.attribution import attributed, attribution
from tracekit.analyses.flops import FIRST_FACTOR, json_list, matmul_flops, product_sizes
from tracekit.analyses.ops import Ops
from tracekit.analyses.rules.attention_work import BATCHED, attention_work
from tracekit.analyses.rules.rule import (
    MOST_STRETCHES,
    Advice,
    Evidence,
    Rule,
    bounded_by_host,
    longest,
    of_time,
)
from tracekit.analyses.scope import Scope, once
from tracekit.facts.ceilings import catalogue_ceilings
from tracekit.facts.units import format_count, format_ns
from tracekit.groups import at_rows, groups, text_codes
from tracekit.names import shorten_name
from tracekit.spans import Int64Array

__all__ = ["ODD_SIZES"]

_LONGEST_LAYER: Final = 60

ODD_SIZES_LEAST_SHARE: Final = 0.02
"""Less than one part in fifty of the device time is not worth new sizes."""
SHORTEST_NS: Final = 20_000
"""The time of a shorter call says little about its rate: much of it passes before all units work."""
FAR_BELOW: Final = 0.5
"""Products of similar sizes differ by less than a factor of two for other reasons, such as the number of tiles."""
SMALLEST: Final = 1 / 16
"""A product with a smaller part of the operations of the other is not compared with it."""
LARGEST: Final = 2.0
"""A product with this many times as many operations may be faster because it is larger."""
MOST_INTENSE: Final = 2.0
"""A product with this many times as many operations for each byte may be faster because the memory bounds it less."""

_MULTIPLE: Final = {
    "c10::Half": 8,
    "c10::BFloat16": 8,
    "float": 4,
    "c10::Float8_e4m3fn": 16,
    "c10::Float8_e5m2": 16,
}
"""The number of elements of each type in 16 bytes, which tensor cores load at once."""
_PRECISION: Final = {"c10::Half": "fp16", "c10::BFloat16": "bf16"}
_UNALIGNED: Final = r"_align[124](\W|_|$)"
"""Kernels of CUTLASS for 16-bit factors whose rows do not begin at multiples of 16 bytes."""
_BEST_MULTIPLE: Final = 64
_NAMED_SIZES: Final = 3


class _Product(msgspec.Struct, frozen=True, dict=True):
    """A matrix product of certain sizes and a type, over all of its calls in the scope."""

    operator: str
    shapes: str
    kind: str
    calls: int
    ns: int
    batch: int
    m: int
    k: int
    n: int

    @cached_property
    def odd(self) -> frozenset[int]:
        """The sizes that are no multiples of 16 bytes; a size of 1 is a vector, not an odd matrix."""
        return frozenset(
            size for size in (self.m, self.k, self.n) if size % _MULTIPLE[self.kind] and size > 1
        )

    @cached_property
    def flops(self) -> int:
        """Of one call."""
        return matmul_flops(self.m, self.k, self.n, batch=self.batch)

    @cached_property
    def intensity(self) -> float:
        """Operations for each byte of the factors and the result."""
        itemsize = 16 // _MULTIPLE[self.kind]
        elements = self.m * self.k + self.k * self.n + self.m * self.n
        return self.flops / max(self.batch * elements * itemsize, 1)

    @cached_property
    def tflops(self) -> float:
        """The rate that its calls reach, in 10¹² operations a second."""
        return self.flops * self.calls / self.ns / 1e3


class _Slow(msgspec.Struct, frozen=True):
    """A product with odd sizes, the rate that it could reach, and the sizes at fault."""

    product: _Product
    could: float
    sizes: frozenset[int]
    compared: bool

    @property
    def lost_ns(self) -> int:
        """The time above that at the rate that it could reach."""
        return int(self.product.ns * (1 - self.product.tflops / self.could))


def odd_sizes(scope: Scope, result: Ops) -> Evidence | None:
    """Matrix products run slowly, because a size is no multiple of 16 bytes (8 elements of 16 bits).

    Tensor cores load 16 bytes at once. If a row of an odd size does not begin at a multiple of 16 bytes, the libraries take
    slower kernels. A product counts only if its sizes are the evident reason: products in the same trace without these
    odd sizes, of the same type and similar in operations and in operations for each byte, are more than twice as fast. Without
    such products, the names of its kernels must show the missing alignment (`align1`), and its rate must be below half of what
    the peaks of the device allow. At stake is what it takes more than at the better rate. Batched products of attention that is
    not fused do not count: fused attention has none.

    Fires when this is `ODD_SIZES_LEAST_SHARE` of the device time, in calls of `SHORTEST_NS` or more. Needs the shapes of
    inputs.
    """
    if result.by_shape is None:
        return None
    products = _products(result.by_shape)
    fusible = BATCHED if once(scope, attention_work).has_products else ()
    odd = [
        one
        for one in products
        if one.odd and one.ns >= SHORTEST_NS * one.calls and one.operator not in fusible
    ]
    slow = [found for product in odd if (found := _slow(scope, product, products))]
    slow.sort(key=lambda one: -one.lost_ns)
    lost = sum(one.lost_ns for one in slow)
    total = int(scope.activities["duration"].sum())
    if not slow or lost / max(total, 1) < ODD_SIZES_LEAST_SHARE:
        return None
    worst, ns = slow[0], sum(one.product.ns for one in slow)
    sizes = sorted({size for one in slow for size in one.sizes}, reverse=True)[:_NAMED_SIZES]
    named = " and ".join(map(format_count, sizes))
    rate = f"{worst.product.tflops:.3g} TFLOP/s"
    better = "others of similar sizes" if worst.compared else "the device allows"
    return Evidence(
        title=f"Matrix products with unaligned sizes ({named}) are slow and take {of_time(ns, scope)}",
        text=f"{worst.product.operator} of {worst.product.shapes} reaches {rate}{_in_layer(scope, worst.product)}; "
        f"{better} {'reach' if worst.compared else 'up to'} {worst.could:.3g} TFLOP/s. Such products take {format_ns(ns)}, "
        f"{format_ns(lost)} more than at that rate.",
        ns_at_stake=bounded_by_host(lost, scope),
        advice=Advice(_padding(sizes, _MULTIPLE[worst.product.kind], batched=worst.product.batch > 1)),
        stretches=longest(pl.concat([_calls_of(scope, one.product) for one in slow[:MOST_STRETCHES]])),
    )


def _products(by_shape: pl.DataFrame) -> list[_Product]:
    rows = by_shape.filter(
        pl.col("operator").is_in(list(FIRST_FACTOR))
        & pl.col("shapes").is_not_null()
        & (pl.col("device_self_ns") > 0)
        & (pl.col("calls") > 0)
    )[["operator", "shapes", "dtypes", "calls", "device_self_ns"]]
    found = []
    for operator, shapes, dtypes, calls, ns in rows.rows():
        sizes, kind = product_sizes(operator, json_list(shapes)), _kind(operator, dtypes)
        if sizes is not None and kind in _MULTIPLE and all(sizes):
            found.append(_Product(operator, _factors(operator, shapes), kind, calls, ns, *sizes))
    return found


def _kind(operator: str, dtypes: str | None) -> str:
    kinds, at = json_list(dtypes), FIRST_FACTOR[operator]
    return str(kinds[at]) if len(kinds) > at else ""


def _factors(operator: str, shapes: str) -> str:
    at = FIRST_FACTOR[operator]
    return " × ".join(str(shape) for shape in json_list(shapes)[at : at + 2])


def _slow(scope: Scope, product: _Product, products: Iterable[_Product]) -> _Slow | None:
    """The product if its odd sizes make it slow."""
    alike = [
        other
        for other in products
        if other.odd < product.odd
        and other.kind == product.kind
        and SMALLEST * product.flops <= other.flops <= LARGEST * product.flops
        and other.intensity <= MOST_INTENSE * product.intensity
    ]
    if alike:
        could: float | None = (
            sum(other.flops * other.calls for other in alike) / sum(other.ns for other in alike) / 1e3
        )
        sizes = product.odd.difference(*(other.odd for other in alike))
    else:
        could, sizes = _attainable(scope, product), product.odd
    if could is None or product.tflops >= FAR_BELOW * could:
        return None
    return _Slow(product, could, sizes or product.odd, compared=bool(alike))


def _attainable(scope: Scope, product: _Product) -> float | None:
    """The rate that the peaks of the device allow, in TFLOP/s, if the kernels' names show the missing alignment; else None."""
    precision = _PRECISION.get(product.kind)
    devices = [device for device in scope.trace.meta.devices if device.device_id in scope.device_ids]
    if precision is None or len({device.name for device in devices}) != 1:
        return None
    ceilings = catalogue_ceilings(devices[0].name, devices[0].memory_bytes)
    most = None if ceilings is None else ceilings.attainable(product.intensity, precision)
    return None if most is None or not _is_unaligned(scope, product) else most / 1e12


def _calls_of(scope: Scope, product: _Product) -> pl.DataFrame:
    """The activities of a product's calls, with their layers."""
    rows, codes, operators = scope.once(_of_operators, lambda: _of_operators(scope))
    mine = [
        number
        for number, (operator, shapes) in enumerate(operators)
        if operator == product.operator and shapes and _factors(operator, shapes) == product.shapes
    ]
    return rows.filter(pl.Series(np.isin(codes, mine)))


def _of_operators(scope: Scope) -> tuple[pl.DataFrame, Int64Array, list[tuple[str | None, str | None]]]:
    """The activities in operators, for each the number of its operator, and by these the operators: name and shapes."""
    rows = attributed(scope)["op_id", "name", "layer_id", "start", "duration"].drop_nulls("op_id")
    called = [text_codes(at_rows(scope.trace.host[column], rows["op_id"])) for column in ("name", "shapes")]
    pairs = groups(*(codes for codes, _ in called))
    return (
        rows,
        pairs.of,
        [
            (called[0][1][name], called[1][1][shapes])
            for name, shapes in zip(*(key.tolist() for key in pairs.keys), strict=True)
        ],
    )


def _is_unaligned(scope: Scope, product: _Product) -> bool:
    """Whether kernels for missing alignment take most of the time of a product."""
    rows = _calls_of(scope, product)
    unaligned = rows.filter(pl.col("name").cast(pl.String).str.contains(_UNALIGNED))
    return int(unaligned["duration"].sum()) * 2 > int(rows["duration"].sum())


def _in_layer(scope: Scope, product: _Product) -> str:
    """` in layer LAYER`, the one with the most of its time; empty if it is in none."""
    rows = _calls_of(scope, product).drop_nulls("layer_id")
    if not rows.height:
        return ""
    sums = rows.group_by("layer_id").agg(pl.col("duration").sum()).sort("duration", "layer_id")
    path = str(attribution(scope).layers["path"][int(sums["layer_id"][-1])])
    return f" in layer {shorten_name(path, _LONGEST_LAYER)}"


def _padding(sizes: list[int], multiple: int, *, batched: bool) -> str:
    pairs = " and ".join(f"{format_count(size)} to {format_count(_padded(size, multiple))}" for size in sizes)
    text = f"Pad {pairs}: sizes that are multiples of {multiple}, or better of {_BEST_MULTIPLE}, let tensor cores run at full speed. "
    if batched:
        return (
            text
            + "If these are attention products, fused attention (scaled_dot_product_attention) needs no padding."
        )
    return text + "A vocabulary can have unused entries, and a layer can have a few more features."


def _padded(size: int, multiple: int) -> int:
    step = _BEST_MULTIPLE if size > _BEST_MULTIPLE else multiple
    return -(-size // step) * step


ODD_SIZES = Rule(
    id="odd_sizes",
    analysis="ops",
    evidence=odd_sizes,
    runs="device",
    advice=Advice("Pad these sizes to multiples of 8."),
)
