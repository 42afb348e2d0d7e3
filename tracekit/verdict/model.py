"""The parts of a verdict."""

from __future__ import annotations

from tracekit.classes import dataclass
from tracekit.facts.units import format_ns, format_share
from tracekit.findings import Bound, Severity, Stretches, bound_name
from tracekit.notebook import block, grid, heading, items, paragraph

__all__ = ["Advice", "Cost", "Verdict"]


@dataclass(frozen=True, slots=True)
class Cost:
    """Something that takes time."""

    label: str
    ns: int
    share: float | None
    """Of the verdict's basis, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What to try."""

    title: str
    advice: str
    ns_at_stake: int | None = None
    """An upper bound of what it could save in the window; None when unknown."""
    finding: str = ""
    """The id of the finding behind it; empty for general advice."""
    analysis: str = ""
    """The section of the finding."""
    severity: Severity = "info"
    stretches: Stretches = ()
    """Where a timeline shows it, the worst first; empty if it has no place in time."""
    gain_ns: int | None = None
    """What it saves of the window in a replay of the trace with the advised change alone, from 0; None where none was made,
    and where the replay saves all that is at stake."""

    @property
    def worth(self) -> int:
        """What it saves of the window in ns: by a replay, else at most; 0 when unknown."""
        return (self.ns_at_stake if self.gain_ns is None else self.gain_ns) or 0

    @property
    def saves(self) -> str:
        """What it saves in words: by a replay, else at most; empty when unknown."""
        if self.gain_ns is not None:
            return f"saves about {format_ns(self.gain_ns)}" if self.gain_ns > 0 else "saves nothing alone"
        return f"up to {format_ns(self.ns_at_stake)}" if self.ns_at_stake else ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What bounds the run, in one sentence with figures, the largest costs, and what to try first."""

    bound: Bound
    headline: str
    costs: tuple[Cost, ...] = ()
    advice: tuple[Advice, ...] = ()
    notes: tuple[str, ...] = ()
    """Sentences about the limits of the verdict."""
    basis_ns: int = 0
    """The time of which `share` is a part, in ns."""
    basis: str = "the window"
    """The name of the basis."""
    layers: tuple[Cost, ...] = ()
    """The layers with the most own time; their shares are of `layers_ns`. Empty if no layer is known."""
    layers_ns: int = 0
    """The basis, once for each device that worked, in ns: layers add the time of all devices."""
    path: tuple[Cost, ...] = ()
    """What the critical path consists of, which is what determines the time; their shares are of `path_ns`. Empty without a device, of
    traces too large for a replay, and where the trace does not show what launched the device's work."""
    path_ns: int = 0
    """The length of the critical path, in ns: the window, or as long as it is without recording where a capture measured that."""
    path_basis: str = ""
    """The name of this time: that of the basis, or `without recording`."""

    def __str__(self) -> str:
        """What bounds the run, in one line."""
        return f"{bound_name(self.bound)}: {self.headline}"

    def _repr_html_(self) -> str:
        costs = [(cost.label, format_ns(cost.ns), format_share(cost.share)) for cost in self.costs]
        parts = [heading(bound_name(self.bound).upper()), paragraph(self.headline)]
        if costs:
            parts.append(grid(["largest costs", "time", f"share of {self.basis}"], costs, [1, 2]))
        parts.append(items((f"{one.title}.", one.advice) for one in self.advice))
        return block([*parts, *(paragraph(note) for note in self.notes)])
