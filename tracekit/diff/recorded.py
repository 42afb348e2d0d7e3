"""What only one side recorded: what depends on it is compared at the level that both have, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from tracekit.classes import dataclass
from tracekit.digest import Facts

__all__ = ["HOST_CODE", "Recorded", "at_common_level", "recorded"]

HOST_CODE: Final = "host_code"
"""The cause under which the time of the host outside operators is compared as one."""
_BY_FRAMES: Final = (
    "data_loading",
    "compilation",
    "operator_dispatch",
    "library_call",
    "python",
    HOST_CODE,
    "profiler_overhead",
)
"""Causes of idle time outside operators and calls that Python frames tell apart."""
_BY_LAYERS: Final = ("layer", "type", "phase")
"""Parts of a step that Python frames tell apart unless other ranges show the layers."""
_INPUTS: Final = ("shapes", "dtypes")
_LOST_DEVICE: Final = "no_kernel"


@dataclass(frozen=True, slots=True)
class Recorded:
    """What both sides recorded, or neither."""

    frames: tuple[bool, bool]
    """Whether all processes of base and new have Python frames."""
    device: tuple[bool, bool]
    """Whether what a device did stands in the files of base and new, as far as the other's show that there is one."""

    @property
    def same_frames(self) -> bool:
        """Whether frames mean the same on both sides."""
        return self.frames[0] == self.frames[1]

    @property
    def work(self) -> bool:
        """Whether work can be compared: of a side that lost what its device did only the time of its steps is known."""
        return all(self.device)

    def untold(self, part: str, name: str, *, layers: bool) -> str:
        """Why a part of the step, as a gate names it, cannot be compared; empty if it can. `layers`: layers are compared."""
        if not self.work:
            return "one side's file does not hold what its device did, so no part is compared"
        by_frames = name in _BY_FRAMES if part == "idle" else part in _BY_LAYERS and not layers
        if by_frames and not self.same_frames:
            return "it depends on Python frames, which one side has and the other not"
        return ""


def recorded(base: Sequence[Facts], new: Sequence[Facts]) -> Recorded:
    """What the processes of both sides recorded."""
    frames = [all("stacks" in one.captured for one in side) for side in (base, new)]
    lost = [any(one.on_cpu and _LOST_DEVICE in one.damage for one in side) for side in (base, new)]
    worked = [any(not one.on_cpu for one in side) for side in (base, new)]
    return Recorded((frames[0], frames[1]), (not (lost[0] and worked[1]), not (lost[1] and worked[0])))


def at_common_level(rows: pl.DataFrame, found: Recorded, *, layers: bool) -> pl.DataFrame:
    """The rows of `matching.rows_of` without what only one side tells of them. `layers`: layers are compared, and phases with them."""
    texts = [name for name in rows.columns if rows.schema[name] == pl.Categorical and name != "kind"]
    timed = pl.col("kind") != "call"
    if not found.work:
        kind = pl.when(timed).then(pl.lit("compute")).otherwise("kind").cast(pl.Categorical).alias("kind")
        return rows.with_columns(kind, *(pl.when(~timed).then(name) for name in texts))
    work = rows.filter(~pl.col("kind").is_in(["idle", "call"]))
    both = {name: work.filter(pl.col(name).is_not_null())["new"].n_unique() == 2 for name in _INPUTS}
    rows = rows.with_columns(pl.lit(None, pl.Categorical).alias(name) for name in _INPUTS if not both[name])
    if found.same_frames:
        return rows
    outside = pl.col("category").is_in(_BY_FRAMES) & pl.col("operator").is_null()
    idle = outside & (pl.col("kind") == "idle") & pl.col("name").is_null()
    return rows.with_columns(
        pl.when(idle).then(pl.lit(HOST_CODE)).otherwise("category").cast(pl.Categorical).alias("category"),
        pl.when(~(outside & ~timed)).then("name"),
        *([] if layers else [pl.when(~idle).then("phase")]),
    )
