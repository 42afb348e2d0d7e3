"""Categories of device activities (DEFINITIONS §2): collectives by name, then the operator, then the kernel's name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import polars as pl

from tracekit.errors import UsageError
from tracekit.facts.kernel_rules import (
    AUTOGRAD_NODE,
    COMMUNICATION,
    DMA,
    KERNEL_RULES,
    OPERATOR_RULES,
    QUALIFIERS,
)
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
    labelled = _labelled(frame.unique(maintain_order=False))
    joined = frame.join(
        labelled,
        on=["kind", "name", "operator", "optimizer"],
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )
    return joined["category"]


_MOST_REMEMBERED: Final = 4_096
_categories: dict[tuple[Any, ...], str] = {}
"""What was categorised before in this process: compiling the rules takes longer than all else of reading a small trace."""


def _labelled(distinct: pl.DataFrame) -> pl.DataFrame:
    """The rows with their `category`."""
    if distinct.height > _MOST_REMEMBERED:
        return distinct.with_columns(_category())
    rows = distinct.with_columns(pl.col("name", "operator").cast(pl.String)).rows()
    is_new = pl.Series([row not in _categories for row in rows], dtype=pl.Boolean)
    if is_new.any():
        if len(_categories) + distinct.height > _MOST_REMEMBERED:
            _categories.clear()
            is_new = pl.repeat(True, distinct.height, dtype=pl.Boolean, eager=True)
        new = [row for row, wanted in zip(rows, is_new, strict=True) if wanted]
        _categories.update(zip(new, distinct.filter(is_new).select(_category())["category"], strict=True))
    return distinct.with_columns(
        pl.Series("category", [_categories[row] for row in rows], dtype=pl.Enum(CATEGORIES))
    )


def _category() -> pl.Expr:
    """The category of a row of kind, name, operator and optimizer."""
    text, given = (pl.col(name).cast(pl.String).str.head(_LONGEST) for name in ("name", "operator"))
    # Without a device autograd's nodes stand there themselves, each doing the work of its forward operator.
    op = pl.when(pl.col("kind") == "op").then(pl.coalesce(_forward_operator(given), given)).otherwise(given)
    what = pl.when(pl.col("kind") == "op").then(text).otherwise(_without_qualifiers(text))
    rule = (
        pl.when(_matches(what, COMMUNICATION))
        .then(pl.lit("communication"))
        .when(pl.col("kind").is_in(["memcpy", "memset"]))
        .then(pl.col("kind"))
        .when((pl.col("kind") == "kernel") & _matches(what, DMA))
        .then(pl.lit("memcpy"))
        .when(pl.col("optimizer"))
        .then(pl.lit("optimizer"))
        .otherwise(
            pl.coalesce(_first_match(op, OPERATOR_RULES), _first_match(what, KERNEL_RULES), pl.lit("other"))
        )
    )
    return rule.cast(pl.Enum(CATEGORIES)).alias("category")


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
            raise UsageError(f"--comm-pattern {pattern!r} is not a regular expression") from error
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


def _matches(text: pl.Expr, pattern: str) -> pl.Expr:
    """Whether the pattern matches in any case. In lower case and ASCII a pattern compiles four times as fast."""
    lower = _CAPITAL_OR_CLASS.sub(lambda m: _ASCII_CLASSES.get(m[0], m[0].lower()), pattern)
    return text.str.to_lowercase().str.contains(lower).fill_null(value=False)


def _first_match(text: pl.Expr, rules: Iterable[tuple[str, str]]) -> pl.Expr:
    return pl.coalesce(
        *[pl.when(_matches(text, pattern)).then(pl.lit(category)) for category, pattern in rules]
    )
