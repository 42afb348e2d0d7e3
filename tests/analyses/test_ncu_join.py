"""Nsight Compute's metrics joined to kernels: planted truth, the rule by brute force, rooflines by hand, real files."""

from __future__ import annotations

import dataclasses
import random
import re
from collections import defaultdict
from pathlib import Path

import planted_ncu as ncu
import polars as pl
import pytest
from paths import PUBLIC, ROOT
from planted import Planted
from planted_ncu import Launch, counted

import tracekit
from tracekit.analyses.counters import counters
from tracekit.analyses.counters.analysis import has_ranges, linked, measured_ranges
from tracekit.analyses.counters.ncu import TOLERANCE, NcuMatch, join_ncu, with_ncu
from tracekit.analyses.kernels import kernels
from tracekit.analyses.xsp.runs import run_of
from tracekit.analyses.xsp.views import tables_of
from tracekit.readers.ncu import NcuReport, read_ncu
from tracekit.report.build import build_report
from tracekit.trace import COUNTER_SCHEMA, DeviceInfo, Trace

CSV = ROOT.parent / "shared" / "traces" / "ncu" / "copy_blocked_t4.csv"


@pytest.fixture
def report(tmp_path: Path):
    def made(*launches: Launch, page: str = "raw") -> NcuReport:
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.csv"
        file.write_text(getattr(ncu, page)(launches))
        return read_ncu(file)

    return made


Key = tuple[str, int]  # name and grid
"""What is planted as a key; every launch has FLOPs of its own, by which it is known."""


def trace_of(steps: list[list[Key]], *, with_steps: bool = True, **more: object) -> Trace:
    """Kernels that start in another order than they were launched in, and overlap on two streams."""
    made = Planted()
    clock = 0
    for number, launches in enumerate(steps):
        begin = clock
        for turn, (name, grid) in enumerate(launches):
            clock += 100
            lag = 5_000 if turn % 2 else 50
            made.activity(
                name,
                clock + lag,
                3_000,
                launch=clock,
                call_ns=20,
                stream=7 + turn % 2,
                grid=f"[{grid}, 1, 1]",
                block="[32, 1, 1]",
                **more,
            )
        clock += 100
        if with_steps:
            made.step(number, begin, clock)
        clock += 100
    return made.trace()


def launched(trace: Trace) -> list[int]:
    """The activities in the order of their launches."""
    calls = dict(trace.host.select("span_id", "start").rows())
    rows = trace.device.select("activity_id", "launch_id").rows()
    return [activity for _, activity in sorted((calls[launch], activity) for activity, launch in rows)]


def found(match: NcuMatch) -> list[int | None]:
    """The FLOPs of each kernel in the order of the launches."""
    told = dict(linked(match.trace).select("activity_id", "flops").rows())
    return [told.get(activity) for activity in launched(match.trace)]


def health(trace: Trace) -> dict[str, int]:
    return dict(trace.health.select("kind", "count").rows())


def measured(keys: list[Key], flops: list[int] | None = None) -> list[Launch]:
    values = flops or [1000 + n for n in range(len(keys))]
    return [Launch(name, counted(f), (grid, 1, 1)) for (name, grid), f in zip(keys, values, strict=True)]


STEP: list[Key] = [("a", 1), ("b", 1), ("a", 2), ("a", 1), ("b", 1), ("c", 3)]


# -- planted truth ---------------------------------------------------------------------------------


def test_every_launch_gets_its_own(report) -> None:
    trace = trace_of([STEP, STEP])
    match = join_ncu(trace, report(*measured(STEP * 2)))
    assert found(match) == [1000 + n for n in range(12)]
    assert (match.measured, match.unmatched, match.ambiguous) == (12, 0, 0)
    assert (match.kernels, match.linked, match.by_mean) == (12, 12, 0)
    assert not [kind for kind in health(match.trace) if kind.startswith("ncu_")]


