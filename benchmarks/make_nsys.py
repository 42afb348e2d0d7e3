"""Make a large Nsight Systems export: a training loop under torch's `emit_nvtx`, as `nsys export` writes it.

    python benchmarks/make_nsys.py out.sqlite --ranges 2000000 --kernels 900000

One step is planned in Python; SQLite repeats it with shifted times and numbers, so that the memory needed is that of
one step and 16 million ranges take minutes. Forward runs on one thread, backward on another; layers are ranges with
registered names, operators have texts of their own, with autograd's sequence numbers.
"""

from __future__ import annotations

import argparse
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["make"]

PROCESS = 1 << 48 | 4242 << 24
MAIN, ENGINE = PROCESS | 4242, PROCESS | 4261
RANGES_PER_LAYER, LEAVES_PER_LAYER = 24, 9
MOST_LAYERS = 80
ENGINE_NAME = "autograd::engine::evaluate_function: "
FORWARD = (
    ("attn", ("aten::linear", "aten::addmm"), "aten::_flash_attention_forward"),
    ("mlp", ("aten::linear", "aten::addmm"), "aten::gelu"),
)
BACKWARD = (
    ("GeluBackward0", "aten::gelu_backward"),
    ("AddmmBackward0", "aten::mm"),
    ("FlashAttentionBackward0", "aten::_flash_attention_backward"),
    ("AddmmBackward0", "aten::mm"),
)
KERNELS = tuple(
    f"void at::native::vectorized_elementwise_kernel<4, at::native::Functor{i}<float>, std::array<char*, 3ul>>(int, "
    f"at::native::Functor{i}<float>, std::array<char*, 3ul>)"
    for i in range(40)
)
SHAPES = ", sizes = [[64, 1024, 4096], [4096, 4096], [4096]]"

TABLES = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT);
CREATE TABLE ThreadNames (nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER);
CREATE TABLE TARGET_INFO_GPU (id INTEGER NOT NULL, name TEXT, totalMemory INTEGER, memoryBandwidth INTEGER,
    clockRate INTEGER, smCount INTEGER, computeMajor INTEGER, computeMinor INTEGER, threadsPerWarp INTEGER,
    maxWarpsPerSm INTEGER, cuDevice INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
    category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER,
    domainId INTEGER, uint64Value INTEGER, int64Value INTEGER, doubleValue REAL, uint32Value INTEGER,
    int32Value INTEGER, floatValue REAL, jsonTextId INTEGER, jsonText TEXT, binaryData TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
    globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL,
    callchainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER,
    globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER,
    launchType INTEGER, registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, gridY INTEGER NOT NULL,
    gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL,
    staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL, graphNodeId INTEGER);
