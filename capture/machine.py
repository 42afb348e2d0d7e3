"""`tracekit machine`: the ceilings of this machine, by products of matrices in torch and passes over arrays."""

from __future__ import annotations

import datetime
import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Final, Literal, Protocol

import numpy as np
import torch

import tracekit
from tracekit.capture.device import device_name, resolve_device, tensor_cores
from tracekit.capture.machine_memory import (
    caches_of,
    seconds_of_a_pass,
    update_rates,
    usable_cpus,
    working_sets,
)
from tracekit.errors import UsageError
from tracekit.facts.units import count_of
from tracekit.machine_file import Machine, Memory, Product, Rates

__all__ = ["Clock", "grown", "measure", "thread_counts"]

Precision = Literal["fp64", "fp32", "tf32", "bf16", "fp16"]
Unit = Literal["matrix", "vector"]
_TYPES: Final[dict[Precision, torch.dtype]] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
_SECONDS: Final = 40.0
"""About as long as all measurements together may take."""
_LONGEST: Final = 1.5
"""As long as one of them may take, in seconds."""
_TRIAL_S: Final = 0.002
"""A trial repeats what takes less, so that the clock and the launch of the first call do not count."""
_TRIALS: Final = (3, 200)
_RISES: Final = 1.03
"""A rate that is higher by less has stopped rising."""
_SIZES: Final = {"cpu": (256, 512, 1024, 2048, 4096, 8192), "cuda": (1024, 2048, 4096, 8192, 16384)}
_GPU_SET: Final = 1 << 30
_GRAPH_CALLS: Final = 50
_OTHER_SHARE: Final = 0.4
"""Of the time of a precision on a processor, for work other than products of square matrices."""
_SHAPES: Final = ((2048, 256, 256), (512, 512, 512))
"""The sizes m, k and n of a product of matrices that are not square, and of one with a bias."""
_IMAGES: Final = ((128, 30), (256, 16))
"""The channels and the side of the images of convolutions with kernels of 3 × 3."""
_FASTER: Final = 1.1
"""Of a cache whose rate is higher than that of the next one by less, the rate is that of the loop that measures it."""


class Clock(Protocol):
    """How calls are timed."""

    def seconds(self, call: Callable[[], object], times: int) -> float:
        """The time that so many calls take."""


class HostClock:
    """Of work that is done when the call returns."""

    def seconds(self, call: Callable[[], object], times: int) -> float:
        """The time of the calls by the host's clock."""
        began = time.perf_counter()
        for _ in range(times):
            call()
        return time.perf_counter() - began


class CudaClock:
    """Of work that calls put on a stream: by events in it."""

    def seconds(self, call: Callable[[], object], times: int) -> float:
        """The time between the events around the work of the calls."""
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        began.record()
        for _ in range(times):
            call()
        ended.record()
        ended.synchronize()
        return float(began.elapsed_time(ended)) / 1e3


def measure(
    device: str = "cpu", threads: Sequence[int] = (), *, tell: Callable[[str], None] = lambda _: None
) -> Machine:
    """Measure a processor, with each of these numbers of threads (see `thread_counts`), or a GPU.

    Raises UsageError for a device that is not there, or a number of threads that this process cannot run at once.
    """
    found = resolve_device(device)
    if found.type == "cuda":
        if threads:
            raise UsageError("--threads is for processors", remedy="leave it out for a GPU")
        rates, missing = _measure_gpu(found, tell)
    else:
        most = min(torch.get_num_threads(), usable_cpus())
        rates, missing = _measure_cpu(threads or thread_counts(most), tell)
    return Machine(
        tracekit_version=tracekit.__version__,
        measured_on=datetime.date.today(),
        device=found.type,  # type: ignore[arg-type] # resolve_device returns no other
        device_name=device_name(found),
        versions={"torch": str(torch.__version__), "numpy": np.__version__},
        rates=rates,
        not_measured=missing,
    )


def thread_counts(most: int) -> list[int]:
    """The powers of two up to a number of threads, and the number.

    >>> thread_counts(2), thread_counts(6)
    ([1, 2], [1, 2, 4, 6])
    """
    return sorted({1 << power for power in range(most.bit_length())} | {most})


def grown(
    times_of: Callable[[int], list[float]], sizes: Iterable[int], seconds: float
) -> tuple[int, list[float]] | None:
    """The size of square matrices with the highest rate, and its rates (FLOP/s), from the durations of products of each size.

    Sizes grow until two in a row bring no higher rate, or until the next would take too long. None without a size.
    """
    best: tuple[int, list[float]] | None = None
    level, began = 0, time.perf_counter()
    for size in sizes:
        work = 2.0 * size**3
        if best is not None:
            left = seconds - (time.perf_counter() - began)
            if level == 2 or _TRIALS[0] * work / max(best[1]) > left:
                break
        rates = [work / one for one in times_of(size)]
        if best is None or max(rates) > _RISES * max(best[1]):
            best, level = (size, rates), 0
        else:
            level += 1
    return best


