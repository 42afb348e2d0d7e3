"""A change in one line of English."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.classes import dataclass
from tracekit.diff.cells import Cells
from tracekit.diff.covered import PARTS, Covered
from tracekit.diff.explain import WAITS, Found
from tracekit.diff.idle_told import IdleTeller
from tracekit.diff.inputs import inputs_told, types_of, types_told
from tracekit.diff.layers import Nodes
from tracekit.diff.model import Contribution
from tracekit.diff.named import layer_named, work_named
from tracekit.diff.phrases import changed, number, replaced, same_calls, slower, times_as_often, updated, verb
from tracekit.diff.ranks import Ranks
from tracekit.diff.replaced import LAYER
from tracekit.diff.updates import UPDATE, exchanged
from tracekit.facts.units import format_change

__all__ = ["Teller"]

_NEARLY: Final = 0.95
_MOST: Final = 0.5
_ONCE: Final = "once"
_LONGER: Final = 1.5
"""So many times as long as before a call takes that is said to take longer."""
_SOME_CALLS: Final = 0.05
"""Per step; a call in fewer than one of twenty steps is none."""
_PLACE: Final = ("phase", "type", "operator", "category", "name", "shapes", "dtypes")


@dataclass(frozen=True, slots=True, eq=False)
class _Subject:
    """What a sentence is about."""

    text: str
    part: str
    """The same, where it is not all that `text` names."""
    by: set[str]
    """The columns by which it is named, with their values in `place`."""
    place: dict[str, str]
    node: int
    """The layer of `place`, −1 without one."""
    rows: pl.DataFrame
    """Its cells."""
    rest: bool
    """Whether it is what no other sentence names."""


@dataclass(frozen=True, slots=True, eq=False)
class Teller:
    """What the titles need beside the changes."""

    cells: Cells
    rows: pl.DataFrame
    """Those of `matching.rows_of`."""
    nodes: Nodes
    found: Sequence[Found]
    """All changes."""
    idle: IdleTeller
    ranks: Ranks

    @property
    def on_cpu(self) -> bool | None:
        """Whether both sides ran on processors; None: one side."""
        return self.idle.on_cpu

    def change(self, found: Found, *, sure: bool) -> Contribution:
        """The change with its title."""
        rows = self.cells.frame[found.cells]
        shown = self._most(found)
        node = self._node(found, self.cells.frame[shown])
        update = bool((rows["how"] == UPDATE).any())
        before, after = exchanged(self.rows) or (None, None) if update else _exchanged(found, rows)
        every = np.concatenate([found.cells, found.idle])
        base_ns, new_ns = (float(side[every].sum()) for side in (self.cells.base, self.cells.new))
        base_calls, new_calls = (float(rows[f"{side}_calls"].sum()) for side in ("base", "new"))
        made = Contribution(
            kind=found.kind,
            delta=found.delta,
            title="",
            place=self._place(found, shown, node),
            before=before,
            after=after,
            layers=rows["node"].drop_nulls().n_unique(),
            base_ns=base_ns,
            new_ns=new_ns,
            base_calls=base_calls,
            new_calls=new_calls,
            noise_ns=found.noise,
            sure=sure,
        )
        whole = float(rows["base_whole"].sum()), float(rows["new_whole"].sum())
        whole = whole if self.on_cpu is False else (0.0, 0.0)  # operators are not hidden by others
        title = self._title(made, found.by, self._subject(found, made, rows, node), whole)
        if found.kind in ("slower", "faster"):
            title = self.ranks.told(title, self.cells, found.cells)
        return replace(
            made, title=title.removesuffix(")") + self._of_idle(found) + ")" if found.idle.size else title
        )

    def _of_idle(self, found: Found) -> str:
        """The end of a title of work with the idle time that it caused."""
        idle = float(self.cells.exactly(found.idle))
        name = "time outside operators" if self.on_cpu else "idle time"
        work = float(found.delta) - idle
        if idle * work < 0:
            return f": work {format_change(work)}, {name} {format_change(idle)}"
        return f", of which {format_change(idle)} is {name}"

    def _title(
        self, one: Contribution, by: tuple[str, ...], told: _Subject, whole: tuple[float, float]
    ) -> str:
        if one.kind == "idle":
            return self.idle.told(one, by)
        if one.kind in ("slower", "faster"):
            return slower(one, told.part, whole)
        if (told.rows["how"] == UPDATE).any():
            return f"{updated(one)} ({format_change(one.delta_ns)})"
        if (told.rows["how"] == LAYER).any():
            layer = layer_named(one.place) if "layer" in one.place else ""
            return f"{replaced(one, told.rows, layer)} ({format_change(one.delta_ns)})"
        how = {
            "more_calls": self._called,
            "fewer_calls": self._called,
            "added": self._alone,
            "removed": self._alone,
            "shape": self._reshaped,
        }
        text = how[one.kind](one, told) if one.kind in how else self._changed(one, told, by)
        return f"{text} ({format_change(one.delta_ns)})"

    def _changed(self, one: Contribution, told: _Subject, by: tuple[str, ...]) -> str:
        """Other work in place of what was there, or more of it, or less."""
        rows, exchanged = told.rows, one.before is not None and one.after is not None
        if (
            one.kind == "kernel"
            and self.on_cpu  # on a device, several kernels may be one call of another operator
            and not exchanged
            and (rows["how"] == "category").all()
            and not same_calls(one)
        ):
            more = one.new_calls > one.base_calls
            often = times_as_often(rows, more=more)
            return f"{told.text} {verb(told.text, 'runs', 'run')} {often}{_but(one, told.text, more=more)}"
        other = (rows["how"] != "kernel").all() and rows["new_operator"].is_not_null().any()
        return changed(one, told.text, by, "operators" if other else "kernels")

    def _subject(self, found: Found, one: Contribution, rows: pl.DataFrame, node: int) -> _Subject:
        """`aten::mm in layer fc (Linear)`, `layer fc (Linear)`, `layers of type Linear in the backward pass`."""
        by, place, rest = found.by, one.place, found.by == ("rest",)
        told = set(by) & set(place)
        if by in (("pair",), ("cell",)):
            told = set(place) & {"operator", "name", "layer"} or set(place) & {"category"}
            told -= {"name"} if "operator" in told else set()
            if told == {"layer"}:  # of one layer, several changes may be told
                told |= set(place) & {"category", "phase"}
            shaped = by == ("cell",) and "operator" in told and "shapes" in place
            if shaped and self._work(place, told, node)["shapes"].n_unique() > 1:
                told.add("shapes")
        # Of one operator some calls may be new and others gone, which differ in the types of their inputs.
        counted = one.kind in ("added", "removed", "more_calls", "fewer_calls") and "operator" in told
        if (
            counted
            and types_of(place.get("dtypes", ""))
            and self._work(place, told, node)["dtypes"].n_unique() > 1
        ):
            told.add("dtypes")
        text = part = "other work" if rest else work_named(told, one)
        if not text or (one.kind in PARTS and not rest):
            covered = Covered.of(self.cells, found, self.found, self._named(told, one, rows, node))
            part = covered.named(text, told) if text else covered.work
        return _Subject(text or part, part, told, place, node, rows, rest)

    def _named(self, by: set[str], one: Contribution, rows: pl.DataFrame, node: int) -> npt.NDArray[np.bool_]:
        """The cells that a subject names."""
        columns = by - {"layer", *(["type"] if "layer" in one.place else [])}
        mine = [pl.col("kind") != "idle", *(pl.col(name) == one.place[name] for name in sorted(columns))]
        if node >= 0:
            mine.append(pl.col("node").is_in(self._below(node)))
        elif (
            by & {"operator", "name", "category"} and "type" not in by and one.layers > 1
        ):  # in so many layers
            mine.append(pl.col("node").is_in(rows["node"].drop_nulls().unique().implode()))
        return self.cells.frame.select(pl.all_horizontal(mine).fill_null(value=False)).to_series().to_numpy()

    def _node(self, found: Found, rows: pl.DataFrame) -> int:
        """The layer that the change is in; −1 if it is in several."""
        # What is new may be so in an outer layer as well, but stands in the inner one; layers of a type stand in one of another type.
        several = "type" in found.by and rows["node"].n_unique() > 1
        if found.by != ("layer",) and not several and (inner := self._common(rows["node"])) >= 0:
            return inner
        return found.node

    def _most(self, found: Found) -> npt.NDArray[np.int64]:
        """The cells that tell what a change is about: those of any time; of idle time, which is in many small pieces, the few that make
        nearly all of the change.
        """
        before, after = (side[found.cells] for side in (self.cells.base, self.cells.new))
        if found.kind != "idle":
            return found.cells[np.maximum(before, after) > 0]
        change = (after - before) * (1 if found.delta > 0 else -1)
        order = np.argsort(-change, kind="stable")
        reach = np.cumsum(change[order])
        return found.cells[order[: int(np.argmax(reach >= _NEARLY * reach[-1])) + 1]]

    def _place(self, found: Found, shown: npt.NDArray[np.int64], node: int) -> dict[str, str]:
        """What all these cells have in common."""
        rows, place = self.cells.frame[shown], {}
        for column in _PLACE:
            values = rows[column].unique()
            if len(values) == 1 and values[0] is not None:
                place[column] = str(values[0])
        if (
            rows["how"].is_in(["category", LAYER]).any()
        ):  # other operators and kernels stand in one cell there
            place.pop("operator", None)
            place.pop("name", None)
        if (rows["how"] == LAYER).any():
            place = {column: place[column] for column in place if column in ("phase", "type")}
        if node >= 0:
            place["layer"] = self.nodes.frame["path"][node]
            kind = self.nodes.frame["type"][node]
            place.pop("type", None)
            if kind is not None:
                place["type"] = kind
        if found.kind == "idle" and "category" in place:
            place["cause"] = place.pop("category")
        if found.by == WAITS:
            name, _ = self.idle.waiting()
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

    def _calls(self, told: _Subject) -> tuple[float, float]:
        """How many calls (on devices kernels) per step both sides have of what a subject names; also those that did not change."""
        work = self._work(told.place, told.by, told.node)
        new, old = (int(work.filter(pl.col("new") == side)["calls"].sum()) for side in (True, False))
        return old / self.cells.denominators[0], new / self.cells.denominators[1]

    def _work(self, place: dict[str, str], by: set[str], node: int) -> pl.DataFrame:
        """The rows of both sides that a subject names."""
        columns = by - {"layer", *(["type"] if "layer" in place else [])}
        work = self.rows.filter(
            ~pl.col("kind").is_in(["idle", "call"]),
            *(pl.col(name) == place[name] for name in sorted(columns)),
        )
        return work if node < 0 else work.filter(pl.col("node").is_in(self._below(node)))

    def _below(self, node: int) -> list[int]:
        """The layer and those in it. A path may be that of a removed layer and of another one that has its name now."""
        inside = {node}
        for row, above in self.nodes.frame["layer_id", "parent_layer_id"].rows():
            if above in inside:
                inside.add(row)
        return [*inside]

    def _called(self, one: Contribution, told: _Subject) -> str:
        """More or fewer calls, and where their time went the other way that it did."""
        more, where = one.kind == "more_calls", told.text
        takes = _but(one, where, more=more) or self._each(told, more=more)
        often = self._often(told, more=more) if self._counted(told) else ""
        if not often:
            where, often = told.part, times_as_often(told.rows, more=more)
        return f"{where} {verb(where, 'runs', 'run')} {often}{takes}"

    def _each(self, told: _Subject, *, more: bool) -> str:
        """By how much a call takes longer, where more calls are not all of the change."""
        sums = told.rows.select(pl.col("base_sum", "new_sum", "base_calls", "new_calls").sum()).row(0)
        if not more or not sums[0] or not sums[2]:
            return ""
        base, new = (sums[at] / self.cells.denominators[at] / sums[2 + at] for at in (0, 1))
        return f", and a call takes {new / base:.1f} times as long" if new > _LONGER * base else ""

    def _counted(self, told: _Subject) -> bool:
        """Whether the trace shows the number of calls: of an operator, or of kernels. A layer calls operators that call others."""
        of_operators = self.on_cpu and told.by & {"operator", "name"}
        return not told.rest and bool(self.on_cpu is False or of_operators)

    def _often(self, told: _Subject, *, more: bool) -> str:
        """`8 times per step, not 4`; empty if all calls of the subject went the other way."""
        old, new = self._calls(told)
        if (new > old) != more or number(old) == number(new):
            return ""
        count = self._count(new, told)
        return f"{count} per {self.idle.per}, not {number(old)}{' times' * (count == _ONCE)}"

    def _count(self, calls: float, told: _Subject) -> str:
        # Operators on processors, one kernel and copies run as often as they are called.
        single = self.on_cpu is not False or "name" in told.by or told.place.get("category") == "memcpy"
        often = number(calls)
        if single and often == "1":
            return _ONCE
        return f"{often} {'time' if single else 'kernel'}{'' if often == '1' else 's'}"

    def _alone(self, one: Contribution, told: _Subject) -> str:
        """Work that only one side has."""
        new, where = one.kind == "added", told.text
        side = "on the new side" if new else "in the base"
        here, there = self._calls(told)[:: -1 if new else 1]
        if told.rest or not told.by or there >= _SOME_CALLS:
            if self._counted(told) and (often := self._often(told, more=new)):
                return f"{where} {verb(where, 'runs', 'run')} {often}"
            if told.by in ({"type"}, {"type", "phase"}):  # the layers are on both sides, but do this on one
                return self._own_work(told, side)
            if not told.rest and not told.by:
                return f"the work {side} has no counterpart {'in the base' if new else 'on the new side'}"
            most = where if told.rest else f"most of {where}"
            return f"{most} {verb(where, 'is', 'are')} only {side}"
        text = f"{where} {verb(where, 'is', 'are')} {'new' if new else 'gone'}"
        if not self._counted(told) or told.by == {"layer"}:
            return text
        it, runs = verb(where, "it", "they"), verb(where, "runs", "run") if new else "ran"
        return f"{text}: {it} {runs} {self._count(here, told)} per {self.idle.per}"

    def _own_work(self, told: _Subject, side: str) -> str:
        """Work of layers of one type, outside the layers in them, that only one side has."""
        one_layer = "layer" in told.place and told.rows["node"].n_unique() == 1
        where = layer_named(told.place) if one_layer else told.text
        sums = told.rows.group_by("operator", maintain_order=True).agg(pl.max_horizontal("base_sum", "new_sum").sum())  # fmt: skip
        operator, longest = sums.sort("base_sum", descending=True, maintain_order=True).row(0)
        most = f", mostly {operator}" if operator and longest >= _MOST * float(sums["base_sum"].sum()) else ""
        return f"{where} {verb(where, 'does', 'do')} work that is only {side}{most}"

    def _reshaped(self, one: Contribution, told: _Subject) -> str:
        """Other shapes: of which calls, and what differs in the inputs, of several in those of the calls that take longest."""
        where, operators, have = told.text, "operator" in told.by, verb(told.text, "has", "have")
        every = self._calls(told)[1] if operators and not told.rest else 0.0
        if self.on_cpu is not None and one.new_calls < _NEARLY * every:
            calls, have = (
                "kernels" if self.on_cpu is False else "calls",
                "has" if round(one.new_calls) == 1 else "have",
            )
            where = f"{number(one.new_calls)} of {number(every)} {calls} of {where} per {self.idle.per}"
        known = told.rows.filter(pl.col("shapes_met") == 2, pl.col("base_shapes") != pl.col("new_shapes"))
        text = f"{where} {have} inputs of other shapes"
        if not known.height or told.rest:
            return text
        longest = known.sort("new_sum", descending=True, maintain_order=True)
        before, after, operator = (
            longest.select("base_shapes", "new_shapes", "operator").cast(pl.String).row(0)
        )
        which = "" if one.before is not None else "in the longest, " if operators else f"in {operator}, "
        return f"{text}: {which}{inputs_told(before, after)}"


def _but(one: Contribution, where: str, *, more: bool) -> str:
    """Where the time of more or fewer calls went the other way."""
    if more == (one.delta > 0):
        return ""
    return f", but {verb(where, 'takes', 'take')} {'longer' if one.delta > 0 else 'less time'}"


# -- what stands for what ---------------------------------------------------------------------------


def _exchanged(found: Found, rows: pl.DataFrame) -> tuple[str | None, str | None]:
    """What stood in the place of what now, if that is one thing in all cells."""
    if (rows["how"] == LAYER).any():
        works = rows.select("base_work", "new_work").unique()
        return works.row(0) if works.height == 1 else (None, None)
    if found.kind == "dtype":
        told = {types_told(*pair) for pair in rows.select("base_dtypes", "new_dtypes").cast(pl.String).rows()}
        return told.pop() if len(told) == 1 else (None, None)
    # Of several on a side none stands for one other.
    if (rows["shapes_met" if found.kind == "shape" else "leaves"] > 2).any():
        return None, None
    for column in {"kernel": ("name", "operator"), "shape": ("shapes",)}.get(found.kind, ()):
        pairs = rows.select(f"base_{column}", f"new_{column}").cast(pl.String).unique()
        before, after = pairs.row(0)
        if pairs.height > 1:
            return None, None
        if before != after:
            return before, after
    return None, None
