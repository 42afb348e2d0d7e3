"""Digests from leaves and amounts, without a trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from tracekit.digest import NO_STEP, Digest, Facts
from tracekit.digest.model import LAYERS, LEAVES, STEPS, VALUES


def digest_from(
    leaves: Sequence[dict[str, Any]],
    amounts: Sequence[Sequence[tuple[int, int]]],
    *,
    devices: int = 1,
    marked: bool = True,
    **facts: Any,
) -> Digest:
    """The amounts are (ns, calls) of each leaf in each step, per device. Paths of layers are dotted; `<…>` is no layer."""
    numbers = range(len(amounts)) if marked else [NO_STEP]
    rows: list[tuple[int, int, int, int, int]] = []
    for step, amount in enumerate(amounts):
        for leaf, (ns, calls) in enumerate(amount):
            timed = 0 if leaves[leaf]["kind"] == "call" else ns * devices
            rows.append((step if marked else NO_STEP, leaf, timed, calls * devices, ns))
    values = pl.DataFrame(rows, VALUES, orient="row").group_by("step", "leaf", maintain_order=True).sum()
    times = values.group_by("step").agg(pl.col("ns").sum() // devices)
    steps = pl.DataFrame({"step": numbers, "name": [f"step {number}" for number in numbers]})
    steps = steps.join(times, on="step", how="left").rename({"ns": "time_ns"}).cast(STEPS)  # type: ignore[arg-type]
    named = [leaf["layer"] for leaf in leaves if leaf["layer"] is not None]
    paths = dict.fromkeys(path for layer in named for path in _above(layer))
    layers = [
        (path, path.rpartition(".")[0] or None, path.rpartition(".")[2], None, not path.startswith("<"))
        for path in paths
    ]
    return Digest(
        facts=Facts(name="made", format="kineto", devices=devices, **{"on_cpu": False, **facts}),
        steps=steps,
        leaves=pl.DataFrame(leaves)
        .with_row_index("leaf")
        .select(pl.col(n).cast(k) for n, k in LEAVES.items()),
        layers=pl.DataFrame(layers, LAYERS, orient="row"),
        values=values,
    )


def _above(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]
