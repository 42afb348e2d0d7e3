"""The losses of a device's time: what it did beside computing, how that is called, and whether it bounds the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from tracekit.analyses.parts import DeviceParts
from tracekit.analyses.result import Result
from tracekit.analyses.rules.breakdown_devices import DEVICES_TAKE_TURNS
from tracekit.analyses.rules.idle_operators import computing_calls
from tracekit.analyses.rules.idle_time import blocked
from tracekit.analyses.scope import Scope
from tracekit.analyses.traits import traits
from tracekit.findings import Bound
from tracekit.verdict.idle_words import in_long_gaps, largest_queued, main_cause, where
from tracekit.verdict.model import Cost

__all__ = [
    "BESIDE_SHARE",
    "LEAD_IN_SHARE",
    "Loss",
    "beside",
    "bounds",
    "frames",
    "losses_of",
    "losses_of_work",
]

LOSS_SHARE: Final = 0.3
"""A loss from this share on bounds the run, even if computation takes more."""
SHORT_SHARE: Final = 0.5
"""From this share of short kernels, or of kernels shorter than their launch, launches are the problem."""
LEAD_IN_PART: Final = 0.5
"""If this part of the wait for the host lies before the first activity, short kernels are not the reason for it."""
_WAITS: Final[tuple[Bound, ...]] = ("input-bound", "host-bound", "launch/short-kernel-bound", "idle")
"""Losses that are idle time."""
LEAD_IN_SHARE: Final = 0.05
"""A shorter time before the first activity is not worth a note."""
_QUEUED: Final = {
    "kernel_gap": ("gaps between queued kernels", "between queued kernels"),
    "dependency": ("waiting for another stream", "waiting for another stream"),
    "unexplained": ("idle with queued work, cause unknown", "with queued work, for an unknown cause"),
}
"""How the largest cause of idle time with queued work is called, and said."""
BESIDE_SHARE: Final = 0.1
"""From this share on, the largest loss of a busy device has a clause in the headline, and advice."""

Tables = Mapping[str, Result]


class Loss(msgspec.Struct, frozen=True):
    """A loss of time in ns: its label among the costs, and its clause in the headline.

    The clause has `{share}` where the share of the basis stands. None: the headline names the loss already.
    """

    bound: Bound
    label: str
    ns: int
    clause: str | None = None

    def cost(self, basis: int) -> Cost:
        """The loss as a cost; `basis` in ns."""
        return Cost(self.label, self.ns, self.ns / basis)


def bounds(worst: Loss, parts: DeviceParts) -> bool:
    """Whether the largest loss bounds the run, as it is without recording."""
    return worst.ns >= max(LOSS_SHARE * parts.plain, 1) or worst.ns > parts.compute


def beside(parts: DeviceParts, worst: Loss) -> bool:
    """Whether the largest loss beside computation is worth words: by itself, or as the main part of the idle time."""
    idle = parts.idle - parts.recording
    idle = idle if 2 * worst.ns >= idle and worst.bound in _WAITS else 0
    return max(worst.ns, idle) >= BESIDE_SHARE * parts.plain


def losses_of_work(parts: DeviceParts) -> Iterable[Loss]:
    """The losses that rest on records of a device."""
    yield Loss("communication-bound", "exposed communication", parts.communication)
    yield Loss("memory-copy-bound", "exposed copies", parts.memory - parts.set_up)


def losses_of(parts: DeviceParts, scope: Scope, results: Tables) -> Iterable[Loss]:
    """All losses of a device, with idle time by what it waited for; they, the computation and what the recording adds sum to the basis."""
    yield from losses_of_work(parts)
    loading = "waiting for the data loader"
    waited, of_time = "it waited for the ", " {share} of the time"
    place = where(results, "data_loading", parts.device_id)
    yield Loss("input-bound", loading, parts.data_loading, f"{waited}data loader{of_time}{place}")
    idle = "it was idle {share} of the time"
    unknown = f"{idle}, and the profile does not show the cause"
    yield Loss("idle", "idle, cause not captured", parts.unknown_wait, unknown)
    if any(finding.id == DEVICES_TAKE_TURNS.id for finding in results["breakdown"].findings):
        others = parts.host_wait + parts.queued_wait
        turns = f"taking turns with {'the other device' if len(scope.device_ids) == 2 else 'other devices'}"
        yield Loss("idle", f"idle, {turns}", others, f"{idle}, {turns}")
        return
    # If most kernels are shorter than their launch call, the host is late for each of them, by a short time.
    launch_bound = (
        _launch_bound(results) and not _leads_in(parts) and not in_long_gaps(scope, results, parts.device_id)
    )
    host = "host between short kernels" if launch_bound else "host"
    bound: Bound = "launch/short-kernel-bound" if launch_bound else "host-bound"
    computing = int(computing_calls(scope)["idle_ns"].sum())
    cause = main_cause(
        results,
        parts,
        frames=frames(scope),
        computing_ns=computing,
        blocked=blocked(scope, parts.device_id),
    )
    yield Loss(bound, f"waiting for the {host}", parts.host_wait, f"{waited}{host}{of_time}{cause}")
    cause = largest_queued(results, parts.device_id)
    queued, clause = _QUEUED[cause]
    short = cause == "kernel_gap" and parts.streams == 1 and _short(results)
    yield Loss(
        "launch/short-kernel-bound" if short else "idle", queued, parts.queued_wait, f"{idle} {clause}"
    )


def _leads_in(parts: DeviceParts) -> bool:
    """Whether the host was late mostly before the device did anything."""
    return parts.lead_in >= max(
        LEAD_IN_PART * (parts.host_wait + parts.recording), LEAD_IN_SHARE * parts.basis
    )


def _launch_bound(results: Tables) -> bool:
    return _at_least(results["launches"].scalars().get("launch_bound_share"), SHORT_SHARE) and _short(results)


def _short(results: Tables) -> bool:
    return _at_least(results["launches"].scalars().get("short_share"), SHORT_SHARE)


def _at_least(value: float | str | None, limit: float) -> bool:
    return isinstance(value, int | float) and value >= limit


def frames(scope: Scope) -> bool:
    """Whether the trace has frames of Python code."""
    return "stacks" in traits(scope)
