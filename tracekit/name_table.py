"""Which rows of a column of names bear one that a pattern matches: each distinct name is looked at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Final, NamedTuple

import numpy as np
import polars as pl

from tracekit.groups import at_rows, numbered
from tracekit.spans import BoolArray, narrow

__all__ = ["NameTable", "any_matching"]

_MOST_REMEMBERED: Final = 4_096
_remembered: dict[str, dict[str | None, bool]] = {}
"""For each pattern, the names that were looked at before in this process: the ranks of a job have the same ones, and Polars, which
keeps 32 compiled patterns, takes longer to compile one than to look at the names of a small trace."""


def _which_match(texts: list[str | None], pattern: str) -> list[bool]:
    """For each of these texts whether the pattern matches it."""
    if len(texts) > _MOST_REMEMBERED:
        return pl.Series(texts, dtype=pl.String).str.contains(pattern).fill_null(value=False).to_list()
    known = _remembered.get(pattern, {None: False})
    if len(known) + len(texts) > _MOST_REMEMBERED:
        known = {None: False}
    if new := [text for text in texts if text is not None and text not in known]:
        plain = _plain(pattern)
        known.update((text, text in plain.exact) for text in new)
        if begun := [text for text in new if text.startswith(plain.begins)]:
            found = [True] * len(begun)
            if not plain.suffice:
                found = pl.Series(begun, dtype=pl.String).str.contains(pattern).to_list()
            known.update(zip(begun, found, strict=True))
        _remembered[pattern] = known
    return [known[text] for text in texts]


class _Plain(NamedTuple):
    """What is plain to see of a pattern: most fit no text, and many need not be compiled."""

    exact: frozenset[str] = frozenset()
    """Texts that it matches whole."""
    begins: tuple[str, ...] = ("",)
    """With what all others begin that it matches."""
    suffice: bool = False
    """Whether it matches all that begin so."""


_LETTERS: Final = r"(?:[\w:/ #]|\\[.# ])"
_BEGINNING: Final = re.compile(
    rf"\^({_LETTERS}*)(?:\((?:\?:)?((?:{_LETTERS}|\|)*)\))?({_LETTERS}*)(?![?*+{{])(\$?)"
)
"""Letters, one of several texts, and letters, none of them repeated."""
_FLAGS: Final = r"\?[a-zA-Z-]+\)"
_OTHER: Final = r"[^|()\[\]\\]|\\.|\[(?:[^\[\]\\]|\\.)+\]"
_GROUP: Final = rf"\((?!{_FLAGS})(?:{_OTHER}|\||\((?!{_FLAGS})(?:{_OTHER}|\|)*\))*\)"
_ALTERNATIVE: Final = re.compile(rf"(?:{_OTHER}|{_GROUP})+")
_MOST_BEGINNINGS: Final = 32


@cache
def _plain(pattern: str) -> _Plain:
    r"""What every text begins with that the pattern matches, as far as that is plain to see.

    >>> _plain(r"^Optimizer\.(step|zero_grad)#").begins, _plain("^a$|^aten::_?embedding"), _plain("^a|b").begins
    (('Optimizer.step#', 'Optimizer.zero_grad#'), _Plain(exact=frozenset({'a'}), begins=('aten::',), suffice=False), ('',))
    """
    parts = _ALTERNATIVE.findall(pattern)
    found = [plain for part in parts if (plain := _BEGINNING.match(part))]
    if "|".join(parts) != pattern or len(found) < len(parts):
        return _Plain()
    exact: set[str] = set()
    begins: list[str] = []
    suffice = True
    for part, plain in zip(parts, found, strict=True):
        first, middle, last, end = (text.replace("\\", "") for text in plain.groups(""))
        texts = [first + one + last for one in middle.split("|")]
        if plain.end() < len(part) or not end:
            begins += texts
            suffice &= plain.end() == len(part)
        else:
            exact.update(texts)
    return _Plain(frozenset(exact), tuple(begins), suffice) if len(begins) <= _MOST_BEGINNINGS else _Plain()


def any_matching(texts: list[str | None], pattern: str) -> bool:
    """Whether the pattern matches one of these texts."""
    return any(_which_match(texts, pattern))


_FEW: Final = 3
"""To compare all numbers takes a fifth of the time of looking each up in a table."""


class NameTable:
    """The distinct names of a categorical column.

    >>> names = NameTable(pl.Series(["aten::mm", None, "cudaLaunchKernel", "aten::mm"], dtype=pl.Categorical))
    >>> names.matching("^aten::").tolist()
    [True, False, False, True]
    """

    def __init__(self, names: pl.Series) -> None:
        numbers, self._distinct, rows = numbered(names)
        self._texts: list[str | None] = at_rows(names, rows).cast(pl.String).to_list()
        self.numbers = narrow(numbers, int(numbers.max(initial=0)) + 1)
        """One per row, equal for equal names."""

    def matching(self, pattern: str) -> BoolArray:
        """A truth value per row; a row without a name matches nothing."""
        return self._at(_which_match(self._texts, pattern))

    def which(self, told: Callable[[str], bool]) -> BoolArray:
        """Whether this is told of the name of each row; of a row without a name it is not."""
        return self._at([text is not None and told(text) for text in self._texts])

    def _at(self, wanted: list[bool]) -> BoolArray:
        numbers = self._distinct[wanted]
        if numbers.size <= _FEW:  # most patterns match no name
            found = np.zeros(self.numbers.size, bool)
            for number in numbers.tolist():
                found |= self.numbers == number
            return found
        table = np.zeros(int(self._distinct.max(initial=-1)) + 1, dtype=bool)
        table[numbers] = True
        return table.take(self.numbers, mode="clip")  # to index by narrow numbers takes three times as long
