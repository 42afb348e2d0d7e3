"""The ranges that may stand for layers, and which of them a `RangeFilter` leaves (DEFINITIONS §5)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import polars as pl

from tracekit.errors import UsageError
from tracekit.facts.stack_names import NOT_A_LAYER
from tracekit.range_filter import DEFAULT_DOMAIN, RangeFilter, not_a_pattern
from tracekit.spans import BoolArray
from tracekit.trace import Trace

__all__ = ["choose_ranges", "counting", "user_ranges"]

_SHOWN: Final = 5
_LONGEST: Final = 60


def choose_ranges(trace: Trace, chosen: RangeFilter | None) -> Trace:
    """The same trace, of whose named ranges only those count as layers that the filter leaves; None: all of them.

    Raises UsageError when it leaves none.

    >>> import tracekit
    >>> trace = tracekit.read("sample_traces/cnn_cpu/trace.json.gz")
    >>> choose_ranges(trace, None).layer_ranges is None
    True
    """
    if chosen is not None:
        names = user_ranges(trace)
        if not counting(names, chosen).any():
            raise UsageError(
                f"no range is left by {chosen.label}", path=trace.meta.path, remedy=_known(names, chosen)
            )
    return replace(trace, layer_ranges=chosen)


def user_ranges(trace: Trace) -> pl.DataFrame:
    """The distinct ranges that somebody named, tools excepted: `name` and `domain` (null for the default one)."""
    found = trace.host.select("kind", "name", "domain").filter(pl.col("kind") == "annotation")
    distinct = found.select("name", "domain").unique()
    if trace.ranges is not None:
        spanning = trace.ranges.filter(pl.col("kind") == "start_end").select("name", "domain")
        distinct = pl.concat([distinct, spanning.unique()]).unique()
    return distinct.filter(~pl.col("name").cast(pl.String).str.contains(NOT_A_LAYER))


def counting(ranges: pl.DataFrame, chosen: RangeFilter) -> BoolArray:
    """Which rows (`name`, `domain`) the filter leaves, whatever their depth. Each distinct pair is looked at once.

    Raises UsageError for a pattern that only Python's own regular expressions know.
    """
    distinct = ranges.select("name", "domain").unique()
    name = distinct["name"].cast(pl.String)
    domain = distinct["domain"].cast(pl.String).fill_null(DEFAULT_DOMAIN)
    wanted = (
        domain.is_in(list(chosen.domains))
        if chosen.domains
        else pl.Series([True]).new_from_index(0, name.len())
    )
    if chosen.include:
        wanted &= _matching(name, "include", chosen.include)
    if chosen.exclude:
        wanted &= ~_matching(name, "exclude", chosen.exclude)
    told = distinct.with_columns(wanted.alias("wanted"))
    rows = ranges.select("name", "domain").join(
        told, on=["name", "domain"], how="left", maintain_order="left", nulls_equal=True
    )
    found: BoolArray = rows["wanted"].fill_null(value=False).to_numpy()
    return found


def _matching(names: pl.Series, flag: str, patterns: tuple[str, ...]) -> pl.Series:
    """Which names one of the patterns matches."""
    found = pl.Series([False]).new_from_index(0, names.len())
    for pattern in patterns:
        found |= _matches(names, flag, pattern)
    return found


def _matches(names: pl.Series, flag: str, pattern: str) -> pl.Series:
    try:
        return names.str.contains(pattern).fill_null(value=False)
    except pl.exceptions.PolarsError as error:
        raise not_a_pattern(flag, pattern, error) from error


def _known(names: pl.DataFrame, chosen: RangeFilter) -> str:
    """What there is to choose from: the domains where none of those asked for exists, else the ranges' names."""
    if not names.height:
        return "there are no ranges that somebody named (record_function, NVTX push and pop)"
    domains = names["domain"].cast(pl.String).fill_null(DEFAULT_DOMAIN).unique().sort()
    if chosen.domains and not domains.is_in(list(chosen.domains)).any():
        return f"the domains with ranges are {_listed(domains)}"
    return f"the ranges are {_listed(names['name'].cast(pl.String).unique().sort())}"


def _listed(texts: pl.Series) -> str:
    shown = [repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…") for text in texts.head(_SHOWN)]
    return ", ".join(shown) + (f" and {texts.len() - _SHOWN:,} more" if texts.len() > _SHOWN else "")
