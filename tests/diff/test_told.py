"""What the sentences of a diff say of calls, shapes and layers, against the programs that were planted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import planted_sides
import polars as pl
import pytest

from tests.diff.programs import (
    BLOCKS,
    MICRO_BATCHES,
    Program,
    Work,
    mapped,
    times_per_step,
    total,
    trace_of,
    training_loop,
)
from tests.diff.ranges import ranges
from tests.digest.made import digest_from
from tests.rules.planted import US
from tracekit.diff import diff_of
from tracekit.diff.model import Diff
from tracekit.digest import digest_of

WIDE = "[[64, 512], [512, 2048]]"


def without_layers() -> Program:
    """As a profile shows the loop if Python's stack was not recorded."""
    return mapped(training_loop(), lambda _: True, lambda work: replace(work, layer=None, type=""))


def found(base: Program, new: Program, *, on_cpu: bool, noise: float = 0.01) -> Diff:
    sides = (
        digest_of(trace_of(each, seed, on_cpu=on_cpu, noise=noise)) for seed, each in ((2, base), (3, new))
    )
    return diff_of(*([side] for side in sides))


def calls(program: Program, operator: str) -> int:
    return sum(times_per_step(work) for work in program if work.operator == operator)


def nth(program: Program, operator: str, number: int) -> Work:
    return [work for work in program if work.operator == operator][number]


def changed(program: Program, wanted: Work, change: Callable[[Work], Work]) -> Program:
    return mapped(program, lambda work: work is wanted, change)


def widened(work: Work) -> Work:
    return replace(work, shapes=WIDE, ns=4 * work.ns)


@pytest.mark.slow
@pytest.mark.parametrize("on_cpu", [False, True], ids=["gpu", "cpu"])
def test_a_wider_layer_is_no_new_operator_where_no_layers_are_known(on_cpu: bool) -> None:
    """`aten::mm is new` and `aten::mm runs 9 times per step, not 12` were told of one layer that became wider."""
    products = [work for work in without_layers() if work.operator == "aten::addmm"]
    base = mapped(without_layers(), lambda work: work in products, lambda work: replace(work, ns=300 * US))
    new = changed(base, nth(base, "aten::addmm", 2), widened)
    diff = found(base, new, on_cpu=on_cpu)
    (first,) = diff.changes
    assert first.kind == "shape"
    what = "calls" if on_cpu else "kernels"
    one, every = (
        calls([work for work in new if work.shapes == WIDE], "aten::addmm"),
        calls(new, "aten::addmm"),
    )
    assert first.title.startswith(
        f"{one} of {every} {what} of aten::addmm per step have inputs of other shapes: input 2 is 512 × 2048, not 512 × 512 (+"
    )
    assert (first.before, first.after) == ("[[64, 512], [512, 512]]", WIDE)
    assert (first.base_calls, first.new_calls) == (one, one)
    assert first.delta_ns == pytest.approx(total(new) - total(base), rel=0.05)
    assert diff.rest + sum(change.delta for change in diff.changes) == diff.change


def test_more_calls_with_other_shapes_are_the_same_work_with_other_shapes() -> None:
    """Half the batch, twice as often."""
    base = without_layers()
    new = mapped(
        base,
        lambda work: work.operator == "aten::gelu",
        lambda work: replace(work, shapes="[[32, 512], [512, 512]]", calls=2),
    )
    (first,) = found(base, new, on_cpu=True).changes
    assert (first.kind, first.base_calls, first.new_calls) == (
        "shape",
        calls(base, "aten::gelu"),
        calls(new, "aten::gelu"),
    )


def test_shapes_that_were_not_recorded_are_not_told() -> None:
    base = without_layers()
    sides = [
        digest_of(trace_of(changed(base, nth(base, "aten::addmm", 2), each), 2, on_cpu=True))
        for each in (replace, widened)
    ]
    bare = [
        replace(one, leaves=one.leaves.with_columns(pl.lit(None, pl.String).alias("shapes"))) for one in sides
    ]
    for pair in ((sides[0], bare[1]), (bare[0], sides[1]), bare):
        assert not any(change.kind == "shape" for change in diff_of(*([side] for side in pair)).changes)


