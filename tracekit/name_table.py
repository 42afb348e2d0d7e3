"""Which rows of a categorical column bear a name that a pattern matches: each distinct name is looked at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

__all__ = ["NameTable"]


class NameTable:
    """The distinct names of a categorical column.

    >>> names = NameTable(pl.Series(["aten::mm", None, "cudaLaunchKernel", "aten::mm"], dtype=pl.Categorical))
    >>> names.matching("^aten::").tolist()
    [True, False, False, True]
    """

    def __init__(self, names: pl.Series) -> None:
        distinct = names.unique().drop_nulls()
        self._texts = distinct.cast(pl.String)
        self._numbers = distinct.to_physical().to_numpy()
        no_name = int(self._numbers.max()) + 1 if self._numbers.size else 0
        self._size = no_name + 1
        self._of_rows = names.to_physical().fill_null(no_name).to_numpy()

    def matching(self, pattern: str) -> npt.NDArray[np.bool_]:
        """A truth value per row; a row without a name matches nothing."""
        wanted = self._numbers[self._texts.str.contains(pattern).to_numpy()]
        if not wanted.size:
            return np.zeros(self._of_rows.size, dtype=bool)
        matches = np.zeros(self._size, dtype=bool)
        matches[wanted] = True
        of_rows: npt.NDArray[np.bool_] = matches.take(self._of_rows)
        return of_rows
