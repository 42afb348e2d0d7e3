"""A rule about several devices of one program that work one after the other."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.breakdown import Breakdown
from tracekit.analyses.rules.rule import Advice, Evidence, Rule, bounded, longest
from tracekit.analyses.scope import Scope, launch_times
from tracekit.facts.launch_apis import SYNCHRONISATION
from tracekit.facts.stack_names import PEER_COPY
from tracekit.facts.units import count_of, format_share, listed
from tracekit.groups import kept
from tracekit.intervals import EMPTY
from tracekit.name_table import NameTable

__all__ = ["DEVICES_TAKE_TURNS"]

# -- devices_take_turns -----------------------------------------------------------------------------

LEAST_BUSY: Final = 0.10
"""A device that works for less of the window does not share the work."""
COVERED: Final = 0.80
"""If no device works for a fifth of the window, something else than turns holds them up."""
MOST_OVERLAP: Final = 0.10
"""Devices that work on parts of a batch at the same time overlap for most of their time; those that take turns, at the edges."""
LEAST_PEER_COPIES: Final = 2
"""One copy may set the program up."""
BY_WAITS: Final = 0.75
"""A model on two devices that is read at the end of each step waits at half of the turns, and needs them; if the host waits at more,
without a copy, its calls make the turns."""


def devices_take_turns(scope: Scope, _result: Breakdown) -> Evidence | None:
    """Of several devices of one program nearly always one works and the others wait for its result.

    So does a model whose layers lie on several devices, if each batch goes through them as a whole. A device counts if it works for
    `LEAST_BUSY` of the window. At stake is the time in which any of them works, without that of the busiest: with perfect overlap
    the window would take that long. If at `BY_WAITS` of the turns the host waits for a device and copies nothing, the advice is about
    these calls.

    Fires when one of them works for `COVERED` of the window, several work at the same time for at most `MOST_OVERLAP` of that, and
    there are `LEAST_PEER_COPIES` copies from one device to another, or one in each step.
    """
    busy = {
        device: work
        for device in scope.device_ids
        if (work := scope.intervals(device)).measure >= LEAST_BUSY * scope.duration
    }
    if len(busy) < 2:
        return None
    some, several = EMPTY, EMPTY
    for work in busy.values():
        some, several = some | work, several | (some & work)
    if some.measure < COVERED * scope.duration or several.measure > MOST_OVERLAP * some.measure:
        return None
    names = scope.activities.filter(pl.col("kind") == "memcpy")["name"].cast(pl.String)
    copies = int(names.str.contains(PEER_COPY).sum())
    if copies < max(LEAST_PEER_COPIES, scope.steps.height if scope.window == "steps" else 0):
        return None
    most = max(busy, key=lambda device: busy[device].measure)
    waits = some - busy[most]
    shares = [
        f"{format_share(each.measure / scope.duration)} (device {device})" for device, each in busy.items()
    ]
    waited, turns = _waited_turns(scope, list(busy))
    by_waits = waited >= BY_WAITS * max(turns, 1)
    between = (
        f" On {waited} of {count_of(turns, 'turn')}, the host waited for a device and copied nothing before it launched work on "
        "another one."
        if by_waits
        else ""
    )
    return Evidence(
        title=f"The {len(busy)} devices take turns: for {format_share((some - several).measure / scope.duration)} of the time only one of them works",
        text=f"They are busy for {listed(shares)} of the window, and more than one at a time for "
        f"{format_share(several.measure / scope.duration)}. {count_of(copies, 'copy', 'copies')} moved data from one device to "
        f"another.{between}",
        ns_at_stake=bounded(waits.measure, scope),
        advice=_NO_WAITS if by_waits else None,
        stretches=longest(pl.DataFrame({"start": waits.starts, "duration": waits.ends - waits.starts})),
    )


def _waited_turns(scope: Scope, devices: list[int]) -> tuple[int, int]:
    """At how many turns from one of these devices to another the host waits for a device between the launches and copies nothing, and
    the number of turns.
    """
    rows = scope.activities.filter(pl.col("device_id").is_in(devices))
    launched, device = launch_times(scope.trace, rows), rows["device_id"].to_numpy()
    copies, kernels = ((rows["kind"] == kind).to_numpy() for kind in ("memcpy", "kernel"))
    order = np.flatnonzero(kernels)[np.argsort(launched[kernels], kind="stable")]
    turn = np.flatnonzero(np.diff(device[order]))
    begin, end = launched[order[turn]], launched[order[turn + 1]]
    calls = scope.host("runtime", columns=["name", "start"])
    calls = kept(calls, pl.Series(NameTable(calls["name"]).matching(SYNCHRONISATION)))
    some = [
        np.searchsorted(times, end) > np.searchsorted(times, begin)
        for times in (np.sort(calls["start"].to_numpy()), np.sort(launched[copies]))
    ]
    return int((some[0] & ~some[1]).sum()), turn.size


_NO_WAITS: Final = Advice(
    "Let them work at the same time: launch work on all of them before the host waits for one. Remove the calls that wait in "
    "between, such as torch.cuda.synchronize() and .item(), or move them to the end of the step.",
    plain="Let them work at the same time: launch work on all of them before the host waits for one.",
)

DEVICES_TAKE_TURNS = Rule(
    id="devices_take_turns",
    analysis="breakdown",
    evidence=devices_take_turns,
    runs="device",
    advice=Advice(
        "Let them work at the same time: split each batch into micro-batches that follow one another through the devices (a "
        "pipeline, as torch.distributed.pipelining builds).\n"
        "If the model fits on one device, put a copy on each and give each a part of the batch, so that none waits its turn "
        "(data parallelism).",
        plain="Let them work at the same time: split the work into parts that follow one another through the devices, or give each "
        "device a part of the data.",
    ),
    answers=frozenset({"host-bound", "launch/short-kernel-bound", "idle"}),
)
