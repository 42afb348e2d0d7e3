"""The headings, word for word as NVIDIA's programs print them, and what stands in them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from paths import ROOT
from stats_made import Made, drawn

import tracekit
from tracekit.analyses.nsys_stats.catalogue import CATALOGUE, DEFAULT_REPORTS
from tracekit.analyses.nsys_stats.columns import COLUMNS, MISSING
from tracekit.analyses.nsys_stats.ranges import DEEPEST_STACK
from tracekit.analyses.nsys_stats.tables import in_unit, report, table
from tracekit.errors import InconclusiveError, UsageError

SUM = "Time (%),Total Time (ns),{},Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),{}"
COPY = "Bytes (MB),PID,Device ID,Context ID,Green Context ID,Stream ID,API Name"
HEADINGS = {
    "nvtx_sum": SUM.format("Instances", "Style,Range"),
    "osrt_sum": SUM.format("Num Calls", "Name"),
    "cuda_api_sum": SUM.format("Num Calls", "Name"),
    "cuda_gpu_kern_sum": SUM.format("Instances", "Name"),
    "cuda_gpu_mem_time_sum": SUM.format("Count", "Operation"),
    "cuda_gpu_mem_size_sum": "Total (MB),Count,Avg (MB),Med (MB),Min (MB),Max (MB),StdDev (MB),Operation",
    "cuda_gpu_kern_gb_sum": SUM.format("Instances", "GridXYZ,BlockXYZ,Name"),
    "cuda_gpu_sum": SUM.format("Instances", "Category,Operation"),
    "cuda_gpu_trace": (
        "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),"
        "Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name"
    ),
    "cuda_api_trace": "Start (ns),Duration (ns),Name,Result,CorrID,Pid,Tid,T-Pri,Thread Name",
    "cuda_kern_exec_sum": (
        "PID,TID,DevId,Count,QCount,TAvg (ns),TMed (ns),TMin (ns),TMax (ns),TStdDev (ns),AAvg (ns),AMed (ns),AMin (ns),"
        "AMax (ns),AStdDev (ns),QAvg (ns),QMed (ns),QMin (ns),QMax (ns),QStdDev (ns),KAvg (ns),KMed (ns),KMin (ns),"
        "KMax (ns),KStdDev (ns),API Name,Kernel Name"
    ),
    "cuda_kern_exec_trace": (
        "API Start (ns),API Dur (ns),Queue Start (ns),Queue Dur (ns),Kernel Start (ns),Kernel Dur (ns),Total Dur (ns),"
        "PID,TID,DevId,API Function,GridXYZ,BlockXYZ,Kernel Name"
    ),
    "nvtx_pushpop_sum": SUM.format("Instances", "Range"),
    "nvtx_startend_sum": SUM.format("Instances", "Range"),
    "nvtx_pushpop_trace": (
        "Start (ns),End (ns),Duration (ns),DurChild (ns),DurNonChild (ns),Name,PID,TID,Lvl,NumChild,RangeId,ParentId,"
        "RangeStack,NameTree"
    ),
    "nvtx_kern_sum": (
        "NVTX Range,Style,PID,TID,NVTX Inst,Kern Inst,Total Time (ns),Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),"
        "Kernel Name"
    ),
    "nvtx_gpu_proj_sum": (
        "Range,Style,Total Proj Time (ns),Total Range Time (ns),Range Instances,Proj Avg (ns),Proj Med (ns),Proj Min (ns),"
        "Proj Max (ns),Proj StdDev (ns),Total GPU Ops,Avg GPU Ops,Avg Range Lvl,Avg Num Child"
    ),
    "nvtx_gpu_proj_trace": (
        "Name,Projected Start (ns),Projected Duration (ns),Orig Start (ns),Orig Duration (ns),Style,PID,TID,NumGPUOps,"
        "Lvl,NumChild,RangeId,ParentId,RangeStack"
    ),
    "cuda_memcpy_async": f"Duration (ns),Start (ns),Src Kind,Dst Kind,{COPY}",
    "cuda_memcpy_sync": f"Duration (ns),Start (ns),Src Kind,Dst Kind,{COPY}",
    "cuda_memset_sync": f"Duration (ns),Start (ns),Memory Kind,{COPY}",
    "cuda_api_sync": "Duration (ns),Start (ns),PID,TID,API Name",
}


def test_headings() -> None:
    assert {name: ",".join(entry.columns) for name, entry in CATALOGUE.items()} == HEADINGS
    assert tuple(HEADINGS)[:6] == DEFAULT_REPORTS


def test_every_table_has_them_in_any_trace() -> None:
    traces = [
        [drawn(3)],
        [Made().trace()],
        [tracekit.read(ROOT / "sample_traces" / "cnn_cpu" / "trace.json.gz")],
    ]
    for given in traces:
        for name, entry in CATALOGUE.items():
            made = table(given, name)
            assert dict(made.frame.schema) == entry.schema, name
            assert made.frame.height == 0 or made.not_captured is None


def test_every_column_is_explained_and_used() -> None:
    used = {column for entry in CATALOGUE.values() for column in entry.columns}
    assert used == set(COLUMNS)
    for entry in CATALOGUE.values():
        assert set(entry.shown) <= set(entry.columns)
        assert set(entry.needs) <= set(MISSING)


def lacks(name: str, *, format_: str) -> str:
    made = table(Made(format=format_).trace(), name)
    assert made.frame.height == 0
    assert made.not_captured is not None
    return made.not_captured


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("osrt_sum", "--trace=osrt"),
        ("cuda_gpu_kern_sum", "--trace=cuda"),
        ("cuda_api_sum", "--trace=cuda"),
        ("nvtx_sum", "--trace=nvtx"),
        ("nvtx_startend_sum", "--trace=nvtx"),
        ("cuda_memcpy_sync", "--trace=cuda"),
    ],
)
def test_what_is_not_captured_names_the_flag(name: str, flag: str) -> None:
    assert flag in lacks(name, format_="nsys")
    with pytest.raises(InconclusiveError, match=flag):
        report(Made().trace(), name)
    if name != "osrt_sum" and "startend" not in name:
        assert "ProfilerActivity" in lacks(name, format_="kineto")


def test_what_did_not_occur_is_not_what_was_not_captured() -> None:
    made = Made()
    made.span("step", 0, 9)
    made.work("k", 5, 2, launch=(1, 2))
    for name in ("nvtx_startend_sum", "cuda_gpu_mem_time_sum", "cuda_memset_sync"):
        found = table(made.trace(), name)
        assert (found.frame.height, found.not_captured) == (0, None)
    recorded = Made(captured=frozenset({"device", "launches"}))
    recorded.span("step", 0, 9)
    assert table(recorded.trace(), "cuda_gpu_kern_sum").not_captured is None


def test_whole_graphs_are_device_time_but_no_kernels() -> None:
    made = Made()
    made.work("CUDA graph 3", 10, 30, kind="graph", launch=(1, 2), call="cudaGraphLaunch")
    trace = made.trace()
    assert "--cuda-graph-trace=node" in str(table(trace, "cuda_gpu_kern_sum").not_captured)
    assert report(trace, "cuda_gpu_sum").select("Category", "Operation", "Total Time (ns)").rows() == [
        ("CUDA_GRAPH", "CUDA graph 3", 30)
    ]


def test_work_without_a_launch_is_told() -> None:
    made = Made()
    made.span("a", 0, 9)
    made.work("k", 5, 2, launch=(1, 2))
    made.work("lost", 8, 2)
    trace = made.trace()
    assert report(trace, "cuda_gpu_kern_sum")["Instances"].sum() == 2
    for name in ("cuda_kern_exec_sum", "nvtx_kern_sum", "nvtx_gpu_proj_sum"):
        assert "1 of 2" in table(trace, name).answer


def test_a_call_belongs_to_the_ranges_that_contain_all_of_it() -> None:
    made = Made()
    made.span("outer", 0, 100)
    made.span("inner", 10, 20)
    made.work("in", 50, 5, launch=(12, 20))
    made.work("over the end", 60, 5, launch=(20, 25))
    made.span("elsewhere", 0, 100, thread=2)
    found = report(made.trace(), "nvtx_gpu_proj_trace").select("Name", "NumGPUOps", "Projected Duration (ns)")
    assert found.rows() == [(":outer", 2, 15), (":inner", 1, 5)]


def test_ranges_of_one_name_in_each_other() -> None:
    made = Made()
    for bounds in ((0, 100), (10, 50), (60, 90)):
        made.span("a", *bounds)
    made.work("k", 200, 7, launch=(20, 21))
    made.work("k", 210, 9, launch=(70, 71))
    made.work("k", 220, 1, launch=(95, 96))
    ((name, inside, kernels, total),) = (
        report(made.trace(), "nvtx_kern_sum")
        .select("NVTX Range", "NVTX Inst", "Kern Inst", "Total Time (ns)")
        .rows()
    )
    assert (name, inside, kernels, total) == (":a", 3, 3, 17)


def test_stacks_end_at_a_depth() -> None:
    made = Made()
    for level in range(DEEPEST_STACK + 10):
        made.span(f"r{level}", level, 1000 - level)
    made.work("k", 600, 5, launch=(500, 501))
    trace = made.trace()
    stacks: Sequence[str | None] = report(trace, "nvtx_pushpop_trace")["RangeStack"].to_list()
    assert stacks[2] == ":1:2:3"
    assert [stack is None for stack in stacks].count(True) == 9
    assert report(trace, "nvtx_gpu_proj_trace").height == DEEPEST_STACK + 10
    deep = table(trace, "nvtx_kern_sum")
    assert deep.frame.height == DEEPEST_STACK + 1
    assert "9 ranges below level 64" in deep.answer


def test_ids_join_the_reports() -> None:
    trace = drawn(7)
    nested = report(trace, "nvtx_pushpop_trace").select("RangeId", "Name", "Start (ns)")
    projected = (
        report(trace, "nvtx_gpu_proj_trace")
        .filter(Style="PushPop")
        .select("RangeId", "Name", "Orig Start (ns)")
    )
    assert projected.height
    joined = projected.join(nested, on="RangeId", how="inner", validate="1:1")
    assert joined.height == projected.height
    assert (joined["Name"] == joined["Name_right"]).all()
    assert (joined["Orig Start (ns)"] == joined["Start (ns)"]).all()


def test_units() -> None:
    made = table(drawn(7), "cuda_api_sum")
    frame = in_unit(made, "ms").frame
    assert frame.columns[:3] == ["Time (%)", "Total Time (ms)", "Num Calls"]
    assert frame["Max (ms)"].max() == pytest.approx(made.frame["Max (ns)"].max() / 1e6)  # type: ignore[operator]


def test_unknown_report() -> None:
    with pytest.raises(UsageError, match="cuda_gpu_kern_sum"):
        report(drawn(1), "gpukernsum")


def test_copies_of_unified_memory_have_rows_of_their_own() -> None:
    made = Made()
    made.work("Memcpy HtoD (Pinned -> Device)", 0, 3, kind="memcpy", bytes=4_000_000)
    made.work("Memcpy Unified HtoD (Managed -> Device)", 5, 2, kind="memcpy", bytes=1_000_001)
    found = report(made.trace(), "cuda_gpu_mem_size_sum").select("Operation", "Total (MB)")
    assert found.rows() == [
        ("[CUDA memcpy Host-to-Device]", 4.0),
        ("[CUDA memcpy Unified Host-to-Device]", 1.000001),
    ]
    assert report(made.trace(), "cuda_gpu_trace").select("Name", "SrcMemKd", "Throughput (MB/s)").row(1) == (
        "[CUDA memcpy Unified Host-to-Device]",
        "Managed",
        pytest.approx(500_000_500.0),
    )


def test_calls_of_libraries_that_nsys_traced_are_no_ranges() -> None:
    made = Made()
    made.span("cublasSgemm_v2", 0, 9, kind="op")
    made.span("MPI_Send", 10, 12, kind="op")
    assert "--trace=nvtx" in str(table(made.trace(), "nvtx_sum").not_captured)
    made.span("aten::mm", 0, 9, kind="op")
    made.span("MPI_Send", 13, 14, kind="op", domain="MPI")
    assert sorted(report(made.trace(), "nvtx_sum")["Range"]) == [":aten::mm", "MPI:MPI_Send"]
    assert sorted(report(made.trace(), "nvtx_pushpop_trace")["RangeId"]) == [1, 2]
