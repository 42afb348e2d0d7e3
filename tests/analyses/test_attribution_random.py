"""Attribution of senseless traces: whatever a file holds, every activity has one place and nothing is lost."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import tracekit
from tracekit.analyses.attribution import attributed, attribution
from tracekit.analyses.scope import select
from tracekit.errors import TracekitError

NAMES = [
    "aten::mm",
    "AddmmBackward0",
    "autograd::engine::evaluate_function: AddmmBackward0",
    "torch::autograd::AccumulateGrad",
    "nn.Module: A_0",
    "tracekit.layer/a.b",
    "tracekit.layer/<root>",
    "tracekit.layer/..",
    "tracekit.layer/",
    "tracekit.phase/loss",
    "tracekit.phase/backward",
    "Optimizer.step#S",
    "FSDP::pre_forward (x)",
    "FSDP::post_forward (x)",
    "FSDP::post_forward",
    "Torch-Compiled Region: 0/0",
    "user range",
    "a/b",
    "ProfilerStep#1",
    "gloo:all_reduce",
    "nccl:x",
    "enumerate(DataLoader)#x",
    "",
]
HOST = ["cpu_op", "user_annotation", "python_function", "cuda_runtime", "overhead"]
DEVICE = ["kernel", "gpu_memcpy"]


def event(rng: random.Random) -> dict[str, Any]:
    cat = rng.choice(HOST + DEVICE)
    args: dict[str, Any] = {}
    name = rng.choice(NAMES)
    if cat == "cuda_runtime":
        name = rng.choice(["cudaLaunchKernel", "cudaGraphLaunch", "cudaMalloc"])
    if cat in DEVICE:
        name = rng.choice(["k", "Memcpy HtoD (P)", "ncclDevKernel", "triton_poi_fused_add__0"])
        args.update(device=rng.randint(0, 1), stream=rng.randint(0, 2))
    if cat in ("cpu_op", "user_annotation"):
        args.update({"Sequence number": rng.randint(0, 6)} if rng.random() < 0.6 else {})
        args.update({"Fwd thread id": rng.randint(0, 3)} if rng.random() < 0.6 else {})
        args.update({"layer": rng.choice(["a.b", "<root>", "..", "", "a"])} if rng.random() < 0.3 else {})
    if cat != "python_function":
        args["External id"] = rng.randint(0, 9)
    if cat in ("cuda_runtime", *DEVICE):
        args["correlation"] = rng.randint(0, 12)
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": rng.choice([1, 1, 1, 2]),
        "tid": rng.choice([1, 1, 2, 3]),
        "ts": rng.randint(0, 40),
        "dur": rng.choice([0, 1, rng.randint(0, 20)]),
        "args": args,
    }


def flow(rng: random.Random, phase: str) -> dict[str, Any]:
    place = {"pid": 1, "tid": rng.choice([1, 2]), "ts": rng.randint(0, 40)}
    return {"ph": phase, "cat": "fwdbwd", "name": "fwdbwd", "id": rng.randint(0, 3), **place}


LAYERS = {
    "schema_version": 1,
    "layers": [
        {"id": 0, "parent": None, "name": "", "range_name": "tracekit.layer/<root>", "type": "A", "parameters": 0},
        {"id": 1, "parent": 0, "name": "a.b", "range_name": "tracekit.layer/a.b", "type": "B", "parameters": 0},
    ],
    "calls": {},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize("block", range(4))
def test_every_activity_of_a_random_trace_has_one_place(block: int, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    read = 0
    for seed in range(15 * block, 15 * block + 15):
        rng = random.Random(seed)
        events = [event(rng) for _ in range(rng.randint(1, 60))]
        events += [flow(rng, phase) for phase in "sf" * rng.randint(0, 3)]
        document = {"traceEvents": events, **({"tracekit_layers": LAYERS} if rng.random() < 0.3 else {})}
        path.write_text(json.dumps(document))
        try:
            trace = tracekit.read(path)
        except TracekitError:
            continue
        read += 1
        for scope in (select(trace), select(trace, window="trace")):
            found = attribution(scope)
            assert int(found.coverage["duration_ns"].sum()) == int(scope.activities["duration"].sum())
            rows = attributed(scope).join(found.layers, on="layer_id", how="left")
            assert rows.height == scope.activities.height
            assert rows.filter((pl.col("method") == "unattributed") != pl.col("path").is_null()).height == 0
    assert read >= 10