CREATE TEMP TABLE plan_ranges (start, end, thread, name_id, head, seq, op, tail);
CREATE TEMP TABLE plan_launches (start, end, thread, correlation, name_id, class);
CREATE TEMP TABLE plan_kernels (start, end, correlation, name_id, grid);
"""

NUMBERS = "WITH RECURSIVE steps(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM steps WHERE n + 1 < :steps)"
REPEAT = (
    f"""INSERT INTO NVTX_EVENTS (start, end, eventType, globalTid, textId, domainId, text) {NUMBERS}
    SELECT start + n * :length, end + n * :length, 59, thread, name_id, 0, CASE WHEN head IS NOT NULL THEN head
        || CASE WHEN seq IS NULL THEN '' ELSE ', seq = ' || (seq + n * :sequences) END
        || ', op_id = ' || (op + n * :operators) || tail
        WHEN name_id IS NULL THEN 'ProfilerStep#' || n || ', op_id = ' || (op + n * :operators) END
    FROM steps CROSS JOIN plan_ranges""",
    f"""INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME {NUMBERS}
    SELECT start + n * :length, end + n * :length, class, thread, correlation + n * :launches, name_id, 0, NULL
    FROM steps CROSS JOIN plan_launches""",
    f"""INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL {NUMBERS}
    SELECT start + n * :length, end + n * :length, 0, 1, NULL, 7, correlation + n * :launches, {PROCESS}, name_id,
        name_id, NULL, 1, 32, grid, 1, 1, 128, 1, 1, 1024, 0, NULL
    FROM steps CROSS JOIN plan_kernels""",
)


@dataclass
class Step:
    """The rows of one step, with times from its start and numbers from 1."""

    layers: int
    kernels: int
    shapes: bool
    ranges: list[tuple[object, ...]] = field(default_factory=list)
    calls: list[tuple[object, ...]] = field(default_factory=list)
    work: list[tuple[object, ...]] = field(default_factory=list)
    strings: dict[str, int] = field(default_factory=dict)
    clock: int = 0
    device: int = 0
    sequence: int = 1
    operator: int = 1
    leaves: int = 0
    launches: int = 0

    def string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings) + 1)

    def range(self, start: int, thread: int, name: str, sequence: int | None, *, op: bool = True) -> None:
        """From `start` until now; rows are put into the order of their starts at the end."""
        tail = SHAPES if self.shapes else ""
        text = (None, name, sequence, self.operator, tail) if op else (self.string(name), None, None, 0, "")
        self.ranges.append((start, self.clock, thread, *text))
        self.operator += op
        self.clock += 500

    def leaf(self, thread: int) -> None:
        """As many launches as bring the step to its number of kernels."""
        total = self.layers * LEAVES_PER_LAYER
        self.leaves += 1
        self.clock += 3_000
        for _ in range(self.leaves * self.kernels // total - (self.leaves - 1) * self.kernels // total):
            self.launch(thread)

    def launch(self, thread: int) -> None:
        self.launches += 1
        start, driver = self.clock + 1_000, self.launches % 5 == 0
        name = "cuLaunchKernelEx" if driver else "cudaLaunchKernel_v7000"
        self.clock = start + 4_000
        self.calls.append((start, self.clock, thread, self.launches, self.string(name), int(driver)))
        begins = max(self.device + 800, start + 6_000)
        self.device = begins + 2_000 + self.launches % 7 * 900
        kernel = self.string(KERNELS[self.launches % len(KERNELS)])
        self.work.append((begins, self.device, self.launches, kernel, 1 + self.launches % 2_000))

    def plan(self) -> None:
        self.clock = 2_000
        for layer in range(self.layers):
            self.forward(layer)
        for _ in range(self.layers):
            self.backward()
        begun = self.clock
        self.launch(MAIN)
        self.clock += 20_000
        self.range(begun, MAIN, "Optimizer.step#AdamW.step", None)
        self.clock = max(self.clock, self.device) + 5_000
        self.ranges.append((0, self.clock, MAIN, None, None, None, self.operator, ""))
        self.clock += 1_000
        self.ranges.sort(key=lambda row: (row[0], -int(str(row[1]))))

    def forward(self, layer: int) -> None:
        outer = self.clock
        for part, nested, alone in FORWARD:
            module = self.clock = self.clock + 500
            first = self.clock = self.clock + 500
            second = self.clock = self.clock + 500
            self.leaf(MAIN)
            self.range(second, MAIN, nested[1], self.sequence)
            self.range(first, MAIN, nested[0], self.sequence)
            third = self.clock = self.clock + 500
            self.leaf(MAIN)
            self.range(third, MAIN, alone, self.sequence + 1)
            self.range(module, MAIN, f"model.layers.{layer}.{part}", None, op=False)
            self.sequence += 2
        self.range(outer, MAIN, f"model.layers.{layer}", None, op=False)

    def backward(self) -> None:
        for name, op in BACKWARD:
            self.sequence -= 1
            self.node(name, op, self.sequence)
        self.node("torch::autograd::AccumulateGrad", "aten::add_", None)

    def node(self, name: str, op: str, sequence: int | None) -> None:
        outer = self.clock = self.clock + 500
        inner = self.clock = self.clock + 500
        leaf = self.clock = self.clock + 500
        self.leaf(ENGINE)
        self.range(leaf, ENGINE, op, None)
        self.range(inner, ENGINE, name, sequence)
        self.range(outer, ENGINE, ENGINE_NAME + name, sequence)


def make(path: Path, ranges: int, kernels: int, *, shapes: bool = False) -> tuple[int, int]:
    """Write an export of about so many ranges and kernels; returns their numbers. Replaces the file."""
    layers = max(1, min(MOST_LAYERS, ranges // RANGES_PER_LAYER))
    steps = max(1, round(ranges / (layers * RANGES_PER_LAYER + 2)))
    step = Step(layers, max(kernels // steps - 1, 0), shapes)  # the optimizer launches one more
    step.plan()
    path.unlink(missing_ok=True)
    base = sqlite3.connect(path)
    base.executescript(
        "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA temp_store = MEMORY;" + TABLES
    )
    base.executemany("INSERT INTO plan_ranges VALUES (?, ?, ?, ?, ?, ?, ?, ?)", step.ranges)
    base.executemany("INSERT INTO plan_launches VALUES (?, ?, ?, ?, ?, ?)", step.calls)
    base.executemany("INSERT INTO plan_kernels VALUES (?, ?, ?, ?, ?)", step.work)
    shift = {
        "steps": steps,
        "length": step.clock,
        "sequences": 4 * layers,
        "operators": step.operator,
        "launches": step.launches,
    }
    for statement in REPEAT:
        base.execute(statement, shift)
    for name, thread in (("python", MAIN), ("pt_autograd_0", ENGINE)):
        base.execute("INSERT INTO ThreadNames VALUES (?, 20, ?)", (step.string(name), thread))
    base.executemany(
        "INSERT INTO StringIds VALUES (?, ?)", [(number, text) for text, number in step.strings.items()]
    )
    known = {"EXPORT_PRODUCT_VERSION": "2025.3.1.90", "EXPORT_SCHEMA_VERSION": "3.20.2"}
    base.executemany("INSERT INTO META_DATA_EXPORT VALUES (?, ?)", known.items())
    device = (
        0,
        "NVIDIA H100 80GB HBM3",
        84_987_740_160,
        3_352_320_000_000,
        1_980_000_000,
        132,
        9,
        0,
        32,
        64,
        0,
    )
    base.execute(f"INSERT INTO TARGET_INFO_GPU VALUES ({', '.join('?' * len(device))})", device)
    base.commit()
    base.close()
    return steps * len(step.ranges), steps * len(step.work)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--ranges", type=int, default=2_000_000)
    parser.add_argument("--kernels", type=int, default=900_000)
    parser.add_argument("--shapes", action="store_true", help="operators with the sizes of their inputs")
    wanted = parser.parse_args()
    ranges, kernels = make(wanted.out, wanted.ranges, wanted.kernels, shapes=wanted.shapes)
    megabytes = wanted.out.stat().st_size / 1e6
    print(f"{wanted.out}: {ranges:,} ranges, {kernels:,} kernels, {megabytes:,.0f} MB")


if __name__ == "__main__":
    main()
