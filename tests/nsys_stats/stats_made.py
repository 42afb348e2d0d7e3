"""Traces of any shape, planted or drawn at random, and rows that can be compared."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import polars as pl

from tracekit.health import HealthLog
from tracekit.readers.assemble import assemble, conform
from tracekit.trace import (
    DEVICE_SCHEMA,
    HOST_SCHEMA,
    OS_CALL_SCHEMA,
    RANGE_SCHEMA,
    THREAD_SCHEMA,
    DeviceInfo,
    Meta,
    Trace,
    empty,
)


class Made:
    """Collects rows of one process; all times are ns."""

    def __init__(self, process: int = 1, **meta: Any) -> None:
        self.process = process
        self.meta = meta
        self.host: list[dict[str, Any]] = []
        self.device: list[dict[str, Any]] = []
        self.ranges: list[dict[str, Any]] = []
        self.os_calls: list[dict[str, Any]] = []

    def span(
        self, name: str, start: int, end: int, *, kind: str = "annotation", thread: int = 1, **more: Any
    ) -> None:
        place = {"process_id": self.process, "thread_id": thread}
        self.host.append(
            {"kind": kind, "name": name, "start": start, "duration": end - start, **place, **more}
        )

    def work(
        self,
        name: str,
        start: int,
        duration: int,
        *,
        launch: tuple[int, int] | None = None,
        call: str = "cudaLaunchKernel",
        thread: int = 1,
        kind: str = "kernel",
        device: int = 0,
        correlation: int | None = None,
        **more: Any,
    ) -> None:
        """An activity, and the call from `launch[0]` to `launch[1]` that launched it."""
        number = correlation or len(self.device) + 1
        row = {"name": name, "start": start, "duration": duration, "kind": kind, "correlation": number}
        self.device.append(
            {**row, "device_id": device, "stream_id": 7, "context_id": 1, "process_id": self.process, **more}
        )
        if launch is not None:
            self.span(call, *launch, kind="runtime", thread=thread, correlation=number)

    def between(
        self, name: str, start: int, end: int | None, *, thread: int = 1, end_thread: int = 1, **more: Any
    ) -> None:
        """A start/end range; a mark when `end` is None."""
        self.ranges.append(
            {
                "kind": "mark" if end is None else "start_end",
                "name": name,
                "process_id": self.process,
                "thread_id": thread,
                "end_thread_id": end_thread,
                "start": start,
                "duration": None if end is None else end - start,
                **more,
            }
        )

    def system(self, name: str, start: int, duration: int, thread: int = 1) -> None:
        place = {"process_id": self.process, "thread_id": thread}
        self.os_calls.append({"name": name, "start": start, "duration": duration, **place})

    def trace(self) -> Trace:
        log = HealthLog()
        host = pl.DataFrame(self.host, infer_schema_length=None) if self.host else empty(HOST_SCHEMA)
        device = pl.DataFrame(self.device, infer_schema_length=None) if self.device else empty(DEVICE_SCHEMA)
        made = assemble([conform(host, HOST_SCHEMA), conform(device, DEVICE_SCHEMA)], log)
        own = (self.process,)
        meta = Meta(
            path="made.sqlite", format="nsys", process_ids=own, devices=(DeviceInfo(0, "NVIDIA H100"),)
        )
        threads = pl.DataFrame(
            {"process_id": [self.process], "thread_id": [1], "name": ["main"]}, schema=THREAD_SCHEMA
        )
        return Trace(
            meta=replace(meta, **self.meta),
            host=made.host,
            device=made.device,
            threads=threads,
            health=log.frame(),
            ranges=conform(pl.DataFrame(self.ranges, infer_schema_length=None), RANGE_SCHEMA)
            if self.ranges
            else None,
            os_calls=conform(pl.DataFrame(self.os_calls), OS_CALL_SCHEMA) if self.os_calls else None,
        )


def drawn(seed: int, process: int = 1, **meta: Any) -> Trace:
    """A random trace: ranges that nest, some with the same name or bounds, threads, launches, graphs, lost launches."""
    dice = random.Random(seed)
    made = Made(process, **meta)
    number = 0
    for thread in range(1, dice.randint(2, 4)):
        time = dice.randint(0, 50)
        open_until = [10**9]
        for _ in range(dice.randint(5, 60)):
            time += dice.randint(0, 30)
            open_until = [end for end in open_until if end > time] or [10**9]
            what = dice.random()
            if what < 0.5:
                end = min(time + dice.choice([0, 5, 40, 200, 400]), open_until[-1])
                kind = dice.choice(["annotation", "op", "module", "step", "python"])
                made.span(
                    dice.choice("abc"),
                    time,
                    end,
                    kind=kind,
                    thread=thread,
                    domain=dice.choice([None, None, "LIB"]),
                )
                open_until.append(end)
            else:
                end = min(time + dice.choice([0, 1, 7, 20]), open_until[-1])
                name = dice.choice(["cudaLaunchKernel", "cudaMemcpyAsync", "cudaMemcpy", "cudaGraphLaunch"])
                number += 1
                made.span(name, time, end, kind="runtime", thread=thread, correlation=number)
                for _ in range(dice.choice([0, 1, 1, 1, 3])):
                    begun = end + dice.randint(-5, 300)
                    _some_work(made, dice, max(begun, 0), number)
                time = end
    for _ in range(dice.randint(0, 3)):
        _some_work(made, dice, dice.randint(0, 500), 10_000 + dice.randint(0, 99))
    for _ in range(dice.randint(0, 5)):
        start = dice.randint(0, 600)
        made.between(
            dice.choice("ab"),
            start,
            dice.choice([None, start, start + 50, start + 300]),
            thread=dice.randint(1, 3),
            end_thread=dice.randint(1, 3),
        )
    return made.trace()


def _some_work(made: Made, dice: random.Random, start: int, correlation: int) -> None:
    kind, name = dice.choice(
        [
            ("kernel", "gemm"),
            ("kernel", "add"),
            ("memcpy", "Memcpy HtoD (Pageable -> Device)"),
            ("memcpy", "Memcpy DtoH (Device -> Pinned)"),
            ("memset", "Memset (Device)"),
        ]
    )
    made.work(
        name,
        start,
        dice.randint(0, 90),
        kind=kind,
        correlation=correlation,
        device=dice.randint(0, 1),
        bytes=dice.choice([None, 8, 1_000_000]) if kind != "kernel" else None,
        grid=dice.choice(["[1, 2, 3]", "[64, 1, 1]", None]) if kind == "kernel" else None,
        block="[128, 1, 1]" if kind == "kernel" else None,
    )


def comparable(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The rows in an order of their own, with figures to nine digits."""

    def plain(value: Any) -> Any:
        return f"{value:.9g}" if isinstance(value, float) else value

    return sorted((tuple((key, plain(row[key])) for key in sorted(row)) for row in rows), key=repr)
