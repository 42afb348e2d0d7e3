from __future__ import annotations

import pytest
from paths import ROOT
from planted import MS, US, Planted, finding

import tracekit
from tracekit.analyses.scope import select
from tracekit.analyses.stalls import stalled_ns
from tracekit.diff import diff_of
from tracekit.digest import Digest, digest_of
from tracekit.report.build import build_report
from tracekit.verdict.advice import category_advice

OPERATORS = ("aten::mm", "aten::add", "aten::transpose", "aten::mul", "aten::div", "aten::sqrt")


def loop(
    stalls: dict[tuple[int, str], int], steps: int = 4, pauses: dict[tuple[int, str], int] | None = None
) -> Planted:
    """Steps of twenty calls of each operator, 100 µs each.

    `stalls` are added to the first call of an operator in a step, and `pauses` to the 10 µs behind it.
    """
    made, at = Planted(), 0
    for number in range(steps):
        start = at
        for call in range(20):
            for name in OPERATORS:
                end = at + 100 * US + (stalls.get((number, name), 0) if call == 0 else 0)
                made.span("op", name, at, end)
                at = end + 10 * US + ((pauses or {}).get((number, name), 0) if call == 0 else 0)
        made.step(number, start, at)
    return made


THREE = {(0, "aten::mm"): 4 * MS, (1, "aten::add"): 4 * MS, (2, "aten::transpose"): 5 * MS}


def test_calls_that_are_short_in_the_other_steps() -> None:
    found = finding(loop(THREE).trace(devices=()), "steps", "stalled_calls")
    assert found is not None
    assert found.ns_at_stake == 13 * MS
    assert found.title == "The program stalled for 19.8 % of the time"
    assert "3 calls of 3 operators stalled for 4.00 ms to 5.00 ms" in found.evidence
    assert "in a call of aten::transpose: 5.10 ms, usually 100 µs." in found.evidence


def test_a_call_with_another_one_inside_is_one() -> None:
    made = loop(THREE)
    (long,) = (row for row in made.host if row["name"] == "aten::transpose" and row["duration"] > 5 * MS)
    made.span("op", "aten::view", long["start"] + 2 * MS, long["start"] + 2 * MS + US)
    found = finding(made.trace(devices=()), "steps", "stalled_calls")
    assert found is not None
    assert "3 calls of 3 operators stalled" in found.evidence


def test_code_between_operators_counts_where_operators_stall() -> None:
    pauses = {(3, "aten::mm"): 5 * MS, (3, "aten::add"): 30 * MS}  # the long one is the program's own
    found = finding(loop(THREE, pauses=pauses).trace(devices=()), "steps", "stalled_calls")
    assert found is not None
    assert found.ns_at_stake == 18 * MS
    assert "took 18.0 ms longer than usual, 5.00 ms of it between operators" in found.evidence
    assert finding(loop({}, pauses=pauses).trace(devices=()), "steps", "stalled_calls") is None


def test_of_two_steps_both_must_hold_stalls() -> None:
    first = dict.fromkeys([(0, name) for name in OPERATORS[:3]], 4 * MS)
    second = dict.fromkeys([(1, name) for name in OPERATORS[3:]], 4 * MS)
    found = finding(loop(first | second, steps=2).trace(devices=()), "steps", "stalled_calls")
    assert found is not None
    assert found.ns_at_stake == 24 * MS
    assert finding(loop(first, steps=2).trace(devices=()), "steps", "stalled_calls") is None


def test_inputs_of_another_size_stand_still_nowhere() -> None:
    """A loop of which every fourth batch has larger images "stalled for 85.0 % of the time"."""
    made, at = Planted(), 0
    for number in range(4):
        start = at
        for name in OPERATORS * 5:
            end = at + (8 * MS if number == 1 else 100 * US)
            made.span("op", name, at, end)
            at = end + 10 * US
        made.step(number, start, at)
    assert finding(made.trace(devices=()), "steps", "stalled_calls") is None
    stalled = loop({(3, name): 8 * MS for name in OPERATORS[3:]} | THREE)
    assert finding(stalled.trace(devices=()), "steps", "stalled_calls") is not None
    for row in stalled.host:
        row["shapes"] = "[[8]]" if row["duration"] > 7 * MS else "[[4]]"
    found = finding(stalled.trace(devices=()), "steps", "stalled_calls")
    assert found is not None
    assert found.ns_at_stake == 13 * MS


def test_silent_where_it_may_be_the_operators_own() -> None:
    of_one = {(0, "aten::mm"): 4 * MS, (1, "aten::mm"): 4 * MS, (2, "aten::add"): 4 * MS}
    every_step = {(number, name): 4 * MS for number in range(4) for name in OPERATORS}
    short = dict.fromkeys(THREE, MS // 2)
    for stalls in (of_one, every_step, short, {}):
        assert finding(loop(stalls).trace(devices=()), "steps", "stalled_calls") is None
    assert finding(loop(THREE, steps=2).trace(devices=()), "steps", "stalled_calls") is None


def test_collectives_wait_for_other_ranks() -> None:
    made = loop(THREE)
    for row in made.host:
        row["name"] = row["name"].replace("aten::", "c10d::allreduce_")
    assert finding(made.trace(devices=()), "steps", "stalled_calls") is None


@pytest.mark.slow
def test_stalls_leave_it_open_what_recording_costs() -> None:
    trace = tracekit.read(ROOT / "sample_traces/yolov5_cpu/trace.json.gz")
    assert stalled_ns(select(trace)) > 0.4 * select(trace).duration
    (note,) = [note for note in build_report(trace).verdict.notes if "Recording" in note]
    assert note.startswith("Recording makes a step 1.64 times as long, as far as the stalls show it.")
    other = tracekit.read(ROOT / "sample_traces/bert_cpu/trace.json.gz")
    assert stalled_ns(select(other)) == 0
    assert not any("stalls" in note for note in build_report(other).verdict.notes)


def test_a_program_that_stood_still_was_to_use_more_threads() -> None:
    quiet, still = (
        category_advice("gemm", 0.5, select(loop(each).trace(devices=()))) for each in ({}, THREE)
    )
    assert quiet is not None
    assert "more threads" in quiet.advice
    assert still is not None
    assert "threads" not in still.advice


def test_a_comparison_says_which_side_stood_still() -> None:
    quiet, still = (digest_of(select(loop(stalls).trace(devices=()))) for stalls in ({}, THREE))
    note = "The new side stalled for 19.8 % of the time, probably because something else was using the cores. So its times say little."
    assert note in diff_of([quiet], [Digest.unpacked(still.packed())]).notes
    assert not any("stalled" in said for said in diff_of([quiet], [quiet]).notes)
