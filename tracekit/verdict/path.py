"""What the critical path says of a run on a device: what determines its time, and where that corrects what seems to bound it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from tracekit.analyses.recording import is_slowed, unrecorded_ns
from tracekit.analyses.rules.rule import REPLAYED
from tracekit.analyses.scope import Scope
from tracekit.analyses.whole import whole_steps
from tracekit.classes import dataclass
from tracekit.errors import InconclusiveError
from tracekit.facts.units import format_share
from tracekit.findings import SHOWN_SHARE, Bound
from tracekit.readers import format_named
from tracekit.verdict.losses import Loss
from tracekit.verdict.model import Cost, Verdict

if TYPE_CHECKING:
    from tracekit.analyses.what_if.shares import PathShares

__all__ = ["Path", "path_of"]

_MOST: Final = 0.5
"""What has this share of the path determines how long the run takes."""
_SAID: Final = 0.05
"""A smaller share of the path is not worth a word in a sentence."""
_PLAIN: Final = "without recording"
_BUSY: Final[tuple[Bound, ...]] = ("compute-bound", "communication-bound", "memory-copy-bound")
"""What bounds a run whose device seldom waits for the host."""
_OF_THE_HOST: Final[tuple[Bound, ...]] = ("host-bound", "input-bound", "launch/short-kernel-bound")


@dataclass(frozen=True, slots=True)
class Path:
    """The critical path of a window: as it was recorded, or as it is without recording where a capture measured that this makes a
    difference (`measured`).

    `sure` is the path with a host that no recording slows: the same where that was measured, otherwise one of the usual speed.
    """

    shares: PathShares
    sure: PathShares
    speed: float
    """How many times as fast as recorded the host of `sure` is taken to be, where it was not measured."""
    measured: bool

    @property
    def costs(self) -> tuple[Cost, ...]:
        """Its parts, the largest first, as shares of its length."""
        found, whole = self.shares, self.shares.length_ns
        parts = (
            ("computing", found.compute_ns),
            ("communication", found.communication_ns),
            ("copies", found.memory_ns),
            ("data loading", found.loading_ns),
            ("host code", found.host_ns),
            ("launch latencies and gaps", found.wait_ns),
        )
        kept = (Cost(label, ns, ns / whole) for label, ns in parts if ns >= max(SHOWN_SHARE * whole, 1))
        return tuple(sorted(kept, key=lambda cost: -cost.ns))

    def corrected(self, bound: Bound, losses: Sequence[Loss]) -> Loss | None:
        """The loss that bounds the run instead, if the device seldom waits, but the host never gets ahead of it; else None."""
        of_host = [loss for loss in losses if loss.bound in _OF_THE_HOST and loss.ns > 0]
        if bound not in _BUSY or not of_host or not _by_host(self.sure):
            return None
        loads = self.sure.loading_ns > self.sure.host_ns
        return max(of_host, key=lambda loss: ((loss.bound == "input-bound") == loads, loss.ns))

    def told(self, verdict: Verdict, *, corrected: bool) -> Verdict:
        """The verdict with the path; if that corrects it, the headline says how."""
        headline = verdict.headline
        if corrected:
            who = "data loader" if self.shares.loading_ns > self.shares.host_ns else "host"
            when = f"{_PLAIN}, " if self.measured else ""
            headline += f" Even so, the {who} bounds it: {when}{_late(self.shares)} of the critical path."
        costs, length = self.costs, self.shares.length_ns
        basis = _PLAIN if self.measured else verdict.basis
        return dataclasses.replace(verdict, headline=headline, path=costs, path_ns=length, path_basis=basis)

    def sentence(self, bound: Bound) -> Iterable[str]:
        """Why a path that is mostly code of the host does not say that the host bounds the run, where a verdict says otherwise."""
        if bound not in _BUSY or not _by_host(self.shares) or _by_host(self.sure):
            return
        work = self.sure.compute_ns + self.sure.communication_ns + self.sure.memory_ns
        yield (
            f"As recorded, {_late(self.shares)} of the critical path, and faster kernels shorten only the rest. But recording slows the "
            f"host: if it is {self.speed:g} times as fast without recording, as is usual, {format_share(work / self.sure.length_ns)} of the path is "
            "device work."
        )


def _by_host(shares: PathShares) -> bool:
    return shares.loading_ns + shares.host_ns >= _MOST * shares.length_ns


def _late(shares: PathShares) -> str:
    """How much of a path is what the device waits for, such as `host code is 80.1 %`."""
    parts = {"data loading": shares.loading_ns, "host code": shares.host_ns}
    named = [name for name, ns in parts.items() if ns >= _SAID * shares.length_ns]
    share = format_share(sum(parts[name] for name in named) / shares.length_ns)
    return f"{' and '.join(named)} {'is' if len(named) == 1 else 'are'} {share}"


def path_of(scope: Scope) -> Path | None:
    """The critical path of a scope with a device; None of too many events for a replay, and where no launches or no whole steps are known."""
    if scope.trace.meta.event_count > REPLAYED:
        return None
    try:
        ((scope,), _) = whole_steps([scope])
    except InconclusiveError:
        return None
    from tracekit.analyses.graph.build import dependencies  # noqa: PLC0415 - without a device it is not needed

    if not dependencies(scope).count("launch"):
        return None
    from tracekit.analyses.what_if.replay import USUAL_SLOWING  # noqa: PLC0415 - loading it takes as long as the replay
    from tracekit.analyses.what_if.shares import path_shares  # noqa: PLC0415

    shares = path_shares(scope)
    if not shares.length_ns:
        return None
    slowed = format_named(scope.trace.meta.format).of_pytorch and unrecorded_ns(scope) is None
    sure = path_shares(scope, USUAL_SLOWING) if slowed and _by_host(shares) else shares
    return Path(shares, sure, USUAL_SLOWING, measured=is_slowed(scope))
