from __future__ import annotations

import pytest
from planted import MS, US, Planted, finding

from tracekit.findings import Finding

CAST, COPY = ('["float", "c10::BFloat16", "Scalar"]', '["float", "float", "Scalar"]')


def language_model(
    *, loss: int = 2 * MS, classes: str = "8192, 256000", backward: bool = True, dtypes: str = CAST
) -> Planted:
    """A product of 10 ms, a copy and log-softmax of the scores, and its backward pass, of `loss` ns each."""
    made = Planted()
    operators = [
        ("aten::mm", "gemm", 10 * MS),
        ("aten::copy_", "copy_kernel", loss),
        ("aten::_log_softmax", "softmax", loss),
    ]
    if backward:
        operators.append(("aten::_log_softmax_backward_data", "softmax", loss))
    at = 0
    for number, (name, kernel, length) in enumerate(operators):
        begin = number * 100 * US
        if "backward" in name:
            made.span("op", "LogSoftmaxBackward0", begin, begin + 60 * US, sequence=1)
        made.span(
            "op", name, begin + US, begin + 50 * US, shapes=f"[[{classes}], [{classes}], []]", dtypes=dtypes
        )
        made.activity(kernel, at + 10 * US, length, launch=begin + 5 * US)
        at += length + 10 * US
    return made


def found(made: Planted) -> Finding | None:
    return finding(made.trace(), "kernels", "unfused_loss")


def test_a_loss_over_a_large_vocabulary() -> None:
    """Softmax and casts of 256,000 scores took 40 % of the time, and the only advice was to use FP8 products."""
    one = found(language_model())
    assert one is not None
    assert one.ns_at_stake == 6 * MS
    assert "2 cross-entropy kernels on scores of [8192, 256000] take 4.00 ms, and 1 cast" in one.evidence
    assert "fused linear cross-entropy" in one.advice


def test_copies_of_the_scores_are_no_casts() -> None:
    """The bias that the last layer copies was "72 casts of tensors of this shape"."""
    one = found(language_model(dtypes=COPY))
    assert one is not None
    assert "cast" not in one.evidence
    assert one.ns_at_stake == 4 * MS


@pytest.mark.parametrize(("rows", "saved"), [(4096, 3 * MS), (200, 600 * US)])
def test_a_loss_on_a_processor(rows: int, saved: int) -> None:
    """The loss over 32,000 words took two thirds of a step without a device, and the advice was to use more threads. Compiled, it took
    half of the time, or where the scores are few, nearly as long: of 166 ms nothing was saved.
    """
    made = Planted()
    for number, (name, length) in enumerate(
        [("aten::mm", 4 * MS), ("aten::_log_softmax", 2 * MS), ("aten::_log_softmax_backward_data", 4 * MS)]
    ):
        made.span(
            "op",
            name,
            number * 5 * MS,
            number * 5 * MS + length,
            shapes=f"[[{rows}, 32000], []]",
            sequence=number,
        )
    made.span("op", "LogSoftmaxBackward0", 10 * MS, 14 * MS + 1, sequence=1)
    made.host.insert(2, made.host.pop())
    one = finding(made.trace(devices=()), "kernels", "unfused_loss")
    assert one is not None
    assert one.ns_at_stake == saved
    assert one.title.endswith("in operators that each make a pass over the scores of all classes")
    assert f"2 cross-entropy operators on scores of [{rows}, 32000] take 6.00 ms" in one.evidence
    assert one.advice.startswith("Compile the loss function with torch.compile")


def test_silent_on_short_losses_and_without_training() -> None:
    assert found(language_model(loss=100 * US)) is None
    assert found(language_model(backward=False)) is None