@pytest.mark.slow
@pytest.mark.parametrize("on_cpu", [False, True], ids=["gpu", "cpu"])
def test_a_block_is_not_blamed_for_wider_layers_in_it(on_cpu: bool) -> None:
    """`layer Block_2 has inputs of different shapes` stood where its norm kept its own, without the shapes."""
    wide = ("blocks.1.mlp.up", "blocks.1.mlp.down")
    base = mapped(
        training_loop(), lambda work: work.layer in wide, lambda work: replace(work, ns=100 * work.ns)
    )
    new = mapped(
        base, lambda work: work.layer in wide, lambda work: replace(work, ns=2 * work.ns, shapes=WIDE)
    )
    told = [change for change in found(base, new, on_cpu=on_cpu).changes if change.kind == "shape"]
    assert {change.place["layer"] for change in told} == set(wide)
    for change in told:
        assert change.title.startswith(
            f"layer {change.place['layer']} (Linear) has inputs of other shapes: in"
        )
        assert "input 2 is 512 × 2048, not 512 × 512" in change.title


@pytest.mark.slow
@pytest.mark.parametrize("on_cpu", [False, True], ids=["gpu", "cpu"])
def test_what_other_calls_of_an_operator_do_is_told_with_their_shapes(on_cpu: bool) -> None:
    """`aten::addmm is new` where the base called it as well, with other inputs."""
    base, shapes = without_layers(), "[[8, 8], [8, 8]]"
    again = replace(nth(base, "aten::addmm", 0), shapes=shapes)
    (first,) = found(base, [*base, again], on_cpu=on_cpu).changes
    runs = f"{calls([again], 'aten::addmm')} {'times' if on_cpu else 'kernels'} per step"
    assert first.title.startswith(f"aten::addmm with inputs of 8 × 8 and 8 × 8 is new: it runs {runs} (+")
    (gone,) = found([*base, again], base, on_cpu=on_cpu).changes
    assert gone.title.startswith(f"aten::addmm with inputs of 8 × 8 and 8 × 8 is gone: it ran {runs} (−")


def test_an_optimizer_that_runs_twice_has_no_number_of_calls() -> None:
    """`the optimizer runs 2,704 times per step, not 1,352` counted all operators, also those that only call others."""
    names = ("aten::mul_", "aten::addcmul_", "aten::sqrt", "aten::addcdiv_")
    update = [Work(None, "", name, name, 200 * US, phase="optimizer") for name in names]
    base = [*(work for work in training_loop() if work.phase != "optimizer"), *update]
    first = found(base, [*base, *update], on_cpu=True).changes[0]
    assert first.kind == "more_calls"
    assert first.title.startswith("the optimizer runs twice as often (+")


@pytest.mark.slow
@pytest.mark.parametrize("on_cpu", [False, True], ids=["gpu", "cpu"])
def test_updates_in_another_implementation_are_one_change(on_cpu: bool) -> None:
    """`inputs of aten::mul_ are Scalar, not fp64`, and six operators that were gone or new, stood for foreach=True."""

    def update(*operators: tuple[str, int, int]) -> Program:
        own = [Work(None, "", name, name, ns * US, calls=n, phase="optimizer") for name, ns, n in operators]
        return [*(work for work in training_loop() if work.phase != "optimizer"), *own]

    each = update(("aten::mul_", 30, 8), ("aten::addcmul_", 40, 8), ("aten::sqrt", 20, 8), ("aten::addcdiv_", 35, 8))  # fmt: skip
    plain = update(("aten::add_", 30, 8))
    whole = update(("aten::_fused_adamw_", 400, 1))
    both = update(("aten::_foreach_mul_", 40, 1), ("aten::sqrt", 20, 8), ("aten::_foreach_addcdiv_", 50, 1))
    more = update(("aten::add_", 30, 8), ("aten::sqrt", 20, 8), ("aten::mul_", 90, 8))
    all_of_each = "aten::addcmul_, aten::addcdiv_ and 2 other operators"

    def around(program: Program) -> int:  # a device has gaps between kernels
        own = [work for work in program if work.phase == "optimizer"]
        return sum(2 * US * (1 + work.calls) if on_cpu else US * work.calls for work in own)

    for base, new, says in (
        (each, whole, f"the optimizer runs aten::_fused_adamw_ in place of {all_of_each}"),
        (whole, each, f"the optimizer runs {all_of_each} in place of aten::_fused_adamw_"),
        (each, both, "the optimizer runs aten::_foreach_addcdiv_ and aten::_foreach_mul_ in place of aten::addcmul_, aten::addcdiv_ and aten::mul_"),
        (plain, more, "the optimizer also runs aten::mul_ and aten::sqrt"),
        (more, plain, "the optimizer no longer runs aten::mul_ and aten::sqrt"),
    ):  # fmt: skip
        first = found(base, new, on_cpu=on_cpu).changes[0]
        assert (first.kind, first.title.partition(" (")[0]) == ("kernel", says)
        change = total(new) + around(new) - total(base) - around(base)
        assert first.delta_ns == pytest.approx(change, rel=0.05)


