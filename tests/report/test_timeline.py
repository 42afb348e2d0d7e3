"""The timeline's data: what is drawn, how it is packed, and how it hangs together."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import polars as pl
import pytest
import small_traces
from hypothesis import strategies as st
from paths import PUBLIC, ROOT, SAMPLES
from polars.testing import assert_frame_equal
from real_traces import report_of, trace_of, traces
from synthetic import generate, write
from test_report_html import _title_after, needs_browser

import tracekit
from tracekit.analyses.attribution import METHODS, attribution
from tracekit.analyses.rules.rule import MOST_STRETCHES
from tracekit.analyses.scope import select
from tracekit.facts.idle_names import CAUSES, cause_name
from tracekit.facts.stack_names import PHASES
from tracekit.intervals import IntervalSet
from tracekit.report.build import build_report
from tracekit.report.html import render, timeline_detail
from tracekit.report.html import timeline as module
from tracekit.report.html.timeline import shapes_drawn, timeline, varints, zigzag
from tracekit.report.html.timeline_shapes import GROUPS, shapes_of
from tracekit.trace import Trace

SIGNED = ("link", "ended")
FROM_ONE = ("layer", "phase", "method", "note")


def _numbers(data: bytes) -> list[int]:
    """Written after the description of LEB128, one byte at a time."""
    found, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            found.append(value)
            value = shift = 0
    assert shift == 0
    return found


def unpacked(shapes: dict[str, Any]) -> dict[str, list[int]]:
    """The columns as the page has them after unpacking, with the lane of each shape and its line."""
    data, at = zlib.decompress(base64.b64decode(shapes["data"])), 0
    columns: dict[str, list[int]] = {}
    for name, size in shapes["columns"]:
        columns[name] = _numbers(data[at : at + size])
        at += size
        assert len(columns[name]) == shapes["shapes"]
    assert at == len(data)
    for name in SIGNED:
        steps = [-(value + 1) // 2 if value % 2 else value // 2 for value in columns[name]]
        columns[name] = np.cumsum(steps).tolist()
    for name in FROM_ONE:
        columns[name] = [value - 1 for value in columns[name]]
    columns["lane"], columns["line"], starts = [], [], []
    for number, lane in enumerate(shapes["lanes"]):
        for line, size in enumerate(lane["rows"]):
            time = 0
            for step in columns["start"][len(starts) : len(starts) + size]:
                time += step
                starts.append(time)
            columns["lane"] += [number] * size
            columns["line"] += [line] * size
    columns["start"] = starts
    return columns


def drawn(trace: Trace, **more: Any) -> tuple[dict[str, Any], dict[str, list[int]]]:
    shapes = timeline(trace, build_report(trace), **more)
    assert shapes is not None
    return shapes, unpacked(shapes)


def names_in(shapes: dict[str, Any], columns: dict[str, list[int]], label: str) -> list[str]:
    lane = [one["label"] for one in shapes["lanes"]].index(label)
    return [
        shapes["names"][name] for name, at in zip(columns["name"], columns["lane"], strict=True) if at == lane
    ]


@hypothesis.given(st.lists(st.integers(0, 2**62)))
def test_varints_are_those_of_the_description(values: list[int]) -> None:
    assert _numbers(varints(values)) == values


@hypothesis.given(st.lists(st.integers(-(2**40), 2**40), min_size=1))
def test_zigzag_keeps_the_sign(values: list[int]) -> None:
    coded = zigzag(np.array(values, dtype=np.int64)).tolist()
    assert [-(one + 1) // 2 if one % 2 else one // 2 for one in coded] == values


def test_negative_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="from 0 on"):
        varints([3, -1])


def test_a_step(tmp_path: Path) -> None:
    shapes, columns = drawn(small_traces.host_bound(tmp_path))
    assert (shapes["low_ns"], shapes["window"], shapes["full"]) == (0, [0, 1_010_000], [0, 1_010_000])
    assert names_in(shapes, columns, "device 0, stream 7") == ["gemm_kernel"] * 10
    idle = [one["group"] for one in shapes["lanes"]].index("idle")
    lengths = [d for d, lane in zip(columns["duration"], columns["lane"], strict=True) if lane == idle]
    assert sum(lengths) == 10_000 + 10 * 80_000  # before the first activity, and after each
    streams = [one["group"] for one in shapes["lanes"]].index("streams")
    calls = {
        shapes["names"][columns["name"][link]]
        for link, lane in zip(columns["link"], columns["lane"], strict=True)
        if lane == streams
    }
    assert calls == {"cudaLaunchKernel"}
    ended = {
        shapes["names"][columns["name"][end]]
        for end, lane in zip(columns["ended"], columns["lane"], strict=True)
        if lane == idle and end >= 0
    }
    assert ended == {"gemm_kernel"}


@pytest.mark.slow
def test_of_too_many_the_longest_are_kept(tmp_path: Path) -> None:
    trace = small_traces.host_bound(tmp_path)
    whole, _ = drawn(trace)
    shapes, columns = drawn(trace, limit=50)
    assert shapes["shapes"] == len(columns["start"]) == 50
    left = whole["shapes"] - 50
    assert shapes["note"] == f"The longest 50 shapes are drawn; {left} shorter ones are left out."
    assert whole["note"] == ""
    assert "ProfilerStep#3" in shapes["names"]
    assert "gemm_kernel" in shapes["names"]


@pytest.mark.slow
def test_the_step_in_full_is_the_median_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SMALL", 0)
    script = small_traces.Script()
    for number, (start, length) in enumerate(((0.0, 500), (1000.0, 900), (2000.0, 700))):
        script.step(number, start, length)
        script.work("gemm_kernel", start + 5, start + 10, 100)
    trace = script.read(tmp_path)
    shapes, _ = drawn(trace)
    assert shapes["title"] == "ProfilerStep#2"
    assert shapes["full"] == [2_000_000, 2_700_000]
    assert (shapes["low_ns"], shapes["span_ns"]) == (0, 2_700_000)
    assert [name for name in shapes["names"] if name.startswith("ProfilerStep")] == [
        f"ProfilerStep#{number}" for number in range(3)
    ]
    chosen = timeline(trace, build_report(trace, step="ProfilerStep#1"))
    assert chosen is not None
    assert (chosen["title"], chosen["low_ns"], chosen["span_ns"]) == ("", 1_000_000, 900_000)


@pytest.mark.quick(3)
@pytest.mark.parametrize("path", traces(*SAMPLES, *PUBLIC))
@pytest.mark.sampled(4)
def test_packing_loses_nothing(path: Path) -> None:
    trace = trace_of(path)
    made = shapes_drawn(trace, report_of(path))
    shapes = timeline(trace, report_of(path))
    assert made is not None
    assert shapes is not None
    columns = unpacked(shapes)
    frame = made[0].frame
    assert columns["start"] == (frame["start"] - made[0].low).to_list()
    assert columns["duration"] == (frame["end"] - frame["start"]).to_list()
    assert [shapes["lanes"][lane]["label"] for lane in columns["lane"]] == frame["lane"].to_list()
    for name in ("line", "link", "ended"):
        assert columns[name] == frame[name].to_list()
    paths = [shapes["layers"][layer]["path"] if layer >= 0 else None for layer in columns["layer"]]
    known = dict(made[0].layers.select("layer_id", "path").iter_rows())
    assert paths == [known.get(layer) for layer in frame["layer_id"].to_list()]
    order = [GROUPS.index(lane["group"]) for lane in shapes["lanes"]]
    python, threads = GROUPS.index("python"), GROUPS.index("threads")
    # Where Python is the evidence, its lanes are above the others of threads.
    first = "python" not in shapes["hidden"]
    assert order == sorted(order, key=lambda group: threads - 0.5 if first and group == python else group)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return tracekit.read(
        write(generate(seed=5, steps=3, python_stacks=True), tmp_path_factory.mktemp("t") / "t.json.gz")
    )


@pytest.mark.slow
def test_shapes_of_a_line_do_not_overlap_on_threads(planted: Trace) -> None:
    made = shapes_drawn(planted, build_report(planted))
    assert made is not None
    hosts = made[0].frame.filter(
        pl.col("group").is_in([GROUPS.index(g) for g in ("threads", "python", "layers", "idle")])
    )
    late = hosts.with_columns(pl.col("end").shift(1).over("order", "line").alias("before"))
    assert late.filter(pl.col("start") < pl.col("before")).height == 0


@pytest.mark.slow
def test_everything_of_the_step_is_drawn(planted: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Activities launched in the step, and the spans in its time, counted one by one."""
    monkeypatch.setattr(module, "SMALL", 0)
    made = shapes_drawn(planted, build_report(planted))
    assert made is not None
    shapes, total, step = made
    assert step is not None
    low, high = step.start_ns, step.end_ns
    launched = [
        row["activity_id"]
        for row in planted.device.iter_rows(named=True)
        if low
        <= (planted.host["start"][row["launch_id"]] if row["launch_id"] is not None else row["start"])
        < high
    ]
    shown = shapes.frame["activity_id"].drop_nulls().to_list()
    assert set(launched) <= set(shown)
    assert len(shown) == len(set(shown))
    several = shapes.frame["note"].fill_null("").str.contains("several short ones")
    assert several.any()
    assert not several.filter((shapes.frame["start"] < high) & (shapes.frame["end"] > low)).any()
    kinds = {"step", "annotation", "module", "op", "runtime", "sync", "python"}
    spans = [
        row["span_id"]
        for row in planted.host.iter_rows(named=True)
        if row["kind"] in kinds and row["start"] < high and row["start"] + row["duration"] > low
    ]
    assert set(spans) <= set(shapes.frame["span_id"].drop_nulls().to_list())
    assert total == shapes.frame.height


