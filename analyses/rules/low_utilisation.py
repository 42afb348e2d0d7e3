"""The device does nothing for much of the window.

Looks at the busiest device: the window cannot get shorter than that one's work, so its idle time is what there is
to win. Says how much; the rules of idle, launches and steps say why.
"""

from __future__ import annotations

from typing import Final

from tracekit.analyses.breakdown import Breakdown
from tracekit.analyses.rules.rule import Advice, Evidence, Rule, by_share
from tracekit.analyses.scope import Scope
from tracekit.facts.units import format_ns, format_share

__all__ = ["RULE"]

BUSY_ENOUGH: Final = 0.90
"""A well-fed training step keeps its device above this; the rest is copies and the price of starting kernels."""


def evidence(_scope: Scope, result: Breakdown) -> Evidence | None:
    """Fires when the busiest device works less than `BUSY_ENOUGH` of the window."""
    if not result.devices.height:
        return None
    row = result.devices.sort("busy_ns", "device_id", descending=[True, False]).row(0, named=True)
    utilisation = row["utilisation"]
    if utilisation is None or utilisation >= BUSY_ENOUGH:
        return None
    others = result.devices.height - 1
    return Evidence(
        title=f"Device {row['device_id']} is busy only {format_share(utilisation)} of the time",
        text=f"{format_ns(row['idle_ns'])} idle of {format_ns(row['window_ns'])}; {format_ns(row['busy_ns'])} busy"
        + (f", the most of {others + 1} devices." if others else "."),
        ns_at_stake=row["idle_ns"],
        severity=by_share(row["idle_ns"], row["window_ns"]),
    )


RULE = Rule(
    id="low_utilisation",
    analysis="breakdown",
    evidence=evidence,
    runs="device",
    advice=Advice(
        "Find what it waits for in the idle and launches tables: feed it with a larger batch, "
        "asynchronous data loading and copies, and torch.compile or CUDA graphs where the host is the "
        "slower side.",
        plain=(
            "Find what it waits for in the idle and launches tables: give the device more work at a time, "
            "prepare and copy data asynchronously, and replay what repeats as a CUDA graph where the host is "
            "the slower side."
        ),
        flags=("--compile", "--batch"),
    ),
    restates=True,
)
