"""What a rank takes longer for than the others, in words."""

from __future__ import annotations

from typing import Any, Final

from tracekit.facts.idle_names import cause_name
from tracekit.facts.stack_names import COMMUNICATION_LAYER, DATA_LAYER, NO_LAYERS
from tracekit.facts.units import format_ns
from tracekit.names import shorten_name

__all__ = ["amount_of", "item_name", "place_name", "why_of"]

_MORE: Final = 1.15
"""From so many times as many operators or FLOPs on, a rank has more to do than others."""
_EQUAL: Final = 0.02
"""Numbers that differ by less are equal."""
_LONGEST: Final = 60
_SHORT: Final = 30
_SAID: Final = (
    ("data_loading", DATA_LAYER),
    ("dependency", COMMUNICATION_LAYER),
    ("kernel_gap", COMMUNICATION_LAYER),
)
"""Causes of idle time that say enough in these places."""
_PASSES: Final = {
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "optimizer": "in the optimizer",
}


def item_name(kind: str, what: str, where: str | None) -> str:
    """The name of an item of `Beside.items` inside a sentence.

    >>> item_name("layer", "block.1", "backward"), item_name("idle", "python", "train.py(7): main")
    ('layer block.1 in the backward pass', 'idle time (Python, in train.py(7): main)')
    >>> item_name("idle", "launch_latency", "<optimizer>"), item_name("operator", "aten::mm", "other")
    ('idle time (launch latency, in the optimizer)', 'operator aten::mm')
    """
    if kind == "compute":
        return "all that it computes"
    if kind == "idle":
        return f"idle time ({_idle_name(what, where, 'in')})"
    if what in NO_LAYERS:
        return NO_LAYERS[what]
    name = f"{kind} {shorten_name(what, _LONGEST)}"
    return f"{name} {_PASSES[where]}" if where in _PASSES else name


def _idle_name(what: str, where: str | None, inside: str) -> str:
    """The cause of idle time, and the place of most of it if that says more."""
    place = (
        None
        if where is None or (what, where) in _SAID
        else NO_LAYERS.get(where) or shorten_name(where, _SHORT)
    )
    return cause_name(what) if place is None else f"{cause_name(what)}, {inside} {place}"


def place_name(what: str, where: str | None) -> str:
    """Where an item belongs, in a cell: a pass, a part of the step, a layer, a line of Python; empty if that is not known or says no more.

    >>> place_name("block.1", "backward"), place_name("python", "<optimizer>"), place_name("data_loading", "<data>")
    ('backward', 'the optimizer', '')
    """
    if where is None or where in ("other", "communication", "data") or (what, where) in _SAID:
        return ""
    return NO_LAYERS.get(where, where)


def why_of(row: dict[str, Any], others: str, it: str | None, *, on_cpu: bool) -> str:
    """What the rank takes longer for, over all steps; `it` is its name if it is one of several."""
    if row["kind"] is None:
        return f"The traces do not show what takes longer on {it or 'it'} than on {others}."
    longer, what = format_ns(row["longer_ns"]), row["what"]
    if row["kind"] == "idle":
        cause = _idle_name(what, row["where"], "mostly in")
        without = "outside the work of operators" if what == "operator_dispatch" else "outside operators"
        theirs = "theirs" if others == "the others" else "the other's"
        of_it = "Its device" if it is None else f"The device of {it}"
        subject = "It" if it is None else f"{it[0].upper()}{it[1:]}"
        return (
            f"{subject} spends {longer} longer than {others} {without} ({cause})."
            if on_cpu
            else f"{of_it} is idle for {longer} longer than {theirs} ({cause})."
        )
    return f"On {it or 'it'}, {item_name(row['kind'], what, None)} takes {longer} longer than on {others}."


def amount_of(row: dict[str, Any], others: str, *, on_cpu: bool) -> str:
    """Whether it has more to do there than the other ranks; empty if that is not known, or not clear."""
    count, flops, inputs = row["times_operators"], row["times_flops"], row["times_inputs"]
    runs = f"{'operators' if on_cpu else 'kernels'} there"
    if count is not None and count >= _MORE:
        more = f", with {flops:.1f} times as many FLOPs" if flops is not None and flops >= _MORE else ""
        return f"It runs {count:.1f} times as many {runs}{more}."
    if count is None or count > 1 + _EQUAL:
        return ""
    number = "as many" if count >= 1 - _EQUAL else "fewer"
    if flops is None:
        return _inputs(inputs, f"{number} {runs}")
    if flops >= _MORE:
        return f"It runs {number} {runs}, but on larger inputs: they have {flops:.1f} times as many FLOPs."
    if abs(flops - 1) > _EQUAL or count < 1 - _EQUAL:
        return ""
    return f"It has no more to compute there than {others}, so it computes more slowly."


def _inputs(times: float | None, runs: str) -> str:
    """Whether what it runs has larger inputs; empty if that is not known, or not clear."""
    if times is None or (times != 1 and times < _MORE):
        return ""
    of = (
        "on inputs of the same shapes"
        if times == 1
        else f"but on larger inputs: one has {times:.1f} times as many elements"
    )
    return f"It runs {runs}, {of}."
