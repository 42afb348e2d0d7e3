from __future__ import annotations

import json
from typing import Any

import pytest
from planted import A100, EVERYTHING, MS, US, Planted, finding

from tracekit.analyses.sdpa import Call, call_of, refusals
from tracekit.findings import Finding
from tracekit.trace import DeviceInfo

MATH = "aten::_scaled_dot_product_attention_math"
AMD = DeviceInfo(0, "AMD Instinct MI300X", (9, 4), 304, None, 2048, 64)
T4 = DeviceInfo(0, "Tesla T4", (7, 5), 40, None, 1024, 32)


def inputs(
    *sizes: list[int],
    kind: str = "c10::BFloat16",
    mask: list[int] | None = None,
    mask_kind: str = "",
    dropout: str = "0.",
    causal: bool = False,
    grouped: bool = False,
) -> dict[str, str]:
    """The columns of a span of `MATH`; `sizes` of query, key and value, or of all three."""
    sizes = sizes if len(sizes) == 3 else (sizes[0],) * 3
    return {
        "shapes": json.dumps([*sizes, mask or [], [], [], [], [], []]),
        "dtypes": json.dumps([*[kind] * 3, mask_kind, "Scalar", "Scalar", "", "", "Scalar"]),
        "concrete_inputs": json.dumps(["", "", "", "", dropout, str(causal), "", "", str(grouped)]),
    }


def call(*sizes: list[int], **how: Any) -> Call:
    columns = inputs(*sizes, **how)
    made = call_of(columns["shapes"], columns["dtypes"], columns["concrete_inputs"])
    assert made is not None
    return made


def on_device(**columns: str) -> Planted:
    """One call: products of 2 ms, a softmax of 4 ms and a mask of 1 ms; beside it a product of 1 ms."""
    made, at = Planted(), 0
    made.span("op", "aten::scaled_dot_product_attention", 0, 40 * US)
    made.span("op", MATH, 0, 40 * US, **columns)
    for operator, ns in (("aten::bmm", MS), ("aten::add", MS), ("aten::_softmax", 4 * MS), ("aten::bmm", MS)):
        made.span("op", operator, at, at + 10 * US)
        made.activity(f"kernel of {operator}", 50 * US + at * 1000, ns, launch=at, call_ns=US)
        at += 10 * US
    made.span("op", "aten::mm", 50 * US, 60 * US)
    made.activity("gemm", 60 * MS, MS, launch=50 * US, call_ns=US)
    return made


def found(made: Planted, *, devices: tuple[DeviceInfo, ...] = (A100,), shapes: bool = True) -> Finding | None:
    captured = EVERYTHING if shapes else EVERYTHING - {"shapes"}
    return finding(made.trace(devices=devices, captured=captured), "kernels", "sdpa_fallback")


def test_fires_with_the_time_of_all_but_the_products() -> None:
    one = found(on_device(**inputs([2, 8, 128, 64], kind="double")))
    assert one is not None
    assert one.ns_at_stake == 5 * MS
    assert one.title == (
        "scaled_dot_product_attention is not fused and takes 8.2 % of the time, not counting its matrix products"
    )
    assert "1 call runs as separate matrix products and a softmax" in one.evidence
    assert one.evidence.endswith(
        "For a query of [2, 8, 128, 64], FlashAttention cannot run, because the inputs are fp64, and memory-efficient attention "
        "cannot run, because the inputs are fp64."
    )
    assert "bf16" in one.advice
    assert "scaled_dot_product_attention (in Hugging Face" not in one.advice


def test_says_so_if_the_inputs_were_not_recorded() -> None:
    one = found(on_device(), shapes=False)
    assert one is not None
    assert (
        "The inputs were not recorded, so the reason is unknown. Possible reasons are fp64 inputs"
        in one.evidence
    )
    assert "record_shapes=True" in one.advice


def test_says_what_remains_if_the_inputs_show_no_reason() -> None:
    one = found(on_device(**inputs([2, 8, 128, 64])))
    assert one is not None
    assert (
        "FlashAttention could run on the recorded inputs; the remaining possible reasons are a last dimension"
        in one.evidence
    )
    assert "sdpa_kernel" in one.advice
    masked = found(on_device(**inputs([2, 8, 128, 64], mask=[128, 128], mask_kind="bool")))
    assert masked is not None
    assert (
        "FlashAttention cannot run, because a mask is given, and memory-efficient attention could"
        in masked.evidence
    )
    assert "the remaining possible reasons are a mask that requires a gradient" in masked.evidence


def test_inputs_without_shapes_may_be_nested() -> None:
    columns = {"shapes": "[[], [], [], [], [], []]", "dtypes": '["", "", "", "", "Scalar", "Scalar"]'}
    one = found(on_device(**columns))
    assert one is not None
    assert "nested tensors" in one.evidence


