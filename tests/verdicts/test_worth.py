"""What advice is worth (by a replay where one was made, else at most what is at stake), and where the host's time lies."""

from __future__ import annotations

from dataclasses import replace

import pytest
from planted import MS, US, Planted

from tracekit.analyses.scope import select
from tracekit.findings import Finding
from tracekit.report.build import build_report
from tracekit.verdict import advised, decide
from tracekit.verdict.advice import Owned, choose
from tracekit.verdict.model import Advice, Verdict

LAUNCHES = Advice("launch less", "Use graphs.", 40 * MS, finding="host_bound_launches", analysis="launches")
PYTHON = Advice("Python code", "Do less.", 36 * MS, finding="host_code", analysis="idle")
READS = Advice("reads", "Read less.", 20 * MS, finding="blocking_synchronisation", analysis="launches")


@pytest.mark.parametrize(
    ("gain", "order"),
    [
        (19 * MS, [LAUNCHES, PYTHON, READS]),
        (12 * MS, [PYTHON, LAUNCHES, READS]),
        (5 * MS, [PYTHON, READS, LAUNCHES]),
        (0, [PYTHON, READS]),
    ],
)
def test_advice_that_a_replay_says_to_gain_little_stands_behind(
    gain: int, order: list[Advice], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first advice saved 717 µs, and the second 36 ms."""
    made = Planted()
    made.step(0, 0, 100 * MS)
    made.activity("a", MS, MS, launch=0)
    monkeypatch.setattr(advised, "CHANGES", {LAUNCHES.finding: ("faster-host", "2")})
    monkeypatch.setattr(advised, "_gains", lambda *_: [gain])
    found = advised.with_gains([LAUNCHES, PYTHON, READS], select(made.trace()))
    assert [one.title for one in found] == [one.title for one in order]


def test_stakes_that_overlap_are_said_to() -> None:
    """Three pieces of advice saved 173 ms of a window of 152."""
    made = Planted()
    made.step(0, 0, 100 * MS)
    made.activity("a", MS, 50 * MS, launch=0)
    parts = decide.run_parts(select(made.trace()))
    kernels = Advice("kernels", "Fuse.", 60 * MS, finding="tiny_kernels", analysis="kernels")
    assert [*decide.shared([PYTHON, READS], parts)] == [
        "These savings overlap, and together cannot exceed the 49.0 ms in which the device does not compute."
    ]
    assert [*decide.shared([PYTHON, READS, kernels], parts)] == [
        "These savings overlap: their sum exceeds the window of 99.0 ms."
    ]
    assert [*decide.shared([PYTHON, kernels], parts)] == []
    little = replace(kernels, ns_at_stake=MS)
    assert [*decide.shared([PYTHON, READS, little], parts)] == [
        "Some of these savings overlap: those of time without computation cannot exceed the 49.0 ms that there is of it."
    ], "an item about kernels silenced it"


def test_waiting_for_the_host_lies_nowhere_in_the_loader() -> None:
    """ "It waited for the host 43.8 % of the time, mostly in aten::stack", which was the loader's, and not in these 43.8 %."""
    made = Planted()
    for number in range(3):
        at = number * 30 * MS
        made.step(number, at, at + 30 * MS)
        made.span(
            "annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, at + 12 * MS
        )
        made.span("op", "aten::stack", at, at + 12 * MS)
        for kernel in range(89):
            start = at + 12 * MS + (kernel + 1) * 200 * US
            made.activity("add", start, 10 * US, launch=start - 120 * US, call_ns=60 * US)
    report = build_report(made.trace())
    assert "waited for the host " in report.verdict.headline
    assert "aten::stack" not in report.verdict.headline


@pytest.mark.parametrize(("analysis", "first"), [("kernels", "launches"), ("", "answer")])
def test_only_code_of_the_host_stands_before_the_launches_that_it_delays(analysis: str, first: str) -> None:
    """Kernels to be fused stood before launches with more at stake."""
    found = Finding(
        id="host_bound_launches",
        severity="critical",
        title="launches",
        evidence="",
        advice="Use graphs.",
        ns_at_stake=24 * MS,
    )
    answer = Advice("answer", "Do less.", 21 * MS, analysis=analysis)
    chosen = choose([Owned(found, "launches")], "host-bound", 100 * MS, loss=None, answers=[answer])
    assert chosen[0].title == first


@pytest.mark.parametrize(("stake", "first"), [(15, "updates"), (11, "launches")])
def test_launches_of_one_kind_stand_before_all_launches_if_they_have_half_of_the_time(
    stake: int, first: str
) -> None:
    """Averages of weights, one tensor after the other, stood behind torch.compile(model), which does not reach them."""
    ids = {"launches": ("host_bound_launches", 24), "updates": ("updates_one_by_one", stake)}
    findings = [
        Finding(id=name, severity="critical", title=title, evidence="", advice="Do.", ns_at_stake=ns * MS)
        for title, (name, ns) in ids.items()
    ]
    chosen = choose(
        [Owned(each, "kernels") for each in findings],
        "launch/short-kernel-bound",
        100 * MS,
        loss=None,
    )
    assert chosen[0].title == first


def steps_on_a_processor(name: str, *, logs: bool = False) -> Verdict:
    """The verdict on steps of which an operator of this name takes 80 %, and a product or code that logs the rest."""
    made = Planted()
    for number in range(4):
        start = number * 10 * MS
        made.step(number, start, start + 10 * MS)
        for at in range(5):
            begin, end = start + at * 2 * MS, start + (at + 1) * 2 * MS
            if at or not logs:
                made.span("op", name if at else "aten::mm", begin, end, sequence=at)
        if logs:
            made.span("python", "/home/me/train.py(40): log_metrics", start, start + 2 * MS)
    return build_report(made.trace()).verdict


def test_an_operator_without_a_remedy_of_its_own_is_named() -> None:
    """The advice was: see the top operators."""
    verdict = steps_on_a_processor("aten::argmax")
    assert [(one.title, one.ns_at_stake) for one in verdict.advice] == [
        ("Look at aten::argmax first (80.0 % of the time)", None)
    ]
    assert verdict.advice[0].advice.startswith("Use more threads (torch.set_num_threads)")


def test_a_small_finding_does_not_hide_the_largest_operator() -> None:
    """A singular value decomposition took 56 % of a step, and the only advice was about 3 % of it."""
    advice = steps_on_a_processor("aten::_linalg_svd", logs=True).advice
    assert advice[0].finding == "code_outside_operators"
    assert advice[-1].title == "Look at aten::_linalg_svd first (80.0 % of the time)"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("SoftThreshold", "SoftThreshold is a torch.autograd.Function of the program"),
        ("aten::sort", "torch.topk is faster if only"),
        ("aten::cumsum", "Use more threads"),
    ],
)
def test_advice_fits_the_operator(name: str, says: str) -> None:
    """NumPy code in a function of autograd was to use more threads."""
    assert steps_on_a_processor(name).advice[0].advice.startswith(says)
