"""The tree of layers against planted models, and its conservation laws on every trace."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from paths import PUBLIC, SAMPLES
from planted import EVERYTHING, MS, US, Planted
from real_traces import scope_of, trace_of, traces
from synthetic import generate, oracle, write

import tracekit
from tracekit.analyses.idle.causes import idle_causes
from tracekit.analyses.kernels import kernels
from tracekit.analyses.layers import CLASSES, Layers, layers
from tracekit.analyses.layers.stacks import layer_stacks
from tracekit.analyses.scope import Scope, select
from tracekit.facts.capture_names import LAYER_PREFIX
from tracekit.facts.stack_names import PHASES
from tracekit.trace import Trace

SYNTHETIC: list[dict[str, Any]] = [
    {},
    {"devices": 2, "steps": 2},
    {"steps": 0, "layers": 6},
    {"vendor": "amd", "communication": False, "steps": 2},
    {"zero_kernels": True, "tick_ns": 1000, "orphans": 5},
    {"device_recorded": False, "steps": 2},
    {"host_recorded": False},
    {"python_stacks": True, "workers": 1, "steps": 1},
]


def check_laws(trace: Trace, scope: Scope) -> Layers:
    """What holds on every trace: own times sum to the device time, inclusive ones to own and those below."""
    found = layers(scope)
    tree, total = found.tree, int(scope.activities["duration"].sum())
    assert int(tree["device_own_ns"].sum()) == total
    assert int(found.by_pattern["device_own_ns"].sum()) == total
    assert int(found.by_phase["device_ns"].sum()) == total
    assert int(found.coverage["duration_ns"].sum()) == total
    if found.by_type is not None:
        assert int(found.by_type["device_own_ns"].sum()) == total
    below: dict[int, int] = {}
    seen: set[int] = set()
    for row in tree.iter_rows(named=True):
        above = row["parent_layer_id"]
        assert above is None or above in seen, "a row comes before its parent"
        seen.add(row["layer_id"])
        if above is not None:
            below[above] = below.get(above, 0) + row["device_ns"]
    for row in tree.iter_rows(named=True):
        assert row["device_ns"] == row["device_own_ns"] + below.get(row["layer_id"], 0), row["path"]
        assert row["device_ns"] == sum(row[f"{name}_ns"] for name in PHASES)
        assert row["device_ns"] == sum(row[f"class_{name}_ns"] for name in CLASSES)
        assert 0 <= row["recomputed_ns"] <= row["device_ns"]
        assert row["union_ns"] <= row["device_ns"]
        assert (row["host_ns"] is None) == (row["host_self_ns"] is None) == (row["calls"] is None)
        assert row["host_ns"] is None or 0 <= row["host_self_ns"] <= row["host_ns"]
    roots = tree.filter(pl.col("parent_layer_id").is_null())
    assert int(roots["device_ns"].sum()) == total
    assert int(roots["activities"].sum()) == scope.activities.height
    assert int(layer_stacks(scope)["value_ns"].sum()) == total
    idle = tree["idle_caused_own_ns"]
    assert idle.null_count() in (0, tree.height)
    if not idle.null_count():
        assert int(idle.sum()) == idle_causes(scope).idle_ns
        assert int(roots["idle_caused_ns"].sum()) == int(idle.sum())
    by_layer = kernels(scope).by_layer
    if by_layer is not None:
        times = dict(tree.group_by("path").agg(pl.col("device_own_ns").sum()).rows())
        for path, time in by_layer.group_by("layer").agg(pl.col("total_ns").sum()).rows():
            assert times[path] == time
    return found


@pytest.mark.quick(1)
@pytest.mark.parametrize("path", traces(*SAMPLES, *PUBLIC))
def test_conservation_on_every_trace(path: Path) -> None:
    for window in ("steps", "trace"):
        check_laws(trace_of(path), scope_of(path, window))


@pytest.mark.quick(1)
@pytest.mark.parametrize("config", SYNTHETIC, ids=lambda c: "-".join(map(str, c)) or "default")
def test_conservation_on_synthetic_traces(config: dict[str, Any], tmp_path: Path) -> None:
    trace = tracekit.read(write(generate(0, **config), tmp_path / "t.json"))
    for window in ("steps", "trace"):
        check_laws(trace, select(trace, window=window))


# -- a planted model -------------------------------------------------------------------------------


@dataclass
class Model:
    """A random model, run once a step: what each layer launched and how long it was open, by its path."""

    seed: int
    made: Planted = field(default_factory=Planted)
    work: list[tuple[str, int, int]] = field(default_factory=list)  # path, start, end on the device
    own_host: dict[str, int] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    clock: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.children: dict[str, list[str]] = {}
        self.grow("net", 0)

    def grow(self, path: str, depth: int) -> None:
        names = self.random.sample(["a", "b", "blocks.0", "blocks.1"], self.random.randint(0, 3))
        self.children[path] = [f"{path}.{name}" for name in names] if depth < 4 else []
        for child in self.children[path]:
            self.grow(child, depth + 1)

    def tick(self) -> int:
        passed = self.random.randint(1, 9) * US
        self.clock += passed
        return passed

    def call(self, path: str) -> None:
        self.calls[path] = self.calls.get(path, 0) + 1
        if path not in self.order:
            self.order.append(path)
        begun, own = self.clock, self.tick()
        for child in self.children[path]:
            if self.random.random() < 0.9:
                self.call(child)
                own += self.tick()
        for _ in range(self.random.randint(path == "net", 2)):  # a step in which nothing runs is none
            start, length = self.clock + self.random.randint(0, 40) * US, self.random.randint(1, 60) * US
            self.made.span("op", "aten::mm", self.clock, self.clock + 4 * US)
            self.made.activity(
                "gemm", start, length, launch=self.clock + US, call_ns=US, stream=self.random.randint(1, 3)
            )
            self.work.append((path, start, start + length))
            self.clock += 5 * US
            own += 5 * US
        self.made.span(
            "annotation", f"{LAYER_PREFIX}{path}", begun, self.clock, layer=path, module_type=path[-1].upper()
        )
        self.own_host[path] = self.own_host.get(path, 0) + own

    def run(self, steps: int = 3) -> Trace:
        for number in range(steps):
            begun = self.clock
            self.call("net")
            self.tick()
            self.made.step(number, begun, self.clock)
            self.clock += US
        return self.made.trace()


def below(path: str, other: str) -> bool:
    return other == path or other.startswith(f"{path}.")


@pytest.mark.quick(4)
@pytest.mark.parametrize("seed", range(12))
def test_planted_model(seed: int) -> None:
    model = Model(seed)
    trace = model.run()
    tree = check_laws(trace, select(trace)).tree
    rows = {row["path"]: row for row in tree.iter_rows(named=True) if row["path"] != "unattributed"}
    for path, row in rows.items():
        own = [(start, end) for owner, start, end in model.work if owner == path]
        inside = [(start, end) for owner, start, end in model.work if below(path, owner)]
        assert row["device_own_ns"] == sum(end - start for start, end in own)
        assert row["device_ns"] == row["forward_ns"] == sum(end - start for start, end in inside)
        assert row["union_ns"] == oracle.measure(inside)
        assert row["activities"] == len(inside)
        assert row["calls"] == model.calls.get(path, 0)
        assert row["host_self_ns"] == model.own_host.get(path, 0)
        assert row["host_ns"] == sum(time for owner, time in model.own_host.items() if below(path, owner))
        assert row["parent"] == (path.rpartition(".")[0] or None)
        assert row["type"] == (path[-1].upper() if path in model.calls else None)
    assert set(rows) >= set(model.calls)
    called = [path for path in tree["path"] if path in model.calls]
    assert called == sorted(model.order, key=lambda path: _first_seen(path, model.order))


def _first_seen(path: str, order: list[str]) -> list[int]:
    """The places at which the layers around a path, containers too, first ran."""
    parts = path.split(".")
    around = [".".join(parts[: n + 1]) for n in range(len(parts))]
    return [min(i for i, one in enumerate(order) if below(prefix, one)) for prefix in around]


def test_groups_count_nested_layers_once() -> None:
    made = Planted()
    made.step(0, 0, MS)
    for path, kind, start, end in (
        ("outer", "Sequential", 0, 900 * US),
        ("outer.0", "Sequential", 100 * US, 300 * US),
        ("outer.1", "Sequential", 400 * US, 800 * US),
    ):
        made.span("annotation", f"{LAYER_PREFIX}{path}", start, end, layer=path, module_type=kind)
    for at, length in ((50, 10), (150, 20), (500, 40)):
        made.activity("gemm", at * US, length * US, launch=at * US)
    found = layers(made.trace())
    assert found.by_type is not None
    (row,) = found.by_type.to_dicts()
    assert (row["layers"], row["calls"]) == (3, 3)
    assert row["device_ns"] == row["device_own_ns"] == 70 * US
    assert row["host_ns"] == row["host_self_ns"] == 900 * US
    by_pattern = {row["pattern"]: row for row in found.by_pattern.iter_rows(named=True)}
    assert by_pattern["outer.*"]["layers"] == 2
    assert by_pattern["outer.*"]["device_ns"] == 60 * US
    assert by_pattern["outer"]["device_ns"] == 70 * US
    assert found.answer.endswith("The largest: 2 × outer.* (Sequential) 85.7 %, outer 14.3 %.")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name", "pattern"),
    [
        ("module", "nn.Module: BertLayer_3", "BertLayer_*"),
        ("module", "nn.Module: Conv2d_0", "Conv2d_*"),
        ("annotation", "block 7", "block *"),
        ("annotation", "resnet50", "resnet50"),
        ("annotation", "stage/12/3", "stage/*/*"),
    ],
)
def test_patterns(kind: str, name: str, pattern: str) -> None:
    made, alone = Planted(), Planted()
    for at, one in enumerate((name, re.sub(r"(?<=[_ /])\d+$", "9", name))):
        for planted in (made, alone)[: 2 - at]:
            planted.span(kind, one, 2 * at * MS, (2 * at + 1) * MS)
            planted.activity("gemm", 2 * at * MS + 20 * US, 5 * US, launch=2 * at * MS + 10 * US)
    path = name.removeprefix("nn.Module: ")
    found = [layers(one.trace()).by_pattern["pattern"][0] for one in (made, alone)]
    assert found == [pattern, path]


def test_layers_whose_path_is_a_number_are_those_of_the_model_itself() -> None:
    made = Planted()
    for at, path in enumerate("01"):
        start = 2 * at * MS
        made.span("annotation", f"{LAYER_PREFIX}{path}", start, start + MS, layer=path, module_type="Linear")
        made.activity("gemm", start + 20 * US, 5 * US, launch=start + 10 * US)
    found = layers(made.trace())
    assert found.by_pattern["pattern"][0] == "<root>.*"
    assert found.answer.endswith("The largest: 2 × Linear 100.0 %.")


def test_a_layer_inside_itself_is_counted_once() -> None:
    made = Planted()
    for start, end in ((0, 900 * US), (100 * US, 300 * US)):
        made.span("annotation", f"{LAYER_PREFIX}net", start, end, layer="net", module_type="Net")
    made.activity("gemm", 200 * US, 50 * US, launch=150 * US)
    (row,) = layers(made.trace()).tree.to_dicts()
    assert (row["calls"], row["host_ns"], row["device_ns"]) == (2, 900 * US, 50 * US)


def test_phases_with_a_name_have_host_time_outside_layers_only() -> None:
    made = Planted()
    made.step(0, 0, MS)
    made.span("annotation", "DistributedDataParallel.forward", 0, 500 * US)
    made.span("annotation", f"{LAYER_PREFIX}net", 100 * US, 400 * US, layer="net", module_type="Net")
    made.span("annotation", "Optimizer.step#SGD.step", 600 * US, 900 * US)
    made.activity("gemm", 200 * US, 50 * US, launch=150 * US)
    made.activity("sgd", 700 * US, 50 * US, launch=650 * US)
    rows = {row["path"]: row for row in layers(made.trace()).tree.iter_rows(named=True)}
    assert rows["<DistributedDataParallel>"]["host_ns"] == 200 * US
    assert rows["net"]["host_ns"] == 300 * US
    assert (rows["<optimizer>"]["host_ns"], rows["<optimizer>"]["calls"]) == (300 * US, 1)
    assert rows["<optimizer>"]["optimizer_ns"] == rows["<optimizer>"]["device_ns"] == 50 * US


def test_without_layers_phases_still_answer() -> None:
    made = Planted()
    made.step(0, 0, MS)
    made.span("op", "aten::mm", 10 * US, 30 * US, sequence=1, forward_thread=0)
    made.activity("gemm", 40 * US, 30 * US, launch=15 * US)
    made.span("annotation", "Optimizer.step#SGD.step", 100 * US, 200 * US)
    made.activity("sgd", 160 * US, 10 * US, launch=150 * US)
    found = layers(made.trace(captured=EVERYTHING - {"stacks"}))
    assert (
        found.answer
        == "The layers of 40.0 µs of device time are unknown. By phase: forward 75.0 %, optimizer 25.0 %."
    )
    assert found.not_captured is not None
    assert "with_stack=True" in str(found.not_captured)
    assert found.tree["path"].to_list() == ["<optimizer>", "unattributed"]
    assert found.by_type is None
    assert found.attributed_share == 0.25


def test_nothing_ran() -> None:
    found = layers(Planted().trace())
    assert (found.answer, found.tree.height, found.attributed_share) == ("Nothing ran.", 0, None)


def test_one_step_has_a_part_of_all() -> None:
    trace = Model(4).run(steps=2)
    whole = layers(trace).tree
    parts = [layers(select(trace, step=f"^ProfilerStep#{n}$")).tree for n in (0, 1)]
    for column in ("device_own_ns", "calls", "host_self_ns", "activities"):
        assert sum(int(part[column].sum()) for part in parts) == int(whole[column].sum())


@pytest.mark.parametrize(
    ("around", "elsewhere", "paths"),
    [
        # A checkpoint runs the block again in a node of the backward pass.
        ("autograd::engine::evaluate_function: MmBackward0", False, {"Net_0", "Net_0.Block_1", "Net_0.Block_1.Linear_2"}),
        # Whoever calls it outside of one means another call, as an evaluation does.
        ("evaluate", False, {"Net_0", "Net_0.Block_1", "Net_0.Block_1.Linear_2", "Block_1", "Block_1.Linear_2"}),
        # Two modules of one name: it may be either.
        ("autograd::engine::evaluate_function: MmBackward0", True, {"Net_0", "Net_0.Block_1", "Net_0.Block_1.Linear_2", "Other_0", "Other_0.Block_1", "Block_1", "Block_1.Linear_2"}),
    ],
)  # fmt: skip
def test_a_module_that_runs_again_is_the_one_that_ran_before(
    around: str, elsewhere: bool, paths: set[str]
) -> None:
    """It was another layer, since no frames of the modules around it are open in the backward pass."""
    made = Planted()

    def call(*names: str, start: int) -> None:
        for depth, name in enumerate(names):
            made.span("module", f"nn.Module: {name}", start + depth * US, start + (20 - depth) * US)
        made.activity("gemm", start + 12 * US, US, launch=start + 10 * US)

    call("Net_0", "Block_1", "Linear_2", start=0)
    if elsewhere:
        call("Other_0", "Block_1", start=30 * US)
    made.span("op", around, 99 * US, 150 * US)
    call("Block_1", "Linear_2", start=100 * US)
    tree = layers(made.trace()).tree
    assert set(tree["path"]) - {"unattributed"} == paths