def _measure_cpu(counts: Sequence[int], tell: Callable[[str], None]) -> tuple[list[Rates], dict[str, str]]:
    cpus = usable_cpus()
    if bad := [count for count in counts if not 1 <= count <= cpus]:
        raise UsageError(
            f"--threads has {bad[0]}", remedy=f"this process may use from 1 to {cpus} CPUs at once"
        )
    caches, rates = caches_of(), []
    missing: dict[str, str] = {}
    seconds = min(_LONGEST, _SECONDS / (6 * len(counts)))
    names: tuple[Precision, ...] = ("fp64", "fp32", "bf16", "fp16")
    for count in counts:
        tell(f"measuring with {count} of {cpus} CPUs")
        with _torch_threads(count):
            products = _products(torch.device("cpu"), names, HostClock(), _free_memory(), seconds)
        sets, absent = working_sets(caches, count, cpus, _free_memory())
        for level, why in absent.items():
            with_threads = "" if level in ("caches", "DRAM") else f"with {count_of(count, 'thread')}, "
            missing.setdefault(level, f"{with_threads}{why}")
        memory = [
            _memory(level, sizes, count, seconds if level == "DRAM" else seconds / 4)
            for level, sizes in sets.items()
        ]
        memory, hidden = _told_apart(memory)
        for level, why in hidden.items():
            missing.setdefault(level, f"with {count_of(count, 'thread')}, {why}")
        rates.append(Rates(threads=count, products=products, memory=memory))
    return rates, missing


def _told_apart(memory: Sequence[Memory]) -> tuple[list[Memory], dict[str, str]]:
    """The levels without a first cache that is hardly faster than the second one, and why it is left out."""
    best = {one.level: one.best for one in memory}
    if "L1" not in best or best["L1"] >= _FASTER * best.get("L2", 0.0):
        return list(memory), {}
    why = f"updates in it ran at {best['L1'] / 1e9:.0f} GB/s and in L2 at {best['L2'] / 1e9:.0f}: that is as fast as the loop, not the cache"
    return [one for one in memory if one.level != "L1"], {"L1": why}


def _memory(level: str, sizes: Sequence[int], threads: int, seconds: float) -> Memory:
    fixed = seconds_of_a_pass() if level == "L1" else 0.0
    tried = [(update_rates(size, threads, seconds / len(sizes), fixed), size) for size in sizes]
    rates, size = max(tried, key=lambda one: max(one[0]))
    return Memory(level=level, set_bytes=size, best=max(rates), median=median(rates))  # type: ignore[arg-type]


