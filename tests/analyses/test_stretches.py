"""Stretches of planted launch sequences: what is alike, and where what comes before and after belongs."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_loops import Loop

from tracekit.analyses.scope import launch_times
from tracekit.analyses.steps_inferred import periods
from tracekit.analyses.steps_inferred.sequence import LaunchSequence, launch_sequence
from tracekit.analyses.steps_inferred.stretches import Stretches, group_starts, stretches

STEP = ["first", *"abcabdabc", "last"]


def sequence(*parts: list[str]) -> LaunchSequence:
    made = Loop()
    for part in parts:
        made.launches(part)
    trace = made.done(form="nsys")
    result = launch_sequence(trace, trace.device, launch_times(trace, trace.device))
    assert result is not None
    return result


def cut(*parts: list[str], at: str = "first") -> Stretches | None:
    names = [name for part in parts for name in part]
    return stretches(sequence(*parts), np.asarray([i for i, name in enumerate(names) if name == at]))


def bounds(made: Stretches | None) -> list[tuple[int, int]]:
    assert made is not None
    begin, end = made.complete()
    return list(zip(begin.tolist(), end.tolist(), strict=True))


def test_marks_that_lie_close_together_are_one() -> None:
    places = np.asarray([10, 11, 13, 60, 61, 63, 110, 111, 113, 900, 903])
    assert group_starts(places).tolist() == [10, 60, 110, 900]  # one pause changes nothing
    assert group_starts(places, after=True).tolist() == [14, 64, 114, 904]
    assert group_starts(2 * np.arange(4)).tolist() == [0, 2, 4, 6]
    assert group_starts(np.arange(4)).tolist() == [0]  # launches of one optimizer
    assert group_starts(places[:1]).tolist() == []


def test_a_warm_up_and_a_tail_are_in_no_stretch() -> None:
    warm_up, tail = [*"xyzxyzxyz"], [*"uvw"]
    assert bounds(cut(warm_up, *[STEP] * 5, tail)) == [(9 + 11 * k, 20 + 11 * k) for k in range(4)]
    made = cut(warm_up, *[STEP] * 5, STEP[:3])
    assert bounds(made) == [(9 + 11 * k, 20 + 11 * k) for k in range(5)]
    assert made is not None
    assert (made.length, made.shared, made.whole, made.possible) == (11, 55, True, True)
    assert cut([*"xyz"] * 40, *[STEP] * 5) is None  # less than half of all


def test_what_lies_before_the_first_mark_is_a_stretch_if_it_is_like_the_others() -> None:
    made = stretches(sequence(*[STEP] * 5), np.asarray([11, 22, 33, 44, 55]))
    assert bounds(made) == [(0, 11), (11, 22), (22, 33), (33, 44)]
    made = stretches(sequence([*"xyz"], STEP[3:], *[STEP] * 4), np.asarray([11, 22, 33, 44]))
    assert bounds(made) == [(11, 22), (22, 33), (33, 44)]


def test_what_follows_a_mark_now_and_then_is_the_end_of_the_step_before() -> None:
    parts = [STEP, STEP, ["log", *STEP], STEP, STEP]
    marks = np.cumsum([len(part) for part in parts])
    assert bounds(stretches(sequence(*parts), marks)) == [(0, 11), (11, 23), (23, 34), (34, 45)]


def test_order_does_not_matter_and_number_does() -> None:
    rng = random.Random(1)
    parts = [["first", *rng.sample(STEP[1:], 10)] for _ in range(6)]
    assert len(bounds(cut(*parts))) == 5
    parts[2] = ["first", *"aaaaabbbbb"]
    assert len(bounds(cut(*parts))) == 4
    parts[2] = [*parts[1], *"uvwxyzuvwxyz"]  # something between two steps
    assert len(bounds(cut(*parts))) == 4


def test_what_is_there_twice_is_no_stretch_that_repeats() -> None:
    made = cut(STEP, STEP, STEP[:4])
    assert made is None or not made.possible
    made = cut(STEP, STEP, STEP)
    assert made is not None
    assert made.possible


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_what_is_alike_by_plain_counting(data: st.DataObject) -> None:
    parts = []
    for _ in range(data.draw(st.integers(2, 5))):
        part = ["first", *data.draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=12))]
        parts += [part] * data.draw(st.integers(1, 4))
    made = cut(*parts)
    if made is None:
        return
    names = [name for part in parts for name in part]
    held = [Counter(names[low:high]) for low, high in zip(made.begin, made.end, strict=True)]
    most = [max(one.total(), other.total()) for one in held for other in held]
    shared = [(one & other).total() for one in held for other in held]
    # One of them is what the others are like.
    like = np.asarray(shared).reshape(len(held), -1) >= 0.75 * np.asarray(most).reshape(len(held), -1)
    assert like.all(axis=1).any()
    assert 2 * sum(one.total() for one in held) >= 0 < made.shared


def test_few_of_many_recurrences_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many launches come again, each a different number of times."""
    rng = random.Random(3)
    names = [f"k{number}" for number in range(3, 60) for _ in range(number)]
    rng.shuffle(names)
    tried = []
    monkeypatch.setattr(periods, "stretches", lambda _, starts: tried.append(starts))
    made = Loop()
    made.launches([name for name in names for _ in range(2)])
    trace = made.done(form="nsys")
    assert periods.launch_steps(trace, trace.device, launch_times(trace, trace.device)) is None
    assert 1 <= len(tried) <= 16
