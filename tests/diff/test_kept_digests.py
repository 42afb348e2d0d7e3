"""The digests of a trace are kept, so that a run that is compared again is neither read nor analysed again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from commands import run
from paths import ROOT

from tracekit.diff import sides

SAMPLES = [ROOT / "sample_traces" / name / "trace.json.gz" for name in ("cnn_cpu", "encoder_cpu")]


def test_the_second_comparison_reads_no_trace(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    paths = [shutil.copy(path, tmp_path / f"{path.parent.name}.json.gz") for path in SAMPLES]
    first = run(capfd, "diff", *paths)
    assert first == run(capfd, "diff", *paths, "--no-cache")
    with monkeypatch.context() as patch:
        patch.setattr(sides, "scopes_of", lambda *_args, **_named: pytest.fail("a trace was read"))
        assert run(capfd, "diff", *paths) == first
        assert run(capfd, "diff", paths[0], paths[0])[0] == 0
    other = run(capfd, "diff", *paths, "--window", "trace")
    assert other == run(capfd, "diff", *paths, "--window", "trace", "--no-cache")
    for kept in Path(os.environ["TRACEKIT_CACHE_DIR"]).rglob("answer-*"):
        kept.write_bytes(kept.read_bytes()[:-3])
    assert run(capfd, "diff", *paths) == first


def test_a_manifest_beside_the_trace_is_part_of_the_question(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name, sample in zip("ab", SAMPLES, strict=True):
        (tmp_path / name).mkdir()
        shutil.copy(sample, tmp_path / name / "trace.json.gz")
    run(capfd, "diff", tmp_path / "a", tmp_path / "b")
    for name, sample in zip("ab", SAMPLES, strict=True):
        shutil.copy(sample.parent / "manifest.json", tmp_path / name)
    again = run(capfd, "diff", tmp_path / "a", tmp_path / "b")
    assert again == run(capfd, "diff", tmp_path / "a", tmp_path / "b", "--no-cache")
