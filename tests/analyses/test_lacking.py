"""What a trace lacks, and the flag that records it: of the profiler that wrote the trace, and of no other."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from planted import A100, MS, US, Planted, finding

import tracekit
from tracekit.analyses.attribution import attribution
from tracekit.analyses.idle import idle
from tracekit.analyses.idle.causes import idle_causes
from tracekit.analyses.launches import launches
from tracekit.analyses.memory import memory
from tracekit.analyses.registry import BUILT_IN
from tracekit.analyses.result import no_launches
from tracekit.analyses.scope import select
from tracekit.analyses.xsp.catalogue import MISSING
from tracekit.analyses.xsp.views import lacking_note
from tracekit.cli.commands.info import facts_of
from tracekit.readers import KINETO, NSYS, RECORDABLE, flag_for, how_to_record
from tracekit.report.build import build_report
from tracekit.trace import DeviceInfo, Trace

TORCH = (
    "prof.step",
    "ProfilerActivity",
    "record_shapes=True)",
    "profile_memory",
    "with_stack",
    "profiler_metrics",
)
TORCH_ALONE = (*TORCH[:2], *TORCH[3:], "schedule(", "record_function")
NSYS_ALONE = ("--trace=", "--cuda-memory-usage", "--pytorch=", "--gpu-metrics", "--python-", "nsys")


def planted(*, calls: bool, linked: bool) -> Planted:
    made = Planted()
    for number in range(3):
        at = number * MS
        if calls:
            made.call("cudaLaunchKernel", at, 5 * US, correlation=number + 1 if linked else None)
        made.activity("gemm", at + 10 * US, 500 * US)
    return made


def of_format(trace: Trace, format_: str) -> Trace:
    return replace(trace, meta=replace(trace.meta, format=format_))


def texts(trace: Trace) -> list[str]:
    """What every place says about launches that are not known."""
    scope = select(trace)
    said = [idle(trace).not_captured, launches(trace).not_captured, idle_causes(trace).not_captured]
    return [*(text or "" for text in said), attribution(scope).missing[0]]


def test_launches_that_were_not_recorded() -> None:
    trace = planted(calls=False, linked=False).trace(captured=frozenset({"device"}))
    for text in texts(trace):
        assert text.startswith("no launch calls")
        assert text.endswith("; profile with ProfilerActivity.CPU and ProfilerActivity.CUDA")
    for text in texts(of_format(trace, "nsys")):
        assert text.startswith("no launch calls")
        assert text.endswith("; record with nsys profile --trace=cuda,nvtx")


@pytest.mark.quick(1)
@pytest.mark.parametrize("format_", ["kineto", "nsys"])
def test_launches_that_were_recorded_but_lost_their_numbers(format_: str) -> None:
    trace = of_format(planted(calls=True, linked=False).trace(captured=frozenset({"device"})), format_)
    assert trace.device["launch_id"].null_count() == 3
    for text in texts(trace):
        assert text.startswith("no activity could be linked to its launch call")
        assert "use the file as the profiler wrote it" in text
        assert not any(word in text for word in (*TORCH, *NSYS_ALONE))
    notes = build_report(trace).verdict.notes
    assert any(note.startswith("No activity could be linked to its launch call") for note in notes)
    found = finding(of_format(trace, "kineto"), "breakdown", "incomplete_capture")
    assert found is not None
    assert "launch calls" not in found.title


def test_other_calls_are_no_launches() -> None:
    made = planted(calls=False, linked=False)
    made.call("cudaMalloc", 0, 5 * US)
    assert all(text.startswith("no launch calls") for text in texts(made.trace(captured=frozenset())))


def test_nothing_is_said_where_launches_are_known_or_nothing_ran() -> None:
    assert no_launches(select(planted(calls=True, linked=True).trace())) is None
    assert no_launches(select(Planted().trace())) is None
    cpu = Planted()
    cpu.span("op", "aten::mm", 0, US)
    assert no_launches(select(cpu.trace(devices=()))) is None


def test_every_flag_is_of_its_profiler() -> None:
    assert set(KINETO.flags) == set(NSYS.flags) == set(RECORDABLE)
    for what in RECORDABLE:
        torch, nsys = KINETO.flags[what], NSYS.flags[what]
        assert flag_for(what, "kineto") == flag_for(what, "chrome") == torch
        assert not any(word in torch for word in NSYS_ALONE), what
        assert not any(word in nsys for word in TORCH_ALONE), what
        assert how_to_record(what, "nsys") == f"record with {nsys}"


@pytest.mark.parametrize(
    "device", [A100, replace(A100, name="AMD Instinct MI300X"), replace(A100, name="", warp_size=64)]
)
def test_no_flag_is_said_that_only_cuda_has(device: DeviceInfo) -> None:
    """On devices of AMD, `info` advised CUDA's synchronisation events and counters."""
    trace = planted(calls=True, linked=True).trace(captured=frozenset(), devices=(device,))
    lacks = facts_of(of_format(trace, "kineto"))["not_captured"]
    assert ("enable_cuda_sync_events" in lacks["sync"]) == (device is A100)
    assert ("profiler_metrics" in lacks["counters"]) == (device is A100)
    assert ("RCCL" in lacks["collectives"]) == (device is not A100)


