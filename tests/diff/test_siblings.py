"""Layers whose names are only numbers: one more or less shifts the numbers of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import polars as pl
import pytest

from tests.diff.programs import BLOCKS, Program, Work, mapped, total, trace_of, training_loop
from tests.diff.ranges import ranges
from tests.rules.planted import US
from tracekit.diff import diff_of
from tracekit.diff.model import Diff
from tracekit.diff.siblings import in_order
from tracekit.digest import digest_of

NARROW, WIDE, TALL = "[[64, 512], [512, 512]]", "[[64, 512], [512, 2048]]", "[[64, 2048], [2048, 512]]"
Layer = tuple[str, str, int]
"""Its type, the shapes of its inputs, and how long it takes."""
MLP = [("Linear", WIDE, 350 * US), ("GELU", WIDE, 90 * US), ("Linear", TALL, 340 * US)]


def program(blocks: Sequence[Sequence[Layer]], name: Callable[[int, int, str, int], str]) -> Program:
    """Forward and backward through blocks of layers, which are called by block, place in it, type, and number of the type."""
    met, forward = Counter[str](), []
    for block, layers in enumerate(blocks):
        for place, (kind, shapes, ns) in enumerate(layers):
            operator = {"Linear": "aten::addmm", "GELU": "aten::gelu", "Tanh": "aten::tanh"}[kind]
            at = name(block, place, kind, met[kind])
            forward.append(Work(at, kind, operator, f"kernel of {operator}", ns, shapes))
            met[kind] += 1
    backward = [replace(one, operator=f"{one.operator}_backward", kernel=f"{one.kernel}, backward", phase="backward") for one in reversed(forward)]  # fmt: skip
    rest = [work for work in training_loop() if work.layer is None]
    return [*rest, *forward, *backward]


def of_classes(block: int, place: int, kind: str, number: int) -> str:
    """As PyTorch's profiler calls the modules in Python's stack."""
    return f"Net_0.Block_{block}.{kind}_{number}"


def of_containers(block: int, place: int, kind: str, number: int) -> str:
    return f"blocks.{block}.{place}"


def found(base: Program, new: Program) -> Diff:
    sides = (digest_of(trace_of(each, seed, on_cpu=True, noise=0.01)) for seed, each in ((2, base), (3, new)))
    return diff_of(*([side] for side in sides))


def work_of(diff: Diff) -> list[str]:
    """What is told of work: a layer has code outside operators, too."""
    return [change.title for change in diff.changes if change.kind != "idle"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "at"), [(of_classes, "Net_0.Block_1.Linear_3"), (of_containers, "blocks.1.1")]
)
@pytest.mark.parametrize("more", [True, False])
def test_one_layer_more_does_not_make_the_next_ones_others(
    name: Callable[[int, int, str, int], str], at: str, more: bool
) -> None:
    """`layer Linear_5 has inputs of other shapes` was told of every Linear behind the new one."""
    extra = ("Linear", NARROW, 300 * US)
    base, new = (program([MLP, each, MLP], name) for each in (MLP, [MLP[0], extra, *MLP[1:]]))
    diff = found(*((base, new) if more else (new, base)))
    assert len(work_of(diff)) == 1
    change = diff.changes[0]
    assert change.title.startswith(f"layer {at} (Linear) is {'new' if more else 'gone'} (")
    assert abs(change.delta_ns) == pytest.approx(total(new) - total(base), rel=0.05)


def test_a_layer_of_another_type_shifts_the_others_as_well() -> None:
    base, new = (program([MLP, each, MLP], of_containers) for each in (MLP, [("Tanh", WIDE, 200 * US), *MLP]))
    assert [title.partition(" (+")[0] for title in work_of(found(base, new))] == [
        "layer blocks.1.0 (Tanh) is new"
    ]


def test_the_last_of_equal_blocks_is_gone() -> None:
    base, new = (program([MLP] * blocks, of_classes) for blocks in (4, 3))
    (title,) = work_of(found(base, new))
    assert title.startswith("layer Net_0.Block_3 is gone (−")


def test_layers_that_a_new_layer_holds_moved_into_it() -> None:
    """A block was taken for the layer that now holds all blocks, and its own layers for gone and new ones."""
    base, new = (
        [
            work
            for i in range(2)
            for work in (
                Work(f"Net_0.{body}Block_{i}", "Block", "aten::add", "add", 60 * US),
                Work(f"Net_0.{body}Block_{i}.Linear_{i}", "Linear", "aten::addmm", "gemm", 300 * US),
            )
        ]
        for body in ("", "Body_0.")
    )
    new.append(Work("Net_0.Body_0", "Body", "aten::view", "view", US))
    titles = [f"layer Net_0.Block_{i} is now Net_0.Body_0.Block_{i}" for i in range(2)]
    assert [title for title in work_of(found(base, new)) if "aten::view" not in title] == titles


def test_rows_are_matched_without_crossings() -> None:
    alike = [[0.6, 0.6, 0.0], [0.6, 0.9, 0.0], [0.0, 0.0, 0.6]]
    assert in_order(range(3), range(3), lambda i, j: alike[i][j], 9) == [(0, 0), (1, 1), (2, 2)]
    assert in_order([1], range(2), lambda i, j: alike[i][j], 9) == [(1, 1)]
    assert in_order(range(300), range(300), lambda i, j: 0.6 * (i != j), 89_999) is None


def compiled(work: Work) -> Work:
    """As compiled code runs it: in no layer of a block, and products get the place of their result."""
    block = str(work.layer)[: len("blocks.0")]
    if not block.startswith("blocks"):
        return work
    inside = replace(work, layer=block, type="Block")
    if work.operator != "aten::mm":
        return inside
    return replace(inside, shapes=WITH_RESULT, dtypes='["float", "float", "float"]')


WITH_RESULT = "[[64, 512], [512, 512], [64, 512]]"


@pytest.mark.slow
@pytest.mark.parametrize("on_cpu", [False, True], ids=["gpu", "cpu"])
@pytest.mark.parametrize("longer", [False, True])
def test_layers_that_one_side_does_not_show_are_compared_as_a_whole(on_cpu: bool, longer: bool) -> None:
    """Of compiled code, `aten::mm is gone` in each layer, and `new` in the block around it, with "other shapes"."""
    base = [replace(work, operator=work.operator.replace("addmm", "mm")) for work in training_loop()]
    base = [*base, *(Work(f"blocks.{i}", "Block", "aten::add", "add", 20 * US) for i in range(BLOCKS))]
    slower = mapped(
        base,
        lambda work: work.layer == "blocks.1.mlp.up" and work.phase == "forward",
        lambda work: replace(work, ns=2 * work.ns),
    )
    new = [compiled(work) for work in slower]
    sides, name = ((base, new), "new side") if longer else ((new, base), "base")
    made = (digest_of(trace_of(each, seed, on_cpu=on_cpu, noise=0.01)) for seed, each in enumerate(sides))
    diff = diff_of(*([side] for side in made))
    first = diff.changes[0]
    assert first.kind == ("slower" if longer else "faster")
    assert (first.place["layer"], first.place["operator"]) == ("blocks.1", "aten::mm")
    assert abs(first.delta_ns) == pytest.approx(total(new) - total(base), rel=0.05)
    assert len(work_of(diff)) == 1
    told = f"The {name} shows no layers inside {BLOCKS} layers, as compiled code does not, so they are compared as a whole."
    assert told in diff.notes


def fused(work: Work) -> Work:
    """As code runs that a compiler fused: no operator is one of those before."""
    if work.layer is None:
        return work
    inside = replace(work, layer="Net_0", type="Net", ns=round(0.8 * work.ns))
    return replace(
        inside, operator=f"triton_{work.operator[6:]}", kernel=f"triton_{work.kernel}", shapes="[[64]]"
    )


@pytest.mark.parametrize("wrapped", [False, True])
def test_layers_whose_work_is_all_fused_are_compared_as_a_whole(wrapped: bool) -> None:
    """Of such code one layer was gone for each type, all of them called that of the model, and the layer around them had new work."""
    base = [*program([MLP] * 2, of_classes), Work("Net_0", "Net", "aten::add", "add", 20 * US)]
    new = [fused(work) for work in base]
    if wrapped:
        new = mapped(new, lambda work: work.layer is not None, lambda work: replace(work, layer=f"OptimizedModule_0.{work.layer}"))  # fmt: skip
    made = (
        digest_of(trace_of(each, seed, on_cpu=False, noise=0.01)) for seed, each in enumerate((base, new))
    )
    diff = diff_of(*([side] for side in made))
    at = "OptimizedModule_0.Net_0" if wrapped else "Net_0"
    work = [change for change in diff.changes if change.kind != "idle"]
    assert {change.place["layer"] for change in work} == {at}
    assert sum(change.delta_ns for change in work) == pytest.approx(total(new) - total(base), rel=0.05)
    assert f"The new side shows no layers inside layer {at}, as compiled code does not, so it is compared as a whole." in diff.notes  # fmt: skip
    assert not any("different programs" in note for note in diff.notes)


def test_a_layer_that_lost_those_inside_and_does_nothing_new_is_no_whole() -> None:
    outer = Work("Net_0", "Net", "aten::add", "add", 200 * US)
    base = [outer, *program([MLP], of_classes)]
    diff = found(base, [work for work in base if work.layer in (None, "Net_0")])
    assert work_of(diff)[0].startswith("layer Net_0.Block_0 is gone")
    assert not any("as a whole" in note for note in diff.notes)


def test_layers_of_a_type_that_are_gone_keep_their_type() -> None:
    """They were called by the type of the layer around them, if that is not the outermost."""
    base = [
        replace(work, layer=f"All_0.{work.layer}") if work.layer else work
        for work in program([[("Linear", WIDE, 350 * US), ("Tanh", WIDE, 90 * US), *MLP]] * 3, of_classes)
    ]
    base.append(Work("All_0.Head_0", "Head", "aten::add", "add", 200 * US))
    diff = found(base, [work for work in base if work.type != "Tanh"])
    first = next(change for change in diff.changes if change.kind == "removed")
    assert first.title.startswith("layers of type Tanh are gone")
    assert first.place["type"] == "Tanh"


def test_layers_are_no_whole_where_nothing_tells_what_they_do() -> None:
    """Without operators, two programs with a range of one name were compared so."""
    sides = (
        digest_of(trace_of([*map(how, training_loop())], 2, on_cpu=False)) for how in (replace, compiled)
    )
    bare = pl.lit(None, pl.String).alias("operator")
    diff = diff_of(*([replace(side, leaves=side.leaves.with_columns(bare))] for side in sides))
    assert not any("as a whole" in note for note in diff.notes)


def test_a_wrapper_that_compiles_is_no_layer_of_its_own() -> None:
    """`These look like different models` was said of one model, since a module beside it has no wrapper."""
    loss = Work("CrossEntropyLoss_0", "CrossEntropyLoss", "aten::_log_softmax", "softmax", 50 * US)
    base = [*program([MLP] * 2, lambda block, place, kind, number: f"Net_0.{kind}_{number}"), loss]
    new = mapped(
        base,
        lambda work: "Net_0" in str(work.layer),
        lambda work: replace(work, layer=f"OptimizedModule_0.{work.layer}"),
    )
    diff = found(base, new)
    assert work_of(diff) == []
    assert not any("different" in note for note in diff.notes)


# -- layers without a type --------------------------------------------------------------------------


def of_ranges(names: dict[str, str], slower: str = "") -> Diff:
    """The training loop against itself with some of its ranges elsewhere, and one of them (by its old name) 20 % slower."""
    base = training_loop()
    new = mapped(
        base,
        lambda work: bool(slower) and f"{work.layer}.".startswith(slower),
        lambda work: replace(work, ns=work.ns * 6 // 5),
    )
    sides = [digest_of(trace_of(each, seed, on_cpu=False, noise=0.01)) for seed, each in ((2, base), (3, new))]  # fmt: skip
    below = {name: f"net.{name}" for name in ("body", "blocks", "head")}
    return diff_of([ranges(sides[0], below)], [ranges(sides[1], {**names, **below})])


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"(blocks)": "body.blocks"}, "layer net/blocks is now net/body/blocks"),
        ({r"blocks\.1\.mlp": "blocks.1.attn.mlp"}, "layer net/blocks/1/mlp is now net/blocks/1/attn/mlp"),
        (
            {r"blocks\.1\.attn": "blocks.1.inner.attn"},
            "layer net/blocks/1/attn is now net/blocks/1/inner/attn",
        ),
    ],
)
@pytest.mark.slow
def test_a_range_that_moved_or_got_one_more_around_it_is_no_new_one(names: dict[str, str], said: str) -> None:
    """All layers were new and gone, and `These look like different programs` was told of one range more."""
    diff = of_ranges(names)
    assert [change.title for change in diff.changes if change.sure] == [said]
    assert not any("different programs" in note for note in diff.notes)
    assert not {"added", "removed"} & {change.kind for change in diff.changes}


@pytest.mark.slow
def test_what_is_slower_in_a_range_that_moved_is_named() -> None:
    diff = of_ranges({"(blocks)": "body.blocks"}, "blocks.1.attn.")
    first, second = (change for change in diff.changes if change.sure)
    assert first.title.startswith("layer net/body/blocks/1/attn takes 20 % longer for the same calls (+")
    assert second.title == "layer net/blocks is now net/body/blocks"


@pytest.mark.slow
def test_each_of_several_inner_ranges_is_that_of_its_block() -> None:
    """In every block `attn` stands one deeper now."""
    diff = of_ranges({rf"blocks\.{n}\.attn": f"blocks.{n}.inner.attn" for n in range(BLOCKS)}, "blocks.2.attn.")  # fmt: skip
    first, *moved = (change for change in diff.changes if change.sure)
    assert first.title.startswith("layer net/blocks/2/inner/attn takes 20 % longer for the same calls (+")
    assert {change.title for change in moved} == {f"layer net/blocks/{n}/attn is now net/blocks/{n}/inner/attn" for n in range(BLOCKS)}  # fmt: skip
