"""The flags that say which named ranges count as layers, on every command that shows layers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import ok, run

CHOSEN = ["--nvtx-exclude", "^noise", "--nvtx-depth", "2"]


def events() -> Iterator[dict[str, Any]]:
    """model > block > noise > deep, with an operator and a kernel in each."""

    def event(cat: str, name: str, start: int, length: int, **args: Any) -> dict[str, Any]:
        row = {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": length}
        return {**row, "args": args}

    for level, name in enumerate(("model", "block", "noise 3", "deep")):
        yield event("user_annotation", name, level * 100, 1000 - 200 * level)
        at = level * 100 + 10
        yield event("cpu_op", "aten::mm", at, 50)
        yield event("cuda_runtime", "cudaLaunchKernel", at + 5, 5, correlation=level + 1)
        where = {"device": 0, "stream": 7}
        yield {
            **event("kernel", f"gemm_{level}", at + 20, 10, correlation=level + 1, **where),
            "pid": 0,
            "tid": 7,
        }


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": list(events())}))
    return path


@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "command",
    [
        ["report", "-f", "json"],
        ["layers"],
        ["layers", "-f", "collapsed"],
        ["layers", "-f", "csv"],
        ["kernels", "--by", "layer", "-f", "csv"],
        ["idle", "--causes", "-f", "json"],
        ["ops", "-f", "json"],
        ["xsp", "--analysis", "A11", "-f", "csv"],
    ],
    ids=" ".join,
)
@pytest.mark.sampled(4)
def test_every_command_takes_them_and_no_answer_is_of_the_other_question(
    command: list[str], trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *flags = command
    whole = ok(capsys, name, trace, *flags)
    few = ok(capsys, name, trace, *flags, *CHOSEN)
    assert ok(capsys, name, trace, *flags) == whole
    assert ok(capsys, name, trace, *flags, *CHOSEN) == few
    if name != "ops":  # whose table has no layers; its verdict has
        assert "noise" in whole
    assert whole != few
    chosen = few.replace("--nvtx-exclude '^noise'", "")
    assert "noise" not in chosen
    assert "deep" not in chosen or name == "report"  # as a range of the timeline or a table of ranges


def test_export_with_tracks_of_layers(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ok(capsys, "export", trace, "--to", "chrome", "-o", tmp_path / "few.json", *CHOSEN)
    added = [
        e
        for e in json.loads((tmp_path / "few.json").read_text())["traceEvents"]
        if e.get("cat") == "tracekit"
    ]
    names = {event["name"] for event in added if event["ph"] == "X"}
    assert "block" in names
    assert not names & {"noise 3", "deep"}
    code, _, err = run(capsys, "export", trace, "-o", tmp_path / "frames", *CHOSEN)
    assert code == 2
    assert "--to chrome" in err


@pytest.mark.quick(6)
@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        (["--nvtx-include", "("], "--nvtx-include '(' is not a regular expression"),
        (["--nvtx-exclude", "(?=a)"], "--nvtx-exclude '(?=a)' is not a regular expression"),
        (["--nvtx-depth", "0"], "--nvtx-depth"),
        (
            ["--nvtx-domain", "gpu"],
            "--nvtx-domain 'gpu' is not a domain of the file; its domains are 'default'",
        ),
        (["--nvtx-include", "nope"], "the ranges are 'block', 'deep', 'model', 'noise 3'"),
    ],
    ids=str,
)
@pytest.mark.parametrize("command", ["report", "layers", "xsp"])
def test_wrong_usage_is_one_line(
    command: str, flags: list[str], fault: str, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, command, trace, *flags)
    assert (code, out) == (2, "")
    assert fault in err
    assert len(err.strip().splitlines()) == 1
