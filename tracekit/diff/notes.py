"""What two sides differ in, what of them can be compared and what not, in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import polars as pl

from tracekit.diff.layers import Nodes
from tracekit.diff.matching import Comparable
from tracekit.diff.pool import Pool
from tracekit.facts.units import count_of, format_ns, format_share

__all__ = ["notes_of"]

_SETTINGS: Final = {
    "batch": "batch size",
    "precision": "precision",
    "compile": "torch.compile",
    "channels_last": "channels last",
    "workers": "workers of the data loader",
    "pin_memory": "pinned memory",
    "accumulate": "batches per step",
    "checkpoint_activations": "checkpointing of activations",
    "threads": "threads",
    "ranks": "ranks",
    "parallel": "parallelism",
    "size": "size",
}
_VERSIONS: Final = ("torch", "cuda", "cudnn", "hip", "transformers")
_UNLIKE: Final = 0.2


def notes_of(
    base: Pool, new: Pool, comparable: Comparable, nodes: Nodes, matched: pl.DataFrame, *, windows: bool
) -> Iterator[str]:
    """The notes, the most important first."""
    sides = (base, "base"), (new, "new side")
    alone = matched.filter(pl.col("how") == "none")
    shares = (float(alone["base_share"].sum()), float(alone["new_share"].sum()))
    if min(shares) > 1 - _UNLIKE:
        yield (
            f"Only {format_share(1 - min(shares))} of the work of either side has a counterpart on the other: these look like "
            "different programs, and a list of their changes says little."
        )
    if windows:
        without = " and ".join(name for pool, name in sides if not pool.side.has_steps)
        yield f"The {without} {'have' if ' and ' in without else 'has'} no steps, so whole windows are compared."
    if not comparable.kinds:
        yield (
            "One side ran on a device, the other on processors: their work is compared by layer, operator and phase, not by "
            "kernel, and waiting has other causes."
        )
    elif not comparable.names:
        yield "Most kernels have other names on the other device, so they are compared by layer, operator and shapes."
    for what, has in (("layers", _has_layers), ("shapes of inputs", _has_shapes)):
        lacking = [name for pool, name in sides if not has(pool)]
        if lacking:
            both = " and the ".join(lacking)
            yield f"The {both} {'have' if len(lacking) > 1 else 'has'} no {what}, so these are not compared."
    if not comparable.layers and _has_layers(base) and _has_layers(new):
        yield "The layers of the two sides have nothing in common, so layers are not compared."
    if nodes.prefix is not None:
        name = {"base": "base", "new": "new side"}[nodes.prefix[0]]
        yield f"The layers of the {name} stand below {nodes.prefix[1]}; they are matched without it."
    yield from _differences(base, new)
    yield from _pooling(sides)
    if min(base.side.count, new.side.count) < 2:
        yield (
            f"With one {'window' if windows else 'step'} on a side, nothing tells noise: changes that are small for their place "
            "may be chance."
        )


def _has_layers(pool: Pool) -> bool:
    return bool(pool.layers["part_of_model"].any())


def _has_shapes(pool: Pool) -> bool:
    return bool(pool.leaves["shapes"].is_not_null().any())


def _differences(base: Pool, new: Pool) -> Iterator[str]:
    """Devices, settings, versions, samples."""
    facts = base.side.facts, new.side.facts
    devices = [", ".join(dict.fromkeys(one.device for one in side if one.device)) for side in facts]
    if all(devices) and devices[0] != devices[1]:
        yield f"The base ran on {devices[0]}, the new side on {devices[1]}."
    models = [", ".join(dict.fromkeys(one.workload for one in side if one.workload)) for side in facts]
    if all(models) and models[0] != models[1]:
        yield f"The base ran {models[0]}, the new side {models[1]}."
    for key, name in _SETTINGS.items():
        values = [{one.settings[key] for one in side if key in one.settings} for side in facts]
        if all(len(each) == 1 for each in values) and values[0] != values[1]:
            told = ["not set" if each is None else each for (each,) in values]
            yield f"Setting: {name} {told[0]} in the base, {told[1]} in the new side."
    samples = [{one.samples_per_step for one in side} for side in facts]
    before, after = (each.pop() if len(each) == 1 else None for each in samples)
    if before and after and before != after:
        yield (
            f"A step has {count_of(before, 'sample')} in the base and {after:,} in the new side: "
            f"{format_ns(base.side.mean_ns / before)} and {format_ns(new.side.mean_ns / after)} per sample."
        )
    for key in _VERSIONS:
        found = [{one.versions[key] for one in side if key in one.versions} for side in facts]
        if all(len(each) == 1 for each in found) and found[0] != found[1]:
            yield f"{key} is {found[0].pop()} in the base, {found[1].pop()} in the new side."


def _pooling(sides: tuple[tuple[Pool, str], ...]) -> Iterator[str]:
    for pool, name in sides:
        processes = len(pool.side.facts)
        if processes > 1:
            yield f"The {name} is {processes} processes; every step of each weighs the same."
        if pool.side.unit > 1:
            yield f"Times of the {name} are means over the devices of each process."
