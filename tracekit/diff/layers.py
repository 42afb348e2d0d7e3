"""Which layer of the new side is which of the base: by path, below other wrappers, by type and order, by what it does.

Paths count only as far as they are names: of layers that are only numbered, one more shifts the numbers of the others (`siblings`).
A layer that is matched by order or content has to do the same work: at least half of what either runs (the operators; far from its old
place, or with another type, their shapes too) is what the other runs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from typing import Final, Literal, TypeAlias

import polars as pl

from tracekit.classes import dataclass
from tracekit.diff.model import LAYERS
from tracekit.diff.siblings import counts, in_order
from tracekit.facts.stack_names import WRAPPER_PART

__all__ = ["Nodes", "match_layers"]

_WRAPPER: Final = rf"{WRAPPER_PART}|\b(OptimizedModule|(Distributed|FullySharded|)DataParallel)_\d+\b\.?"

How = Literal["path", "suffix", "order", "content"]
_Work: TypeAlias = set[tuple[str | None, str | None]]

_MOST_PREFIX: Final = 3
_ALIKE: Final = 0.5
_MOST_TRIED: Final = 50
_MOST_PAIRS: Final = 40_000
"""Of numbered layers; where more would have to be compared, paths count."""
_UNLIKE_WORK: Final = 0.2
"""So much less alike are layers of one type whose operators, or whose operators' shapes, have nothing in common."""
_OTHER_NAME: Final = 0.05
"""So much less those whose numbers differ: a small change of the work does not make a layer another one."""


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """Both trees as one: `frame` has the columns `LAYERS`; `base` and `new` map paths to rows of it. `prefix` is what the paths of
    one side (`base` or `new`) begin with beyond those of the other. `whole` are the paths of layers that show no layers inside on
    this side; those of the other side are mapped to them.
    """

    frame: pl.DataFrame
    base: dict[str, int]
    new: dict[str, int]
    prefix: tuple[str, str] | None
    whole: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    @property
    def whole_rows(self) -> list[int]:
        """The rows of the layers that are compared as a whole."""
        return [numbers[path] for numbers, paths in zip((self.base, self.new), self.whole, strict=True) for path in paths]  # fmt: skip


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
        self._work: dict[tuple[int, bool], _Work] = {}

    def ordered(self) -> Iterator[int]:
        """Each layer, after the one around it."""
        waiting = [-1]
        while waiting:
            found = self.children.get(waiting.pop(), [])
            yield from found
            waiting.extend(reversed(found))

    def numbered(self, above: int) -> list[int]:
        """The layers below one, or below a wrapper in it, whose names are only numbers."""
        below = self.children.get(above, [])
        seen = [one for i in below for one in (self.children.get(i, []) if re.fullmatch(_WRAPPER, self.name[i]) else [i])]  # fmt: skip
        return [i for i in seen if counts(self.name[i], self.type[i])]

    def around(self, at: int) -> Iterator[int]:
        """The layers around one, the innermost first."""
        while (at := self.parent[at]) >= 0:
            yield at

    def within(self, row: list[int]) -> Iterator[int]:
        """Some layers and all below them."""
        waiting = [*row]
        while waiting:
            yield (at := waiting.pop())
            waiting.extend(self.children.get(at, []))

    @cached_property
    def _own(self) -> dict[str, _Work]:
        """The operators of each layer, which most comparisons do not need."""
        works = self._leaves.filter(pl.col("kind") != "idle", pl.col("ns") > 0, pl.col("layer").is_not_null())
        does = works.group_by("layer").agg(pl.struct("operator", "shapes").unique())
        return {path: {(one["operator"], one["shapes"]) for one in work} for path, work in does.rows()}

    def own(self, at: int) -> _Work:
        """The operators of a layer without those below it, without their shapes."""
        return {(operator, None) for operator, _ in self._own.get(self.path[at], set())}

    def work(self, at: int, *, shapes: bool) -> _Work:
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
    _renumbered(pairs, *trees)
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
            plain = re.sub(_WRAPPER, "", path).strip("./")
            pieces = re.split(r"[./]", plain, maxsplit=parts) if parts else [plain]
            if len(pieces) > parts and pieces[-1]:
                keys.setdefault(pieces[-1], i)
    return keys


def _prefix(tree: _Tree, parts: int) -> str:
    deep = next(path for path in tree.path if len(re.split(r"[./]", path)) > parts)
    return ".".join(re.split(r"[./]", deep)[:parts])


