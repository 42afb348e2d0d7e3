"""A sweep: its grid, its index, and that no run can spoil it."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tracekit.analyses.statistics import trimmed_mean
from tracekit.capture import sweep_process
from tracekit.capture.plan import Plan
from tracekit.capture.run import run as capture
from tracekit.capture.sweep import Grid, Progress, sweep
from tracekit.capture.sweep_grid import folder_of, run_key, series_key
from tracekit.cli.main import main
from tracekit.cli.sweep import _time_left
from tracekit.errors import OutOfMemoryError, UnreadableTraceError, UsageError
from tracekit.manifest import CaptureOptions, Manifest, Run, Settings, read_manifest
from tracekit.sweep_index import SCHEMA, index_of, read_index

FEW = ["--size", "8", "--steps", "2", "--levels", "M,MLG"]
OPTIONS = CaptureOptions(steps=2, warmup=1)
Command = Callable[[Plan, Path, Path], list[str]]


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    return int(left.value.code or 0)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep over three batches, as the command line makes it."""
    folder = tmp_path_factory.mktemp("sweep")
    assert run("sweep", "cnn", "--batch", "4,1,2", *FEW, "-o", folder) == 0
    return folder


# -- children that only pretend ----------------------------------------------------------------------


def python(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-S", "-c", code, *map(str, arguments)]


def succeed(plan: Plan, folder: Path, result: Path) -> list[str]:
    """A process that is done at once; its steps take 1 ms a sample and 2 ms on top."""
    batch = plan.settings.batch or 1
    folder.mkdir(exist_ok=True)
    times = [(batch + 2) * 1_000_000] * plan.options.steps
    manifest = Manifest(
        tracekit_version="0",
        workload=plan.workload,
        settings=plan.settings,
        options=plan.options,
        config={},
        parameters=7,
        layers=1,
        samples_per_step=batch,
        device="cpu",
        device_name="a processor",
        platform="",
        cpu_threads=1,
        versions={},
        layer_ranges="plain",
        runs=[Run(level="M", step_times_ns=times)],
    )
    (folder / "manifest.json").write_bytes(manifest.to_json())
    return python("import sys; open(sys.argv[1], 'w').write('{\"status\": \"done\"}')", result)


def refuse(_plan: Plan, _folder: Path, result: Path) -> list[str]:
    told = json.dumps({"status": "out of memory", "error": "a step does not fit"})
    return python("import sys; open(sys.argv[1], 'w').write(sys.argv[2])", result, told)


def saying(code: str) -> Command:
    return lambda _plan, _folder, _result: python(code)


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[int | None, Command]], list[int | None]]:
    """Runs of these batches start these processes, all others succeed; the list fills with the batches that started."""

    def replace(by_batch: dict[int | None, Command]) -> list[int | None]:
        started: list[int | None] = []

        def command(plan: Plan, folder: Path, result: Path) -> list[str]:
            started.append(plan.settings.batch)
            return by_batch.get(plan.settings.batch, succeed)(plan, folder, result)

        monkeypatch.setattr(sweep_process, "command", command)
        return started

    return replace


def swept(folder: Path, *batches: int | None, **others: Any) -> dict[int | None, dict[str, Any]]:
    """The rows of a sweep over these batches, by batch."""
    grid = Grid(workloads=["cnn"], batch=batches)
    rows = sweep(grid, folder, options=OPTIONS, levels=("M",), **others)
    return {row["batch"]: row for row in rows.iter_rows(named=True)}


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


def test_index_says_what_the_manifests_say(real: Path) -> None:
    index = read_index(real)
    assert dict(index.schema) == SCHEMA
    assert index["batch"].to_list() == [1, 2, 4]
    assert set(index["status"]) == {"done"}
    for row in index.iter_rows(named=True):
        manifest = read_manifest(real / row["folder"] / "manifest.json")
        times = manifest.step_times_ns("M")
        assert len(times) == 2
        assert row["step_min_ns"] == min(times)
        assert row["step_median_ns"] == row["step_trimmed_mean_ns"] == sum(times) / 2
        assert row["throughput_per_s"] == pytest.approx(row["batch"] * 2e9 / sum(times), rel=1e-12)
        assert row["profiling_overhead"] == manifest.overhead("MLG")
        assert (row["samples_per_step"], row["parameters"]) == (row["batch"], manifest.parameters)
        assert (row["size"], row["levels"], row["steps"], row["error"]) == (8, "M,MLG", 2, None)
        assert row["seconds"] > sum(times) / 1e9
        assert row["folder"] == folder_of(
            Plan(
                workload="cnn",
                settings=Settings(batch=row["batch"], size=8),
                options=OPTIONS,
                levels=("M", "MLG"),
            )
        )
    assert sorted(path.name for path in real.iterdir()) == sorted([*index["folder"], "index.parquet"])


