"""A change of idle time in one line of English."""

from __future__ import annotations

from typing import Final, Literal

import polars as pl

from tracekit.classes import dataclass
from tracekit.diff.explain import WAITS
from tracekit.diff.model import Contribution
from tracekit.diff.named import PHASES_NAMED, layer_named
from tracekit.diff.phrases import number
from tracekit.facts.stack_names import DATA_LAYER
from tracekit.facts.units import format_ns
from tracekit.verdict.idle_words import IDLE_PHRASES

__all__ = ["IdleTeller"]

_OTHER_CAUSES: Final = {
    "dependency": "for work on other streams",
    "kernel_gap": "in short gaps between kernels",
    "unexplained": "for no reason that the profile shows",
    "not_captured": "for no reason that was recorded",
}


@dataclass(frozen=True, slots=True, eq=False)
class IdleTeller:
    """What these titles need beside the changes."""

    calls: pl.DataFrame
    """`Diff.calls`."""
    on_cpu: bool | None
    """None: one side."""
    per: Literal["step", "window"]
    """What times are of."""

    def told(self, one: Contribution, by: tuple[str, ...]) -> str:
        """The title of a change of idle time."""
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
            outside = "" if cause in ("operator_dispatch", "profiler_overhead") else " outside operators"
            text = f"the program spends {amount} {'more' if longer else 'less'}{spent}{outside}"
            if cause == "data_loading":
                text = f"the program waits {amount} {'longer' if longer else 'less'} for data"
            phrase = "" if spent else phrase
        else:
            text = f"the device is idle {amount} {'longer' if longer else 'less'}"
        if by == WAITS:
            name, where = self.waiting()
            often = self._more_often(name, where) if name else ""
            return f"{often}{text} in calls that wait for it and until the host has launched more work"
        text += f" {phrase}".rstrip()
        lead = ""
        if "name" in one.place:
            text += f": {one.place['name']}"
            lead = self._more_often(one.place["name"])
        elif cause == "synchronisation" and (name := self.waiting()[0]):
            lead = self._more_often(name)
        if "operator" in one.place:
            text += f" in {one.place['operator']}"
        if "layer" in one.place and (one.place["layer"], cause) != (DATA_LAYER, "data_loading"):
            text += f" in {layer_named(one.place)}"
        elif by == ("cell",) and "phase" in one.place and not {"layer", "operator"} & set(one.place):
            text += (
                f" in {PHASES_NAMED[one.place['phase']]}"  # nothing else tells it from the rest of its cause
            )
        return lead + text

    def waiting(self) -> tuple[str, str]:
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
        inside = [*([operator] if operator else []), *([layer_named({"layer": layer})] if layer else [])]
        return name, "".join(f" in {each}" for each in inside)

    def _more_often(self, name: str, where: str = "") -> str:
        """`cudaStreamSynchronize is called 2 times more per step; `, if it is."""
        rows = self.calls.filter(pl.col("name").cast(pl.String).is_in(_of_any_vendor(name)))
        more = number(float((rows["new_calls"] - rows["base_calls"]).sum()))
        if more in ("0", "−0"):
            return ""
        count, kind = more.removeprefix("−"), "fewer" if more.startswith("−") else "more"
        often = {"1": f"one {kind} time"}.get(count, f"{count} {kind} times")
        return f"{name}{where} is called {often} per {self.per}; "


def _of_any_vendor(call: str) -> list[str]:
    """The names that a call has in the runtimes of CUDA and of HIP, which the two sides may have run on."""
    stem = call.removeprefix("cuda").removeprefix("hip")
    return [call] if stem == call else [f"cuda{stem}", f"hip{stem}"]
