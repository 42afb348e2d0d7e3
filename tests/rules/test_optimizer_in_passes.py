from __future__ import annotations

import pytest
from planted import MS, US, Planted, finding

FOREACH = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<2>, BinaryOpScalarFunctor<float>>(x)"
ADAM = ("_foreach_lerp_", "_foreach_mul_", "_foreach_addcmul_", "_foreach_sqrt", "_foreach_addcdiv_")


def planted(operators: tuple[str, ...], each: int, name: str = "AdamW", steps: int = 2) -> Planted:
    """Steps of 6 ms, at whose end an optimizer launches one kernel of so many ns for each operator."""
    made = Planted()
    for number in range(steps):
        start = number * 6 * MS
        made.step(number, start, start + 6 * MS)
        made.activity("gemm", start, 5 * MS, launch=start)
        made.span("annotation", f"Optimizer.step#{name}.step", start + MS, start + 2 * MS)
        for place, operator in enumerate(operators):
            at = start + MS + (20 * place + 1) * US
            made.span("op", f"aten::{operator}", at, at + 10 * US)
            made.activity(FOREACH, start + 5 * MS + place * each, each, launch=at + US, call_ns=5 * US)
    return made


def test_all_but_one_pass_is_at_stake() -> None:
    found = finding(planted(ADAM, 200 * US).trace(), "kernels", "optimizer_in_passes")
    assert found is not None
    assert (
        found.title == "The optimizer goes over its data with 5 operators instead of one (16.7 % of the time)"
    )
    assert found.ns_at_stake == 2 * (5 - 1) * 200 * US
    assert "2.00 ms, in 5 calls a step" in found.evidence
    assert found.advice.startswith("Create the optimizer with fused=True")


@pytest.mark.parametrize(
    ("operators", "each"), [(ADAM[:2], 500 * US), (ADAM, 20 * US), (("_fused_adamw_",) * 5, 200 * US)]
)
def test_silent_on_few_operators_little_time_and_fused_ones(operators: tuple[str, ...], each: int) -> None:
    assert finding(planted(operators, each).trace(), "kernels", "optimizer_in_passes") is None


def test_an_optimizer_without_a_fused_form_is_to_be_compiled() -> None:
    found = finding(planted(ADAM, 200 * US, "RMSprop").trace(), "kernels", "optimizer_in_passes")
    assert found is not None
    assert found.advice.startswith("RMSprop has no fused=True.")
