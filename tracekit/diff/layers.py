"""Which layer of the new side is which of the base: by path, below other wrappers, by type and order, by what it does.

A layer that is matched by order or content has to do the same work: at least half of what either runs (the operators; far from its old
place, or with another type, their shapes too) is what the other runs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import polars as pl

from tracekit.diff.model import LAYERS
from tracekit.facts.stack_names import WRAPPER_PART

__all__ = ["Nodes", "match_layers"]

How = Literal["path", "suffix", "order", "content"]

_MOST_PREFIX: Final = 3
_ALIKE: Final = 0.5
_MOST_TRIED: Final = 50


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """Both trees as one: `frame` has the columns `LAYERS`; `base` and `new` map paths to rows of it. `prefix` is what the paths of
    one side (`base` or `new`) begin with beyond those of the other.
    """

    frame: pl.DataFrame
    base: dict[str, int]
    new: dict[str, int]
    prefix: tuple[str, str] | None


class _Tree:
    """The layers of one side, by number."""

    def __init__(self, layers: pl.DataFrame, leaves: pl.DataFrame) -> None:
        self.path: list[str] = layers["path"].to_list()
        self.name: list[str] = layers["name"].to_list()
        self.type: list[str | None] = layers["type"].to_list()
        self.of_model: list[bool] = layers["part_of_model"].to_list()
        self.number = {path: i for i, path in enumerate(self.path)}
        self.parent = [-1 if path is None else self.number[path] for path in layers["parent"]]
        self.children: dict[int, list[int]] = defaultdict(list)
        for i, parent in enumerate(self.parent):
            self.children[parent].append(i)
        self._leaves = leaves
        self._work: dict[tuple[int, bool], set[tuple[str | None, str | None]]] = {}

    def ordered(self) -> Iterator[int]:
        """Each layer, after the one around it."""
        waiting = [-1]
        while waiting:
            found = self.children.get(waiting.pop(), [])
            yield from found
            waiting.extend(reversed(found))

    @cached_property
    def _own(self) -> dict[str, set[tuple[str | None, str | None]]]:
        """The operators of each layer, which most comparisons do not need."""
        works = self._leaves.filter(pl.col("kind") != "idle", pl.col("ns") > 0, pl.col("layer").is_not_null())
        does = works.group_by("layer").agg(pl.struct("operator", "shapes").unique())
        return {path: {(one["operator"], one["shapes"]) for one in work} for path, work in does.rows()}

    def work(self, at: int, *, shapes: bool) -> set[tuple[str | None, str | None]]:
        """The operators of a layer and those below it, with or without their shapes."""
        if (at, shapes) not in self._work:
            found, seen, waiting = set(), {at}, [at]
            while waiting:
                one = waiting.pop()
                found |= self._own.get(self.path[one], set())
                waiting.extend(set(self.children.get(one, [])) - seen)
                seen.update(waiting)
            self._work[at, shapes] = found if shapes else {(operator, None) for operator, _ in found}
        return self._work[at, shapes]


def match_layers(base: tuple[pl.DataFrame, pl.DataFrame], new: tuple[pl.DataFrame, pl.DataFrame]) -> Nodes:
    """The layers of two sides, each given as its layers and its leaves."""
    trees = _Tree(*base), _Tree(*new)
    prefix, pairs = _by_path(*trees)
    _by_order([(-1, -1), *((b, n) for b, (n, _) in pairs.items())], pairs, *trees)
    _by_content(pairs, *trees)
    return _joined(pairs, prefix, *trees)


_Pairs = dict[int, tuple[int, How]]


def _by_path(base: _Tree, new: _Tree) -> tuple[tuple[str, str] | None, _Pairs]:
    """Layers of the same path, but for wrappers, and for the first parts of all paths of one side."""
    plain = [_keys(tree, 0) for tree in (base, new)]
    best, prefix, found = -1, None, (plain[0], plain[1])
    fewer = min(len(each) for each in plain)
    for parts in range(_MOST_PREFIX + 1):
        if best == fewer:  # all layers are matched already
            break
        for at, tree in enumerate((base, new)):
            keys = _keys(tree, parts) if parts else plain[at]
            pair = (keys, plain[1]) if at == 0 else (plain[0], keys)
            common = sum(
                base.type[i] == new.type[pair[1][key]] for key, i in pair[0].items() if key in pair[1]
            )
            if common > best and (not parts or common >= _ALIKE * fewer):
                best, found = common, pair
                prefix = (("base", "new")[at], _prefix(tree, parts)) if parts else None
    pairs: _Pairs = {}
    for key, i in found[0].items():
        j = found[1].get(key, -1)
        if j >= 0 and (prefix is None or base.type[i] == new.type[j]):
            pairs[i] = j, "path" if base.path[i] == new.path[j] else "suffix"
    taken = {j for j, _ in pairs.values()}
    for i, path in enumerate(base.path):  # what stands for no layer has no prefix
        j = new.number.get(path, -1)
        if i not in pairs and j >= 0 and j not in taken:
            pairs[i] = j, "path"
    return prefix, pairs


def _keys(tree: _Tree, parts: int) -> dict[str, int]:
    """The layers of the model by their paths without wrappers and without the first parts."""
    keys: dict[str, int] = {}
    for i, path in enumerate(tree.path):
        if tree.of_model[i]:
            plain = re.sub(WRAPPER_PART, "", path).strip("./")
            pieces = re.split(r"[./]", plain, maxsplit=parts) if parts else [plain]
            if len(pieces) > parts and pieces[-1]:
                keys.setdefault(pieces[-1], i)
    return keys


def _prefix(tree: _Tree, parts: int) -> str:
    deep = next(path for path in tree.path if len(re.split(r"[./]", path)) > parts)
    return ".".join(re.split(r"[./]", deep)[:parts])


def _by_order(waiting: list[tuple[int, int]], pairs: _Pairs, base: _Tree, new: _Tree) -> None:
    """Below layers that are matched, those of one type in their order; then those that only changed their type."""
    taken = {j for j, _ in pairs.values()}
    while waiting:
        above, beside = waiting.pop()
        left: dict[str, list[int]] = defaultdict(list)
        for j in new.children.get(beside, []):
            if j not in taken and new.of_model[j]:
                left[_class(new, j)].append(j)
        for retyped in (False, True):
            others = [j for same in left.values() for j in same]
            for i in base.children.get(above, []):
                if i in pairs or not others or not base.of_model[i]:
                    continue
                same = others[:_MOST_TRIED] if retyped else left[_class(base, i)]
                same.sort(key=lambda j: new.name[j] != base.name[i])
                work = base.work(i, shapes=retyped)
                alike = (j for j in same if _alike(work, new.work(j, shapes=retyped)))
                found = next(alike, None) if work or not retyped else None
                if found is not None:
                    (others if retyped else same).remove(found)
                    pairs[i] = found, "order"
                    taken.add(found)
                    waiting.append((i, found))


def _class(tree: _Tree, at: int) -> str:
    """The type, empty where the profile does not tell."""
    return tree.type[at] or ""


def _alike(one: set[tuple[str | None, str | None]], other: set[tuple[str | None, str | None]]) -> bool:
    return len(one & other) >= _ALIKE * len(one | other)


def _by_content(pairs: _Pairs, base: _Tree, new: _Tree) -> None:
    """Layers of one type that do the same work at another place, outer ones first."""
    taken = {j for j, _ in pairs.values()}
    left: dict[str, list[int]] = defaultdict(list)
    for j in new.ordered():
        if j not in taken and new.of_model[j] and new.type[j] is not None:
            left[_class(new, j)].append(j)
    for i in base.ordered():
        if i in pairs or not base.of_model[i] or not left.get(_class(base, i)):
            continue
        work = base.work(i, shapes=True)
        same = [j for j in left[_class(base, i)] if j not in taken][:_MOST_TRIED]
        found = next((j for j in same if work and _alike(work, new.work(j, shapes=True))), None)
        if found is not None:
            pairs[i] = found, "content"
            _by_order([(i, found)], pairs, base, new)
            taken = {j for j, _ in pairs.values()}


def _joined(pairs: _Pairs, prefix: tuple[str, str] | None, base: _Tree, new: _Tree) -> Nodes:
    """One tree: that of the new side, with the removed layers where they were."""
    partner = {j: (i, how) for i, (j, how) in pairs.items()}
    removed: dict[int, list[int]] = defaultdict(
        list
    )  # by the parent's number on the new side, or −2 − that on the base
    for i, above in enumerate(base.parent):
        if i not in pairs:
            removed[pairs[above][0] if above in pairs else -2 - above if above >= 0 else -1].append(i)
    rows: list[tuple[object, ...]] = []
    of_base, of_new = dict[str, int](), dict[str, int]()
    waiting: list[tuple[int, int | None, int]] = [(-1, None, -1)]  # a layer, the row above it, its depth
    while waiting:
        at, row_above, depth = waiting.pop()
        row = None if at == -1 else len(rows)
        if at != -1:
            i, how = partner.get(at, (-1, None)) if at >= 0 else (-2 - at, None)
            old, path = base.path[i] if i >= 0 else None, new.path[at] if at >= 0 else None
            name, kind = (new.name[at], new.type[at]) if at >= 0 else (base.name[i], base.type[i])
            stays = how in ("path", "suffix") or (how is not None and _stays(i, at, partner, base, new))
            status = "removed" if at < 0 else "added" if i < 0 else "matched" if stays else "moved"
            rows.append((row, row_above, depth, name, path or old, old, path, kind, status, how))
            of_base.update({} if old is None else {old: len(rows) - 1})
            of_new.update({} if path is None else {path: len(rows) - 1})
        below = [*(new.children.get(at, []) if at >= -1 else []), *(-2 - i for i in removed.get(at, []))]
        waiting.extend((each, row, depth + 1) for each in reversed(below))
    return Nodes(pl.DataFrame(rows, schema=LAYERS, orient="row"), of_base, of_new, prefix)


def _stays(i: int, j: int, partner: dict[int, tuple[int, How]], base: _Tree, new: _Tree) -> bool:
    """Whether two layers have one name, in layers that are matched."""
    above = partner.get(new.parent[j], (-1, None))[0]
    return base.name[i] == new.name[j] and base.parent[i] == above