def bare(format_: str) -> list[Trace]:
    """Traces that lack nearly everything, with a device and without."""
    on_device = planted(calls=False, linked=False)
    on_cpu = Planted()
    for number in range(3):
        on_cpu.span("op", "aten::mm", number * MS, number * MS + 100 * US)
    nothing = Planted()
    made = [on_device.trace(captured=frozenset()), nothing.trace(captured=frozenset(), devices=())]
    return [of_format(one, format_) for one in (*made, on_cpu.trace(captured=frozenset(), devices=()))]


@pytest.mark.slow
@pytest.mark.parametrize(("format_", "foreign"), [("nsys", TORCH_ALONE), ("kineto", NSYS_ALONE)])
def test_no_text_of_a_report_names_the_flag_of_another_profiler(
    format_: str, foreign: tuple[str, ...]
) -> None:
    for trace in bare(format_):
        report = build_report(trace, only=[analysis.name for analysis in BUILT_IN])
        said = [section.not_captured or "" for section in report.sections]
        said += [advice.advice for advice in report.verdict.advice]
        said += [found.advice for section in report.sections for found in section.findings]
        assert any(said)
        for text in said:
            assert not any(word in text for word in foreign), text
        assert not any(word in flag for flag in facts_of(trace)["not_captured"].values() for word in foreign)


@pytest.mark.quick(1)
@pytest.mark.parametrize("format_", ["kineto", "nsys"])
def test_a_report_says_once_how_to_record_the_device(format_: str) -> None:
    hints = [how_to_record(what, format_) for what in ("device", "everything")]
    for trace in bare(format_)[1:]:
        lacks = [section.not_captured or "" for section in build_report(trace).sections]
        assert sum(any(hint in text for hint in hints) for text in lacks) == 1
        assert not any(text.endswith("; ") for text in lacks)


def test_rules_name_the_flags_of_the_profiler() -> None:
    for format_, word in (("kineto", "torch.profiler.schedule"), ("nsys", "--capture-range=cudaProfilerApi")):
        made = Planted()
        made.call("cudaMalloc", 0, 900 * MS)
        made.activity("gemm", 901 * MS, MS, launch=900 * MS)
        made.activity("gemm", 0, US, launch=0)
        found = finding(of_format(made.trace(), format_), "launches", "cold_start")
        assert found is not None
        assert word in found.advice


def test_xsp_names_the_flags_of_the_profiler() -> None:
    for key in MISSING:
        assert "{" not in str(lacking_note([key], "kineto"))
        assert not any(word in str(lacking_note([key], "nsys")) for word in TORCH_ALONE), key
    assert "profile_memory=True" in str(lacking_note(["memory"], "kineto"))
    assert "--levels ML" in str(lacking_note(["ML"], "kineto"))
    assert "--levels" not in str(lacking_note(["M", "ML"], "kineto", own_loop=True))
    assert "--cuda-memory-usage=true" in str(lacking_note(["memory"], "nsys"))


def test_a_flag_that_was_on_is_not_asked_for(tmp_path: Path) -> None:
    """Where a graph replays, nothing is allocated: the report asked for profile_memory=True, which the header had."""
    path = tmp_path / "trace.json"
    events = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 9}]
    for told, says in ((0, "profile_memory=True"), (1, "though the profiler was to record them")):
        path.write_text(json.dumps({"profile_memory": told, "traceEvents": events}))
        made = memory(tracekit.read(path))
        assert str(made.not_captured).startswith("no allocator events")
        assert says in str(made.not_captured)
