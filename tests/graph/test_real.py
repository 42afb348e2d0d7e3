"""Graphs of real traces: replays, paths and predictions on everything that is at hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from paths import PUBLIC, PUBLIC_NSYS, ROOT, SAMPLES
from real_traces import scope_of, traces

import tracekit
from tracekit.analyses.critical_path import critical_path
from tracekit.analyses.graph.build import dependencies
from tracekit.analyses.graph.parts import parts_of
from tracekit.analyses.scope import Scope, select
from tracekit.analyses.what_if import (
    Bandwidth,
    Change,
    CudaGraph,
    FasterHost,
    Fuse,
    NoLoaderWait,
    OtherDevice,
    OverlapCommunication,
    Remove,
    RemoveSync,
    Scale,
    ShardOptimizer,
    predicted,
    what_if,
)
from tracekit.errors import UsageError

MOST_ERROR = 0.033
"""The mean error that Lumos has; here no step may have more."""
FASTER: tuple[Change, ...] = (
    Scale("category:*", 0.5),
    Scale("category:gemm", 0.1),
    Remove("category:*"),
    FasterHost(2),
    RemoveSync(),
    NoLoaderWait(),
    CudaGraph(),
    OverlapCommunication(),
    ShardOptimizer(8),
    Bandwidth(2),
)


def checked(scope: Scope) -> None:
    """Asserts what holds for the graph of every trace."""
    made = dependencies(scope)
    graph, path = made.graph, parts_of(made)
    assert (made.replayed == graph.time).all()
    assert path["duration_ns"].sum() == scope.duration
    assert path.null_count().select("start", "duration_ns", "resource", "cause").row(0) == (0, 0, 0, 0)
    ends = path["start"] + path["duration_ns"]
    assert (path["start"][1:] == ends[:-1]).all()
    assert (made.slack[graph.path(graph.weights, made.replayed).target] == 0).all()
    usual = graph.replay(made.usual)
    assert abs(int(usual[-1]) - made.end) <= MOST_ERROR * max(scope.duration, 1)
    if made.steps.size > 1:
        recorded, replayed = np.diff(graph.time[made.steps]), np.diff(usual[made.steps])
        assert (np.abs(replayed - recorded) <= MOST_ERROR * recorded).all()


@pytest.mark.quick(2)
@pytest.mark.parametrize("path", traces(*SAMPLES, *PUBLIC))
def test_replays_are_exact_and_paths_as_long_as_the_window(path: Path) -> None:
    for window in ("steps", "trace"):
        checked(scope_of(path, window))


@pytest.mark.slow
@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in PUBLIC_NSYS])
def test_exports_of_nsight_systems_as_well(path: Path) -> None:
    for trace in tracekit.read_all(path):
        checked(select(trace))


@pytest.mark.quick(1)
@pytest.mark.parametrize("path", traces(*SAMPLES, *PUBLIC))
def test_less_work_never_takes_longer_and_no_change_changes_nothing(path: Path) -> None:
    scope = scope_of(path)
    assert predicted(scope, []) == scope.duration
    for change in FASTER:
        try:
            result = what_if(scope, [change])
        except UsageError:  # the trace has nothing of the kind
            continue
        assert 0 <= result.low_ns <= result.after_ns <= result.high_ns
        assert result.after_ns <= scope.duration, change.label
        assert abs(int(result.critical["after_ns"].sum()) - result.after_ns) <= result.critical.height + 1
    both = [Scale("category:*", 0.5), FasterHost(2)]
    if not scope.on_cpu and scope.activities.height:
        assert predicted(scope, both) <= min(predicted(scope, [one]) for one in both)


def test_a_fused_optimizer_keeps_what_one_pass_takes() -> None:
    scope = scope_of(ROOT / "sample_traces" / "cnn_cpu" / "trace.json.gz")
    result = what_if(scope, [Fuse()])
    assert result.low_ns < result.after_ns < result.high_ns < result.before_ns
    assert result.critical.filter(part="optimizer")["after_ns"].sum() > 0


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (Scale("layer:nowhere", 0.5), "no layer in the window fits"),
        (Scale("colour:red", 0.5), "selects nothing"),
        (Remove("cause:laziness"), "there is no cause"),
        (CudaGraph(), "no device was captured"),
        (OtherDevice("abacus"), "the catalogue has no device"),
        (OverlapCommunication(), "no communication"),
    ],
)
def test_a_change_that_fits_nothing_is_one_line(change: Change, fault: str) -> None:
    scope = scope_of(ROOT / "sample_traces" / "cnn_cpu" / "trace.json.gz")
    with pytest.raises(UsageError, match=fault) as error:
        what_if(scope, [change])
    assert "\n" not in str(error.value)


def test_the_path_of_a_processor_is_what_its_thread_does() -> None:
    scope = scope_of(ROOT / "sample_traces" / "bert_cpu" / "trace.json.gz")
    result = critical_path(scope)
    assert result.wait_ns == result.links == 0
    assert (
        result.device_ns
        == scope.activities.filter(
            (scope.activities["start"] >= scope.start) & (scope.activities["end"] <= scope.end)
        )["duration"].sum()
    )
