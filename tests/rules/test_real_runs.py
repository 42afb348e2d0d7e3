"""Rules about costs on runs of torch that have them, and on the same runs without."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import tracekit
from tracekit.analyses.attribution import attributed
from tracekit.analyses.rules import run
from tracekit.analyses.scope import select
from tracekit.analyses.sdpa import SDPA_MATH, call_of, refusals
from tracekit.findings import Finding
from tracekit.trace import Trace

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow
functional = torch.nn.functional

LAYERS, STEPS, WIDTH, LENGTH = 3, 2, 64, 256


class Attention(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Self-attention with four heads; `attend` computes it."""

    def __init__(self, attend: Any) -> None:
        super().__init__()
        self.attend, self.norm = attend, torch.nn.LayerNorm(WIDTH)
        self.ahead, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        parts = self.ahead(self.norm(x)).unflatten(-1, (3, 4, WIDTH // 4))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        return x + self.out(self.attend(query, key, value).transpose(1, 2).flatten(2))


class Net(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Layers of attention, each called by `through`."""

    def __init__(self, attend: Any, through: Any) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Attention(attend) for _ in range(LAYERS))
        self.through = through

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = self.through(layer, x)
        return x


def eager(query: Any, key: Any, value: Any) -> Any:
    return ((query @ key.transpose(-1, -2)) / 4).softmax(-1) @ value


def plainly(layer: Any, x: Any) -> Any:
    return layer(x)


def recorded(
    path: Path, attend: Any, through: Any = plainly, *, train: bool = True, **profiler: Any
) -> Trace:
    torch.manual_seed(0)
    net, x = Net(attend, through), torch.randn(2, LENGTH, WIDTH)

    def step() -> None:
        with torch.set_grad_enabled(train):
            loss = net(x).square().mean()
        if train:
            loss.backward()

    step()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True, **profiler
    ) as made:
        for _ in range(STEPS):
            step()
    made.export_chrome_trace(str(path / "trace.json"))
    return tracekit.read(path / "trace.json")


def found(trace: Trace) -> dict[str, Finding]:
    return {one.id: one for analysis in ("layers", "kernels", "ops") for one in run(analysis, trace).findings}


@pytest.mark.parametrize("train", [True, False])
def test_attention_by_hand(train: bool, tmp_path: Path) -> None:
    one = found(recorded(tmp_path, eager, train=train))["unfused_attention"]
    calls = LAYERS * STEPS
    assert f"{calls} softmax calls take" in one.evidence
    assert f"in addition to {2 * calls} batched" in one.evidence


def test_fused_attention_is_no_finding(tmp_path: Path) -> None:
    ids = set(found(recorded(tmp_path, functional.scaled_dot_product_attention)))
    assert not ids & {"unfused_attention", "sdpa_fallback", "recomputation", "random_numbers"}


def test_dropout_keeps_attention_from_being_fused(tmp_path: Path) -> None:
    attend = partial(functional.scaled_dot_product_attention, dropout_p=0.1)
    one = found(recorded(tmp_path, attend, record_shapes=True))["sdpa_fallback"]
    assert f"{LAYERS * STEPS} calls run" in one.evidence
    assert "the dropout of the attention is 0.1" in one.evidence
    without = found(recorded(tmp_path, attend))["sdpa_fallback"]
    assert "The inputs were not recorded" in without.evidence


def test_dropout(tmp_path: Path) -> None:
    def through(_layer: Any, x: Any) -> Any:
        return functional.dropout(x.repeat(8, 1, 1), 0.1)[:2]

    trace = recorded(tmp_path, eager, through, train=False)
    assert found(trace)["random_numbers"].advice == "Call model.eval(): dropout is switched on."


@pytest.mark.parametrize("stacks", [True, False])
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_layers(reentrant: bool, stacks: bool, tmp_path: Path) -> None:
    through = partial(torch.utils.checkpoint.checkpoint, use_reentrant=reentrant)
    if reentrant:  # needs an input that requires a gradient
        through = partial(checkpointed_input, through)
    trace = recorded(tmp_path, eager, through, with_stack=stacks, with_modules=stacks)
    assert "recomputation" in found(trace)
    rows = attributed(select(trace)).filter("recomputed")
    norms = rows.filter(pl.col("name").cast(pl.String) == "aten::native_layer_norm")
    assert norms["op_id"].n_unique() == LAYERS * STEPS
    assert not rows["name"].cast(pl.String).str.contains("(?i)backward").any()


def checkpointed_input(through: Any, layer: Any, x: Any) -> Any:
    return through(layer, x if x.requires_grad else x.requires_grad_())


def test_gradients_of_gradients_are_no_recomputation(tmp_path: Path) -> None:
    def through(layer: Any, x: Any) -> Any:
        x = x if x.requires_grad else x.detach().requires_grad_()
        made = layer(x)
        (slope,) = torch.autograd.grad(made.sum(), x, create_graph=True)
        return made + slope.square()

    trace = recorded(tmp_path, eager, through)
    assert "recomputation" not in found(trace)


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "fp64": {"dtype": torch.double},
    "bf16": {"dtype": torch.bfloat16},
    "dropout": {"dropout_p": 0.1},
    "causal": {"is_causal": True},
    "grouped": {"heads": 2, "enable_gqa": True},
    "a mask": {"attn_mask": (8, 8)},
    "a mask of four dimensions": {"attn_mask": (2, 1, 8, 8)},
    "a mask of three dimensions": {"attn_mask": (4, 8, 8)},
    "another head size of the value": {"value": 24},
    "an odd head size": {"width": 17},
    "three dimensions": {"batched": False},
}


@pytest.mark.parametrize("case", CASES)
def test_reasons_against_torch(case: str, tmp_path: Path) -> None:
    """On processors, torch runs separate operators if and only if there is a reason."""
    how = dict(CASES[case])
    dtype, heads = how.pop("dtype", torch.float), how.pop("heads", 4)
    width, front = how.pop("width", 16), () if not how.pop("batched", True) else (2,)
    value_width = how.pop("value", width)
    query = torch.randn(*front, 4, 8, width, dtype=dtype)
    key = torch.randn(*front, heads, 8, width, dtype=dtype)
    value = torch.randn(*front, heads, 8, value_width, dtype=dtype)
    if "attn_mask" in how:
        how["attn_mask"] = torch.ones(how["attn_mask"], dtype=torch.bool)
    profile = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True, acc_events=True
    )
    with profile as made, torch.no_grad():
        functional.scaled_dot_product_attention(query, key, value, **how)
    made.export_chrome_trace(str(tmp_path / "trace.json"))
    ops = tracekit.read(tmp_path / "trace.json").host.filter(pl.col("kind") == "op")
    ops = ops.select(pl.col("name", "shapes", "dtypes", "concrete_inputs").cast(pl.String))
    inputs = ops.filter(pl.col("name") == "aten::scaled_dot_product_attention").row(0)[1:]
    call = call_of(*inputs)
    assert call is not None
    (kernel,) = refusals(call, "processor")
    separate = ops["name"].str.contains(SDPA_MATH).any()
    assert bool(kernel.reasons) == separate, kernel
