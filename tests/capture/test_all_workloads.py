"""Every workload that comes with tracekit, tiny, at every level: what each must leave behind, whatever it trains."""

import importlib.util
import json
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import msgspec
import polars as pl
import pytest
import torch
from torch import nn

import tracekit
from tracekit.capture.flops import flop_counter
from tracekit.capture.marks.layer_table import LayerTable
from tracekit.capture.marks.names import ROOT_LAYER, no_phase
from tracekit.capture.recipe import Recipe
from tracekit.capture.run import CaptureResult, run
from tracekit.capture.training import Training, moved
from tracekit.capture.workloads import WorkloadOptions, find
from tracekit.facts.capture_names import LAYER_PREFIX, PHASE_PREFIX
from tracekit.manifest import CaptureOptions, Precision, Settings
from tracekit.trace import Trace

CPU = torch.device("cpu")
STEPS = 2
PHASES = {"data", "zero_grad", "h2d", "forward", "loss", "backward", "optimizer", "metrics"}
SMALL = {"cnn": {"batch": 2, "size": 16}, "encoder": {"batch": 2, "size": 16}}
"""Two workloads are small enough without a tiny model; their batches are not."""


def installed(name: str, *needed: str) -> bool:
    module = f"tracekit.capture.workloads.{name}"
    return all(importlib.util.find_spec(part) is not None for part in (module, *needed))


WORKLOADS = [
    *("yolov5", "dlrm", "resnet50", "ssd300", "transformer", "deepspeech2", "lstm_translation"),
    *("cnn", "encoder"),
    *(name for name in ("bert", "gpt2", "llama", "vit") if installed(name, "transformers")),
]
CONVOLUTIONS = ["yolov5", "resnet50", "ssd300", "cnn"]
"""Nothing but convolutions and linear layers."""
SLOW_LEARNERS = {"yolov5": 0.97, "lstm_translation": 0.92, "ssd300": 0.8, "encoder": 0.75, "transformer": 0.7}
"""The share of the first loss that 20 updates leave at the most; half of it for the others."""


@dataclass(frozen=True)
class Captured:
    name: str
    result: CaptureResult
    profile: Trace
    timed: Trace

    @property
    def table(self) -> LayerTable:
        return msgspec.json.decode(self.profile.meta.layers or "", type=LayerTable)


def settings(name: str, **more: object) -> Settings:
    return Settings(tiny=True, **SMALL.get(name, {}), **more)


def built(name: str) -> Recipe:
    torch.manual_seed(0)
    factory, variant = find(name)
    options = WorkloadOptions(CPU, tiny=True, variant=variant, **SMALL.get(name, {}))
    recipe = factory.load()(options)
    assert isinstance(recipe, Recipe)
    return recipe


QUICK = {"dlrm", "cnn"}
"""Those of which everything is looked at each time, the others only among the slow tests."""


def each(quick: set[str]) -> list[object]:
    """Every workload, those that are not among the quick ones marked as slow."""
    return [pytest.param(name, marks=[] if name in quick else pytest.mark.slow) for name in WORKLOADS]


@pytest.fixture(scope="module", params=each(QUICK))
def captured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Captured:
    name = request.param
    result = run(
        name,
        tmp_path_factory.mktemp(name),
        settings=settings(name),
        options=CaptureOptions(steps=STEPS, profile_memory=False),
        levels=("M", "ML", "MLG", "metrics"),
    )
    timed = result.folder / "trace-ML.json.gz"
    assert result.traces == [timed, result.trace]
    return Captured(name, result, tracekit.read(result.trace), tracekit.read(timed))


def rows(trace: Trace, kind: str) -> pl.DataFrame:
    return trace.host.filter(pl.col("kind") == kind).with_columns(pl.col("name", "layer").cast(pl.String))


def within(trace: Trace, found: pl.DataFrame) -> list[str]:
    """The name of the step around each row, which must be exactly one."""
    steps = rows(trace, "step")
    names = []
    for start, duration in found.select("start", "duration").iter_rows():
        around = steps.filter(
            (pl.col("start") <= start) & (pl.col("start") + pl.col("duration") >= start + duration)
        )
        names += around["name"].to_list()
    assert len(names) == found.height
    return names


@pytest.mark.quick(1)
def test_the_runs_are_those_of_the_levels(captured: Captured) -> None:
    manifest = captured.result.manifest
    assert [one.level for one in manifest.runs] == ["M", "ML", "MLG"]
    assert manifest.stopped is None
    assert manifest.task
    for one in manifest.runs:
        assert len(one.step_times_ns) == len(one.losses) == STEPS
        assert min(one.step_times_ns) > 0
        assert all(math.isfinite(loss) for loss in one.losses)
        assert one.trace_defect is None
    # A step trains, so that no two steps of a run have the same loss to the last bit.
    losses = [loss for one in manifest.runs for loss in one.losses]
    assert len(set(losses)) == len(losses)


@pytest.mark.parametrize("level", ["profile", "timed"])
def test_every_step_holds_every_phase(captured: Captured, level: str) -> None:
    trace = getattr(captured, level)
    steps = rows(trace, "step")["name"].to_list()
    assert steps == [f"ProfilerStep#{number}" for number in (1, 2)]
    phases = rows(trace, "annotation").filter(pl.col("name").str.starts_with(PHASE_PREFIX))
    found = Counter(zip(within(trace, phases), phases["name"].to_list(), strict=True))
    assert found == {(step, PHASE_PREFIX + phase): 1 for step in steps for phase in PHASES}


