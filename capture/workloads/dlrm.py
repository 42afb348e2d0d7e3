"""`dlrm`: the recommendation model DLRM, which predicts clicks from 13 numbers and 26 categories.

Variants are the two published sizes, for the Kaggle and the terabyte data set of Criteo. Nearly all parameters are
in the embedding tables, nearly all arithmetic is in two small perceptrons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import Final

import torch
from torch import nn
from torch.nn import functional

from tracekit.capture.recipe import Recipe
from tracekit.capture.workloads import WorkloadOptions
from tracekit.capture.workloads.checks import refuse_other_size, require_bytes, variant_or_default
from tracekit.capture.workloads.data.criteo import (
    DENSE,
    KAGGLE_ROWS,
    TABLES,
    TERABYTE_ROWS,
    ClickBatch,
    CriteoFile,
    SyntheticClicks,
    collate_clicks,
)
from tracekit.errors import UsageError

__all__ = ["VARIANTS", "Dlrm", "build", "build_model", "example_batch"]

VARIANTS: Final[tuple[str, ...]] = ("kaggle", "terabyte")

_LEARNING_RATE = 0.1
_TINY_ROWS = 1_000
_TINY_BATCH = 32


@dataclass(frozen=True, slots=True)
class _Shape:
    rows: tuple[int, ...]
    bottom: tuple[int, ...]  # its last width is the width of an embedding
    top: tuple[int, ...]
    batch: int


_SHAPES = {
    "kaggle": _Shape(KAGGLE_ROWS, (512, 256, 64, 16), (512, 256, 1), 128),
    "terabyte": _Shape(TERABYTE_ROWS, (512, 256, 128), (1024, 1024, 512, 256, 1), 2048),
}


def _perceptron(widths: Sequence[int], *, activate_last: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        linear = nn.Linear(inputs, outputs)
        nn.init.normal_(linear.weight, std=sqrt(2 / (inputs + outputs)))
        nn.init.normal_(linear.bias, std=sqrt(1 / outputs))
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*(layers if activate_last else layers[:-1]))


def _table(rows: int, width: int) -> nn.EmbeddingBag:
    # Drawn here, because the module's own draw would be discarded: most of a minute for the large tables.
    bound = sqrt(1 / rows)
    weight = torch.empty(rows, width).uniform_(-bound, bound)
    return nn.EmbeddingBag.from_pretrained(weight, freeze=False, mode="sum", sparse=True)


class DotInteraction(nn.Module):
    """The products of all pairs of feature vectors, after the first vector itself."""

    rows: torch.Tensor
    columns: torch.Tensor

    def __init__(self, vectors: int) -> None:
        super().__init__()
        rows, columns = torch.tril_indices(vectors, vectors, offset=-1)
        self.register_buffer("rows", rows, persistent=False)
        self.register_buffer("columns", columns, persistent=False)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return (batch, width + vectors * (vectors - 1) / 2) of features (batch, vectors, width)."""
        products = torch.bmm(features, features.transpose(1, 2))
        return torch.cat([features[:, 0], products[:, self.rows, self.columns]], dim=1)


