"""What a trace says of records that it does not hold: launches without work, numbers of operators that are not there.

Two counts that profilers write show a loss. A call that launches work has the correlation id of that work, so a call whose
id no activity has lost its work. PyTorch numbers the operators of a thread one after the other, in blocks of 512, so a file
with far fewer operators than numbers lost the others.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import polars as pl

from tracekit.facts.launch_apis import CAPTURE_BEGIN, CAPTURE_END, GRAPH_LAUNCH, KERNEL_LAUNCH
from tracekit.groups import groups, kept, or_none, runs
from tracekit.name_table import NameTable
from tracekit.trace import one_of

__all__ = [
    "ABSURD_NS",
    "LOST_SHARE",
    "NumberedOperators",
    "endless_calls",
    "launch_calls",
    "numbered_operators",
]

ABSURD_NS: Final = 1_000_000_000
"""Hardly any activity of a device lasts longer, but ROCm's profiler writes such times after an overflow."""

LOST_SHARE: Final = 0.05
"""If more of the launches have no activity, kernels are missing. A recording ends before the last few are written."""

_BLOCK: Final = 1024
"""No more numbers than this are unused at the end of a thread: twice PyTorch's block, for other versions."""

_THIN: Final = 0.5
"""If less than this part of the numbers is in the file, operators are missing. Complete files hold 0.9 of them or more."""


def launch_calls(host: pl.DataFrame, device: pl.DataFrame) -> pl.DataFrame:
    """The calls that launch kernels or graphs: `start` in ns, and `answered`, true if the trace holds work with their id.

    Calls without an id are left out, and so are those between the beginning and the end of a graph's capture: they launch
    nothing. Copies and fills are left out, since those of 0 bytes put no work on a device.
    """
    calls = host[["kind", "name", "process_id", "start", "correlation"]]
    calls = kept(calls, (calls["kind"] == "runtime") & (calls["correlation"] != 0))
    names = NameTable(calls["name"])
    launches = kept(calls, names.matching(f"{KERNEL_LAUNCH}|{GRAPH_LAUNCH}"))
    begun = pl.Series(names.matching(CAPTURE_BEGIN), dtype=pl.Boolean)
    if begun.any():
        ended = pl.Series(names.matching(CAPTURE_END), dtype=pl.Boolean)
        turns = calls.with_columns(begun.alias("capturing")).filter(begun | ended)
        turns = turns[["process_id", "start", "capturing"]].sort("start")
        launches = launches.sort("start").join_asof(
            turns, on="start", by="process_id", check_sortedness=False
        )
        launches = launches.filter(~pl.col("capturing").fill_null(value=False))
    asked, given = (
        or_none(launches["correlation"], 0),
        np.sort(or_none(device["correlation"], 0), kind="stable"),
    )
    # The numbers lie far apart, which makes `isin` slow.
    answered = np.append(given, 0)[np.searchsorted(given, asked)] == asked
    return pl.DataFrame({"start": launches["start"], "answered": answered})


class NumberedOperators(msgspec.Struct, frozen=True):
    """How many operators and ranges the trace holds of those that the profiler numbered: at least `numbered`."""

    held: int
    numbered: int

    @property
    def thin(self) -> bool:
        """Whether most of them are missing."""
        return self.held < _THIN * self.numbered


def numbered_operators(host: pl.DataFrame) -> NumberedOperators:
    """The operators and ranges with a number of the profiler, over all processes; `host` is in order of these."""
    rows = host[["kind", "process_id", "thread_id", "external_id"]].filter(
        one_of("kind", "op", "annotation", "step") & (pl.col("external_id") > 0)
    )
    process, thread, number = (rows[name].to_numpy() for name in ("process_id", "thread_id", "external_id"))
    whole = groups(process)
    held = np.array(
        [runs(np.sort(number[rows], kind="stable")).size for rows in whole.rows()], dtype=np.int64
    )
    threads = np.bincount(groups(whole.of, thread).keys[0], minlength=whole.size)
    # Every thread may leave the rest of a block unused.
    numbered = whole.greatest(number) - whole.least(number) + 1 - _BLOCK * threads
    return NumberedOperators(int(held.sum()), int(np.maximum(held, numbered).sum()))


def endless_calls(host: pl.DataFrame, device: pl.DataFrame) -> pl.DataFrame:
    """The API calls that last longer than all the rest of the trace: `name`, `start`, `duration` in ns."""
    is_call = host["kind"] == "runtime"
    ended = (host["start"] + host["duration"]).filter(~is_call).max()
    lasts = (host["start"].max(), ended, (device["start"] + device["duration"]).max())
    starts = (host["start"].min(), device["start"].min())
    last = max((_int(moment) for moment in lasts if moment is not None), default=0)
    whole = last - min((_int(start) for start in starts if start is not None), default=0)
    calls = host[["name", "start", "duration"]]
    return kept(calls, is_call & (calls["duration"] > whole)) if whole > 0 else calls.clear()


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0
