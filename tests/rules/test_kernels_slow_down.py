from __future__ import annotations

import pytest
from planted import MS, US, Planted, finding

GRID = "(8, 1, 1)"


def steps_of(*factors: float, which: str = "abc", grid: str | None = GRID) -> Planted:
    """Steps with three kernels of 3 ms each, of which those named in `which` take so many times as long in a step."""
    made, start = Planted(), 0
    for number, factor in enumerate(factors):
        at = start
        for name in "abc":
            ns = round(3 * MS * (factor if name in which else 1))
            made.activity(name, at, ns, launch=at, grid=grid)
            at += ns
        made.step(number, start, at)
        start = at
    return made


def test_most_steps_are_slow_after_throttling_sets_in() -> None:
    """The median step is slow as well, so that nothing was said of two slow steps of three."""
    found = finding(steps_of(1, 1.5, 1.5).trace(), "kernels", "kernels_slow_down")
    assert found is not None
    assert (
        found.title == "Kernels become slower: from ProfilerStep#1 on, the same ones take 1.5 times as long"
    )
    assert (found.ns_at_stake, found.severity) == (9 * MS, "critical")
    assert "3 kernels of each step, with the same grids, take 9.00 ms in the fastest" in found.evidence
    assert "over 2 slow steps, that adds 9.00 ms (25.0 % of the time)" in found.evidence.lower()
    assert "nvidia-smi" in found.advice


def test_a_clock_that_falls_step_by_step_counts_against_the_fastest_steps() -> None:
    """Against the median step, the last three of ten steps took a quarter of what a falling clock costs."""
    found = finding(steps_of(1, 1.02, 1.2, 1.3, 1.4, 1.5).trace(), "kernels", "kernels_slow_down")
    assert found is not None
    assert "from ProfilerStep#2 on, the same ones take 1.2 to 1.5 times as long" in found.title
    assert found.ns_at_stake is not None
    assert 12 * MS < found.ns_at_stake < 13 * MS


def test_steps_need_not_stay_slow_if_most_are() -> None:
    found = finding(steps_of(1, 1.5, 1.5, 1.5, 1).trace(), "kernels", "kernels_slow_down")
    assert found is not None
    assert found.title.startswith("Kernels are slower in 3 of 5 steps")


def test_one_cause_is_one_finding() -> None:
    """Half of the steps were slow against a median step that none of them takes."""
    trace = steps_of(1, 1, 1, 1, 1.5, 1.5, 1.5, 1.5).trace()
    assert finding(trace, "kernels", "kernels_slow_down") is not None
    assert finding(trace, "steps", "step_variability") is None
    once = steps_of(1, 1, 1, 1, 1.5, 1, 1).trace()
    assert finding(once, "kernels", "kernels_slow_down") is None
    assert finding(once, "steps", "step_variability") is not None


def test_steps_count_in_order_of_time() -> None:
    """Numbers of steps begin anew with each recording in a file."""
    made = steps_of(1, 1, 1.5, 1.5)
    for row, name in zip([row for row in made.host if row["kind"] == "step"], (7, 8, 1, 2), strict=True):
        row["name"] = f"ProfilerStep#{name}"
    found = finding(made.trace(), "kernels", "kernels_slow_down")
    assert found is not None
    assert "from ProfilerStep#1 on" in found.title


def test_kernels_that_follow_each_other_early_are_alone() -> None:
    """A kernel may be launched while the one before it on its stream ends."""
    made = steps_of(1, 1.5, 1.5)
    for row in made.device:
        row["start"], row["duration"] = row["start"] - 500 * US, row["duration"] + 500 * US
    assert finding(made.trace(), "kernels", "kernels_slow_down") is not None


def test_kernels_that_take_no_time_are_none() -> None:
    made = steps_of(1, 1.5, 1.5)
    for row in made.device:
        row["duration"] = 0
    assert finding(made.trace(), "kernels", "kernels_slow_down") is None


def test_amd_has_a_tool_of_its_own() -> None:
    made = steps_of(1, 1.5, 1.5)
    for row in made.host:
        row["name"] = row["name"].replace("cudaLaunchKernel", "hipLaunchKernel")
    found = finding(made.trace(), "kernels", "kernels_slow_down")
    assert found is not None
    assert "amd-smi" in found.advice
    assert "nvidia-smi" not in found.advice


def beside(name: str) -> Planted:
    """Steps of which the later ones have another activity beside their kernels."""
    made = steps_of(1, 1.5, 1.5)
    for start, end in ((9 * MS, 22 * MS), (22 * MS + 500 * US, 36 * MS)):
        made.activity(name, start, end - start, launch=start, stream=20)
    return made


def with_grids() -> Planted:
    made = steps_of(1, 1.5, 1.5)
    for number, row in enumerate(made.device):
        row["grid"] = f"({8 + number // 3}, 1, 1)"
    return made


def with_more() -> Planted:
    made = steps_of(1, 1.5, 1.5)
    made.activity("a", 36 * MS, 5 * MS, launch=30 * MS, grid=GRID)
    return made


def growing(*factors: float, shapes: str | None = None) -> Planted:
    """Steps whose kernels always fill the device, and a short one in each, whose grid grows with the inputs."""
    made = steps_of(*factors)
    for number, factor in enumerate(factors):
        last = made.device[3 * number + 2]
        ns = round(100 * US * factor)
        last["duration"] -= ns
        start = last["start"] + last["duration"]
        made.activity("norm", start, ns, launch=start, grid=f"({round(64 * factor)}, 1, 1)")
    for call in [row for row in made.host if row["kind"] == "runtime" and shapes]:
        made.span("op", "aten::mm", call["start"], call["start"] + call["duration"], shapes=shapes)
    return made


def test_growing_inputs_of_persistent_kernels_are_no_clock() -> None:
    """Nine tenths of the time belonged to kernels that fill the device on any input, and the grids of the others went unseen."""
    assert finding(growing(1, 1.2, 1.4, 1.6).trace(), "kernels", "kernels_slow_down") is None
    assert finding(growing(1, 1, 1, 1, 1.6).trace(), "steps", "step_variability") is None


def test_recorded_shapes_tell_more_than_grids() -> None:
    found = finding(growing(1, 1.2, 1.4, 1.6, shapes="[[8]]").trace(), "kernels", "kernels_slow_down")
    assert found is not None
    assert "with the same grids and recorded shapes, take" in found.evidence


@pytest.mark.slow
@pytest.mark.parametrize(
    "made",
    [
        steps_of(1, 1.03, 0.98, 1.04, 1.03),  # noise
        steps_of(1.5, 1, 1, 1),  # a warm-up
        steps_of(1.5, 1.5, 1.5, 1, 1),  # a longer one
        steps_of(1, 1, 1, 1, 1.5),  # an exception
        steps_of(1, 1.5),  # too few
        steps_of(1, 1.5, 1.5, which="a"),  # its work may have grown
        steps_of(1, 1.5, 1.5, grid=None),  # inputs of unknown size
        with_grids(),  # inputs of another size
        with_more(),  # other work
        beside("ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
        beside("Memcpy HtoD (Pinned -> Device)"),
        Planted(),
    ],
)
def test_silent_where_no_clock_is_at_fault(made: Planted) -> None:
    assert finding(made.trace(), "kernels", "kernels_slow_down") is None


def test_collectives_wait_for_other_ranks() -> None:
    made = steps_of(1, 1.5, 1.5)
    for row in made.device:
        row["name"] = f"ncclDevKernel_AllReduce_{row['name']}"
    assert finding(made.trace(), "kernels", "kernels_slow_down") is None
