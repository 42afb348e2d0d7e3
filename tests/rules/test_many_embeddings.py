from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from manifests import manifest
from planted import A100, MS, US, Planted, finding

from tracekit.findings import Finding
from tracekit.manifest import Run

TABLES = 26


def on_processors(
    tables: int,
    *,
    each: int = 50 * US,
    between: str = "",
    rest: int = MS,
    backward: bool = False,
    shapes: str | None = None,
) -> Planted:
    """Lookups one after the other, with `between` after each, then other work; with `backward`, a node for each lookup."""
    made, at = Planted(), 0

    def op(name: str, ns: int, **columns: Any) -> None:
        nonlocal at
        made.span("op", name, at, at + ns, **columns)
        at += ns

    for number in range(tables):
        made.span("op", "aten::_embedding_bag", at + US, at + each - US, sequence=number)
        op("aten::embedding_bag", each, sequence=number, shapes=shapes)
        if between:
            op(between, 10 * US, sequence=100 + number)
    op("aten::addmm", rest, sequence=1000)
    for number in reversed(range(tables if backward else 0)):
        node = {"sequence": number, "forward_thread": 1}
        made.span("op", "EmbeddingBagBackward0", at, at + 30 * US, **node)
        op("aten::_embedding_bag_backward", 30 * US)
    return made


def found(made: Planted, *, device: bool = False) -> Finding | None:
    return finding(made.trace(devices=(A100,) if device else ()), "ops", "many_embeddings")


def test_fires_on_many_lookups_in_a_row() -> None:
    one = found(on_processors(TABLES))
    assert one is not None
    assert one.ns_at_stake == 50 * US * (TABLES - 1)
    assert one.title == "26 consecutive embedding lookups take 56.5 % of the time"
    assert "26 calls of aten::embedding_bag, up to 26 in a row, take 1.30 ms." in one.evidence
    assert "one EmbeddingBag" in one.advice
    assert "fbgemm" not in one.advice


def test_the_backward_pass_counts() -> None:
    one = found(on_processors(TABLES, backward=True))
    assert one is not None
    assert one.ns_at_stake == 80 * US * (TABLES - 1)
    assert one.title.startswith("26 consecutive embedding lookups with their backward pass take ")
    assert "backward pass and the update" in one.advice


def on_device() -> Planted:
    made, free = Planted(), 0
    for number in range(TABLES):
        at = number * 50 * US
        made.span("op", "aten::embedding", at, at + 50 * US, sequence=number)
        free = max(free, at + 40 * US)
        made.activity("indexSelectLargeIndex", free, 10 * US, launch=at + 35 * US, call_ns=4 * US)
        free += 10 * US
    made.span("op", "aten::mm", TABLES * 50 * US, TABLES * 50 * US + 10 * US, sequence=99)
    made.activity("gemm", TABLES * 50 * US + 5 * US, MS, launch=TABLES * 50 * US, call_ns=US)
    return made


def test_with_a_device_kernels_and_the_idle_time_that_lookups_cause_count() -> None:
    one = found(on_device(), device=True)
    assert one is not None
    kernels, idle = TABLES * 10 * US, (TABLES - 1) * 40 * US
    assert one.ns_at_stake == int((kernels + idle) * (1 - 1 / TABLES))
    assert "The device waits 1.00 ms for them." in one.evidence
    assert "fbgemm_gpu" in one.advice


def test_idle_time_that_the_recording_adds_is_not_at_stake() -> None:
    """A batched lookup of DLRM was to save 11.6 ms of steps that take 24.6 ms in all, since what recording adds was among it."""
    made = on_device()
    window, busy = TABLES * 50 * US + 5 * US + MS, TABLES * 10 * US + MS
    made.step(1, 0, window)
    trace = made.trace()
    one = finding(trace, "ops", "many_embeddings")
    plain = busy + 300 * US
    runs = [
        Run(level="M", step_times_ns=[plain]),
        Run(level="MLG", step_times_ns=[window], trace="planted.json"),
    ]
    less = finding(dataclasses.replace(trace, manifest=manifest(runs=runs)), "ops", "many_embeddings")
    assert one is not None
    assert less is not None
    assert "of the recorded time" in less.title
    assert "of the recorded time" not in one.title
    kernels, real = (TABLES - 1) * 10 * US, (plain - busy) / (window - busy)
    waits = (one.ns_at_stake or 0) - kernels
    assert waits > 900 * US
    assert less.ns_at_stake == pytest.approx(kernels + waits * real, rel=1e-3)


def test_shapes_tell_how_much_a_lookup_reads() -> None:
    """On a busy machine a small call may take long."""
    assert found(on_processors(TABLES, each=400 * US, shapes="[[1000, 16], [32], [32]]")) is not None
    assert found(on_processors(TABLES, each=400 * US, shapes="[[1000, 128], [64, 64], [64]]")) is None
    assert found(on_processors(TABLES, each=400 * US, shapes="[[1000], [32]]")) is None


def test_silent_on_few_tables_long_lookups_and_loops_over_tokens() -> None:
    assert found(on_processors(7)) is None
    assert found(on_processors(TABLES, each=400 * US)) is None
    assert found(on_processors(TABLES, between="aten::linear")) is None
    assert found(on_processors(TABLES, rest=100 * MS)) is None
