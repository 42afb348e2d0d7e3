"""The digest of a run: every ns of every step has one leaf, and the bytes give the same back."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
import zstandard
from synthetic import dump, generate

import tracekit
from tests.paths import PUBLIC, ROOT, SAMPLES
from tracekit.analyses.attribution import attribution
from tracekit.analyses.breakdown import breakdown
from tracekit.analyses.idle import idle
from tracekit.analyses.scope import Scope, select
from tracekit.digest import Digest, digest_of
from tracekit.errors import UnreadableTraceError

_SMALL = [path for path in PUBLIC if path.stat().st_size < 2_000_000]


def _exact(scope: Scope, made: Digest) -> None:
    rows = made.values.join(made.leaves, on="leaf")
    sums = rows.group_by("step").agg(pl.col("ns").sum())
    of_steps = made.steps.join(sums, on="step", how="left")
    assert (of_steps["ns"] == of_steps["time_ns"] * made.facts.devices).all()
    if scope.periods:  # what lies between periods is in no step
        return
    assert made.steps["time_ns"].sum() == scope.duration
    parts, devices = (
        dict(rows.group_by(pl.col("kind").cast(pl.String)).agg(pl.col("ns").sum()).rows()),
        breakdown(scope).devices,
    )
    assert parts.get("compute", 0) == devices["compute_ns"].sum()
    assert parts.get("communication", 0) == devices["exposed_communication_ns"].sum()
    assert parts.get("memory", 0) == devices["exposed_memory_ns"].sum()
    causes = rows.filter(pl.col("kind") == "idle").group_by("category").agg(pl.col("ns").sum())
    expected = idle(scope).by_cause.group_by("cause").agg(pl.col("total_ns").sum())
    assert dict(causes.rows()) == {cause: ns for cause, ns in expected.rows() if ns}
    work = rows.filter(pl.col("kind").is_in(["compute", "communication", "memory"]))
    calls = attribution(scope).activities["op_id"] if scope.on_cpu else scope.overlapping["activity_id"]
    assert work["calls"].sum() == calls.n_unique()
    assert work["duration_ns"].sum() == scope.overlapping["duration"].sum()


@pytest.mark.parametrize("path", [*SAMPLES, *_SMALL], ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_ns_of_a_step_has_one_leaf(path: Path) -> None:
    for trace in tracekit.read_all(path):
        scope = select(trace)
        made = digest_of(scope)
        _exact(scope, made)
        again = Digest.unpacked(made.packed())
        assert again.facts == made.facts
        assert again.steps.equals(made.steps)
        assert again.leaves.equals(made.leaves)
        assert again.values.equals(made.values)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert_cpu", "cnn_cpu"])
def test_a_call_of_an_operator_counts_once(name: str) -> None:
    """Each stretch between the operators that it calls counted: `aten::addmm` was called 5 times as often as the trace says."""
    path = ROOT / "sample_traces" / name / "trace.json.gz"
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    begin = min(event["ts"] for event in events if event["name"].startswith("ProfilerStep"))
    ops = [event["name"] for event in events if event.get("cat") == "cpu_op" and event["ts"] >= begin]
    made = digest_of(tracekit.read(path))
    work = made.values.join(made.leaves.filter(pl.col("kind") == "compute"), on="leaf")
    assert dict(work.group_by("operator").agg(pl.col("calls").sum()).rows()) == Counter(ops)


def test_steps_of_one_number_are_told_apart(tmp_path: Path) -> None:
    """As in two recordings in one file: a run of them could not be compared."""
    text = dump(generate(seed=5, steps=3, layers=2), "kineto").decode()
    (tmp_path / "t.json").write_text(text.replace("ProfilerStep#7", "ProfilerStep#6"))
    made = digest_of(tracekit.read(tmp_path / "t.json"))
    assert made.steps["step"].to_list() == [0, 1, 2]
    assert made.steps["name"].to_list() == ["ProfilerStep#5", "ProfilerStep#6", "ProfilerStep#6"]
    assert Digest.unpacked(made.packed()).steps.equals(made.steps)


def test_leaves_are_told_apart_by_their_texts() -> None:
    leaves = digest_of(tracekit.read(SAMPLES[0])).leaves
    assert leaves.drop("leaf").is_unique().all()


def test_bytes_of_a_digest_may_be_anything() -> None:
    data = digest_of(tracekit.read(SAMPLES[0])).packed()
    chance = random.Random(0)
    for _ in range(300):
        hostile = bytearray(data[: chance.choice([len(data), chance.randrange(len(data))])])
        for _ in range(chance.choice([1, 3])):
            at = chance.randrange(len(hostile) + 1)
            hostile[at : at + 1] = bytes([chance.randrange(256)])
        try:
            Digest.unpacked(bytes(hostile))
        except UnreadableTraceError as error:
            assert error.fault.startswith(("not a valid digest", "its digest has version"))  # noqa: PT017


def test_a_digest_that_would_fill_the_memory_is_refused_before_it_is_unpacked() -> None:
    bomb = zstandard.compress(bytes(300 << 20))
    assert len(bomb) < 100_000
    with pytest.raises(UnreadableTraceError, match="more than 256 MiB"):
        Digest.unpacked(bomb)


@pytest.mark.parametrize(("version", "remedy"), [(0, "save it again"), (9, "use a newer tracekit")])
def test_a_digest_of_another_version_is_one_clear_line(version: int, remedy: str) -> None:
    with pytest.raises(UnreadableTraceError, match=f"has version {version}, not 2; {remedy}"):
        Digest.unpacked(zstandard.compress(b'{"version":%d}' % version))
