"""What the rest of tracekit knows of a format of traces: one object, made by the reader's own package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from tracekit.classes import dataclass
from tracekit.limits import Limits

if TYPE_CHECKING:
    from tracekit.trace import Trace

__all__ = ["RECORDABLE", "Format", "Progress", "Read"]

Progress = Callable[[int, int], None]
"""Called with (plain bytes decoded so far, size of the file in bytes)."""

RECORDABLE: Final[Mapping[str, str]] = {
    "device": "work of a device",
    "kernels": "single kernels, also those of CUDA graphs",
    "ops": "operators",
    "launches": "launch calls, together with the work that they launch",
    "calls": "calls of the CUDA API",
    "everything": "host and device",
    "steps": "steps of the program",
    "shapes": "shapes of the operators' inputs",
    "memory": "allocations of device memory",
    "stacks": "Python frames",
    "modules": "calls of modules",
    "layers": "layers, by ranges or modules",
    "ranges": "nested ranges of the program",
    "start_end_ranges": "ranges that need not nest",
    "os_calls": "calls of the operating system",
    "sync": "waits for streams and events",
    "collectives": "collectives with their sizes and groups",
    "counters": "hardware counters",
    "occupancy": "achieved occupancy",
    "names": "names of Python code",
    "warm-up": "only the steps after the first ones",
    "less": "less data, so that recording takes less time",
}
"""The data that a profiler can record; most keys are words of `Meta.captured`."""

_UNKNOWN: Final = "another profiler, since this one does not record it"


class Read(Protocol):
    """A function that reads a file: see `Format.read`."""

    def __call__(self, path: Path, limits: Limits, progress: Progress | None = None) -> list[Trace]:
        """The traces of the file."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format: how its files are recognised and read, and what can be asked of their traces.

    Whatever depends on the format is asked of this object; nothing outside the reader's package looks at its name.

    >>> from tracekit.readers import KINETO
    >>> KINETO.flag_for("memory"), KINETO.how_to_record("shapes")
    ('profile_memory=True', 'profile with record_shapes=True')
    """

    name: str
    """`Meta.format` of its traces."""

    title: str
    """The tool that writes it, for people."""

    files: str
    """What its files are called, for people."""

    recognises: Callable[[Path], bool]
    """Whether a path is of this format, or calls itself so; it raises nothing, and takes no byte from a pipe."""

    read: Read
    """Returns the traces of a file: one per process that worked on a device, in order of the process id.

    Raises UnreadableTraceError. Heavy modules are imported inside, so that the object costs nothing.
    """

    flags: Mapping[str, str]
    """How the tool is made to record what its trace lacks, by the keys of RECORDABLE; what it cannot record is left out."""

    flags_on_amd: Mapping[str, str] = field(default_factory=dict)
    """The same where it differs on devices of AMD."""

    verb: str = "record"
    """What one does with the tool: `record with FLAG`."""

    of_pytorch: bool = False
    """Every trace is of a program of PyTorch; otherwise names tell (`analyses.program`)."""

    is_chrome: bool = False
    """The files are Chrome-format JSON, which Perfetto opens and to which tracks can be added."""

    has_own_clock: bool = False
    """The times of the file are those of the tool's own timeline, by which people look things up there."""

    has_start_end_ranges: bool = False
    """Where ranges that nest were recorded, start/end ranges were as well: none there means that none occurred."""

    call_names: str | None = None
    """A regular expression for operators that the tool recorded as calls of libraries, and that are no ranges of the program."""

    def flag_for(self, what: str, *, amd: bool = False) -> str:
        """The flag, or what else is to be done, to record something (a key of RECORDABLE), here on devices of AMD if `amd`."""
        differs = self.flags_on_amd if amd else {}
        return differs.get(what, self.flags.get(what, _UNKNOWN))

    def how_to_record(self, what: str) -> str:
        """The same as a sentence without an end."""
        return f"{self.verb} with {self.flag_for(what)}"
