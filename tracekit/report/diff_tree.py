"""Two runs as one tree: the layers with their time in both, and the same with operators below them as a figure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tracekit.facts.units import format_change, format_ns
from tracekit.report.model import Figure

__all__ = ["DEEPEST", "Branch", "grown", "icicle", "joined", "layer_rows"]

DEEPEST: Final = 24
"""Levels of a tree; what lies deeper stands on the last one."""
_LEAST_BOX: Final = 0.0005
_LITTLE: Final = 0.03
_MUCH: Final = 0.15
"""By how much the times of a box differ, relative to the longer one, that it is coloured, and coloured strongly."""
_KINDS: Final = {
    "slower": f"slower by more than {100 * _MUCH:.0f} %",
    "a little slower": f"by more than {100 * _LITTLE:.0f} %",
    "in both": "about the same",
    "a little faster": f"faster by more than {100 * _LITTLE:.0f} %",
    "faster": f"by more than {100 * _MUCH:.0f} %",
}


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
        names = (*names[: DEEPEST - 1], ".".join(names[DEEPEST - 1 :])) if len(names) > DEEPEST else names
        path = [root]
        for name in names:
            path.append(path[-1].below.setdefault(name, Branch(name)))
        for node in path:
            node.base += base
            node.new += new
            node.width += max(base, new)
    return root


def joined(tree: Branch) -> Branch:
    """The tree in which a node that only leads to another is one with it, widest first.

    >>> list(joined(grown([(("a", "b", "c"), 1, 3), (("a", "b", "d"), 1, 1)])).below)
    ['a.b']
    """
    while tree.name and len(tree.below) == 1:
        (only,) = tree.below.values()
        if only.width != tree.width:
            break
        tree = replace(only, name=f"{tree.name}.{only.name}")
    below = sorted(map(joined, tree.below.values()), key=lambda one: (-one.width, one.name))
    return replace(tree, below={one.name: one for one in below})


def layer_rows(tree: Branch) -> list[dict[str, Any]]:
    """The nodes below the root as rows of a tree of layers."""
    rows: list[dict[str, Any]] = []
    numbers = {0: -1}
    for node, depth, path, _ in _met(tree):
        numbers[depth + 1] = len(rows)
        rows.append(
            {
                "layer_id": len(rows),
                "parent_layer_id": numbers[depth] if depth else None,
                "name": node.name,
                "path": path,
                "depth": depth,
                "base_ns": node.base,
                "new_ns": node.new,
                "change_ns": node.new - node.base,
            }
        )
    return rows


def icicle(tree: Branch, title: str) -> Figure | None:
    """The figure of a tree, whose colours say what became slower or faster; None without time."""
    nodes = [
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
    data = {"unit": "ns", "total": round(tree.width), "nodes": nodes, "kinds": _KINDS}
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
