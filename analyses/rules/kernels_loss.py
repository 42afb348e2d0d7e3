"""A rule about a loss over many classes, whose scores go to memory and back several times."""

from __future__ import annotations

from math import prod
from typing import Final

import polars as pl

from tracekit.analyses.attribution import attributed
from tracekit.analyses.kernels import Kernels
from tracekit.analyses.rules.rule import Advice, Evidence, Rule, bounded, longest, of_time
from tracekit.analyses.scope import Scope
from tracekit.facts.units import count_of, format_ns
from tracekit.groups import at_rows, kept
from tracekit.name_table import NameTable

__all__ = ["UNFUSED_LOSS"]

UNFUSED_LOSS_LEAST_SHARE: Final = 0.10
"""Over a few thousand classes, a loss takes less than a hundredth of a step."""

_FRESH_BYTES: Final = 32 << 20
"""The C library asks the system anew for each block that is larger: to fill its pages costs a processor as much as the passes do."""
_FUSED_SAVES: Final = (0.1, 0.5)
"""What a fused loss saves a processor of the time of the operators, with scores up to `_FRESH_BYTES` and beyond (measured with float32:
11.4 and 9.9 ms for [256, 32000], 158 and 69 ms for [512, 50257])."""

_OF_LOSS: Final = r"^aten::_?(log_softmax|nll_loss|cross_entropy)"
_SCORES: Final = r"^\[\[(\d+(?:, ?\d+)+)\]"
"""The first input."""
_COPY: Final = "aten::copy_"
_TWO_TYPES: Final = r'^\["(?P<into>[^"]+)", ?"(?P<from>[^"]+)"'
"""Those of the first two inputs, which for a copy are what it writes and what it reads."""


def unfused_loss(scope: Scope, _result: Kernels) -> Evidence | None:
    """Cross-entropy runs as several kernels (without a device, operators), each of which reads or writes the scores of all classes: a language model's vocabulary.

    Casts of tensors of the scores' shape count as well, where shapes and types were recorded. At stake is the time of these kernels, of which one
    that is fused with the last projection leaves little; on a processor that of the casts and a part of the others (`_FUSED_SAVES`).

    Fires when they take `UNFUSED_LOSS_LEAST_SHARE` of the window or more, with a backward pass among them.
    """
    rows = attributed(scope)
    operators, computes = NameTable(rows["operator"]), (rows["class"] == "compute").to_numpy()
    of_loss = operators.matching(_OF_LOSS)
    loss = kept(rows, computes & of_loss)
    if not (loss["phase"].cast(pl.String) == "backward").any():
        return None
    scores = _shapes(scope, loss).str.extract(_SCORES).drop_nulls().mode().sort()
    casts = rows.clear()
    if scores.len():
        copies = kept(rows, computes & ~of_loss & operators.which(_COPY.__eq__))
        alike = _shapes(scope, copies).str.contains(f"[{scores[0]}]", literal=True).fill_null(value=False)
        casts = kept(copies, alike & _casts(scope, copies))
    total = int(loss["duration"].sum()) + int(casts["duration"].sum())
    if total < UNFUSED_LOSS_LEAST_SHARE * scope.duration:
        return None
    size = f" of [{scores[0]}]" if scores.len() else ""
    and_casts = (
        f", and {count_of(casts.height, 'cast of tensors of this shape takes', 'casts of tensors of this shape take')} {format_ns(int(casts['duration'].sum()))}"
        if casts.height
        else ""
    )
    what = "operator" if scope.on_cpu else "kernel"
    return Evidence(
        title=f"The loss takes {of_time(total, scope)} in {what}s that each make a pass over the scores of all classes",
        text=f"{count_of(loss.height, f'cross-entropy {what}')} on scores{size} take "
        f"{format_ns(int(loss['duration'].sum()))}{and_casts}.",
        ns_at_stake=bounded(_saved(loss, casts, scores, scope), scope),
        stretches=longest(loss),
    )


def _shapes(scope: Scope, rows: pl.DataFrame) -> pl.Series:
    return at_rows(scope.trace.host["shapes"], rows["op_id"]).cast(pl.String)


def _casts(scope: Scope, copies: pl.DataFrame) -> pl.Series:
    """Which of these copies change the type of what they copy."""
    kinds = (
        at_rows(scope.trace.host["dtypes"], copies["op_id"]).cast(pl.String).str.extract_groups(_TWO_TYPES)
    )
    other = kinds.struct.field("from") != kinds.struct.field("into")
    return other.fill_null(value=False)


def _saved(loss: pl.DataFrame, casts: pl.DataFrame, scores: pl.Series, scope: Scope) -> int:
    """What one pass over the scores saves of the time of these operators, in ns."""
    own, cast = (int(rows["duration"].sum()) for rows in (loss, casts))
    if not scope.on_cpu:
        return own + cast
    # Losses compute in float32.
    large = scores.len() > 0 and 4 * prod(map(int, scores[0].split(","))) > _FRESH_BYTES
    return cast + round(_FUSED_SAVES[large] * own)


UNFUSED_LOSS = Rule(
    id="unfused_loss",
    analysis="kernels",
    evidence=unfused_loss,
    advice=Advice(
        "Compute the last projection and the loss together in chunks, so that the scores are never all in memory (a fused linear "
        "cross-entropy, as in the Liger kernels), or compile the loss function with torch.compile, which fuses casts, softmax "
        "and loss.",
        processor="[!compiled] Compile the loss function with torch.compile, which fuses casts, softmax and loss.\n"
        "[compiled] Compile the loss function together with the model, so that casts, softmax and loss are fused.",
    ),
)
