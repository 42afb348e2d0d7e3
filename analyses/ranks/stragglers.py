"""The rank that the others wait for, and why it is late: what it does longer than they do in the same steps.

Scores follow the definition of nvidia-resiliency-ext: in [0, 1], the best time over the rank's own. A rank's own time of a step is
the step's without its waits in collectives, since a rank that waits is not slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from tracekit.analyses.ranks.align import Alignment
from tracekit.analyses.ranks.blame import once
from tracekit.analyses.ranks.causes import causes_of
from tracekit.analyses.ranks.matching import last_step
from tracekit.analyses.ranks.summary import Summary
from tracekit.analyses.ranks.waits import Waits

__all__ = ["STRAGGLERS", "stragglers_of"]

STRAGGLERS: Final = {
    "at": pl.Int64,
    "own_ns": pl.Float64,
    "speed": pl.Float64,
    "steadiness": pl.Float64,
    "wait_ns": pl.Int64,
    "last": pl.Int64,
    "caused_ns": pl.Int64,
    "unseen_ns": pl.Int64,
    "collective": pl.String,
    "kind": pl.String,
    "what": pl.String,
    "where": pl.String,
    "longer_ns": pl.Int64,
    "steps": pl.Int64,
    "late_steps": pl.Int64,
    "times_operators": pl.Float64,
    "times_flops": pl.Float64,
    "times_inputs": pl.Float64,
}


def stragglers_of(summaries: Sequence[Summary], aligned: Alignment, waits: Waits) -> pl.DataFrame:
    """One row per rank with the columns of `STRAGGLERS`.

    `own_ns` is the median of a step's time without the rank's waits, over the steps that all ranks have (its own steps if there is none) and all of whose calls were sent; `speed` (their relative score) is the least `own_ns` of all ranks over its
    own, `steadiness` (their individual score) that of its own best step over its median; null without steps. `wait_ns`, `last`, `caused_ns` and `unseen_ns` are those of
    `Waits.ranks`, `collective` the name of the collective that waits most for it. `kind`, `what`, `where`, `longer_ns`, `steps`, `late_steps`, `times_operators`, `times_flops` and `times_inputs` are those of `ranks.causes.causes_of`.
    """
    own = _own_times(summaries, aligned, waits)
    base = waits.ranks.join(own, on="at", how="left", maintain_order="left")
    causes = causes_of(summaries, aligned, waits)
    return base.join(_worst_collectives(waits), on="at", how="left").join(causes, on="at", how="left").sort("at").select(
        (pl.col(name) if name in {*base.columns, "collective", *causes.columns} else pl.lit(None)).cast(dtype).alias(name)
        for name, dtype in STRAGGLERS.items()
    )  # fmt: skip


def _own_times(summaries: Sequence[Summary], aligned: Alignment, waits: Waits) -> pl.DataFrame:
    step = aligned.calls[["match", "at", "step"]].filter(pl.col("match").is_not_null())
    waited = (
        pl.concat([waits.calls.join(step, on=["match", "at"], how="left")[waits.alone.columns], waits.alone])
        .group_by("at", "step")
        .agg(pl.col("blocked_ns").sum().alias("wait_ns"))
    )
    times = pl.concat(
        [
            one.steps.select(pl.lit(at, dtype=pl.Int64).alias("at"), "step", "time_ns")
            for at, one in enumerate(summaries)
        ]
    )
    if any(one.cut for one in summaries):  # the waits of other steps are not known
        last = last_step(summaries)
        times = times.filter(pl.lit(value=False) if last is None else pl.col("step") <= last)
    each = times.join(waited, on=["at", "step"], how="left").select(
        "at", "step", (pl.col("time_ns") - pl.col("wait_ns").fill_null(0)).clip(lower_bound=0).alias("own")
    )
    # A trace that breaks off, or begins late, must not leave the others without steps to compare.
    count = pl.len().over("at")
    whole = each.filter(2 * count >= count.max())
    shared = whole.filter(pl.col("at").n_unique().over("step") == whole["at"].n_unique())["step"].unique()
    same = each.filter(pl.col("step").is_in(shared.implode()))
    each = same if same.height else each
    own = pl.col("own").cast(pl.Float64)
    made = each.group_by("at").agg(own.median().alias("own_ns"), own.min().alias("best"))
    positive = pl.col("own_ns") > 0
    return made.select(
        "at",
        "own_ns",
        pl.when(positive).then(pl.col("own_ns").min() / pl.col("own_ns")).alias("speed"),
        pl.when(positive).then(pl.col("best") / pl.col("own_ns")).alias("steadiness"),
    )


def _worst_collectives(waits: Waits) -> pl.DataFrame:
    """`at`, `collective`: by name, for which the others wait longest for the rank."""
    names = waits.collectives.select("match", pl.col("name").alias("collective"))
    sums = once(waits.blame).join(names, on="match").group_by("at", "collective").agg(pl.col("ns").sum())
    return sums.sort("ns", "collective", descending=[True, False]).unique("at", keep="first").drop("ns")