@pytest.mark.quick(5)
@pytest.mark.parametrize("seed", range(20))
def test_a_subset_by_name_in_any_trace(report, seed: int) -> None:
    rng = random.Random(seed)
    steps = [[(rng.choice("abcd"), rng.randint(1, 3)) for _ in range(rng.randint(1, 30))] for _ in range(3)]
    order = [key for step in steps for key in step]
    names = set(rng.sample("abcd", 2))
    chosen = [n for n, (name, _) in enumerate(order) if name in names]
    if not chosen:
        return
    launches = measured([order[n] for n in chosen], [5000 + n for n in chosen])
    match = join_ncu(trace_of(steps), report(*launches))
    assert found(match) == [5000 + n if n in chosen else None for n in range(len(order))]
    assert health(match.trace).get("ncu_not_measured", 0) == len(order) - len(chosen)


@pytest.mark.parametrize("with_steps", [True, False])
def test_one_step_stands_for_all(report, with_steps: bool) -> None:
    trace = trace_of([STEP] * 4, with_steps=with_steps)
    match = join_ncu(trace, report(*measured(STEP)))
    assert found(match) == [1000 + n for n in range(6)] * 4
    assert match.by_mean == 0


def test_a_count_that_divides_is_no_period(report) -> None:
    """Six launches of one key in one step, of which ncu measured the first three, which differ."""
    trace = trace_of([[("a", 1), ("b", 1)] + [("a", 1)] * 5])
    match = join_ncu(trace, report(*measured([("a", 1), ("b", 1), ("a", 1), ("a", 1)], [10, 20, 30, 40])))
    assert found(match) == [None, 20, None, None, None, None, None]
    assert (match.ambiguous, match.unmatched, match.linked) == (3, 0, 1)
    assert health(match.trace)["ncu_ambiguous"] == 3


def test_one_key_alone_shows_no_period(report) -> None:
    for values, expected in (([10, 20, 30], [None] * 6), ([10, 10, 10], [10] * 6)):
        match = join_ncu(
            trace_of([[("a", 1)] * 6], with_steps=False), report(*measured([("a", 1)] * 3, values))
        )
        assert found(match) == expected


@pytest.mark.parametrize(("last", "agree"), [(1049, True), (1060, False)])
def test_launches_that_agree_give_their_mean_to_all(report, last: int, agree: bool) -> None:
    assert TOLERANCE == 0.05
    trace = trace_of([[("a", 1)] * 7])
    match = join_ncu(trace, report(*measured([("a", 1)] * 3, [1000, 1000, last])))
    mean = round((2000 + last) / 3)
    assert found(match) == [mean if agree else None] * 7
    assert (match.by_mean, match.ambiguous) == ((7, 0) if agree else (0, 3))
    assert health(match.trace).get("ncu_mean", 0) == (7 if agree else 0)


def test_more_launches_than_the_trace_has(report) -> None:
    trace = trace_of([[("a", 1)] * 2 + [("b", 1)]])
    match = join_ncu(trace, report(*measured([("a", 1)] * 5 + [("b", 1)] * 2, [7] * 5 + [1, 9])))
    assert found(match) == [7, 7, None]
    assert (match.by_mean, match.ambiguous) == (2, 2)


def test_kernels_outside_of_steps_are_no_part_of_a_period(report) -> None:
    """A warm-up before the first step, of which nothing was measured."""
    made = Planted()
    for at, step in ((0, False), (1000, True), (2000, True)):
        made.activity("a", at + 50, 9, launch=at, call_ns=5, grid="[1, 1, 1]", block="[32, 1, 1]")
        if step:
            made.activity("a", at + 90, 9, launch=at + 60, call_ns=5, grid="[1, 1, 1]", block="[32, 1, 1]")
            made.step(at, at, at + 500)
    match = join_ncu(made.trace(), report(*measured([("a", 1)] * 2, [11, 22])))
    assert found(match) == [None, 11, 22, 11, 22]


def test_what_the_trace_does_not_have_is_counted(report) -> None:
    trace = trace_of([STEP])
    launches = [*measured(STEP), Launch("z", counted(1)), Launch("a", counted(1), (99, 1, 1))]
    match = join_ncu(trace, report(*launches))
    assert found(match) == [1000 + n for n in range(6)]
    assert match.unmatched == 2
    none = join_ncu(trace, report(Launch("z", counted(1))))
    assert (none.linked, none.unmatched) == (0, 1)
    assert none.trace.counters is None
    told = {kind: count for kind, count in health(none.trace).items() if kind.startswith("ncu_")}
    assert told == {"ncu_unmatched": 1, "ncu_not_measured": 6}


