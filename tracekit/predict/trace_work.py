"""Pieces of work at another batch or on another device."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.call_sizes import elements_in
from tracekit.analyses.flops import json_list
from tracekit.analyses.roofline.levels import under_roofs
from tracekit.analyses.roofline.other_device import There
from tracekit.analyses.roofline.pieces import pieces
from tracekit.analyses.roofline.rated import device_ceilings
from tracekit.analyses.scope import Scope
from tracekit.classes import dataclass
from tracekit.facts.ceilings import Ceilings
from tracekit.facts.collectives import ELEMENT_BYTES
from tracekit.facts.stack_names import ACCUMULATE_NODE

__all__ = ["Conditions", "gradient_bytes", "placed_pieces", "under_conditions"]

_WEIGHTS: Final = {
    r"conv\w*_backward": (2,),
    r"^aten::_?\w*conv": (1, 2),
    r"addmm": (0, 2),
    r"::linear$": (1, 2),
    r"::mm$": (1,),
    r"embedding$": (0,),
    r"(batch|layer|group)_norm$": (1, 2, 3, 4),
}
"""Operators that read weights, and which of their inputs these are."""
_BYTES: Final = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
_FIXED: Final = ("optimizer", "communication")
"""Phases whose work does not depend on the batch."""
_OVER_BATCH: Final = r"batch_norm|norm\w*_backward"
"""Operators whose kernels sum over the batch: they have as many blocks as there are channels, and each block works longer."""
_MATRICES: Final = ("gemm", "convolution", "attention", "rnn")
_START_NS: Final = {True: 5_000, False: 2_000}
"""What a call takes however small its work is: of an operator on processors, and of a kernel."""
_BATCH_EXPONENTS: Final = {"low": 0.85, "high": 1.1}
"""Nine in ten models took between these powers of the batch's factor (NeuSight's measurements on nine devices, batches of two and four
times).
"""
_DEVICE_SPREAD: Final = 0.3
"""Times scaled from one device to another are off by 15 % on average (the same measurements): twice that, in logarithms."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the work is predicted for. `batch`: the factor of the samples; `ceilings`: those of the devices, by number, on which the work then runs;
    `there`: of another device, what it lacks.
    """

    batch: float
    ceilings: Mapping[int, Ceilings]
    there: There | None = None


def placed_pieces(scope: Scope) -> pl.DataFrame:
    """The pieces of work (`analyses.roofline.pieces`) with the `phase`, the `step` and the thread `blocks` of each."""
    rows = pieces(scope)
    places = scope.activities.select("activity_id", "blocks", "step").with_columns(
        attribution(scope).activities["phase"].cast(pl.String)
    )
    if scope.on_cpu:
        return rows.hstack(places)
    return rows.join(places, left_on="call", right_on="activity_id", how="left", maintain_order="left")


def under_conditions(work: pl.DataFrame, conditions: Conditions, scope: Scope) -> pl.DataFrame:
    """The pieces (`analyses.roofline.pieces`, with their `phase` and `blocks`) and what each would take: `predicted`, `low` and `high`
    in ns, the roof that it is then `bound` by, and whether its work is `modelled`.
    """
    grows = ~pl.col("phase").is_in(_FIXED) & (pl.col("category").cast(pl.String) != "optimizer")
    work = work.with_columns(
        pl.when(grows.fill_null(value=True)).then(conditions.batch).otherwise(1.0).alias("factor"),
        pl.Series("weights", _weight_bytes(work, scope), dtype=pl.Float64),
    ).with_columns(pl.min_horizontal("weights", "bytes"))
    here = device_ceilings(scope)
    now, then = under_roofs(work, here), under_roofs(work.with_columns(_GROWN), conditions.ceilings)
    same = conditions.ceilings == here
    # Without ceilings the FLOPs of matrix products tell, and the bytes of all else.
    by_count = pl.when(pl.col("unit") == "matrix").then("factor").otherwise(_GROWN_BYTES / pl.col("bytes"))
    rows = work.with_columns(
        now["least_ns"].alias("least now"), then["least_ns"].alias("least then"), then["bound"]
    ).with_columns(
        pl.when((pl.col("least now") > 0) & pl.col("least then").is_not_null())
        .then(pl.col("least then") / pl.col("least now"))
        .when(pl.col("least now").is_null() & same)
        .then(by_count)
        .alias("ratio")
    )
    rows = _of_other_units(rows, conditions.there).with_columns(
        pl.col("ratio").is_not_null().alias("modelled"), _by_device(here, conditions.ceilings)
    )
    return _with_times(rows, scope, same=same)


def _of_other_units(rows: pl.DataFrame, there: There | None) -> pl.DataFrame:
    """The pieces with the `nearest` and the `farthest` ratio of those that other units compute there, since a device lacks their precision: at
    the roof, and as far from it as now. What is likely is the mean of both, in logarithms; null for all others.
    """
    lacks = pl.lit(value=False) if there is None else there.lacks()
    least = pl.min_horizontal("ratio", pl.col("least then") / pl.col("piece_ns"))
    rows = rows.with_columns(
        pl.when(lacks).then(least).alias("nearest"), pl.when(lacks).then("ratio").alias("farthest")
    )
    return rows.with_columns(
        pl.coalesce((pl.col("nearest") * pl.col("farthest")).sqrt(), "ratio").alias("ratio")
    )


def _by_device(here: Mapping[int, Ceilings], then: Mapping[int, Ceilings]) -> pl.Expr:
    """How many times as long work without a model takes on the other devices: by their memories, and matrix products by the mean
    of these and their peaks.
    """
    memory, matrix = {}, {}
    for number, old in here.items():
        new = then[number]
        reads = old.bandwidth.get("DRAM"), new.bandwidth.get("DRAM")
        both = (old.peak("fp16") or old.peak("fp32"), new.peak("fp16") or new.peak("fp32"))
        memory[number] = reads[0] / reads[1] if reads[0] and reads[1] else 1.0
        matrix[number] = (
            (memory[number] * both[0] / both[1]) ** 0.5 if both[0] and both[1] else memory[number]
        )
    device = pl.col("device_id")
    many, few = (
        device.replace_strict(known, default=1.0, return_dtype=pl.Float64) if known else pl.lit(1.0)
        for known in (matrix, memory)
    )
    of_matrices = pl.col("category").cast(pl.String).is_in(_MATRICES)
    return pl.when(of_matrices).then(many).otherwise(few).alias("by device")


_GROWN_BYTES: Final = pl.col("weights") + (pl.col("bytes") - pl.col("weights")) * pl.col("factor")
_GROWN: Final = [
    _GROWN_BYTES.round().cast(pl.Int64).alias("bytes"),
    *((pl.col(name) * pl.col("factor")).round().cast(pl.Int64) for name in ("flops", "l2_bytes", "l1_bytes")),
]


def _with_times(rows: pl.DataFrame, scope: Scope, *, same: bool) -> pl.DataFrame:
    """The pieces with their times; those without a model change as those with one that grow alike."""
    time, factor = pl.col("piece_ns"), pl.col("factor")
    start = pl.min_horizontal(time, pl.lit(_START_NS[scope.on_cpu]))
    of_modelled = (time * pl.col("ratio")).sum() / time.filter("modelled").sum()
    rows = rows.with_columns(
        pl.coalesce("ratio", pl.when(of_modelled.over("factor").is_finite()).then(of_modelled.over("factor")))
        .fill_null(factor * pl.col("by device"))
        .alias("ratio")
    )
    room = _room(rows, scope) if same else pl.lit(1.0)
    ratio = pl.col("ratio")
    felt = pl.when(ratio > 1).then(pl.max_horizontal(ratio * room, 1.0)).otherwise(ratio)
    # The power of a factor below 1 is the larger one where the exponent is the smaller one.
    bent = {case: felt * factor ** (power - 1) for case, power in _BATCH_EXPONENTS.items()}
    spread = 0.0 if same else _DEVICE_SPREAD
    low = pl.coalesce("nearest", pl.min_horizontal(*bent.values()) * np.exp(-spread))
    high = pl.max_horizontal(*bent.values(), ratio, "farthest") * np.exp(spread)
    ranged = {
        "predicted": felt,
        "low": pl.when("modelled").then(low).otherwise(pl.min_horizontal(low, 1.0)),
        "high": pl.when("modelled").then(high).otherwise(pl.max_horizontal(high, 1.0)),
    }
    return rows.with_columns((start + (time - start) * value).alias(name) for name, value in ranged.items())


def _room(rows: pl.DataFrame, scope: Scope) -> pl.Expr:
    """The share of the multiprocessors that a kernel has blocks for: more blocks take the others first, where a larger batch brings any."""
    known = {one.device_id: one.sm_count for one in scope.trace.meta.devices if one.sm_count}
    if not known or "blocks" not in rows.columns:
        return pl.lit(1.0)
    count = pl.col("device_id").replace_strict(known, default=None, return_dtype=pl.Int64)
    room = (pl.col("blocks") / count).clip(upper_bound=1.0).fill_null(1.0)
    over_batch = pl.col("operator").cast(pl.String).str.contains(_OVER_BATCH).fill_null(value=False)
    return pl.when(over_batch).then(1.0).otherwise(room)


def _weight_bytes(work: pl.DataFrame, scope: Scope) -> list[float]:
    """The bytes of each piece that are those of weights; 0 where its operator is not known to read any."""
    shapes = scope.trace.host["shapes"].gather(work["op_id"]).cast(pl.String)
    names, precision = work["operator"].cast(pl.String), work["precision"]
    rows = pl.DataFrame({"name": names, "shapes": shapes, "precision": precision})
    distinct = rows.unique(maintain_order=True)
    found = distinct.with_columns(
        pl.Series("weights", [_weights(*row) for row in distinct.rows()], dtype=pl.Float64)
    )
    joined = rows.join(found, on=rows.columns, how="left", nulls_equal=True, maintain_order="left")
    return joined["weights"].to_list()


def _weights(name: str | None, shapes: str | None, precision: str | None) -> float:
    places = next((which for pattern, which in _WEIGHTS.items() if name and re.search(pattern, name)), ())
    inputs = json_list(shapes)
    elements = [elements_in(inputs[place]) or 0 for place in places if place < len(inputs)]
    # A backward operator writes the gradients of the weights that it reads.
    times = 2 if name and name.endswith("_backward") else 1
    return float(times * sum(elements) * _BYTES.get(precision or "", 4))


def gradient_bytes(scope: Scope) -> int | None:
    """The bytes of the gradients of a step: as the backward pass adds them up in the trace, else those of the model's parameters in
    fp32; None where neither is known.
    """
    host = scope.host("op", columns=["name", "shapes", "dtypes"])
    added = host.filter(pl.col("name").cast(pl.String).str.contains(ACCUMULATE_NODE)).drop_nulls("shapes")
    counts = added.group_by(pl.col("shapes", "dtypes").cast(pl.String)).len()
    found = 0
    for shapes, dtypes, count in counts.rows():
        inputs, kinds = json_list(shapes), json_list(dtypes)
        if inputs and kinds:
            found += (elements_in(inputs[0]) or 0) * ELEMENT_BYTES.get(str(kinds[0]), 4) * count
    if found and scope.steps.height:
        return found // scope.steps.height
    manifest = scope.trace.manifest
    return None if manifest is None else 4 * manifest.parameters
