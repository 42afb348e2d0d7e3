"""Device time by stack: the layers from the root to the one that an activity belongs to, its operator, its name.

Without a device the operator is the activity, and stands there once.
"""

from __future__ import annotations

import polars as pl

from tracekit.analyses.attribution import UNATTRIBUTED, attributed, attribution
from tracekit.analyses.scope import Scope, select
from tracekit.errors import UsageError, nearest
from tracekit.facts.stack_names import PHASES
from tracekit.trace import Trace

__all__ = ["layer_stacks"]


def layer_stacks(of: Scope | Trace, *, phase: str | None = None) -> pl.DataFrame:
    """One row per device, phase and distinct stack, by the start of the first activity in it.

    Columns: `device_id`, `phase`, `frames` (texts, the outermost first) and `value_ns`, the summed durations; they
    sum to the device time of the scope, or of its `phase`. Raises UsageError for an unknown phase.

    >>> import tracekit
    >>> rows = layer_stacks(tracekit.read("sample_traces/cnn_cpu/trace.json.gz"), phase="forward")
    >>> rows["frames"][0].to_list()
    ['<root>', 'aten::to']
    """
    if phase is not None and phase not in PHASES:
        raise UsageError(
            f"there is no phase {phase!r}",
            remedy=nearest(phase, PHASES, f"choose one of {', '.join(PHASES)}"),
        )
    scope = of if isinstance(of, Scope) else select(of)
    rows = attributed(scope).filter(pl.col("duration") > 0)
    if phase is not None:
        rows = rows.filter(pl.col("phase") == phase)
    operators = scope.trace.host.select(pl.col("span_id").alias("op_id"), pl.col("name").alias("operator"))
    keys = ["device_id", "phase", "layer_id", "operator", "name"]
    sums = (
        rows.join(operators, on="op_id", how="left", maintain_order="left")
        .group_by(keys)
        .agg(pl.col("duration").sum().alias("value_ns"), pl.col("start").min().alias("first"))
        .sort("device_id", "first", "value_ns", "layer_id")
        .with_columns(pl.col("operator", "name", "phase").cast(pl.String))
    )
    above = _frames_of_layers(attribution(scope).layers)
    named = sums.join(above, on="layer_id", how="left", maintain_order="left")
    layer = pl.coalesce("layers", pl.lit([UNATTRIBUTED]))
    operator = [] if scope.on_cpu else [pl.col("operator")]
    frames = pl.concat_list(layer, *operator, pl.col("name")).list.drop_nulls()
    return named.select("device_id", "phase", frames.alias("frames"), "value_ns")


def _frames_of_layers(layers: pl.DataFrame) -> pl.DataFrame:
    """`layer_id` and `layers`: the names from the root down to it."""
    frames: dict[int, list[str]] = {}
    for layer, above, name in layers.sort("depth")["layer_id", "parent_layer_id", "name"].rows():
        frames[layer] = [*frames.get(above, ()), name]
    return pl.DataFrame(
        [
            pl.Series("layer_id", list(frames), pl.Int64),
            pl.Series("layers", list(frames.values()), pl.List(pl.String)),
        ]
    )