def _renumbered(pairs: _Pairs, base: _Tree, new: _Tree) -> None:
    """Match numbered layers anew where the rows of both sides, below layers that are matched, differ in names or types."""
    waiting, likeness = [(-1, -1, False)], _Likeness(base, new)
    back = {j: i for i, (j, _) in pairs.items()}
    while waiting:
        above, beside, anew = waiting.pop()
        rows = base.numbered(above), new.numbered(beside)
        told = [[(tree.name[i], tree.type[i]) for i in row] for tree, row in zip((base, new), rows, strict=True)]  # fmt: skip
        made = dict[int, int]()
        if all(rows) and (anew or told[0] != told[1]):
            found = in_order(*rows, likeness, _MOST_PAIRS - likeness.tried)
            if found is not None:
                made |= found
                beyond = [i for j in new.within(rows[1]) if pairs.get(i := back.get(j, -1), (-1,))[0] == j]
                for i in [*base.within(rows[0]), *beyond]:
                    pairs.pop(i, None)
        if anew:
            made |= _named_alike(above, beside, base, new)
        pairs |= {i: (j, "path" if base.path[i] == new.path[j] else "order") for i, j in made.items()}
        back |= {j: i for i, j in made.items()}
        below = [i for i in base.children.get(above, []) if i in pairs]
        waiting += [(i, pairs[i][0], i in made) for i in below]


def _named_alike(above: int, beside: int, base: _Tree, new: _Tree) -> dict[int, int]:
    """The layers below two that have names, and the same on both sides."""
    named = {new.name[j]: j for j in new.children.get(beside, [])}
    names = [(i, named.get(base.name[i], -1)) for i in base.children.get(above, []) if not counts(base.name[i], base.type[i])]  # fmt: skip
    return {i: j for i, j in names if j >= 0 and new.type[j] == base.type[i]}


class _Likeness:
    """How alike two layers are: 0 of other types, 1 of one type, name and work, else between. Many layers do the same work, which is
    compared once.
    """

    def __init__(self, base: _Tree, new: _Tree) -> None:
        self._trees = base, new
        self._sorts: tuple[dict[frozenset[object], int], ...] = ({}, {})
        self._known: dict[tuple[int, int], float] = {}
        self._sort_of: tuple[dict[int, int], ...] = ({}, {})

    @property
    def tried(self) -> int:
        """How many pairs of works were compared."""
        return len(self._known)

    def __call__(self, i: int, j: int) -> float:
        base, new = self._trees
        if base.type[i] != new.type[j] or not base.of_model[i] or not new.of_model[j]:
            return 0.0
        key = self._sort(0, i), self._sort(1, j)
        if key not in self._known:
            shares = [_share(base.work(i, shapes=told), new.work(j, shapes=told)) for told in (False, True)]
            self._known[key] = _UNLIKE_WORK * (2 - sum(shares))
        return 1 - self._known[key] - (0 if base.name[i] == new.name[j] else _OTHER_NAME)

    def _sort(self, side: int, at: int) -> int:
        """The number of the work that a layer does."""
        if at not in self._sort_of[side]:
            work = frozenset(self._trees[side].work(at, shapes=True))
            self._sort_of[side][at] = self._sorts[side].setdefault(work, len(self._sorts[side]))
        return self._sort_of[side][at]


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
                alike = (
                    j
                    for j in same
                    if _alike(work, new.work(j, shapes=retyped)) and not _wraps(base, i, new, j)
                )
                found = next(alike, None) if work or not retyped else None
                if found is not None:
                    (others if retyped else same).remove(found)
                    pairs[i] = found, "order"
                    taken.add(found)
                    waiting.append((i, found))


def _wraps(base: _Tree, i: int, new: _Tree, j: int) -> bool:
    """Whether one of two layers has what the other is called below it: then the other moved into it or out of it, and is not replaced by it."""
    mine, other = _called(base, i), _called(new, j)
    if mine == other:
        return False
    inside = (_called(tree, each) == wanted for tree, at, wanted in ((base, i, other), (new, j, mine)) if wanted for each in tree.within(tree.children.get(at, [])))  # fmt: skip
    return any(inside)


def _class(tree: _Tree, at: int) -> str:
    """The type, empty where the profile does not tell."""
    return tree.type[at] or ""


