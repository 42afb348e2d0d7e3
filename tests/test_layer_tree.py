"""Sums over trees against loops that walk every chain of parents."""

from __future__ import annotations

import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracekit.trees import (
    depth_first,
    has_same_above,
    rolled_up,
    rolled_up_least,
    union_per_node,
)

PARENTS = st.lists(st.integers(0, 30), min_size=1, max_size=25).map(
    lambda picks: [-1 if pick > index else pick % (index + 1) - 1 for index, pick in enumerate(picks)]
)
"""Each node's parent has a smaller number; −1 for a root."""

SECONDS = 10
"""A fast machine needs far less than one; before, it took minutes."""


def chain(parents: list[int], node: int) -> list[int]:
    found = [node]
    while parents[found[-1]] >= 0:
        found.append(parents[found[-1]])
    return found


def arrays(parents: list[int]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(parents), np.array([len(chain(parents, node)) - 1 for node in range(len(parents))])


@given(PARENTS, st.data())
def test_sums_and_least_values_along_the_paths(parents: list[int], data: st.DataObject) -> None:
    size = len(parents)
    values = data.draw(st.lists(st.integers(0, 100), min_size=size, max_size=size))
    below = [[n for n in range(size) if node in chain(parents, n)] for node in range(size)]
    tree = arrays(parents)
    assert rolled_up(np.array(values), *tree).tolist() == [sum(values[n] for n in rows) for rows in below]
    assert rolled_up_least(np.array(values), *tree).tolist() == [
        min(values[n] for n in rows) for rows in below
    ]
    two = np.array([[value, 1] for value in values])
    assert rolled_up(two, *tree)[:, 1].tolist() == [len(rows) for rows in below]


@given(PARENTS, st.data())
def test_depth_first(parents: list[int], data: st.DataObject) -> None:
    size = len(parents)
    keys = data.draw(st.lists(st.integers(0, 5), min_size=size, max_size=size))

    def walk(node: int) -> list[int]:
        below = sorted((n for n in range(size) if parents[n] == node), key=lambda n: (keys[n], n))
        return [one for n in below for one in [n, *walk(n)]]

    assert depth_first(np.array(parents), np.array(keys)).tolist() == walk(-1)


@given(PARENTS, st.data())
def test_same_group_above(parents: list[int], data: st.DataObject) -> None:
    size = len(parents)
    groups = data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
    expected = [
        any(groups[above] == groups[node] for above in chain(parents, node)[1:]) for node in range(size)
    ]
    assert has_same_above(np.array(parents), np.array(groups)).tolist() == expected


@given(PARENTS, st.data())
def test_unions(parents: list[int], data: st.DataObject) -> None:
    size = len(parents)
    row = st.tuples(st.integers(-1, size - 1), st.integers(0, 40), st.integers(0, 10))
    rows = data.draw(st.lists(row, max_size=30))
    expected = [
        len(
            {
                instant
                for owner, start, length in rows
                if owner >= 0 and node in chain(parents, owner)
                for instant in range(start, start + length)
            }
        )
        for node in range(size)
    ]
    owner, start, length = (np.array([r[i] for r in rows], dtype=np.int64) for i in range(3))
    assert union_per_node(owner, start, start + length, *arrays(parents)).tolist() == expected


def test_many_nodes_below_a_deep_chain_took_quadratic_time() -> None:
    depth, count = 20_000, 200_000
    parent = np.append(np.arange(depth) - 1, np.full(count, depth - 1))
    group = np.append(np.arange(depth), np.arange(count) % 2 * (depth + 1))
    began = time.process_time()
    found = has_same_above(parent, group)
    assert time.process_time() - began < SECONDS
    assert not found[:depth].any()
    assert (found[depth:] == (group[depth:] == 0)).all()
