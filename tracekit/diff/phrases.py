"""The parts of the sentences on changes."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tracekit.diff.model import Contribution
from tracekit.facts.units import format_change, format_ns
from tracekit.names import shorten_name

__all__ = [
    "LONGEST",
    "changed",
    "number",
    "replaced",
    "same_calls",
    "slower",
    "times_as_often",
    "updated",
    "verb",
]

_HIDDEN: Final = 0.2
"""If the time that nothing hides changed by so much more or less than all of it, other work hides more or less of it."""
_ALIKE: Final = 0.02
"""Ratios that differ by less are one."""
_ALL: Final = 0.995
"""So much less would read as 100 % less."""
_PLURAL: Final = (
    "layers of",
    "calls of",
    "copies and casts",
    "fused kernels",
    "random numbers",
    "recurrent layers",
)
_FEW: Final = 10
_SOME_CALLS: Final = 0.05
_NEARLY: Final = 0.1
"""A ratio so near to 1 is told as what it is more or less."""
_HARDLY_ANY: Final = 0.0005
_HARDLY: Final = 0.005
LONGEST: Final = 80


def verb(subject: str, one: str, several: str) -> str:
    """The form of a verb or a pronoun that goes with a subject: for one thing, or for several."""
    named = subject.removeprefix("other ").removeprefix("some ")
    return several if named.startswith(_PLURAL) else one


def times_as_often(rows: pl.DataFrame, *, more: bool) -> str:
    """`twice as often`, if all of it is, else `more often`.

    >>> times_as_often(pl.DataFrame({"base_calls": [4.0], "new_calls": [2.0]}), more=False)
    'half as often'
    >>> times_as_often(pl.DataFrame({"base_calls": [20.0], "new_calls": [5.0]}), more=False)
    '0.25 times as often'
    >>> times_as_often(pl.DataFrame({"base_calls": [100.0], "new_calls": [103.0]}), more=True)
    '3.0 % more often'
    """
    ratios = (
        rows.filter(pl.col("base_calls") > 0).select(pl.col("new_calls") / pl.col("base_calls")).to_series()
    )
    least, most = float(ratios.min() or 0), float(ratios.max() or 0)  # type: ignore[arg-type]
    often = "more often" if more else "less often"
    if most - least > _ALIKE * most or not ratios.len():
        return often
    if abs(most - 1) < _NEARLY:
        return f"{_percent(abs(most - 1))} {often}"
    for ratio, word in ((2, "twice"), (0.5, "half")):
        if abs(most - ratio) < _ALIKE:
            return f"{word} as often"
    return f"{_figures(most) if most < _FEW else number(most)} times as often"


def same_calls(one: Contribution) -> bool:
    """Whether both sides call the work of a change as often; a call in fewer than one of twenty steps is none."""
    return abs(one.new_calls - one.base_calls) <= max(_SOME_CALLS, _HARDLY * one.base_calls)


def slower(one: Contribution, where: str, whole: tuple[float, float]) -> str:
    """What takes longer; `whole` is its time on both sides with what other work hides."""
    part = one.delta_ns / one.base_ns
    if whole[0] > 0 and abs(whole[1] / whole[0] - 1 - part) > _HIDDEN * max(abs(part), 1.0):
        hidden = [max(ns - shown, 0.0) for ns, shown in zip(whole, (one.base_ns, one.new_ns), strict=True)]
        more, (before, after), (covered, covers) = (
            "more" if part > 0 else "less",
            map(format_ns, whole),
            map(format_ns, hidden),
        )
        return (
            f"{where} {verb(where, 'is', 'are')} exposed for {format_ns(abs(one.delta_ns))} {more}: {verb(where, 'it takes', 'they take')} {after} "
            f"in all, of which other work hides {covers}, instead of {before}, of which it hides {covered}"
        )
    less = f"{_percent(abs(part))} {'longer' if part > 0 else 'less time'}"
    how = f"{1 + part:.1f} times as long" if part >= 1 else less
    if part <= -_ALL:
        how = f"{100 * (1 + part):.2g} % of the time" if part > -1 + _HARDLY_ANY else "hardly any time"
    calls = " for the same calls" if same_calls(one) else ""
    return f"{where} {verb(where, 'takes', 'take')} {how}{calls} ({format_change(one.delta_ns)})"


def changed(one: Contribution, where: str, by: tuple[str, ...], what: str) -> str:
    """Other types, or other kernels or operators (`what`)."""
    before, after = one.before, one.after
    known = before is not None and after is not None
    if one.kind == "dtype":
        if by == ("pair",) and not {"operator", "layer"} & set(one.place):
            some = f"{one.layers} layers" if one.layers else "some operators"
            where = f"layers of type {one.place['type']}" if "type" in one.place else some
        return f"inputs of {where} are {f'{after}, not {before}' if known else 'of other types'}"
    if before is None or after is None:
        return f"other {what} do the work of {where}"
    operator = one.place.get("operator", after)
    of = "" if operator in (before, after) else f" for {operator}"
    inside = f" in {where.partition(' in ')[2]}" if " in " in where else ""
    return f"{shorten_name(after, LONGEST)} replaces {shorten_name(before, LONGEST)}{of}{inside}"


def replaced(one: Contribution, rows: pl.DataFrame, layer: str) -> str:
    """Other operators in layers; `layer` names it if it is one."""
    types = rows["type"].unique()
    kind = f" of type {types[0]}" if len(types) == 1 and types[0] is not None else ""
    where = layer if one.layers == 1 else f"{one.layers} layers{kind}"
    if one.before is None or one.after is None:
        return f"other operators do the work of {where}"
    return f"{one.after} {'replace' if ' and ' in one.after else 'replaces'} {one.before} in {where}"


def updated(one: Contribution) -> str:
    """Other operators in the updates of an optimizer."""
    if one.before is not None and one.after is not None:
        return f"the optimizer runs {one.after} in place of {one.before}"
    return f"the optimizer {'also' if one.before is None else 'no longer'} runs {one.after or one.before}"


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %" if part >= 0.095 else f"{100 * part:.1f} %"


def _figures(count: float) -> str:
    """Two digits that count: 0.25 is neither 0.2 nor 0.3."""
    return f"{count:.2g}"


def number(count: float) -> str:
    """A number of calls, which is a mean over steps.

    >>> number(3.02), number(2.5), number(0.25)
    ('3', '2.5', '0.25')
    """
    if 0.05 <= abs(count) < 0.95:
        return _figures(count).replace("-", "−")
    text = f"{count:,.0f}" if abs(count - np.round(count)) < 0.05 else f"{count:,.1f}"
    return text.replace("-", "−")
