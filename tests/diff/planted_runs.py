"""Runs made from a sample's digest, with step times and facts of the test's choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import msgspec
from paths import ROOT

import tracekit
from tracekit.diff.runs import Run
from tracekit.digest import Digest, digest_of

CNN = ROOT / "sample_traces" / "cnn_cpu"
BERT = ROOT / "sample_traces" / "bert_cpu"
DDP = ROOT / "sample_traces" / "bert_cpu_ddp"
DAY = 86_400 * 10**9


@cache
def cnn() -> Digest:
    return digest_of(tracekit.read(CNN))


def planted(
    name: str, step_ns: float = 0, *, day: int = 0, noise: Sequence[float] = (1.0,), **facts: object
) -> Run:
    """The sample as a run with steps of about this time, recorded on a day."""
    own = cnn().facts
    times = [round(step_ns * each) for each in noise] if step_ns else own.undisturbed_ns
    at = (own.recorded_utc_ns or 0) + day * DAY
    changed = msgspec.structs.replace(own, **{"undisturbed_ns": tuple(times), "recorded_utc_ns": at, **facts})
    return Run(name, (replace(cnn(), facts=changed),), 10**9 * day)


def written(path: Path, **facts: object) -> Path:
    """The sample as the least that is a report, which is quick to read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    (digest,) = planted("", **facts).digests
    path.write_bytes(msgspec.json.encode({"schema_version": "1.0", "digest": digest.plain()}))
    return path


def same(one: Digest, other: Digest) -> bool:
    frames = ("steps", "leaves", "values")
    return one.facts == other.facts and all(
        getattr(one, name).equals(getattr(other, name)) for name in frames
    )
