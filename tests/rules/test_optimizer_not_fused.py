from __future__ import annotations

import pytest
from planted import MS, US, Planted, finding

from tracekit.analyses.scope import select
from tracekit.analyses.what_if import Fuse, what_if
from tracekit.errors import UsageError

ADD = "void at::native::vectorized_elementwise_kernel<4, AddFunctor<float>>(int)"
FUSED = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>>(params)"


def planted(kernels: int, name: str = ADD) -> Planted:
    made = Planted()
    made.step(0, 0, 10 * MS)
    made.activity("gemm", 0, 5 * MS, launch=0)
    made.span("annotation", "Optimizer.step#AdamW.step", 5 * MS, 9 * MS)
    for number in range(kernels):
        at = 5 * MS + number * 20 * US
        made.activity(name, at + 10 * US, 5 * US, launch=at + 1 * US)
    return made


def test_fires_from_fifty_kernels_a_step() -> None:
    found = finding(planted(60).trace(), "kernels", "optimizer_not_fused")
    assert found is not None
    assert found.ns_at_stake == 4 * MS
    assert found.title == "The optimizer runs 60 kernels a step (40.0 % of the time with the waits for them)"
    assert "60 unfused kernels of the optimizer take 300 µs" in found.evidence
    assert "Between them, the device is idle for 3.70 ms." in found.evidence
    assert "fused=True" in found.advice


def test_silent_on_few_kernels_and_on_fused_ones() -> None:
    assert finding(planted(49).trace(), "kernels", "optimizer_not_fused") is None
    assert finding(planted(60, FUSED).trace(), "kernels", "optimizer_not_fused") is None


def test_of_accumulated_gradients_an_update_counts() -> None:
    """1,296 kernels in 2 of 8 steps were "324 a step"."""
    made = planted(60)
    made.step(1, 10 * MS, 20 * MS)
    made.activity("gemm", 10 * MS, 5 * MS, launch=10 * MS)
    found = finding(made.trace(), "kernels", "optimizer_not_fused")
    assert found is not None
    assert found.title.startswith("The optimizer runs 60 kernels an update (")


def test_on_the_cpu_operator_calls_count() -> None:
    made = Planted()
    made.step(0, 0, 10 * MS)
    made.span("annotation", "Optimizer.step#SGD.step", 0, 2 * MS)
    for number in range(50):
        made.span("op", "aten::add_", number * 20 * US, number * 20 * US + 10 * US)
    for number in range(50):  # the update of a large tensor is no matter of dispatch
        at = MS + number * 10 * US
        made.span("op", "aten::mul_", at, at + (300 if number == 49 else 10) * US)
    found = finding(made.trace(devices=()), "kernels", "optimizer_not_fused")
    assert found is not None
    assert (
        found.title
        == "The optimizer runs 100 operator calls a step (20.0 % of the time with the code between them)"
    )
    assert "Not at stake: 290 µs of arithmetic." in found.evidence
    assert found.ns_at_stake == 2 * MS - 290 * US


def test_an_optimizer_without_a_fused_form_is_not_told_to_use_it() -> None:
    made = Planted()
    made.step(0, 0, 10 * MS)
    made.span("annotation", "Optimizer.step#RMSprop.step", 0, 2 * MS)
    for number in range(60):
        made.span("op", "aten::addcdiv_", number * 20 * US, number * 20 * US + 10 * US)
    found = finding(made.trace(devices=()), "kernels", "optimizer_not_fused")
    assert found is not None
    assert found.advice.startswith("RMSprop has no fused=True")
    assert "Compile the optimizer's step" in found.advice


def test_what_a_fused_optimizer_runs_beside_is_not_advised_to_be_fused() -> None:
    """AdamW(fused=True) was told to use fused=True, for the counters of its steps."""
    made = Planted()
    made.step(0, 0, 10 * MS)
    made.span("annotation", "Optimizer.step#AdamW.step", 0, 2 * MS)
    for number in range(60):
        made.span("op", "aten::add_", number * 20 * US, number * 20 * US + 10 * US)
    assert finding(made.trace(devices=()), "kernels", "optimizer_not_fused") is not None
    made.span("op", "aten::_fused_adamw_", MS + 500 * US, 2 * MS)
    trace = made.trace(devices=())
    assert finding(trace, "kernels", "optimizer_not_fused") is None
    with pytest.raises(UsageError, match="fused already"):
        what_if(trace, [Fuse()])


def test_lbfgs_runs_the_model_in_its_steps() -> None:
    """All of the model was the optimizer's, which was told to use fused=True."""
    made = Planted()
    made.step(0, 0, 10 * MS)
    made.span("annotation", "Optimizer.step#LBFGS.step", 0, 9 * MS)
    for number in range(60):
        made.span("op", "aten::mm", number * 20 * US, number * 20 * US + 10 * US)
    trace = made.trace(devices=())
    assert select(trace).activities["category"].unique().to_list() == ["gemm"]
    assert finding(trace, "kernels", "optimizer_not_fused") is None


def test_a_fused_update_does_not_save_the_clearing_of_gradients() -> None:
    """35 ms of waits for zero_grad were at stake, although the optimizer's own kernels hardly waited."""
    made, alone = planted(60), finding(planted(60).trace(), "kernels", "optimizer_not_fused")
    made.step(1, 10 * MS, 20 * MS)
    made.activity("gemm", 10 * MS, 3 * MS, launch=10 * MS)
    made.span("annotation", "Optimizer.zero_grad#AdamW.zero_grad", 13 * MS, 19 * MS)
    for number in range(100):
        at = 13 * MS + number * 50 * US
        made.span("op", "aten::zero_", at, at + 45 * US)
        made.activity(
            "void at::native::vectorized_elementwise_kernel<4, FillFunctor<float>>(int)",
            at + 40 * US,
            2 * US,
            launch=at + 35 * US,
        )
    found = finding(made.trace(), "kernels", "optimizer_not_fused")
    assert found is not None
    assert alone is not None
    assert found.ns_at_stake is not None
    assert found.ns_at_stake <= (alone.ns_at_stake or 0) + 300 * US
