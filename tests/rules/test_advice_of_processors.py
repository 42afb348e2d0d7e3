from __future__ import annotations

import pytest
from planted import US, Planted

from tracekit.analyses.scope import select
from tracekit.verdict.advice import general


@pytest.mark.parametrize(
    ("each_us", "text"), [(5, "Use fewer and larger operators. Use more"), (500, "Use more")]
)
def test_only_small_operators_should_be_fewer(each_us: int, text: str) -> None:
    """The loop of an LSTM, which is one operator, was told to use fewer and larger ones."""
    made = Planted()
    for number in range(40):
        start = number * (each_us + 10) * US
        made.span("op", "aten::mm", start, start + each_us * US)
    assert general("cpu", 0, select(made.trace(devices=()))).advice.startswith(text)