def test_a_block_of_another_size_is_another_kernel(report) -> None:
    trace = trace_of([[("a", 1)]])
    other = Launch("a", counted(1), (1, 1, 1), (64, 1, 1))
    assert join_ncu(trace, report(other)).linked == 0


def test_devices_that_both_sides_know_are_kept_apart(report) -> None:
    made = Planted()
    for at in range(6):
        place = {"grid": "[1, 1, 1]", "block": "[32, 1, 1]", "device": at % 2}
        made.activity("a", 100 * at + 50, 9, launch=100 * at, call_ns=5, **place)
    # Device 1 was measured first, and whole.
    launches = [
        Launch("a", counted(n), device=d) for d, n in ((1, 2), (1, 4), (1, 6), (0, 1), (0, 3), (0, 5))
    ]
    assert found(join_ncu(made.trace(), report(*launches))) == [1, 2, 3, 4, 5, 6]
    alone = [Launch("a", counted(n), device=3) for n in range(1, 7)]
    assert found(join_ncu(made.trace(), report(*alone))) == [1, 2, 3, 4, 5, 6]


KINETO = "void n::(anonymous namespace)::f<4, A<char*, 2ul> >(int, A<char*, 2ul>)"


@pytest.mark.parametrize(
    "spelling",
    [
        KINETO,
        "void n::<unnamed>::f<(int)4, A<char *, (unsigned long)2>>(int, T2)",
        "f",
        "_ZN1n12_GLOBAL__N_11fILi4E1AIPcLm2EEEEviT0_",
    ],
)
def test_names_meet_in_any_spelling(report, spelling: str) -> None:
    trace = trace_of([[(KINETO, 1), ("g", 1), (KINETO, 2)]])
    launches = measured([(spelling, 1), (spelling, 2)], [5, 6])
    match = join_ncu(trace, report(*launches))
    assert found(match) == [5, None, 6]
    assert match.unmatched == 0


def test_instances_of_a_template_are_told_apart_where_the_names_tell_them(report) -> None:
    order = [("void f<1>(int)", 1), ("void f<2>(int)", 1), ("void f<1>(int)", 1), ("void f<2>(int)", 1)]
    trace = trace_of([order])
    by_signature = measured([(f"f<(int){n}>(T1)", 1) for n in (2, 2, 1, 1)], [2, 4, 1, 3])
    assert found(join_ncu(trace, report(*by_signature))) == [1, 2, 3, 4]
    # A bare name stands for both, in the order of the launches.
    bare = measured([("f", 1)] * 4, [1, 2, 3, 4])
    assert found(join_ncu(trace, report(*bare))) == [1, 2, 3, 4]


def test_tables_are_joined_one_by_one_and_the_first_counts(report) -> None:
    trace = trace_of([[("a", 1), ("b", 1)]])
    traffic = [
        Launch("a", {"dram__bytes.sum": ("byte", "64")}),
        Launch("b", {"dram__bytes.sum": ("byte", "32")}),
    ]
    instructions = [Launch(name, counted(n, 8, 9)) for name, n in (("a", 1), ("b", 2))]
    later = [Launch("a", counted(100, 80, 90))]
    match = join_ncu(trace, report(*traffic), report(*instructions), report(*later))
    assert found(match) == [1, 2]
    rows = linked(match.trace).sort("activity_id")
    assert rows["dram_bytes"].to_list() == [17, 17]
    # The same in one file, one table below the other.
    assert rows.equals(
        linked(with_ncu(with_ncu(trace, report(*traffic)), report(*instructions))).sort("activity_id")
    )
    assert with_ncu(match.trace, report(*later)).counters.equals(match.trace.counters)


# -- the rule by brute force -----------------------------------------------------------------------


