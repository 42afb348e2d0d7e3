"""What every part of the workload is made of: nested operators, launches, allocations."""

from __future__ import annotations

import random
from contextlib import AbstractContextManager
from typing import Any

from . import names
from .machine import Machine, Stream, Thread
from .model import Collective, Config, HostSpan, Incident, MemoryEvent, Step

PID = 4242
COMPUTE_STREAM, SIDE_STREAM, COMM_STREAM, COPY_STREAM = 7, 20, 24, 28


class Operators:
    """The state of a run, and operators that launch."""

    def __init__(self, rng: random.Random, config: Config) -> None:
        self.rng = rng
        self.config = config
        self.m = Machine(rng, config)
        self.main = Thread(PID, PID, config.origin_ns + 1_000_000)
        self.autograd = Thread(PID, PID + 7, config.origin_ns + 1_000_000)
        self.steps: list[Step] = []
        self.incidents: list[Incident] = []
        self.collectives: list[Collective] = []
        self.memory: list[MemoryEvent] = []
        self.counters: list[tuple[str, str, int, int]] = []
        self.allocated = 0
        self.addresses: list[tuple[int, int, int]] = []  # address, bytes, device
        self.sequence = 10
        self.collective_sequence = 0
        self.lost = config.lost_launches
        self.watched: tuple[str, int, int] | None = None  # an incident that waits for its first launch
        self.step_number: int | None = None

    def _stream(self, device: int, number: int = COMPUTE_STREAM) -> Stream:
        if self.m.amd:
            # ROCm numbers the default stream 0, and the first visible device of a shared node need not be 0.
            return self.m.stream(device + 2, 0 if number == COMPUTE_STREAM else number)
        return self.m.stream(device, number)

    def _device_of(self, layer: int) -> int:
        return layer * self.config.devices // max(self.config.layers, 1)

    def _dispatch(self, thread: Thread) -> None:
        low, high = self.config.dispatch_ns
        thread.advance(self.m.ns(low, high))

    def _op(
        self, thread: Thread, name: str, cause: str = "operator_dispatch", **fields: Any
    ) -> AbstractContextManager[HostSpan]:
        shapes = {
            "Input Dims": [[64, 128], [128, 256], [], []],
            "Input type": ["c10::BFloat16", "float", "", "Scalar"],
        }
        fields.setdefault("args", {}).update({**shapes, "Concrete Inputs": ["", "", "[2, 3]", "1"]})
        return self.m.span(thread, "op", name, cause, **fields)

    def _forward_op(
        self, thread: Thread, work: names.Work, stream: Stream, sequence: int | None = None
    ) -> None:
        """The chain of nested operators, and the launch in the innermost one."""
        self._nest(thread, work.ops, lambda: self._launch(thread, work, stream), sequence, stream.device)

    def _nest(
        self, thread: Thread, ops: tuple[str, ...], inner: Any, sequence: int | None, device: int = 0
    ) -> None:
        if not ops:
            inner()
            return
        fields: dict[str, Any] = {} if sequence is None else {"sequence": sequence, "forward_thread": 0}
        with self._op(thread, ops[0], **fields):
            self._dispatch(thread)
            if len(ops) == 1:
                self._empty(thread, device)
            # Every nested op repeats the number, as the real profiler does.
            self._nest(thread, ops[1:], inner, sequence, device)
            self._dispatch(thread)

    def _launch(
        self, thread: Thread, work: names.Work, stream: Stream, kernel: str = "", **fields: Any
    ) -> None:
        recorded = True
        # Not while an incident waits for its first launch: its truth hangs on that record.
        if self.lost and self.watched is None and self.step_number is not None and self.rng.random() < 0.1:
            recorded, self.lost = False, self.lost - 1
        made = self.m.launch_all(
            thread,
            [(work.category, kernel or work.kernel, stream, work.weight)],
            call=work.call,
            recorded=recorded,
            **fields,
        )
        if recorded:
            self._landed(made[0].index)

    def _landed(self, activity: int) -> None:
        if self.watched is not None:
            cause, start, end = self.watched
            self.incidents.append(Incident(self.step_number, cause, self.main.key, start, end, activity))
            self.watched = None

    def _empty(self, thread: Thread, device: int) -> None:
        with self._op(thread, "aten::empty"):
            self._dispatch(thread)
            self._allocate(thread, device, self.rng.randint(1, 4_000) * 512)
            if self.addresses and self.rng.random() < 0.4:
                address, size, where = self.addresses.pop(self.rng.randrange(len(self.addresses)))
                self._record_memory(thread, where, address, -size)

    def _allocate(self, thread: Thread, device: int, size: int) -> None:
        address = 139_654_046_813_696 + 512 * self.rng.randint(0, 10**9)
        self.addresses.append((address, size, device))
        self._record_memory(thread, device, address, size)

    def _record_memory(self, thread: Thread, device: int, address: int, size: int) -> None:
        self.allocated += size
        reserved = 224_395_264 + self.allocated // 2_097_152 * 2_097_152
        event = MemoryEvent(thread.clock, thread.key, device, address, size, self.allocated, reserved)
        self.memory.append(event)
        self.counters.append((f"GPU {device} Memory", "allocated", thread.clock, self.allocated))
