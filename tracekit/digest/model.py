"""The digest of a profiled process: its steps, and what every ns of them went to, by leaves that another run has too."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Final

import msgspec
import polars as pl

from tracekit.trace import Schema

__all__ = ["KINDS", "LEAVES", "NO_STEP", "STEPS", "VALUES", "VERSION", "Digest", "Facts"]

VERSION: Final = 1
"""Of the bytes; rises when a field changes its meaning."""
NO_STEP: Final = -1
"""The step of what lies between steps; without steps, of all."""

KINDS: Final = ("compute", "communication", "memory", "idle", "call")
"""What a leaf is: work of a device by class, idle time of a device, or calls of the host that are no launch."""

STEPS: Final[Schema] = {"step": pl.Int64, "name": pl.String, "time_ns": pl.Int64}
"""`time_ns`: from where the step before ends on host and device, or from its own start on the host if that is later, to where the
next step begins so."""

LEAVES: Final[Schema] = {
    "leaf": pl.Int64,  # the row number
    "kind": pl.Enum(KINDS),
    "category": pl.String,  # of the kernel; of idle time and calls the cause
    "name": pl.String,  # of the kernel, the operator without a device, or the call; empty for none
    "operator": pl.String,  # the innermost; null for none
    "shapes": pl.String,  # JSON texts of the operator's inputs; null where they were not recorded
    "dtypes": pl.String,
    "layer": pl.String,  # the path; null for none
    "type": pl.String,  # of the layer
    "phase": pl.String,
}
"""No two leaves agree in all columns but the first."""

VALUES: Final[Schema] = {
    "step": pl.Int64,
    "leaf": pl.Int64,
    "ns": pl.Int64,  # of the time of the step, 0 for calls; summed over devices
    "calls": pl.Int64,  # activities, gaps or calls that begin in the step
    "duration_ns": pl.Int64,  # the sum of their durations, also what others hide
}


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Which run it is. What is not known is None or empty."""

    name: str
    format: str
    workload: str = ""
    device: str = ""
    """The name of its devices, or of its processors."""
    devices: int
    """How many worked; the values of a step sum to so many times its duration."""
    on_cpu: bool
    rank: int | None = None
    world_size: int | None = None
    steps_inferred_from: str | None = None
    settings: dict[str, int | float | str | bool | None] = {}
    """Of the capture, as in its manifest: batch, precision, threads, …"""
    versions: dict[str, str] = {}
    captured: tuple[str, ...] = ()
    """What the profile recorded."""
    undisturbed_ns: tuple[int, ...] = ()
    """Step times of the same capture without the profiler."""


@dataclass(frozen=True, slots=True, eq=False)
class Digest:
    """One profiled process. Times are integer ns; the `ns` of all leaves of a step sum to `devices` times its `time_ns`."""

    facts: Facts
    steps: pl.DataFrame
    """One row per step in order of time (`STEPS`); of a trace without steps one row, the window, whose step is `NO_STEP`."""
    leaves: pl.DataFrame
    """`LEAVES`."""
    values: pl.DataFrame
    """One row per step and leaf that occurs in it (`VALUES`)."""

    @property
    def has_steps(self) -> bool:
        """Whether the trace has steps, marked or inferred."""
        return bool((self.steps["step"] != NO_STEP).any())

    def packed(self) -> bytes:
        """The same as bytes: small, and nothing that runs.

        >>> import tracekit
        >>> from tracekit.analyses.scope import select
        >>> from tracekit.digest import digest_of
        >>> made = digest_of(select(tracekit.read("sample_traces/cnn_cpu/trace.json.gz")))
        >>> Digest.unpacked(made.packed()).values.equals(made.values)
        True
        """
        frames = {}
        for name in _FRAMES:
            stream = io.BytesIO()
            getattr(self, name).write_ipc(stream, compression="zstd")
            frames[name] = stream.getvalue()
        return msgspec.msgpack.encode((VERSION, self.facts, frames))

    @staticmethod
    def unpacked(data: bytes) -> Digest:
        """What `packed` made. Raises msgspec.MsgspecError for other bytes."""
        _version, facts, frames = msgspec.msgpack.decode(data, type=tuple[int, Facts, dict[str, bytes]])
        return Digest(facts, **{name: pl.read_ipc(io.BytesIO(frames[name])) for name in _FRAMES})


_FRAMES: Final = ("steps", "leaves", "values")
