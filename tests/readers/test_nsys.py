"""The reader of Nsight Systems exports: what it makes of each kind of record, in every version and form of the file."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from paths import PUBLIC_NSYS
from synthetic import generate, nsys_oracle
from synthetic.nsys_export import SECRETS, Program, write_parquetdir, write_sqlite
from synthetic.nsys_layered import MARKS, Style, both, convert, shape_of, training
from synthetic.nsys_odd import small
from synthetic.nsys_schema import NEWEST, OLDEST, VERSIONS

import tracekit
from tracekit.errors import UnreadableTraceError
from tracekit.trace import FRAMES, Trace

MAIN, ENGINE = 4242, 4249


def everything() -> Program:
    """One record, at least, of every kind."""
    program = small()
    main = {"tid": MAIN}
    program.thread("python main", **main)
    program.session(1_700_000_000_000_000_000, 0, 2_000_000)
    program.domain(1, "NCCL", -5, **main)
    program.domain(2, "my app", -4, **main)
    program.push_pop("ncclAllReduce", 500_000, 510_000, domain=1, jsonText='{"Rank": 3}', **main)
    program.push_pop("phase one", 520_000, 530_000, domain=2, int64Value=12, **main)
    program.push_pop("no such domain", 540_000, 545_000, domain=9, **main)
    program.start_end("request 7", 100_000, 700_000, end_tid=ENGINE, **main)
    program.mark("checkpoint", 600_000, **main)
    program.os_call("poll", 10_000, 19_000, tid=ENGINE)
    program.overhead("CUDA profiling data flush operation", 700_000, 710_000, **main)
    program.sample(["inner;one", "outer", "main"], 650_000, **main)
    program.memset(800_000, 801_000, bytes_=256, correlation=92)
    program.graph(7, 820_000, 850_000, correlation=93)
    program.call("cudaGraphLaunch_v10000", 810_000, 815_000, correlation=93, **main)
    program.metric("SM Active", [(100_000, 40), (200_000, 60)])
    program.metric("DRAM Read", [(100_000, 5)])
    return program


def read(path: Path) -> Trace:
    (trace,) = tracekit.read_all(path)
    return trace


def texts(frame: pl.DataFrame | None) -> pl.DataFrame:
    """The frame with names as plain texts."""
    assert frame is not None
    return frame.with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return read(write_sqlite(everything(), tmp_path_factory.mktemp("all") / "t.sqlite"))


# -- one of each -------------------------------------------------------------------------------------


def test_ranges_become_spans_of_their_kinds(trace: Trace) -> None:
    host = texts(trace.host)
    kinds = Counter(host.filter(pl.col("kind") != "runtime").select("kind", "name").rows())
    assert kinds == {
        ("step", "ProfilerStep#0"): 1,
        ("annotation", "layer0"): 2,
        ("annotation", "layer1"): 2,
        ("op", "aten::mm"): 4,
        ("op", "ncclAllReduce"): 1,
        ("annotation", "phase one"): 1,
        ("annotation", "no such domain"): 1,
        ("overhead", "CUDA profiling data flush operation"): 1,
    }
    ops = host.filter(pl.col("name") == "aten::mm").select("sequence", "external_id")
    assert ops.rows() == [(i, i) for i in range(4)]


def test_domains_and_payloads(trace: Trace) -> None:
    rows = texts(trace.host).filter(pl.col("domain").is_not_null()).select("name", "domain", "payload").rows()
    assert rows == [
        ("ncclAllReduce", "NCCL", '{"Rank": 3}'),
        ("phase one", "my app", "12"),
        ("no such domain", "#9", None),
    ]


def test_calls_lose_their_version_and_nest_in_ranges(trace: Trace) -> None:
    host = texts(trace.host)
    calls = Counter(host.filter(pl.col("kind") == "runtime")["name"])
    assert calls == {
        "cudaLaunchKernel": 4,
        "cudaMemcpyAsync": 1,
        "cudaStreamSynchronize": 1,
        "cudaGraphLaunch": 1,
    }
    names = dict(host.select("span_id", "name").rows())
    parents = {names[parent] for parent in host.filter(pl.col("name") == "cudaLaunchKernel")["parent_id"]}
    assert parents == {"aten::mm"}


def test_activities_of_every_kind(trace: Trace) -> None:
    device = texts(trace.device)
    origin = trace.meta.origin_ns
    rows = device.select("kind", "name", pl.col("start") + origin, "duration", "bytes", "launch_id").rows()
    assert Counter((kind, name) for kind, name, *_ in rows) == {
        ("kernel", "gemm<float>"): 4,
        ("memcpy", "Memcpy HtoD (Pinned -> Device)"): 1,
        ("memset", "Memset (Device)"): 1,
        ("graph", "CUDA graph 7"): 1,
    }
    assert [row[2:5] for row in rows if row[0] == "memcpy"] == [(910_000, 2_000, 4_096)]
    assert [row[2:5] for row in rows if row[0] == "memset"] == [(800_000, 1_000, 256)]
    assert [row[0] for row in rows if row[5] is None] == ["memset"]
    kernel = device.filter(pl.col("kind") == "kernel").row(0, named=True)
    assert (kernel["grid"], kernel["block"], kernel["blocks"]) == ("[64, 1, 1]", "[128, 1, 1]", 64)
    assert (kernel["shared_memory"], kernel["dynamic_shared_memory"]) == (1_536, 512)
    assert (kernel["registers"], kernel["context_id"], kernel["process_id"]) == (32, 1, 4242)


def test_ranges_that_need_not_nest(trace: Trace) -> None:
    columns = ["kind", "name", "thread_id", "end_thread_id", "duration"]
    assert texts(trace.ranges).select(columns).rows() == [
        ("start_end", "request 7", MAIN, ENGINE, 600_000),
        ("mark", "checkpoint", MAIN, None, None),
    ]


def test_what_lies_beside_host_and_device(trace: Trace) -> None:
    origin = trace.meta.origin_ns
    assert texts(trace.os_calls).select("name", "thread_id", "duration").rows() == [("poll", ENGINE, 9_000)]
    assert texts(trace.samples).select("stack", pl.col("start") + origin).rows() == [
        ("main;outer;inner,one", 650_000)
    ]
    assert texts(trace.syncs).select("name", "stream_id", "duration").rows() == [("Stream Sync", 7, 68_000)]
    counters = texts(trace.counters).select("name", "series", pl.col("start") + origin, "value").rows()
    assert sorted(counters) == [
        ("GPU 0", "DRAM Read", 100_000, 5.0),
        ("GPU 0", "SM Active", 100_000, 40.0),
        ("GPU 0", "SM Active", 200_000, 60.0),
    ]
    assert trace.threads.rows() == [(4242, MAIN, "python main")]


def test_what_is_known_of_file_and_machine(trace: Trace) -> None:
    meta = trace.meta
    assert (meta.format, meta.format_version, meta.process_ids) == ("nsys", NEWEST, (4242,))
    assert meta.producer["version"] == "2024.1.1.59"
    assert meta.origin_utc_ns == 1_700_000_000_000_000_000 + meta.origin_ns
    (device,) = meta.devices
    assert (device.name, device.sm_count, device.compute_capability) == ("NVIDIA A100-SXM4-40GB", 108, (8, 0))
    assert (device.memory_bandwidth, device.clock_hz) == (1_555_200_000_000, 1_410_000_000)
    assert {"steps", "device", "launches", "sync", "counters"} <= meta.captured
    assert (meta.rank, meta.world_size) == (None, None)


def test_nothing_of_who_recorded_it_is_kept(trace: Trace) -> None:
    secrets = [*SECRETS.values(), "secret-user", "secret-command"]
    held = repr(trace.meta) + "".join(
        texts(frame).write_csv() for name in FRAMES if (frame := getattr(trace, name)) is not None
    )
    assert not [secret for secret in secrets if secret in held]


def test_what_was_not_recorded_is_absent(tmp_path: Path) -> None:
    trace = read(write_sqlite(small(), tmp_path / "t.sqlite", OLDEST))
    assert [trace.ranges, trace.os_calls, trace.samples, trace.counters, trace.memory] == [None] * 5
    assert trace.meta.format_version == ""
    assert trace.meta.producer == {}
    assert [(device.name, device.sm_count) for device in trace.meta.devices] == [("", None)]


# -- every version and form --------------------------------------------------------------------------


def sums_of(traces: list[Trace], frame: str, kind: str) -> dict[str, tuple[int, int]]:
    rows = pl.concat([texts(getattr(trace, frame)) for trace in traces]).filter(pl.col("kind") == kind)
    found = rows.group_by("name").agg(pl.len(), pl.col("duration").sum())
    return {name: (count, total) for name, count, total in found.rows()}


def processes_of(traces: list[Trace]) -> list[int]:
    return [process for trace in traces for process in trace.meta.process_ids]


def check_against_sql(path: Path, traces: list[Trace]) -> None:
    """Counts and sums by name are those of direct SQL."""
    assert sums_of(traces, "device", "kernel") == nsys_oracle.kernels_by_name(path)
    assert sums_of(traces, "host", "runtime") == nsys_oracle.calls_by_name(path, processes_of(traces))
    for kind in nsys_oracle.ACTIVITIES:
        name = {"GRAPH_TRACE": "graph"}.get(kind, kind.lower())
        rows = sums_of(traces, "device", name).values()
        count, total = nsys_oracle.totals(path, f"CUPTI_ACTIVITY_KIND_{kind}")
        assert (sum(row[0] for row in rows), sum(row[1] for row in rows)) == (count, total)
    host = pl.concat([texts(trace.host) for trace in traces])
    spans = host.filter(pl.col("kind").is_in(["step", "annotation", "module", "op"]))
    found = nsys_oracle.ranges_by_name(path)
    assert spans.height == sum(found.values())
    plain = spans.filter(pl.col("kind") != "module")["name"]
    assert Counter(plain) == {name: count for name, count in found.items() if not name.startswith("{")}


@pytest.mark.quick(3)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("marks", MARKS)
@pytest.mark.sampled(4)
def test_counts_and_sums_are_those_of_sql(marks: str, version: str, tmp_path: Path) -> None:
    program = training(3, shape_of(marks), Style(marks=marks)).program
    path = write_sqlite(program, tmp_path / "t.sqlite", version)
    check_against_sql_of_one(path, marks)


def check_against_sql_of_one(path: Path, marks: str) -> None:
    traces = tracekit.read_all(path)
    if marks == "capture":  # whose layers are modules, under the names of their ranges
        names = texts(traces[0].host).filter(pl.col("kind") == "module")["name"]
        found = nsys_oracle.ranges_by_name(path)
        assert Counter(names) == {k: n for k, n in found.items() if k.startswith("tracekit.layer/")}
        return
    check_against_sql(path, traces)


def check_equal(mine: Trace, theirs: Trace) -> None:
    for name in FRAMES:
        one, two = getattr(mine, name), getattr(theirs, name)
        assert (one is None) == (two is None), name
        if name == "health":  # whose examples may be the file's name
            one, two = one.drop("example"), two.drop("example")
        assert one is None or one.equals(two), name
    for name in ("format_version", "producer", "devices", "origin_ns", "captured", "rank", "event_count"):
        assert getattr(mine.meta, name) == getattr(theirs.meta, name), name


@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize("version", VERSIONS[::-1])
def test_a_folder_of_parquet_gives_the_same_frames(version: str, tmp_path: Path) -> None:
    graphs = training(4, shape_of("dict"), Style(marks="dict", whole_graphs=True)).program
    loop = convert(generate(2, devices=2, steps=2), [], Style()).program
    for number, program in enumerate((everything(), graphs, loop)):
        database = write_sqlite(program, tmp_path / f"{number}.sqlite", version)
        # A name with wildcards was once a pattern, and rows were read twice.
        folder = write_parquetdir(program, tmp_path / f"{number}[ab]?*", version)
        check_equal(read(database), read(folder))


@pytest.mark.quick(1)
@pytest.mark.parametrize("version", VERSIONS)
def test_reading_twice_and_from_the_cache_gives_the_same(version: str, tmp_path: Path) -> None:
    export = both(training(1, shape_of("range"), Style()), training(2, shape_of("range"), Style(pid=77)))
    path = write_sqlite(export.program, tmp_path / "t.sqlite", version)
    plain, first, second = (tracekit.read_all(path, cache=cached) for cached in (False, True, True))
    assert len(plain) == len(first) == len(second) == 2
    for one, two in itertools.chain(zip(plain, first, strict=True), zip(first, second, strict=True)):
        check_equal(one, two)


def test_devices_are_told_apart(tmp_path: Path) -> None:
    planted = generate(5, devices=2, steps=2)
    trace = read(write_sqlite(convert(planted, [], Style()).program, tmp_path / "t.sqlite"))
    counts = Counter(activity.device for activity in planted.activities)
    assert dict(trace.device.group_by("device_id").len().rows()) == dict(counts)
    assert [device.device_id for device in trace.meta.devices] == [0, 1]


@pytest.mark.quick(1)
@pytest.mark.parametrize("version", VERSIONS[1:])
def test_backtraces_are_no_calls(version: str, tmp_path: Path) -> None:
    plans = [training(1, shape_of("range"), Style(backtraces=taken)).program for taken in (False, True)]
    alone, repeated = (
        read(write_sqlite(program, tmp_path / f"{i}.sqlite", version)) for i, program in enumerate(plans)
    )
    assert repeated.host.equals(alone.host)
    assert repeated.device.equals(alone.device)
    assert any(kind.startswith("derived") for kind in repeated.health["kind"])


@pytest.mark.slow
def test_several_processes_are_several_traces(tmp_path: Path) -> None:
    export = both(training(1, shape_of("range"), Style()), training(1, shape_of("range"), Style(pid=77)))
    path = write_sqlite(export.program, tmp_path / "t.sqlite")
    first, second = tracekit.read_all(path)
    assert [(trace.meta.part, trace.meta.parts) for trace in (first, second)] == [(0, 2), (1, 2)]
    assert (first.meta.process_ids, second.meta.process_ids) == ((77,), (4242,))
    drop = ["process_id", "thread_id"]
    assert first.host.drop(drop).equals(second.host.drop(drop))
    with pytest.raises(UnreadableTraceError, match=r"2 processes \(77, 4242\)"):
        tracekit.read(path)


def test_correlation_ids_alone_would_multiply_rows(tmp_path: Path) -> None:
    """The trap: two processes number their launches alike."""
    export = both(training(1, shape_of("range"), Style()), training(1, shape_of("range"), Style(pid=77)))
    path = write_sqlite(export.program, tmp_path / "t.sqlite")
    join = "FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN CUPTI_ACTIVITY_KIND_RUNTIME r USING (correlationId)"
    ((joined,),) = nsys_oracle.query(path, f"SELECT count(*) {join}")
    ((kernels,),) = nsys_oracle.query(path, "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL")
    traces = tracekit.read_all(path)
    assert joined > kernels == sum(t.device.filter(pl.col("kind") == "kernel").height for t in traces)
    for trace in traces:
        launch = trace.device.join(
            trace.host.select(pl.col("span_id").alias("launch_id"), pl.col("process_id").alias("of")),
            on="launch_id",
        )
        assert launch.height
        assert (launch["process_id"] == launch["of"]).all()


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_call_of_the_driver_inside_one_of_the_runtime_launches_nothing_twice(
    share: float, tmp_path: Path
) -> None:
    export = training(1, shape_of("range"), Style(nested_calls=share))
    trace = read(write_sqlite(export.program, tmp_path / "t.sqlite"))
    assert trace.device.height == len(export.expected)
    assert trace.device["launch_id"].null_count() == sum(not row.launched for row in export.expected)


# -- public files ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize("path", PUBLIC_NSYS, ids=lambda p: p.stem)
def test_public_files_against_sql(path: Path) -> None:
    traces = tracekit.read_all(path)
    check_against_sql(path, traces)
    os_calls = sum(trace.os_calls.height for trace in traces if trace.os_calls is not None)
    assert os_calls == nsys_oracle.totals(path, "OSRT_API", processes_of(traces))[0]
    syncs = sum(trace.syncs.height for trace in traces if trace.syncs is not None)
    assert syncs == nsys_oracle.totals(path, "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION")[0]


@pytest.mark.parametrize("path", [p for p in PUBLIC_NSYS if p.stem == "fsdp_2gpu"], ids=lambda p: p.stem)
def test_a_public_file_of_two_processes_has_each_kernel_once(path: Path) -> None:
    join = "FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN CUPTI_ACTIVITY_KIND_RUNTIME r USING (correlationId)"
    assert nsys_oracle.query(path, f"SELECT count(*) {join}") == [(4280,)]
    traces = tracekit.read_all(path)
    assert [trace.meta.process_ids for trace in traces] == [(144,), (145,)]
    kernels = [trace.device.filter(pl.col("kind") == "kernel").height for trace in traces]
    assert sum(kernels) == 4010
    assert {device.device_id for trace in traces for device in trace.meta.devices} == {0, 1}
