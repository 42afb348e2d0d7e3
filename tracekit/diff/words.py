"""A change in one line of English."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
import polars as pl

from tracekit.diff.cells import Cells
from tracekit.diff.explain import WAITS, Found
from tracekit.diff.inputs import inputs_told, types_told
from tracekit.diff.layers import Nodes
from tracekit.diff.model import Contribution
from tracekit.facts.stack_names import DATA_LAYER, NO_LAYERS
from tracekit.facts.units import format_change, format_ns
from tracekit.names import category_name, shorten_name
from tracekit.verdict.idle_words import IDLE_PHRASES

__all__ = ["Teller"]

_LONGEST: Final = 80
_HIDDEN: Final = 0.2
"""If the time that nothing hides changed by so much more or less than all of it, other work hides more or less of it."""
_NEARLY: Final = 0.95
_ALL: Final = 0.995
"""So much less would read as 100 % less."""
_PLACE: Final = ("phase", "type", "operator", "category", "name", "shapes", "dtypes")
_PHASES: Final = {
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimizer",
    "communication": "the reduction of gradients",
    "data": "loading and copying of data",
    "set_up": "the set-up",
    "other": "the rest of the work",
}
_OTHER_CAUSES: Final = {
    "dependency": "for work on other streams",
    "kernel_gap": "in short gaps between kernels",
    "unexplained": "for no reason that the profile shows",
    "not_captured": "for no reason that was recorded",
}
_PLURAL: Final = ("layers of", "copies and casts", "fused kernels", "random numbers", "recurrent layers")


@dataclass(frozen=True, slots=True, eq=False)
class Teller:
    """What the titles need beside the changes."""

    cells: Cells
    nodes: Nodes
    calls: pl.DataFrame
    """`Diff.calls`."""
    on_cpu: bool | None
    """None: one side."""
    per: Literal["step", "window"]
    """What times are of."""

    def change(self, found: Found) -> Contribution:
        """The change with its title."""
        rows = self.cells.frame[found.cells]
        before, after = _exchanged(found, rows)
        base_ns, new_ns = (float(side[found.cells].sum()) for side in (self.cells.base, self.cells.new))
        base_calls, new_calls = (float(rows[f"{side}_calls"].sum()) for side in ("base", "new"))
        made = Contribution(
            kind=found.kind,
            delta=found.delta,
            title="",
            place=self._place(found, rows),
            before=before,
            after=after,
            layers=rows["node"].drop_nulls().n_unique(),
            base_ns=base_ns,
            new_ns=new_ns,
            base_calls=base_calls,
            new_calls=new_calls,
            noise_ns=found.noise,
            sure=found.sure,
        )
        whole = float(rows["base_whole"].sum()), float(rows["new_whole"].sum())
        whole = whole if self.on_cpu is False else (0.0, 0.0)  # operators are not hidden by others
        return replace(made, title=self._title(made, _subject(found, made), found.by, whole))

    def _title(self, one: Contribution, where: str, by: tuple[str, ...], whole: tuple[float, float]) -> str:
        if one.kind == "idle":
            return self._idle(one, by)
        signed = f"({format_change(one.delta_ns)})"
        if "calls" in one.kind:
            return f"{self._called(one, where, by)} {signed}"
        if one.kind in ("added", "removed"):
            return f"{self._alone(one, where, by)} {signed}"
        return (
            _slower(one, where, whole)
            if one.kind in ("slower", "faster")
            else f"{_changed(one, where, by)} {signed}"
        )

    def _place(self, found: Found, rows: pl.DataFrame) -> dict[str, str]:
        """What all the cells have in common; of idle time, which is in many small pieces, nearly all."""
        size = pl.Series(np.maximum(self.cells.base, self.cells.new)[found.cells])
        least = float(size.sum()) * (_NEARLY if found.kind == "idle" else 1) * (1 - 1e-9)
        place = {}
        for column in _PLACE:
            sums = rows.select(pl.col(column).alias("value"), size.alias("size")).group_by(
                "value", maintain_order=True
            )
            value, ns = sums.agg(pl.col("size").sum()).sort("size", "value", descending=True).row(0)
            if value is not None and ns >= least:
                place[column] = str(value)
        if (rows["how"] == "category").any():  # other operators and kernels stand in one cell there
            place.pop("operator", None)
            place.pop("name", None)
        node = found.node
        if found.by != ("layer",) and (inner := self._common(rows["node"])) >= 0:
            node = inner  # what is new may be so in an outer layer as well, but stands in this one
        if node >= 0:
            place["layer"] = self.nodes.frame["path"][node]
            kind = self.nodes.frame["type"][node]
            place.pop("type", None)
            if kind is not None:
                place["type"] = kind
        if found.kind == "idle" and "category" in place:
            place["cause"] = place.pop("category")
        if found.by == WAITS:
            name, _ = self._waiting()
            place |= {"cause": "synchronisation", **({"name": name} if name else {})}
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

    def _called(self, one: Contribution, where: str, by: tuple[str, ...]) -> str:
        """More or fewer calls, and where their time went the other way that it did."""
        after, before = _number(one.new_calls), _number(one.base_calls)
        what = ("time" if self._single(one, by) else "kernel") + ("" if after == "1" else "s")
        against = ""
        if (one.kind == "more_calls") != (one.delta > 0):
            longer = "longer" if one.delta > 0 else "less time"
            against = f", but {_verb(where, 'takes', 'take')} {longer}"
        return f"{where} {_verb(where, 'runs', 'run')} {after} {what} per {self.per}, not {before}{against}"

    def _single(self, one: Contribution, by: tuple[str, ...]) -> bool:
        """Whether the work is called as often as something of it runs: operators on processors, one kernel, copies."""
        return self.on_cpu is not False or "name" in by or one.place.get("category") == "memcpy"

    def _alone(self, one: Contribution, where: str, by: tuple[str, ...]) -> str:
        """Work that only one side has."""
        new = one.kind == "added"
        calls = _number(one.new_calls if new else one.base_calls)
        what = ("call" if self._single(one, by) else "kernel") + ("" if calls == "1" else "s")
        often = "" if by in (("layer",), ("rest",), ()) else f": {calls} {what} per {self.per}"
        return f"{where} {_verb(where, 'is', 'are')} {'new' if new else 'gone'}{often}"

    def _idle(self, one: Contribution, by: tuple[str, ...]) -> str:
        cause, longer = one.place.get("cause", ""), one.delta > 0
        amount = format_ns(abs(one.delta_ns))
        phrase = IDLE_PHRASES.get(cause) or _OTHER_CAUSES.get(cause, "")
        if self.on_cpu is None:
            text = f"the time in which nothing runs is {amount} {'longer' if longer else 'shorter'}"
        elif self.on_cpu:
            spent = (
                f" on {phrase.removeprefix('for ')}"
                if phrase.startswith("for ") and cause in IDLE_PHRASES
                else ""
            )
            text = f"the program spends {amount} {'more' if longer else 'less'}{spent} outside operators"
            phrase = "" if spent else phrase
        else:
            text = f"the device is idle {amount} {'longer' if longer else 'less'}"
        if by == WAITS:
            name, where = self._waiting()
            often = self._more_often(name, where) if name else ""
            return f"{often}{text} in calls that wait for it and until the host has launched more work"
        text += f" {phrase}".rstrip()
        lead = ""
        if "name" in one.place:
            text += f": {one.place['name']}"
            lead = self._more_often(one.place["name"])
        if "operator" in one.place:
            text += f" in {one.place['operator']}"
        if "layer" in one.place and (one.place["layer"], cause) != (DATA_LAYER, "data_loading"):
            text += f" in {_layer(one.place)}"
        elif by == ("cell",) and "phase" in one.place and not {"layer", "operator"} & set(one.place):
            text += f" in {_PHASES[one.place['phase']]}"  # nothing else tells it from the rest of its cause
        return lead + text

    def _waiting(self) -> tuple[str, str]:
        """The call that waits whose number changed most, and in words where it is, if that is one place; empty if it has no name."""
        more = pl.col("new_calls") - pl.col("base_calls")
        named = pl.col("name").is_not_null()
        rows = self.calls.filter(pl.col("category") == "synchronisation", more != 0, named)
        if not rows.height:
            return "", ""
        name = rows.group_by("name").agg(more.sum()).sort(pl.col("new_calls").abs(), "name").row(-1)[0]
        places = rows.filter(pl.col("name") == name).select("operator", "layer").rows()
        if len(places) > 1:
            return name, ""
        operator, layer = places[0]
        inside = [*([operator] if operator else []), *([_layer({"layer": layer})] if layer else [])]
        return name, "".join(f" in {each}" for each in inside)

    def _more_often(self, name: str, where: str = "") -> str:
        """`cudaStreamSynchronize is called 2 times more per step; `, if it is."""
        rows = self.calls.filter(pl.col("name").cast(pl.String).is_in(_of_any_vendor(name)))
        more = _number(float((rows["new_calls"] - rows["base_calls"]).sum()))
        if more in ("0", "−0"):
            return ""
        count, kind = more.removeprefix("−"), "fewer" if more.startswith("−") else "more"
        often = {"1": f"one {kind} time"}.get(count, f"{count} {kind} times")
        return f"{name}{where} is called {often} per {self.per}; "


# -- where ------------------------------------------------------------------------------------------


def _of_any_vendor(call: str) -> list[str]:
    """The names that a call has in the runtimes of CUDA and of HIP, which the two sides may have run on."""
    stem = call.removeprefix("cuda").removeprefix("hip")
    return [call] if stem == call else [f"cuda{stem}", f"hip{stem}"]


def _layer(place: dict[str, str]) -> str:
    path = place["layer"]
    if path in NO_LAYERS:
        return NO_LAYERS[path]
    return f"layer {path}" + (f" ({place['type']})" if "type" in place else "")


def _subject(found: Found, one: Contribution) -> str:
    """`aten::mm in layer fc (Linear)`, `layer fc (Linear)`, `layers of type Linear in the backward pass`."""
    place = one.place
    by = set(found.by) & set(place)
    if found.by == ("rest",):
        return "other work"
    if found.by in (("pair",), ("cell",)):
        by = set(place) & {"operator", "name", "layer"} or set(place) & {"category"}
        if by == {"layer"}:  # of one layer, several changes may be told
            by |= set(place) & {"category", "phase"}
    during = f" in {_PHASES[place['phase']]}" if "phase" in by else ""
    if during and "category" in by and place["category"] == place["phase"]:
        during = ""
    if by & {"operator", "name"}:
        head = place["operator"] if "operator" in by else shorten_name(place["name"], _LONGEST)
    elif "category" in by:
        head = "the optimizer" if place["category"] == "optimizer" else category_name(place["category"])
    elif "layer" in by:
        return _layer(place) + during
    elif "type" in by:
        return f"layers of type {place['type']}{during}"
    else:
        return during.removeprefix(" in ") or "all work"
    if "layer" in place:
        head += f" in {_layer(place)}" if _layer(place) != head else ""
    elif "type" in by:
        head += f" in layers of type {place['type']}"
    elif one.layers > 1:
        head += f" in {one.layers} layers"
    return head + during


# -- titles -----------------------------------------------------------------------------------------


def _verb(subject: str, one: str, several: str) -> str:
    return several if subject.startswith(_PLURAL) else one


def _slower(one: Contribution, where: str, whole: tuple[float, float]) -> str:
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
            f"{where} {_verb(where, 'is', 'are')} exposed for {format_ns(abs(one.delta_ns))} {more}: {_verb(where, 'it takes', 'they take')} {after} "
            f"in all, of which other work hides {covers}, instead of {before}, of which it hides {covered}"
        )
    longer, amount = part > 0, format_ns(abs(one.delta_ns))
    less = f"{_percent(abs(part))} {'longer' if longer else 'less time'}"
    how = f"{1 + part:.1f} times as long" if part >= 1 else less
    if part <= -_ALL:
        how = f"{100 * (1 + part):.2g} % of the time"
    takes = f"{_verb(where, 'takes', 'take')} {amount} {'longer' if longer else 'less'}"
    return f"{where} {takes}: the same calls take {how}"


def _changed(one: Contribution, where: str, by: tuple[str, ...]) -> str:
    """Other kernels, types or shapes."""
    before, after = one.before, one.after
    known = before is not None and after is not None
    if one.kind == "shape":
        shapes = f": {inputs_told(before, after)}" if before is not None and after is not None else ""
        return f"{where} {_verb(where, 'has', 'have')} inputs of different shapes{shapes}"
    if one.kind == "dtype":
        if by == ("pair",) and not {"operator", "layer"} & set(one.place):
            some = f"{one.layers} layers" if one.layers else "work outside the layers"
            where = f"layers of type {one.place['type']}" if "type" in one.place else some
        return f"inputs of {where} are {f'{after}, not {before}' if known else 'of other types'}"
    if before is None or after is None:
        return f"different work replaces that of {where}"
    operator = one.place.get("operator", after)
    of = "" if operator in (before, after) else f" for {operator}"
    inside = f" in {where.partition(' in ')[2]}" if " in " in where else ""
    return f"{shorten_name(after, _LONGEST)} replaces {shorten_name(before, _LONGEST)}{of}{inside}"


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %" if part >= 0.095 else f"{100 * part:.1f} %"


def _number(count: float) -> str:
    text = f"{count:,.0f}" if abs(count - np.round(count)) < 0.05 else f"{count:,.1f}"
    return text.replace("-", "−")


# -- what stands for what ---------------------------------------------------------------------------


def _exchanged(found: Found, rows: pl.DataFrame) -> tuple[str | None, str | None]:
    """What stood in the place of what now, if that is one thing in all cells."""
    if found.kind == "dtype":
        told = {types_told(*pair) for pair in rows.select("base_dtypes", "new_dtypes").cast(pl.String).rows()}
        return told.pop() if len(told) == 1 else (None, None)
    if (rows["leaves"] > 2).any():  # of several on a side none stands for one other
        return None, None
    for column in {"kernel": ("name", "operator"), "shape": ("shapes",)}.get(found.kind, ()):
        pairs = rows.select(f"base_{column}", f"new_{column}").cast(pl.String).unique()
        before, after = pairs.row(0)
        if pairs.height > 1:
            return None, None
        if before != after:
            return before, after
    return None, None
