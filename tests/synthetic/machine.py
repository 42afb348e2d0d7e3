"""A tiny machine: host threads with a clock and a stack of open spans, device streams that run in order.

Truth comes from construction: whenever a thread's clock moves, the innermost open span is written down with
it, and whenever an activity is scheduled, what its start had to wait for is written down as well.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .model import COMMUNICATION, COMPUTE, MEMORY, Activity, Config, Event, HostSpan
from .names import AMD_CALLS, AMD_KERNELS


@dataclass
class Thread:
    """A host thread. `segments` says which span was innermost when: (from, to, span index or None)."""

    process: int
    thread: int
    clock: int
    stack: list[HostSpan] = field(default_factory=list)
    segments: list[tuple[int, int, int | None]] = field(default_factory=list)

    @property
    def key(self) -> tuple[int, int]:
        return self.process, self.thread

    def advance(self, ns: int) -> None:
        if ns <= 0:
            return
        top = self.stack[-1].index if self.stack else None
        self.segments.append((self.clock, self.clock + ns, top))
        self.clock += ns

    def wait_until(self, time: int) -> None:
        self.advance(time - self.clock)


@dataclass
class Stream:
    """An in-order queue of a device. `pending` is the end of what its next activity has to wait for."""

    device: int
    number: int
    free: int
    last: int | None = None
    pending: int = 0


class Machine:
    """Runs what the workload asks for and remembers all of it."""

    def __init__(self, rng: random.Random, config: Config) -> None:
        self.rng = rng
        self.config = config
        self.tick = config.tick_ns
        self.amd = config.vendor == "amd"
        self.spans: list[HostSpan] = []
        self.activities: list[Activity] = []
        self.sync_rows: list[Event] = []
        self.launched: list[tuple[int, int]] = []  # (correlation, span) in order of launch
        self.streams: dict[tuple[int, int], Stream] = {}
        self.correlation = 1_000
        self.external_id = 0

    def ns(self, low: int, high: int) -> int:
        """A duration between low and high, on the clock's grid, never zero unless high is."""
        value = self.rng.randint(low, high)
        return -(-value // self.tick) * self.tick

    def stream(self, device: int, number: int) -> Stream:
        key = (device, number)
        if key not in self.streams:
            self.streams[key] = Stream(device, number, self.config.origin_ns)
        return self.streams[key]

    def next_correlation(self) -> int:
        self.correlation += self.rng.randint(1, 5)
        return self.correlation

    @contextmanager
    def span(
        self,
        thread: Thread,
        kind: str,
        name: str,
        cause: str = "python",
        *,
        cat: str = "cpu_op",
        **fields: Any,
    ) -> Iterator[HostSpan]:
        """Opens a span on a thread; it never has zero length, so that nesting is never ambiguous."""
        parent = thread.stack[-1] if thread.stack else None
        opened = HostSpan(
            index=len(self.spans),
            process=thread.process,
            thread=thread.thread,
            kind=kind,
            name=name,
            start_ns=thread.clock,
            parent=None if parent is None else parent.index,
            depth=len(thread.stack),
            cause=cause,
            cat=cat,
            **fields,
        )
        if kind in ("op", "annotation", "step"):
            self.external_id += 1
            opened.external_id = self.external_id
        self.spans.append(opened)
        thread.stack.append(opened)
        yield opened
        if thread.clock == opened.start_ns:
            thread.advance(self.tick)
        opened.dur_ns = thread.clock - opened.start_ns
        thread.stack.pop()

    @contextmanager
    def runtime(self, thread: Thread, call: str, cause: str, low: int, high: int) -> Iterator[HostSpan]:
        """A runtime (or driver) call of a random length."""
        name = AMD_CALLS.get(call, call) if self.amd else call
        driver = name.startswith("cu") and not name.startswith("cuda")
        owner = next((s.external_id for s in reversed(thread.stack) if s.external_id is not None), None)
        with self.span(
            thread,
            "runtime",
            name,
            cause,
            cat="cuda_driver" if driver else "cuda_runtime",
            correlation=self.next_correlation(),
            external_id=owner,
        ) as opened:
            thread.advance(self.ns(low, high))
            yield opened

    def launch(
        self,
        thread: Thread,
        category: str,
        name: str,
        stream: Stream,
        *,
        call: str = "cudaLaunchKernel",
        weight: float = 1.0,
        **fields: Any,
    ) -> Activity:
        """One call, one activity."""
        return self.launch_all(thread, [(category, name, stream, weight)], call=call, **fields)[0]

    def launch_all(
        self,
        thread: Thread,
        work: list[tuple[str, str, Stream, float]],
        *,
        call: str,
        blocking: bool = False,
        delay: int = 0,
        recorded: bool = True,
        **fields: Any,
    ) -> list[Activity]:
        """One call that starts several activities, all with the call's correlation id.

        `delay` holds the first one back for no reason that the trace shows; `recorded=False` loses the call.
        """
        if not recorded:
            correlation = self.next_correlation()
            return [self._schedule(thread.clock, None, correlation, row, thread, **fields) for row in work]
        with self.runtime(thread, call, "launch_api", 1_500, 9_000) as opened:
            began = opened.start_ns
            assert opened.correlation is not None
            self.launched.append((opened.correlation, opened.index))
            made = [
                self._schedule(
                    began,
                    opened,
                    opened.correlation,
                    row,
                    thread,
                    delay=delay if i == 0 else 0,
                    node=i,
                    **fields,
                )
                for i, row in enumerate(work)
            ]
            if blocking:  # a copy from pageable memory returns when it is done
                opened.cause = "synchronisation"
                thread.wait_until(made[-1].end_ns + self.ns(200, 900))
        for activity in made:
            activity.launch_end_ns = thread.clock
        return made

    def _schedule(
        self,
        began: int,
        call: HostSpan | None,
        correlation: int,
        row: tuple[str, str, Stream, float],
        thread: Thread,
        *,
        delay: int = 0,
        length: int | None = None,
        node: int = 0,
        kind: str = "kernel",
        bytes: int | None = None,
        args: dict[str, Any] | None = None,
        external_id: int | None = None,
    ) -> Activity:
        category, name, stream, weight = row
        # Of equal times the last one names the reason, so a dependency wins over the queue.
        reasons = [
            (began + self.ns(1_200, 11_000), "launch"),
            (stream.free + self.ns(400, 2_400), "stream"),
        ]
        if delay:
            reasons.append((stream.free + delay, "delay"))
        if stream.pending:
            reasons.append((stream.pending + self.ns(300, 1_200), "dependency"))
        start, bound = max(reversed(reasons), key=lambda reason: reason[0])
        low, high = self.config.kernel_ns
        duration = self.ns(int(low * min(weight, 1.0)), max(int(high * weight), self.tick))
        if length is not None:
            duration = length
        elif self.config.zero_kernels and self.rng.random() < 0.05:
            duration = 0
        if self.amd and kind == "kernel":
            name = AMD_KERNELS.get(category, name)
        cls = COMMUNICATION if category == "communication" else COMPUTE if kind == "kernel" else MEMORY
        ops = [s for s in thread.stack if s.kind == "op"] if call is not None else []
        activity = Activity(
            index=len(self.activities),
            kind=kind,
            cls=cls,
            category=category,
            name=name,
            device=stream.device,
            stream=stream.number,
            start_ns=start,
            dur_ns=duration,
            correlation=correlation,
            launch=None if call is None else call.index,
            launch_start_ns=None if call is None else began,
            launch_thread=None if call is None else thread.key,
            op=ops[-1].index if ops else None,
            outer_op=ops[0].index if ops else None,
            external_id=external_id if call is None else call.external_id,
            bytes=bytes,
            graph_node=node if call is not None and "GraphLaunch" in call.name else None,
            bound=bound,
            args=dict(args or {}),
        )
        stream.free, stream.last, stream.pending = activity.end_ns, activity.index, 0
        self.activities.append(activity)
        return activity

    def wait_event(self, thread: Thread, waiting: Stream, source: Stream) -> None:
        """Records an event at the end of one stream's work and makes another stream wait for it."""
        with self.runtime(thread, "cudaEventRecord", "operator_dispatch", 500, 1_500) as record:
            pass
        with self.runtime(thread, "cudaStreamWaitEvent", "operator_dispatch", 500, 1_500) as wait:
            pass
        waiting.pending = max(waiting.pending, source.free)
        self._sync_row(
            "Stream Wait Event",
            wait,
            waiting.device,
            waiting.number,
            {
                "wait_on_stream": source.number,
                "wait_on_cuda_event_record_corr_id": record.correlation,
                "wait_on_cuda_event_id": record.index,
            },
        )

    def synchronise(
        self, thread: Thread, stream: Stream | None, tail: tuple[int, int] = (800, 3_000)
    ) -> None:
        """Blocks the host until one stream, or all work of all devices, is done."""
        call = "cudaDeviceSynchronize" if stream is None else "cudaStreamSynchronize"
        with self.runtime(thread, call, "synchronisation", 300, 900) as opened:
            done = max(s.free for s in self.streams.values()) if stream is None else stream.free
            thread.wait_until(done)
            thread.advance(self.ns(*tail))
        if stream is None:
            self._sync_row("Context Sync", opened, 0, -1, {})
        else:
            self._sync_row("Stream Sync", opened, stream.device, stream.number, {})

    def _sync_row(self, name: str, call: HostSpan, device: int, stream: int, args: dict[str, Any]) -> None:
        self.sync_rows.append(
            {
                "ph": "X",
                "cat": "cuda_sync",
                "name": name,
                "pid": device,
                "tid": stream,
                "ts": call.start_ns,
                "dur": max(call.end_ns - call.start_ns, self.tick),
                "args": {
                    "External id": call.external_id,
                    "cuda_sync_kind": name,
                    **args,
                    "stream": stream,
                    "correlation": call.correlation,
                    "device": device,
                    "context": 1,
                },
            }
        )
