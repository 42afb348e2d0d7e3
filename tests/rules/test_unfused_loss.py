from __future__ import annotations

from planted import MS, US, Planted, finding

from tracekit.findings import Finding


def language_model(*, loss: int = 2 * MS, classes: str = "8192, 256000", backward: bool = True) -> Planted:
    """A product of 10 ms, a cast and log-softmax of the scores, and its backward pass, of `loss` ns each."""
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
        made.span("op", name, begin + US, begin + 50 * US, shapes=f"[[{classes}], []]")
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


def test_silent_on_short_losses_and_without_training() -> None:
    assert found(language_model(loss=100 * US)) is None
    assert found(language_model(backward=False)) is None
