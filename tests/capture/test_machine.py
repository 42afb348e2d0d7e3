"""The ceilings of a machine: how rates of arithmetic and of memory are measured."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tracekit.capture import machine, machine_memory
from tracekit.capture.machine_memory import Cache, caches_of, update_rates, working_sets
from tracekit.errors import UsageError
from tracekit.machine_file import Memory

KIB, MIB = 1 << 10, 1 << 20


# -- products -----------------------------------------------------------------------------------------


def law(peak: float, half_at: int) -> Callable[[int], list[float]]:
    """The durations of a device whose rate approaches a peak."""
    return lambda size: [2 * size**3 / (peak * size / (size + half_at))] * 3


@pytest.mark.parametrize(("peak", "half_at", "size"), [(1e11, 1, 256), (1e14, 2000, 8192)])
def test_sizes_grow_until_the_rate_no_longer_rises(peak: float, half_at: int, size: int) -> None:
    found = machine.grown(law(peak, half_at), (256, 512, 1024, 2048, 4096, 8192), seconds=1e9)
    assert found is not None
    assert found[0] == size
    assert max(found[1]) == pytest.approx(peak * size / (size + half_at))


def test_a_size_that_was_disturbed_does_not_end_the_growth() -> None:
    steady = law(1e12, 500)
    found = machine.grown(
        lambda size: [10 * one for one in steady(size)] if size == 512 else steady(size),
        (256, 512, 1024),
        seconds=1e9,
    )
    assert found is not None
    assert found[0] == 1024


def test_a_size_that_would_take_too_long_is_not_tried() -> None:
    tried = []

    def slow(size: int) -> list[float]:
        tried.append(size)
        return [2 * size**3 / 1e9]  # 34 ms, 0.27 s, 2.1 s, 17 s

    found = machine.grown(slow, (256, 512, 1024, 2048), seconds=1.0)
    assert tried == [256, 512]
    assert found is not None
    assert machine.grown(slow, (), seconds=1.0) is None


class Scripted:
    """A clock by which a call takes a known time, the first one longer."""

    def __init__(self, first: float, then: float) -> None:
        self.first, self.then, self.asked = first, then, list[int]()

    def seconds(self, call: Callable[[], object], times: int) -> float:
        call()
        self.asked.append(times)
        return self.first if len(self.asked) == 1 else self.then * times


def test_the_call_that_warms_up_does_not_count_and_short_calls_are_timed_together() -> None:
    clock = Scripted(first=0.1, then=0.0001)
    durations = machine._durations(lambda: None, clock, seconds=0.2)
    assert clock.asked[:3] == [1, 1, 20], "20 calls of 0.1 ms fill a trial of 2 ms"
    assert durations == pytest.approx([0.0001] * len(durations))
    assert 3 <= len(durations) <= 200
    long = Scripted(first=5.0, then=5.0)
    assert machine._durations(lambda: None, long, seconds=0.2) == [5.0]
    assert long.asked == [1]


@pytest.mark.parametrize(
    ("capability", "hip", "units"),
    [
        ((6, 0), None, {"fp64": "vector", "fp32": "vector", "fp16": "vector"}),
        ((7, 0), None, {"fp64": "vector", "fp32": "vector", "fp16": "matrix"}),
        (
            (8, 6),
            None,
            {"fp64": "vector", "fp32": "vector", "tf32": "matrix", "bf16": "matrix", "fp16": "matrix"},
        ),
        (
            (9, 0),
            None,
            {"fp64": "matrix", "fp32": "vector", "tf32": "matrix", "bf16": "matrix", "fp16": "matrix"},
        ),
        ((9, 4), "6.0", {"fp64": "matrix", "fp32": "matrix", "bf16": "matrix", "fp16": "matrix"}),
    ],
)
def test_each_gpu_is_asked_for_the_precisions_that_it_has(
    capability: tuple[int, int], hip: str | None, units: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.version, "hip", hip)
    gpu = torch.device("cuda")
    assert {name: machine._unit(gpu, name) for name in machine._gpu_precisions(gpu)} == units


class Convolving:
    """A clock by which a convolution computes 200 GFLOP/s, and all else 100 or less."""

    def seconds(self, call: Callable[[], object], times: int) -> float:
        if not isinstance(call, partial):  # a product of square matrices
            return 2 * 256**3 / 1e11 * times
        if call.func is torch.nn.functional.conv2d:
            image, kernel = call.args
            places = image.shape[0] * (image.shape[2] - 2) ** 2
            return float(2 * places * kernel.numel() / 2e11 * times)
        return 1.0 * times


def test_a_peak_is_that_of_the_fastest_work_and_not_of_square_products(monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """Torch's own convolutions ran at 2.3 times the peak that square products had on their slow path."""
    monkeypatch.setattr(machine, "_SIZES", {"cpu": (256,)})
    (found,) = machine._products(torch.device("cpu"), ["fp32"], Convolving(), 1 << 32, 0.1)
    assert found.best == pytest.approx(2e11)
    assert found.size == round((8 * 28**2 * 9 * 128**2) ** (1 / 3)), "a square product of as much work"