def test_types_of_layers_are_not_told_where_layers_are_not_compared() -> None:
    """`layers of type Linear are gone` stood beside the note that the new side has no layers."""
    one = planted_sides.digest()
    bare = replace(
        one,
        leaves=one.leaves.with_columns(pl.lit(None, pl.String).alias(name) for name in ("layer", "type")),
        layers=one.layers.clear(),
    )
    half = planted_sides.digest({"head": 3, "encoder.1": 3}, seed=1)
    for base, new in ((half, bare), (bare, half)):
        diff = diff_of([base], [new])
        assert any(note.endswith("has no layers, so these are not compared.") for note in diff.notes)
        assert not any(
            "layer" in change.title or {"layer", "type"} & set(change.place) for change in diff.changes
        )
        assert diff.by["type"]["type"].to_list() == [None]
    assert msgspec.structs.asdict(one.facts) == msgspec.structs.asdict(bare.facts)


@pytest.mark.slow
@pytest.mark.parametrize("layers", [1, 4])
def test_layers_that_do_more_than_before_are_not_said_to_be_only_on_one_side(layers: int) -> None:
    """`most of layers of type MLP are only on the new side` was told of a copy in one of them."""
    own = [Work(f"blocks.{i}.mlp", "MLP", "aten::view", "view", US) for i in range(4)]
    base = [*training_loop(), *own]
    copies = [replace(own[i], operator="aten::copy_", kernel="copy", ns=200 * US) for i in range(layers)]
    checks = [replace(own[i], operator="aten::clamp", kernel="clamp", ns=20 * US) for i in range(layers)]
    new = [*base, *copies, *checks]
    where = "layer blocks.0.mlp (MLP) does" if layers == 1 else "layers of type MLP do"
    for sides, side in (((base, new), "on the new side"), ((new, base), "in the base")):
        first = found(*sides, on_cpu=True).changes[0]
        assert first.title.startswith(f"{where} work that is only {side}, mostly aten::copy_ (")
        assert abs(first.delta_ns) == pytest.approx(total(new) - total(base), rel=0.05)