def test_without_a_device_dropout_is_a_reason() -> None:
    made = Planted()
    made.span("op", MATH, 0, 400 * US, **inputs([2, 4, 256, 16], kind="float", dropout="0.1"))
    for at, operator in enumerate(("aten::bmm", "aten::softmax", "aten::dropout", "aten::bmm")):
        made.span("op", operator, at * 100 * US, (at + 1) * 100 * US, sequence=at)
    one = found(made, devices=())
    assert one is not None
    assert one.ns_at_stake == 200 * US
    assert "the dropout of the attention is 0.1" in one.evidence
    assert "model.eval()" in one.advice  # no backward pass in this run
    made.span("op", "autograd::engine::evaluate_function: MulBackward0", 400 * US, 410 * US)
    one = found(made, devices=())
    assert one is not None
    assert "attention_dropout" in one.advice


def test_silent_on_fused_attention() -> None:
    made = Planted()
    made.span("op", "aten::scaled_dot_product_attention", 0, 20 * US)
    made.span("op", "aten::_scaled_dot_product_flash_attention", 0, 20 * US)
    made.activity("flash_fwd_kernel", 30 * US, MS, launch=0, call_ns=US)
    assert found(made) is None


PLAIN = [2, 8, 128, 64]
NVIDIA = [
    (call(PLAIN), (), ()),
    (call(PLAIN, kind="float"), ("the inputs are fp32",), ()),
    (call(PLAIN, mask=[128, 128], mask_kind="bool"), ("a mask is given",), ()),
    (call([2, 8, 128, 20]), (), ("the head size 20 is not a multiple of 8",)),
    (
        call([2, 8, 128, 18], kind="float"),
        ("the inputs are fp32",),
        ("the head size 18 is not a multiple of 4",),
    ),
    (call([2, 8, 128, 512]), ("the head size 512 is above 256",), ()),
    (call([2, 8, 128, 64], [2, 8, 64, 64], [2, 8, 64, 64], causal=True), ("is_causal is set",), ()),
    (call([8, 128, 64]), ("3, 3, 3 dimensions",), ("3, 3, 3 dimensions",)),
    (call([2, 8, 128, 64], [2, 2, 128, 64], [2, 2, 128, 64]), ("8, 2, 2 heads",), ("8, 2, 2 heads",)),
    (call([2, 8, 128, 64], [2, 2, 128, 64], [2, 2, 128, 64], grouped=True), (), ()),
    (call([2, 8, 128, 64], PLAIN, [2, 8, 128, 32]), ("query and value differ",), ()),
    (call([2, 8, 128, 64], [1, 8, 128, 64], PLAIN), ("batch sizes",), ("batch sizes",)),
    (call([2, 8, 0, 64]), ("empty",), ("empty",)),
]


@pytest.mark.parametrize(("made", "flash", "efficient"), NVIDIA)
def test_reasons_on_nvidia(made: Call, flash: tuple[str, ...], efficient: tuple[str, ...]) -> None:
    kernels = refusals(made, "nvidia", (8, 0))
    for kernel, wanted in zip(kernels, (flash, efficient), strict=True):
        assert len(kernel.reasons) == len(wanted), kernel
        assert all(text in reason.why for text, reason in zip(wanted, kernel.reasons, strict=True)), kernel


def test_reasons_of_other_devices() -> None:
    def why(made: Call, target: Any, capability: tuple[int, int] | None = None) -> list[list[str]]:
        return [[reason.why for reason in kernel.reasons] for kernel in refusals(made, target, capability)]

    assert why(call(PLAIN), "nvidia", T4.compute_capability) == [
        ["the compute capability 7.5 is below 8.0"],
        ["the inputs are bf16 on compute capability 7.5"],
    ]
    assert why(call(PLAIN, mask=[128, 128], mask_kind="float"), "amd") == [
        ["a mask is given"],
        ["the mask is fp32"],
    ]
    assert why(call(PLAIN, grouped=True), "amd")[1] == ["enable_gqa is set"]
    assert why(call(PLAIN, kind="double", mask=[128, 128], mask_kind="bool"), "processor") == [[]]
    assert why(call(PLAIN, mask=[8, 128, 128], mask_kind="bool"), "processor") == [
        ["a mask of the shape [8, 128, 128] does not fit"]
    ]


def test_the_vendor_decides_which_reasons_apply() -> None:
    made = on_device(**inputs(PLAIN, grouped=True))
    one = found(made, devices=(AMD,))
    assert one is not None
    assert "enable_gqa is set" in one.evidence


@pytest.mark.parametrize(
    "shapes", [None, "", "[", "7", "[[1], [2]]", '[["a"], [1], [1], []]', "[[-1], [1], [1], []]"]
)
def test_damaged_inputs_count_as_not_recorded(shapes: str | None) -> None:
    assert call_of(shapes, '["float", "float", "float", ""]', "[]") is None
    assert call_of("[[1], [1], [1], []]", None, None) is None
