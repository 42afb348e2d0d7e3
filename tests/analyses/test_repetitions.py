"""What a sequence repeats: planted periods with noise and nests, and sequences that repeat nothing."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.analyses.steps_inferred.repetitions import Repetition, Symbols, repetitions


def symbols(*parts: object) -> Symbols:
    return np.concatenate([np.asarray(part, np.uint32) for part in parts])


def found(sequence: Symbols) -> dict[int, Repetition]:
    return {each.length: each for each in repetitions(sequence)}


LAYER = [7, 8, 7, 9, 7, 7, 10, 8]
STEP = [1, 2, *LAYER * 12, 3, 4, 5]


def test_layers_and_steps_are_both_repetitions() -> None:
    both = found(symbols(*[STEP] * 10))
    assert sorted(both) == [8, 101]
    assert both[101].unexplained == 0
    # Nine or ten whole ones, whatever place they begin at.
    for offset in range(101):
        begin, end = both[101].cut(offset)
        assert (end - begin == 101).all()
        assert begin.size == (10 if begin[0] == 0 else 9)
    assert both[8].unexplained >= 9 * 5


def test_what_is_there_less_than_three_times_is_no_repetition() -> None:
    assert sorted(found(symbols(STEP, STEP))) == [8]
    assert sorted(found(symbols(STEP, STEP, STEP))) == [8, 101]
    three = found(symbols(STEP, STEP, STEP))[101]
    assert max(three.cut(offset)[0].size for offset in range(101)) == 3


def test_a_warm_up_and_a_tail_do_not_matter_below_a_half() -> None:
    rng = np.random.default_rng(1)
    other = rng.integers(50, 90, 600)
    both = found(symbols(other, *[STEP] * 8, other[:150]))
    begin, end = both[101].cut(int(np.flatnonzero(both[101].template == 1)[0]))
    assert begin.tolist() == [600 + 101 * k for k in range(8)]
    assert (end - begin == 101).all()
    assert found(symbols(rng.integers(50, 90, 900), *[STEP] * 8)) == {}


def test_ends_that_are_cut_and_ends_that_are_others() -> None:
    cut = found(symbols(STEP[40:], *[STEP] * 5, STEP[:30]))[101]
    assert cut.begins_within()
    assert cut.ends_within()
    other = found(symbols([99], *[STEP] * 5, [99]))[101]
    assert not other.begins_within()
    assert not other.ends_within()


def test_symbols_may_differ_here_and_there() -> None:
    rng = np.random.default_rng(2)
    plain = symbols(*[STEP] * 20)
    changed = np.where(rng.random(plain.size) < 0.04, 1000 + rng.integers(0, 3, plain.size), plain).astype(
        np.uint32
    )
    repetition = found(changed)[101]
    begin, _ = repetition.cut(0)
    assert begin.size >= 18
    assert (np.diff(begin) == 101).all()
    assert repetition.unexplained > 0


def test_with_noise_a_multiple_explains_no_more() -> None:
    for seed in range(10):
        rng = np.random.default_rng(seed)
        plain = np.tile(np.arange(60), 60)
        changed = np.where(rng.random(plain.size) < 0.05, rng.integers(100, 200, plain.size), plain)
        both = found(symbols(changed))
        best = min(each.unexplained for each in both.values())
        assert next(k for k in sorted(both) if both[k].unexplained <= best + 0.005 * plain.size) == 60


def test_a_step_may_hold_something_more() -> None:
    parts = [[*STEP[:50], 70, 71, *STEP[50:]] if k % 5 == 2 else STEP for k in range(20)]
    repetition = found(symbols(*parts))[101]
    first = int(np.flatnonzero(repetition.template == 1)[0])
    begin, end = repetition.cut(first)
    starts = np.cumsum([0, *(len(part) for part in parts)])
    assert begin.tolist() == starts[:-1].tolist()
    assert end.tolist() == starts[1:].tolist()
    assert not repetition.regular or max(len(part) for part in parts) - 101 <= 2


def test_every_second_step_may_be_longer() -> None:
    parts = [[*STEP, 70] if k % 2 else STEP for k in range(12)]
    both = found(symbols(*parts))
    assert {101, 203} <= set(both)
    assert both[203].unexplained == 0
    assert both[101].unexplained >= 5


def test_what_is_left_out_between_is_in_no_repetition() -> None:
    other = list(range(200, 250))
    repetition = found(symbols(*[STEP] * 4, other, *[STEP] * 4, other))[101]
    begin, end = repetition.cut(int(np.flatnonzero(repetition.template == 1)[0]))
    assert all(not (b < 404 + 50 and e > 404) for b, e in zip(begin, end, strict=True))
    assert begin.size >= 6


@pytest.mark.parametrize("names", [2, 5, 30, 1000])
def test_a_random_sequence_repeats_nothing(names: int) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        assert found(symbols(rng.integers(0, names, 3000))) == {}


def test_a_rare_symbol_at_random_places_is_no_repetition() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        assert found(symbols(rng.random(3000) < 0.03)) == {}


def test_steps_of_random_lengths_are_no_repetition() -> None:
    rng = np.random.default_rng(3)
    parts = [[1, *[2, 3] * int(n), *rng.integers(10, 40, int(n))] for n in rng.integers(5, 60, 60)]
    assert all(length <= 2 for length in found(symbols(*parts)))


def test_small_sequences() -> None:
    assert found(symbols([])) == {}
    assert found(symbols([1])) == {}
    assert found(symbols([1, 2])) == {}
    assert found(symbols([1] * 500)) == {}
    assert sorted(found(symbols([1, 2] * 100))) == [2]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 6), min_size=3, max_size=60),
    st.integers(3, 12),
    st.integers(0, 59),
    st.integers(0, 59),
)
def test_planted_periods_are_found(body: list[int], times: int, drop: int, more: int) -> None:
    template = [99, *body]  # one symbol that comes once: the length is no multiple of a shorter one
    sequence = symbols([*template * (times + 2)])[drop % len(template) :]
    sequence = sequence[: sequence.size - more % len(template)]
    repetition = found(sequence)[len(template)]
    assert repetition.unexplained == 0
    assert repetition.begins_within()
    assert repetition.ends_within()
    for offset in range(len(template)):
        begin, end = repetition.cut(offset)
        assert (end - begin == len(template)).all()
        assert begin[0] < len(template)
        assert begin.size == (sequence.size - begin[0]) // len(template)
        assert (sequence[begin] == repetition.template[offset]).all()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_repetition_agrees_by_plain_comparison(data: st.DataObject) -> None:
    sequence: list[int] = []
    for _ in range(data.draw(st.integers(1, 6))):
        part = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=20))
        sequence += part * data.draw(st.integers(1, 9))
    for repetition in repetitions(symbols(sequence)):
        template = repetition.template.tolist()
        held = 0
        for low, high, good in zip(
            repetition.bounds[:-1], repetition.bounds[1:], repetition.good, strict=True
        ):
            segment = sequence[low:high]
            if not good:
                continue
            held += len(segment)
            best = max(
                sum(a == b for a, b in zip(segment[:k], template[:k], strict=False))
                + sum(a == b for a, b in zip(segment[k:][::-1], template[::-1], strict=False))
                for k in range(len(segment) + 1)
            )
            assert best >= 0.75 * max(len(segment), len(template))
        assert repetition.good.sum() >= 2
        assert 2 * held >= len(sequence)


@pytest.mark.slow
def test_a_million_symbols_take_little_time() -> None:
    rng = np.random.default_rng(4)
    for sequence in (
        np.tile(np.asarray(STEP, np.uint32), 10_000),
        rng.integers(0, 40, 1_000_000).astype(np.uint32),
    ):
        begin = time.perf_counter()
        repetitions(sequence)
        assert time.perf_counter() - begin < 2.0  # about 0.1 s; far above it something is not O(n log n)
