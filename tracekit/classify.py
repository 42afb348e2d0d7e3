"""Categories of device activities (DEFINITIONS §2): collectives by name, then the operator, then the kernel's name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import polars as pl

from tracekit.errors import not_a_pattern
from tracekit.facts.kernel_rules import (
    AUTOGRAD_NODE,
    COMMUNICATION,
    DMA,
    KERNEL_RULES,
    OPERATOR_RULES,
    QUALIFIERS,
)
from tracekit.groups import at_rows, groups, text_codes
from tracekit.trace import CATEGORIES, DEVICE_SCHEMA, Trace

__all__ = ["ACTIVITY_CLASSES", "activity_class", "categorise", "recategorise"]

_DEEPEST_PARENTHESES: Final = 6
"""Calls of lambdas in template arguments of parameters nest four deep in PyTorch's names."""

_LONGEST: Final = 4_096
"""What a kernel does stands in so many characters of its name; each is looked at by dozens of rules."""

ACTIVITY_CLASSES = ("compute", "communication", "memory")


def categorise(kind: pl.Series, name: pl.Series, operator: pl.Series, in_optimizer: pl.Series) -> pl.Series:
    """The category of each activity, as an Enum over `trace.CATEGORIES`.

    `operator` is the name of the innermost operator around the launch, null when unknown; `in_optimizer` says
    whether the launch lies in an `Optimizer.step` range.
    """
    frame = pl.DataFrame(
        {"kind": kind.cast(pl.String), "name": name, "operator": operator, "optimizer": in_optimizer}
    )
    alike = groups(
        *(text_codes(column)[0] for column in frame[:, :3]), in_optimizer.to_numpy().astype(np.int64)
    )
    return at_rows(_labelled(frame[alike.first]), alike.of).alias("category")


_MOST_REMEMBERED: Final = 4_096
_categories: dict[tuple[Any, ...], str] = {}
"""What was categorised before in this process: compiling the rules takes longer than all else of reading a small trace."""


def _labelled(distinct: pl.DataFrame) -> pl.Series:
    """The category of each row."""
    if distinct.height > _MOST_REMEMBERED:
        return _category(distinct)
    rows = list(zip(*(column.to_list() for column in distinct), strict=True))
    is_new = pl.Series([row not in _categories for row in rows], dtype=pl.Boolean)
    if is_new.any():
        if len(_categories) + distinct.height > _MOST_REMEMBERED:
            _categories.clear()
            is_new = pl.Series([True] * distinct.height, dtype=pl.Boolean)
        new = [row for row, wanted in zip(rows, is_new, strict=True) if wanted]
        _categories.update(zip(new, _category(distinct.filter(is_new)), strict=True))
    return pl.Series([_categories[row] for row in rows], dtype=pl.Enum(CATEGORIES))


def _category(distinct: pl.DataFrame) -> pl.Series:
    """The `category` of each row of kind, name, operator and optimizer.

    Rule after rule, each for the rows that are left: a rule that no row needs is never compiled, and none twice. As one
    expression, each of Polars' threads compiled all of them.
    """
    left = _texts(distinct)
    found = []

    def take(rows: pl.Series, category: pl.Expr) -> None:
        nonlocal left
        rows = rows.fill_null(value=False)
        if rows.any():
            found.append(left.filter(rows).select("row", category=category.cast(pl.Enum(CATEGORIES))))
            left = left.filter(~rows)

    take(_matches(left["what"], COMMUNICATION), pl.lit("communication"))
    take(left["kind"].is_in(["memcpy", "memset"]), pl.col("kind"))
    take((left["kind"] == "kernel") & _matches(left["what"], DMA), pl.lit("memcpy"))
    take(left["optimizer"], pl.lit("optimizer"))
    for text, rules in (("op", OPERATOR_RULES), ("what", KERNEL_RULES)):
        for category, pattern in rules:
            if left.height:
                take(_matches(left[text], pattern), pl.lit(category))
    take(pl.repeat(True, left.height, dtype=pl.Boolean, eager=True), pl.lit("other"))
    return pl.concat(found).sort("row")["category"]


