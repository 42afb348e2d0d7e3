"""The first screen says which records a file lacks, with figures, and names no cause that they could explain."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT
from synthetic.nsys_export import Program, write_sqlite

import tracekit
from tracekit.analyses.completeness import completeness
from tracekit.report.build import build_report, build_section
from tracekit.report.model import Report

Event = dict[str, Any]
STEPS, LAUNCHES = 4, 30


def events() -> list[Event]:
    """Four steps of 30 launches, each in an operator; the device waits for the host most of the time."""

    def event(cat: str, name: str, start: float, length: float, **args: Any) -> Event:
        row = {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": length}
        return {**row, "args": args}

    host, device = [], []
    for step in range(STEPS):
        begin = step * 4000
        host.append(
            event("user_annotation", f"ProfilerStep#{step}", begin, 3999, **{"External id": 1 + step * 31})
        )
        for number in range(LAUNCHES):
            at, link = begin + number * 130, 1 + step * LAUNCHES + number
            host.append(event("cpu_op", "aten::mm", at, 60, **{"External id": 2 + step * 31 + number}))
            host.append(event("cuda_runtime", "cudaLaunchKernel", at + 10, 10, correlation=link))
            where = {"device": 0, "stream": 7, "correlation": link}
            device.append({**event("kernel", "gemm", at + 30, 20, **where), "pid": 0, "tid": 7})
    return [*host, *device]


def report_of(made: list[Event], folder: Path, **header: Any) -> Report:
    path = folder / "t.json"
    path.write_text(json.dumps({**header, "traceEvents": made}))
    return build_report(tracekit.read(path))


def is_kernel(event: Event) -> bool:
    return bool(event["cat"] == "kernel")


def words(report: Report) -> str:
    verdict = report.verdict
    return " ".join(
        [verdict.headline, *(cost.label for cost in verdict.costs), *(a.title for a in verdict.advice)]
    )


def test_a_complete_file_names_the_cause(tmp_path: Path) -> None:
    report = report_of(events(), tmp_path)
    assert "waited" in report.verdict.headline
    assert not any(" missing" in section.answer for section in report.sections)
    assert completeness(tracekit.read(tmp_path / "t.json")).sure


def without_half_of_the_kernels() -> list[Event]:
    return [event for at, event in enumerate(events()) if not is_kernel(event) or at % 2]


def without_durations() -> list[Event]:
    return [
        {key: value for key, value in event.items() if key != "dur" or not is_kernel(event) or at % 4}
        for at, event in enumerate(events())
    ]


def thinned() -> list[Event]:
    """Nine of ten operators are taken out of a run with ten times as many."""
    made = events()
    for event in made:
        if "External id" in event["args"]:
            event["args"]["External id"] *= 50
    return made


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("made", "header", "note"),
    [
        (without_half_of_the_kernels, {}, "60 of 120 launch calls in the window (50.0 %) have no activity"),
        (
            without_durations,
            {},
            "30 events have no readable duration or a negative one (30 activities of a device)",
        ),
        (thinned, {}, "The file holds only 124 of at least 5,127 operators and ranges (2.4 %)"),
        (
            events,
            {"WARNING": ["WARNING: CuptiActivityApi.cpp:1] Dropped 512 activity records"]},
            "dropped 512 records",
        ),
        (events, {"INFO": ["Unexpected CUDA events = 0, CUPTI stopped early? = 1"]}, "stopped early"),
    ],
    ids=["kernels", "durations", "operators", "dropped", "stopped"],
)
def test_missing_records_are_named_and_causes_are_not(
    made: Callable[[], list[Event]], header: Event, note: str, tmp_path: Path
) -> None:
    report = report_of(made(), tmp_path, **header)
    assert report.verdict.bound == "incomplete"
    assert report.verdict.headline.startswith("The device was busy at least ")
    assert "record is missing" in report.verdict.headline
    assert any(note in text for text in report.verdict.notes), report.verdict.notes
    assert not any(
        word in words(report) for word in ("Python", "waited", "waiting", "launches from the host")
    )
    assert "ecord" in report.verdict.advice[0].advice
    doubted = [one.name for one in report.sections if one.answer.startswith("Records are missing: ")]
    assert doubted == ["breakdown", "steps", "idle", "layers", "launches"]


def test_kernels_with_impossible_times_were_recorded(tmp_path: Path) -> None:
    """ "The profiler recorded no kernel" was not true of them."""
    made = [event | {"ts": event["ts"] + 10**12} if is_kernel(event) else event for event in events()]
    verdict = report_of(made, tmp_path).verdict
    assert verdict.headline.startswith("The host launched 120 kernels, but no device activity could be read.")
    assert verdict.advice[0].title == "Events of the file cannot be read"


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_a_truncated_file_says_so_first(packed: bool, tmp_path: Path) -> None:
    data = json.dumps({"deviceProperties": [{"id": 0, "name": "GPU X"}], "traceEvents": events()}).encode()
    path = tmp_path / "t.json"
    if packed:
        path = tmp_path / "t.json.gz"
        data = gzip.compress(data)
    path.write_bytes(data[: len(data) * 5 // 10])
    verdict = build_report(tracekit.read(path)).verdict
    assert verdict.bound == "incomplete"
    assert verdict.headline.startswith("What is left of the file holds no device activity. In the window")
    assert "Python" not in verdict.headline
    section = build_section(tracekit.read(path), "idle")
    assert section.answer.startswith("Records are missing: this time may be work")
    note = verdict.notes[0]
    assert note.startswith("The file is truncated: ")
    assert (
        " events were read, and the rest is missing. It describes GPU X, but holds no device activity."
        in note
    )
    assert verdict.advice[0].title == "The end of the file is missing"


def test_launches_without_a_kernel(tmp_path: Path) -> None:
    report = report_of([event for event in events() if not is_kernel(event)], tmp_path)
    assert report.verdict.bound == "incomplete"
    assert report.verdict.headline.startswith(
        "The host launched 120 kernels, but the file holds no device activity. In the window"
    )
    assert report.verdict.advice[0].title == "The profiler recorded no kernel"


def test_launches_into_a_graph_are_no_lost_kernels(tmp_path: Path) -> None:
    """Between the beginning and the end of a capture, launches make nodes."""
    begin, end = (
        {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": f"cudaStream{what}Capture",
            "pid": 1,
            "tid": 1,
            "ts": at,
            "dur": 1,
        }
        | {"args": {"correlation": 9000 + at}}
        for what, at in (("Begin", 2), ("End", 3990))
    )
    made = [event for event in events() if not is_kernel(event) or event["ts"] > 3999]
    assert report_of([*made, begin, end], tmp_path).verdict.bound != "incomplete"
    assert report_of(made, tmp_path).verdict.bound == "incomplete"


def test_times_that_are_too_long_have_a_note(tmp_path: Path) -> None:
    made = events()
    made[-1]["dur"] = 3e6
    (note,) = [text for text in report_of(made, tmp_path).verdict.notes if "longer" in text]
    assert note.startswith("1 activity lasts longer than 1 s (99.9 % of the device time).")


def test_few_operators_of_processors(tmp_path: Path) -> None:
    made = [event for event in events() if event["cat"] == "cpu_op"][:5]
    verdict = report_of(made, tmp_path).verdict
    assert "The window holds only 5 operators, too few to judge the program by." in verdict.notes
    assert verdict.advice[-1].title == "Record more of the program"


def test_no_event_at_all(tmp_path: Path) -> None:
    verdict = report_of([], tmp_path).verdict
    assert verdict.headline == "The trace holds no device activity and no operator."


def test_no_event_that_takes_time(tmp_path: Path) -> None:
    made = [{**event, "dur": 0} for event in events() if is_kernel(event)]
    assert report_of(made[:1], tmp_path).verdict.headline == (
        "No device activity and no operator takes any time in the window. The trace holds 1 activity of them."
    )
    assert report_of(made, tmp_path).verdict.headline.startswith("The device was busy 0.0 % of 15.8 ms")


def test_no_event_in_the_window(tmp_path: Path) -> None:
    late = {"ph": "X", "cat": "user_annotation", "name": "later", "pid": 1, "tid": 1, "ts": 9e6, "dur": 5}
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": [*events(), late]}))
    verdict = build_report(tracekit.read(tmp_path / "t.json"), step="^later$").verdict
    assert verdict.notes[0] == (
        "The 1 step launched nothing that the file holds, so the figures are those of the whole trace."
    )


def test_waits_between_streams_that_were_not_recorded(tmp_path: Path) -> None:
    """Every second kernel is launched at once, on a stream of its own, and starts long after the others are done."""
    made = events()
    for number, event in enumerate([event for event in made if is_kernel(event)]):
        if number % LAUNCHES == LAUNCHES - 1:
            event["args"]["stream"] = 8
            event["ts"] = (number // LAUNCHES) * 4000 + 3900
            launch = next(
                call
                for call in made
                if call["cat"] == "cuda_runtime"
                and call["args"]["correlation"] == event["args"]["correlation"]
            )
            launch["ts"] = (number // LAUNCHES) * 4000 + 21
        elif is_kernel(event) and number % LAUNCHES > 5:
            event["ts"] = (number // LAUNCHES) * 4000 + 3921 + number % LAUNCHES
            event["dur"] = 1
    verdict = report_of(made, tmp_path).verdict
    assert verdict.costs[0].label == "idle with queued work, cause unknown"
    (note,) = [
        text for text in verdict.notes if text.startswith("Waits between streams were not recorded, so ")
    ]
    assert note.endswith(
        "of idle time with queued work has no known cause. To record them: "
        "experimental_config=_ExperimentalConfig(enable_cuda_sync_events=True)."
    )


# -- exports of Nsight Systems ---------------------------------------------------------------------


def loop() -> Program:
    program = Program()
    for number in range(40):
        at = 1000 + 1000 * number
        program.call("cudaLaunchKernel", at, at + 50, correlation=number + 1, tid=7)
        program.kernel("gemm", at + 100, at + 200, correlation=number + 1)
    return program


@pytest.mark.parametrize(
    ("kept", "kind", "headline"),
    [
        (0, "no_kernel", "The host launched 40 kernels, but the file holds no device activity."),
        (2, "lost_activity", "The device was busy at least"),
    ],
    ids=["no table", "half"],
)
def test_exports_that_lack_kernels(kept: int, kind: str, headline: str, tmp_path: Path) -> None:
    program = loop()
    kernels = program.tables.pop("CUPTI_ACTIVITY_KIND_KERNEL")
    if kept:
        program.tables["CUPTI_ACTIVITY_KIND_KERNEL"] = kernels[::kept]
    trace = tracekit.read(write_sqlite(program, tmp_path / "t.sqlite"))
    assert kind in trace.health["kind"].to_list()
    verdict = build_report(trace).verdict
    assert verdict.bound == "incomplete"
    assert verdict.headline.startswith(headline)


def test_an_export_with_fewer_events_than_nsys_collected(tmp_path: Path) -> None:
    program = loop()
    path = write_sqlite(program, tmp_path / "t.sqlite")
    texts = ("Number of CUDA events collected: \t160.", "Not all CUDA events might have been collected.")
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE DIAGNOSTIC_EVENT (timestamp INTEGER, text TEXT)")
        connection.executemany("INSERT INTO DIAGNOSTIC_EVENT VALUES (0, ?)", [(text,) for text in texts])
    connection.close()
    trace = tracekit.read(path)
    rows = {
        kind: (count, example)
        for kind, count, example in trace.health.select("kind", "count", "example").rows()
    }
    assert rows["fewer_events"] == (80, "80 of 160 CUDA events are in the file")
    assert rows["maybe_incomplete"] == (1, "CUDA events")
    (note,) = [text for text in build_report(trace).verdict.notes if "Nsight Systems" in text]
    assert note.startswith(
        "Nsight Systems collected 80 events that the export lacks. So busy times are lower bounds"
    )


def test_names_that_are_missing(tmp_path: Path) -> None:
    path = write_sqlite(loop(), tmp_path / "t.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE StringIds")
    connection.close()
    trace = tracekit.read(path)
    (row,) = trace.health.filter(kind="unnamed").rows(named=True)
    assert (row["count"], row["example"]) == (80, "host: 40 of 40 rows, device: 40 of 40 rows")
    verdict = build_report(trace).verdict
    assert verdict.headline.endswith("of the time, and the names that would say why are missing.")
    assert [advice.title for advice in verdict.advice] == ["Names are missing from the file"]
    assert build_section(trace, "idle").answer.startswith(
        "Names are missing from the file, so the causes are uncertain."
    )


def test_kernels_without_names_are_not_looked_up(tmp_path: Path) -> None:
    """`No category: look these names up` was the first advice about a busy device."""
    program = Program()
    for at in range(20):
        program.call("cudaLaunchKernel", 1000 * at, 1000 * at + 50, correlation=at + 1, tid=7)
        program.kernel("gemm", 1000 * at + 100, 1000 * at + 1000, correlation=at + 1)
    path = write_sqlite(program, tmp_path / "t.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE StringIds")
    connection.close()
    assert build_report(tracekit.read(path)).verdict.advice[0].title == "Names are missing from the file"


def test_a_call_that_never_ends(tmp_path: Path) -> None:
    program = loop()
    program.call("cudaStreamSynchronize", 5000, 900_000_000_000, correlation=99, tid=8)
    trace = tracekit.read(write_sqlite(program, tmp_path / "t.sqlite"))
    (row,) = trace.health.filter(kind="endless_call").rows(named=True)
    assert (row["count"], row["example"]) == (1, "cudaStreamSynchronize for 900 s")


def test_a_launch_that_never_ends_is_no_first_time_work(tmp_path: Path) -> None:
    program = loop()
    program.call("cudaLaunchKernel", 5000, 900_000_000_000, correlation=99, tid=8)
    report = build_report(tracekit.read(write_sqlite(program, tmp_path / "t.sqlite")))
    assert "cold_start" not in {finding.id for section in report.sections for finding in section.findings}


@pytest.mark.slow
def test_sample_traces_are_complete() -> None:
    for path in ROOT.glob("sample_traces/*/trace*.json.gz"):
        assert completeness(tracekit.read(path)).sure, path


def test_a_truncated_file_that_describes_no_device(tmp_path: Path) -> None:
    """Kineto writes activities last, so nothing shows whether a device worked."""
    data = json.dumps({"traceEvents": [event for event in events() if event["cat"] == "cpu_op"]})
    path = tmp_path / "t.json"
    path.write_text(data[: len(data) // 2])
    verdict = build_report(tracekit.read(path)).verdict
    assert verdict.bound == "incomplete"
    assert verdict.headline.startswith("What is left of the file holds no device activity.")
