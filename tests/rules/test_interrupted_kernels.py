from __future__ import annotations

import pytest
from planted import MS, US, Planted, finding


def kernels(*kinds: str, late: int = 2 * MS, beside: bool = False, steps: bool = True) -> Planted:
    """Ten steps with a kernel of 200 µs of each of these kinds; in each step one of them takes so much longer."""
    made, at = Planted(), 0
    for number in range(10):
        start = at
        for place, name in enumerate(kinds):
            length = 200 * US + (late if place == number % len(kinds) else 0)
            made.activity(name, at, length, launch=max(at - 50 * US, 0), grid="(64, 1, 1)")
            if beside:
                made.activity("other", at, length, launch=max(at - 50 * US, 0), stream=20)
            at += length + US
        if steps:
            made.step(number, start, at)
    return made


def test_programs_that_take_turns_interrupt_kernels() -> None:
    """Half of the time was another program's, and the verdict was that matrix multiplication takes it."""
    found = finding(kernels("a", "b", "c", "d").trace(), "kernels", "interrupted_kernels")
    assert found is not None
    assert found.ns_at_stake == 20 * MS
    assert "10 kernels of 4 kinds take at least 2.00 ms longer" in found.evidence
    assert "nvidia-smi" in found.advice


@pytest.mark.parametrize(
    "made",
    [
        kernels("a", "b", "c", "d", late=400 * US),
        kernels("a", "b", "c"),
        kernels("a", "b", "c", "d", beside=True),
        kernels("a", "b", "c", "d", steps=False),
    ],
)
def test_silent_on_other_clocks_few_kinds_and_kernels_that_share_the_device(made: Planted) -> None:
    assert finding(made.trace(), "kernels", "interrupted_kernels") is None


def test_a_grid_that_serves_all_sizes_is_no_interruption() -> None:
    """Without shapes, products of unlike sizes by persistent kernels, with one grid, were interrupted."""
    made, at = Planted(), 0
    for number in range(10):
        start = at
        for name in ("a", "b", "c", "d"):
            for length in (200 * US, 200 * US, 3 * MS):
                made.activity(name, at, length, launch=max(at - 50 * US, 0), grid="(132, 1, 1)")
                at += length + US
        made.step(number, start, at)
    assert finding(made.trace(), "kernels", "interrupted_kernels") is None