@pytest.mark.slow
def test_layers_and_phases_are_those_of_the_attribution(planted: Trace) -> None:
    made = shapes_drawn(planted, build_report(planted))
    assert made is not None
    found = attribution(select(planted, window="trace")).activities
    truth = {row["activity_id"]: row for row in found.iter_rows(named=True)}
    rows = made[0].frame.filter(pl.col("activity_id").is_not_null()).iter_rows(named=True)
    for row in rows:
        one = truth[row["activity_id"]]
        assert (row["layer_id"], PHASES[row["phase"]], METHODS[row["method"]]) == (
            one["layer_id"],
            one["phase"],
            one["method"],
        )


@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize("path", [pytest.param(None, id="planted"), *traces(*SAMPLES, *PUBLIC)])
@pytest.mark.sampled(4)
def test_idle_time_is_that_of_the_report(path: Path | None, planted: Trace) -> None:
    """Of the whole window, before the first activity and after the last one too, to the nanosecond by cause."""
    trace = planted if path is None else trace_of(path)
    report = build_report(trace, only=["idle"])
    window = report.window
    shapes = shapes_of(
        trace, (window.start_ns, window.end_ns), timeline_detail.Detail(window.start_ns, window.end_ns)
    )
    names = {cause_name(cause): cause for cause in CAUSES}
    found = (
        shapes.frame.filter(pl.col("group") == GROUPS.index("idle"))
        .group_by(pl.col("key").alias("device_id"), pl.col("name").replace_strict(names).alias("cause"))
        .agg((pl.col("end") - pl.col("start")).sum().alias("total_ns"))
    )
    table = report.sections[0].table("by_cause")
    assert table is not None
    order = ["device_id", "cause"]
    assert_frame_equal(found.sort(order), table.frame.select(found.columns).sort(order))


