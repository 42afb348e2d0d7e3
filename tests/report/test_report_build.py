"""The report as data: sections, verdicts, units, and what happens when an analysis fails."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl
import pytest
import small_traces
from paths import PUBLIC, PUBLIC_NSYS, SAMPLES
from real_traces import report_of, scope_of, traces
from synthetic.nsys_export import Program, write_sqlite

import tracekit
from tracekit.analyses.registry import BUILT_IN, Analysis, get_analysis
from tracekit.analyses.result import Result
from tracekit.analyses.roofline import roofline
from tracekit.analyses.scope import Scope, select
from tracekit.errors import UsageError
from tracekit.findings import Finding
from tracekit.report import build
from tracekit.report.build import build_report, build_section
from tracekit.report.model import BOUNDS, UNITS
from tracekit.trace import Trace
from tracekit.verdict.advice import Owned
from tracekit.verdict.kernels import fusible_advice, top_kernels_advice


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("make", "bound", "first_cost"),
    [
        (small_traces.compute_bound, "compute-bound", "matrix multiplication"),
        (small_traces.host_bound, "host-bound", "waiting for the host"),
        (small_traces.communication_bound, "communication-bound", "exposed communication"),
        (small_traces.input_bound, "input-bound", "waiting for the data loader"),
        (
            small_traces.short_kernels,
            "launch/short-kernel-bound",
            "waiting for the host between short kernels",
        ),
        (small_traces.copy_bound, "memory-copy-bound", "exposed copies"),
        (small_traces.without_launches, "idle", "idle, cause not captured"),
        (small_traces.cpu, "cpu", "convolution"),
    ],
)
def test_bound_and_largest_cost(
    tmp_path: Path, make: Callable[[Path], Trace], bound: str, first_cost: str
) -> None:
    verdict = build_report(make(tmp_path)).verdict
    assert verdict.bound == bound
    assert verdict.costs[0].label == first_cost
    assert verdict.advice


def test_nothing_ran(tmp_path: Path) -> None:
    report = build_report(small_traces.nothing(tmp_path))
    assert report.verdict.bound == "nothing ran"
    assert report.verdict.costs == ()
    assert report.window.duration_ns == 0


def test_costs_of_a_host_bound_run_are_exact(tmp_path: Path) -> None:
    verdict = build_report(small_traces.host_bound(tmp_path)).verdict
    # 10 kernels of 20 µs, 9 gaps of 80 µs, and 90 µs of the step before the first and after the last kernel
    assert verdict.basis_ns == 1_010_000
    assert [(cost.label, cost.ns) for cost in verdict.costs] == [
        ("waiting for the host", 810_000),
        ("matrix multiplication", 200_000),
    ]
    assert verdict.costs[0].share == 810 / 1010


def test_host_work_before_the_first_activity_counts_when_it_is_long(tmp_path: Path) -> None:
    verdict = build_report(small_traces.input_bound(tmp_path)).verdict
    # 660 µs before the first kernel, then 300 µs of work a step
    assert verdict.basis_ns == 3_000_000
    assert verdict.costs[0].ns == 1_800_000
    assert any("660 µs of the 3.00 ms (22.0 %) passed before" in note for note in verdict.notes)


def test_missing_launches_are_never_blamed_on_the_host(tmp_path: Path) -> None:
    verdict = build_report(small_traces.without_launches(tmp_path)).verdict
    assert "host" not in verdict.headline
    assert any("No launch calls" in note for note in verdict.notes)


def test_without_a_host_the_first_advice_is_to_record_it(tmp_path: Path) -> None:
    """Of a trace with kernels only one was told to see in it what the host does."""
    script = small_traces.Script()
    for index in range(50):
        script.work("gemm_kernel", 0, 100.0 * index, 10, launch=False)
    script.events = [event for event in script.events if event["cat"] == "kernel"]
    report = build_report(script.read(tmp_path))
    first = report.verdict.advice[0]
    assert first.title == "Record what the host does while the device waits"
    assert first.advice.endswith(
        "Record the host as well (activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])."
    )
    assert not any(
        "See what the host does" in each.advice for section in report.sections for each in section.findings
    )


COMMUNICATING = ("ddp", "cpu_only", "hta_nccl")


@pytest.mark.quick(1)
@pytest.mark.parametrize("path", traces(*SAMPLES, *PUBLIC))
@pytest.mark.sampled(4)
def test_every_trace_gives_a_report(path: Path) -> None:
    report = report_of(path)
    there = {"workload"} if path in SAMPLES else set()
    if roofline(scope_of(path)).not_captured is None:
        there.add("roofline")
    if any(name in str(path) for name in COMMUNICATING):
        there.add("collectives")
    expected = [a.name for a in BUILT_IN if not a.optional or a.name in there]
    assert [section.name for section in report.sections] == expected
    assert report.verdict.bound in BOUNDS
    assert sum(cost.ns for cost in report.verdict.costs) <= report.verdict.basis_ns
    assert not {item.kind for item in report.health} & {"impossible_figure", "broken_law"}
    assert report.trace.path == path.name
    for section in report.sections:
        for table in section.tables:
            assert [column.name for column in table.columns] == table.frame.columns
            assert all(column.unit in UNITS for column in table.columns)
            assert set(get_analysis(section.name).tables()[table.name].columns.split()) <= set(
                table.frame.columns
            )


@pytest.mark.slow
def test_only_keeps_sections_and_not_the_verdict(tmp_path: Path) -> None:
    trace = small_traces.host_bound(tmp_path)
    report = build_report(trace, only=["kernels"])
    assert [section.name for section in report.sections] == ["kernels"]
    assert report.verdict.headline == build_report(trace).verdict.headline


def test_top_limits_tables_and_tells_how_many_there_were(tmp_path: Path) -> None:
    section = build_report(small_traces.compute_bound(tmp_path), top=1).section("kernels")
    assert section is not None
    table = section.tables[0]
    assert table.frame.height == 1
    assert table.total_rows == 3


@pytest.mark.parametrize("changes", [{"only": ["nonsense"]}, {"top": 0}, {"step": "nonsense"}])
def test_wrong_requests_are_usage_errors(tmp_path: Path, changes: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        build_report(small_traces.host_bound(tmp_path), **changes)  # type: ignore[arg-type]


def test_section_of_one_analysis(tmp_path: Path) -> None:
    section = build_section(small_traces.host_bound(tmp_path), "kernels")
    assert section.name == "kernels"
    with pytest.raises(UsageError):
        build_section(small_traces.host_bound(tmp_path), "nonsense")


# -- analyses of other packages --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Extra(Result):
    things: pl.DataFrame
    odd_ratio: float


def extra(trace: Trace, *, scope: Scope | None = None) -> Extra:
    """What else is there?"""
    frame = pl.DataFrame({"name": ["a\x1b[0m", "b"], "size_bytes": [1, 2], "rate": [1.0, float("nan")]})
    finding = Finding("extra", "warning", "Too\nmuch", "evidence", "Do less", 5)
    return Extra(answer="Two things.", things=frame, odd_ratio=0.5, findings=(finding,))


def broken(trace: Trace, *, scope: Scope | None = None) -> Extra:
    raise RuntimeError("first line\nsecond line")


def no_result(trace: Trace, *, scope: Scope | None = None) -> int:
    return 3


def _register(monkeypatch: pytest.MonkeyPatch, *functions: str) -> None:
    found = tuple(Analysis(name, "What else?", f"{__name__}:{name}") for name in functions)
    monkeypatch.setattr(build, "analyses", lambda: (*BUILT_IN, *found))


def test_an_extension_gets_units_from_its_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _register(monkeypatch, "extra")
    section = build_report(small_traces.cpu(tmp_path)).section("extra")
    assert section is not None
    assert [column.unit for column in section.tables[0].columns] == ["text", "bytes", "number"]
    assert section.tables[0].frame["name"].to_list() == ["a [0m", "b"]
    assert section.tables[0].frame["rate"].to_list() == [1.0, None]
    assert section.scalars == {"odd_ratio": 0.5}
    assert section.findings[0].title == "Too much"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("broken", "RuntimeError: first line second line"),
        ("no_result", "TypeError: it returned int, not a Result"),
    ],
)
def test_an_extension_that_fails_takes_nothing_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, line: str
) -> None:
    _register(monkeypatch, name)
    report = build_report(small_traces.cpu(tmp_path))
    section = report.section(name)
    assert section is not None
    assert section.error == line
    assert report.section("kernels") is not None


def test_an_extension_that_cannot_be_loaded_is_a_health_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> tuple[Analysis, ...]:
        raise ImportError("no such module")

    monkeypatch.setattr(build, "analyses", fail)
    report = build_report(small_traces.cpu(tmp_path))
    assert report.health[-1].kind == "broken_extension"
    assert len(report.sections) == len([a for a in BUILT_IN if not a.optional])


def test_a_failure_of_our_own_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = [analysis for analysis in BUILT_IN if not analysis.optional]
    wrong = Analysis(first.name, first.question, f"{__name__}:broken")
    monkeypatch.setattr(build, "analyses", lambda: (wrong, *others))
    with pytest.raises(RuntimeError):
        build_report(small_traces.cpu(tmp_path))


def test_findings_on_the_bound_come_first(tmp_path: Path) -> None:
    advice = build_report(small_traces.input_bound(tmp_path)).verdict.advice
    assert advice[0].finding == "data_loading"
    assert advice[0].analysis == "steps"


@pytest.mark.parametrize(("elementwise", "fused"), [(300, True), (100, False)])
def test_a_device_that_computes_with_fused_kernels_may_fuse_more(
    tmp_path: Path, elementwise: int, fused: bool
) -> None:
    """Attention in one kernel says nothing about the elementwise kernels beside it."""
    trace = small_traces.compute_bound(tmp_path)
    kernels = pl.DataFrame(
        {
            "name": ["flash_fwd_kernel", "at::native::vectorized_elementwise_kernel<4>"],
            "category": ["attention", "elementwise"],
            "total_ns": [1_000 - elementwise, elementwise],
        }
    )
    scope = select(trace)
    advice = fusible_advice(kernels, 1_000_000, scope, set())
    assert (advice is not None) == fused
    if advice:
        share = 300_000 / scope.duration
        assert (
            advice.title
            == f"Elementwise kernels, casts and layout changes take {share:.1%} of the time".replace(
                "%", " %"
            )
        )
        assert "torch.compile" in advice.advice
        assert advice.ns_at_stake == 300_000


@pytest.mark.parametrize(
    ("name", "category", "says"),
    [
        ("sgemm_128x64_nn", "gemm", "Use 16-bit types"),
        ("gemv2T_kernel_val<int, int, double>", "gemm", "double precision.*Several vectors"),
        ("flash_bwd_kernel", "attention", "Use 16-bit types"),
        ("at::native::reduce_kernel", "reduction", "torch.compile"),
        ("elemWiseRNNcell", "rnn", "Use 16-bit types"),
        ("sort_kernel", "sort", None),
        ("indexFuncLargeIndex<float, at::native::ReduceAdd>", "embedding", "sort the indices, so that one"),
        ("at_cuda_detail::cub::DeviceRadixSortOnesweepKernel", "embedding", "sparse=True"),
        ("indexSelectLargeIndex<float>", "embedding", None),
    ],
)
def test_advice_about_kernels_names_the_largest_and_fits_them(
    tmp_path: Path, name: str, category: str, says: str | None
) -> None:
    scope = select(small_traces.compute_bound(tmp_path))
    kernels = pl.DataFrame(
        {"name": [name, "small"], "category": [category, "copy"], "total_ns": [990, 10]},
    )
    advice = top_kernels_advice(kernels, 500, 1_000, scope, {})
    assert (advice is None) == (says is None)
    if advice is not None and says is not None:
        take = {"rnn": "recurrent layers take", "embedding": "embedding and gather take"}.get(
            category, "takes"
        )
        assert f"{take} the most, 49.5 % of the time" in advice.title
        assert name.partition("<")[0][:6] in advice.title
        assert re.search(says, advice.advice)
    if category == "gemm" and says:
        fired = top_kernels_advice(kernels, 500, 1_000, scope, {"no_tensor_cores"})
        assert fired is None or "16 bits" not in fired.advice


EXPECTED: Final = {
    "saxpy_mpi_a100": (
        [
            ("of the time, mostly in main according to samples", 546),
            ("pageable memory", 216),
            ("MPI_Send (88.9 ms) and MPI_Recv", 174),
        ],
        None,
    ),
    "power_iteration_t4": (
        [('mostly in ranges "IO #"', 652), ("gemv2T", None)],
        None,
    ),
    "fuser_ce_h200": (
        [("Tracing and compilation", 835), ("Record what the host does", None)],
        "includes warm-up: tracing and compilation take 26.2 %",
    ),
}
"""Of public traces the advice with the time at stake in ms, and a part of a note."""


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_advice_stands_in_the_order_of_what_it_could_save(name: str) -> None:
    path = next((path for path in PUBLIC_NSYS if path.stem == name), None)
    if path is None:
        pytest.skip("the public traces are not beside this checkout")
    verdict = build_report(tracekit.read(path)).verdict
    expected, note = EXPECTED[name]
    assert len(verdict.advice) == len(expected)
    for one, (title, stake) in zip(verdict.advice, expected, strict=True):
        assert title in one.title
        assert one.stretches, title
        assert stake == (None if one.ns_at_stake is None else round(one.ns_at_stake / 1e6))
    assert any(note in each for each in verdict.notes) if note else not verdict.notes


def test_a_loss_that_no_finding_explains_gets_general_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advice = build_report(small_traces.host_bound(tmp_path)).verdict.advice
    assert [(one.title, one.finding, one.ns_at_stake) for one in advice] == [
        ("Record what the host does while the device waits", "", None)
    ]


def test_home_folders_are_not_shown(tmp_path: Path) -> None:
    script = small_traces.Script()
    script.host("/home/somebody/train.py(3): f", 0, 10)
    report = build_report(script.read(tmp_path))
    section = report.section("kernels")
    assert section is not None
    names = section.tables[0].frame["name"].to_list()
    assert names == ["~/train.py(3): f"]
    assert str(tmp_path) not in repr(report.trace)


@pytest.mark.slow
def test_building_imports_no_renderer() -> None:
    code = (
        "import sys, tracekit.report.build; "
        "print([m for m in ('rich', 'jinja2', 'matplotlib') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


# -- verdicts that must not mislead ----------------------------------------------------------------


def test_selected_ranges_are_not_billed_for_what_ran_between_them(tmp_path: Path) -> None:
    script = small_traces.Script()
    for at in (0, 1000):
        script.host("chosen", at, 100, "user_annotation")
        script.host("aten::mm", at, 100)
    script.host("aten::conv2d", 200, 600)
    verdict = build_report(script.read(tmp_path), step="chosen").verdict
    costs = {cost.label: cost.ns for cost in verdict.costs}
    assert costs == {
        "matrix multiplication": 200_000,
        "operators of other steps": 600_000,
        "Python outside any operator": 300_000,
    }


def test_python_leads_when_most_time_passes_outside_operators(tmp_path: Path) -> None:
    script = small_traces.Script()
    for at in (0, 900):
        for each in range(5):
            script.host("aten::mm", at + 20 * each, 20)
    verdict = build_report(script.read(tmp_path)).verdict
    assert "Python outside any operator takes 80.0 %" in verdict.headline
    assert "with_stack=True" in verdict.advice[0].advice
    assert verdict.advice[0].ns_at_stake == 800_000
    assert verdict.advice[0].stretches == ((100_000, 900_000),)


def test_a_program_without_python_is_told_of_host_code(tmp_path: Path) -> None:
    planted = Program()
    planted.domain(3, "MPI", 0, tid=7)
    for start in (1_000, 9_000):
        planted.push_pop("MPI_Send", start, start + 1_000, tid=7, domain=3)
    verdict = build_report(tracekit.read(write_sqlite(planted, tmp_path / "t.sqlite"))).verdict
    assert verdict.bound == "cpu"
    assert "host code outside any operator takes 77.8 %. " in verdict.headline
    assert (verdict.costs[0].label, verdict.costs[0].ns) == ("host code outside any operator", 7_000)
    assert not any("Python" in advice.title + advice.advice for advice in verdict.advice)


def test_time_outside_operators_that_was_no_python_is_not_called_so(tmp_path: Path) -> None:
    script = small_traces.Script()
    script.host("aten::mm", 0, 100)
    script.host("/lib/torch/profiler/profiler.py(1): step", 100, 700, "python_function")
    script.host("aten::mm", 900, 100)
    verdict = build_report(script.read(tmp_path)).verdict
    assert "the time outside any operator takes 80.0 %. " in verdict.headline
    assert verdict.costs[0].label == "outside any operator"
    assert not any("Python code between" in advice.title for advice in verdict.advice)


def test_a_long_lead_in_is_what_the_advice_is_about(tmp_path: Path) -> None:
    script = small_traces.Script()
    script.step(0, 0, 3000)
    script.work("gemm_kernel", 2005, 2010, 900)
    verdict = build_report(script.read(tmp_path)).verdict
    assert verdict.bound == "host-bound"
    assert verdict.advice[0].title == "Record more of the program"
    assert any("2.01 ms of the 3.00 ms (67.0 %) passed before" in note for note in verdict.notes)
    assert not any("CUDA graphs" in advice.advice for advice in verdict.advice)


def test_fused_kernels_are_not_told_to_be_fused(tmp_path: Path) -> None:
    script = small_traces.Script()
    script.step(0, 0, 1000)
    for number in range(10):
        script.work("triton_poi_fused_add_0", 5 + number, 10 + number * 98, 98)
    verdict = build_report(script.read(tmp_path)).verdict
    assert verdict.bound == "compute-bound"
    assert "triton_poi_fused_add_0" in verdict.advice[0].title
    assert "fuse" not in verdict.advice[0].advice


def test_advice_is_ordered_by_what_is_at_stake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tuple(
        Finding(name, severity, name, "", "Do it.", stake)  # type: ignore[arg-type]
        for name, severity, stake in (
            ("small", "critical", 9_000),
            ("low_utilisation", "critical", 700_000),
            ("middle", "warning", 50_000),
            ("large", "info", 400_000),
        )
    )
    monkeypatch.setattr(
        "tracekit.verdict.decide.owned", lambda _: [Owned(finding, "idle") for finding in found]
    )
    advice = build_report(small_traces.host_bound(tmp_path)).verdict.advice
    assert [one.title for one in advice] == [
        "large",
        "Record what the host does while the device waits",
        "middle",  # a small part of what the device waits
    ]


def test_what_saves_an_unknown_time_does_not_hide_the_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backward pass that is prepared in vain stood before most of the time, of which nothing is recorded."""
    found = Finding("autograd_in_inference", "info", "Autograd", "", "Do it.", None)
    monkeypatch.setattr("tracekit.verdict.decide.owned", lambda _: [Owned(found, "kernels")])
    advice = build_report(small_traces.host_bound(tmp_path)).verdict.advice
    assert [one.title for one in advice] == ["Record what the host does while the device waits", "Autograd"]


