"""Categories of device activities (DEFINITIONS §2): collectives by name, then the operator, then the kernel's name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

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

_ROW_SCHEMA: Final = {"kind": pl.String, "name": pl.String, "operator": pl.String, "optimizer": pl.Boolean}

ACTIVITY_CLASSES = ("compute", "communication", "memory")


def categorise(kind: pl.Series, name: pl.Series, operator: pl.Series, in_optimizer: pl.Series) -> pl.Series:
    """The category of each activity, as an Enum over `trace.CATEGORIES`.

    `operator` is the name of the innermost operator around the launch, null when unknown; `in_optimizer` says
    whether the launch lies in an `Optimizer.step` range.
    """
    encoded = [text_codes(column) for column in (kind, name, operator)]
    optimizer = in_optimizer.to_numpy().astype(np.int64)
    alike = groups(*(codes for codes, _ in encoded), optimizer)
    texts = [[told[at] for at in key.tolist()] for key, (_, told) in zip(alike.keys, encoded, strict=False)]
    rows = list(zip(*texts, alike.keys[3].astype(bool).tolist(), strict=True))
    return at_rows(pl.Series("category", _labelled(rows), pl.Enum(CATEGORIES)), alike.of)


_Row = tuple[str | None, str | None, str | None, bool]
"""Kind, name, operator, and whether it lies in a step of an optimizer."""

_MOST_REMEMBERED: Final = 4_096
_categories: dict[_Row, str] = {}
"""What was categorised before in this process: compiling the rules takes longer than all else of reading a small trace."""


def _labelled(rows: list[_Row]) -> list[str]:
    """The category of each of these distinct rows."""
    if len(rows) > _MOST_REMEMBERED:
        return _category(rows)
    new = [row for row in rows if row not in _categories]
    if new and len(_categories) + len(rows) > _MOST_REMEMBERED:
        _categories.clear()
        new = rows
    if new:
        _categories.update(zip(new, _category(new), strict=True))
    return [_categories[row] for row in rows]


def _category(rows: list[_Row]) -> list[str]:
    """The category of each row."""
    op, what = _texts(rows)
    sent = _first_matches(what, (("communication", COMMUNICATION), ("memcpy", DMA)))
    found = [_without_operator(row, sent.get(text)) for row, text in zip(rows, what, strict=True)]
    for texts, rules in ((op, OPERATOR_RULES), (what, KERNEL_RULES)):
        left = [text for text, category in zip(texts, found, strict=True) if category is None]
        ruled = _first_matches(left, rules)
        found = [category or ruled.get(text) for text, category in zip(texts, found, strict=True)]
    return [category or "other" for category in found]


def _without_operator(row: _Row, sent: str | None) -> str | None:
    """The category of what is no work of an operator's; `sent` is that of which the name tells."""
    kind, _, _, in_optimizer = row
    if sent == "communication" or (sent is not None and kind == "kernel"):
        return sent
    return kind if kind in ("memcpy", "memset") else "optimizer" if in_optimizer else None


_AT_ONCE: Final = 8
"""A rule that no text needs is not compiled, but a query for each of them costs more than the rules."""


def _first_matches(texts: Sequence[str | None], rules: Sequence[tuple[str, str]]) -> dict[str | None, str]:
    """The category of the first rule that matches each of these texts, where one does."""
    found: dict[str | None, str] = {}
    left = pl.Series("text", [text for text in dict.fromkeys(texts) if text is not None], pl.String)
    for at in range(0, len(rules), _AT_ONCE):
        if not left.len():
            break
        tried = rules[at : at + _AT_ONCE]
        told = (
            left.to_frame()
            .select(_matches(pattern).alias(category + pattern) for category, pattern in tried)
            .to_numpy()
        )
        matched = told.any(axis=1)
        first = told.argmax(axis=1)[matched].tolist()
        found.update(zip(left.filter(pl.Series(matched)), (tried[each][0] for each in first), strict=True))
        left = left.filter(pl.Series(~matched))
    return found


def _texts(rows: list[_Row]) -> tuple[list[str | None], list[str | None]]:
    """What rules look at, in lower case: the operator of each row, and what it runs."""
    distinct = pl.DataFrame(rows, schema=_ROW_SCHEMA, orient="row")
    text, given = (pl.col(name).str.head(_LONGEST) for name in ("name", "operator"))
    op, what = given, text
    if (distinct["kind"] == "op").any():
        # Without a device autograd's nodes stand there themselves, each doing the work of its forward operator.
        op = (
            pl.when(pl.col("kind") == "op")
            .then(pl.coalesce(_forward_operator(given), given))
            .otherwise(given)
        )
    if (distinct["kind"] != "op").any():
        ascii_only = all(row[1] is None or row[1].isascii() for row in rows)
        short = _without_qualifiers(text, ascii_only=ascii_only)
        what = pl.when(pl.col("kind") == "op").then(text).otherwise(short)
    told = distinct.select(op=op.str.to_lowercase(), what=what.str.to_lowercase())
    return told["op"].to_list(), told["what"].to_list()


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


def _without_qualifiers(name: pl.Expr, *, ascii_only: bool) -> pl.Expr:
    """The name of a kernel without what stands in parentheses (parameters, casts) and without `QUALIFIERS`."""
    name = name.str.strip_prefix("void ")
    for _ in range(_DEEPEST_PARENTHESES):
        name = name.str.replace_all(r"\([^()]*\)", "")
    for pattern, kept in QUALIFIERS:
        name = name.str.replace_all(_CLASS.sub(_in_ascii, pattern) if ascii_only else pattern, kept)
    return name


_CLASS: Final = re.compile(r"\\[wb]")
_CAPITAL_OR_CLASS: Final = re.compile(r"\\?[A-Zwdb]")
_ASCII_CLASSES: Final = {
    r"\w": "[0-9a-zA-Z_]",
    r"\W": "[^0-9a-zA-Z_]",
    r"\d": "[0-9]",
    r"\b": r"(?-u:\b)",
}


def _in_ascii(found: re.Match[str]) -> str:
    """A class without letters of other scripts, which compiles four times as fast; a capital letter as a small one."""
    return _ASCII_CLASSES.get(found[0], found[0].lower())


def _matches(pattern: str) -> pl.Expr:
    """Whether the pattern matches the `text`, which is in lower case, in any case."""
    return pl.col("text").str.contains(_CAPITAL_OR_CLASS.sub(_in_ascii, pattern))
