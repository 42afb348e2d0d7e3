"""What a job needs of one rank: small, whatever the size of its trace, so that thousands fit into one process."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Final

import msgspec
import polars as pl

from tracekit.analyses.attribution.attribute import attributed, attribution
from tracekit.analyses.attribution.span_places import UNATTRIBUTED
from tracekit.analyses.breakdown import breakdown
from tracekit.analyses.collectives import collectives
from tracekit.analyses.idle.causes import idle_causes
from tracekit.analyses.layers import layers
from tracekit.analyses.scope import Scope
from tracekit.analyses.steps import steps
from tracekit.names import clean

__all__ = ["MOST_CALLS", "NO_STEP", "Facts", "Summary", "summary_of"]

MOST_CALLS: Final = 20_000
"""Of more calls a rank sends the first; a row takes some 40 bytes."""
NO_STEP: Final = -1
"""The step of what belongs to none; without steps, of all."""
MOST_STEPS: Final = 50
_MOST_ROWS: Final = 200


class Facts(msgspec.Struct, frozen=True):
    """Which rank it is, and how its devices spent the window; times in ns, summed over its devices."""

    name: str
    rank: int | None
    world_size: int | None
    backend: str | None
    devices: tuple[str, ...]
    origin_ns: int
    origin_utc_ns: int | None
    active_devices: int
    on_cpu: bool
    window_ns: int
    """Of one device."""
    compute_ns: int
    communication_ns: int
    exposed_communication_ns: int
    exposed_memory_ns: int
    idle_ns: int
    all_calls: int


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """One rank of a job. Times are ns from the trace's own origin."""

    facts: Facts
    steps: pl.DataFrame
    """One row per step of the window, as `analyses.steps` has it."""
    calls: pl.DataFrame
    """The first `MOST_CALLS` calls, with the columns of `analyses.calls.CALLS`."""
    layers: pl.DataFrame
    """`pattern`, `type`, `layers`, `device_own_ns`, `host_self_ns`: the layers with the most own time."""
    causes: pl.DataFrame
    """`cause`, `total_ns` of the devices' idle time."""
    work: pl.DataFrame
    """`step` (`NO_STEP` for none), `kind`, `what`, `ns`: what the devices did in a step apart from communication, by `layer`, and why they were `idle`, by
    cause. The first `MOST_STEPS` steps, and the parts that take most.
    """

    def packed(self) -> bytes:
        """The same as bytes, for another process or machine.

        >>> import tracekit
        >>> from tracekit.analyses.scope import select
        >>> made = summary_of(select(tracekit.read("sample_traces/bert_cpu_ddp/trace-rank0.json.gz")))
        >>> Summary.unpacked(made.packed()).calls.equals(made.calls)
        True
        """
        frames = {}
        for name in _FRAMES:
            stream = io.BytesIO()
            getattr(self, name).write_ipc(stream, compression="zstd")
            frames[name] = stream.getvalue()
        return msgspec.msgpack.encode((self.facts, frames))

    @staticmethod
    def unpacked(data: bytes) -> Summary:
        """What `packed` made. Raises msgspec.DecodeError for other bytes."""
        facts, frames = msgspec.msgpack.decode(data, type=tuple[Facts, dict[str, bytes]])
        return Summary(facts, **{name: pl.read_ipc(io.BytesIO(frames[name])) for name in _FRAMES})


_FRAMES: Final = ("steps", "calls", "layers", "causes", "work")


def summary_of(scope: Scope) -> Summary:
    """The summary of one rank's scope."""
    meta = scope.trace.meta
    parts = breakdown(scope).devices
    calls = collectives(scope).calls
    by_pattern = layers(scope).by_pattern.select("pattern", "type", "layers", "device_own_ns", "host_self_ns")
    facts = Facts(
        name=clean(meta.name),
        rank=meta.rank,
        world_size=meta.world_size,
        backend=meta.backend,
        devices=tuple(clean(device.name) for device in meta.devices),
        origin_ns=meta.origin_ns,
        origin_utc_ns=meta.origin_utc_ns,
        active_devices=parts.height,
        on_cpu=scope.on_cpu,
        window_ns=scope.duration,
        all_calls=calls.height,
        **{name: int(parts[name].sum()) for name in _SUMS},
    )
    return Summary(
        facts,
        steps(scope).table,
        calls.head(MOST_CALLS),
        by_pattern.head(_MOST_ROWS),
        idle_causes(scope).by_cause.select("cause", "total_ns").head(_MOST_ROWS),
        _work(scope),
    )


def _work(scope: Scope) -> pl.DataFrame:
    paths = attribution(scope).layers.select("layer_id", pl.col("path").alias("what"))
    rows = attributed(scope).with_columns(pl.col("step").fill_null(NO_STEP))
    computed = (
        rows.filter(pl.col("class") != "communication")
        .join(paths, on="layer_id", how="left")
        .group_by("step", pl.lit("layer").alias("kind"), pl.col("what").fill_null(UNATTRIBUTED))
        .agg(pl.col("duration").sum().alias("ns"))
    )
    step = rows.select(pl.col("activity_id").alias("ended_by"), "step")
    idle = (
        idle_causes(scope)
        .pieces.join(step, on="ended_by")
        .group_by("step", pl.lit("idle").alias("kind"), pl.col("cause").cast(pl.String).alias("what"))
        .agg(pl.col("duration_ns").sum().alias("ns"))
    )
    both = pl.concat([computed, idle])
    both = both.filter(pl.col("step").rank("dense") <= MOST_STEPS)
    shown = both.group_by("kind", "what").agg(pl.col("ns").sum()).sort("ns", "what", descending=[True, False])
    kept = both.join(shown.head(_MOST_ROWS).select("kind", "what"), on=["kind", "what"], how="semi")
    return kept.sort("step", "kind", "what")


_SUMS: Final = ("compute_ns", "communication_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns")