def _called(tree: _Tree, at: int) -> str:
    """The type, or where the profile does not tell the name, if it is one; else empty."""
    kind, name = tree.type[at], tree.name[at]
    return kind or ("" if counts(name, None) else name)


def _alike(one: _Work, other: _Work) -> bool:
    return len(one & other) >= _ALIKE * len(one | other)


def _share(one: _Work, other: _Work) -> float:
    return len(one & other) / len(one | other) if one or other else 1.0


def _by_content(pairs: _Pairs, base: _Tree, new: _Tree) -> None:
    """Layers of one type, or without one of one name, that do the same work at another place; outer ones first, and the nearest of several."""
    taken = {j for j, _ in pairs.values()}
    left: dict[tuple[bool, str], list[int]] = defaultdict(list)
    for j in new.ordered():
        if j not in taken and new.of_model[j] and _called(new, j):
            left[new.type[j] is None, _called(new, j)].append(j)
    for i in base.ordered():
        if (
            i in pairs
            or not base.of_model[i]
            or not left.get(key := (base.type[i] is None, _called(base, i)))
        ):
            continue
        work = base.work(i, shapes=True)
        same = [j for j in left[key] if j not in taken][:_MOST_TRIED]
        around = {pairs[above][0] for above in base.around(i) if above in pairs}
        same.sort(key=lambda j: -len(around.intersection(new.around(j))))
        found = next((j for j in same if work and _alike(work, new.work(j, shapes=True))), None)
        if found is not None:
            pairs[i] = found, "content"
            _by_order([(i, found)], pairs, base, new)
            taken = {j for j, _ in pairs.values()}


def _whole(pairs: _Pairs, base: _Tree, new: _Tree) -> tuple[dict[int, int], dict[int, int]]:
    """Of both sides, the layers whose work the other side shows in a layer around them, as compiled code does, and that layer."""
    inside: tuple[dict[int, int], dict[int, int]] = {}, {}
    matched = {*pairs}, {j for j, _ in pairs.values()}
    for i, (j, _) in pairs.items():
        if base.type[i] != new.type[j]:  # a module that has no layers took the place of another one
            continue
        for side, tree, at, other, there in ((0, base, i, new, j), (1, new, j, base, i)):
            layers = {*tree.within(tree.children.get(at, []))}
            if not layers or other.children.get(there) or layers & matched[side] or at in inside[side]:
                continue
            below = set().union(*(tree.work(one, shapes=False) for one in layers))
            work = other.work(there, shapes=False)
            # Of fused code no operator is known below, but others run in the layer than if those below were just gone.
            if work - tree.own(at) or any(operator is not None for operator, _ in work & below):
                inside[side].update(dict.fromkeys(layers, at))
    return inside


def _joined(pairs: _Pairs, prefix: tuple[str, str] | None, base: _Tree, new: _Tree) -> Nodes:
    """One tree: that of the new side, with the removed layers where they were."""
    partner = {j: (i, how) for i, (j, how) in pairs.items()}
    inside = _whole(pairs, base, new)
    removed: dict[int, list[int]] = defaultdict(
        list
    )  # by the parent's number on the new side, or −2 − that on the base
    for i, above in enumerate(base.parent):
        if i not in pairs and i not in inside[0]:
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
        own = [j for j in new.children.get(at, []) if j not in inside[1]] if at >= -1 else []
        below = [*own, *(-2 - i for i in removed.get(at, []))]
        waiting.extend((each, row, depth + 1) for each in reversed(below))
    for tree, rows_of, outer in ((base, of_base, inside[0]), (new, of_new, inside[1])):
        rows_of.update({tree.path[at]: rows_of[tree.path[around]] for at, around in outer.items()})
    whole = (
        tuple(dict.fromkeys(base.path[partner[j][0]] for j in inside[1].values())),
        tuple(dict.fromkeys(new.path[pairs[i][0]] for i in inside[0].values())),
    )
    return Nodes(pl.DataFrame(rows, schema=LAYERS, orient="row"), of_base, of_new, prefix, whole)


def _stays(i: int, j: int, partner: dict[int, tuple[int, How]], base: _Tree, new: _Tree) -> bool:
    """Whether two layers have one name, or only numbers as names, in layers that are matched."""
    above = partner.get(new.parent[j], (-1, None))[0]
    numbers = counts(base.name[i], base.type[i]) and counts(new.name[j], new.type[j])
    return (base.name[i] == new.name[j] or numbers) and base.parent[i] == above
