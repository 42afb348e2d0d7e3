from __future__ import annotations

import json
from pathlib import Path

import pytest
from planted import MS, US, Planted, finding

import tracekit


def step_with_wait(operator: str | None = "aten::item") -> Planted:
    """A kernel of 400 µs, a wait for it, then 100 µs until the next kernel; the step ends with one more wait."""
    made = Planted()
    made.step(0, 0, MS)
    made.activity("a", 10 * US, 400 * US, launch=0)
    if operator is not None:
        made.span("op", operator, 40 * US, 430 * US)
        made.span("op", "aten::_local_scalar_dense", 45 * US, 425 * US)
    made.call("cudaStreamSynchronize", 50 * US, 360 * US)
    made.activity("b", 510 * US, 400 * US, launch=500 * US)
    made.call("cudaDeviceSynchronize", 520 * US, 390 * US)
    return made


def test_fires_and_names_the_operator_that_waits() -> None:
    found = finding(step_with_wait().trace(), "launches", "blocking_synchronisation")
    assert found is not None
    # The wait ends at 410 µs, exactly when the device falls idle until 510 µs. The window is the step, 0 to 1 ms.
    assert found.ns_at_stake == 100 * US
    assert found.severity == "warning"
    assert (
        found.title
        == "Within the step, the host waits once for the device, and the device then idles for 10.0 % of the time"
    )
    assert "aten::item waits longest (cudaStreamSynchronize): once, 360 µs." in found.evidence
    assert ".item()" in found.advice


@pytest.mark.parametrize(
    ("waits", "often"),
    [(2, "Within a step, the host waits once"), (1, "Within 2 steps, the host waits once")],
)
def test_waits_are_counted_for_a_step(waits: int, often: str) -> None:
    """60 waits in 5 steps were "60 times within a step"."""
    made = step_with_wait()
    made.activity("a", MS, 410 * US, launch=MS)
    if waits == 2:
        made.call("cudaStreamSynchronize", 1_050 * US, 360 * US)
    made.activity("b", 1_510 * US, 400 * US, launch=1_500 * US)
    made.step(1, MS, 2 * MS)
    found = finding(made.trace(), "launches", "blocking_synchronisation")
    assert found is not None
    assert found.title.startswith(often)


def test_a_call_that_finds_the_device_done_is_no_wait() -> None:
    made = step_with_wait()
    made.call("cudaStreamSynchronize", 415 * US, 4 * US)  # as after each blocking copy
    found = finding(made.trace(), "launches", "blocking_synchronisation")
    assert found is not None
    assert found.title.startswith("Within the step, the host waits once ")


def test_a_cache_that_frees_memory_waits_before() -> None:
    """Of the allocator's own wait in aten::empty it said to remove torch.cuda.synchronize()."""
    made = step_with_wait("aten::empty")
    made.call("cudaFree", 412 * US, 10 * US)
    assert finding(made.trace(), "launches", "blocking_synchronisation") is None


@pytest.mark.parametrize(
    ("reads", "between", "layers"), [(4, True, True), (2, True, False), (4, False, False)]
)
def test_what_layers_read_cannot_be_read_later(reads: int, between: bool, layers: bool) -> None:
    """The counts of a layer's experts, by which the host launches their products, were to be read one step later."""
    made = Planted()
    made.step(0, 0, 5 * MS)
    made.span("annotation", "forward", US, 4_900 * US)
    for number in range(reads):
        at = number * MS + 2 * US
        if between:
            made.activity("a", at + 10 * US, 400 * US, launch=at)
        else:
            made.copy("DtoH (Device -> Pageable)", at + 10 * US, 400 * US, 1000, launch=at + 42 * US)
        made.span("op", "aten::to", at + 40 * US, at + 430 * US)
        made.call("cudaStreamSynchronize", at + 50 * US, 370 * US)
        if between or number == reads - 1:
            made.activity("b", at + 510 * US, 400 * US, launch=at + 500 * US)
    found = finding(made.trace(), "launches", "blocking_synchronisation")
    assert found is not None
    assert ("a grouped matrix product" in found.advice) == layers
    assert ("one step later" in found.advice) != layers


def test_gaps_between_queued_kernels_during_a_wait_are_not_its_cost() -> None:
    """Of 3.16 ms said to follow from two waits of BERT, 2.53 lay between kernels that were queued before them."""
    made = Planted()
    made.step(0, 0, MS)
    for number in range(4):  # 2 µs apart
        made.activity("a", (10 + 100 * number) * US, 98 * US, launch=number * US, call_ns=US)
    made.span("op", "aten::item", 40 * US, 430 * US)
    made.call("cudaStreamSynchronize", 50 * US, 358 * US)
    made.activity("b", 510 * US, 400 * US, launch=500 * US)
    found = finding(made.trace(), "launches", "blocking_synchronisation")
    assert found is not None
    assert found.ns_at_stake == 102 * US


def test_outside_operators_the_call_is_named() -> None:
    found = finding(step_with_wait(None).trace(), "launches", "blocking_synchronisation")
    assert found is not None
    assert "Code outside any operator waits longest (cudaStreamSynchronize)" in found.evidence
    assert "torch.cuda.synchronize()" in found.advice