@pytest.mark.slow
def test_two_programs_without_common_work_both_have_work() -> None:
    """`all work is only in the base` was told of a new side with other work."""
    other = Work(None, "", "aten::other", "other kernel", US // 5, "[[7]]", calls=150)
    for sides, side, there in (
        ((without_layers(), [other]), "in the base", "on the new side"),
        (([other], without_layers()), "on the new side", "in the base"),
    ):
        titles = [change.title for change in found(*sides, on_cpu=False).changes]
        assert any(title.startswith(f"the work {side} has no counterpart {there} (") for title in titles)


def test_calls_of_other_types_are_not_counted_with_those_that_are_gone() -> None:
    """Of one operator `runs 0.1 times as often` and `runs 31 times per step, not 7` were told, since casts took the place of copies."""
    copy = Work(None, "", "aten::copy_", "copy", 200 * US, "[[8, 9], [8, 9]]", '["float", "float"]')
    cast = replace(copy, dtypes='["c10::BFloat16", "float"]')
    few, many, casts = (replace(one, calls=calls) for one, calls in ((copy, 1), (copy, 3), (cast, 4)))
    base, new = ([*without_layers(), *works] for works in ([many], [few, casts]))
    inputs = "aten::copy_ with inputs of 8 × 9 and 8 × 9"
    starts = [
        f"{inputs} of bf16 and fp32 is new: it runs {times_per_step(casts)} times per step (+",
        f"{inputs} of fp32 runs {times_per_step(few)} times per step, not {times_per_step(many)} (−",
    ]
    titles = [change.title for change in found(base, new, on_cpu=True).changes if "aten::copy_" in change.title]  # fmt: skip
    assert all(title.startswith(start) for title, start in zip(titles, starts, strict=True))


@pytest.mark.slow
def test_one_call_reads_as_a_sentence() -> None:
    """`it runs 1 time per step, not 2`."""
    step = Work(None, "", "aten::_foreach_mul_", "foreach", 50 * US, "[[8]]", phase="optimizer")
    base = [*without_layers(), replace(step, calls=2)]
    titles = [found(base, [*without_layers(), *more], on_cpu=True).changes[0].title for more in ([], [step])]
    assert titles[0].startswith("aten::_foreach_mul_ is gone: it ran 2 times per step (−")
    assert titles[1].startswith("aten::_foreach_mul_ runs once per step, not 2 times (−")


@pytest.mark.slow
def test_what_other_changes_left_is_not_all_work() -> None:
    """`all work takes 12 % less time (−84.8 µs)` was told of a step that went from 20.3 to 14.1 ms: most ran in another precision."""
    base = training_loop()
    products = {work.operator for work in base if work.type == "Linear"}

    def faster(work: Work) -> Work:
        ns = work.ns * 8 // 10
        if work.operator in products:
            return replace(work, ns=ns // 2, dtypes='["c10::BFloat16", "c10::BFloat16"]')
        return replace(work, ns=ns)

    titles = [
        change.title for change in found(base, mapped(base, lambda _: True, faster), on_cpu=True).changes
    ]
    assert titles[0].startswith("inputs of ")
    assert any(
        title.startswith("all other work takes 20 % less time for the same calls (−") for title in titles
    )
    every = mapped(base, lambda _: True, lambda work: replace(work, ns=work.ns * 8 // 10))
    (title,) = (change.title for change in found(base, every, on_cpu=True).changes if change.kind != "idle")
    assert title.startswith("all work takes 20 % less time for the same calls (−")


def fused(program: Program, into: Callable[[Work], Work]) -> Program:
    """Attention of three operators, and with one in their place (of the first one's time), forward and backward."""
    new = []
    for work in program:
        first = work.operator.startswith("aten::_flash_attention")
        names = {"aten::bmm": 12, "aten::softmax": 9, "aten::matmul": 10} if first else {}
        parts = [replace(work, operator=name + "_backward" * (work.phase == "backward"), kernel=f"kernel of {name}", ns=work.ns * tenths // 10) for name, tenths in names.items()]  # fmt: skip
        new += [into(each) for each in (parts or [work])]
    return [each for each in new if each.ns]


@pytest.mark.slow
@pytest.mark.parametrize("untyped", [False, True])
def test_a_fused_operator_in_place_of_several_is_one_change(*, untyped: bool) -> None:
    """`attention is new (+701 µs)` and `aten::bmm is gone (−600 µs)` stood where attention took 716 µs less."""
    base = fused(training_loop(), lambda work: work)

    def into(work: Work) -> Work:
        mine = work.operator.removesuffix("_backward") in ("aten::bmm", "aten::softmax", "aten::matmul")
        if mine and "bmm" not in work.operator:
            return replace(work, ns=0)
        flash = f"flash_attention{'_backward' * (work.phase == 'backward')}"
        return replace(work, operator=flash, kernel=flash, shapes="[[64, 8]]") if mine else work

    new = fused(training_loop(), into)
    sides = [digest_of(trace_of(each, seed, on_cpu=False, noise=0.01)) for seed, each in ((2, base), (3, new))]  # fmt: skip
    diff = diff_of(*([ranges(side) if untyped else side] for side in sides))
    first = diff.changes[0]
    where = f"{BLOCKS} layers" + ("" if untyped else " of type Attention")
    before = "aten::bmm, aten::matmul and aten::softmax"
    assert first.title.startswith(f"flash_attention replaces {before} in {where} (−")
    assert (first.kind, first.before, first.after) == ("kernel", before, "flash_attention")
    assert first.delta_ns == pytest.approx(total(new) - total(base), rel=0.05)
    assert not {"added", "removed"} & {change.kind for change in diff.changes}
    assert diff.rest + sum(change.delta for change in diff.changes) == diff.change


def test_a_small_operator_that_is_gone_is_not_replaced_by_a_new_one() -> None:
    """Beside most of a layer's work, which stays."""
    block = [
        Work("net", "Net", "aten::conv2d", "conv", 900 * US),
        Work("net", "Net", "aten::native_dropout", "dropout", 60 * US),
    ]
    new = [block[0], Work("net", "Net", "aten::topk", "topk", 500 * US)]
    diff = found(block, new, on_cpu=False)
    told = {change.kind: change.title for change in diff.changes if change.kind != "idle"}
    assert told.keys() == {"added", "removed"}
    assert "topk" in told["added"]
    assert "dropout" in told["removed"]


@pytest.mark.slow
@pytest.mark.parametrize("added", [True, False])
def test_idle_time_of_calls_that_came_or_went_is_told_with_them(*, added: bool) -> None:
    """In a loop that the host holds up `the device is idle 24.8 µs less for operator dispatch` stood above `layer … is gone (−5.98 µs)`."""
    base = mapped(training_loop(), lambda _: True, lambda work: replace(work, ns=US))
    more = Work("blocks.1.extra", "Norm", "aten::group_norm", "group_norm", US)
    new = [*base[:20], more, *base[20:]]
    sides = (base, new) if added else (new, base)
    diff = found(*sides, on_cpu=False)
    first = diff.changes[0]
    sign = 1 if added else -1
    what = f"layer blocks.1.extra (Norm) is {'new' if added else 'gone'} ({'+' if added else '−'}"
    assert first.title.startswith(what)
    assert ", of which " in first.title
    assert first.title.endswith(" is idle time)")
    assert first.delta_ns == pytest.approx(
        sign * MICRO_BATCHES * 19 * US, rel=0.3
    )  # dispatch, calls, the layer's own code
    assert first.delta_ns == pytest.approx(first.new_ns - first.base_ns)
    assert first.delta_ns == pytest.approx(diff.change_ns, rel=0.1)
    assert diff.rest + sum(change.delta for change in diff.changes) == diff.change


@pytest.mark.parametrize("on_cpu", [False, True], ids=["gpu", "cpu"])
def test_another_optimizer_is_one_change_with_the_time_around_it(on_cpu: bool) -> None:
    """Of SGD to Adam Python's time in the optimizer was told first, and each operator by itself: both run `mul_` and `add_`."""

    def updated(pause: int, *operators: tuple[str, int]) -> Program:
        own = [
            Work(None, "", name, name, ns * US, phase="optimizer", pause=pause * US) for name, ns in operators
        ]
        return [*(work for work in training_loop() if work.phase != "optimizer"), *own]

    sgd = updated(0, ("aten::mul_", 300), ("aten::add_", 300))
    adam = updated(60, ("aten::mul_", 350), ("aten::add_", 350), ("aten::lerp_", 150), ("aten::sqrt", 150))
    pauses = 4 * 60 * US if on_cpu else 0  # a device is busy meanwhile
    for sides, sign in (((sgd, adam), 1), ((adam, sgd), -1)):
        diff = found(*sides, on_cpu=on_cpu)
        first, *others = diff.changes
        also = "also" if sign > 0 else "no longer"
        assert first.title.startswith(f"the optimizer {also} runs aten::sqrt and aten::lerp_ (") or first.title.startswith(f"the optimizer {also} runs aten::lerp_ and aten::sqrt (")  # fmt: skip
        assert first.delta_ns == pytest.approx(sign * (total(adam) - total(sgd) + pauses), rel=0.05)
        assert not any(change.place.get("phase") == "optimizer" for change in others)
        assert diff.rest + sum(change.delta for change in diff.changes) == diff.change


def _sides(*leaves: dict[str, str | None], amounts: tuple[Sequence[tuple[int, int]], Sequence[tuple[int, int]]]) -> Diff:  # fmt: skip
    """Steps on processors with these leaves on both sides; of 0 calls a side has nothing."""
    empty = dict.fromkeys(("name", "operator", "shapes", "dtypes", "layer", "type"))
    there = ([at for at, (_, calls) in enumerate(own) if calls] for own in amounts)
    sides = (digest_from([empty | leaves[at] for at in mine], [[own[at] for at in mine]] * 6, on_cpu=True) for mine, own in zip(there, amounts, strict=True))  # fmt: skip
    return diff_of(*([side] for side in sides))


FORWARD = {"kind": "compute", "category": "gemm", "operator": "aten::mm", "name": "aten::mm", "phase": "forward"}  # fmt: skip


def test_clipping_of_gradients_is_not_called_the_optimizer() -> None:
    """`the optimizer in the rest of the step is new` was told of an optimizer that did not change."""
    foreach = [{"kind": "compute", "category": "optimizer", "operator": f"aten::_foreach_{name}", "name": name, "phase": phase} for name, phase in (("add_", "optimizer"), ("norm", "other"), ("mul_", "other"))]  # fmt: skip
    (change,) = _sides(
        {**FORWARD, "phase": "other"},
        *foreach,
        amounts=([(10**7, 1), (10**6, 1), (0, 0), (0, 0)], [(10**7, 1), (10**6, 1), (10**5, 1), (10**5, 1)]),
    ).changes
    assert change.title == "work on many tensors at once in the rest of the step is new (+200 µs)"


def test_operators_in_place_of_others_are_those_that_take_longest() -> None:
    """Those first in the alphabet were named, whatever they did."""
    names = {"aten::a": 1, "aten::b": 2, "aten::c": 9, "aten::d": 8, "aten::e": 7}
    before = [{**FORWARD, "layer": "net", "operator": name, "name": name, "category": name[-1]} for name in names]  # fmt: skip
    diff = _sides(
        *before,
        {**FORWARD, "layer": "net", "operator": "fused", "name": "fused", "category": "fused"},
        amounts=(
            [*((ms * 10**6, 1) for ms in names.values()), (0, 0)],
            [*((0, 0) for _ in names), (2 * 10**7, 1)],
        ),
    )
    assert diff.changes[0].title.startswith(
        "fused replaces aten::c, aten::d, aten::e and 2 more in layer net (−7"
    )


def test_loading_is_waited_for_and_its_place_is_told_once() -> None:
    """`the program spends 568 µs more on data outside operators`; `in loading and copying of data in loading and copying of data`."""
    loading = {"phase": "data", "layer": "<data>"}
    waiting, stacked = (
        {"kind": "idle", "category": "data_loading", **loading},
        {**FORWARD, **loading, "category": "copy"},
    )
    diff = _sides(
        {**FORWARD, "layer": "net"}, waiting, {**stacked, "operator": "aten::stack"}, {**stacked, "operator": "aten::cat", "name": "aten::cat"},
        amounts=([(10**7, 1), (10**5, 1), (10**6, 1), (0, 0)], [(10**7, 1), (9 * 10**5, 1), (0, 0), (3 * 10**5, 1)]),
    )  # fmt: skip
    titles = [change.title for change in diff.changes]
    assert "the program waits 800 µs longer for data" in titles
    assert all(title.count("loading and copying of data") <= 1 for title in titles)
    assert any("loading and copying of data" in title for title in titles)
