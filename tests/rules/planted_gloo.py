"""Planted steps on processors, whose ranks talk through gloo."""

from __future__ import annotations

from planted import MS, US, Planted, finding

from tracekit.findings import Finding

STEP = 20 * MS


def gloo(
    made: Planted, at: int, took: int, elements: int, *, thread: int = 2, name: str = "all_reduce"
) -> None:
    """A call of the backend for processors."""
    made.span(
        "annotation", f"gloo:{name}", at, at + took, thread, shapes=f"[[{elements}]]", dtypes='["float"]'
    )


def steps_of(calls: list[tuple[str, int, int, str]], *, ddp: bool = False, count: int = 6) -> Planted:
    """Steps of 20 ms, each with forward, backward, the calls (name, elements, ns, type) one after another, each queued by an operator of
    its own, and an update. With `ddp`, the calls are those of its reducer, in the backward pass.
    """
    made = Planted()
    for number in range(count):
        at = number * STEP
        made.step(number, at, at + STEP)
        if ddp:
            made.span("annotation", "DistributedDataParallel.forward", at, at + MS)
        made.span("op", "aten::linear", at, at + MS, sequence=number)
        begin = at + 2 * MS
        made.span("op", "AddmmBackward0", at + MS, begin, sequence=number, forward_thread=1)
        for name, elements, took, dtype in calls:
            shapes = f"[[[{elements}]], []]"
            if ddp:
                made.span("op", "torch::autograd::AccumulateGrad", begin, begin + 9 * US, forward_thread=1)
            made.span("op", f"c10d::{name.replace('_', '')}_", begin, begin + 8 * US, shapes=shapes)
            begin += 10 * US
            made.span(
                "annotation",
                f"gloo:{name}",
                begin,
                begin + took,
                2,
                shapes=f"[[{elements}]]",
                dtypes=f'["{dtype}"]',
            )
            begin += took
        made.span("annotation", "Optimizer.step#SGD.step", at + 19 * MS, at + 19 * MS + 100 * US)
        made.span("op", "aten::add_", at + 19 * MS, at + 19 * MS + 100 * US)
    return made


def on_processors(made: Planted, rule: str, analysis: str = "breakdown") -> Finding | None:
    return finding(made.trace(devices=()), analysis, rule)
