"""No two sentences of a diff tell the same time, contradict each other, or tell a percentage that is not that of their own row."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import polars as pl
import pytest
from paths import ROOT

from tests.diff.programs import Program, Work, mapped, trace_of, training_loop
from tests.digest.made import digest_from
from tests.rules.planted import US
from tracekit.diff import diff_of
from tracekit.diff.model import Contribution, Diff
from tracekit.diff.phrases import times_as_often
from tracekit.diff.sides import read_sides
from tracekit.digest import Digest, digest_of

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
    runs = [
        digest_of(trace_of(each, seed, on_cpu=on_cpu, noise=0.01)) for seed, each in ((2, base), (3, new))
    ]
    return diff_of(runs[:1], runs[1:])


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


LAYERS = [{**MM, "layer": f"net.{i}"} for i in range(4)]


@pytest.mark.parametrize("us", [30, 45])
def test_cheaper_calls_that_are_added_are_not_the_same_calls(us: int) -> None:
    """`layer enc.1.attn takes 45 % longer for the same calls` was told of a second call of 45 µs, beside a row of 2 calls instead of 1."""
    diff = sides(LAYERS, [(100, 1)] * 4, [(100, 1), (100 + us, 2), (100, 1), (100, 1)])
    (change,) = diff.changes
    assert change.kind == "more_calls"
    assert change.title == f"layer net.1 runs 2 kernels per step, not 1 (+{us}.0 µs)"
    diff = sides(LAYERS, [(100, 1), (100 + us, 2), (100, 1), (100, 1)], [(100, 1)] * 4)
    (change,) = diff.changes
    assert change.title == f"layer net.1 runs 1 kernel per step, not 2 (−{us}.0 µs)"


def test_a_pass_more_is_told_of_all_of_it() -> None:
    """A forward pass for validation was `layer CNN_0 (CNN) in the forward pass takes 43 % longer for the same calls`."""
    steps = [100, 300, 50, 20]
    again = [200, 330, 90, 23]
    backward = {**MM, "operator": "backward", "phase": "backward", "layer": "net.0"}
    passes = [{**leaf, "operator": f"op{at}", "category": f"kind {at}"} for at, leaf in enumerate(LAYERS)]
    diff = sides(
        [*passes, backward],
        [*((us, 1) for us in steps), (900, 1)],
        [*((us, 2) for us in again), (900, 1)],
        on_cpu=True,
    )
    (change,) = diff.changes
    assert change.title == "the forward pass runs twice as often (+173 µs)"


def test_more_and_longer_calls_are_told_as_both() -> None:
    diff = sides(LAYERS, [(100, 1)] * 4, [(100, 1), (400, 2), (100, 1), (100, 1)])
    (change,) = diff.changes
    assert (
        change.title
        == "layer net.1 runs 2 kernels per step, not 1, and a call takes 2.0 times as long (+300 µs)"
    )


def test_copies_by_other_operators_are_more_copies() -> None:
    """`different work replaces that of copies and casts in 3 layers` was told of copies in their place, and twice."""
    copies = [{**MM, "layer": f"net.{i}", "category": "copy", "name": f"aten::{name}", "operator": f"aten::{name}"} for i in range(3) for name in ("clone", "contiguous", "copy_", "to")]  # fmt: skip
    base = [(900, 1)] * 3 + [(3, 1), (2, 1), (0, 0), (0, 0)] * 2 + [(2, 1), (3, 1), (0, 0), (0, 0)]
    new = [(900, 1)] * 3 + [(0, 0), (0, 0), (80, 14), (20, 14)] * 2 + [(0, 0), (0, 0), (80, 20), (20, 14)]
    diff = sides([*LAYERS[:3], *copies], base, new, on_cpu=True)
    (change,) = diff.changes
    assert change.title == "copies and casts in 3 layers run more often (+285 µs)"


def checked(diff: Diff) -> list[str]:
    """The titles; each tells the percentage of its own row, and no time is told twice."""
    assert diff.rest + sum(change.delta for change in diff.changes) == diff.change
    for change in work(diff):
        assert change.delta_ns == pytest.approx(change.new_ns - change.base_ns)
        if change.kind in ("slower", "faster") and "%" in change.title:
            told = float(change.title.partition(" % ")[0].rpartition(" ")[2])
            assert told == pytest.approx(abs(change.delta_ns) / change.base_ns * 100, abs=0.6)
    assert sum(change.base_ns for change in work(diff)) <= float(diff.base.mean) * 1.001
    titles = [change.title for change in work(diff)]
    subjects = [title.partition(" take")[0] for title in titles]
    assert len({*subjects}) == len(subjects), titles
    return titles


def scaled(program: Program, *factors: tuple[str, float]) -> Program:
    """Work of a layer or below it, or of an operator, by the first factor that is of it."""

    def of(work: Work) -> Work:
        for name, factor in factors:
            if name in (work.operator, "") or f"{work.layer}.".startswith(f"{name}."):
                return replace(work, ns=round(work.ns * factor))
        return work

    return mapped(program, lambda _: True, of)


def test_what_changed_more_than_its_layer_is_told_with_all_of_its_change() -> None:
    """`aten::gelu in layer enc.1 takes 30 % longer` was told of one that took 50 % longer, beside `layer enc.1 takes 20 % longer`."""
    base = [*training_loop(), Work("blocks.1", "Block", "aten::mul", "mul_kernel", 200 * US)]
    new = scaled(base, ("aten::mul", 1.5), ("blocks.1", 1.2))
    titles = checked(found(base, new, on_cpu=False))
    assert titles[0].startswith(
        "other work in layer blocks.1 (Block) takes 20 % longer for the same calls (+"
    )
    assert titles[1].startswith("aten::mul in layer blocks.1 (Block) takes 50 % longer for the same calls (+")
    assert len(titles) == 2


def test_layers_that_changed_more_than_all_others_are_named() -> None:
    """`the forward pass takes 30 % longer for the same calls` was told of what was left of three layers."""
    leaves = [{**MM, "layer": f"enc.{i}.{part}", "operator": part, "name": part} for i in range(4) for part in ("attn", "norm", "act")]  # fmt: skip
    base = [(us, 1) for us in (100, 30, 20)] * 4
    new = [(us * (14 if at >= 9 else 11) // 10, 1) for at, (us, _) in enumerate(base)]
    titles = checked(
        sides([{**leaf, "layer": str(leaf["layer"]).replace(".", "_")} for leaf in leaves], base, new)
    )
    assert titles == [
        "matrix multiplication in 9 layers takes 10 % longer for the same calls (+45.0 µs)",
        "layer enc_3_attn takes 40 % longer for the same calls (+40.0 µs)",
        "layer enc_3_norm takes 40 % longer for the same calls (+12.0 µs)",
        "layer enc_3_act takes 40 % longer for the same calls (+8.00 µs)",
    ]  # fmt: skip
    titles = checked(sides(leaves, base, new))
    assert titles == [
        "layer enc.3 takes 40 % longer for the same calls (+60.0 µs)",
        "other work in layer enc takes 10 % longer for the same calls (+45.0 µs)",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("on_cpu", [False, True], ids=["gpu", "cpu"])
@pytest.mark.parametrize("seed", range(6))
def test_of_many_factors_none_is_told_twice(seed: int, on_cpu: bool) -> None:
    """`all other work takes 8.8 % less` and `all other work takes 10 % less`; `the backward pass takes 11 % longer`, and again 14 %."""
    rng = random.Random(seed)
    base = training_loop()
    new = [replace(each, ns=round(each.ns * rng.uniform(0.9, 1.6))) for each in base]
    checked(found(base, new, on_cpu=on_cpu))
    checked(found(base, scaled(base, ("aten::gelu", 1.5), ("blocks.2", 1.3), ("", 1.1)), on_cpu=on_cpu))


def test_more_and_fewer_calls_of_one_operator_do_not_contradict_each_other() -> None:
    """`aten::empty runs 43 times per step, not 28` stood above `aten::empty runs 21 times per step, not 48`."""
    types = ('["", "Scalar"]', '["Scalar", ""]', '["", ""]')
    empty = [
        {**MM, "operator": "aten::empty", "name": "empty", "dtypes": each, "shapes": "[[], []]"}
        for each in types
    ]
    base, new = [(900, 1), (10, 28), (20, 48), (5, 10)], [(900, 1), (15, 43), (8, 21), (5, 10)]
    titles = [
        change.title
        for change in work(sides([{**MM, "shapes": "[[8], [8]]"}, *empty], base, new, on_cpu=True))
    ]
    assert titles == [
        "aten::empty runs 74 times per step, not 86 (−12.0 µs)",
        "some calls of aten::empty run 1.5 times as often (+5.00 µs)",
    ]


def test_a_layer_that_is_slower_on_one_rank_is_not_slower_everywhere() -> None:
    """`layer enc.1.attn takes 50 % longer for the same calls` was told of one that took twice as long on one of two ranks."""

    def run(*seconds: int) -> list[Digest]:
        empty = dict.fromkeys(("name", "operator", "shapes", "dtypes", "layer", "type"))
        leaves = [empty | layer for layer in LAYERS]
        return [digest_from(leaves, [[(100 * US, 1), (us * US, 1), (100 * US, 1), (100 * US, 1)]] * 6, rank=rank) for rank, us in enumerate(seconds)]  # fmt: skip

    def title(*seconds: int) -> str:
        (change,) = diff_of(run(*[100] * len(seconds)), run(*seconds)).changes
        return change.title

    start = "layer net.1 takes 50 % longer for the same calls"
    assert title(100, 200) == f"{start}, in the mean of 2 ranks: only rank 1 changed (+50.0 µs)"
    assert (
        title(200, 200, 100, 100) == f"{start}, in the mean of 4 ranks: only ranks 0 and 1 changed (+50.0 µs)"
    )
    assert title(120, 180) == f"{start}, in the mean of 2 ranks, which differ (+50.0 µs)"
    assert title(150, 150) == f"{start} (+50.0 µs)"


def test_more_kernels_of_another_operator_are_not_more_calls() -> None:
    """`aten::batch_norm` ran 159 times on both sides, and "normalisation runs 3 times as often"."""
    phrase = times_as_often(pl.DataFrame({"base_calls": [100.0], "new_calls": [104.0]}), more=True)
    assert phrase == "4.0 % more often", 'was "1 times as often"'
    assert times_as_often(pl.DataFrame({"base_calls": [0.0], "new_calls": [3.0]}), more=True) == "more often"
    base, new = read_sides([[ROOT / "sample_traces" / f"resnet50_gpu_{name}"] for name in ("fp32", "bf16")])
    titles = [one.title for one in diff_of(base.runs[0].digests, new.runs[0].digests).changes]
    assert not any("normalisation" in title and "as often" in title for title in titles), titles
    assert any("do the work of" in title and "normalisation" in title for title in titles), titles