def test_a_precision_that_torch_has_no_convolution_for_has_the_rate_of_its_products(monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    def lacks(*_: object) -> None:
        raise RuntimeError("not implemented for 'Half'")

    monkeypatch.setattr(machine, "_SIZES", {"cpu": (256,)})
    monkeypatch.setattr(torch.nn.functional, "conv2d", lacks)
    monkeypatch.setattr(machine, "_TRIALS", (1, 1))
    (found,) = machine._products(torch.device("cpu"), ["fp16"], machine.HostClock(), 1 << 32, 0.01)
    assert found.best > 0


# -- a GPU, pretended ---------------------------------------------------------------------------------


class Event:
    """Events of a stream on which each call takes 2 ms; the time of an event is known once it was waited for."""

    clock = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.at, self.waited = -1.0, False

    def record(self) -> None:
        self.at = Event.clock

    def synchronize(self) -> None:
        self.waited = True

    def elapsed_time(self, end: Event) -> float:
        assert end.waited, "CUDA raises an error for an event that has not happened yet"
        return end.at - self.at


def work() -> None:
    Event.clock += 2.0


def test_work_on_a_stream_is_timed_by_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    assert machine.CudaClock().seconds(work, 5) == pytest.approx(0.010)


def test_updates_of_a_cache_run_in_a_graph_and_all_of_them_count(monkeypatch: pytest.MonkeyPatch) -> None:
    replays = []

    class Graph:
        def replay(self) -> None:
            replays.append(1)

    @contextmanager
    def captured(graph: Graph) -> Iterator[None]:
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", captured)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    monkeypatch.setattr(machine, "CudaClock", lambda: Scripted(first=0.0, then=0.001))
    found = machine._gpu_memory("L2", 8_000, torch.device("cpu"), in_graph=True)
    assert replays
    assert found.best == pytest.approx(12 * 1000 * 50 / 0.001)
    plain = machine._gpu_memory("DRAM", 8_000, torch.device("cpu"), in_graph=False)
    assert plain.best == pytest.approx(12 * 1000 / 0.001)


def test_a_gpu_is_measured_with_tf32_on_for_its_own_products_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """On torch's device `meta`, where operators have shapes and types and compute nothing."""
    allowed, products = [], []

    @contextmanager
    def tensor_cores(device: torch.device, precision: str) -> Iterator[None]:
        allowed.append(precision)
        yield
        allowed.append("restored")

    def mm(left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor) -> None:
        products.append((left.dtype, allowed[-1], left.shape[0]))

    class Graph:
        def replay(self) -> None: ...

    monkeypatch.setattr(machine, "tensor_cores", tensor_cores)
    monkeypatch.setattr(machine, "_SIZES", {"meta": (1024, 2048, 1 << 20)})
    monkeypatch.setattr(machine, "CudaClock", lambda: Scripted(first=0.001, then=0.001))
    monkeypatch.setattr(torch, "mm", mm)
    for name, value in {
        "device": lambda device: nullcontext(),
        "mem_get_info": lambda device: (1 << 32, 1 << 33),
        "get_device_capability": lambda device: (8, 0),
        "get_device_properties": lambda device: SimpleNamespace(L2_cache_size=40 * MIB),
        "synchronize": lambda device: None,
        "CUDAGraph": Graph,
        "graph": lambda graph: nullcontext(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    (rates,), missing = machine._measure_gpu(torch.device("meta"), lambda text: None)
    assert rates.threads is None
    assert [one.precision for one in rates.products] == ["fp64", "fp32", "tf32", "bf16", "fp16"]
    assert [(one.level, one.set_bytes) for one in rates.memory] == [("L2", 20 * MIB), ("DRAM", 1 << 30)]
    assert list(missing) == ["L1"]
    assert {(dtype, setting) for dtype, setting, _ in products} == {
        (torch.float64, "fp32"),
        (torch.float32, "fp32"),
        (torch.float32, "tf32"),
        (torch.bfloat16, "fp32"),
        (torch.float16, "fp32"),
    }
    assert {size for _, _, size in products} == {1024, 2048}, "three matrices of 2²⁰ rows do not fit"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_is_measured_below_its_data_sheet_and_not_far_below() -> None:
    from tracekit.facts.ceilings import catalogue_ceilings

    found = machine.measure("cuda").ceilings()
    assert found is not None
    assert {"fp64", "fp32", "fp16"} <= {precision for precision, _ in found.compute}
    memory = torch.cuda.get_device_properties(0).total_memory
    if sheet := catalogue_ceilings(found.device, memory):
        for (precision, unit), rate in found.compute.items():
            if peak := sheet.peak(precision, unit):
                assert 0.4 < rate / peak < 1.05, (precision, unit)
        assert 0.6 < found.bandwidth["DRAM"] / sheet.bandwidth["DRAM"] < 1.02


# -- memory -------------------------------------------------------------------------------------------

sizes_of_caches = st.tuples(st.integers(3, 7), st.integers(0, 6), st.integers(0, 6)).map(
    lambda powers: [KIB << (powers[0] + more) for more in (0, powers[1], powers[1] + powers[2])]
)


@given(
    sizes=sizes_of_caches,
    shared=st.lists(st.sampled_from([1, 2, 8, 16]), min_size=3, max_size=3),
    threads=st.integers(1, 64),
    cpus=st.integers(1, 128),
    free=st.integers(1, 1 << 40),
)
def test_each_array_fits_its_cache_and_not_the_one_before(
    sizes: list[int], shared: list[int], threads: int, cpus: int, free: int
) -> None:
    caches = {f"L{n + 1}": Cache(sizes[n], shared[n]) for n in range(3)}
    found, missing = working_sets(caches, threads, cpus, free)
    assert found.keys() | missing.keys() == {"L1", "L2", "L3", "DRAM"}
    assert not found.keys() & missing.keys()
    before = 0
    for level, cache in caches.items():
        part = cache.size // min(cache.shared, threads)
        for size in found.get(level, ()):
            assert 2 * before <= size <= part // 2
        before = part
    for size in found.get("DRAM", ()):
        assert size * threads <= free / 8
        assert size * threads > 3.9 * caches["L3"].size


def test_without_a_description_of_the_caches_only_the_memory_is_measured() -> None:
    found, missing = working_sets({}, 2, 2, 1 << 34)
    assert list(found) == ["DRAM"]
    assert missing == {"caches": "the system does not say how large they are"}


def test_the_caches_are_those_that_linux_describes(tmp_path: Path) -> None:
    described = [
        ("Data", 1, "48K", "0,64"),
        ("Instruction", 1, "32K", "0,64"),
        ("Unified", 2, "2048K", "0,64"),
    ]
    described.append(("Unified", 3, "61440K", "0-31,64-95"))
    for number, texts in enumerate(described):
        entry = tmp_path / "cpu0" / "cache" / f"index{number}"
        entry.mkdir(parents=True)
        for name, text in zip(("type", "level", "size", "shared_cpu_list"), texts, strict=True):
            (entry / name).write_text(f"{text}\n")
    assert caches_of(tmp_path) == {
        "L1": Cache(48 * KIB, 2),
        "L2": Cache(2 * MIB, 2),
        "L3": Cache(60 * MIB, 64),
    }
    (entry / "size").unlink()
    assert caches_of(tmp_path) == {}
    assert caches_of(tmp_path / "none") == {}


@pytest.mark.parametrize(("set_bytes", "threads"), [(8 * KIB, 1), (8 * KIB, 2), (16 * MIB, 2)])
def test_updates_are_made_as_often_as_they_are_counted(
    set_bytes: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sums in the arrays are the oracle: each pass adds one."""
    arrays = []
    filled = machine_memory._filled

    def kept(elements: int, value: float) -> Any:
        array = filled(elements, value)
        arrays.append((value, array))
        return array

    monkeypatch.setattr(machine_memory, "_filled", kept)
    monkeypatch.setattr(machine_memory, "_TRIAL_BYTES", 1.2e5)
    now = iter(range(10**9))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(now)))
    rates = update_rates(set_bytes, threads, 0.0)
    sums = [array for value, array in arrays if value == 0]
    assert len(sums) == threads
    elements = sums[0].size
    assert elements * 8 == set_bytes
    if set_bytes < 1 << 20:
        passes = round(1.2e5 * threads / (12 * elements))
        assert all((array == passes).all() for array in sums), "each trial begins with the first row"
    else:
        assert all((array == len(rates) + 1).all() for array in sums)


def test_what_a_pass_takes_beside_its_updates_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of half a first cache took a third of their time to begin, so that L1 was slower than L2."""
    monkeypatch.setattr(machine_memory, "_timed", lambda x, y, passes: (0.0, passes * (10e-9 + x.size * 0.03e-9)))  # fmt: skip
    fixed = machine_memory.seconds_of_a_pass()
    assert fixed == pytest.approx(10e-9, rel=0.01)
    assert max(update_rates(8 * KIB, 1, 0.0, fixed)) == pytest.approx(12 / 0.03e-9, rel=0.01)


def test_a_first_cache_that_is_no_faster_than_the_second_is_not_stored() -> None:
    def made(level: str, best: float) -> Memory:
        return Memory(level=level, set_bytes=1, best=best, median=best)  # type: ignore[arg-type]

    kept, hidden = machine._told_apart([made("L1", 246e9), made("L2", 320e9), made("DRAM", 50e9)])
    assert [one.level for one in kept] == ["L2", "DRAM"]
    assert hidden["L1"].startswith("updates in it ran at 246 GB/s and in L2 at 320")
    assert machine._told_apart([made("L1", 490e9), made("L2", 320e9)]) == ([made("L1", 490e9), made("L2", 320e9)], {})  # fmt: skip
    assert machine._told_apart([made("L1", 490e9)])[1] == {}


@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_a_thread_without_memory_ends_the_measurement(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    filled, calls = machine_memory._filled, iter(range(100))

    def scarce(elements: int, value: float) -> Any:
        if next(calls) >= first:
            raise MemoryError
        return filled(elements, value)

    monkeypatch.setattr(machine_memory, "_filled", scarce)
    before = threading.active_count()
    for _ in range(20):
        with pytest.raises(MemoryError):
            update_rates(KIB, 2, 0.01)
    assert threading.active_count() == before


def test_an_interrupt_before_all_threads_work_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    start, calls = threading.Thread.start, iter(range(100))

    def interrupted(self: threading.Thread) -> None:
        if next(calls) == 1:
            raise KeyboardInterrupt
        start(self)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        update_rates(KIB, 2, 0.01)
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=60)
        assert not thread.is_alive()


def test_threads_are_no_setting_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "resolve_device", lambda name: SimpleNamespace(type="cuda"))
    with pytest.raises(UsageError, match="--threads"):
        machine.measure("cuda", [1])
