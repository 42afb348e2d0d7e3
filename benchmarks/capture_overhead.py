"""What recording costs: each level and each option of the profiler over the level M, which records nothing.

    python benchmarks/capture_overhead.py                      # resnet50, encoder and, where it is there, bert
    python benchmarks/capture_overhead.py cnn@4x32 --rounds 20 # a workload at a batch and a size
    python benchmarks/capture_overhead.py --device cuda        # the same workloads, larger

All variants train one model on one batch in one process and take turns, in another order each round. The figure of a round is the
time of the variant's median step over that of M's in the same round; the table has the median of the rounds and
the quartiles around it. On a CPU it is the CPU time of all threads, because other jobs on a machine disturb it less than wall time;
on a GPU the time between events in the stream at the ends of steps.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
import time
import timeit
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from tracekit.capture import workloads
from tracekit.capture.device import synchronize
from tracekit.capture.marks.instrument import Instrumentation
from tracekit.capture.marks.nvtx_domain import NvtxDomain
from tracekit.capture.marks.timed import TimedMarks
from tracekit.capture.output import pack_trace
from tracekit.capture.recipe import Recipe
from tracekit.capture.recorder import train_step
from tracekit.capture.sessions import recording
from tracekit.capture.training import Training
from tracekit.capture.workloads import WorkloadOptions
from tracekit.manifest import CaptureOptions, Level, Settings

DEFAULT = {
    "cpu": ["resnet50@2x96", "encoder@8x64", "bert@1x32"],
    "cuda": ["resnet50@64x224", "encoder@8x64", "bert@16x256"],
}
AIM_NVTX_NS = 1_000
AIM_LAYERS = 1.05
AIM_ON = ("resnet50", "bert")
"""The aim for layers is for these; smaller operators leave a layer less time to hide its cost in."""


@dataclass(frozen=True)
class Variant:
    name: str
    level: Level
    shapes: bool = False
    memory: bool = False
    stack: bool = False

    def options(self, steps: int) -> CaptureOptions:
        return CaptureOptions(
            steps=steps, record_shapes=self.shapes, profile_memory=self.memory, with_stack=self.stack
        )


VARIANTS = [
    Variant("M", "M"),
    Variant("ML", "ML"),
    Variant("MLG, no options", "MLG"),
    Variant("MLG, shapes", "MLG", shapes=True),
    Variant("MLG, memory", "MLG", memory=True),
    Variant("MLG, stack", "MLG", stack=True),
    Variant("MLG, shapes and memory (the default)", "MLG", shapes=True, memory=True),
]


@dataclass(frozen=True)
class Cost:
    """Seconds of the median step; of ending the profile, per step; bytes of the trace per step."""

    step_s: float
    end_s: float
    json_bytes: float
    gzip_bytes: float


def built(name: str, batch: int | None, size: int | None, device: torch.device) -> Training:
    torch.manual_seed(0)
    factory, variant = workloads.find(name)
    recipe = factory.load()(WorkloadOptions(device, batch=batch, size=size, variant=variant))
    if not isinstance(recipe, Recipe):
        sys.exit(f"{name} brings a loop of its own")
    return Training(recipe, Settings(device=device.type, batch=batch, size=size), device)


def measured(
    training: Training,
    batches: Iterator[Any],
    variant: Variant,
    steps: int,
    work: Path | None,
    device: torch.device,
) -> Cost:
    """The cost of a variant; the size of its trace only if `work` is given, a folder to write it to."""
    on_gpu = device.type == "cuda"
    now = time.perf_counter if on_gpu else time.process_time
    times = []
    with recording(variant.level, training.model, device, variant.options(steps)) as live:
        for step in range(steps + 1):
            began = now()
            train_step(training, batches, live.phase)
            if step:  # the first one is the profiler's warm-up
                times.append(now() - began)
            if step == steps:
                synchronize(device)
            ending = now()
            live.step()
        end_s = (now() - ending) / steps
    if on_gpu:
        times = [ns / 1e9 for ns in live.recorded_step_times_ns()]
    raw = packed = 0.0
    if work is not None and variant.level == "MLG" and live.recorded is not None:
        source, target = work / "raw.json", work / "packed.gz"
        live.recorded.export(str(source))
        pack_trace(source, target, {})
        raw, packed = source.stat().st_size / steps, target.stat().st_size / steps
        source.unlink()
        target.unlink()
    return Cost(median(times), end_s, raw, packed)


def rounds_of(training: Training, rounds: int, steps: int, device: torch.device) -> dict[str, list[Cost]]:
    batches = repeat(next(training.batches()))
    found: dict[str, list[Cost]] = {variant.name: [] for variant in VARIANTS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(3):
            train_step(training, batches, lambda _phase: nullcontext())
        for number in range(rounds):
            turn = number % len(VARIANTS)
            for variant in VARIANTS[turn:] + VARIANTS[:turn]:
                work = None if number else Path(folder)
                found[variant.name].append(measured(training, batches, variant, steps, work, device))
    return found


def ratios(costs: dict[str, list[Cost]], name: str) -> list[float]:
    return [one.step_s / base.step_s for one, base in zip(costs[name], costs["M"], strict=True)]


def table(costs: dict[str, list[Cost]]) -> list[str]:
    lines = [
        "| recorded | step over M | quartiles | ending the profile | trace a step, gzip |",
        "|---|---|---|---|---|",
    ]
    for name, of_rounds in costs.items():
        found = ratios(costs, name)
        low, _, high = quantiles(found, n=4) if len(found) > 1 else 3 * found
        end = median(cost.end_s for cost in of_rounds)
        raw, packed = of_rounds[0].json_bytes, of_rounds[0].gzip_bytes
        trace = f"{raw / 1e6:.2f} MB, {packed / 1e3:.0f} kB" if raw else ""
        ended = f"{end * 1e3:.1f} ms a step" if raw else ""
        lines.append(f"| {name} | {median(found):.3f} | {low:.3f} to {high:.3f} | {ended} | {trace} |")
    return lines


def nvtx_ns() -> float:
    """Of a range of a layer while no tool listens: the least of many short tries, less the loop."""
    domain = NvtxDomain()
    if domain.active:
        sys.exit("an NVTX tool is attached, so there is nothing to measure")
    tries = {"number": 5_000, "repeat": 100}
    used = timeit.repeat(
        "with range_('tracekit.layer/x', 'layer'): pass", globals={"range_": domain.range}, **tries
    )
    return (min(used) - min(timeit.repeat("pass", **tries))) / tries["number"] * 1e9


class Nothing(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def layer_call_ns() -> float:
    """What the level ML adds to a call of a module: the least of many tries on modules that do nothing."""
    model, inputs = torch.nn.Sequential(*(Nothing() for _ in range(200))), torch.ones(1)

    def call_s() -> float:
        return min(timeit.repeat(lambda: model(inputs), number=5, repeat=100)) / 5 / 201

    bare, marks = call_s(), TimedMarks()
    marks.recording = True
    with Instrumentation(model, marks) as instrumentation:
        instrumentation.step = 1
        return (call_s() - bare) * 1e9


def parsed(text: str) -> tuple[str, int | None, int | None]:
    name, _, shape = text.partition("@")
    batch, _, size = shape.partition("x")
    return name, int(batch) if batch else None, int(size) if size else None


def is_there(text: str) -> bool:
    module = text.partition("@")[0].partition(":")[0]
    return importlib.util.find_spec(f"tracekit.capture.workloads.{module}") is not None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", metavar="NAME[@BATCHxSIZE]")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument(
        "--steps", type=int, help="timed steps of a variant in a round: 2 on a CPU, 5 on a GPU"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    device, on_gpu = torch.device(options.device), options.device == "cuda"
    rounds, steps = options.rounds or (4 if on_gpu else 8), options.steps or (4 if on_gpu else 2)
    torch.set_num_threads(options.threads)
    nanoseconds = nvtx_ns()
    print(f"NVTX range without a tool: {nanoseconds:.0f} ns")
    print(f"what the level ML adds to a module's call: {layer_call_ns():.0f} ns")
    missed = [f"an NVTX range takes {nanoseconds:.0f} ns"] if nanoseconds >= AIM_NVTX_NS else []
    figures: dict[str, Any] = {"nvtx_ns": nanoseconds}
    for text in options.workloads or filter(is_there, DEFAULT[options.device]):
        training = built(*parsed(text), device)
        costs = rounds_of(training, rounds, steps, device)
        step, modules = median(c.step_s for c in costs["M"]), len(list(training.model.modules()))
        print(
            f"\n{text}: {step * 1e3:.1f} {'' if on_gpu else 'CPU '}ms a step, {modules} modules\n",
            *table(costs),
            sep="\n",
            flush=True,
        )
        layers = median(ratios(costs, "ML"))
        if not on_gpu and layers >= AIM_LAYERS and text.startswith(AIM_ON):
            missed.append(f"{text}: layers cost {layers - 1:.1%} of a step")
        figures[text] = {name: [vars(cost) for cost in of_rounds] for name, of_rounds in costs.items()}
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))
    for text in missed:
        print(f"MISSED {text}")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
