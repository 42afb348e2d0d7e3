"""Layers of the backward pass on real runs, where the names and shapes of the nodes tell the truth.

Every module calls an autograd function of its own, whose name holds the module's, and has a weight of a length that
no other has. So the name of a backward node tells its layer, and so does the shape of a gradient that is added up.
"""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tracekit
from tracekit.analyses.attribution import attributed, attribution
from tracekit.analyses.scope import select
from tracekit.capture.sessions import session
from tracekit.manifest import CaptureOptions


class Layer(nn.Module):
    """A module whose nodes say whose they are."""

    def __init__(self, name: str, length: int, children: list[nn.Module], kind: str = "") -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(length))
        self.parts = nn.ModuleList(children)
        self.kind = kind
        self.function = type(
            f"Own_{name}_End",
            (torch.autograd.Function,),
            {"forward": staticmethod(_double), "backward": staticmethod(_double_too)},
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.function.apply(x) * self.weight.mean()
        for part in self.parts:
            if getattr(part, "kind", ""):
                x = checkpoint(part, x, use_reentrant=part.kind == "reentrant")
            else:
                x = part(x)
        return self.function.apply(x)


def _double(ctx: object, x: torch.Tensor) -> torch.Tensor:
    return x * 2


def _double_too(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
    return gradient * 2


def model(kind: str) -> Layer:
    a = Layer("a", 11, [Layer("a_x", 12, []), Layer("a_y", 13, [], kind)])
    b = Layer("b", 14, [Layer("b_x", 15, [Layer("b_x_z", 16, [])], kind), Layer("b_y", 17, [])])
    return Layer("root", 18, [a, b])


PATHS = {
    "root": "<root>",
    "a": "parts.0",
    "a_x": "parts.0.parts.0",
    "a_y": "parts.0.parts.1",
    "b": "parts.1",
    "b_x": "parts.1.parts.0",
    "b_x_z": "parts.1.parts.0.parts.0",
    "b_y": "parts.1.parts.1",
}
LENGTHS = dict(
    zip(
        [11, 12, 13, 14, 15, 16, 17, 18], ["a", "a_x", "a_y", "b", "b_x", "b_x_z", "b_y", "root"], strict=True
    )
)


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", ["", "reentrant", "unpack"])
def test_backward_nodes_and_sums_of_gradients_belong_to_their_layer(kind: str, tmp_path: Path) -> None:
    net = model(kind)
    with session(tmp_path / "run", model=net, options=CaptureOptions(steps=2)) as live:
        while not live.done:
            net(torch.ones(4, 8, requires_grad=True)).sum().backward()
            live.step()
    trace = tracekit.read(next((tmp_path / "run").glob("trace*.json.gz")))
    scope = select(trace)
    layers = attribution(scope).layers.select("layer_id", "path")
    host = trace.host.select(
        pl.col("span_id").alias("launch_id"), pl.col("parent_id"), pl.col("shapes").cast(pl.String)
    )
    rows = attributed(scope).join(layers, on="layer_id", how="left").join(host, on="launch_id")
    names = trace.host["name"].cast(pl.String)
    parents = trace.host["parent_id"]
    nodes = sums = 0
    for row in rows.rows(named=True):
        around = names[row["launch_id"]]
        above = row["launch_id"]
        while above is not None and not re.match(r"Own_|torch::autograd::AccumulateGrad", names[above]):
            above = parents[above]
        around = "" if above is None else names[above]
        if found := re.match(r"Own_(\w+)_EndBackward", around):
            assert row["path"] == PATHS[found[1]], around
            assert row["phase"] == "backward"
            nodes += 1
        elif found := re.match(r"Own_(\w+)_End", around):
            assert row["path"] == PATHS[found[1]], around
            assert row["phase"] == ("backward" if row["recomputed"] else "forward")
        elif around:
            length = re.search(r"\[\[(\d+)\]", trace.host["shapes"].cast(pl.String)[above] or "")
            if length and int(length[1]) in LENGTHS:
                assert row["path"] == PATHS[LENGTHS[int(length[1])]], (around, length[1])
                sums += 1
    assert nodes >= 2 * 2 * len(PATHS)
    assert sums >= 2 * len(PATHS)
    assert rows["recomputed"].any() == bool(kind)
