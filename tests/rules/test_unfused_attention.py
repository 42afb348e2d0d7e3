from __future__ import annotations

from planted import MS, US, Planted, finding

BMM = "aten::bmm"


def planted(products: int, softmax_ms: int = 4) -> Planted:
    made = Planted()
    rows = [("aten::_softmax", softmax_ms * MS)] + [(BMM, MS)] * products + [("aten::mm", 2 * MS)]
    at = 0
    for operator, duration in rows:
        made.span("op", operator, at, at + 1000)
        made.activity(f"kernel of {operator}", at + 2000, duration, launch=at, call_ns=500)
        at += duration + 2000
    return made


def on_processors(*operators: str, each: int = 100 * US) -> Planted:
    """Operators one after the other; those after a `/` lie in the one before it, for all of its time but 2 µs."""
    made = Planted()
    for number, operator in enumerate(operators):
        at = number * each
        for depth, name in enumerate(operator.split("/")):
            of = {"sequence": 0, "forward_thread": 1} if "Backward" in operator else {"sequence": number}
            made.span("op", name, at + depth * US, at + each - depth * US, **of)
    return made


def test_fires_on_a_softmax_between_batched_products() -> None:
    found = finding(planted(2).trace(), "kernels", "unfused_attention")
    assert found is not None
    assert found.ns_at_stake == 4 * MS
    assert found.severity == "critical"
    assert found.title == "Attention is not fused: its softmax takes 50.0 % of the time"
    assert "1 softmax call takes 4.00 ms, in addition to 2 batched" in found.evidence
    assert "scaled_dot_product_attention" in found.advice


def test_without_a_device_a_call_counts_once() -> None:
    """`aten::softmax` calls `aten::_softmax`, and its backward pass is no call."""
    forward = ("aten::matmul/aten::bmm", "aten::softmax/aten::_softmax", "aten::matmul/aten::bmm")
    backward = ("BmmBackward0/aten::bmm", "SoftmaxBackward0/aten::_softmax_backward_data")
    found = finding(on_processors(*forward, *backward).trace(devices=()), "kernels", "unfused_attention")
    assert found is not None
    assert "1 softmax call takes 198 µs, in addition to 2 batched" in found.evidence
    assert found.ns_at_stake == 198 * US
    assert "takes 39.6 % of the time" in found.title
    assert finding(on_processors(*forward).trace(devices=()), "kernels", "unfused_attention") is not None


def test_silent_on_the_fast_path_of_a_transformer_encoder() -> None:
    """The user of nn.TransformerEncoder was to use scaled_dot_product_attention in code that is PyTorch's, and lost nothing there."""
    inside = [f"aten::_transformer_encoder_layer_fwd/{name}" for name in (BMM, "aten::_softmax", BMM)]
    assert finding(on_processors(*inside).trace(devices=()), "kernels", "unfused_attention") is None


def test_advice_knows_whether_other_attention_is_fused() -> None:
    made = planted(2)
    made.span("op", "aten::scaled_dot_product_attention", 20 * MS, 21 * MS)
    found = finding(made.trace(), "kernels", "unfused_attention")
    assert found is not None
    assert "use it here too" in found.advice


def test_silent_on_the_softmax_of_a_classifier_and_on_fused_attention() -> None:
    assert finding(planted(0).trace(), "kernels", "unfused_attention") is None
    assert finding(planted(1).trace(), "kernels", "unfused_attention") is None
    fused = Planted()
    fused.span("op", "aten::_flash_attention_forward", 0, 1000)
    fused.activity("flash_fwd_kernel", 2000, MS, launch=0, call_ns=500)
    assert finding(fused.trace(), "kernels", "unfused_attention") is None


def test_silent_on_attention_in_scaled_dot_product_attention() -> None:
    """Its own rule says why it is not fused."""
    math = "aten::_scaled_dot_product_attention_math"
    rows = (f"{math}/{BMM}", f"{math}/aten::softmax/aten::_softmax", f"{math}/{BMM}")
    assert finding(on_processors(*rows).trace(devices=()), "kernels", "unfused_attention") is None


SCORES = "[2, 8, 64, 64]"
HEADS = "[2, 8, 64, 16]"


def with_shapes() -> Planted:
    """Forward and backward, each kernel 100 µs; those of 1 µs are no part of attention's own."""
    forward = [
        ("aten::copy_", f"[{HEADS}, {HEADS}]", 100, "f"),  # the layout of an operand
        ("aten::copy_", f"[{HEADS}, {HEADS}]", 1, "c"),  # a cast of it
        (BMM, "[[16, 64, 16], [16, 16, 64]]", 50, "f"),
        ("aten::div", f"[{SCORES}, []]", 100, "f"),
        ("aten::add", f"[{SCORES}, [2, 1, 64, 64], []]", 100, "f"),
        ("aten::mul", f"[{HEADS}, {HEADS}]", 1, "f"),  # no scores
        ("aten::_softmax", f"[{SCORES}, [], []]", 100, "f"),
        ("aten::native_dropout", f"[{SCORES}, [], []]", 100, "f"),
        (BMM, "[[16, 64, 64], [16, 64, 16]]", 50, "f"),
        ("aten::mm", "[[128, 128], [128, 128]]", 50, "f"),
        ("aten::add", f"[{SCORES}, {SCORES}, []]", 1, "f"),  # of their shape, but not between the products
        ("aten::mm", "[[128, 128], [128, 128]]", 50, "f"),
    ]
    backward = [
        (BMM, "[[16, 64, 64], [16, 64, 16]]", 50, "f"),
        (BMM, "[[16, 64, 16], [16, 16, 64]]", 50, "f"),
        ("aten::mul", f"[{SCORES}, {SCORES}]", 100, "f"),
        ("aten::_softmax_backward_data", f"[{SCORES}, {SCORES}, [], []]", 100, "f"),
        ("aten::div", f"[{SCORES}, []]", 100, "f"),
        (BMM, "[[16, 64, 64], [16, 64, 16]]", 50, "f"),
    ]
    made, at = Planted(), 0
    for name, shapes, us, kind in [*forward, *backward]:
        types = '["float", "float"]' if kind == "f" else '["c10::BFloat16", "float"]'
        made.span("op", name, at, at + 1000, shapes=shapes, dtypes=types)
        made.activity(f"kernel of {name}", at + 2000, us * US, launch=at, call_ns=500)
        at += us * US + 2000
    return made


def test_all_work_on_the_scores_is_at_stake() -> None:
    """On a real device it took 57 of 269 ms, of which the softmax was 33, and fusing saved 68 with the copies of operands (15)."""
    found = finding(with_shapes().trace(), "kernels", "unfused_attention")
    assert found is not None
    assert found.ns_at_stake == 8 * 100 * US
    assert found.title.startswith("Attention is not fused: apart from its matrix products, it takes ")
    assert "1 softmax call takes 200 µs" in found.evidence
    assert (
        "Other work on the scores takes 500 µs and copies of the products' inputs take 100 µs."
        in found.evidence
    )


def test_sizes_that_no_machine_holds_are_left_out() -> None:
    """Mutated traces with sizes beyond 64 bits ended the report."""
    made = with_shapes()
    for number, size in enumerate((2**62, 10**400)):
        made.span(
            "op", BMM, 900_000 + number, 900_001 + number, shapes=f"[[{size}, {size}]]", dtypes='["float"]'
        )
    found = finding(made.trace(), "kernels", "unfused_attention")
    assert found is not None
    assert found.ns_at_stake == 8 * 100 * US