def test_resuming_runs_nothing_again(real: Path, children: Any, capsys: pytest.CaptureFixture[str]) -> None:
    before = read_index(real)
    started = children({})
    assert run("sweep", "cnn", "--batch", "1,2,4", *FEW, "-o", real, "-f", "csv", "--retry") == 0
    out, err = capsys.readouterr()
    assert (started, err) == ([], "")
    assert pl.read_csv(out.encode())["key"].to_list() == before["key"].to_list()
    assert read_index(real).equals(before)


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


def test_ctrl_c_leaves_a_whole_index_and_says_how_to_go_on(tmp_path: Path) -> None:
    code = (
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
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], stderr=subprocess.PIPE, text=True)
    while not list(tmp_path.glob("cnn-*")):  # the first run's own process has begun
        assert process.poll() is None
        time.sleep(0.05)
    (child,) = _children(process.pid)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.splitlines() == [
        f"{tmp_path / 'index.parquet'} holds 0 runs; the same command goes on from there",
        "tracekit: error: interrupted",
    ]
    assert read_index(tmp_path).height == 0
    assert not Path(f"/proc/{child}").exists(), "the child was ended, and waited for"


def _children(parent: int) -> list[int]:
    listing = Path(f"/proc/{parent}/task/{parent}/children")
    if not listing.exists():
        pytest.skip("this system does not list the children of a process")
    return [int(word) for word in listing.read_text().split()]


# -- pretended runs ----------------------------------------------------------------------------------


def test_changed_setting_adds_rows(children: Any, tmp_path: Path) -> None:
    started = children({})
    swept(tmp_path, 1, 2)
    swept(tmp_path, 1, 2, settings=Settings(threads=2))
    swept(tmp_path, 2, 8)
    assert started == [1, 2, 1, 2, 8]
    assert read_index(tmp_path).height == 5
    assert read_index(tmp_path)["throughput_per_s"].to_list() == [1000 / 3, 500.0, 1000 / 3, 500.0, 800.0]


def test_larger_batches_of_the_same_settings_are_skipped(children: Any, tmp_path: Path) -> None:
    started = children({4: refuse})
    rows = swept(tmp_path, None, 1, 4, 8, 16)
    assert started == [None, 1, 4]
    assert [row["status"] for row in rows.values()] == ["done", "done", "out of memory", "skipped", "skipped"]
    assert rows[4]["error"] == "a step does not fit"
    assert rows[16]["error"] == "batch 4 is out of memory already"
    assert (rows[16]["folder"], rows[16]["seconds"], rows[4]["throughput_per_s"]) == (None, None, None)
    other = swept(tmp_path, 8, settings=Settings(seed=3))
    assert other[8]["status"] == "done", "another seed is another matter"


def test_retry_runs_again_what_did_not_succeed(children: Any, tmp_path: Path) -> None:
    children({2: refuse, 1: saying("raise ValueError('no')")})
    swept(tmp_path, 1, 2, 4)
    started = children({})
    assert [row["status"] for row in swept(tmp_path, 1, 2, 4).values()] == [
        "failed",
        "out of memory",
        "skipped",
    ]
    assert started == []
    assert {row["status"] for row in swept(tmp_path, 1, 2, 4, retry=True).values()} == {"done"}
    assert started == [1, 2, 4]
    assert read_index(tmp_path).height == 3


def test_what_was_skipped_runs_once_the_reason_is_gone(children: Any, tmp_path: Path) -> None:
    children({2: refuse})
    swept(tmp_path, 2, 4)
    started = children({})
    swept(tmp_path, 2, retry=True)
    assert swept(tmp_path, 2, 4)[4]["status"] == "done"
    assert started == [2, 4]


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("import os; os.kill(os.getpid(), 9)", "out of memory", "the system killed it"),
        ("import sys; sys.exit(137)", "out of memory", "the system killed it"),
        ("import os; os.abort()", "failed", "it crashed (SIGABRT)"),
        ("raise ValueError('two\\nlines')", "failed", "it ended with exit code 1 and no result: lines"),
        ("import sys; sys.exit(0)", "failed", "it ended with exit code 0 and no result"),
    ],
)
def test_end_of_a_process(code: str, status: str, error: str, children: Any, tmp_path: Path) -> None:
    children({1: saying(code)})
    rows = swept(tmp_path, 1)
    assert (rows[1]["status"], rows[1]["error"][: len(error)]) == (status, error)
    assert read_index(tmp_path)["status"].to_list() == [status]


def test_sweep_goes_on_after_a_crash(children: Any, tmp_path: Path) -> None:
    children({1: saying("import os; os.abort()")})
    assert [row["status"] for row in swept(tmp_path, 1, 2).values()] == ["failed", "done"]