def _rows(*spans: tuple[int, int, int]) -> pl.DataFrame:
    return pl.DataFrame(spans, schema=["lane", "start", "end"], orient="row")


def test_what_is_too_short_to_be_seen_is_drawn_as_runs() -> None:
    """Of a million ns, in runs of up to 5,000; a thousand are seen, and the first 100,000 are drawn in full."""
    detail = timeline_detail.Detail(0, 1_000_000, full=(0, 100_000))
    spans = [
        (1, 50, 60),  # in full
        (1, 200_000, 200_400),  # alone: the next one is too far away
        (1, 201_900, 202_100),
        (1, 201_910, 202_090),  # inside of that: a moment counts once
        (1, 202_600, 202_900),  # 500 later, so it is of this run as well
        (1, 204_000, 204_100),  # 1,100 later
        (1, 300_000, 310_000),  # long enough
        (1, 301_000, 301_010),  # inside of it
        (1, 309_950, 310_000),
        (1, 310_010, 310_020),  # behind it
        (2, 310_015, 310_025),  # another lane
    ]
    made = detail.thinned(_rows(*spans), "lane").sort("lane", "start")
    expected = [
        (1, 50, 60),
        (1, 200_000, 200_400),
        (1, 201_900, 202_900),
        (1, 204_000, 204_100),
        (1, 300_000, 310_000),
        (1, 301_000, 301_010),
        (1, 309_950, 310_000),
        (1, 310_010, 310_020),
        (2, 310_015, 310_025),
    ]
    assert made.select("lane", "start", "end").rows() == expected
    assert made.filter(pl.col("note").is_not_null()).select("start", "note").rows() == [
        (201_900, timeline_detail.SUMMARY.format(50))
    ]
    beside = timeline_detail.Detail(0, 1_000_000, full=(0, 0), beside=((200_000, 203_000),))
    assert beside.thinned(_rows(*spans[1:5]), "lane").rows() == [(*one, None) for one in spans[1:5]]


