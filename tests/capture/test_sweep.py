"""A sweep: its grid, its index, and that no run can spoil it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pretended_runs import OPTIONS, pretend, refuse, saying

from tracekit.capture.plan import Plan
from tracekit.capture.run import run as capture
from tracekit.capture.sweep import Grid, sweep
from tracekit.capture.sweep.grid import folder_of, run_key, series_key
from tracekit.cli.commands.sweep import _time_left
from tracekit.cli.main import main
from tracekit.errors import OutOfMemoryError, UsageError
from tracekit.manifest import CaptureOptions, Settings
from tracekit.sweep_index import SCHEMA, read_index

FEW = ["--size", "8", "--steps", "2", "--levels", "M,MLG"]


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    return int(left.value.code or 0)


# -- the grid ----------------------------------------------------------------------------------------


def plans(grid: Grid, **settings: Any) -> list[Plan]:
    return grid.plans(settings=Settings(**settings), options=OPTIONS, levels=("M",), data=None)


def test_grid_has_each_combination_once_with_batches_ascending() -> None:
    made = plans(
        Grid(workloads=["a", "b"], batch=[4, None, 1, 4], threads=[2, 1], precision=["bf16"]), seed=5
    )
    assert len(made) == 12
    assert [(p.workload, p.settings.threads, p.settings.batch) for p in made[:4]] == [
        ("a", 2, None),
        ("a", 2, 1),
        ("a", 2, 4),
        ("a", 1, None),
    ]
    assert {(p.settings.precision, p.settings.seed) for p in made} == {("bf16", 5)}
    assert len({run_key(p) for p in made}) == len({folder_of(p) for p in made}) == 12
    assert len({series_key(p) for p in made}) == 4


def test_a_repeated_grid_runs_again_after_all_of_it() -> None:
    made = plans(Grid(workloads=["a"], seed=range(7, 9), batch=[4, 1]))
    assert [(p.settings.seed, p.settings.batch) for p in made] == [(7, 1), (7, 4), (8, 1), (8, 4)]
    assert len({run_key(p) for p in made}) == 4
    assert len({series_key(p) for p in made}) == 1  # what one seed has no memory for, another has none for


@pytest.mark.parametrize("change", [{"workload": "b"}, {"levels": ("M", "ML")}, {"data": "/d"}])
def test_key_tells_apart_all_that_was_asked_for(change: dict[str, Any]) -> None:
    plan = Plan(workload="a", levels=("M",))
    assert run_key(plan) == run_key(Plan(workload="a", levels=("M",)))
    assert run_key(plan) != run_key(Plan(**{"workload": "a", "levels": ("M",), **change}))
    assert run_key(plan) != run_key(Plan(workload="a", levels=("M",), options=CaptureOptions(steps=9)))


@pytest.mark.parametrize(
    ("grid", "fault"),
    [
        (Grid(workloads=[]), "no workload"),
        (Grid(workloads=["cnn"], batch=[1, 0]), "batch is 0"),
        (Grid(workloads=["cnn", "cnm"]), "unknown workload"),
    ],
)
def test_wrong_grid_is_refused_before_anything_is_written(grid: Grid, fault: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=fault):
        sweep(grid, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_folder_names_are_plain() -> None:
    name = folder_of(Plan(workload="../some where/my model.py:build"))
    assert name.startswith("my-model.py-build-")
    assert folder_of(Plan(workload="..")).startswith("run-")


# -- real runs ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_own_workload_that_runs_out_of_memory_is_recorded_and_the_sweep_goes_on(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "import os, torch\n"
        "from tracekit.capture.recipe import Recipe\n"
        "def build(options):\n"
        "    def loss(scores, pair):\n"
        "        if options.batch == 2 and os.environ.get('RANK', '1') == '1':\n"
        "            raise RuntimeError('[enforce fail] DefaultCPUAllocator: not enough memory')\n"
        "        return scores.mean()\n"
        "    data = torch.utils.data.TensorDataset(torch.ones(64, 3))\n"
        "    return Recipe(model=torch.nn.Linear(3, 3), dataset=data, forward=lambda m, b: m(b[0]), loss=loss,\n"
        "        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1), batch=options.batch, size=1, task='', synthetic=True)\n",
        "utf-8",
    )
    grid = Grid(workloads=[f"{own}:build"], batch=[1, 2, 4])
    index = sweep(grid, tmp_path / "out", options=OPTIONS, levels=("M",))
    assert index["status"].to_list() == ["done", "out of memory", "skipped"]
    assert "does not fit the memory of cpu; lower --batch" in index["error"][1]
    assert index["error"][2] == "batch 2 is out of memory already"
    with pytest.raises(OutOfMemoryError, match=r"rank 1: a step of .* does not fit the memory") as caught:
        capture(
            f"{own}:build",
            tmp_path / "two",
            settings=Settings(batch=2, ranks=2),
            options=OPTIONS,
            levels=("M",),
        )
    assert caught.value.exit_code == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "ended by SIGTERM")],
)
def test_interruption_leaves_a_whole_index_and_says_how_to_go_on(
    number: int, code: int, said: str, tmp_path: Path
) -> None:
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from tracekit.cli.entry import main; main()"
    )
    arguments = [
        "sweep",
        "cnn",
        "--batch",
        "1,2",
        *FEW[:2],
        "--steps",
        "100000",
        "--levels",
        "M",
        "-o",
        str(tmp_path),
    ]
    process = subprocess.Popen([sys.executable, "-c", program, *arguments], stderr=subprocess.PIPE, text=True)
    while not list(tmp_path.glob("cnn-*")):  # the first run's own process has begun
        assert process.poll() is None
        time.sleep(0.05)
    (child,) = _children(process.pid)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert err.splitlines() == [
        f"{tmp_path / 'index.parquet'} holds 0 runs; the same command continues the sweep",
        f"tracekit: error: {said}",
    ]
    assert read_index(tmp_path).height == 0
    assert not Path(f"/proc/{child}").exists(), "the child was ended, and waited for"


def _children(parent: int) -> list[int]:
    listing = Path(f"/proc/{parent}/task/{parent}/children")
    if not listing.exists():
        pytest.skip("this system does not list the children of a process")
    return [int(word) for word in listing.read_text().split()]


# -- the command -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_command_in_every_format(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    pretend(monkeypatch, {4: refuse, 1: saying("raise ValueError('no')")})
    words = [
        "sweep",
        "cnn",
        "encoder",
        "--batch",
        "1,2,4",
        "--threads",
        "1,2",
        "--levels",
        "M",
        "-o",
        tmp_path,
    ]
    assert run(*words) == 0
    out, err = (stream.decode() for stream in capfdbinary.readouterr())
    assert err.splitlines()[1].startswith("[2/12] cnn threads 1 batch 2: 4.00 ms a step, 500 samples/s; ")
    assert err.splitlines()[2].startswith(
        "[3/12] cnn threads 1 batch 4: out of memory (a step does not fit); "
    )
    assert len(err.splitlines()) == 13
    assert err.endswith("4 runs failed; the same command with --retry tries again\n")
    assert "12 runs: 4 done, 4 out of memory, 4 failed." in out
    assert run(*words, "-f", "json") == 0
    parsed = json.loads(capfdbinary.readouterr().out)
    assert [row["batch"] for row in parsed["runs"]] == [1, 2, 4] * 4
    assert list(parsed["runs"][0]) == list(SCHEMA)
    assert run(*words, "-f", "md") == 0
    table = [line for line in capfdbinary.readouterr().out.decode().splitlines() if line.startswith("|")]
    assert len(table) == 14
    assert run(*words, "-f", "csv") == 0
    assert pl.read_csv(capfdbinary.readouterr().out).height == 12
    assert run(*words, "-f", "parquet") == 0
    assert pl.read_parquet(BytesIO(capfdbinary.readouterr().out)).equals(read_index(tmp_path))


def test_command_says_when_nothing_succeeded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(monkeypatch, {1: refuse})
    assert run("sweep", "cnn", "--batch", "1", "--levels", "M", "-o", tmp_path) == 1
    out, err = capsys.readouterr()
    assert "out of memory" in out
    assert (
        err.splitlines()[-1] == "tracekit: error: no run succeeded; the first error is: a step does not fit"
    )


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--batch", "1,x"], "--batch has the value 'x'; give whole numbers"),
        (["--batch", "1,,2"], "--batch has the value ''"),
        (["--precision", "fp8"], "--precision has the value 'fp8'; choose from fp32"),
        (["--compile", "maybe"], "--compile has the value 'maybe'; use no, yes"),
        (["--levels", "L"], "there is no level 'L'"),
        (["--data", "missing"], "there is no such file or folder"),
    ],
)
def test_wrong_words_are_one_line(
    words: list[str], fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("sweep", "cnn", *words, "-o", tmp_path / "out") == 2
    err = capsys.readouterr().err
    assert fault in err
    assert err.count("\n") == 1


def test_time_left_in_few_digits() -> None:
    assert [_time_left(s) for s in (0.4, 59, 100, 3600, 5400)] == [
        "0 s",
        "59 s",
        "2 min",
        "1 h 0 min",
        "1 h 30 min",
    ]
