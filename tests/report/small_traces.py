"""Small traces, written as profiler files and read back, so that every figure in a report can be worked out by hand."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tracekit
from tracekit.trace import Trace

HOSTILE = (
    "</script><script>document.title='PWNED'</script>",
    "<img src=x onerror=\"document.title='PWNED'\">",
    '"><svg onload="document.title=\'PWNED\'">',
    "'><iframe srcdoc=\"<script>parent.document.title='PWNED'</script>\">",
    "{{ 7*7 }}{% raw %}${alert(1)}`]]>-->\u2028<!--",
    "javascript:document.title='PWNED'",
    "\x1b[31mred\x1b[0m \u202ereversed | pipe `tick` [link](https://example.invalid) @someone",
)


@dataclass
class Script:
    """A profiler file in the making; times in µs."""

    events: list[dict[str, Any]] = field(default_factory=list)
    correlation: int = 0

    def host(self, name: str, start: float, length: float, category: str = "cpu_op", **args: Any) -> None:
        """A span on the main thread."""
        event = {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": 1,
            "tid": 1,
            "ts": start,
            "dur": length,
            "args": args,
        }
        self.events.append(event)

    def step(self, number: int, start: float, length: float) -> None:
        """One of the profiler's steps."""
        self.host(f"ProfilerStep#{number}", start, length, "user_annotation")

    def work(
        self,
        name: str,
        launched: float,
        start: float,
        length: float,
        *,
        stream: int = 7,
        category: str = "kernel",
        call: str = "cudaLaunchKernel",
        operator: str = "aten::mm",
        launch: bool = True,
        **args: Any,
    ) -> None:
        """A device activity, its launch call of 4 µs and the operator of 6 µs around that."""
        self.correlation += 1
        if launch:
            self.host(operator, launched - 1, 6)
            self.host(call, launched, 4, "cuda_runtime", correlation=self.correlation)
        more = {"device": 0, "stream": stream, "correlation": self.correlation, **args}
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": 0,
                "tid": stream,
                "ts": start,
                "dur": length,
                "args": more,
            }
        )

    def read(self, folder: Path, name: str = "small.json") -> Trace:
        """Write the file and read it back."""
        header = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "Test Device", "totalGlobalMem": 10**9, "numSms": 10}],
            "baseTimeNanosecond": 0,
        }
        path = folder / name
        path.write_text(json.dumps({**header, "traceEvents": self.events}))
        return tracekit.read(path)


def compute_bound(folder: Path) -> Trace:
    """Two steps of 1000 µs, in which the device works without a gap from 10 µs on."""
    script = Script()
    for number in (0, 1):
        at = 1000.0 * number
        script.step(number, at, 1000)
        script.work("void gemm_kernel<float, 4>(int)", at + 5, at + 10, 600)
        script.work("void softmax_warp_forward<float>(int)", at + 15, at + 610, 390, operator="aten::softmax")
        script.work(
            "Memcpy HtoD (Pinned -> Device)",
            at + 25,
            at + 1000,
            10,
            category="gpu_memcpy",
            call="cudaMemcpyAsync",
            operator="aten::copy_",
            bytes=1000000,
        )
    return script.read(folder)


def host_bound(folder: Path) -> Trace:
    """Ten kernels of 20 µs, each launched 80 µs after the one before it ended."""
    script = Script()
    script.step(3, 0, 1010)
    for index in range(10):
        at = 100.0 * index
        script.work("gemm_kernel", at + 5, at + 10, 20)
    return script.read(folder)


def communication_bound(folder: Path) -> Trace:
    """A kernel of 300 µs, and an all-reduce of 700 µs that waits for it."""
    script = Script()
    script.step(0, 0, 1010)
    script.work("gemm_kernel", 5, 10, 300)
    script.work("ncclDevKernel_AllReduce_Sum_f32", 20, 310, 700, stream=20, operator="c10d::allreduce_")
    return script.read(folder)


def input_bound(folder: Path) -> Trace:
    """Steps of 1000 µs, of which the data loader takes 600 and the device 300."""
    script = Script()
    for number in range(3):
        at = 1000.0 * number
        script.step(number, at, 1000)
        script.host(
            "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at + 1, 600, "user_annotation"
        )
        script.work("gemm_kernel", at + 650, at + 660, 300)
    return script.read(folder)


def short_kernels(folder: Path) -> Trace:
    """Kernels of 2 µs whose launch calls take 4 µs."""
    script = Script()
    script.step(0, 0, 1000)
    for index in range(90):
        script.work(
            "vectorized_elementwise_kernel", 10.0 * index + 5, 10.0 * index + 11, 2, operator="aten::add"
        )
    return script.read(folder)


def copy_bound(folder: Path) -> Trace:
    """A copy of 800 µs before a kernel of 100 µs."""
    script = Script()
    script.step(0, 0, 1000)
    script.work(
        "Memcpy HtoD (Pageable -> Device)",
        5,
        10,
        800,
        category="gpu_memcpy",
        call="cudaMemcpyAsync",
        operator="aten::copy_",
        bytes=8 * 10**6,
    )
    script.work("gemm_kernel", 15, 810, 100)
    return script.read(folder)


def without_launches(folder: Path) -> Trace:
    """Kernels with long gaps and no record of who launched them."""
    script = Script()
    for index in range(5):
        script.work("gemm_kernel", 0, 100.0 * index, 10, launch=False)
    return script.read(folder)


def cpu(folder: Path) -> Trace:
    """Operators only, without a device and without steps."""
    script = Script()
    script.host("aten::conv2d", 0, 700)
    script.host("aten::mm", 800, 200)
    return script.read(folder)


def nothing(folder: Path) -> Trace:
    """A Python function, and nothing that runs."""
    script = Script()
    script.host("train.py(12): main", 0, 100, "python_function")
    return script.read(folder)


def ranges_only(folder: Path) -> Trace:
    """A step with a layer in it, as the level ML of a capture records them."""
    script = Script()
    script.host("ProfilerStep#0", 0, 100, "user_annotation")
    script.host("tracekit.layer/conv", 10, 50, "user_annotation", layer="conv", layer_id=1, module="Conv2d")
    return script.read(folder)


def hostile(folder: Path) -> Trace:
    """Every text that a trace may choose is an attack."""
    script = Script()
    script.step(0, 0, 1000)
    for index, name in enumerate(HOSTILE):
        at = 100.0 * index
        script.host(name, at, 90, "user_annotation")
        script.work(name, at + 5, at + 10, 60, operator=name, **{"Input Dims": [[1, 2]], "grid": [1, 1, 1]})
        script.host(f"ProfilerStep#{name}", at + 91, 1, "user_annotation")
    script.events.append({"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": HOSTILE[0]}})
    return script.read(folder, "small.json")
