"""Random programs with known steps: what is inferred is right, or nothing is."""

from __future__ import annotations

import random

import numpy as np
import pytest
from planted import US
from planted_loops import ADAM, ENGINE, Loop, Network

from tracekit.analyses.scope import select

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def trains(made: Loop, network: Network, *, in_backward: bool, recompute: bool) -> None:
    made.launches(["loss_a", "loss_b"])
    made.launches(["bwd_loss"], ENGINE)
    if in_backward:
        for _ in range(network.layers):
            made.launches([*(f"bwd_{name}" for name in network.layer), ADAM], ENGINE)
    else:
        made.backward(network, recompute=recompute)


def ends(made: Loop, network: Network, rng: random.Random) -> None:
    tail = rng.choice(["", "other", "part", "evaluation"])
    made.clock += 300 * US
    if tail == "other":
        made.launches([f"fin_{rng.randint(0, 9)}" for _ in range(rng.randint(1, 100))])
    if tail == "part":
        made.launches((network.embed + network.layer * network.layers)[: rng.randint(1, 20)])
    if tail == "evaluation":
        for _ in range(rng.randint(1, 6)):
            made.forward(network)


def program(rng: random.Random) -> Loop:
    """A program; its `marks` are where steps begin, or where passes do when each has an optimizer of its own or none."""
    network = Network.random(rng)
    made = Loop(rng=random.Random(rng.random()), changed=rng.choice([0, 0, 0, 0.01, 0.05]))
    training = rng.random() < 0.6
    parts = rng.choice([1, 1, 1, 2, 4]) if training else 1
    in_backward = training and rng.random() < 0.1
    optimizer = rng.choice([[ADAM] * 3, [ADAM] * 3, [], ["elementwise_0", "elementwise_1"] * 30])
    each = in_backward or not optimizer
    feed, loader, recompute = rng.random() < 0.5, rng.random() < 0.2, rng.random() < 0.3
    often = rng.choice([0, 0, 0, 2, 5])
    made.launches(
        rng.choice([[], [f"init_{rng.randint(0, 9)}" for _ in range(rng.randint(1, 200))], network.head])
    )
    for step in range(rng.choice([1, 1, 2, 3, 4, 6, 9])):
        made.clock += 300 * US
        for part in range(parts):
            if loader:
                made.span("annotation", LOADER, made.clock, made.clock + 5 * US)
                made.clock += 8 * US
            if part == 0 or each:
                made.marks.append(made.clock)
            if feed:
                made.feed()
            made.forward(network)
            if training:
                trains(made, network, in_backward=in_backward, recompute=recompute)
        if often and step % often == often - 1:
            made.launches(["log_mean", "log_copy"][: rng.randint(1, 2)])
        if training and not in_backward:
            made.launches(optimizer)
    made.marks.append(made.clock)
    ends(made, network, rng)
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    "block", [0, *(pytest.param(block, marks=pytest.mark.slow) for block in range(1, 6))]
)
def test_what_is_inferred_is_right(block: int) -> None:
    """In every block of 25 programs about one in five has steps that can be told."""
    programs = 0
    for seed in range(25 * block, 25 * block + 25):
        rng = random.Random(seed)
        made = program(rng)
        low, high = sorted([rng.random(), rng.random()])
        window = (int(low * made.clock), int(high * made.clock)) if rng.random() < 0.3 else (None, None)
        trace = made.done(form=rng.choice(["kineto", "nsys"]), since=window[0], until=window[1])
        scope = select(trace) if trace.device.height else None
        if scope is None or not scope.steps.height:
            continue
        programs += 1
        marks = np.asarray(made.marks)
        begun = np.searchsorted(marks, scope.steps["end"].to_numpy(), side="right")
        begun -= np.searchsorted(marks, scope.steps["start"].to_numpy(), side="right")
        assert begun.tolist() == [1] * scope.steps.height, f"seed {seed}"
    assert programs >= 1
