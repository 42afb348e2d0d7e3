"""The digest of a profiled process: its steps, and what every ns of them went to, by leaves that another run has too."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
import polars as pl
import zstandard

from tracekit.classes import dataclass
from tracekit.errors import UnreadableTraceError
from tracekit.trace import Schema

__all__ = [
    "KINDS",
    "LAYERS",
    "LEAVES",
    "NO_STEP",
    "STEPS",
    "VALUES",
    "VERSION",
    "Digest",
    "Facts",
    "Plain",
    "Versioned",
    "check_version",
]

VERSION: Final = 2
"""Of the bytes; rises when a field changes its meaning."""
NO_STEP: Final = -1
"""The step of what lies between steps; without steps, of all."""

Number = Annotated[int, msgspec.Meta(ge=NO_STEP, lt=2**53)]
Amount = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
"""In ns, 104 days; no step, call or run is longer."""

KINDS: Final = ("compute", "communication", "memory", "idle", "call")
"""What a leaf is: work of a device by class, idle time of a device, or calls of the host that are no launch, and its loading of data."""

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

LAYERS: Final[Schema] = {
    "path": pl.String,
    "parent": pl.String,  # the path of the layer around it; null for a root
    "name": pl.String,  # its part of the path
    "type": pl.String,  # null where the profile does not tell
    "part_of_model": pl.Boolean,  # False: stands for work in no layer, as `<optimizer>`
}
"""The layers of the leaves and those around them, in the order of the trace; no two have one path."""

VALUES: Final[Schema] = {
    "step": pl.Int64,
    "leaf": pl.Int64,
    "ns": pl.Int64,  # of the time of the step, 0 for calls; summed over devices
    "calls": pl.Int64,  # activities, gaps or calls that begin in the step; without a device, calls of operators
    "duration_ns": pl.Int64,  # the sum of their durations, also what others hide
}


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Which run it is. What is not known is None or empty."""

    name: str
    format: str
    workload: str = ""
    device: str = ""
    """The name of its devices, or of its processors."""
    devices: Annotated[int, msgspec.Meta(ge=1, lt=2**20)]
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
    undisturbed_ns: tuple[Amount, ...] = ()
    """Step times of the same capture without the profiler."""
    recorded_utc_ns: int | None = None
    """When the profile began."""
    samples_per_step: Amount | None = None
    """Over all ranks."""
    damage: tuple[str, ...] = ()
    """The defects of its file by which figures may be wrong, as `health.MEANINGS` calls them."""
    peak_memory_bytes: Amount | None = None
    """The most that the allocator of a device held."""
    stalled_ns: Amount = 0
    """Without a device, how long the steps stood still, since something else had the processors (`analyses.stalls`)."""


