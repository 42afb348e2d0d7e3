"""A change in one line of English."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import polars as pl

from tracekit.diff.cells import Cells
from tracekit.diff.explain import Found
from tracekit.diff.layers import Nodes
from tracekit.diff.model import Change
from tracekit.facts.stack_names import NO_LAYERS
from tracekit.facts.units import format_ns
from tracekit.names import category_name, shorten_name
from tracekit.verdict.idle_words import IDLE_PHRASES

__all__ = ["Teller"]

_LONGEST: Final = 80
_MOST_INPUTS: Final = 3
_NEARLY: Final = 0.95
_PLACE: Final = ("phase", "type", "operator", "category", "name", "shapes", "dtypes")
_PHASES: Final = {
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimizer",
    "communication": "the reduction of gradients",
    "data": "loading and copying of data",
    "set_up": "the set-up",
    "other": "work outside the phases",
}
_DTYPES: Final = {"float": "fp32", "double": "fp64", "c10::Half": "fp16", "c10::BFloat16": "bf16"}
_OTHER_CAUSES: Final = {
    "dependency": "for work on other streams",
    "kernel_gap": "in short gaps between kernels",
    "unexplained": "for no reason that the profile shows",
    "not_captured": "for no reason that was recorded",
}
_PLURAL: Final = frozenset({"copies and casts", "fused kernels", "random numbers", "recurrent layers"})


@dataclass(frozen=True, slots=True, eq=False)
class Teller:
    """What the titles need beside the changes."""

    cells: Cells
    nodes: Nodes
    calls: pl.DataFrame
    """`Diff.calls`."""
    on_cpu: bool

    def change(self, found: Found) -> Change:
        """The change with its title."""
        rows = self.cells.frame[found.cells]
        place = self._place(found, rows)
        before, after = self._exchanged(found, rows)
        amounts = {
            "base_ns": float(self.cells.base[found.cells].sum()),
            "new_ns": float(self.cells.new[found.cells].sum()),
            "base_calls": float(rows["base_calls"].sum()),
            "new_calls": float(rows["new_calls"].sum()),
        }
        layers = rows["node"].drop_nulls().n_unique()
        where = self._subject(found, place, layers)
        title = {
            "slower": self._slower,
            "faster": self._slower,
            "idle": self._idle,
            "kernel": self._replaced,
            "dtype": self._replaced,
            "shape": self._reshaped,
            "more_calls": self._called,
            "fewer_calls": self._called,
        }.get(found.kind, self._alone)(found, where, amounts, place, before, after)
        return Change(
            found.kind, found.delta, title, place, before, after, layers, noise_ns=found.noise, **amounts
        )

    # -- where ---------------------------------------------------------------------------------------

    def _place(self, found: Found, rows: pl.DataFrame) -> dict[str, str]:
        """What all the cells have in common; of idle time, which is in many small pieces, nearly all."""
        size = pl.Series(np.maximum(self.cells.base, self.cells.new)[found.cells])
        least = size.sum() * (_NEARLY if found.kind == "idle" else 1)
        place = {}
        for column in _PLACE:
            most = rows.select(pl.col(column).alias("value"), size.alias("size")).group_by("value")
            value, ns = most.agg(pl.col("size").sum()).sort("size", "value", descending=True).row(0)
            if value is not None and ns >= least * (1 - 1e-9):
                place[column] = str(value)
        node = found.node if found.node >= 0 else self._common(rows["node"])
        if node >= 0:
            place["layer"] = self.nodes.frame["path"][node]
            kind = self.nodes.frame["type"][node]
            place.pop("type", None)
            if kind is not None:
                place["type"] = kind
        if found.kind == "idle" and "category" in place:
            place["cause"] = place.pop("category")
        return place

    def _common(self, nodes: pl.Series) -> int:
        """The innermost layer around all nodes; −1 if there is none, or only one that holds all layers."""
        if nodes.null_count():
            return -1
        parents = self.nodes.frame["parent_layer_id"].fill_null(-1).to_list()
        chains = []
        for node in nodes.unique():
            chain, at = [], node
            while at >= 0:
                chain.append(at)
                at = parents[at]
            chains.append(chain[::-1])
        shared = -1
        for level in zip(*chains, strict=False):
            if len(set(level)) > 1:
                break
            shared = level[0]
        return -1 if shared >= 0 and parents[shared] < 0 and len(chains) > 1 else shared

    def _layer(self, place: Mapping[str, str]) -> str:
        path = place["layer"]
        if path in NO_LAYERS:
            return NO_LAYERS[path]
        return f"layer {path}" + (f" ({place['type']})" if "type" in place else "")

    def _subject(self, found: Found, place: Mapping[str, str], layers: int) -> str:
        """`aten::mm in layer fc (Linear)`, `layer fc (Linear)`, `layers of type Linear in the backward pass`."""
        by = found.by
        if by in (("pair",), ("rest",), ("cell",)):
            by = tuple(name for name in ("operator", "name", "layer") if name in place) or ("category",)
        head, rest = "", set(by) & set(place)
        for name in ("name", "operator", "category"):
            if name in rest and (name != "name" or "operator" not in rest):
                head = (
                    category_name(place[name]) if name == "category" else shorten_name(place[name], _LONGEST)
                )
                break
        if not head and "layer" in rest:
            return self._layer(place) + _during(rest, place)
        if not head and "type" in rest:
            return f"layers of type {place['type']}" + _during(rest, place)
        if not head:
            return _PHASES[place["phase"]] if "phase" in rest else "all work"
        if "layer" in place:
            head += f" in {self._layer(place)}"
        elif "type" in rest:
            head += f" in layers of type {place['type']}"
        elif layers > 1:
            head += f" in {layers} layers"
        return head + _during(rest, place)

    # -- titles --------------------------------------------------------------------------------------

    def _slower(self, found: Found, where: str, amounts: dict[str, float], *_: object) -> str:
        delta = float(found.delta)
        plural = where.startswith("layers ") or where.partition(" in ")[0] in _PLURAL
        part = delta / amounts["base_ns"]
        if part >= 1:
            how = f"{1 + part:.1f} times as long"
        else:
            how = f"{_percent(abs(part))} {'longer' if delta > 0 else 'less time'}"
        ends = "longer" if delta > 0 else "less"
        takes = "take" if plural else "takes"
        return f"{where} {takes} {format_ns(abs(delta))} {ends}: the same calls take {how}"

    def _alone(self, found: Found, where: str, amounts: dict[str, float], *_: object) -> str:
        """Work that only one side has."""
        new = found.kind == "added"
        word = "new" if new else "gone"
        if found.by == ("rest",):
            return f"other work that is {word} ({_signed(found.delta)})"
        often = ""
        if found.by != ("layer",):
            often = f", {_number(amounts['new_calls' if new else 'base_calls'])} per step"
        be = "are" if where.startswith("layers ") or where in _PLURAL else "is"
        return f"{where} {be} {word}{often} ({_signed(found.delta)})"

    def _replaced(self, found: Found, where: str, amounts: object, place: dict[str, str], before: str | None, after: str | None) -> str:  # fmt: skip
        if before is None or after is None:
            what = "other kernels" if found.kind == "kernel" else "inputs of other types"
            return f"{what} elsewhere ({_signed(found.delta)})"
        if found.kind == "dtype":
            return f"inputs of {where} are {after}, not {before} ({_signed(found.delta)})"
        of = f" for {place['operator']}" if place.get("operator", after) not in (before, after) else ""
        inside = f" in {where.partition(' in ')[2]}" if " in " in where else ""
        names = (shorten_name(each, _LONGEST) for each in (after, before))
        return f"{' replaces '.join(names)}{of}{inside} ({_signed(found.delta)})"

    def _reshaped(self, found: Found, where: str, amounts: object, place: dict[str, str], before: str | None, after: str | None) -> str:  # fmt: skip
        told = "" if before is None or after is None else f": {_reshaped_inputs(before, after)}"
        be = "have" if where.startswith("layers ") else "has"
        if found.by == ("rest",):
            return f"other work has inputs of other shapes ({_signed(found.delta)})"
        return f"{where} {be} inputs of other shapes{told} ({_signed(found.delta)})"

    def _called(self, found: Found, where: str, amounts: dict[str, float], *_: object) -> str:
        after, before = _number(amounts["new_calls"]), _number(amounts["base_calls"])
        if found.by == ("rest",):
            where = "other work"
        what = "times" if self.on_cpu or "name" in found.by else "kernels"
        runs = "run" if where.startswith("layers ") else "runs"
        return f"{where} {runs} {after} {what} per step, not {before} ({_signed(found.delta)})"

    def _idle(self, found: Found, where: str, amounts: object, place: dict[str, str], *_: object) -> str:
        cause = place.get("cause", "")
        phrase = IDLE_PHRASES.get(cause) or _OTHER_CAUSES.get(cause, "")
        amount, longer = format_ns(abs(float(found.delta))), found.delta > 0
        if self.on_cpu:
            text = f"the program spends {amount} {'more' if longer else 'less'} outside operators"
        else:
            text = f"the device is idle {amount} {'longer' if longer else 'less'}"
        text += f" {phrase}".rstrip()
        lead = ""
        if "name" in place:
            text += f": {place['name']}"
            lead = self._more_often(place["name"])
        if "operator" in place:
            text += f" in {place['operator']}"
        if "layer" in place:
            text += f" in {self._layer(place)}"
        return lead + text

    def _more_often(self, name: str) -> str:
        """`cudaStreamSynchronize is called 2 times more per step; `, if it is."""
        rows = self.calls.filter(pl.col("name") == name)
        more = float((rows["new_calls"] - rows["base_calls"]).sum())
        if round(abs(more), 1) == 0:
            return ""
        often = "once" if round(abs(more), 1) == 1 else f"{_number(abs(more))} times"
        return f"{name} is called {often} {'more' if more > 0 else 'less'} per step; "

    # -- what stands for what ------------------------------------------------------------------------

    def _exchanged(self, found: Found, rows: pl.DataFrame) -> tuple[str | None, str | None]:
        """What stood in the place of what now, if that is one thing in all cells."""
        if found.kind == "dtype":
            told = {
                _differing(*pair) for pair in rows.select("base_dtypes", "new_dtypes").cast(pl.String).rows()
            }
            return told.pop() if len(told) == 1 else (None, None)
        if found.kind == "shape" and (rows["leaves"] > 2).any():
            return None, None
        columns = {"kernel": ("name", "operator"), "shape": ("shapes",)}.get(found.kind, ())
        for column in columns:
            pairs = rows.select(f"base_{column}", f"new_{column}").cast(pl.String).unique()
            before, after = pairs.row(0)
            if pairs.height > 1:
                return None, None
            if before != after:
                return before, after
        return None, None


def _list(text: str | None) -> list[object]:
    """The inputs that a text of shapes or types lists."""
    try:
        return msgspec.json.decode(text or "[]", type=list[object])
    except msgspec.DecodeError:
        return [text]


def _differing(before: str | None, after: str | None) -> tuple[str | None, str | None]:
    """The types that differ: `fp32` and `bf16`."""
    pairs = dict.fromkeys(
        (str(old), str(new)) for old, new in zip(_list(before), _list(after), strict=False) if old != new
    )
    if not pairs:
        return before, after
    old, new = (
        " and ".join(dict.fromkeys(_DTYPES.get(each, each) for each in side))
        for side in zip(*pairs, strict=True)
    )
    return old, new


def _reshaped_inputs(before: str, after: str) -> str:
    """`input 1 is 128 × 64, not 32 × 64`."""
    old, new = _list(before), _list(after)
    if len(old) != len(new):
        return f"{len(new)} inputs, not {len(old)}"
    told = [
        f"input {number} is {_size(b)}, not {_size(a)}"
        for number, (a, b) in enumerate(zip(old, new, strict=True), 1)
        if a != b
    ]
    return ", ".join(told[:_MOST_INPUTS])


def _size(shape: object) -> str:
    return " × ".join(str(each) for each in shape) or "a scalar" if isinstance(shape, list) else str(shape)


def _during(rest: set[str], place: Mapping[str, str]) -> str:
    return f" in {_PHASES[place['phase']]}" if "phase" in rest else ""


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %" if part >= 0.095 else f"{100 * part:.1f} %"


def _signed(delta: object) -> str:
    value = float(delta)  # type: ignore[arg-type]
    return f"{'−' if value < 0 else '+'}{format_ns(abs(value))}"


def _number(count: float) -> str:
    return f"{count:,.0f}" if abs(count - np.round(count)) < 0.05 else f"{count:,.1f}"
