"""Predict what a change would gain, make the change, and measure: real loops.

Each loop has one cause of lost time: a slow loader, values that the host reads, a layer that computes twice, an optimizer that is
not fused, and on a GPU a step that is no CUDA graph. It is recorded with the cause; `what_if` predicts the step without it; then it is
recorded without the cause. On a processor steps are measured by the time that the loop's thread ran, since other programs may run beside
it, on a GPU by events; there the table also has the steps without the profiler, as predicted from the trace and how long they take before.
Noise spoils a pair whose steps before are longer without the profiler than with it: such pairs are named, and counted apart.

    python benchmarks/what_if.py [--repeat 3] [--device cuda]     prints a table for docs/what-if.md
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import combinations, pairwise, product
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, record_function, schedule

import tracekit
from tracekit.analyses.what_if import (
    Change,
    CudaGraph,
    Fuse,
    NoLoaderWait,
    Remove,
    RemoveSync,
    Scale,
    what_if,
)
from tracekit.capture.profiler import OneCycle
from tracekit.manifest import Run

STEPS = 10
BATCH = 32
NOISE = 0.01
"""Steps that differ by a smaller part are as long."""
UNSOUND = 1.05
"""Steps that take more than so many times as long without the profiler as with it were not measured alike."""


class Twice(nn.Module):
    """A layer, whose work is done twice if `twice` is set."""

    def __init__(self, inner: nn.Module, *, twice: bool) -> None:
        super().__init__()
        self.inner, self.twice = inner, twice

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        with record_function("heavy"):
            result = self.inner(data)
            if self.twice:
                result = (result + self.inner(data)) / 2
        return result


def mlp(*, twice: bool, large: bool) -> tuple[nn.Module, tuple[int, ...]]:
    heavy = Twice(nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)), twice=twice)
    layers = [
        nn.Linear(256, 512),
        nn.ReLU(),
        heavy,
        *(nn.Linear(512, 512) for _ in range(24 if large else 4)),
        nn.Linear(512, 10),
    ]
    return nn.Sequential(*layers), (256,)


def cnn(*, twice: bool, large: bool) -> tuple[nn.Module, tuple[int, ...]]:
    width = 128 if large else 32
    heavy = Twice(nn.Conv2d(width, width, 3, padding=1), twice=twice)
    layers = [
        nn.Conv2d(3, width, 3, padding=1),
        nn.ReLU(),
        heavy,
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
    ]
    side = 112 if large else 24
    return nn.Sequential(*layers, nn.Linear(16 * width, 512), nn.ReLU(), nn.Linear(512, 10)), (3, side, side)


class Encoder(nn.Module):
    """Encoder layers over sequences, and one more feed-forward part, wrapped."""

    def __init__(self, depth: int, width: int, *, twice: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, max(4, width // 64), 4 * width, batch_first=True)
            for _ in range(depth)
        )
        wide = 16 * width
        self.heavy = Twice(
            nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width)), twice=twice
        )
        self.head = nn.Linear(width, 10)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            data = block(data)
        return self.head(self.heavy(data).mean(1))


def encoder(*, twice: bool, large: bool) -> tuple[nn.Module, tuple[int, ...]]:
    if large:
        return Encoder(4, 512, twice=twice), (256, 512)
    return Encoder(2, 64, twice=twice), (16, 64)


MODELS: dict[str, Callable[..., tuple[nn.Module, tuple[int, ...]]]] = {
    "mlp": mlp,
    "cnn": cnn,
    "encoder": encoder,
}


class Samples(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Random samples; each takes so many additions."""

    def __init__(self, shape: tuple[int, ...], additions: int) -> None:
        self.data, self.additions = torch.randn(BATCH, *shape), additions

    def __len__(self) -> int:
        return BATCH * (STEPS + 6)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        sum(range(self.additions))
        return self.data[index % BATCH], index % 10


@dataclass(frozen=True)
class Cause:
    """A cause of lost time, the change that takes it away, and the loop after it (None: the plain one)."""

    name: str
    change: Change
    after: str | None = None


CAUSES = (
    Cause("slow loader", NoLoaderWait()),
    Cause("values read one by one", Remove("layer:history")),
    Cause("layer computes twice", Scale("layer:heavy", 0.5)),
    Cause("optimizer not fused", Fuse()),
)
GPU_CAUSES = (
    CAUSES[0],
    Cause("a value read in each layer", RemoveSync()),
    *CAUSES[2:],
    Cause("each kernel launched by itself", CudaGraph(), after="CUDA graph"),
)


