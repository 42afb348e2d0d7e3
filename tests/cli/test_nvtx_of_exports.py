"""Ranges of Nsight Systems exports: domains, depth and steps, from the file to the command's output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from synthetic.nsys_export import Program, write_parquetdir, write_sqlite

from tracekit.cli.main import main

MAIN = 11
APP, NCCL = 4, 5


def loop() -> Program:
    """Four iterations: a block of the domain `app`, in it a `linear`, around both a collective's range."""
    program = Program()
    program.device()
    program.process("python")
    program.domain(APP, "app", 1, tid=MAIN)
    program.domain(NCCL, "NCCL", 1, tid=MAIN)
    for number in range(4):
        at = 1_000_000 * (number + 1)
        program.push_pop(f"iteration {number}", at, at + 900_000, tid=MAIN)
        program.push_pop("block", at + 10_000, at + 800_000, tid=MAIN, domain=APP)
        program.push_pop("ncclAllReduce", at + 20_000, at + 700_000, tid=MAIN, domain=NCCL)
        program.push_pop("linear", at + 30_000, at + 600_000, tid=MAIN)
        program.call("cudaLaunchKernel_v7000", at + 40_000, at + 50_000, correlation=number + 1, tid=MAIN)
        program.kernel("gemm<float>", at + 60_000, at + 160_000, correlation=number + 1)
    return program


@pytest.fixture(params=["sqlite", "parquetdir"])
def export(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "sqlite":
        return write_sqlite(loop(), tmp_path / "t.sqlite")
    return write_parquetdir(loop(), tmp_path / "t")


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    with pytest.raises(SystemExit) as left:
        main([*map(str, arguments), "-f", "json"])
    out = capsys.readouterr()
    assert (left.value.code or 0, out.err) == (0, "")
    return json.loads(out.out)


def paths(made: Any) -> set[str]:
    tree = made["analyses"]["layers"]["tables"]["tree"]
    return {row["path"] for row in tree if row["source"] == "range"}


@pytest.mark.quick(1)
def test_domains_are_chosen_by_name(export: Path, capsys: pytest.CaptureFixture[str]) -> None:
    everything = paths(answer(capsys, "layers", export))
    # Steps and what libraries name are no layers.
    assert everything == {"block", "block/linear"}
    assert paths(answer(capsys, "layers", export, "--nvtx-domain", "app")) == {"block"}
    assert paths(answer(capsys, "layers", export, "--nvtx-domain", "default", "--nvtx-exclude", "^iter")) == {
        "linear"
    }
    one = answer(
        capsys, "layers", export, "--nvtx-domain", "default", "--nvtx-domain", "app", "--nvtx-depth", "1"
    )
    assert paths(one) == {"block"}
    whole = answer(capsys, "layers", export, "--window", "trace", "--nvtx-depth", "2")
    assert paths(whole) == {f"iteration {n}{tail}" for n in range(4) for tail in ("", "/block")}


@pytest.mark.quick(1)
def test_steps_of_an_export_are_inferred(export: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = answer(capsys, "report", export)
    assert made["window"]["steps_inferred_from"] == "iteration #"
    assert [step["name"] for step in made["window"]["steps"]] == [f"iteration {n}" for n in range(4)]
    assert 'inferred from the range "iteration #"' in made["window"]["label"]
    whole = answer(capsys, "report", export, "--window", "trace")
    assert whole["window"]["steps_inferred_from"] is None
    # What the export lacks names flags of nsys.
    lacks = made["analyses"]["memory"]["not_captured"]
    assert "--cuda-memory-usage=true" in lacks


@pytest.mark.quick(1)
def test_info_tells_what_takes_the_place_of_marks(export: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It said that there were no steps and no layers, where the report had both."""
    made = answer(capsys, "info", export)
    assert (made["steps"], made["steps_inferred"], made["steps_inferred_from"]) == ([], 4, "iteration #")
    with pytest.raises(SystemExit):
        main(["info", str(export)])
    out = capsys.readouterr().out
    assert "steps        none marked; 4 inferred from iteration #\n" in out
    lacking = out.partition("not captured\n")[2]
    assert "  steps " not in lacking
    assert "not marked, but 6 user ranges may count as layers" in lacking
