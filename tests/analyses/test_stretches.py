"""Stretches of planted launch sequences: what is alike, and where what comes before and after belongs."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planted import Planted

from tracekit.analyses.steps_inferred import periods
from tracekit.analyses.steps_inferred.sequence import LaunchSequence
from tracekit.analyses.steps_inferred.stretches import Stretches, group_starts, stretches

STEP = ["first", *"abcabdabc", "last"]


TRACE = Planted().trace()


def sequence(*parts: list[str]) -> LaunchSequence:
    """Launches of these kernels, one a µs on one thread, of a program that is no network."""
    names = [name for part in parts for name in part]
    symbols = np.unique(names, return_inverse=True)[1].astype(np.int64)
    each, none = np.ones(symbols.size, np.int64), np.zeros(symbols.size, np.bool_)
    at = 1000 * np.arange(symbols.size)
    return LaunchSequence(
        trace=TRACE,
        symbols=symbols,
        at=at,
        thread=each,
        activities=each,
        duration=each,
        kernels=symbols,
        first=np.arange(symbols.size),
        optimizer=none,
        fed=none,
        read=none,
        loaded=none,
        copies=at[:0],
        pytorch=False,
        neural=False,
    )


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


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
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


@pytest.mark.parametrize("random_", [False, True])
def test_few_of_many_recurrences_are_tried(monkeypatch: pytest.MonkeyPatch, random_: bool) -> None:
    """However many launches come again, each a different number of times: so the cost is bounded."""
    names = [f"k{number}" for number in range(3, 200) for _ in range(2 * number)]
    if random_:
        random.Random(3).shuffle(names)
    tried = []
    monkeypatch.setattr(periods, "stretches", lambda _, starts: tried.append(starts))
    monkeypatch.setattr(periods, "launch_sequence", lambda *_: sequence(names))
    assert periods.launch_steps(TRACE, TRACE.device, np.zeros(0, np.int64)) is None
    assert len(tried) <= 16
    assert random_ == bool(tried)


@pytest.mark.slow
def test_a_million_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periods, "launch_sequence", lambda *_: sequence(*[STEP] * 100_000))
    steps = periods.launch_steps(TRACE, TRACE.device, np.zeros(0, np.int64))
    assert steps is not None
    assert steps.source == "period of 11 launches in the launch sequence"
    assert steps.spans.height >= 99_998
