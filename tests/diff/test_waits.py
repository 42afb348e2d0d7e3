"""Calls that wait for the device, and what else the device then waits for: they are named, not what their wait exposes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.diff.programs import Program, mapped, trace_of, training_loop
from tests.rules.planted import US
from tracekit.diff import diff_of
from tracekit.diff.model import Diff
from tracekit.digest import Digest, digest_of

LOADS = 300 * US
PAUSES = "blocks.2.mlp.up"


def host_bound() -> Program:
    """A loop whose kernels are far shorter than their launches."""
    return mapped(training_loop(), lambda work: True, lambda work: replace(work, ns=work.ns // 50))


def waits_for_each_gelu(program: Program) -> Program:
    return mapped(
        program, lambda work: work.operator == "aten::gelu", lambda work: replace(work, waits=2 * US)
    )


def digest(program: Program, seed: int, noise: float = 0.02, **how: Any) -> Digest:
    return digest_of(trace_of(program, seed, on_cpu=False, noise=noise, **{"loads": LOADS, **how}))


def diff(base: Digest, new: Digest) -> Diff:
    found = diff_of([base], [new])
    assert found.rest + sum(change.delta for change in found.changes) == found.change
    return found


def planted(base: Program, new: Program, before: dict[str, Any], after: dict[str, Any]) -> float:
    """By how much a step without noise is longer."""
    return diff(digest(base, 1, 0.0, **before), digest(new, 1, 0.0, **after)).change_ns


@pytest.mark.parametrize("program", [training_loop(), host_bound()], ids=["device", "host"])
@pytest.mark.parametrize("more", [True, False], ids=["added", "removed"])
def test_a_wait_that_exposes_the_loading_of_data_is_no_slower_loader(program: Program, more: bool) -> None:
    """`idle 295 µs longer for data` stood before `one more time per step`, though the loader took as long as before."""
    sides = digest(program, 2, waits=False), digest(program, 3)
    found = diff(*(sides if more else sides[::-1]))
    first, expected = found.changes[0], planted(program, program, {"waits": False}, {})
    assert first.title.startswith(f"cudaStreamSynchronize in aten::item is called one {'more' if more else 'fewer'} time per step; ")  # fmt: skip
    assert first.delta_ns == pytest.approx(expected if more else -expected, rel=0.05)
    assert not any("for data" in change.title for change in found.changes)


def test_a_slower_loader_beside_a_new_wait_is_told_apart() -> None:
    program = training_loop()
    found = diff(digest(program, 2, waits=False), digest(program, 3, loads=LOADS + 200 * US))
    told = {change.place["cause"]: change.delta_ns for change in found.changes if change.kind == "idle"}
    assert told["data_loading"] == pytest.approx(200 * US, rel=0.05)
    expected = planted(program, program, {"waits": False}, {})
    assert told["synchronisation"] == pytest.approx(expected, rel=0.05)


def test_a_slower_loader_is_one_where_no_wait_is_new() -> None:
    program = training_loop()
    first = diff(digest(program, 2), digest(program, 3, loads=LOADS + 200 * US)).changes[0]
    assert first.place["cause"] == "data_loading"
    assert first.delta_ns == pytest.approx(200 * US, rel=0.05)


@pytest.mark.parametrize("more", [True, False], ids=["added", "removed"])
def test_waits_of_a_loop_whose_host_is_late_are_one_change(more: bool) -> None:
    """Six fragments told of six `.item()`, and none that the call is made more often: what it costs is no lost lead alone."""
    program = host_bound()
    waiting = waits_for_each_gelu(program)
    sides = digest(program, 2), digest(waiting, 3)
    first = diff(*(sides if more else sides[::-1])).changes[0]
    expected = planted(program, waiting, {}, {})
    assert first.title.startswith(f"cudaStreamSynchronize is called 16 {'more' if more else 'fewer'} times per step; ")  # fmt: skip
    assert first.delta_ns == pytest.approx(expected if more else -expected, rel=0.05)


def test_what_else_the_host_does_is_not_laid_to_the_wait() -> None:
    program = host_bound()
    slower = mapped(program, lambda work: work.layer == PAUSES, lambda work: replace(work, pause=100 * US))
    found = diff(digest(program, 2), digest(waits_for_each_gelu(slower), 3))
    assert (found.changes[0].place["cause"], found.changes[0].place["layer"]) == ("python", PAUSES)
    assert found.changes[0].delta_ns == pytest.approx(planted(program, slower, {}, {}), rel=0.05)
    told = "cudaStreamSynchronize is called 16 more times per step; "
    assert any(change.title.startswith(told) for change in found.changes)


def test_python_that_one_layer_takes_is_told_of_this_layer() -> None:
    """Nearly all of the change was in one layer, but not of the time before and after, so that no layer was named."""
    program = host_bound()
    slower = mapped(program, lambda work: work.layer == PAUSES, lambda work: replace(work, pause=100 * US))
    first = diff(digest(program, 2), digest(slower, 3)).changes[0]
    assert (first.place["cause"], first.place["layer"]) == ("python", PAUSES)
    assert first.delta_ns == pytest.approx(planted(program, slower, {}, {}), rel=0.05)
