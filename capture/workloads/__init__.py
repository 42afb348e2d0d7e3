"""The registry of workloads. It imports no torch: a workload's module is imported when it is asked for.

A package of your own adds a workload through the entry-point group `tracekit.workloads`; the entry is a
`WorkloadFactory`. The workloads that come with tracekit cannot be replaced that way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tracekit.capture.manifest import Setting
from tracekit.capture.names import PhaseRange
from tracekit.errors import UsageError

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["ENTRY_POINT_GROUP", "Workload", "WorkloadFactory", "WorkloadOptions", "find", "names"]

ENTRY_POINT_GROUP = "tracekit.workloads"
_BUILT_IN = {
    name: EntryPoint(name=name, value=f"tracekit.capture.workloads.{name}:build", group=ENTRY_POINT_GROUP)
    for name in ("cnn", "transformer")
}


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """What the user chose; None, or an empty variant, leaves the choice to the workload.

    `tiny` asks for a model that takes a step in well under a second on one core. `data` is a file or folder of real
    data. `max_rows` caps the rows of each embedding table.
    """

    device: torch.device
    batch: int | None = None
    size: int | None = None
    seed: int = 0
    variant: str = ""
    tiny: bool = False
    data: Path | None = None
    max_rows: int | None = None


class Workload(Protocol):
    """A model that is being trained. `config` says with which settings, for the manifest."""

    @property
    def model(self) -> nn.Module:
        """The model whose modules are marked as layers."""

    @property
    def config(self) -> Mapping[str, Setting]:
        """The settings that shape the run, such as the batch size."""

    def batches(self) -> Iterator[Any]:
        """Batches on the host, without end."""

    def step(self, batch: Any, phase: PhaseRange) -> torch.Tensor:
        """Train on one batch, each phase within `with phase(name):`; return the loss, detached."""


class WorkloadFactory(Protocol):
    """What a registry entry holds."""

    def __call__(self, options: WorkloadOptions) -> Workload:
        """Build the workload on `options.device`, with torch's random state already seeded."""


def names() -> list[str]:
    """Return the names of all workloads, sorted."""
    return sorted({*_BUILT_IN, *(entry.name for entry in entry_points(group=ENTRY_POINT_GROUP))})


def find(name: str) -> EntryPoint:
    """Return the entry of the workload `name`; its `load()` imports it and returns a `WorkloadFactory`.

    Raises `UsageError`, listing the names there are, when there is none of that name.
    """
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    for entry in entry_points(group=ENTRY_POINT_GROUP, name=name):
        return entry
    raise UsageError(f"unknown workload {name!r}", remedy=f"choose one of: {', '.join(names())}")
