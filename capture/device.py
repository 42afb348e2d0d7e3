"""The device of a capture: its name, synchronisation, clock and arithmetic."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch

from tracekit.errors import UsageError
from tracekit.manifest import Precision

__all__ = [
    "StepClock",
    "ToolWindow",
    "autocast",
    "device_name",
    "grad_scaler",
    "resolve_device",
    "synchronize",
    "tensor_cores",
]

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def resolve_device(name: str) -> torch.device:
    """Return the device called `name`: `cpu`, `cuda` or `cuda:N` (ROCm GPUs are called cuda too).

    Raises `UsageError` for another name, or if there is no such GPU.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"unknown device {name!r}", remedy="use cpu, cuda or cuda:N") from error
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise UsageError(f"cannot capture on the device {name!r}", remedy="use cpu, cuda or cuda:N")
    if not torch.cuda.is_available():
        raise UsageError(f"there is no device {name!r}: this torch sees no GPU", remedy="use --device cpu")
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise UsageError(f"there is no device {name!r}: this machine has {torch.cuda.device_count()} GPUs")
    return torch.device("cuda", index)


def synchronize(device: torch.device) -> None:
    """Wait until the work queued on `device` is done; a CPU has no queue."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def device_name(device: torch.device) -> str:
    """Return the model of the GPU or CPU, such as `NVIDIA H200`; at least the CPU's architecture."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpu_info = Path("/proc/cpuinfo")
    if cpu_info.is_file():
        for line in cpu_info.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine() or "unknown"


class StepClock:
    """Times steps without disturbing them: by events in the stream on a GPU, by the host's clock on a CPU.

    With a wait for the GPU after each step, the host could not run ahead, and the measured program would be a different one.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._host: list[tuple[int, int]] = []
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._started_at = 0
        self._started: torch.cuda.Event | None = None

    def start(self) -> None:
        """Begin a step."""
        if self._device.type == "cuda":
            self._started = self._mark()
        self._started_at = time.perf_counter_ns()

    def stop(self) -> None:
        """End the step that `start` began."""
        self._host.append((self._started_at, time.perf_counter_ns()))
        if self._started is not None:
            self._events.append((self._started, self._mark()))

    def durations_ns(self) -> list[int]:
        """Return the duration of each finished step in ns, after waiting for the device."""
        if self._device.type != "cuda":
            return [end - start for start, end in self._host]
        synchronize(self._device)
        # CUDA reports milliseconds in single precision, good to about half a microsecond.
        return [round(start.elapsed_time(end) * 1e6) for start, end in self._events]

    def _mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event


class ToolWindow:
    """The part of a run that a CUDA tool such as nsys collects, if its capture range is cudaProfilerApi."""

    def __init__(self) -> None:
        self._open = False

    def toggle(self) -> None:
        """The first call begins it, the second ends it."""
        if self._open:
            self.close()
        else:
            torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
            self._open = True

    def close(self) -> None:
        """End it if it has begun."""
        if self._open:
            self._open = False
            torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[object]:
    """A context in which operators run in this precision if that is safe; no effect for fp32 and tf32."""
    dtype = _AUTOCAST.get(precision)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


def grad_scaler(device: torch.device, precision: Precision) -> torch.amp.GradScaler:
    """The loss scaler that half-precision gradients need; it has no effect for other precisions."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")


@contextmanager
def tensor_cores(device: torch.device, precision: Precision) -> Iterator[None]:
    """Let 32-bit products and convolutions use TF32 for `tf32`, forbid it for `fp32`, and restore the old setting.

    Raises UsageError for tf32 on a device without it.
    """
    if precision == "tf32" and device.type != "cuda":
        raise UsageError(f"there is no tf32 on {device.type}", remedy="use --precision fp32 or bf16")
    products, convolutions = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = products, convolutions
