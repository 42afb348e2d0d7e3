from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from planted import MS, US, Planted, finding

import tracekit
from tracekit.analyses.attribution import attribution
from tracekit.facts.stack_names import CACHE_LOOKUP, COMPILED_REGION


def regions(*, nested: bool, pause: int = 300 * US, inside: str = "") -> Planted:
    """Two compiled regions that start a kernel each, with Python between them; the window is 1 ms."""
    made = Planted()
    made.span("op", "Torch-Compiled Region: 0/0", 0, 700 * US if nested else 50 * US)
    made.span("op", "## Call CompiledFxGraph f0 ##", 5 * US, 40 * US)
    made.activity("triton_poi_fused_0", 10 * US, 300 * US, launch=8 * US)
    made.span("python", "model.py(9): forward", 45 * US if nested else 55 * US, 310 * US + pause)
    if inside:
        made.span("op", inside, 320 * US, 310 * US + pause)
    made.span("op", "Torch-Compiled Region: 1/0", 310 * US + pause, 690 * US)
    made.span("op", "## Call CompiledFxGraph f1 ##", 310 * US + pause, 680 * US)
    made.activity("triton_poi_fused_1", 320 * US + pause, 690 * US - pause, launch=312 * US + pause)
    return made


def test_fires_on_python_between_nested_regions() -> None:
    found = finding(regions(nested=True).trace(), "idle", "graph_breaks")
    assert found is not None
    assert found.ns_at_stake == 300 * US
    assert found.severity == "critical"
    assert found.title == "Graph breaks keep the device waiting for 30.0 % of the time"
    assert found.evidence.startswith("A compiled function left its graph for Python once, and continued")
    assert "mostly in model.py(9): forward" in found.evidence
    assert "TORCH_LOGS=graph_breaks" in found.advice


def test_regions_beside_each_other_may_be_functions_of_their_own() -> None:
    assert finding(regions(nested=False).trace(), "idle", "graph_breaks") is None


@pytest.mark.parametrize("inside", ["## Call CompiledFxGraph f0 ##", "CompiledFunction"])
def test_the_host_in_a_graph_is_no_break(inside: str) -> None:
    made = regions(nested=True, inside=inside)
    assert finding(made.trace(), "idle", "graph_breaks") is None


def test_silent_where_the_device_hides_the_break() -> None:
    assert finding(regions(nested=True, pause=0).trace(), "idle", "graph_breaks") is None


def test_silent_without_regions() -> None:
    made = Planted()
    made.activity("k", 0, MS, launch=-10 * US)
    assert finding(made.trace(), "idle", "graph_breaks") is None


@pytest.mark.slow
def test_pytorch_marks_breaks_so(tmp_path: Path) -> None:
    """What follows a break is a region inside the first one; functions that are compiled one by one stand beside each other."""
    torch = pytest.importorskip("torch")

    def broken(x: Any) -> Any:
        x = torch.sin(x) + 1
        torch._dynamo.graph_break()
        return torch.cos(x)

    def whole(x: Any) -> Any:
        return torch.tan(x)

    first, second = (torch.compile(each, backend="eager") for each in (broken, whole))
    x = torch.ones(4)
    second(first(x))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        second(first(x))
    profiler.export_chrome_trace(str(tmp_path / "t.json"))
    stack = attribution(tracekit.read(tmp_path / "t.json")).model.stack
    region = stack.named(COMPILED_REGION)
    inner = stack.nesting.nearest_ancestor(region, include_self=False)[region] >= 0
    assert inner.tolist() == [False, True, False]
    assert int(stack.named(f"^{CACHE_LOOKUP}$").sum()) == 3
