"""`tracekit machine` as a command: what it prints and keeps, and how it refuses."""

from __future__ import annotations

import json
import platform
import stat
from pathlib import Path

import msgspec
import pytest
import torch
from planted_machine import machine as planted

from tracekit.capture import machine, machine_memory
from tracekit.capture.device import device_name
from tracekit.capture.machine_memory import Cache
from tracekit.cli.commands.machine import _answer
from tracekit.cli.main import main
from tracekit.machine_file import Machine, machine_path, read_machine, stored_ceilings

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(machine, "_LONGEST", 0.04)
    monkeypatch.setattr(machine, "_SIZES", {"cpu": (32, 64)})
    monkeypatch.setattr(machine, "caches_of", lambda: {"L1": Cache(32 * KIB, 1), "L2": Cache(256 * KIB, 1)})
    monkeypatch.setattr(machine_memory, "_SMALLEST_DRAM", 4 * MIB)
    return tmp_path


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["machine", *words])
    return int(left.value.code or 0)


def test_the_command_measures_prints_and_keeps(quick: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    assert run("--threads", "1") == 0
    assert torch.get_num_threads() == threads
    out, err = capsys.readouterr()
    name = device_name(torch.device("cpu"))
    path = machine_path(name)
    assert f"stored in {path}" in err
    for word in (
        "fp64 products",
        "bf16 products",
        "L2 bandwidth",
        "DRAM bandwidth",
        "GFLOP/s",
    ):
        assert word in out
    assert "L1" in out  # a ceiling, or why there is none
    assert "is bound by the memory" in " ".join(out.split())
    found = stored_ceilings(name, 1)
    assert found is not None
    assert found.peak("fp32")
    text = path.read_text("utf-8")
    assert platform.node() not in text or len(platform.node()) < 4
    assert str(Path.home()) not in text
    assert stat.S_ISREG(path.stat().st_mode)
    assert [each.name for each in path.parent.iterdir()] == [path.name], "no draft is left behind"


def test_a_file_of_ones_own_and_figures_for_a_program(
    quick: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = quick / "sub" / "own.json"
    assert run("--threads", "1", "-o", str(own), "--format", "json") == 0
    rows = json.loads(capsys.readouterr().out)["ceilings"]
    kept = read_machine(own)
    assert [row["best"] for row in rows[:4]] == pytest.approx(
        [one.best / 1e9 for one in kept.rates[0].products]
    )
    assert not machine_path(kept.device_name).exists()


def test_an_answer_says_that_fewer_threads_were_faster() -> None:
    one, two = (
        msgspec.json.decode(planted(name="CPU", threads=threads), type=Machine).rates[0] for threads in (1, 2)
    )
    made = msgspec.json.decode(planted(name="CPU"), type=Machine)
    assert "slowed" not in _answer(msgspec.structs.replace(made, rates=[one, two]))
    slow = msgspec.structs.replace(two, products=[msgspec.structs.replace(two.products[0], best=6e9)])
    said = _answer(msgspec.structs.replace(made, rates=[one, slow]))
    assert "That is less than the 100 GFLOP/s of 1 thread, so other programs probably slowed it." in said


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--threads", "0"], "may use from 1 to"),
        (["--threads", "100000"], "may use from 1 to"),
        (["--threads", "two"], "--threads has the value 'two'"),
        (["--device", "tpu"], "tpu"),
        (["--device", "cuda:99"], "cuda"),
        (["-o", "/dev/null/x.json"], "cannot be written"),
    ],
)
def test_wrong_usage_is_one_line_before_anything_is_measured(
    words: list[str],
    told: str,
    quick: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "_products", lambda *_: pytest.fail("measured"))
    assert run(*words) == 2
    err = capsys.readouterr().err
    assert told in err
    assert err.count("\n") == 1


def test_without_torch_the_command_says_how_to_get_it(
    quick: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find(name))
    assert run() == 2
    err = capsys.readouterr().err
    assert "pip install 'tracekit-torch[capture]'" in err
    assert err.count("\n") == 1