def test_warm_up_is_said_and_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Finding("cold_start", "warning", "First-time work", "", "Skip warm-up.", 300_000)
    monkeypatch.setattr("tracekit.verdict.decide.owned", lambda _: [Owned(told, "launches")])
    verdict = build_report(small_traces.host_bound(tmp_path)).verdict
    assert verdict.advice[0].finding == "cold_start"
    assert any("The profile includes warm-up" in note for note in verdict.notes)


@pytest.mark.skipif(not PUBLIC, reason="the public traces are not beside this checkout")
def test_a_counter_run_has_no_costs() -> None:
    path = next(path for path in PUBLIC if "cupti_counters" in path.name)
    verdict = build_report(tracekit.read(path)).verdict
    assert verdict.bound == "counters"
    assert verdict.costs == ()
    assert "say nothing about the program's speed" in verdict.headline
    assert not any("ProfilerActivity.CUDA" in advice.advice for advice in verdict.advice)


def test_without_a_device_nothing_speaks_of_one(tmp_path: Path) -> None:
    report = build_report(small_traces.cpu(tmp_path))
    kernels = report.section("kernels")
    assert kernels is not None
    assert kernels.question == "Which operators take the time?"
    streams = report.sections[2].table("streams")
    assert streams is not None
    assert {"thread", "between operators"} <= {column.title for column in streams.columns}
    lacking = [section.not_captured or "" for section in report.sections]
    assert sum("ProfilerActivity.CUDA" in text for text in lacking) == 1
