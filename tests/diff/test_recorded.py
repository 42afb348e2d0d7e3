"""What only one side recorded is not taken for a change of the program."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import msgspec
import planted_sides
import polars as pl
import pytest
from paths import ROOT

import tracekit
from tests.diff.programs import trace_of, training_loop
from tests.digest.made import digest_from
from tracekit.diff import diff_of
from tracekit.diff.compared import compared
from tracekit.diff.gate import parse_gate
from tracekit.digest import Digest, digest_of
from tracekit.report.diff import diff_section

SHARED = ROOT.parent / "shared" / "traces" / "kineto"
WORK = {"kind": "compute", "category": "gemm", "operator": "aten::mm", "name": "aten::mm", "layer": None, "phase": "forward"}  # fmt: skip


def host(*spent: tuple[str, str, str | None, int], frames: bool, slower: int = 0) -> Digest:
    """Steps of an operator and of host code (cause, phase, layer, µs)."""
    empty = dict.fromkeys(("name", "operator", "shapes", "dtypes", "type", "layer"))
    leaves = [empty | WORK, *(empty | {"kind": "idle", "category": cause, "phase": phase, "layer": layer} for cause, phase, layer, _ in spent)]  # fmt: skip
    amounts = [[(10**7 + 1000 * step, 1), *((1000 * us + slower, 3) for *_, us in spent)] for step in range(9)]  # fmt: skip
    captured = ("ops", *(["stacks", "modules"] if frames else []))
    return digest_from(leaves, amounts, on_cpu=True, captured=captured)


def seen(slower: int = 0) -> Digest:
    return host(
        ("python", "forward", "Net_0", 700),
        ("operator_dispatch", "other", None, 400),
        ("profiler_overhead", "other", None, 100),
        ("data_loading", "data", "<data>", 130),
        frames=True,
        slower=slower,
    )


def test_a_run_without_frames_has_no_false_changes() -> None:
    """`1.12 ms more on Python code in the rest of the step`, `638 µs less … in the forward pass` of one and the same run."""
    unseen = host(("python", "other", None, 1330), frames=False)
    for sides in ((seen(), unseen), (unseen, seen())):
        found = compared(*([[side]] for side in sides))
        assert (found.diff.changes, found.diff.change, found.unchanged) == ((), 0, True)
        assert any(note.endswith("no Python frames, so the host's code outside operators is compared as one.") for note in found.diff.notes)  # fmt: skip


def test_a_change_of_the_host_code_is_told_of_all_of_it() -> None:
    """Its size is right, and nothing says in which part of the step it is."""
    (change,) = diff_of([host(("python", "other", None, 1330), frames=False)], [seen(slower=50_000)]).changes
    assert change.title == "the program spends 200 µs more on host code outside operators"
    assert change.place == {"cause": "host_code"}


def test_a_gate_on_what_frames_tell_is_inconclusive_without_them() -> None:
    unseen, gates = host(("python", "other", None, 1330), frames=False), ("idle:python:3%", "phase:other:3%", "idle:3%")  # fmt: skip
    found = compared([[seen()]], [[unseen]], [parse_gate(gate) for gate in gates])
    assert [each.outcome for each in found.judgements] == ["inconclusive", "inconclusive", "passed"]
    assert "it depends on Python frames, which one side has and the other not." in found.judgements[0].reason


@pytest.mark.slow
@pytest.mark.parametrize("name", ["h100_bert_small", "xdit_flux"])
def test_a_real_trace_is_the_same_without_its_frames(tmp_path: Path, name: str) -> None:
    """One shows modules, the other also ranges, which then were taken for the layers."""
    path = SHARED / f"{name}.json.gz"
    if not path.exists():
        pytest.skip("no shared traces")
    whole = json.loads(gzip.decompress(path.read_bytes()))
    events = [event for event in whole["traceEvents"] if event.get("cat") != "python_function"]
    (tmp_path / "bare.json").write_text(json.dumps({**whole, "traceEvents": events}))
    sides = [digest_of(tracekit.read(each)) for each in (path, tmp_path / "bare.json")]
    for found in (diff_of([sides[0]], [sides[1]]), diff_of([sides[1]], [sides[0]])):
        assert (found.changes, found.change) == ((), 0)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_file_that_lost_the_work_of_its_device_is_no_run_on_processors(lost: int) -> None:
    """`layer Net takes 98 % less time for the same calls` was told of the launches, beside a gate on the layer that passed."""
    base, other = planted_sides.digest(), planted_sides.digest({"encoder.1": 0.1, "idle": 9}, seed=1)
    bare = replace(other, facts=msgspec.structs.replace(other.facts, on_cpu=True, damage=("no_kernel",)))
    sides = (bare, base) if lost == 0 else (base, bare)
    found = compared(*([[side]] for side in sides), [parse_gate("layer:encoder.1:10%")])
    assert found.diff.changes == ()
    assert found.diff.rest == found.diff.change != 0
    assert any(f"missing from the {('base', 'new side')[lost]}, so work cannot be compared" in note for note in found.diff.notes)  # fmt: skip
    assert not any("on processors" in note or "layers" in note for note in found.diff.notes)
    assert found.judgements[0].outcome == "inconclusive"
    assert diff_section(found).points
    assert not compared([[base]], [[replace(bare, steps=base.steps, values=base.values)]]).unchanged


def test_types_that_one_side_did_not_record_qualify_nothing() -> None:
    """`aten::mm of fp32 runs 606 kernels per window, not 0`: the base had ten, of types that it does not tell."""
    base, new = (digest_of(trace_of(training_loop(), seed, on_cpu=True)) for seed in (1, 2))
    none = [pl.lit(None, pl.String).alias(name) for name in ("shapes", "dtypes")]
    twice = [pl.col(name) * pl.when(pl.col("leaf") % 2 == 0).then(2).otherwise(1) for name in ("calls",)]
    found = diff_of(
        [replace(base, leaves=base.leaves.with_columns(none))],
        [replace(new, values=new.values.with_columns(twice))],
    )
    assert not any("fp32" in change.title or "inputs of" in change.title for change in found.changes)
    assert not any({"shapes", "dtypes"} & set(change.place) for change in found.changes)
    only_types = replace(base, leaves=base.leaves.with_columns(none[1]))
    assert diff_of([only_types], [base]).changes == ()


@pytest.mark.parametrize("part", [0.55, 0.8])
def test_the_step_that_the_end_of_a_file_cuts_does_not_count(tmp_path: Path, part: float) -> None:
    """It was compared as a whole one: `all work runs less often, but takes longer`. The whole file is the truth."""
    text = gzip.decompress((ROOT / "sample_traces" / "cnn_cpu" / "trace.json.gz").read_bytes())
    path = tmp_path / "cut.json"
    path.write_bytes(text[: int(part * len(text))])
    whole, cut = digest_of(tracekit.read("sample_traces/cnn_cpu/trace.json.gz")), digest_of(tracekit.read(path))  # fmt: skip
    assert 0 < cut.steps.height < whole.steps.height
    counts = [_calls(each).filter(pl.col("step").is_in(cut.steps["step"].implode())) for each in (whole, cut)]
    assert counts[0].equals(counts[1])
    assert any(note.endswith("The step that its end cuts does not count.") for note in diff_of([whole], [cut]).notes)  # fmt: skip


def _calls(one: Digest) -> pl.DataFrame:
    """How many operators each step runs."""
    work = one.values.join(one.leaves.filter(pl.col("kind") == "compute"), on="leaf", how="semi")
    return work.group_by("step").agg(pl.col("calls").sum()).sort("step")