def by_hand(steps: list[list[Key]], launches: list[tuple[Key, int]]) -> list[int | None]:
    """The FLOPs of each kernel, by the rule in words; a mean is rounded."""
    flat = [(key, number) for number, step in enumerate(steps) for key in step]
    theirs: dict[Key, list[int]] = defaultdict(list)
    for key, flops in launches:
        theirs[key].append(flops)
    ours = [key for key, _ in flat if key in theirs]
    table = [key for key, _ in launches if key in set(ours)]
    over_and_over = len(set(table)) > 1 and ours == table * (len(ours) // len(table))
    got: list[int | None] = []
    for at, (key, step) in enumerate(flat):
        own = theirs.get(key, [])
        turn = sum(other == key for other, _ in flat[:at])
        many = sum(other == key for other, _ in flat)
        counts = {s: sum(o == (key, s) for o in flat) for s in range(len(steps)) if (key, s) in flat}
        if not own:
            got.append(None)
        elif len(own) == many:
            got.append(own[turn])
        elif set(counts.values()) == {len(own)}:
            got.append(own[sum(other == (key, step) for other in flat[:at])])
        elif over_and_over:
            got.append(own[turn % len(own)])
        elif max(own) - min(own) <= 0.05 * max(own):
            got.append(round(sum(own) / len(own)))
        else:
            got.append(None)
    return got


@pytest.mark.quick(6)
@pytest.mark.parametrize("seed", range(80))
@pytest.mark.sampled(8)
def test_the_join_is_that_of_the_rule(report, seed: int) -> None:
    rng = random.Random(seed)
    one = [(rng.choice("abc"), rng.randint(1, 2)) for _ in range(rng.randint(1, 8))]
    steps = [list(one) for _ in range(rng.randint(1, 4))]
    if rng.random() < 0.4:
        steps[-1] = steps[-1][: rng.randint(1, len(one))]
    flat = [key for step in steps for key in step]
    begin = rng.randrange(len(flat))
    keys = flat[begin : begin + rng.randint(1, len(flat))]
    if rng.random() < 0.5:
        names = set(rng.sample("abc", 2))
        keys = [key for key in keys if key[0] in names] or keys
    spread = rng.choice([0, 20, 400])
    launches = [(key, 1000 + rng.randint(0, spread)) for key in keys]
    match = join_ncu(trace_of(steps), report(*measured(keys, [f for _, f in launches])))
    assert found(match) == by_hand(steps, launches)


# -- what the trace tells then ---------------------------------------------------------------------


def test_the_counters_are_those_of_the_activities_and_no_replay(report) -> None:
    trace = trace_of([STEP])
    joined = with_ncu(
        trace, report(*(dataclasses.replace(one, metrics=counted(5, 64, 32, 37.5)) for one in measured(STEP)))
    )
    rows = joined.counters
    assert rows is not None
    assert dict(rows.schema) == {
        name: kind() if isinstance(kind, type) else kind for name, kind in COUNTER_SCHEMA.items()
    }
    both = rows.join(trace.device, on="activity_id")
    assert (both["start"] == both["start_right"]).all()
    assert (both["duration"] == both["duration_right"]).all()
    assert (both["name"].cast(str) == both["name_right"].cast(str)).all()
    share = rows.filter(pl.col("series").cast(str) == ncu.OCCUPANCY)
    assert share["value"].to_list() == [37.5] * 6
    assert not has_ranges(joined)
    assert not measured_ranges(joined).height
    assert trace.counters is None
    built = build_report(joined)
    assert built.verdict.bound != "counters"
    assert not any(f.id == "counter_replay" for section in built.sections for f in section.findings)
    told = counters(joined)
    assert told.answer.endswith("Nsight Compute measured 6 kernels of the trace.")
    names = joined.device.filter(pl.col("activity_id").is_in(joined.counters["activity_id"].implode()))[
        "name"
    ].n_unique()
    assert f"for kernels of {names} name" in told.answer  # not "1 measured kernels" beside "6 kernels"
    assert told.by_name is not None
    assert "counters" in joined.meta.captured


def test_kernels_by_name_with_their_work(report) -> None:
    trace = trace_of([[("a", 1), ("b", 1), ("a", 1), ("c", 1), ("c", 2)]])
    launches = [
        Launch("a", counted(6_000, 1_000, 500, 50.0)),
        Launch("b", {"dram__bytes.sum.per_second": ("Gbyte/s", "2"), "gpu__time_duration.sum": ("us", "3")}),
        Launch("a", counted(3_000, 1_500, 0, 25.0)),
        Launch("c", counted(7, 0, 0), (2, 1, 1)),
    ]
    table = kernels(with_ncu(trace, report(*launches))).measured
    assert table is not None
    rows = {row["name"]: row for row in table.to_dicts()}
    a = rows["a"]
    assert (a["count"], a["measured"], a["total_ns"], a["flops"], a["dram_bytes"]) == (
        2,
        2,
        6_000,
        9_000,
        3_000,
    )
    assert (a["intensity"], a["tflops"], a["bandwidth_gbps"], a["occupancy"]) == (3.0, 0.0015, 0.5, 0.375)
    assert a["dram_source"] == "counter (ncu)"
    b = rows["b"]
    assert (b["flops"], b["dram_bytes"], b["dram_source"], b["intensity"]) == (
        None,
        6_000,
        "derived (ncu)",
        None,
    )
    c = rows["c"]
    assert (c["count"], c["measured"], c["total_ns"], c["intensity"]) == (2, 1, 3_000, None)
    assert kernels(trace).measured is None


A100 = DeviceInfo(0, "NVIDIA A100", (8, 0), 108, 20_000_000_000, 2048, 32, memory_bandwidth=864_000_000_000)
"""The catalogue has no bandwidth of a board of which neither the name nor the memory says which it is."""
H100 = DeviceInfo(0, "NVIDIA H100 80GB HBM3", (9, 0), 132, 85_000_000_000, 2048, 32)


def layered(device: DeviceInfo) -> Trace:
    """Two layers: `a` with two kernels that overlap, `b` with one; matrix products in bf16."""
    made = Planted()
    made.step(1, 0, 10_000)
    inputs = {
        "shapes": "[[2, 3], [3, 4]]",
        "dtypes": '["c10::BFloat16", "c10::BFloat16"]',
        "concrete_inputs": '["", ""]',
    }
    for at, layer, launches in ((100, "a", 2), (5_000, "b", 1)):
        made.span("module", f"tracekit.layer/{layer}", at, at + 900, layer=layer, module_type="Linear")
        made.span("op", "aten::mm", at + 10, at + 500, **inputs)
        for n in range(launches):
            place = {"grid": "[8, 1, 1]", "block": "[32, 1, 1]", "stream": 7 + n, "occupancy": 0.9}
            made.activity(f"k{n}", at + 600 + 100 * n, 1_000, launch=at + 100 + 50 * n, call_ns=20, **place)
    return made.trace(devices=(device,))


def test_rooflines_are_those_computed_by_hand(report) -> None:
    launches = [
        Launch("k0", counted(8_000_000, 1_000, 1_000, 50.0), (8, 1, 1)),
        Launch("k1", counted(2_000_000, 2_000, 1_000, 20.0), (8, 1, 1)),
        Launch("k0", counted(600, 200, 100, 10.0), (8, 1, 1)),
    ]
    run = run_of("planted", with_ncu(layered(H100), report(*launches)))
    tables = tables_of(run)
    rows = {(row["layer"], row["name"]): row for row in tables["A9"].frame.to_dicts()}
    assert len(rows) == 3
    peak, bandwidth = 989.4, 3350.0
    for key, flops, moved in ((("a", "k0"), 8e6, 2_000), (("a", "k1"), 2e6, 3_000), (("b", "k0"), 600, 300)):
        row = rows[key]
        assert (row["flops"], row["dram_bytes"], row["duration_ns"]) == (flops, moved, 1_000)
        assert (row["flops_source"], row["dram_source"]) == ("counter (ncu)", "counter (ncu)")
        assert row["precision"] == "bf16"
        assert row["intensity"] == flops / moved
        assert row["tflops"] == pytest.approx(flops / 1_000 / 1e3)
        assert row["attainable_tflops"] == pytest.approx(min(peak, flops / moved * bandwidth / 1e3))
        assert row["memory_bound"] == (flops / moved < peak * 1e3 / bandwidth)
    assert [rows[key]["memory_bound"] for key in (("a", "k0"), ("b", "k0"))] == [False, True]
    layers = {row["layer"]: row for row in tables["A14"].frame.to_dicts()}
    # 600 to 1600 and 700 to 1700: the union is 1100 ns
    assert (layers["a"]["gpu_ns"], layers["a"]["flops"], layers["a"]["dram_bytes"]) == (1_100, 10e6, 5_000)
    assert layers["a"]["intensity"] == 2_000
    assert layers["a"]["tflops"] == pytest.approx(10e6 / 1_100 / 1e3)
    assert layers["a"]["attainable_tflops"] == pytest.approx(peak)
    assert layers["b"]["attainable_tflops"] == pytest.approx(2 * bandwidth / 1e3)
    each = {(row["layer"], row["name"]): row for row in tables["A8"].frame.to_dicts()}
    assert each["a", "k1"]["occupancy"] == 0.2
    assert {row["occupancy_source"] for row in each.values()} == {"counter (ncu)"}
    assert tables["A9"].answer.endswith("FLOPs: counter (ncu); bytes: counter (ncu).")
    whole = tables_of(run)["A15"].frame.row(0, named=True)
    assert (whole["flops"], whole["dram_bytes"]) == (10_000_600, 5_300)
    assert whole["occupancy"] == pytest.approx((0.5 + 0.2 + 0.1) / 3)


def test_bytes_that_are_not_split_make_a_roofline(report) -> None:
    def launch(name: str) -> Launch:
        whole = {"dram__bytes.sum.per_second": ("Gbyte/s", "5"), "gpu__time_duration.sum": ("ns", "400")}
        return Launch(name, whole, (8, 1, 1))

    run = run_of("planted", with_ncu(layered(H100), report(launch("k0"), launch("k1"), launch("k0"))))
    row = tables_of(run)["A14"].frame.row(0, named=True)
    assert (row["dram_bytes"], row["dram_source"]) == (4_000, "derived (ncu)")
    # FLOPs from the shapes: 2 × 2 × 3 × 4
    assert (row["flops"], row["flops_source"], row["intensity"]) == (48, "analytic", 48 / 4_000)


@pytest.mark.slow
def test_the_bandwidth_of_a_board_that_is_not_listed_is_that_of_the_trace(report) -> None:
    launches = report(*(Launch(name, counted(2_000, 10, 10), (8, 1, 1)) for name in ("k0", "k1", "k0")))
    told = run_of("planted", with_ncu(layered(A100), launches))
    assert (told.bandwidth_gbps, told.recorded_bandwidth_gbps) == (864.0, 864.0)
    table = tables_of(told)["A9"]
    assert table.frame["attainable_tflops"][0] == pytest.approx(min(312.0, 100 * 864 / 1e3))
    assert "864 GB/s, comes from the trace" in table.answer
    assert "864 GB/s" in tables_of(told)["A15"].answer
    bare = trace_of([[("k0", 8)]])
    plain = tables_of(run_of("planted", with_ncu(bare, report(Launch("k0", counted(5, 1, 1), (8, 1, 1))))))
    assert "precision of the arithmetic, and therefore the peak, is not" in plain["A9"].answer
    assert plain["A9"].frame["intensity"].to_list() == [2.5]
    unknown = run_of("planted", with_ncu(layered(dataclasses.replace(A100, memory_bandwidth=None)), launches))
    assert unknown.bandwidth_gbps is None
    # What the vendor's table has is taken from there.
    listed = run_of("planted", layered(dataclasses.replace(H100, memory_bandwidth=1)))
    assert (listed.bandwidth_gbps, listed.recorded_bandwidth_gbps) == (3350.0, None)


@pytest.mark.slow
def test_ncu_counts_before_a_run_for_counters(report) -> None:
    trace = layered(H100)
    made = Planted()
    for at, name in enumerate(("k0", "k1", "k0")):
        for series, value in (("dram__bytes_read.sum", 70.0), ("dram__bytes_write.sum", 7.0)):
            made.counters.append({"name": name, "series": series, "start": at, "duration": 1, "value": value})
    made.span("op", "aten::empty", 0, 5)
    joined = with_ncu(trace, report(Launch("k1", counted(5, 10, 2), (8, 1, 1))))
    frame = tables_of(run_of("planted", joined, counters=made.trace()))["A8"].frame
    assert frame.select("name", "dram_read_bytes", "dram_bytes", "dram_source").rows() == [
        ("k0", 70, 77, "counter"),
        ("k1", 10, 12, "counter (ncu)"),
        ("k0", 70, 77, "counter"),
    ]


# -- limits ----------------------------------------------------------------------------------------


def test_of_very_many_values_those_are_kept_that_make_figures(
    report, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = {**counted(5, 1, 2), **{f"l1tex__made_up_{n}.sum": ("", "1") for n in range(50)}}
    trace = trace_of([[("a", 1)] * 4])
    table = report(Launch("a", metrics))
    assert with_ncu(trace, table).counters["series"].n_unique() == len(metrics)
    monkeypatch.setattr("tracekit.analyses.counters.ncu._MOST_ROWS", 100)
    kept = with_ncu(trace, table)
    assert set(kept.counters["series"].cast(str)) == set(counted(5, 1, 2))
    assert linked(kept)["flops"].to_list() == [5] * 4


def test_a_trace_without_a_device_gets_nothing(report) -> None:
    made = Planted()
    made.span("op", "aten::mm", 0, 50)
    match = join_ncu(made.trace(devices=()), report(Launch("a", counted(5))))
    assert (match.kernels, match.linked, match.unmatched) == (0, 0, 1)
    assert kernels(match.trace).measured is None


def test_the_metrics_that_the_docs_ask_for_give_every_figure(report) -> None:
    units = {"gpu__time_duration.sum": "ns", ncu.OCCUPANCY: "%"}
    asked = re.findall(
        r"--metrics ([^\s]+)", (ROOT / "docs" / "ncu.md").read_text("utf-8").replace("\\\n", "")
    )
    launch = Launch("a", {name: (units.get(name, ""), "3") for name in asked[0].split(",")})
    row = report(launch).kernels.row(0, named=True)
    assert None not in [
        row[name] for name in ("duration_ns", "registers", "flops", "dram_bytes", "occupancy")
    ]


# -- real files ------------------------------------------------------------------------------------


@pytest.mark.skipif(not CSV.exists(), reason="the public files are not here")
def test_a_public_table_joins_a_trace_of_its_kernel() -> None:
    table = read_ncu(CSV)
    name = table.kernels["name"][0]
    made = Planted()
    for at, size in ((0, "[1024, 1, 1]"), (100, "[512, 1, 1]"), (200, "[1024, 1, 1]")):
        made.activity(name, at + 20, 10_000, launch=at, call_ns=5, grid=size, block="[256, 1, 1]")
    match = join_ncu(made.trace(), table)
    assert (match.linked, match.by_mean, match.unmatched) == (2, 2, 0)
    row = kernels(match.trace).measured.row(0, named=True)
    moved = round(196_456_177_859.63 * 0.021058944)
    assert (row["dram_bytes"], row["dram_source"], row["measured"]) == (2 * moved, "derived (ncu)", 2)
    assert row["occupancy"] == pytest.approx(0.9626)


ALEXNET = [path for path in PUBLIC if path.name == "a100_alexnet.json.gz"]


@pytest.mark.skipif(not ALEXNET, reason="the public traces are not here")
@pytest.mark.parametrize("page", ["raw", "details"])
def test_a_public_trace_joins_a_table_of_its_kernels_as_ncu_spells_them(report, page: str) -> None:
    trace = tracekit.read(ALEXNET[0])
    rows = trace.device.filter(pl.col("kind") == "kernel").join(
        trace.host.select(pl.col("span_id").alias("launch_id"), pl.col("start").alias("at")),
        on="launch_id",
        how="left",
    )
    rows = rows.sort("at", "start").with_columns(pl.col("name", "grid", "block").cast(str))
    launches = []
    for number, row in enumerate(rows.to_dicts()):
        sizes = [tuple(map(int, row[name].strip("[]").split(","))) for name in ("grid", "block")]
        spelled = (
            row["name"].replace("(anonymous namespace)", "<unnamed>").replace("> >", ">>").replace("*", " *")
        )
        launches.append(Launch(spelled, {**counted(number + 1, number, 1)}, *sizes))
    rng = random.Random(3)
    dropped = rng.choice(rows["name"].unique(maintain_order=True).to_list())
    kept = [n for n, name in enumerate(rows["name"]) if name != dropped]
    match = join_ncu(trace, report(*(launches[n] for n in kept), page=page))
    assert match.linked == len(kept)
    assert match.unmatched == match.ambiguous == match.by_mean == 0
    told = dict(linked(match.trace).select("activity_id", "dram_read_bytes").rows())
    expected = {rows["activity_id"][n]: n for n in kept}
    assert told == expected