@pytest.mark.quick(1)
@pytest.mark.parametrize("path", traces(*SAMPLES))
def test_runs_lie_within_what_they_stand_for(path: Path) -> None:
    """The time that is covered outside the step in full is covered by what is drawn, and nothing far from it is."""
    trace, window = trace_of(path), report_of(path).window
    low, high = window.start_ns, window.end_ns
    whole = timeline_detail.Detail(low, high)
    short = timeline_detail.Detail(low, high, full=(low, low))
    every, few = (shapes_of(trace, (low, high), detail).frame for detail in (whole, short))
    assert few.height < every.height / 2
    for (lane,), rows in every.group_by("lane"):
        drawn_ = few.filter(pl.col("lane") == lane)
        covers, covered = (
            IntervalSet.of(frame["start"].to_numpy(), frame["end"].to_numpy()) for frame in (drawn_, rows)
        )
        assert (covered - covers).measure == 0
        between = [until - at for at, until in (covers - covered).pairs()]
        assert max(between, default=0) <= (high - low) // 1000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "hidden"),
    [(small_traces.host_bound, []), (small_traces.cpu, []), (small_traces.compute_bound, ["python"])],
)
def test_host_lanes_are_open_where_the_evidence_is(
    make: Callable[[Path], Trace], hidden: list[str], tmp_path: Path
) -> None:
    assert drawn(make(tmp_path))[0]["hidden"] == hidden


def test_a_run_without_a_device_shows_when_no_operator_runs(tmp_path: Path) -> None:
    shapes, columns = drawn(small_traces.cpu(tmp_path))
    lane = [one["label"] for one in shapes["lanes"]].index("no operator runs, by cause")
    idle = [at for at, number in enumerate(columns["lane"]) if number == lane]
    assert [(columns["start"][at], columns["duration"][at]) for at in idle] == [(700_000, 100_000)]


def test_what_lies_before_the_window_is_told(tmp_path: Path) -> None:
    """Its launch is drawn, but is not part of a window that begins with the first activity."""
    script = small_traces.Script()
    script.work("gemm_kernel", 10, 40, 20)
    script.work("gemm_kernel", 50, 100, 20)
    shapes, _ = drawn(script.read(tmp_path))
    assert shapes["window"] == [30_000, 110_000]
    assert shapes["low_ns"] == 1_000  # of the trace, which begins with the operator


