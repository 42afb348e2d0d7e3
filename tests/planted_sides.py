"""Digests of a small model with planted times, and the section of two of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl

from tracekit.diff.compared import compared
from tracekit.diff.gate import parse_gate
from tracekit.diff.runs import Run, keep
from tracekit.digest import Digest, Facts
from tracekit.digest.model import LAYERS, LEAVES, STEPS, VALUES
from tracekit.report.diff import diff_section
from tracekit.report.model import Section

LAYER_NAMES = ("encoder", "encoder.0", "encoder.0.attention", "encoder.1", "head")
WORK = {
    ("encoder.0.attention", "aten::bmm", "gemm", "bmm_kernel"): 3_000_000,
    ("encoder.1", "aten::mm", "gemm", "sgemm"): 2_000_000,
    ("head", "aten::mm", "gemm", "sgemm"): 1_000_000,
    ("head", "aten::relu", "elementwise", "void relu<float>(int*, @someone|x)"): 500_000,
}
IDLE_NS = 700_000


def digest(
    scale: Mapping[str, float] | None = None,
    *,
    steps: int = 20,
    seed: int = 0,
    name: str = "run",
    noise: float = 0.01,
) -> Digest:
    """A run whose work in each layer of `scale` takes so many times as long; one of no such layer is idle time (`idle`)."""
    random = np.random.default_rng(seed)
    scale = scale or {}
    texts = [
        {"kind": "compute", "category": category, "name": kernel, "operator": operator, "shapes": "[[4, 8]]", "dtypes": '["float"]',
         "layer": layer, "type": "Linear", "phase": "forward"}
        for layer, operator, category, kernel in WORK
    ]  # fmt: skip
    texts.append({"kind": "idle", "category": "python", "layer": None, "phase": "other"})
    texts.append(
        {"kind": "call", "category": "synchronisation", "name": "cudaStreamSynchronize", "phase": "other"}
    )
    means = [ns * scale.get(layer, 1) for (layer, *_), ns in WORK.items()] + [
        IDLE_NS * scale.get("idle", 1),
        0,
    ]
    ns = np.rint(np.array(means) * (1 + noise * random.standard_normal((steps, len(means))))).astype(int)
    values = pl.DataFrame(
        {
            "step": np.repeat(np.arange(steps), len(means)),
            "leaf": np.tile(np.arange(len(means)), steps),
            "ns": ns.ravel(),
            "calls": 1,
            "duration_ns": ns.ravel(),
        },
        VALUES,
    )
    times = pl.DataFrame(
        {
            "step": range(steps),
            "name": [f"ProfilerStep#{n}" for n in range(steps)],
            "time_ns": ns.sum(axis=1),
        },
        STEPS,
    )
    leaves = pl.DataFrame([{"leaf": n, **text} for n, text in enumerate(texts)], LEAVES)
    layers = pl.DataFrame(
        [
            {"path": path, "parent": path.rpartition(".")[0] or None, "name": path.rpartition(".")[2], "type": "Linear", "part_of_model": True}
            for path in LAYER_NAMES
        ],
        LAYERS,
    )  # fmt: skip
    facts = Facts(name=name, format="kineto", device="Planted GPU", devices=1, on_cpu=False)
    return Digest(facts, times, leaves, layers, values)


def section(base: Digest, new: Digest, *gates: str) -> Section:
    """The section of a diff of two runs."""
    return diff_section(compared([[base]], [[new]], [parse_gate(gate) for gate in gates]))


def kept(path: Path, *digests: Digest) -> Path:
    """A file with these runs, one a digest."""
    path.write_bytes(keep([Run(each.facts.name, (each,)) for each in digests]))
    return path
