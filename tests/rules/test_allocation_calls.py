from __future__ import annotations

from planted import MS, US, Planted, finding


def test_fires_on_allocations_that_keep_the_device_idle() -> None:
    made = Planted()
    made.activity("a", 0, MS, launch=-10 * US)
    made.call("cudaFree", 900 * US, 200 * US)  # half of it while the kernel runs
    made.call("cudaMalloc", 1100 * US, 300 * US)
    made.activity("b", 1500 * US, 500 * US, launch=1400 * US)
    found = finding(made.trace(), "launches", "allocation_calls")
    assert found is not None
    assert found.ns_at_stake == 400 * US
    assert found.severity == "critical"
    assert found.title == "2 calls that allocate or free memory keep the device idle for 20.0 % of the time"
    assert (
        found.evidence
        == "The calls: 1 × cudaMalloc (300 µs), 1 × cudaFree (200 µs). They cause 400 µs of idle time."
    )


def test_silent_when_hidden_outside_the_window_or_creating_the_context() -> None:
    hidden = Planted()
    hidden.call("cudaMalloc", -5 * MS, MS)
    hidden.activity("a", 0, 2 * MS, launch=-10 * US)
    hidden.call("cudaMalloc", 100 * US, MS)
    assert finding(hidden.trace(), "launches", "allocation_calls") is None
    context = Planted()
    context.activity("a", 0, MS, launch=-10 * US)
    context.call("cudaFree", 2 * MS, 500 * MS)
    context.activity("b", 503 * MS, MS, launch=502_500_000)
    assert finding(context.trace(), "launches", "allocation_calls") is None


def test_memory_of_the_host_has_advice_of_its_own() -> None:
    made = Planted()
    made.activity("a", 0, MS, launch=-10 * US)
    made.call("cudaMalloc", 1000 * US, 100 * US)
    made.call("cudaHostAlloc", 1100 * US, 300 * US)
    made.activity("b", 1500 * US, 500 * US, launch=1400 * US)
    found = finding(made.trace(), "launches", "allocation_calls")
    assert found is not None
    assert "empty_cache" not in found.advice
    assert "lock host memory" in found.advice


def emptied(steps: int, *, inside: bool = False) -> Planted:
    """Each step gives a block back, in a call that ends 1 ms after the work, and launches its first kernel 1 ms late."""
    made = Planted()
    for number in range(steps):
        at = number * 10 * MS
        made.step(number, at, at + 10 * MS)
        made.span("op", "aten::mm", at + MS - 20 * US, at + MS)
        made.activity("gemm", at + MS, 8 * MS, launch=at + MS - 10 * US)
        made.call("cudaFree", at + 5 * MS, 5 * MS - 10 * US)
        if inside:
            made.span("op", "aten::empty", at + 5 * MS - US, at + 10 * MS - US)
    return made


def test_an_emptied_cache_is_no_warm_up() -> None:
    """Real traces: the advice was to profile after warm-up, although each step made the same calls, and late launches were left out."""
    found = finding(emptied(3).trace(), "launches", "allocation_calls")
    assert found is not None
    assert (
        found.title
        == "The cache of device memory is emptied 3 times, and the device idles for 16.7 % of the time"
    )
    assert found.ns_at_stake == 5 * MS  # three times 1 ms in or after the call, twice 1 ms before the launch
    assert "warm-up" not in found.advice
    assert found.advice.startswith("Remove torch.cuda.empty_cache()")


def test_calls_of_each_step_inside_operators_are_no_warm_up_either() -> None:
    """The allocator itself gives memory back only inside an operator, and no one calls empty_cache()."""
    found = finding(emptied(3, inside=True).trace(), "launches", "allocation_calls")
    assert found is not None
    assert "come in each of 3 steps" in found.evidence
    assert found.advice.startswith("Keep input shapes constant")
    assert finding(emptied(1).trace(), "launches", "allocation_calls").advice.startswith(
        "Profile after warm-up"
    )  # type: ignore[union-attr]


def test_nobody_empties_a_cache_that_gives_nothing_back() -> None:
    """Two calls of cudaMalloc were to be ended by removing empty_cache()."""
    made = Planted()
    made.span("op", "aten::mm", -20 * US, -5 * US)
    made.activity("a", 0, MS, launch=-10 * US)
    made.call("cudaMalloc", 1100 * US, 300 * US)
    made.activity("b", 1500 * US, 500 * US, launch=1400 * US)
    found = finding(made.trace(), "launches", "allocation_calls")
    assert found is not None
    assert found.advice.startswith("Profile after warm-up. If the calls remain, keep input shapes constant.")