class Dlrm(nn.Module):
    """A perceptron for the numbers, a table for each category, their products in pairs, and a perceptron on top."""

    def __init__(self, table_rows: Sequence[int], bottom: Sequence[int], top: Sequence[int]) -> None:
        """Make tables of `table_rows` rows and perceptrons of the given widths, inputs not counted."""
        super().__init__()
        width = bottom[-1]
        vectors = 1 + len(table_rows)
        self.bottom = _perceptron([DENSE, *bottom], activate_last=True)
        self.tables = nn.ModuleList(_table(rows, width) for rows in table_rows)
        self.interaction = DotInteraction(vectors)
        self.top = _perceptron([width + vectors * (vectors - 1) // 2, *top], activate_last=False)

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Return the logit of a click (batch,) for numbers (batch, 13) and category ids (batch, 26)."""
        by_table = ids.t().contiguous().unsqueeze(2)  # bags of one id each
        vectors = [self.bottom(dense)]
        vectors += [table(bags) for table, bags in zip(self.tables, by_table, strict=True)]
        # Under autocast, the perceptron's output has half precision, but the tables' output does not.
        features = torch.stack([vector.to(vectors[-1].dtype) for vector in vectors], dim=1)
        logits: torch.Tensor = self.top(self.interaction(features)).squeeze(1)
        return logits


def build_model(variant: str, *, max_rows: int | None = None) -> Dlrm:
    """Return the network of `variant`, 540,677,217 parameters (kaggle) or 24,036,595,969 (terabyte).

    `max_rows` caps the rows of each table. Raises `UsageError` for an unknown variant.
    """
    shape = _SHAPES[variant_or_default("dlrm", variant, VARIANTS)]
    return Dlrm(_capped(shape.rows, max_rows), shape.bottom, shape.top)


def example_batch(variant: str, *, tiny: bool = False) -> ClickBatch:
    """Return a batch of one row of zeros: the same for all variants, and for `tiny` ones."""
    del tiny
    variant_or_default("dlrm", variant, VARIANTS)
    return torch.zeros(1, DENSE), torch.zeros(1, TABLES, dtype=torch.int64), torch.zeros(1)


def _capped(rows: Sequence[int], max_rows: int | None) -> tuple[int, ...]:
    return tuple(rows) if max_rows is None else tuple(min(count, max_rows) for count in rows)


def _forward(model: nn.Module, batch: ClickBatch) -> torch.Tensor:
    logits: torch.Tensor = model(batch[0], batch[1])
    return logits


def _loss(logits: torch.Tensor, batch: ClickBatch) -> torch.Tensor:
    # The sigmoid is part of the loss: autocast forbids cross entropy of probabilities, but that of logits is
    # computed in full precision.
    return functional.binary_cross_entropy_with_logits(logits, batch[2])


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE)


def _row_limit(options: WorkloadOptions) -> int | None:
    if options.max_rows is not None and options.max_rows < 1:
        raise UsageError(f"max_rows is {options.max_rows}", remedy="it must be at least 1")
    return options.max_rows or (_TINY_ROWS if options.tiny else None)


def _require_room(variant: str, parameters: int, device: torch.device) -> None:
    require_bytes(
        parameters * torch.finfo(torch.float32).bits // 8,
        device,
        what=f"the embedding tables of dlrm {variant}",
        remedy="cap them with --max-rows, for example 1000000",
    )


def build(options: WorkloadOptions) -> Recipe:
    """Build the workload: by default 128 (kaggle) or 2,048 (terabyte) rows a step, trained by SGD at a rate of 0.1.

    `max_rows` caps each table, ids being taken modulo its rows; a tiny model has tables of at most 1,000 rows.
    `data` is a `train.txt` of Criteo. The tables are allocated on the device itself.

    Raises `UsageError` if they would not fit there, if a size is given (a row has none), and for unusable data.
    """
    variant = variant_or_default("dlrm", options.variant, VARIANTS)
    shape = _SHAPES[variant]
    refuse_other_size("dlrm", options, DENSE + TABLES, "features")
    max_rows = _row_limit(options)
    rows = _capped(shape.rows, max_rows)
    width = shape.bottom[-1]
    dataset = (
        SyntheticClicks(shape.rows, rows, options.seed)
        if options.data is None
        else CriteoFile(options.data, rows)
    )
    _require_room(variant, sum(rows) * width, options.device)
    with options.device:
        model = build_model(variant, max_rows=max_rows)
    batch = options.batch or (_TINY_BATCH if options.tiny else shape.batch)
    return Recipe(
        model=model,
        dataset=dataset,
        forward=_forward,
        loss=_loss,
        optimizer=_optimizer,
        task="click prediction",
        batch=batch,
        size=DENSE + TABLES,
        synthetic=options.data is None,
        collate=collate_clicks,
        skipped=dataset.skipped if isinstance(dataset, CriteoFile) else (lambda: 0),
        config={
            "variant": variant,
            "batch": batch,
            "tables": TABLES,
            "table_rows": sum(rows),
            "largest_table": max(rows),
            "embedding_width": width,
            "optimizer": "SGD",
            "learning_rate": _LEARNING_RATE,
        },
    )