@dataclass(frozen=True, slots=True, eq=False)
class Digest:
    """One profiled process. Times are integer ns; the `ns` of all leaves of a step sum to `devices` times its `time_ns`."""

    facts: Facts
    steps: pl.DataFrame
    """One row per step in order of time (`STEPS`), without those that a truncated file cuts; of a trace without steps one row, the window, whose step is `NO_STEP`."""
    leaves: pl.DataFrame
    """`LEAVES`."""
    layers: pl.DataFrame
    """`LAYERS`."""
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
        return zstandard.compress(msgspec.json.encode(self.plain()))

    def plain(self) -> Plain:
        """The same as lists, one for each column."""
        steps, leaves, layers, values = (
            frame.to_dict(as_series=False) for frame in (self.steps, self.leaves, self.layers, self.values)
        )
        return Plain(
            VERSION, self.facts, _Steps(**steps), _Leaves(**leaves), _Layers(**layers), _Values(**values)
        )

    @staticmethod
    def unpacked(data: bytes) -> Digest:
        """What `packed` made.

        Raises UnreadableTraceError, without a path, for bytes of another version and for what no digest is: no bytes do harm.
        """
        try:
            if zstandard.frame_content_size(data) not in range(_LARGEST):
                message = f"more than {_LARGEST >> 20} MiB"
                raise ValueError(message)
            text = zstandard.decompress(data)
            check_version(msgspec.json.decode(text, type=Versioned).version)
            return Digest.of_plain(msgspec.json.decode(text, type=Plain))
        except _FAULTS as error:
            raise _no_digest(error) from error

    @staticmethod
    def of_plain(plain: Plain) -> Digest:
        """What `plain` made. Raises UnreadableTraceError, without a path, if the columns contradict each other."""
        try:
            made = Digest(
                plain.facts,
                pl.DataFrame(msgspec.structs.asdict(plain.steps), STEPS),
                pl.DataFrame(msgspec.structs.asdict(plain.leaves), LEAVES),
                pl.DataFrame(msgspec.structs.asdict(plain.layers), LAYERS),
                pl.DataFrame(msgspec.structs.asdict(plain.values), VALUES),
            )
        except pl.exceptions.PolarsError as error:
            raise _no_digest(error) from error
        sums = made.values.group_by("step").agg(pl.col("ns").sum())
        told = made.steps.join(sums, on="step", how="left").fill_null(0)
        whole = (
            made.steps.height > 0
            and made.steps["step"].is_unique().all()
            and made.leaves["leaf"].equals(pl.Series("leaf", range(made.leaves.height), dtype=pl.Int64))
            and made.layers["path"].is_unique().all()
            and made.leaves["layer"].drop_nulls().is_in(made.layers["path"].implode()).all()
            and made.layers["parent"].drop_nulls().is_in(made.layers["path"].implode()).all()
            and made.values["leaf"].is_between(0, made.leaves.height - 1).all()
            and made.values["step"].is_in(made.steps["step"].implode()).all()
            and (told["ns"] == told["time_ns"] * made.facts.devices).all()
        )
        if not whole:
            raise _no_digest(ValueError("its parts do not sum to its steps"))
        return made


_LARGEST: Final = 1 << 28
_FAULTS: Final = (ValueError, zstandard.ZstdError, msgspec.MsgspecError, RecursionError, MemoryError)


def _no_digest(error: Exception) -> UnreadableTraceError:
    return UnreadableTraceError(f"not a valid digest ({error})", remedy="save it again")


def check_version(version: int) -> None:
    """Raise UnreadableTraceError, without a path, for a digest of another version than `VERSION`."""
    if version != VERSION:
        remedy = "use a newer tracekit" if version > VERSION else "save it again"
        raise UnreadableTraceError(f"its digest has version {version}, not {VERSION}", remedy=remedy)


class Versioned(msgspec.Struct, frozen=True):
    """What digests of all versions have."""

    version: int


class _Steps(msgspec.Struct, frozen=True):
    step: list[Number]
    name: list[str]
    time_ns: list[Amount]


class _Leaves(msgspec.Struct, frozen=True):
    leaf: list[Amount]
    kind: list[Literal["compute", "communication", "memory", "idle", "call"]]
    category: list[str | None]
    name: list[str | None]
    operator: list[str | None]
    shapes: list[str | None]
    dtypes: list[str | None]
    layer: list[str | None]
    type: list[str | None]
    phase: list[str | None]


class _Layers(msgspec.Struct, frozen=True):
    path: list[str]
    parent: list[str | None]
    name: list[str]
    type: list[str | None]
    part_of_model: list[bool]


class _Values(msgspec.Struct, frozen=True):
    step: list[Number]
    leaf: list[Amount]
    ns: list[Amount]
    calls: list[Amount]
    duration_ns: list[Amount]


class Plain(msgspec.Struct, frozen=True):
    """A digest as JSON has it: the columns of its tables as lists. What a field may hold is checked when it is decoded."""

    version: int
    facts: Facts
    steps: _Steps
    leaves: _Leaves
    layers: _Layers
    values: _Values
