"""The laws catch what breaks them, and a part of the campaign breaks none; `make fuzz` runs more of it."""

from __future__ import annotations

import json

import pytest
from campaign import campaign
from laws import Answer, broken_laws, disagreements

CASES = 20
PARTS = 4
"""Of 20 cases each, which tests of other files run beside."""


def report(tree: object, code: int = 0, err: str = "") -> list[str]:
    words = ("report", "t.json", "-f", "json")
    return list(broken_laws(Answer(words, code, json.dumps(tree).encode(), err.encode())))


@pytest.mark.parametrize(
    ("tree", "fault"),
    [
        ({"costs": [{"ns": 5, "share": 1.2}]}, "share = 1.2: not from"),
        ({"table": [{"total_ns": -3}]}, "total_ns = -3: not from 0"),
        ({"total_ns": float("nan")}, "no JSON"),
        ({"bytes": 2**70}, "bytes = 1180591620717411303424: not from"),
    ],
)
def test_figures_that_cannot_be(tree: object, fault: str) -> None:
    assert [fault in line for line in report(tree)] == [True]


@pytest.mark.parametrize(
    ("code", "err", "fault"),
    [
        (70, "tracekit: error: a fault in tracekit\n", "exit 70"),
        (3, "tracekit: error: one\ntracekit: error: two\n", "an error of 2 lines"),
        (3, "tracekit: error: \x1b[31mred\n", "holds"),
        (0, "RuntimeWarning: overflow\n", "stderr"),
        (1, "Traceback (most recent call last):\n", "stderr"),
    ],
)
def test_what_no_user_should_see(code: int, err: str, fault: str) -> None:
    assert any(fault in line for line in report({}, code, err))


def test_a_good_answer_breaks_no_law() -> None:
    row = {"device_id": 0, "busy_ns": 6, "idle_ns": 4, "window_ns": 10, "compute_ns": 6}
    row |= {"communication_ns": 0, "memory_ns": 0, "exposed_communication_ns": 0, "overlap_ns": 0}
    tree = {
        "analyses": {"breakdown": {"tables": {"devices": [row]}}},
        "start_ns": -5,
        "share": 1.0,
    }
    assert report(tree) == []
    row["idle_ns"] = 5
    assert report(tree) == ["device 0: busy and idle time are not the window"]


def test_times_that_must_agree() -> None:
    kernel = {
        "count": 2,
        "total_ns": 8,
        "mean_ns": 4.0,
        "min_ns": 3,
        "median_ns": 4,
        "p95_ns": 5,
        "max_ns": 5,
    }
    tables = {"by_name": [kernel], "by_category": [kernel]}
    assert report({"analyses": {"kernels": {"tables": tables}}}) == []
    tables["by_category"] = [kernel | {"total_ns": 9, "min_ns": 6}]
    assert [line.partition(":")[0] for line in report({"analyses": {"kernels": {"tables": tables}}})] == [
        "the time of all activities is not one",
        "kernels.by_category",
        "kernels.by_category",
    ]


def test_commands_must_agree_on_what_is_readable() -> None:
    answers = [Answer(("report", "t"), 0), Answer(("info", "t"), 0), Answer(("doctor", "t"), 3)]
    assert list(disagreements(answers[:2])) == []
    assert len(list(disagreements(answers))) == 1


@pytest.mark.early
@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_mutated_inputs_break_no_law(part: int) -> None:
    table = campaign(CASES, first=1 + part * CASES, jobs=1)
    assert sum(tally.cases for tally in table.kinds.values()) == CASES
    assert sum(tally.readable for tally in table.kinds.values()) > CASES // 3
    assert not table.faults, str(table)
