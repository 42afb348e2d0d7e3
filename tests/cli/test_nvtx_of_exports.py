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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.fixture
def two_processes(tmp_path: Path) -> Path:
    """The first process has ranges of the default domain only, the second of `my lib`, of a domain without a name, and of
    `app`; `idle` is registered and has no range, and `tool` belongs to a process without work on a device."""
    program = Program()
    program.device()
    for pid, domain in ((20, 0), (21, 7), (21, 8), (21, APP)):
        at = 1_000_000 * (pid + domain)
        program.push_pop("outer", at, at + 900_000, tid=MAIN, pid=pid, domain=domain)
        program.call("cudaLaunchKernel", at + 1000, at + 2000, correlation=pid + domain, tid=MAIN, pid=pid)
        program.kernel("gemm", at + 3000, at + 9000, correlation=pid + domain, pid=pid)
    for number, name, pid in ((7, "my lib", 21), (9, "idle", 21), (APP, "app", 21), (3, "tool", 22)):
        program.domain(number, name, 1, tid=MAIN, pid=pid)
    program.push_pop("outer", 100, 900, tid=MAIN, pid=22, domain=3)
    return write_sqlite(program, tmp_path / "t.sqlite")


@pytest.mark.slow
@pytest.mark.parametrize("domain", ["default", "my lib", "#8", "idle", "app", "tool"])
def test_every_domain_of_the_file_is_accepted(
    domain: str, two_processes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = answer(capsys, "layers", two_processes, "--nvtx-domain", domain)["reports"]
    assert paths(first) == ({"outer"} if domain == "default" else set())
    assert paths(second) == ({"outer"} if domain in ("my lib", "#8", "app") else set())


def test_a_wrong_domain_gives_one_line_with_those_of_the_file(
    two_processes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["layers", str(two_processes), "--nvtx-domain", "app", "--nvtx-domain", "nope"])
    out = capsys.readouterr()
    assert (left.value.code, out.out) == (2, "")
    assert out.err.endswith(
        "--nvtx-domain 'nope' is not a domain of the file; its domains are '#8', 'app', 'default', 'idle', 'my lib', 'tool'\n"
    )
    assert out.err.count("\n") == 1
