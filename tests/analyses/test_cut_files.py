"""Files that end too early: the steps that their end cuts are in no path and no prediction. The truth is the file as it was before it was cut."""

from __future__ import annotations

from pathlib import Path

import pytest
from paths import ROOT

import tracekit
from tracekit.analyses.critical_path import critical_path
from tracekit.analyses.scope import select
from tracekit.analyses.what_if import Scale, what_if
from tracekit.analyses.whole import whole_steps
from tracekit.errors import InconclusiveError
from tracekit.predict import predict_from_trace
from tracekit.trace import Trace
from tracekit.verdict.advised import advised

GPU = ROOT / "sample_traces" / "resnet50_gpu_fp32" / "trace.json.gz"
YOLO = ROOT / "sample_traces" / "yolov5_gpu_fp32" / "trace.json.gz"
HALF = [Scale("category:convolution", 0.5)]


def cut(file: Path, folder: Path, share: float) -> Trace:
    """A file of which only the first part was copied."""
    data = file.read_bytes()
    short = folder / file.name
    short.write_bytes(data[: int(len(data) * share)])
    return tracekit.read(short)


@pytest.mark.parametrize(("share", "steps"), [(0.97, 2), (0.72, 1)])
def test_a_step_without_its_end_is_not_called_bound_by_the_host(
    tmp_path: Path, share: float, steps: int
) -> None:
    whole, short = tracekit.read(GPU), cut(GPU, tmp_path, share)
    path = critical_path(short)
    assert path.answer.startswith("The file ends too early: ")
    assert path.steps is not None
    assert path.steps.height == steps
    assert path.device_ns is not None
    assert path.device_ns > 0.9 * path.length_ns
    then, truth = what_if(short, HALF), what_if(whole, HALF)
    assert then.after_ns / then.before_ns == pytest.approx(truth.after_ns / truth.before_ns, abs=0.03)
    assert "ends too early" in then.answer
    for question in ({"device": "H200"}, {"batch": 2.0}):
        there, here = (predict_from_trace(select(one), **question) for one in (whole, short))  # type: ignore[arg-type]
        assert here.step_ns == pytest.approx(there.step_ns, rel=0.03)
        assert any("ends too early" in note for note in here.notes)
    assert "ends too early" in advised([select(short)]).answer


@pytest.mark.parametrize(
    ("share", "fault"), [(0.55, "before any record of its device"), (0.6, "no step of it is whole")]
)
def test_a_file_without_a_whole_step_gives_no_path(tmp_path: Path, share: float, fault: str) -> None:
    scope = select(cut(GPU, tmp_path, share))
    for ask in (critical_path, lambda one: what_if(one, HALF), lambda one: predict_from_trace(one, batch=2)):
        with pytest.raises(InconclusiveError, match=fault) as told:
            ask(scope)
        assert str(scope.trace.meta.path) in str(told.value)


@pytest.mark.slow
@pytest.mark.parametrize(("share", "steps"), [(0.7, 0), (0.8, 0), (0.85, 1), (0.95, 2)])
def test_a_step_that_lacks_the_calls_of_the_backward_pass_is_not_whole(
    tmp_path: Path, share: float, steps: int
) -> None:
    """Of a file whose profiler wrote them behind all others, steps without them were called whole: host code took three quarters of the path."""
    short = select(cut(YOLO, tmp_path, share))
    if not steps:
        with pytest.raises(InconclusiveError, match="no step of it is whole"):
            whole_steps([short])
        return
    (kept,), _ = whole_steps([short])
    whole = select(tracekit.read(YOLO))
    for which in kept.steps["step"].to_list():
        counts = [int((scope.activities["step"] == which).sum()) for scope in (kept, whole)]
        assert counts[0] == counts[1]
    assert kept.steps.height == steps


def test_all_ranks_lose_the_step_that_the_file_of_one_cuts(tmp_path: Path) -> None:
    files = sorted((ROOT / "sample_traces" / "bert_cpu_ddp").glob("trace*.json.gz"))
    scopes = [select(tracekit.read(files[0])), select(cut(files[1], tmp_path, 0.97))]
    kept, told = whole_steps(scopes)
    assert len({scope.steps.height for scope in kept}) == 1
    assert kept[0].steps.height < scopes[0].steps.height
    assert kept[1].end < scopes[1].end
    assert critical_path(scopes).answer.startswith(told)
    assert whole_steps(kept[:1]) == (kept[:1], "")
