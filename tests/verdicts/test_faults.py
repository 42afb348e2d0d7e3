"""Runs with one planted fault each: the first advice names it, and its time is what was planted. Healthy runs get no warning."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest
from faults import FAULTS, Fault
from runs import (
    Accumulating,
    Compiled,
    Distributed,
    Inference,
    Run,
    Serving,
    Training,
    Varying,
    Workers,
    run_of,
    step_ns,
)

from tracekit.report.build import build_report
from tracekit.report.model import Report


@dataclass(frozen=True)
class Variant:
    """A fault of one size, in a run of one kind; with or without Python stacks; with noise of a seed, or none."""

    fault: Fault
    base: type
    share: float
    stacks: bool
    seed: int | None


def variants() -> list[Any]:
    """Of each fault its usual form, and those that differ from it in one respect; the usual ones come first."""
    rows = [
        (
            number,
            pytest.param(
                Variant(fault, base, share, stacks, seed),
                id=f"{name}, {base.__name__}, {share:.0%}, {'' if stacks else 'no '}stacks, seed {seed}",
            ),
        )
        for name, fault in FAULTS.items()
        for number, (share, base, stacks, seed) in enumerate(
            (share, base, stacks, None if number == 0 else 10 * number + len(name))
            for number, (share, base, stacks) in enumerate(
                (share, base, stacks)
                for share in fault.shares
                for base in fault.bases
                for stacks in fault.stacks
                if (share != fault.shares[0]) + (base is not fault.bases[0]) + (stacks != fault.stacks[0]) < 2
            )
        )
    ]
    return [param for _, param in sorted(rows, key=lambda row: row[0])]


def report(variant: Variant, *, marked: bool = True) -> tuple[Report, Run]:
    """The report of the run with this fault, with or without marks of its steps."""
    usual = step_ns(variant.base)
    parts = variant.fault.make(round(usual * variant.share / (1 - variant.share)), variant.share)
    methods = {name: part for name, part in parts.items() if callable(part)}
    network: Any = type("Faulty", (variant.base,), methods)(
        **{name: part for name, part in parts.items() if not callable(part)}
    )
    network.usual = usual
    run = run_of(network, variant.seed)
    if not marked:
        run.host = [row for row in run.host if row["kind"] != "step"]
    return build_report(run.recorded(stacks=variant.stacks)), run


@pytest.mark.quick(6)
@pytest.mark.parametrize("variant", variants())
@pytest.mark.sampled(12)
def test_the_planted_fault_is_first(variant: Variant) -> None:
    made, run = report(variant)
    verdict = made.verdict
    first = verdict.advice[0]
    said = f"{first.title}: {first.advice} | {verdict.headline}"
    assert re.search(variant.fault.says, said), said
    if variant.fault.timed:
        # Three slow steps beside three others, each with a pace of its own: two standard deviations are a fifth of a step.
        noise = 0.2 * step_ns(variant.base) if variant.fault.compares and variant.seed is not None else 0
        # To record more saves nothing, so the text says how long nothing was recorded.
        stake = first.ns_at_stake or next(cost.ns for cost in verdict.costs if "waiting" in cost.label)
        assert stake == pytest.approx(run.planted, rel=0.05, abs=noise), said


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if not fault.needs_steps])
@pytest.mark.sampled(4)
def test_without_marked_steps_it_is_first_too(name: str) -> None:
    """The window is another one then, and so is the time in it."""
    fault = FAULTS[name]
    made, _ = report(
        Variant(fault, fault.bases[-1], fault.shares[0], fault.stacks[0], len(name)), marked=False
    )
    first = made.verdict.advice[0]
    said = f"{first.title}: {first.advice} | {made.verdict.headline}"
    assert re.search(fault.says, said), said


def test_there_are_many_kinds() -> None:
    assert len(FAULTS) >= 25


HEALTHY = [
    *((base, {"layers": layers}) for base in (Training, Inference, Serving) for layers in (4, 12)),
    *((base, {"layers": 8}) for base in (Compiled, Distributed, Workers, Accumulating, Varying)),
]


@pytest.mark.quick(6)
@pytest.mark.parametrize("stacks", [True, False])
@pytest.mark.parametrize("seed", [7, None])
@pytest.mark.parametrize(("base", "fields"), HEALTHY)
@pytest.mark.sampled(8)
def test_a_healthy_run_gets_no_warning(
    base: type, fields: dict[str, Any], seed: int | None, stacks: bool
) -> None:
    made = build_report(run_of(base(**fields), seed).recorded(stacks=stacks))
    assert made.verdict.bound == "compute-bound"
    assert [f.id for section in made.sections for f in section.findings if f.severity != "info"] == []
    assert not [advice.title for advice in made.verdict.advice if advice.ns_at_stake]