def _texts(distinct: pl.DataFrame) -> pl.DataFrame:
    """The rows with their number `row` and what rules look at, in lower case: the operator `op`, and `what` runs."""
    text, given = (pl.col(name).cast(pl.String).str.head(_LONGEST) for name in ("name", "operator"))
    op, what = given, text
    if (distinct["kind"] == "op").any():
        # Without a device autograd's nodes stand there themselves, each doing the work of its forward operator.
        op = (
            pl.when(pl.col("kind") == "op")
            .then(pl.coalesce(_forward_operator(given), given))
            .otherwise(given)
        )
    if (distinct["kind"] != "op").any():
        what = pl.when(pl.col("kind") == "op").then(text).otherwise(_without_qualifiers(text))
    return distinct.select(
        "kind", "optimizer", op=op.str.to_lowercase(), what=what.str.to_lowercase()
    ).with_row_index("row")


def recategorise(trace: Trace, comm_patterns: Sequence[str]) -> Trace:
    """The same trace, with activities whose name matches one of the patterns counted as communication.

    Raises UsageError when a pattern is no regular expression.
    """
    for pattern in comm_patterns:
        try:
            pl.select(pl.lit("").str.contains(pattern))
            communication = pl.col("name").cast(pl.String).str.contains(f"(?i){pattern}")
            device = trace.device.with_columns(
                pl.when(communication)
                .then(pl.lit("communication").cast(DEVICE_SCHEMA["category"]))
                .otherwise("category")
                .alias("category")
            )
        except pl.exceptions.PolarsError as error:
            raise not_a_pattern("--comm-pattern", pattern, error) from error
        trace = replace(trace, device=device)
    return trace


def _forward_operator(node: pl.Expr) -> pl.Expr:
    """`aten::native_layer_norm` of `NativeLayerNormBackward0`; null of what is no node of autograd's."""
    stem = node.str.extract(AUTOGRAD_NODE)
    return pl.lit("aten::") + stem.str.replace_all(r"([a-z0-9])([A-Z])", "${1}_${2}").str.to_lowercase()


def activity_class() -> pl.Expr:
    """An expression over `category`: `compute`, `communication` or `memory`."""
    category = pl.col("category").cast(pl.String)
    return (
        pl.when(category == "communication")
        .then(pl.lit("communication"))
        .when(category.is_in(["memcpy", "memset"]))
        .then(pl.lit("memory"))
        .otherwise(pl.lit("compute"))
        .cast(pl.Enum(ACTIVITY_CLASSES))
    )


def _without_qualifiers(name: pl.Expr) -> pl.Expr:
    """The name of a kernel without what stands in parentheses (parameters, casts) and without `QUALIFIERS`."""
    name = name.str.strip_prefix("void ")
    for _ in range(_DEEPEST_PARENTHESES):
        name = name.str.replace_all(r"\([^()]*\)", "")
    for pattern, kept in QUALIFIERS:
        name = name.str.replace_all(pattern, kept)
    return name


_CAPITAL_OR_CLASS: Final = re.compile(r"\\?[A-Zwdb]")
_ASCII_CLASSES: Final = {
    r"\w": "[0-9a-z_]",
    r"\W": "[^0-9a-z_]",
    r"\d": "[0-9]",
    r"\b": r"(?-u:\b)",
}


def _matches(lower_case: pl.Series, pattern: str) -> pl.Series:
    """Whether the pattern matches in any case. In lower case and ASCII a pattern compiles four times as fast."""
    lower = _CAPITAL_OR_CLASS.sub(lambda m: _ASCII_CLASSES.get(m[0], m[0].lower()), pattern)
    return lower_case.str.contains(lower)
