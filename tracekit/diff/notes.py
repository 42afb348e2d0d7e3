"""What two sides differ in, what of them can be compared and what not, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final, NamedTuple, TypeAlias

import polars as pl

from tracekit.analyses.completeness import BREAKS
from tracekit.analyses.rules.rule import WARNING_SHARE
from tracekit.diff.layers import Nodes
from tracekit.diff.matching import Comparable
from tracekit.diff.pool import Pool
from tracekit.diff.recorded import Recorded
from tracekit.digest import Digest
from tracekit.facts.units import count_of, format_ns, format_share, listed
from tracekit.groups import any_known
from tracekit.health import MEANINGS

__all__ = ["NO_STALL", "Stall", "notes_of", "stalled"]

Sides: TypeAlias = tuple[tuple[Pool, str], tuple[Pool, str]]
"""Both, with what they are called."""

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
_VERSIONS: Final = {name: name for name in ("torch", "cuda", "cudnn", "hip", "transformers")}
_HARDLY: Final = 0.001
_DISTORTED: Final = 0.05
"""By so much the change of the recorded steps may differ from that without the profiler before a note says so."""
UNLIKE: Final = 0.6
"""If less of the work has a counterpart, in the mean over both sides, they are called different programs."""


def notes_of(
    base: Pool,
    new: Pool,
    comparable: Comparable,
    has: Recorded,
    nodes: Nodes,
    matched: pl.DataFrame,
    *,
    stood: str,
    windows: bool,
) -> Iterator[str]:
    """The notes, the most important first. `stood` is what `stalled` says."""
    sides = (base, "base"), (new, "new side")
    per = "window" if windows else "step"
    damaged: dict[str, list[str]] = {}
    for pool, name in sides:
        damage = dict.fromkeys(kind for one in pool.side.facts for kind in one.damage)
        meant = "; ".join(MEANINGS[kind][1] if kind in MEANINGS else kind for kind in damage)
        damaged.setdefault(meant, []).append(name)
    for meant, names in damaged.items():
        cut = any(_is_cut(pool) for pool, name in sides if name in names)
        left_out = " The step that its end cuts does not count." if cut else ""
        if meant:
            yield f"Figures of the {' and the '.join(names)} may be wrong: {meant}.{left_out}"
    if idle := [name for pool, name in sides if not _works(pool)]:
        yield f"The {' and the '.join(idle)} {'have' if len(idle) > 1 else 'has'} no work, so nothing else can be compared."
        return
    yield from _of_stalls(stood)
    if not has.work:
        (lost,) = (name for (_, name), there in zip(sides, has.device, strict=True) if not there)
        yield f"What a device did is missing from the {lost}, so work cannot be compared, only the times of {per}s."
    else:
        whole, same = any(nodes.whole), has.same_frames
        yield from _unlike(base, new, comparable, matched, whole=whole, same_frames=same)
    yield from _of_steps(sides, windows=windows)
    if has.work:
        yield from _of_work(sides, comparable, has)
        yield from _of_layers(nodes)
    yield from _differences(base, new, windows=windows)
    if not windows:
        yield from _recorded(base, new)
    yield from _pooling(sides, per)
    if min(base.side.count, new.side.count) < 2:
        yield (f"With one {per} on a side nothing shows how much times vary, so small changes may be chance.")


def _of_work(sides: Sides, comparable: Comparable, has: Recorded) -> Iterator[str]:
    """By what work is compared, and what a side does not tell of it."""
    if not comparable.kinds:
        common = "layer, operator and phase" if comparable.layers else "operator and phase"
        yield (
            f"One side ran on a device, the other on processors: their work is compared by {common}, not by kernel, and waiting "
            "has other causes."
        )
    elif not comparable.names:
        operators = all(
            pool.leaves.filter(pl.col("kind") == "compute")["operator"].count() for pool, _ in sides
        )
        told = {"layer": comparable.layers, "operator": operators, "shapes": operators and comparable.shapes, "category": not operators}  # fmt: skip
        common = listed([name for name, there in told.items() if there])
        devices = [{one.device for one in pool.side.facts} for pool, _ in sides]
        what = "operators" if sides[0][0].side.facts[0].on_cpu else "kernels"
        other = "side" if "" in devices[0] | devices[1] else "processor" if what == "operators" else "device"
        yield f"Most {what} have other names on the other {other}, so they are compared by {common}."
    for what, tells in (("layers", _has_layers), ("shapes of inputs", _has_shapes)):
        lacking = [name for pool, name in sides if not tells(pool)]
        if lacking:
            both = " and the ".join(lacking)
            yield f"The {both} {'have' if len(lacking) > 1 else 'has'} no {what}, so these are not compared."
    if not has.same_frames:
        (lacks,) = (name for (_, name), there in zip(sides, has.frames, strict=True) if not there)
        both_have = not comparable.layers and all(_has_layers(pool) for pool, _ in sides)
        also = "layers are not compared, and " if both_have else ""
        yield f"The {lacks} has no Python frames, so {also}the host's code outside operators is compared as one."


def _of_layers(nodes: Nodes) -> Iterator[str]:
    """How layers are matched where not all is by their paths."""
    if nodes.prefix is not None:
        name = {"base": "base", "new": "new side"}[nodes.prefix[0]]
        yield f"The layers of the {name} stand below {nodes.prefix[1]}; they are matched without it."
    yield from _wholes(nodes)


class Stall(NamedTuple):
    """Which sides stalled, in words (empty for none), and for how many ns of a step, on the side that did longer."""

    told: str = ""
    ns: float = 0.0

    def hides(self, base: float, new: float) -> bool:
        """Whether what made a side stall may have made this change of a time, in ns: it slows the rest of a step too, by about as much at most."""
        return bool(self.told) and abs(new - base) < _HIDES * self.ns


_HIDES: Final = 2
NO_STALL: Final = Stall()


def stalled(base: Sequence[Digest], new: Sequence[Digest]) -> Stall:
    """The sides that stalled for so long that it matters.

    >>> stalled([], [])
    Stall(told='', ns=0.0)
    """
    told, longest = list[str](), 0.0
    for side, name in ((base, "the base"), (new, "the new side")):
        stood = sum(one.facts.stalled_ns for one in side)
        times = [int(one.steps["time_ns"].sum()) for one in side]
        if sum(times) and stood >= WARNING_SHARE * sum(times):
            share = format_share(min(stood / sum(times), 1))
            longest = max(longest, stood / sum(one.steps.height for one in side))
            told.append(f"{name} for {share}" if told else f"{name} stalled for {share} of the time")
    return Stall(" and ".join(told), longest)


def _of_stalls(stood: str) -> Iterator[str]:
    if stood:
        its = "their" if " and " in stood else "its"
        yield f"{stood[0].upper()}{stood[1:]}, probably because something else was using the cores. So {its} times say little."


def _unlike(
    base: Pool, new: Pool, comparable: Comparable, matched: pl.DataFrame, *, whole: bool, same_frames: bool
) -> Iterator[str]:
    """Whether the sides look like different programs: by their layers, else by how much of their work has a counterpart. `whole`: layers
    are compared as such, so other work in one is how it is compiled. `same_frames`: layers of one program are the same on both sides.
    """
    alone = matched.filter(pl.col("how").is_in(["none"] if whole else ["none", "layer"]))
    shares = [1 - float(alone[f"{side}_share"].sum()) for side in ("base", "new")]
    programs = [{one.workload for one in side.side.facts} for side in (base, new)]
    same = programs[0] == programs[1] != {""}
    if not comparable.layers and same_frames and _has_layers(base) and _has_layers(new):
        looks = "These look like different models: the" if not same else "The"
        yield f"{looks} layers of the two sides have nothing in common, so layers are not compared."
    elif sum(shares) / 2 < UNLIKE and not same:
        some = (
            f"only {format_share(shares[0])} of the work of the base, and {format_share(shares[1])} of that of the new side, has"
            if max(shares) >= _HARDLY
            else "hardly any work of either has"
            if any(shares)
            else "no work of either has"
        )
        yield f"These look like different programs: {some} a counterpart on the other side. So a list of changes says little."


def _of_steps(sides: Sides, *, windows: bool) -> Iterator[str]:
    """Which side has no steps, or none that the trace marks: from what they are inferred."""
    if windows:
        without = " and the ".join(name for pool, name in sides if not pool.side.has_steps)
        yield f"The {without} {'have' if ' and ' in without else 'has'} no steps, so whole windows are compared."
        return
    sources = [dict.fromkeys(filter(None, (one.steps_inferred_from for one in pool.side.facts))) for pool, _ in sides]  # fmt: skip
    inferred = {name: own for own, (_, name) in zip(sources, sides, strict=True) if own}
    if sources[0] == sources[1]:
        inferred = {" and the ".join(inferred): sources[0]} if inferred else {}
    for name, own in inferred.items():
        both = " and " in name
        what = listed([f"a {each}" if each.startswith("period of ") else f"the range {each}" for each in own])
        elsewhere = "" if both else ", so they may begin elsewhere in the loop than those of the other side"
        yield f"Steps of the {name} are not marked but inferred from {what}{elsewhere}."


def _is_cut(pool: Pool) -> bool:
    """Whether a file of the side ends too early, and has steps before its last one."""
    ends = any(set(BREAKS).intersection(one.damage) for one in pool.side.facts)
    return ends and pool.side.has_steps and pool.side.steps.height > 1


def _works(pool: Pool) -> bool:
    return bool((pool.leaves["kind"] != "idle").any())


def _has_layers(pool: Pool) -> bool:
    return bool(pool.layers["part_of_model"].any())


def _has_shapes(pool: Pool) -> bool:
    return any_known(pool.leaves["shapes"])


def _wholes(nodes: Nodes) -> Iterator[str]:
    """Which layers are compared as a whole, since one side shows none in them."""
    for whole, name in zip(nodes.whole, ("base", "new side"), strict=True):
        if whole:
            what, are = (f"layer {whole[0]}", "it is") if len(whole) == 1 else (f"{len(whole)} layers", "they are")  # fmt: skip
            yield f"The {name} shows no layers inside {what}, as compiled code does not, so {are} compared as a whole."


def _differences(base: Pool, new: Pool, *, windows: bool) -> Iterator[str]:
    """Devices, settings, versions, samples."""
    facts = base.side.facts, new.side.facts
    devices = [", ".join(dict.fromkeys(one.device for one in side if one.device)) for side in facts]
    if all(devices) and devices[0] != devices[1]:
        yield f"The base ran on {devices[0]}, the new side on {devices[1]}."
    models = [", ".join(dict.fromkeys(one.workload for one in side if one.workload)) for side in facts]
    if all(models) and models[0] != models[1]:
        yield f"The base ran {models[0]}, the new side {models[1]}."
    for what, names, of in (("Settings", _SETTINGS, "settings"), ("Versions", _VERSIONS, "versions")):
        told = []
        for key, name in names.items():
            values = [{of_run[key] for one in side if key in (of_run := getattr(one, of))} for side in facts]
            if all(len(each) == 1 for each in values) and values[0] != values[1]:
                told.append(f"{name} {' → '.join('not set' if each is None else str(each) for (each,) in values)}")  # fmt: skip
        if told:
            yield f"{what} differ: {', '.join(told)}."
    if windows:
        return
    samples = [{one.samples_per_step for one in side} for side in facts]
    before, after = (each.pop() if len(each) == 1 else None for each in samples)
    if before and after and before != after:
        yield (
            f"A step has {count_of(before, 'sample')} in the base and {after:,} on the new side: "
            f"{format_ns(base.side.mean_ns / before)} and {format_ns(new.side.mean_ns / after)} per sample."
        )


def _recorded(base: Pool, new: Pool) -> Iterator[str]:
    """How long steps take without the profiler, if it changes by how much the sides differ."""
    plain = [[ns for one in pool.side.facts for ns in one.undisturbed_ns] for pool in (base, new)]
    if not all(plain):
        return
    before, after = (median(times) for times in plain)
    if not before or not new.side.mean_ns:
        return
    ratio = after / before
    if abs(ratio * base.side.mean_ns / new.side.mean_ns - 1) > _DISTORTED:
        yield (
            f"Without the profiler a step takes {format_ns(after)} instead of {format_ns(before)} at the median, {ratio:.2f} times as "
            "long. The comparison is of the recorded steps, which recording makes longer."
        )


def _pooling(sides: Sides, per: str) -> Iterator[str]:
    for pool, name in sides:
        processes = len(pool.side.facts)
        if processes > 1:
            yield f"The {name} pools {processes} traces; each weighs the same, however many {per}s it has."
        if pool.side.unit > 1:
            yield f"Times of the {name} are means over the devices of each process."