def test_the_remedy_fits_the_operator() -> None:
    for operator, word in (
        (
            "aten::is_nonzero",
            "A Python condition reads a tensor's value",
        ),  # of a mask in transformers; no .item() is there
        ("aten::nonzero", "torch.where"),
        ("aten::to", "non_blocking=True"),
        ("my::op", "CUDA events"),
    ):
        found = finding(step_with_wait(operator).trace(), "launches", "blocking_synchronisation")
        assert found is not None
        assert word in found.advice


@pytest.mark.parametrize(
    ("marks", "words", "others"),
    [
        (("aten::mm", "Optimizer.step#AdamW.step"), ("losses and metrics",), ("token", "at the end")),
        (("nn.Module: GPT_0",), ("metrics as tensors on the device", "a token"), ("losses",)),
        (("nn.Module: GPT_0", "vllm/worker.py(3): decode"), ("a token",), ("losses", "metrics")),
    ],
)
def test_the_advice_about_reads_fits_training_and_inference(
    marks: tuple[str, ...], words: tuple[str, ...], others: tuple[str, ...]
) -> None:
    """A decode loop that reads its tokens was told to accumulate losses and metrics."""
    made = step_with_wait()
    for at, mark in enumerate(marks):
        made.span("python" if ".py" in mark or "Module" in mark else "op", mark, at * US, at * US + 500)
    found = finding(made.trace(), "launches", "blocking_synchronisation")
    assert found is not None
    assert all(word in found.advice for word in words), found.advice
    assert not any(word in found.advice for word in others), found.advice


def test_a_slow_copy_to_the_host_is_a_wait() -> None:
    made = Planted()
    made.activity("a", 10 * US, 400 * US, launch=0)
    made.span("op", "aten::to", 20 * US, 425 * US)
    made.copy("DtoH (Device -> Pageable)", 410 * US, 5 * US, 400, launch=30 * US, call_ns=390 * US)
    made.activity("b", 515 * US, 400 * US, launch=510 * US)
    found = finding(made.trace(), "launches", "blocking_synchronisation")
    assert found is not None
    # The device falls idle at 415 µs, while the call still waits.
    assert found.ns_at_stake == 100 * US
    assert "Synchronisation caused 5.00 µs of idle time" in found.evidence
    assert (
        "for the device and then launches more, " in found.title
    )  # there are no steps to be in the middle of
    assert "aten::to waits longest (cudaMemcpyAsync): once, 390 µs." in found.evidence


def test_idle_time_long_after_a_wait_has_another_cause() -> None:
    made = step_with_wait()
    made.step(1, 50 * MS, 51 * MS)
    made.activity("c", 50 * MS + 10 * US, MS, launch=50 * MS)
    found = finding(made.trace(), "launches", "blocking_synchronisation")
    # 100 µs of 51 ms is no finding, and the 49 ms between the steps are not counted.
    assert found is None


def test_the_wait_at_the_end_of_a_step_is_no_finding() -> None:
    made = Planted()
    for number in range(3):
        start = number * MS
        made.step(number, start, start + MS)
        made.activity("a", start + 10 * US, 800 * US, launch=start)
        made.call("cudaDeviceSynchronize", start + 20 * US, 790 * US)
    assert finding(made.trace(), "launches", "blocking_synchronisation") is None


def test_silent_without_waits_and_on_the_cpu() -> None:
    made = Planted()
    made.activity("a", 10 * US, 400 * US, launch=0)
    made.activity("b", 510 * US, 400 * US, launch=500 * US)
    assert finding(made.trace(), "launches", "blocking_synchronisation") is None
    cpu = Planted()
    cpu.span("op", "aten::item", 0, MS)
    assert finding(cpu.trace(devices=()), "launches", "blocking_synchronisation") is None


def test_a_trace_whose_only_call_never_ends_has_no_waits(tmp_path: Path) -> None:
    """The call is left out, and a look at what follows each of no calls was a fault."""
    at = {"ph": "X", "pid": 1, "tid": 1}
    events = [
        {**at, "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 1_000},
        {**at, "cat": "cuda_runtime", "name": "cudaDeviceSynchronize", "ts": 100, "dur": 900_000_000},
        *(
            {**at, "cat": "kernel", "name": "k", "ts": ts, "dur": 300, "args": {"device": 0, "stream": 7}}
            for ts in (200, 600)
        ),
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps(events))
    trace = tracekit.read(path)
    assert "endless_call" in trace.health["kind"].to_list()
    assert finding(trace, "launches", "blocking_synchronisation") is None


def test_idle_time_after_the_waits_is_told_whole_though_less_is_at_stake() -> None:
    """Waits of 96 µs had "96 µs of idle time during and after them", which were 509."""
    made = Planted()
    made.step(0, 0, 2 * MS)
    made.activity("a", 10 * US, 400 * US, launch=0)
    made.call("cudaStreamSynchronize", 390 * US, 30 * US)
    made.span("op", "aten::mm", 425 * US, 900 * US)
    made.activity("b", 910 * US, 400 * US, launch=890 * US)
    found = finding(made.trace(), "launches", "blocking_synchronisation")
    assert found is not None
    assert found.ns_at_stake == 30 * US
    assert "The device was idle for 500 µs during and after the waits." in found.evidence