def read(_layer: nn.Module, _inputs: object, output: torch.Tensor) -> None:
    output.detach().flatten()[0].item()


class Loop:
    """Training with a cause of lost time, on a device."""

    def __init__(self, model: str, cause: str | None, device: torch.device) -> None:
        torch.manual_seed(0)
        self.device, self.cause, on_gpu = device, cause, device.type == "cuda"
        net, shape = MODELS[model](twice=cause == "layer computes twice", large=on_gpu)
        self.net = net.to(device)
        fused = cause != "optimizer not fused"
        self.optimizer = torch.optim.AdamW(
            net.parameters(), foreach=False, fused=fused, capturable=fused and on_gpu
        )
        additions = (60_000 if on_gpu else 12_000) if cause == "slow loader" else 0
        samples = Samples(shape, additions)
        self.loader = torch.utils.data.DataLoader(samples, batch_size=BATCH, pin_memory=on_gpu)
        self.values = list(torch.randn(3000).unbind()) if cause == "values read one by one" else []
        for layer in net.modules() if cause == "a value read in each layer" else ():
            if not list(layer.children()):
                layer.register_forward_hook(read)
        self.graph = self.captured(shape) if cause == "CUDA graph" else None

    def update(self, data: torch.Tensor, labels: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.net(data), labels).backward()
        self.optimizer.step()

    def captured(self, shape: tuple[int, ...]) -> torch.cuda.CUDAGraph:
        """The update as one graph, of inputs that stay where they are."""
        self.data = torch.zeros(BATCH, *shape, device=self.device)
        self.labels = torch.zeros(BATCH, dtype=torch.long, device=self.device)
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(3):
                self.update(self.data, self.labels)
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.update(self.data, self.labels)
        return graph

    def step(self, data: torch.Tensor, labels: torch.Tensor) -> None:
        if self.graph is not None:
            self.data.copy_(data, non_blocking=True)
            self.labels.copy_(labels, non_blocking=True)
            self.graph.replay()
            return
        self.update(*(each.to(self.device, non_blocking=True) for each in (data, labels)))
        if self.values:
            with record_function("history"):
                history = [value.item() for value in self.values]
            history.clear()

    def mark(self) -> Any:
        """This moment, of the device or of this thread."""
        if self.device.type == "cpu":
            return time.thread_time()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def run(self, trace: Path | None) -> list[float]:
        """Times in ms of the recorded steps but the last, which also writes the trace; without a path nothing is recorded."""
        on_gpu = self.device.type == "cuda"
        recorder = OneCycle(
            activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])],
            schedule=schedule(wait=1, warmup=3, active=STEPS, repeat=1),
            record_shapes=True,
            on_trace_ready=lambda prof: prof.export_chrome_trace(str(trace)),
        )
        marks = [self.mark()]
        with nullcontext() if trace is None else recorder:
            for data, labels in self.loader:
                self.step(data, labels)
                if trace is not None:
                    recorder.step()
                marks.append(self.mark())
        if not on_gpu:
            return [1e3 * (after - before) for before, after in pairwise(marks)][4 : 3 + STEPS]
        torch.cuda.synchronize()
        return [before.elapsed_time(after) for before, after in pairwise(marks)][4 : 3 + STEPS]


