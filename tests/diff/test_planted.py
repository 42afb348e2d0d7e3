"""Of two runs of which one has a planted change, the diff names that change first and measures it, under noise on every activity."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from tests.diff.programs import BLOCKS, MICRO_BATCHES, Program, Work, mapped, total, trace_of, training_loop
from tests.rules.planted import US
from tracekit.diff import diff_of
from tracekit.diff.idle_told import _of_any_vendor
from tracekit.digest import Digest, digest_of

_BF16 = '["c10::BFloat16", "c10::BFloat16"]'


@dataclass(frozen=True)
class Planted:
    """A program with a change, and what the diff has to say of it first."""

    program: Program
    kind: str
    place: dict[str, str] = field(default_factory=dict)
    after: str | None = None
    delta: int | None = None
    """None: what the programs' work differs by."""


Plant = Callable[[Program, random.Random], Planted]


def _below(layer: str) -> Callable[[Work], bool]:
    return lambda work: work.layer is not None and f"{work.layer}.".startswith(f"{layer}.")


def _scaled(factor: float) -> Callable[[Work], Work]:
    return lambda work: replace(work, ns=round(work.ns * factor))


def slower_layer(program: Program, rng: random.Random) -> Planted:
    layer = f"blocks.{rng.randrange(BLOCKS)}" + rng.choice(["", ".mlp", ".attn.qkv"])
    return Planted(mapped(program, _below(layer), _scaled(1.2)), "slower", {"layer": layer})


def slower_operator(program: Program, _: random.Random) -> Planted:
    made = mapped(program, lambda work: work.operator == "aten::mm", _scaled(1.1))
    return Planted(made, "slower", {"operator": "aten::mm"})


def another_kernel(program: Program, rng: random.Random) -> Planted:
    factor = rng.choice([0.5, 1.4])
    made = mapped(
        program,
        lambda work: work.kernel == "gelu_kernel",
        lambda work: replace(_scaled(factor)(work), kernel="fast_gelu", operator="aten::gelu"),
    )
    return Planted(made, "kernel", {"operator": "aten::gelu"}, "fast_gelu")


def another_operator(program: Program, rng: random.Random) -> Planted:
    """As a program without a device shows another algorithm."""
    factor = rng.choice([0.5, 1.4])
    made = mapped(
        program,
        lambda work: work.operator == "aten::gelu",
        lambda work: replace(_scaled(factor)(work), operator="aten::hardswish"),
    )
    return Planted(made, "kernel", {"type": "GELU"}, "aten::hardswish")


def extra_copy(program: Program, _: random.Random) -> Planted:
    kernel = "Memcpy HtoD (Pageable -> Device)"
    copy = Work(None, "", "aten::_to_copy", kernel, 400 * US, shapes="[[64, 512]]", phase="data")
    return Planted([copy, *program], "added", {"operator": "aten::_to_copy", "phase": "data"})


def same_copy_again(program: Program, _: random.Random) -> Planted:
    copy = next(work for work in program if work.phase == "data")
    return Planted([copy, *program], "more_calls", {"operator": "aten::copy_", "phase": "data"})


def synchronisation(program: Program, rng: random.Random) -> Planted:
    layer = f"blocks.{rng.randrange(BLOCKS)}.attn"
    made = mapped(
        program,
        lambda work: work.layer == layer and work.phase == "forward",
        lambda work: replace(work, waits=200 * US),
    )
    place = {"cause": "synchronisation", "name": "cudaStreamSynchronize", "layer": layer}
    return Planted(made, "idle", place, delta=_undisturbed(made) - _undisturbed(program))


def _undisturbed(program: Program) -> int:
    """ns of a step without noise: after a wait the device also waits until the host has launched again."""
    steps = digest_of(trace_of(program, 1, on_cpu=False, steps=5, noise=0)).steps["time_ns"]
    return int(steps.sum()) // steps.len()


def twice_the_calls(program: Program, _: random.Random) -> Planted:
    made = mapped(program, lambda work: work.operator == "aten::gelu", lambda work: replace(work, calls=2))
    return Planted(made, "more_calls", {"operator": "aten::gelu"})


def another_shape(program: Program, _: random.Random) -> Planted:
    made = mapped(
        program,
        _below("head"),
        lambda work: replace(work, ns=round(1.5 * work.ns), shapes="[[64, 768], [768, 512]]"),
    )
    return Planted(made, "shape", {"layer": "head"})


def another_dtype(program: Program, _: random.Random) -> Planted:
    made = mapped(
        program,
        lambda work: work.type == "Linear",
        lambda work: replace(work, ns=round(0.6 * work.ns), dtypes=_BF16, kernel=f"bf16_{work.kernel}"),
    )
    return Planted(made, "dtype", {"type": "Linear"}, "bf16")


def removed_layer(program: Program, rng: random.Random) -> Planted:
    layer = f"blocks.{rng.randrange(BLOCKS)}" + rng.choice(["", ".mlp", ".norm"])
    return Planted([work for work in program if not _below(layer)(work)], "removed", {"layer": layer})


def added_layer(program: Program, rng: random.Random) -> Planted:
    layer = f"blocks.{rng.randrange(BLOCKS)}"
    made = [
        one
        for work in program
        for one in (
            work,
            *([replace(work, layer=f"{layer}.again")] if work.layer == f"{layer}.mlp.up" else []),
        )
    ]
    return Planted(made, "added", {"layer": f"{layer}.again"})


def renamed_layer(program: Program, rng: random.Random) -> Planted:
    block = f"blocks.{rng.randrange(BLOCKS)}"
    made = mapped(
        program,
        _below(f"{block}.mlp"),
        lambda work: replace(work, layer=str(work.layer).replace(".mlp", ".feed_forward")),
    )
    return Planted(made, "moved", {"layer": f"{block}.feed_forward"}, f"{block}.feed_forward")


