"""What the critical path consists of, in a few figures: how much of the window each resource determines."""

from __future__ import annotations

import polars as pl

from tracekit.analyses.graph.joint import joint_graph
from tracekit.analyses.idle.span_causes import CAUSE_NUMBER
from tracekit.analyses.scope import Scope
from tracekit.analyses.what_if.analysis import path_parts
from tracekit.analyses.what_if.draft import Draft
from tracekit.analyses.what_if.replay import replay
from tracekit.classes import dataclass

__all__ = ["PathShares", "path_shares"]


@dataclass(frozen=True, slots=True)
class PathShares:
    """The critical path in ns: work of devices by its class, data loading, other code of the host, and waits for none of them."""

    compute_ns: int
    communication_ns: int
    memory_ns: int
    loading_ns: int
    host_ns: int
    wait_ns: int

    @property
    def length_ns(self) -> int:
        """The length of the path."""
        work = self.compute_ns + self.communication_ns + self.memory_ns
        return work + self.loading_ns + self.host_ns + self.wait_ns


@dataclass(frozen=True, slots=True)
class _NotSlowed:
    """The host as fast as without a recording, which does not slow the processes that load data."""

    speed: float
    label: str = "the host without recording"

    def apply(self, draft: Draft) -> None:
        draft.scale_pieces(draft.host.cause != CAUSE_NUMBER["data_loading"], 1 / self.speed)


def path_shares(scope: Scope, speed: float = 1.0) -> PathShares:
    """What the critical path of a scope with a device consists of, if its host is so many times as fast; of a capture that measured its
    steps without recording, as long as they take then.

    >>> import tracekit
    >>> from tracekit.analyses.scope import select
    >>> shares = path_shares(select(tracekit.read("sample_traces/resnet50_gpu_fp32/trace.json.gz")))
    >>> shares.compute_ns > shares.host_ns
    True
    """
    joint = joint_graph([scope])
    parts = path_parts(joint, replay(joint, [_NotSlowed(speed)] if speed != 1 else []))
    copies, device = pl.col("part").is_in(["memcpy", "memset"]), pl.col("resource") == "device"
    kind = (
        pl.when(device & (pl.col("part") == "communication"))
        .then(pl.lit("communication"))
        .when(device & copies)
        .then(pl.lit("memory"))
        .when(device)
        .then(pl.lit("compute"))
        .when((pl.col("resource") == "host") & (pl.col("part") == "data_loading"))
        .then(pl.lit("loading"))
        .otherwise("resource")
    )
    sums = dict(parts.group_by(kind.alias("kind")).agg(pl.col("ns").sum()).rows())
    names = ("compute", "communication", "memory", "loading", "host", "wait")
    return PathShares(**{f"{name}_ns": round(sums.get(name, 0)) for name in names})
