"""Two sides in figures: boxes as wide as the longer of their two times, in the colour of the change, and the times of steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from typing import Any, Final

import polars as pl

from tracekit.classes import dataclass
from tracekit.diff.compared import Compared
from tracekit.diff.model import Diff
from tracekit.facts.idle_names import cause_name
from tracekit.facts.units import format_change, format_ns
from tracekit.names import shorten_name
from tracekit.report.diff_tables import NOTHING
from tracekit.report.model import Figure

__all__ = ["Branch", "diff_figures", "grown"]

_LAYERS: Final = 3
"""Fewer layers with work make no figure: then kernels do."""
_NAME_WIDTH: Final = 60
_DEEPEST: Final = 24
"""Levels of a tree; what lies deeper is a part of the last one."""
_LEAST_BOX: Final = 0.0005
_LITTLE: Final = 0.03
_MUCH: Final = 0.15
"""By how much the times of a box differ, relative to the longer one, that it is coloured, and coloured strongly."""
_KINDS: Final = {
    "slower": "slower by more than 15 %",
    "a little slower": "slower by 3 to 15 %",
    "in both": "about the same",
    "a little faster": "faster by 3 to 15 %",
    "faster": "faster by more than 15 %",
}


def diff_figures(found: Compared) -> Iterator[Figure]:
    """The figures `layers`, which are kernels where there are no layers, and `step_times`."""
    layers = found.diff.by["layer"].filter(pl.col("status") != "none")
    if layers.height >= _LAYERS:
        tree = grown(_layer_leaves(found.diff.by["layer"]))
        title = "Layers of both sides"
    else:
        tree = grown(_kernel_leaves(found.diff))
        title = "Kernels and idle time of both sides"
    drawn = _icicle(tree, title)
    if drawn is not None:
        yield drawn
    sides: list[tuple[str, list[int]]] = [
        (name, [int(ns) for run in runs for ns in run])
        for name, runs in zip(("base", "new"), found.runs, strict=True)
    ]
    series = [
        {"label": name, "x": list(range(len(times) + 1)), "y": [*times, times[-1]]}
        for name, times in sides
        if times
    ]
    if len(series) > 1 and any(len(times) > 1 for _, times in sides):
        per = found.diff.per
        data = {"unit": "ns", "ends": [f"first {per}", f"last {per}"], "series": series}
        yield Figure("step_times", f"Times of the {per}s in order", "line", data)


def _kernel_leaves(diff: Diff) -> Iterator[tuple[tuple[str, ...], float, float]]:
    """The time of each kernel with its kind, and of idle time that of each cause."""
    work = diff.by["name"].filter(pl.col("kind") != "idle", pl.col("name").is_not_null())
    for kind, name, base, new in work[["kind", "name", "base_ns", "new_ns"]].rows():
        yield (kind, shorten_name(name, _NAME_WIDTH)), base, new
    for cause, base, new in diff.by["idle"][["category", "base_ns", "new_ns"]].rows():
        yield ("idle", cause_name(cause)), base, new


def _layer_leaves(layers: pl.DataFrame) -> Iterator[tuple[tuple[str, ...], float, float]]:
    """The own time of each layer with the names from the top down to its own."""
    paths: dict[int, tuple[str, ...]] = {}
    columns = (
        "layer_id",
        "parent_layer_id",
        pl.col("name").fill_null(NOTHING["path"]),
        "base_ns",
        "new_ns",
    )
    for number, parent, name, base, new in layers.select(*columns).rows():
        paths[number] = (*paths.get(parent, ()), name)
        yield paths[number], base, new


@dataclass(slots=True)
class Branch:
    """A node: its time of a step in both runs in ns, with all below it; `width` sums the longer time of each leaf."""

    name: str
    base: float = 0
    new: float = 0
    width: float = 0
    below: dict[str, Branch] = field(default_factory=dict)


def grown(leaves: Iterable[tuple[Sequence[str], float, float]]) -> Branch:
    """The tree of leaves, each given by the names from the top down to its own and its time in base and new.

    >>> tree = grown([(("a", "b"), 1, 3), (("a",), 2, 1)])
    >>> tree.below["a"].new, tree.width, list(tree.below["a"].below)
    (4, 5, ['b'])
    """
    root = Branch("")
    for names, base, new in leaves:
        path = [root]
        for name in names[:_DEEPEST]:
            path.append(path[-1].below.setdefault(name, Branch(name)))
        for node in path:
            node.base += base
            node.new += new
            node.width += max(base, new)
    return root


def _icicle(tree: Branch, title: str) -> Figure | None:
    """The figure of a tree, whose colours say what became slower or faster; None without time."""
    nodes: list[dict[str, Any]] = [
        {
            "label": node.name,
            "kind": _kind(node),
            "depth": depth,
            "start": round(start),
            "value": round(node.width),
            "hint": f"{path}: {format_ns(node.base)} → {format_ns(node.new)} ({format_change(node.new - node.base)})",
        }
        for node, depth, path, start in _met(tree)
        if node.width >= _LEAST_BOX * tree.width
    ]
    data = {
        "unit": "ns",
        "total": sum(node["value"] for node in nodes if node["depth"] == 0),
        "nodes": nodes,
        "kinds": _KINDS,
    }
    return Figure("layers", title, "icicle", data) if data["total"] else None


def _kind(node: Branch) -> str:
    change = (node.new - node.base) / (max(node.base, node.new) or 1)
    little, kind = ("a little ", abs(change) > _LITTLE) if abs(change) <= _MUCH else ("", True)
    return f"{little}{'slower' if change > 0 else 'faster'}" if kind else "in both"


def _met(tree: Branch) -> Iterator[tuple[Branch, int, str, float]]:
    """Each node below the root before those below it: with its depth, its path, and where it begins beside the others."""
    waiting = [(tree, -1, "", 0.0)]
    while waiting:
        node, depth, path, start = waiting.pop()
        if depth >= 0:
            yield node, depth, path, start
        ahead = []
        for one in node.below.values():
            ahead.append((one, depth + 1, f"{path}.{one.name}" if path else one.name, start))
            start += one.width
        waiting += reversed(ahead)