ON_CPU: list[Plant] = [
    slower_layer,
    slower_operator,
    another_operator,
    extra_copy,
    same_copy_again,
    twice_the_calls,
    another_shape,
    another_dtype,
    removed_layer,
    added_layer,
    renamed_layer,
]
PLANTS = [
    *(
        (plant, False)
        for plant in (*ON_CPU, another_kernel, synchronisation)
        if plant is not another_operator
    ),
    *((plant, True) for plant in ON_CPU),
]


def _digest(program: Program, seed: int, on_cpu: bool) -> Digest:
    return digest_of(trace_of(program, seed, on_cpu=on_cpu))


def _check(base: Digest, plant: Plant, seed: int, *, on_cpu: bool) -> None:
    program = training_loop()
    planted = plant(program, random.Random(seed))
    new = _digest(planted.program, 2 * seed + 1, on_cpu)
    found = diff_of([base], [new])
    assert found.rest + sum(change.delta for change in found.changes) == found.change
    first = found.changes[0]
    expected = total(planted.program) - total(program) if planted.delta is None else planted.delta
    said = f"{[change.title for change in found.changes[:3]]}, but {expected} ns were planted"
    assert first.kind == planted.kind, said
    assert {key: first.place.get(key) for key in planted.place} == planted.place, said
    assert planted.after is None or first.after == planted.after, said
    assert first.delta_ns == pytest.approx(expected, rel=0.05), said


@pytest.mark.quick(8)
@pytest.mark.parametrize(
    ("plant", "on_cpu"), PLANTS, ids=[f"{p.__name__}-{'cpu' if c else 'gpu'}" for p, c in PLANTS]
)
@pytest.mark.sampled(4)
def test_planted_change_is_named_first_and_measured(plant: Plant, on_cpu: bool) -> None:
    _check(_base(on_cpu), plant, 1, on_cpu=on_cpu)


_BASES: dict[bool, Digest] = {}


def _base(on_cpu: bool) -> Digest:
    if on_cpu not in _BASES:
        _BASES[on_cpu] = _digest(training_loop(), 2, on_cpu)
    return _BASES[on_cpu]


@pytest.mark.slow
@pytest.mark.parametrize("on_cpu", [False, True], ids=["gpu", "cpu"])
def test_planted_changes_of_another_seed(on_cpu: bool) -> None:
    base = _digest(training_loop(), 4, on_cpu)
    assert diff_of([base], [base]).changes == ()
    for plant in [plant for plant, cpu in PLANTS if cpu == on_cpu]:
        _check(base, plant, 2, on_cpu=on_cpu)


@pytest.mark.parametrize("on_cpu", [False, True], ids=["gpu", "cpu"])
def test_nothing_is_found_between_runs_of_one_program(on_cpu: bool) -> None:
    found = diff_of([_base(on_cpu)], [_digest(training_loop(), 77, on_cpu)])
    assert found.changes == ()
    assert found.rest == found.change


@pytest.mark.slow
@pytest.mark.parametrize("more", [True, False], ids=["added", "removed"])
def test_waits_are_named_with_the_time_that_the_host_needs_to_be_ahead_again(more: bool) -> None:
    program, late = training_loop(), 2 * US
    waiting = mapped(
        program, lambda work: work.phase == "forward", lambda work: replace(work, waits=late, ns=work.ns)
    )
    planted = _undisturbed(waiting) - _undisturbed(program)
    sides = [_base(on_cpu=False)], [_digest(waiting, 3, on_cpu=False)]
    first = diff_of(*(sides if more else sides[::-1])).changes[0]
    calls = sum(work.phase == "forward" for work in program) * MICRO_BATCHES
    assert first.title.startswith(
        f"cudaStreamSynchronize is called {calls} {'more' if more else 'fewer'} times per step; the device is idle"
    )
    assert first.delta_ns == pytest.approx(planted if more else -planted, rel=0.05)


def test_what_is_new_in_one_layer_is_told_of_this_layer() -> None:
    """An operator that other layers have too is new in every layer around it as well."""
    program = training_loop()
    gelu = next(work for work in program if work.operator == "aten::gelu")
    again = replace(gelu, layer="blocks.1.attn.out", type="Linear", ns=400 * US)
    found = diff_of([_base(on_cpu=False)], [_digest([*program, again], 5, on_cpu=False)])
    assert found.changes[0].place["layer"] == "blocks.1.attn.out"
    assert "blocks.1.attn.out (Linear) is new" in found.changes[0].title


def test_a_layer_whose_class_has_another_name_is_matched() -> None:
    """Where a profile has no names of layers, their paths are made of their classes."""
    program = training_loop()
    renamed = mapped(
        program,
        lambda work: ".mlp" in str(work.layer),
        lambda work: replace(work, layer=str(work.layer).replace(".mlp.up", ".mlp.Wide"), type="Other"),
    )
    found = diff_of([_base(on_cpu=False)], [_digest(renamed, 5, on_cpu=False)])
    assert [change.title for change in found.changes] == [
        f"layer blocks.{i}.mlp.up is now blocks.{i}.mlp.Wide" for i in range(BLOCKS)
    ]
    assert not found.notes


def test_a_call_of_the_other_vendor_is_the_same_call() -> None:
    """`hipDeviceSynchronize is called one more time per step` stood where the base called cudaDeviceSynchronize as often."""
    assert _of_any_vendor("hipDeviceSynchronize") == _of_any_vendor("cudaDeviceSynchronize")
    assert _of_any_vendor("aten::item") == ["aten::item"]
