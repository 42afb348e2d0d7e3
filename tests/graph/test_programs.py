"""Graphs of planted programs: the path is as long as the window, and predictions are what the program does when it runs again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from graph.programs import (
    KERNELS,
    Run,
    Speeds,
    of_two_ranks,
    random_program,
    simulate,
    simulate_job,
    write,
)

import tracekit
from tracekit.analyses.critical_path import critical_path
from tracekit.analyses.graph.build import dependencies
from tracekit.analyses.graph.joint import joint_graph
from tracekit.analyses.graph.parts import parts_of
from tracekit.analyses.scope import select
from tracekit.analyses.what_if import FasterHost, RemoveSync, Scale, what_if

SEEDS = range(25)


@pytest.mark.quick(8)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("streams", [1, 2])
def test_a_prediction_is_what_the_program_does_when_it_runs_again(
    seed: int, streams: int, tmp_path: Path
) -> None:
    program = random_program(seed, streams)
    run = simulate(program)
    scope = select(tracekit.read(write(run, tmp_path / "t.json")))
    assert scope.duration == run.window
    made = dependencies(scope)
    assert (made.replayed == made.graph.time).all()
    assert critical_path(scope).length_ns == run.window
    assert what_if(scope, [Scale("category:*", 1.0)]).after_ns == run.window
    for name in KERNELS:
        if any(one.name == name and one.what == "launch" for one in program):
            for factor in (0.0, 0.5, 2.0):
                again = simulate(program, Speeds({name: factor}))
                assert what_if(scope, [Scale(f"kernel:{name}", factor)]).after_ns == again.window, (
                    name,
                    factor,
                )
    again = simulate(program, Speeds(host=0.5))
    assert what_if(scope, [FasterHost(2)]).after_ns == again.window
    again = simulate(program, Speeds(waits=False))
    assert what_if(scope, [RemoveSync()]).after_ns == again.window


@pytest.mark.quick(8)
@pytest.mark.parametrize("seed", SEEDS)
def test_two_ranks_are_one_graph_and_a_faster_one_is_foretold(seed: int, tmp_path: Path) -> None:
    programs = of_two_ranks(random_program(seed), seed)
    normal = [Speeds(), Speeds()]
    runs = simulate_job(programs, normal)
    scopes = [
        select(tracekit.read(write(run, tmp_path / f"rank{rank}.json", rank, ahead=5_000_000 * rank)))
        for rank, run in enumerate(runs)
    ]
    window = whole(runs)
    joint = joint_graph(scopes)
    assert (joint.replayed == joint.graph.time).all()
    assert joint.alike == sum(one.what == "reduce" for one in programs[0])
    parts = parts_of(joint)
    assert joint.window == window == critical_path(scopes).length_ns == parts["duration_ns"].sum()
    ends = parts["start"] + parts["duration_ns"]
    assert (parts["start"][1:] == ends[:-1]).all()
    assert what_if(scopes, [Scale("category:*", 1.0)]).after_ns == window
    for rank in (0, 1):
        changed = [*normal]
        changed[rank] = Speeds(dict.fromkeys(KERNELS, 0.5), 0.5)
        faster = whole(simulate_job(programs, changed))
        assert what_if(scopes, [Scale(f"rank:{rank}", 0.5)]).after_ns == faster, rank
    halved = [
        [replace(one, ns=one.ns // 2) if one.what == "reduce" else one for one in each] for each in programs
    ]
    assert what_if(scopes, [Scale("category:communication", 0.5)]).after_ns == whole(
        simulate_job(halved, normal)
    )


def whole(runs: list[Run]) -> int:
    return max(run.end for run in runs) - min(run.steps[0] for run in runs)
