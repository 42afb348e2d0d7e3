"""Which layers of both sides a gate on a layer is on, so that it is on the same part of the program.

A name means the layers of the base that have it, those of the new side that stand for them, and all below. Of the new side's own names only
those count that no layer of the base has: of numbered layers one more shifts the numbers. With `*` or `?` new layers that fit count too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator

import polars as pl

from tracekit.classes import dataclass

__all__ = ["MeantLayers", "meant_layers", "pattern_of"]


@dataclass(frozen=True, slots=True)
class MeantLayers:
    """What the name in a gate means."""

    paths: tuple[frozenset[str], frozenset[str]]
    """Of the layers of the base and of the new side."""
    renamed: str
    """In words what the layer is called on the other side, if it is one, and not called so there."""

    @property
    def lost(self) -> bool:
        """Whether the base has such layers, and no layer of the new side stands for one of them."""
        return bool(self.paths[0]) and not self.paths[1]


def pattern_of(name: str) -> str:
    """The regular expression of a name in a gate."""
    return re.escape(name).replace(r"\*", ".*").replace(r"\?", ".")


def meant_layers(
    name: str, layers: pl.DataFrame, known: tuple[Collection[str], Collection[str]]
) -> MeantLayers:
    """The layers that a name means. `layers` is that frame of `Diff.by`; `known` are the paths of all layers of both sides with work."""
    rows = layers.select("layer_id", "parent_layer_id", "base_path", "new_path").rows()
    fits = re.compile(rf"(?s:{pattern_of(name)}([./].*)?)").fullmatch
    told = [{*layers[column].drop_nulls()} for column in ("base_path", "new_path")]
    of_base = {*known[0], *told[0]}
    named, any_text = any(map(fits, of_base)), "*" in name or "?" in name

    def chosen(base: str | None, new: str | None) -> bool:
        if (base is not None and fits(base)) or new is None:
            return base is not None and fits(base) is not None
        free = base is None or new not in of_base if any_text else not named
        return free and fits(new) is not None

    meant, tops = set[int](), []
    for row, above, base, new in rows:  # a layer comes after the one around it
        if above in meant or chosen(base, new):
            meant.add(row)
            tops += [] if above in meant else [(base, new)]
    found = ({path for row in rows if row[0] in meant and (path := row[at]) is not None} for at in (2, 3))
    paths = [
        frozenset(own).union(_untold(own, {*paths} - of_side, fits))
        for own, paths, of_side in zip(found, known, told, strict=True)
    ]
    return MeantLayers((paths[0], paths[1]), _renamed(tops, fits))


def _untold(own: set[str], paths: set[str], fits: Callable[[str], object]) -> Iterator[str]:
    """Of paths that are not compared by layer those that fit, and those below others."""
    for path in paths:
        above = (path[: at.start()] for at in re.finditer(r"[./]", path))
        if fits(path) or any(each in own for each in above):
            yield path


def _renamed(tops: list[tuple[str | None, str | None]], fits: Callable[[str], object]) -> str:
    base, new = tops[0] if len(tops) == 1 else (None, None)
    if base is None or new is None or base == new or (fits(base) and fits(new)):
        return ""
    return f"{new} on the new side" if fits(base) else f"{base} in the base"
