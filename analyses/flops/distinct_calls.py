"""Calls of operators, each with the number of its name and inputs, of which few are told apart."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec
import numpy as np
import polars as pl

from tracekit.groups import groups, text_codes
from tracekit.spans import BoolArray, Int64Array

__all__ = ["INPUTS", "KEYS", "Calls"]

INPUTS: Final = ("shapes", "dtypes", "concrete_inputs", "strides")
KEYS: Final = ("name", *INPUTS)


class Calls(msgspec.Struct, frozen=True, eq=False):
    """Calls of operators: for each its span, and `of`, the row of `inputs` that is its own: the name and the inputs (columns of KEYS) as
    texts. A model reads each of these rows once, since few are told apart, however many calls there are.
    """

    spans: Int64Array
    of: Int64Array
    inputs: pl.DataFrame

    def where(self, inputs: pl.Series | BoolArray) -> Int64Array:
        """The calls (by their place) whose row of `inputs` is one of these."""
        wanted = inputs.fill_null(value=False).to_numpy() if isinstance(inputs, pl.Series) else inputs
        return np.flatnonzero(wanted[self.of]) if wanted.any() else np.zeros(0, dtype=np.int64)

    def named(self, names: Collection[str]) -> Int64Array:
        """The calls of these operators."""
        return self.where(np.array([name in names for name in self.inputs["name"].to_list()], dtype=bool))

    def texts(self, places: Int64Array) -> pl.DataFrame:
        """The spans of these calls (`span_id`), with their names and inputs."""
        return pl.DataFrame([pl.Series("span_id", self.spans[places]), *self.inputs[self.of[places]]])

    def told(self, places: Int64Array, of: Int64Array, inputs: pl.DataFrame) -> Calls:
        """The calls, these of them with other inputs: `of` has a row of them for each."""
        changed = self.of.copy()
        changed[places] = of + self.inputs.height
        return Calls(self.spans, changed, pl.concat([self.inputs, inputs[list(KEYS)]]))

    def renamed(self, places: Int64Array, name: str) -> Calls:
        """The calls, these of them with another name."""
        rows, of = np.unique(self.of[places], return_inverse=True)
        return self.told(places, of, self.inputs[rows].with_columns(pl.lit(name).alias("name")))

    def at(self, spans: Int64Array) -> Int64Array:
        """The calls of these spans of the host."""
        return np.flatnonzero(np.isin(self.spans, spans))

    def replaced(self, away: BoolArray, rows: pl.DataFrame) -> Calls:
        """The calls without some of them, but with those of a frame (`span_id` and the columns of KEYS)."""
        alike = groups(*(text_codes(rows[name])[0] for name in KEYS))
        return Calls(
            np.append(self.spans[~away], rows["span_id"].to_numpy()),
            np.append(self.of[~away], alike.of + self.inputs.height),
            pl.concat([self.inputs, rows[list(KEYS)][alike.first]]),
        )
