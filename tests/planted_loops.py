"""Programs whose steps are known: networks in training and at inference, and other loops, as launches on a host."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from planted import US, Planted

from tracekit.trace import Trace

CAPTURED = frozenset({"device", "launches", "ops"})
ADAM = "void at::native::multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<float, 4>>"
COPY = "void at::native::multi_tensor_apply_kernel<TensorListMetadata<2>, CopyFunctor<float>>"
MAIN, ENGINE = 1, 2


@dataclass
class Network:
    """Names of the kernels of each part."""

    embed: list[str]
    layer: list[str]
    head: list[str]
    layers: int

    @staticmethod
    def random(rng: random.Random, *, layers: int | None = None, launches: int | None = None) -> Network:
        """A network whose parts share a few names, as elementwise kernels do."""
        names = [
            f"{kind}_{number}" for kind in ("gemm", "softmax_warp", "elementwise") for number in range(3)
        ]
        size = launches or rng.randint(3, 10)
        return Network(
            ["embedding_gather", *(rng.choice(names) for _ in range(rng.randint(0, 2)))],
            [rng.choice(names) for _ in range(size)],
            [*(rng.choice(names) for _ in range(rng.randint(1, 3))), "head_gemm"],
            layers if layers is not None else rng.randint(1, 12),
        )


@dataclass
class Loop(Planted):
    """A trace in the making. `marks` are the true starts of the steps, in ns."""

    rng: random.Random = field(default_factory=lambda: random.Random(0))
    clock: int = 0
    marks: list[int] = field(default_factory=list)
    changed: float = 0.0
    """Share of the kernels whose name differs from time to time, as with shapes that change."""

    def launch(self, name: str, thread: int = MAIN, ns: int = 20 * US) -> None:
        if self.changed and self.rng.random() < self.changed:
            name += "_other"
        self.activity(name, self.clock + 8 * US, ns, launch=self.clock)
        self.host[-1]["thread_id"] = thread
        self.clock += self.rng.randint(6, 9) * US

    def launches(self, names: list[str], thread: int = MAIN) -> None:
        for name in names:
            self.launch(name, thread)

    def graph(self, names: list[str]) -> None:
        """One call launches all."""
        self.launch(names[0])
        correlation, start = self.device[-1]["correlation"], self.device[-1]["start"]
        for number, name in enumerate(names[1:], 1):
            self.activity(name, start + number * 25 * US, 20 * US)
            self.device[-1]["correlation"] = correlation
        self.clock += len(names) * 25 * US

    def feed(self) -> None:
        """A batch is copied to the device."""
        self.copy("HtoD (Pinned -> Device)", self.clock + 9 * US, 5 * US, 1 << 20, launch=self.clock)
        self.clock += 20 * US

    def read(self) -> None:
        """A value is copied to the host."""
        self.copy("DtoH (Device -> Pageable)", self.clock + 9 * US, 5 * US, 8, launch=self.clock)
        self.clock += 20 * US

    def step_begins(self) -> None:
        self.clock += 300 * US
        self.marks.append(self.clock)

    def forward(self, network: Network) -> None:
        self.launches(network.embed)
        for _ in range(network.layers):
            self.launches(network.layer)
        self.launches(network.head)

    def backward(self, network: Network, *, recompute: bool = False) -> None:
        self.launches([f"bwd_{name}" for name in network.head], ENGINE)
        for _ in range(network.layers):
            again = network.layer if recompute else []
            self.launches([*again, *(f"bwd_{name}" for name in network.layer)], ENGINE)
        self.launches([f"bwd_{name}" for name in network.embed], ENGINE)

    def done(self, *, form: str = "kineto", since: int | None = None, until: int | None = None) -> Trace:
        """The trace; of what was launched in [since, until) only, as if recording had been switched on for a while."""
        if since is not None or until is not None:
            low, high = since or 0, until if until is not None else self.clock
            kept = {r["correlation"] for r in self.host if "correlation" in r and low <= r["start"] < high}
            self.device = [row for row in self.device if row["correlation"] in kept]
            self.host = [
                row for row in self.host if low <= row["start"] and row["start"] + row["duration"] < high
            ]
        trace = self.trace(captured=CAPTURED)
        return replace(trace, meta=replace(trace.meta, format=form))
