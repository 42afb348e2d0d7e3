"""The rows of an Nsight Systems export by process."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

import polars as pl

from tracekit.errors import UnreadableTraceError
from tracekit.readers.common.store import FrameStore

__all__ = ["OF_MACHINE", "ProcessStores"]

_MOST_PROCESSES: Final = 256
OF_MACHINE: Final = ("counters",)
"""Frames that do not belong to one process; every trace of the file has them."""


class ProcessStores:
    """The rows of each process that works on a device; if none does, the rows of all processes together.

    With `others`, the rows of the other processes are kept as well, together; else they are counted.
    """

    def __init__(self, path: Path, most: int | None, stack: ExitStack, *, others: bool = False) -> None:
        self._path = path
        self._rest: FrameStore | None = None
        self._keeps_others = others
        self.rows = self.left_out = 0
        self.machine = FrameStore()
        self._most = most
        self._stack = stack
        self._by_process: dict[int | None, FrameStore] = {}
        self._on_device = True
        self._others: set[int] = set()

    @property
    def others(self) -> frozenset[int]:
        """The processes that were left out."""
        return frozenset(self._others)

    def add(self, name: str, frame: pl.DataFrame) -> None:
        """Sort the rows of a frame by process."""
        self.rows += frame.height
        if not frame.height:
            return
        if name in OF_MACHINE:
            self.machine.add(name, frame)
            return
        if name != "device" and self._on_device:
            self._on_device = False
            if not self._by_process:  # no process works on a device: all are one trace
                self._open(None)
            self._adopt()
        if self._by_process.keys() == {None} and name != "device":
            self._by_process[None].add(name, frame)
            return
        present = frame["process_id"].unique()
        if name == "device":
            for process in present.sort().to_list():
                if process not in self._by_process:
                    self._open(process)
        self._add_of_each(name, frame, present)

    def parts(self) -> list[tuple[int | None, FrameStore]]:
        """The processes, sorted by id, each with its rows; at the end those of the others, without an id."""
        rest: list[tuple[int | None, FrameStore]] = [] if self._rest is None else [(None, self._rest)]
        return sorted(self._by_process.items(), key=lambda item: -1 if item[0] is None else item[0]) + rest

    def _add_of_each(self, name: str, frame: pl.DataFrame, present: pl.Series) -> None:
        """Each process's own rows; those of processes that do not work on a device are apart, or left out."""
        working = [process for process in present.to_list() if process in self._by_process]
        if present.len() == len(working) == 1:
            self._by_process[working[0]].add(name, frame)
            return
        own = frame.filter(pl.col("process_id").is_in(working, nulls_equal=True))
        if own.height:
            for (process,), rows in own.partition_by("process_id", as_dict=True).items():
                self._by_process[process if isinstance(process, int) else None].add(name, rows)
        others = frame.filter(~pl.col("process_id").is_in(working, nulls_equal=True)).drop_nulls("process_id")
        if self._keeps_others and others.height:
            if self._rest is None:
                self._rest = self._stack.enter_context(closing(FrameStore(self._most)))
            self._rest.add(name, others)
            return
        self.left_out += others.height
        self._others.update(others["process_id"].unique().to_list())

    def _adopt(self) -> None:
        """Device work without a process id belongs to the process that works on a device, if there is only one."""
        working = [process for process in self._by_process if process is not None]
        if len(working) == 1 and None in self._by_process:
            for rows in self._by_process.pop(None).parts("device"):
                mine = rows.with_columns(pl.lit(working[0], pl.Int64).alias("process_id"))
                self._by_process[working[0]].add("device", mine)

    def _open(self, process: int | None) -> None:
        if len(self._by_process) >= _MOST_PROCESSES:
            fault = f"more than {_MOST_PROCESSES} processes worked on devices"
            raise UnreadableTraceError(fault, path=self._path)
        self._by_process[process] = store = FrameStore(self._most)
        self._stack.enter_context(closing(store))