def _products(
    device: torch.device, names: Iterable[Precision], clock: Clock, free_bytes: int, seconds: float
) -> list[Product]:
    found = []
    squares = seconds * (1 - _OTHER_SHARE) if device.type == "cpu" else seconds
    for name in names:
        largest = math.isqrt(free_bytes // (8 * 3 * _TYPES[name].itemsize))
        sizes = [size for size in _SIZES[device.type] if size <= largest]
        with tensor_cores(device, "tf32" if name == "tf32" else "fp32"):
            best = grown(_product_times(device, _TYPES[name], clock, squares), sizes, squares)
        if device.type == "cpu":
            best = max(filter(None, [best, *_other_rates(_TYPES[name], clock, seconds * _OTHER_SHARE)]), key=lambda one: max(one[1]), default=None)  # fmt: skip
        if best is not None:
            size, rates = best
            unit = _unit(device, name)
            found.append(Product(precision=name, unit=unit, size=size, best=max(rates), median=median(rates)))
    return found


def _other_rates(dtype: torch.dtype, clock: Clock, seconds: float) -> Iterator[tuple[int, list[float]]]:
    """The rates of other work on a processor, whose libraries may be faster at it than at products of square matrices.

    Each with the side of the square matrices whose product is as much work.
    """
    calls = list(_other_work(dtype, torch.get_num_threads()))
    for flops, call in calls:
        try:
            durations = _durations(call, clock, seconds / len(calls))
        except RuntimeError:  # torch does not have it in this precision
            continue
        yield round((flops / 2) ** (1 / 3)), [flops / one for one in durations]


def _other_work(dtype: torch.dtype, threads: int) -> Iterator[tuple[float, Callable[[], object]]]:
    """A product of matrices that are not square, one with a bias, and convolutions of images in the layout channels-last."""
    (m, k, n), (rows, inner, columns) = _SHAPES
    left, right, out = (torch.rand(*sides).to(dtype) for sides in ((m, k), (k, n), (m, n)))
    yield 2.0 * m * k * n, partial(torch.mm, left, right, out=out)
    x, weight, bias = (torch.rand(*sides).to(dtype) for sides in ((rows, inner), (columns, inner), (columns,)))  # fmt: skip
    yield 2.0 * rows * inner * columns, partial(torch.nn.functional.linear, x, weight, bias)
    for channels, side in _IMAGES:
        images = max(8, 4 * threads)
        image = torch.rand(images, channels, side, side).to(dtype, memory_format=torch.channels_last)
        kernel = torch.rand(channels, channels, 3, 3).to(dtype, memory_format=torch.channels_last)
        work = 2.0 * images * channels**2 * 9 * (side - 2) ** 2
        yield work, partial(torch.nn.functional.conv2d, image, kernel)


def _product_times(
    device: torch.device, dtype: torch.dtype, clock: Clock, seconds: float
) -> Callable[[int], list[float]]:
    def times_of(size: int) -> list[float]:
        left, right = (torch.rand(size, size, device=device).to(dtype) for _ in range(2))
        out = torch.empty_like(left)
        return _durations(lambda: torch.mm(left, right, out=out), clock, seconds / 6)

    return times_of


def _durations(call: Callable[[], object], clock: Clock, seconds: float) -> list[float]:
    """The durations of a call in several trials, after one that warms up; that alone if it took all the time."""
    first = clock.seconds(call, 1)
    if first > seconds:
        return [first]
    first = clock.seconds(call, 1)  # the one before may have loaded or compiled a kernel
    times = max(math.ceil(_TRIAL_S / max(first, 1e-7)), 1)
    durations: list[float] = []
    least, most = _TRIALS
    while len(durations) < least or (len(durations) < most and sum(durations) * times < seconds):
        durations.append(clock.seconds(call, times) / times)
    return durations


def _unit(device: torch.device, precision: Precision) -> Unit:
    """The units that compute products of matrices in this precision.

    Processors of x86 and NVIDIA's GPUs have no matrix units for fp32, and NVIDIA's only in its large chips for fp64.
    """
    if device.type == "cpu":
        plain = precision in ("fp64", "fp32") and platform.machine() in ("x86_64", "AMD64")
        return "vector" if plain else "matrix"
    if torch.version.hip:
        return "matrix"
    capability = torch.cuda.get_device_capability(device)
    has = {"fp64": capability in ((8, 0), (9, 0), (10, 0)), "fp32": False}
    return "matrix" if has.get(precision, capability >= (7, 0)) else "vector"


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _free_memory() -> int:
    """Bytes of memory that are not in use; 4 GiB where the system does not say."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 4 << 30


# -- a GPU --------------------------------------------------------------------------------------------


def _measure_gpu(device: torch.device, tell: Callable[[str], None]) -> tuple[list[Rates], dict[str, str]]:
    tell(f"measuring {device}")
    with torch.cuda.device(device):
        free = torch.cuda.mem_get_info(device)[0]
        products = _products(device, _gpu_precisions(device), CudaClock(), free, _LONGEST)
        memory = [_gpu_memory("DRAM", min(_GPU_SET, free // 4), device, in_graph=False)]
        missing = {"L1": "no kernel of torch shows it alone"}
        cache = int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0))
        if cache:
            memory.insert(0, _gpu_memory("L2", cache // 2, device, in_graph=True))
        else:
            missing["L2"] = "this torch does not say how large it is"
    return [Rates(threads=None, products=products, memory=memory)], missing


def _gpu_precisions(device: torch.device) -> list[Precision]:
    names: list[Precision] = ["fp64", "fp32", "fp16"]
    if torch.version.hip or torch.cuda.get_device_capability(device) >= (8, 0):
        names.insert(2, "bf16")
        if not torch.version.hip:
            names.insert(2, "tf32")
    return names


def _gpu_memory(level: Literal["L2", "DRAM"], size: int, device: torch.device, *, in_graph: bool) -> Memory:
    """The rate of `y += x`. Kernels on a cache are short: in a graph they follow one another without their launches."""
    elements = size // 8
    x, y = torch.ones(elements, device=device), torch.zeros(elements, device=device)
    call: Callable[[], object] = partial(y.add_, x)
    calls = 1
    if in_graph:
        call()
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(_GRAPH_CALLS):
                call()
        call, calls = graph.replay, _GRAPH_CALLS
    durations = _durations(call, CudaClock(), _LONGEST / 4)
    rates = [12.0 * elements * calls / one for one in durations]
    return Memory(level=level, set_bytes=size, best=max(rates), median=median(rates))
