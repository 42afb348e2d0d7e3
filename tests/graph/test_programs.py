"""Graphs of planted programs: the path is as long as the window, and predictions are what the program does when it runs again."""

from __future__ import annotations

from pathlib import Path

import pytest
from graph.programs import KERNELS, Speeds, random_program, simulate, write

import tracekit
from tracekit.analyses.critical_path import critical_path
from tracekit.analyses.graph.build import dependencies
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
