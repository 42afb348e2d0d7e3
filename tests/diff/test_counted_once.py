"""No two sentences of a diff tell the same time, contradict each other, or tell a percentage that is not that of their own row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tests.diff.programs import Program, mapped, trace_of, training_loop
from tests.digest.made import digest_from
from tests.rules.planted import US
from tracekit.diff import diff_of
from tracekit.diff.model import Contribution, Diff
from tracekit.digest import digest_of

Leaf = Mapping[str, str | None]
Amounts = Sequence[tuple[int, int]]
"""µs and calls of each leaf."""

MM = {"kind": "compute", "category": "gemm", "operator": "aten::mm", "name": "gemm", "phase": "forward"}


def sides(leaves: Sequence[Leaf], base: Amounts, new: Amounts, *, on_cpu: bool = False) -> Diff:
    """Six steps without noise; of 0 calls a side has nothing."""
    empty = dict.fromkeys(("name", "operator", "shapes", "dtypes", "layer", "type"))
    made = []
    for own in (base, new):
        there = [at for at, (_, calls) in enumerate(own) if calls]
        amounts = [(own[at][0] * US, own[at][1]) for at in there]
        made.append(digest_from([empty | dict(leaves[at]) for at in there], [amounts] * 6, on_cpu=on_cpu))
    return diff_of([made[0]], [made[1]])


def found(base: Program, new: Program, *, on_cpu: bool) -> Diff:
    runs = (digest_of(trace_of(each, seed, on_cpu=on_cpu, noise=0.01)) for seed, each in ((2, base), (3, new)))  # fmt: skip
    return diff_of(*([run] for run in runs))


def work(diff: Diff) -> list[Contribution]:
    return [change for change in diff.changes if change.kind != "idle"]


def test_an_operator_of_another_name_does_not_change_what_the_device_waits_for() -> None:
    """`the device is idle 8.00 µs less … in aten::mm` and as much longer in aten::addmm stood above the renamed operator."""
    base = mapped(training_loop(), lambda _: True, lambda each: replace(each, ns=US))
    new = mapped(base, lambda each: each.operator == "aten::addmm", lambda each: replace(each, operator="aten::linear"))  # fmt: skip
    titles = [change.title for change in found(base, new, on_cpu=False).changes]
    assert not any("idle" in title for title in titles), titles


def test_an_optional_input_has_no_other_type() -> None:
    """`inputs of layers of type Block are Scalar, not  (+7.71 µs)`."""
    more = {
        **MM,
        "operator": "aten::add",
        "name": "aten::add",
        "dtypes": '["float", ""]',
        "shapes": "[[8], []]",
    }
    given = {**more, "dtypes": '["float", "Scalar"]'}
    diff = sides([MM, more, given], [(900, 9), (100, 1), (0, 0)], [(900, 9), (0, 0), (150, 1)], on_cpu=True)
    (change,) = diff.changes
    assert change.kind == "slower"
    assert change.title == "aten::add takes 50 % longer for the same calls (+50.0 µs)"


def test_a_quarter_of_the_calls_is_no_fifth() -> None:
    """`other work runs 0.2 times as often` was told of 5 calls instead of 20."""
    diff = sides(
        [{**MM, "layer": "a"}, {**MM, "layer": "b"}], [(900, 9), (400, 20)], [(900, 9), (100, 5)], on_cpu=True
    )
    (change,) = diff.changes
    assert change.title == "layer b runs 0.25 times as often (−300 µs)"