def test_timeout_ends_the_process_and_what_it_started(children: Any, tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    hold = f"import fcntl, time; f = open({str(lock)!r}, 'w'); fcntl.flock(f, 2); time.sleep(600)"
    children({1: saying(f"import subprocess, sys; subprocess.call([sys.executable, '-S', '-c', {hold!r}])")})
    rows = swept(tmp_path, 1, 2, timeout=1.5)
    assert (rows[1]["status"], rows[1]["error"]) == ("failed", "timed out after 1.5 s")
    assert rows[2]["status"] == "done"
    assert 1.5 <= rows[1]["seconds"] < 8
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while the grandchild lives


def test_process_that_ignores_the_request_to_end_is_killed(
    children: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_process, "_GRACE_SECONDS", 0.3)
    children({1: saying("import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)")})
    assert swept(tmp_path, 1, timeout=1)[1]["error"] == "timed out after 1 s"
    with pytest.raises(UsageError, match="timeout is 0 s"):
        swept(tmp_path, 1, timeout=0)


def test_done_without_a_manifest_is_a_failure(children: Any, tmp_path: Path) -> None:
    done = "import sys; open(sys.argv[1], 'w').write('{\"status\": \"done\"}')"
    children({1: lambda _plan, _folder, result: python(done, result)})
    row = swept(tmp_path, 1)[1]
    assert row["status"] == "failed"
    assert row["error"].startswith("not a readable manifest")


def test_interruption_keeps_what_was_done(children: Any, tmp_path: Path) -> None:
    def interrupt(_plan: Plan, _folder: Path, _result: Path) -> list[str]:
        raise KeyboardInterrupt

    children({2: interrupt})
    with pytest.raises(KeyboardInterrupt):
        swept(tmp_path, 1, 2)
    assert read_index(tmp_path)["batch"].to_list() == [1]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    started = children({})
    swept(tmp_path, 1, 2)
    assert started == [2]


def test_foreign_or_damaged_index_is_not_overwritten(children: Any, tmp_path: Path) -> None:
    started = children({})
    path = tmp_path / "index.parquet"
    buffer = BytesIO()
    index_of([]).drop("seconds").write_parquet(buffer)
    for content, kind in ((buffer.getvalue(), UsageError), (b"PAR1 no more", UnreadableTraceError)):
        path.write_bytes(content)
        with pytest.raises(kind, match=r"index\.parquet: "):
            swept(tmp_path, 1)
        assert path.read_bytes() == content
    assert started == []


def test_progress_estimates_the_time_left(children: Any, tmp_path: Path) -> None:
    children({2: refuse})
    told: list[Progress] = []
    swept(tmp_path, 1, 2, 4, progress=told.append)
    assert [(p.number, p.total, p.label, None if p.row is None else p.row["status"]) for p in told] == [
        (1, 3, "cnn batch 1", None),
        (1, 3, "cnn batch 1", "done"),
        (2, 3, "cnn batch 2", None),
        (2, 3, "cnn batch 2", "out of memory"),
        (3, 3, "cnn batch 4", None),
        (3, 3, "cnn batch 4", "skipped"),
    ]
    rows = [p.row for p in told if p.row is not None]
    assert told[0].seconds_left is None
    assert told[1].seconds_left == told[2].seconds_left == 2 * rows[0]["seconds"]
    assert told[3].seconds_left == pytest.approx((rows[0]["seconds"] + rows[1]["seconds"]) / 2)
    assert told[5].seconds_left == 0


# -- the command -------------------------------------------------------------------------------------


def test_command_in_every_format(
    children: Any, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    children({4: refuse, 1: saying("raise ValueError('no')")})
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
    children: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    children({1: refuse})
    assert run("sweep", "cnn", "--batch", "1", "--levels", "M", "-o", tmp_path) == 1
    out, err = capsys.readouterr()
    assert "out of memory" in out
    assert err.splitlines()[-1] == "tracekit: error: no run succeeded; the first says: a step does not fit"


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--batch", "1,x"], "--batch has the value 'x'; give whole numbers"),
        (["--batch", "1,,2"], "--batch has the value ''"),
        (["--precision", "fp8"], "--precision has the value 'fp8'; choose from fp32"),
        (["--compile", "maybe"], "--compile has the value 'maybe'; use no, yes"),
        (["--levels", "L"], "there is no level 'L'"),
        (["--data", "missing"], "there are no data there"),
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


def test_trimmed_mean_is_what_the_rows_hold(children: Any, tmp_path: Path) -> None:
    times = [5, 1, 2, 3, 100]

    def uneven(plan: Plan, folder: Path, result: Path) -> list[str]:
        words = succeed(plan, folder, result)
        path = folder / "manifest.json"
        content = json.loads(path.read_text())
        content["runs"][0]["step_times_ns"] = times
        path.write_text(json.dumps(content))
        return words

    children({1: uneven})
    row = swept(tmp_path, 1)[1]
    assert (row["step_trimmed_mean_ns"], row["step_median_ns"], row["step_min_ns"]) == (10 / 3, 3.0, 1)
    assert row["step_trimmed_mean_ns"] == trimmed_mean(times)
    assert (row["profiling_overhead"], row["flops_per_step"], row["peak_memory_bytes"]) == (None, None, None)
    assert os.fspath(tmp_path) not in row["folder"]