def kept(trace: tracekit.Trace, change: Change, *, on_gpu: bool) -> float:
    """The part of a step that is left after the change, as predicted.

    On a processor over the shorter half of the steps, which were disturbed less; on a GPU the host runs ahead of them.
    """
    found = what_if(trace, [change])
    if found.steps is None or found.step_before_ns is None or found.step_after_ns is None:
        raise SystemExit("the trace has no steps")
    if on_gpu:
        return found.step_after_ns / found.step_before_ns
    shorter = found.steps.sort("before_ns").head(STEPS // 2)
    return float(shorter["after_ns"].sum() / shorter["before_ns"].sum())


@dataclass
class Times:
    """Steps in ms with and without a cause, and the part that should be left."""

    before: float
    after: float
    kept: float

    @property
    def error(self) -> float:
        return abs(self.before * self.kept - self.after) / self.after

    @property
    def gains(self) -> tuple[float, float]:
        """In ms, as predicted and as measured."""
        return self.before * (1 - self.kept), self.before - self.after

    @property
    def sign_right(self) -> bool:
        """Whether a gain, a loss, or neither, was predicted where it was measured."""
        predicted, measured = (
            (gain > 0) - (gain < 0) if abs(gain) >= NOISE * self.before else 0 for gain in self.gains
        )
        return predicted == measured

    def cells(self) -> list[str]:
        times = self.before, self.before * self.kept, self.after
        return [*(f"{each:.2f} ms" for each in times), f"{self.error:.1%}"]


@dataclass
class Pair:
    """A loop and a cause: its steps recorded, and (on a GPU) without the profiler."""

    model: str
    cause: str
    recorded: Times
    plain: Times | None = None

    @property
    def told(self) -> Times:
        return self.plain or self.recorded

    @property
    def sound(self) -> bool:
        return self.plain is None or self.plain.before <= UNSOUND * self.recorded.before

    def row(self) -> str:
        cells = [self.model, self.cause, *self.recorded.cells(), *(self.plain.cells() if self.plain else [])]
        return f"| {' | '.join(cells)} |"


def summary(pairs: list[Pair]) -> str:
    """How good the predictions are."""
    errors = [pair.told.error for pair in pairs]
    signs = [pair.told.sign_right for pair in pairs]
    ranks = [
        (one.told.gains[0] > other.told.gains[0]) == (one.told.gains[1] > other.told.gains[1])
        for one, other in combinations(pairs, 2)
        if one.model == other.model
    ]
    return (
        f"mean error {statistics.mean(errors):.1%}, median {statistics.median(errors):.1%}, worst {max(errors):.1%}; sign right in {sum(signs)} "
        f"of {len(signs)}, the larger of two gains in {sum(ranks)} of {len(ranks)}"
    )


def unrecorded(trace: tracekit.Trace, recorded: list[float], plain: list[float]) -> tracekit.Trace:
    """The trace as that of a capture that measured its steps in ms without recording, too: what-if starts from those."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from manifests import manifest  # noqa: PLC0415 - only a GPU needs it

    runs = [
        Run(level=level, step_times_ns=[round(1e6 * each) for each in times])
        for level, times in (("M", plain), ("MLG", recorded))
    ]
    return replace(trace, manifest=manifest(device="cuda", runs=runs))


def measured(model: str, cause: Cause, repeat: int, device: torch.device, trace: Path) -> Pair | None:
    """Medians over some recordings; None if a loop or a prediction fails, which it tells."""
    on_gpu = device.type == "cuda"
    times: list[list[float]] = [[], [], [], []]
    left: list[list[float]] = [[], []]
    try:
        for _ in range(repeat):
            loop = Loop(model, cause.name, device)
            runs = [loop.run(trace)]
            found = tracekit.read(trace)
            without = Loop(model, cause.after, device)
            runs.append(without.run(trace))
            left[0].append(kept(found, cause.change, on_gpu=on_gpu))
            if on_gpu:
                runs += [loop.run(None), without.run(None)]
                found = unrecorded(found, runs[0], runs[2])
                left[1].append(kept(found, cause.change, on_gpu=True))
            for known, more in zip(times, runs, strict=False):
                known.extend(more)
    except (tracekit.TracekitError, RuntimeError) as error:
        print(f"| {model} | {cause.name} | {type(error).__name__}: {error} |", flush=True)
        return None
    before, after, *plain = (statistics.median(each) for each in times if each)
    parts = [statistics.median(each) for each in left if each]
    recorded = Times(before, after, parts[0])
    return Pair(model, cause.name, recorded, Times(*plain, parts[1]) if on_gpu else None)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="mlp|cnn|encoder")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    torch.set_num_threads(1)
    plain = " before, no profiler | predicted | measured | error |" if given.device != "cpu" else ""
    print(f"| loop | cause taken away | recorded | predicted | measured | error |{plain}")
    print("|" + "---|" * (10 if plain else 6))
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for model, cause in product(given.models, GPU_CAUSES if plain else CAUSES):
            pair = measured(
                model, cause, given.repeat, torch.device(given.device), Path(folder) / "trace.json"
            )
            if pair is not None:
                found.append(pair)
                print(pair.row(), flush=True)
    sound = [pair for pair in found if pair.sound]
    print(f"\nOf {len(found)} pairs: {summary(found)}.")
    if len(sound) < len(found):
        names = ", ".join(f"{pair.model} {pair.cause}" for pair in found if not pair.sound)
        print(
            f"Without those whose steps before are longer without the profiler ({names}): {summary(sound)}."
        )


if __name__ == "__main__":
    main()