WAYS = """<script>
setTimeout(() => {
  const out = {errors: window.errors};
  const view = () => [...location.hash.matchAll(/(from|to|select)=(\\d+)/g)].map((part) => Number(part[2]));
  const link = () => { document.querySelector("[data-do=link]").click(); return view(); };
  const offers = [...document.querySelectorAll("button[data-at]")];
  out.hidden = offers.filter((one) => one.hidden).length;
  const advice = offers.find((one) => one.closest(".advice"));
  out.advice = advice.textContent;
  advice.click();
  out.first = link();
  out.line = document.getElementById("place").textContent;
  out.picked = document.querySelector("#picked b").textContent;
  out.focus = document.activeElement.id;
  advice.click();
  out.second = link();
  const canvas = document.getElementById("canvas");
  canvas.dispatchEvent(new KeyboardEvent("keydown", {key: "Escape", bubbles: true, cancelable: true}));
  out.back = document.activeElement === advice;
  out.gone = document.getElementById("place").hidden;
  const table = [...document.querySelectorAll("details.grid")].find((one) => one.textContent.includes("Longest gaps of a whole device"));
  const rows = [...table.querySelectorAll("tbody tr")].map((row) => row.querySelector("button.at"));
  out.rows = rows.filter(Boolean).length;
  out.row = rows[0].getAttribute("aria-label");
  table.open = false;
  rows[0].click();
  out.gap = link();
  document.querySelector("#place button:last-child").click();
  out.open = table.open && document.activeElement === rows[0];
  window.dispatchEvent(new Event("beforeprint"));
  out.paper = link();
  window.dispatchEvent(new Event("afterprint"));
  out.after = link();
  document.title = JSON.stringify(out);
}, 500);
</script>"""


@needs_browser
def test_advice_and_rows_lead_to_their_place(tmp_path: Path) -> None:
    """Three steps of 1000 µs that wait 600 for data: the first to 601 µs, the second from 1001 on, and so on."""
    trace = small_traces.input_bound(tmp_path)
    report = build_report(trace)
    advice = report.verdict.advice[0]
    assert advice.stretches[:2] == ((1_000, 601_000), (1_001_000, 1_601_000))
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", render(report, trace))
    watch = "<script>window.errors = []; window.onerror = (text) => window.errors.push(text);</script>"
    page = page.replace("<head>", "<head>" + watch).replace("</body>", WAYS + "</body>")
    out: dict[str, Any] = json.loads(_title_after(page, tmp_path))
    assert (out["errors"], out["hidden"], out["advice"]) == ([], 0, "Show in the timeline")
    assert out["first"][:2] == [0, 900_000]
    assert out["line"] == f"Marked: {advice.title} (place 1 of 3, worst first) Next Back "
    assert out["picked"] == "data loading"
    assert out["focus"] == "canvas"
    assert out["second"][:2] == [851_000, 1_751_000]
    assert out["back"]
    assert out["gone"]
    # The longest gap begins with the end of the first step's work, at 960 µs, and ends at 1660.
    assert (out["rows"], out["row"]) == (4, "960 µs, show in the timeline")
    assert out["gap"][:2] == [785_000, 1_835_000]
    assert out["open"]
    assert out["paper"][:2] == [0, 3_000_000]
    assert out["after"][:2] == out["gap"][:2]


@pytest.mark.quick(2)
@pytest.mark.parametrize("path", traces(*SAMPLES, *PUBLIC))
def test_evidence_lies_in_the_window(path: Path) -> None:
    report = report_of(path)
    window = report.window
    findings = [finding for section in report.sections for finding in section.findings]
    for one in (*findings, *report.verdict.advice):
        assert len(one.stretches) <= MOST_STRETCHES
        for start, end in one.stretches:
            assert start < end
            assert start < window.end_ns
            assert end > window.start_ns, one


@pytest.mark.slow
def test_a_report_of_the_critical_path_draws_it() -> None:
    trace = tracekit.read(ROOT / "sample_traces" / "cnn_cpu" / "trace.json.gz")
    drawn = timeline(trace, build_report(trace, only=["critical-path"]))
    assert drawn is not None
    assert (drawn["lanes"][0]["label"], drawn["lanes"][0]["group"]) == ("critical path", "path")
    plain = timeline(trace, build_report(trace, only=["steps"]))
    assert plain is not None
    assert "path" not in {lane["group"] for lane in plain["lanes"]}
