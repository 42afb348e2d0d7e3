"""The Python stacks that profiles from before 2022 give operators, in place of spans of Python functions."""

from __future__ import annotations

import sys

import msgspec
import numpy as np
import polars as pl

from tracekit.facts.idle_names import LIBRARIES, PROFILER_FRAME, PYTHON_FILE
from tracekit.groups import at_rows, or_none
from tracekit.spans import BoolArray, Int64Array

__all__ = ["CallStacks", "of_users"]


class CallStacks(msgspec.Struct, frozen=True, eq=False):
    """The distinct stacks of a host frame, each a list of `frames`, the innermost first; `number` is each span's stack, −1 for none."""

    frames: pl.Series
    number: Int64Array

    @classmethod
    def of(cls, host: pl.DataFrame) -> CallStacks | None:
        """The stacks in the column `call_stack`; None if there are none.

        A range that the profiler opens for the user's code has the stack of its begin, and what runs in it others: it is left
        out. One that it opens for a library's function lies in one call of it.
        """
        column = host["call_stack"]
        if column.null_count() == column.len():
            return None
        distinct = column.unique().drop_nulls()
        frames = distinct.cast(pl.String).str.split(";")
        outside = frames.list.eval(
            pl.element().filter(~pl.element().str.contains(PROFILER_FRAME))
        ).list.first()
        opened = frames.list.first().str.contains(PROFILER_FRAME)
        kept = ~(opened & of_users(outside))
        distinct, frames = distinct.filter(kept), frames.filter(kept)
        if not distinct.len():
            return None
        codes = distinct.to_physical().cast(pl.Int64).to_numpy()
        physical = column.to_physical().cast(pl.Int64)
        number = np.full(int(str(physical.max())) + 2, -1, dtype=np.int64)  # the last one stands for null
        number[codes] = np.arange(codes.size)
        return cls(frames, number[or_none(physical)])

    def through(self, pattern: str) -> BoolArray:
        """Which spans have a stack with a frame that matches."""
        matches = self.frames.list.eval(pl.element().str.contains(pattern)).list.any().to_numpy()
        mask: BoolArray = (self.number >= 0) & matches[self.number]
        return mask

    def user_frames(self) -> pl.Series:
        """The innermost frame of the user's code in each span's stack, as a categorical column; null for none."""
        frames = self.frames.explode().unique()
        own = frames.filter(of_users(frames)).implode()
        chosen = self.frames.list.eval(pl.element().filter(pl.element().is_in(own))).list.first()
        none = pl.Series([None], dtype=pl.Categorical)
        return at_rows(chosen.cast(pl.Categorical).append(none), self.number % (chosen.len() + 1))


def of_users(names: pl.Series) -> pl.Series:
    """Which of the names of frames have a file that belongs neither to a library nor to Python itself."""
    path = names.str.extract(PYTHON_FILE, 1).str.replace_all("\\", "/", literal=True)
    first = path.str.split("/").list.first().str.strip_suffix(".py")
    foreign = path.str.contains(r"(^|/)(site-packages|dist-packages|lib/python\d[^/]*)/|^<")
    return ~(foreign | first.is_in([*LIBRARIES, *sys.stdlib_module_names])).fill_null(value=True)