@pytest.mark.parametrize("level", ["profile", "timed"])
def test_the_module_rows_are_the_calls_of_the_layer_table(captured: Captured, level: str) -> None:
    trace, table = getattr(captured, level), captured.table
    modules = rows(trace, "module").sort("start")
    names = [layer.name or ROOT_LAYER for layer in table.layers]
    calls = [names[layer] for layer in table.calls.layer]
    assert modules["layer"].to_list() == calls
    assert modules["name"].to_list() == [table.layers[n].range_name for n in table.calls.layer]
    steps = [f"ProfilerStep#{step}" for step in table.calls.step]
    assert within(trace, modules) == steps
    assert steps.count("ProfilerStep#1") == steps.count("ProfilerStep#2")


def test_both_traces_know_the_same_layers(captured: Captured) -> None:
    timed = msgspec.json.decode(captured.timed.meta.layers or "", type=LayerTable)

    def described(table: LayerTable) -> list[tuple[object, ...]]:
        # Of the shapes only how many sides they have: sentences differ in length from batch to batch.
        sides = [[len(s) for s in (one.output_shapes or [])] for one in table.layers]
        fixed = [msgspec.structs.replace(one, input_shapes=None, output_shapes=None) for one in table.layers]
        return list(zip(fixed, sides, strict=True))

    assert described(timed) == described(captured.table)
    assert timed.calls.layer == captured.table.calls.layer


def test_the_layers_are_the_named_modules(captured: Captured) -> None:
    model, layers = built(captured.name).model, captured.table.layers
    assert [(one.name, one.type) for one in layers] == [
        (name, type(module).__name__) for name, module in model.named_modules()
    ]
    for one in layers[1:]:
        assert layers[one.parent].name == one.name.rpartition(".")[0]
    assert [one.range_name for one in layers] == [LAYER_PREFIX + (one.name or ROOT_LAYER) for one in layers]
    own = [sum(p.numel() for p in module.parameters(recurse=False)) for module in model.modules()]
    assert [one.parameters for one in layers] == own
    # A parameter that two modules share counts in each of them, and once in the model.
    shared = sum(own) - sum(p.numel() for p in model.parameters())
    assert sum(one.parameters for one in layers) == captured.result.manifest.parameters + shared


def test_the_layer_table_has_the_shapes_of_what_ran(captured: Captured) -> None:
    called = set(captured.table.calls.layer)
    assert 0 in called
    for layer in captured.table.layers:
        assert (layer.input_shapes is None) == (layer.output_shapes is None) == (layer.id not in called)
        for shapes in (layer.input_shapes or [], layer.output_shapes or []):
            assert all(side >= 0 for shape in shapes for side in shape)
    by_type = [one for one in captured.table.layers if one.type in ("Linear", "Conv2d") and one.input_shapes]
    for layer in by_type:
        module = built(captured.name).model.get_submodule(layer.name) if layer is by_type[0] else None
        assert layer.output_shapes
        if isinstance(module, nn.Linear):
            assert layer.input_shapes[0][-1] == module.in_features
            assert layer.output_shapes[0][-1] == module.out_features
        elif isinstance(module, nn.Conv2d):
            assert layer.input_shapes[0][1] == module.in_channels
            assert layer.output_shapes[0][1] == module.out_channels


def test_flops_are_counted(captured: Captured) -> None:
    flops = captured.result.manifest.flops_per_step
    assert flops is not None
    assert flops > 0


@pytest.mark.parametrize("name", [n for n in each(QUICK) if n.values[0] in CONVOLUTIONS])
def test_training_a_convolutional_network_takes_three_times_the_forward(name: str) -> None:
    """Backward is two products for each of forward; only the first layer needs no gradient of its input."""
    recipe = built(name)
    training = Training(recipe, settings(name), CPU)
    (batch,) = next(training.batches())
    with flop_counter() as forward:
        recipe.forward(recipe.model, moved(batch, CPU))
    with flop_counter() as whole:
        training.step([batch], no_phase)
    first = next(m for m in recipe.model.modules() if isinstance(m, nn.Conv2d))
    ahead: list[int] = []
    first.register_forward_hook(
        lambda module, _inputs, output: ahead.append(2 * output.numel() * module.weight[0].numel())
    )
    recipe.forward(recipe.model, moved(batch, CPU))
    assert whole.get_total_flops() == 3 * forward.get_total_flops() - ahead[0]


@pytest.mark.quick(1)
@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", each(set(WORKLOADS) - {"ssd300", "yolov5", "resnet50"}))
@pytest.mark.sampled(4)
def test_the_loss_falls_on_one_batch(name: str, precision: Precision) -> None:
    recipe = built(name)
    training = Training(recipe, settings(name, precision=precision), CPU)
    batch = next(training.batches())
    losses = [float(training.step(batch, no_phase)) for _ in range(21)]
    assert all(math.isfinite(loss) for loss in losses)
    assert min(losses[-5:]) < SLOW_LEARNERS.get(name, 0.5) * losses[0]


def test_nothing_in_a_manifest_names_a_place(captured: Captured) -> None:
    text = captured.result.manifest_path.read_text("utf-8")
    assert json.loads(text)["workload"] == captured.name
    for place in (str(Path.home()), str(Path.cwd()), str(captured.result.folder)):
        assert place not in text
