"""Predict what a change would gain, make the change, and measure: real loops on this machine's processors.

Each loop has one cause of lost time: a slow loader, values read one by one, a layer that computes twice, an optimizer that is
not fused. It is recorded with the cause; `what_if` predicts the step without it; then it is recorded without the cause. Steps are
measured by the time that the loop's thread ran, since other programs may run beside it.

    python benchmarks/what_if.py [--repeat 3]      prints a table for docs/what-if.md
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

import tracekit
from tracekit.analyses.what_if import Change, Fuse, NoLoaderWait, Remove, Scale, what_if

STEPS = 10
BATCH = 32


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


def mlp(*, twice: bool) -> tuple[nn.Module, tuple[int, ...]]:
    heavy = Twice(nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)), twice=twice)
    layers = [
        nn.Linear(256, 512),
        nn.ReLU(),
        heavy,
        *(nn.Linear(512, 512) for _ in range(4)),
        nn.Linear(512, 10),
    ]
    return nn.Sequential(*layers), (256,)


def cnn(*, twice: bool) -> tuple[nn.Module, tuple[int, ...]]:
    heavy = Twice(nn.Conv2d(32, 32, 3, padding=1), twice=twice)
    layers = [
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        heavy,
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
    ]
    return nn.Sequential(*layers, nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)), (3, 24, 24)


class Encoder(nn.Module):
    """Two encoder layers over sequences, the feed-forward part of the second wrapped."""

    def __init__(self, *, twice: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(64, 4, 256, batch_first=True) for _ in range(2)
        )
        self.heavy = Twice(nn.Sequential(nn.Linear(64, 1024), nn.GELU(), nn.Linear(1024, 64)), twice=twice)
        self.head = nn.Linear(64, 10)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            data = block(data)
        return self.head(self.heavy(data).mean(1))


def encoder(*, twice: bool) -> tuple[nn.Module, tuple[int, ...]]:
    return Encoder(twice=twice), (16, 64)


MODELS: dict[str, Callable[..., tuple[nn.Module, tuple[int, ...]]]] = {
    "mlp": mlp,
    "cnn": cnn,
    "encoder": encoder,
}


class Samples(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Random samples; each takes a while if `slow` is set."""

    def __init__(self, shape: tuple[int, ...], *, slow: bool) -> None:
        self.data, self.slow = torch.randn(BATCH * (STEPS + 6), *shape), slow

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.slow:
            sum(range(12_000))
        return self.data[index], index % 10


@dataclass(frozen=True)
class Cause:
    """A cause of lost time and the change that takes it away."""

    name: str
    change: Change


CAUSES = (
    Cause("slow loader", NoLoaderWait()),
    Cause("values read one by one", Remove("layer:history")),
    Cause("layer computes twice", Scale("layer:heavy", 0.5)),
    Cause("optimizer not fused", Fuse()),
)


def record(model: str, cause: str | None, folder: Path) -> tuple[Path, list[float]]:
    """The trace of a loop with this cause of lost time, and the time in ms that its thread ran in each recorded step."""
    torch.manual_seed(0)
    net, shape = MODELS[model](twice=cause == "layer computes twice")
    loader = torch.utils.data.DataLoader(Samples(shape, slow=cause == "slow loader"), batch_size=BATCH)
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False, fused=cause != "optimizer not fused")
    values: list[torch.Tensor] = list(torch.randn(3000).unbind())
    history: list[object] = []
    target, ran = folder / "trace.json", [time.thread_time()]
    plan = schedule(wait=1, warmup=3, active=STEPS, repeat=1)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=plan,
        record_shapes=True,
        on_trace_ready=lambda prof: prof.export_chrome_trace(str(target)),
    ) as prof:
        for data, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(data), labels)
            loss.backward()
            optimizer.step()
            if cause == "values read one by one":
                with record_function("history"):
                    history.extend(value.item() for value in values)
            history.clear()
            prof.step()
            ran.append(time.thread_time())
    # The last recorded step also writes the trace.
    return target, [1e3 * (after - before) for before, after in pairwise(ran)][4 : 3 + STEPS]


def kept(trace: tracekit.Trace, change: Change) -> float:
    """The part of a step that is left after the change, as predicted, over the shorter half of the steps, which were disturbed less."""
    steps = what_if(trace, [change]).steps
    if steps is None:
        raise SystemExit("the trace has no steps")
    shorter = steps.sort("before_ns").head(STEPS // 2)
    return float(shorter["after_ns"].sum() / shorter["before_ns"].sum())


def pairs(repeat: int) -> Iterator[tuple[str, str, float, float, float]]:
    """Model, cause, and the step in ms: recorded, predicted, measured, over some recordings each."""
    with tempfile.TemporaryDirectory() as folder:
        for model in MODELS:
            for cause in CAUSES:
                before: list[float] = []
                after: list[float] = []
                left = []
                for _ in range(repeat):
                    path, ran = record(model, cause.name, Path(folder))
                    before += ran
                    left.append(kept(tracekit.read(path), cause.change))
                    after += record(model, None, Path(folder))[1]
                took = statistics.median(before)
                yield model, cause.name, took, took * statistics.median(left), statistics.median(after)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    torch.set_num_threads(1)
    errors, signs = [], []
    gains: dict[str, list[tuple[float, float]]] = {}
    print("| loop | cause taken away | recorded | predicted | measured | error |")
    print("|---|---|---|---|---|---|")
    for model, cause, before, predicted, after in pairs(parser.parse_args().repeat):
        error = abs(predicted - after) / after
        errors.append(error)
        gains.setdefault(model, []).append((before - predicted, before - after))
        signs.append((predicted < before) == (after < before))
        print(
            f"| {model} | {cause} | {before:.2f} ms | {predicted:.2f} ms | {after:.2f} ms | {error:.1%} |",
            flush=True,
        )
    ranks = [(a[0] > b[0]) == (a[1] > b[1]) for each in gains.values() for a, b in combinations(each, 2)]
    print(
        f"\nMean error {statistics.mean(errors):.1%}, worst {max(errors):.1%}; sign right in {sum(signs)} of {len(signs)}, "
        f"the larger of two gains in {sum(ranks)} of {len(ranks)}."
    )


if __name__ == "__main__":
    main()
