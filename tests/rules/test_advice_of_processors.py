from __future__ import annotations

import pytest
from planted import MS, US, Planted

from tracekit.analyses.scope import select
from tracekit.report.build import build_report
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


def mostly(name: str, kind: str) -> list[str]:
    """The advice for steps of 10 ms that are this, but for a convolution of 0.2 ms and what comes in 0.1 ms before the next step."""
    made = Planted()
    for number in range(4):
        start = number * 10 * MS
        made.step(number, start, start + 10 * MS)
        if kind != "nothing":
            made.span(kind, name, start, start + 9_700 * US)
        made.span("op", "aten::convolution", start + 9_700 * US, start + 9_900 * US)
        for at in range(20):
            made.span("op", "aten::add", start + 9_900 * US + at * 4 * US, start + 9_903 * US + at * 4 * US)
    return [f"{each.title}: {each.advice}" for each in build_report(made.trace(devices=())).verdict.advice]


def test_a_category_of_two_hundredths_is_not_to_be_made_cheaper() -> None:
    """Loading took 92.7 %, and the second advice was to make the convolution cheaper, which took 2.0 %."""
    advice = mostly("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "annotation")
    assert advice[0].startswith("Data loading takes")
    assert "Raise num_workers and move decoding" in advice[0]
    assert not any("onvolution" in each for each in advice)


def test_time_outside_operators_is_no_matter_of_the_largest_operators() -> None:
    """67.5 % passed outside any operator, and the advice was to use more threads."""
    advice = mostly("", "nothing")
    assert not any("threads (torch" in each or "largest operators" in each for each in advice), advice
