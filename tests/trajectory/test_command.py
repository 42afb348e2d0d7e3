"""`tracekit trajectory` as a user runs it: its words and formats, ceilings, and runs that do not belong together."""

from __future__ import annotations

import datetime
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace as replaced
from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pytest

import tracekit
from tracekit.cli.main import main
from tracekit.machine_file import Machine, Memory, Product, Rates, machine_path
from tracekit.manifest import Settings, read_manifest
from tracekit.report.trajectory import trajectory_section
from tracekit.sweep_index import INDEX_FILE, index_of
from tracekit.trajectory import Trajectories, read_runs, trajectories_of

ROOT = Path(__file__).resolve().parent.parent.parent
SAMPLE = ROOT / "sample_traces" / "cnn_cpu"
NOISE = (1.0, 1.004, 0.996, 1.002, 0.998)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> tuple[str, str]:
    with pytest.raises(SystemExit) as leave:
        main(["trajectory", *map(str, arguments)])
    text = capsys.readouterr()
    assert (leave.value.code or 0) == code, text.err
    return " ".join(text.out.split()), text.err


def capture(
    folder: Path, ms: float, *, trace: bool = True, workload: str = "cnn", **settings: object
) -> Path:
    """A capture with these settings and steps without the profiler of so many ms, and the sample's trace."""
    shutil.copytree(SAMPLE, folder)
    manifest = read_manifest(folder / "manifest.json")
    own = msgspec.structs.replace(manifest.settings or Settings(), **settings)
    times = [round(1e6 * ms * each) for each in NOISE]
    runs = [msgspec.structs.replace(run, step_times_ns=times if run.level == "M" else run.step_times_ns) for run in manifest.runs]  # fmt: skip
    runs = [run for run in runs if trace or run.level == "M"]
    changed = msgspec.structs.replace(
        manifest, workload=workload, settings=own, runs=runs, samples_per_step=(own.batch or 4) * own.ranks
    )
    (folder / "manifest.json").write_bytes(changed.to_json())
    return folder


def measured(rates: dict[int, tuple[float, float]]) -> None:
    """Ceilings of the sample's processor: FLOP/s and bytes/s by the number of threads."""
    name = read_manifest(SAMPLE / "manifest.json").device_name
    found = [
        Rates(threads=threads, products=[Product(precision="fp32", unit="matrix", size=256, best=peak, median=peak)],
              memory=[Memory(level="DRAM", set_bytes=1 << 26, best=bandwidth, median=bandwidth)])
        for threads, (peak, bandwidth) in rates.items()
    ]  # fmt: skip
    machine = Machine(tracekit_version="0", measured_on=datetime.date(2026, 1, 1), device="cpu", device_name=name, versions={}, rates=found)  # fmt: skip
    path = machine_path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(machine.to_json())


def test_what_may_be_as_fast_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for threads, ms in ((1, 80), (2, 40.2), (4, 40)):
        capture(tmp_path / f"t{threads}", ms, threads=threads, batch=4)
    text, _ = answer(capsys, *sorted(tmp_path.iterdir()))
    assert "cnn is fastest with threads 4" in text
    assert "Within the noise these may be as fast: threads 2." in text


@pytest.mark.slow
def test_threads_that_scale_contend_and_fall_back(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for threads, ms in ((1, 40), (2, 20), (4, 16), (8, 24)):
        capture(tmp_path / f"t{threads}", ms, threads=threads, batch=4)
    folders = sorted(tmp_path.iterdir(), reverse=True)
    text, errors = answer(capsys, *folders)
    assert errors == ""
    assert "cnn is fastest with threads 4: 250 samples a second, 2.50 times (2.29 to 2.73) as many as with threads 1." in text  # fmt: skip
    assert "scaling from 1 to 2, contention from 2 to 4, retrograde from 4 to 8." in text
    assert "Scaling: performance grows; contention: each thread or rank does less at the same intensity; retrograde: performance falls." in text  # fmt: skip
    assert "Ceilings are not known, so saturation does not show" in text
    assert "they show no cache loss" in text
    measured({1: (1e13, 1e10), 2: (1e13, 1e10)})
    assert "Ceilings are not known for all runs" in answer(capsys, *folders)[0]
    measured({1: (1e13, 1e10), 2: (1e13, 1e10), 4: (4.3e10, 1e13), 8: (1e13, 1e10)})
    text, _ = answer(capsys, *folders)
    assert "scaling from 1 to 2, compute-saturated from 2 to 4, retrograde from 4 to 8." in text
    assert "Ceilings are not known" not in text


@pytest.mark.slow
def test_every_format(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    runs = [capture(tmp_path / f"b{batch}", ms, batch=batch) for batch, ms in ((2, 20), (4, 30), (8, 60))]
    measured({1: (1e12, 1e11), 2: (1e12, 1e11)})
    whole = json.loads(answer(capsys, *runs, "--key", "batch", "-f", "json")[0])["trajectory"]
    models = [row for row in whole["tables"]["points"] if row["level"] == "model"]
    assert [row["key"] for row in models] == ["2", "4", "8"]
    # The same trace in each run, so the same FLOPs; times are by hand.
    assert [row["flops_per_s"] for row in models] == [pytest.approx(row["flops"] / row["time_ns"] * 1e9) for row in models]  # fmt: skip
    assert {row["level"] for row in whole["tables"]["segments"]} == {"model", "layer type", "kernel class"}
    # The operators of the convolutions stand at their longest activities, beside which they have some of another class.
    assert {0 < row["covered_share"] <= 1 for row in whole["tables"]["points"]} == {True}
    page = tmp_path / "page.html"
    answer(capsys, *runs, "-o", page, "--figures", tmp_path / "figures")
    assert page.read_text().count('<svg class="curve"') == 3
    assert "<title>batch size 8: " in page.read_text()
    names = ["trajectory.kernel_class.svg", "trajectory.layer_type.svg", "trajectory.model.svg"]
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == names
    answer(capsys, *runs, "-f", "csv", "-o", tmp_path / "tables")
    assert pl.read_csv(tmp_path / "tables" / "trajectory.configurations.csv")["gain"][0] == pytest.approx(4 / 3, 0.01)  # fmt: skip
    assert "**Segments**" in answer(capsys, *runs, "-f", "md")[0]


@pytest.mark.slow
def test_a_sweep_of_two_settings_predicts_what_was_not_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:  # fmt: skip
    rows = []
    for batch, threads in ((1, 1), (8, 1), (64, 1), (1, 2), (8, 2), (64, 4), (1, 4)):
        capture(tmp_path / f"{batch}-{threads}", 5 + 2 * batch / threads, batch=batch, threads=threads)
        rows.append({"status": "done", "folder": f"{batch}-{threads}", "batch": batch})
    rows += [{"status": "failed", "batch": 2}, {"status": "out of memory", "batch": 128, "workload": "cnn"}]
    index_of(rows).write_parquet(tmp_path / INDEX_FILE)
    text, errors = answer(capsys, tmp_path, "--key", "batch")
    assert "cnn is fastest with batch 64, threads 4: 1,730 samples a second, 12.1 times" in text.replace("12.11", "12.1")  # fmt: skip
    assert "batch 8, threads 4" in text
    assert "interpolated" in text
    assert f"{tmp_path}: 1 run of the sweep: failed" in errors
    assert f"{tmp_path}: 1 run of the sweep: out of memory" in errors
    assert "the runs differ in threads and batch; choose one: --key threads" in answer(capsys, tmp_path, code=2)[1]  # fmt: skip


def test_runs_that_count_are_not_said_to_be_left_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:  # fmt: skip
    runs = [capture(tmp_path / f"b{batch}", 10.0 + batch, batch=batch, trace=False) for batch in (1, 8)]
    text, errors = answer(capsys, *runs, "--key", "batch")
    assert errors == ""
    assert "No point is known: the FLOPs and bytes of the runs were not captured" in text


def test_runs_without_a_usable_manifest_are_named_when_the_parent_is_given(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:  # fmt: skip
    """They vanished: the answer stood as if they had never been run."""
    for batch in (1, 2, 4, 8):
        capture(tmp_path / f"b{batch}", 10.0 + batch, batch=batch)
    damaged = tmp_path / "b4" / "manifest.json"
    damaged.write_bytes(damaged.read_bytes()[:300])
    (tmp_path / "b8" / "manifest.json").unlink()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "manifest.json").write_text('{"name": "another program"}')
    _, errors = answer(capsys, tmp_path, "--key", "batch")
    assert f"left out: {damaged}: not a readable manifest" in errors
    assert f"left out: {tmp_path / 'b8' / 'trace.json.gz'}: no manifest.json beside it tells its settings" in errors  # fmt: skip
    assert len(errors.splitlines()) == 2
    shutil.rmtree(tmp_path / "b1")
    shutil.rmtree(tmp_path / "b2")
    assert f"{damaged}: not a readable manifest" in answer(capsys, tmp_path, "--key", "batch", code=3)[1]


@pytest.mark.slow
def test_what_does_not_belong_together_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    runs = [capture(tmp_path / f"b{batch}", 10.0 + batch, batch=batch) for batch in (1, 8)]
    again = capture(tmp_path / "again", 99, batch=8)
    other = [capture(tmp_path / f"other{batch}", 5.0 * batch, batch=batch, workload="mine") for batch in (1, 8)]  # fmt: skip
    short = capture(tmp_path / "short", 30, batch=32, trace=False)
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps({"traceEvents": []}))
    text, errors = answer(capsys, *runs, again, *other, short, bare, "--key", "batch")
    assert "The trajectory of cnn along the batch size" in text
    assert "The trajectory of mine along the batch size" in text
    assert "again" not in errors  # a second run of b8 counts with it
    assert "short" not in errors  # its times count
    assert "The FLOPs or bytes of 1 of 5 configurations were not captured" in text
    assert "bare.json: its settings are not known" in errors
    text, _ = answer(capsys, runs[0], "--key", "batch")
    assert "There is no trajectory: no two runs differ in the batch size alone." in text
    unsized = capture(tmp_path / "unsized", 10, size=None)
    assert "no run tells its size" in answer(capsys, unsized, "--key", "size", code=4)[1]
    assert "did you mean batch?" in answer(capsys, *runs, "--key", "bach", code=2)[1]
    assert "do not differ in any setting" in answer(capsys, runs[0], code=2)[1]
    assert "none" in answer(capsys, tmp_path / "none", code=3)[1]
    (tmp_path / "empty").mkdir()
    index_of([{"status": "failed"}]).write_parquet(tmp_path / "empty" / INDEX_FILE)
    assert "no run tells its settings" in answer(capsys, tmp_path / "empty", code=4)[1]


@pytest.mark.slow
def test_runs_with_the_same_settings_are_one_point(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def sweep(name: str, factors: Sequence[float]) -> Trajectories:
        runs = [
            capture(tmp_path / name / f"{batch}-{seed}", (10.0 + batch) * factor, batch=batch, seed=seed)
            for seed, factor in enumerate(factors)
            for batch in (1, 8)
        ]
        return trajectories_of(read_runs(runs, tracekit.read), "batch")

    once, three = sweep("once", [1.0]), sweep("three", [1.0, 0.7, 1.5])
    for one, other in zip(once.runs, three.runs, strict=True):
        assert other.time_ns == one.time_ns  # the median of three
        spread = float(np.std(np.log([1.0, 0.7, 1.5]), ddof=1))
        assert spread / 3**0.5 < other.error < 2 * spread / 3**0.5
    points = [found.points.filter(pl.col("level") == "model") for found in (once, three)]
    assert points[0]["flops_per_s"].to_list() == pytest.approx(points[1]["flops_per_s"].to_list())
    assert (points[1]["error"] > points[0]["error"]).all()
    told = "Each configuration was run once"
    assert told in trajectory_section(once).answer
    assert told not in trajectory_section(three).answer


@pytest.mark.parametrize(
    ("many", "told"), [(3, ""), (4, " 1 more trajectory."), (5, " 2 more trajectories.")]
)
def test_trajectories_beyond_those_told_are_counted(many: int, told: str, tmp_path: Path) -> None:
    runs = [capture(tmp_path / str(batch), 10.0 + batch, batch=batch) for batch in (1, 8)]
    found = trajectories_of(read_runs(runs, tracekit.read), "batch")
    model = found.segments.filter(level="model")
    several = pl.concat([model.with_columns(trajectory=pl.lit(f"net {number}")) for number in range(many)])
    answer = trajectory_section(replaced(found, segments=several)).answer
    assert ("The table has" in answer) == bool(told)
    assert told in answer


@pytest.mark.slow
def test_precision_has_an_order_and_ranks_may_share_a_batch(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:  # fmt: skip
    runs = [capture(tmp_path / name, ms, precision=name) for name, ms in (("bf16", 10), ("fp32", 20))]
    text, _ = answer(capsys, *runs)
    assert "along the precision: scaling from fp32 to bf16." in text
    assert "Another precision may change what the model learns" in text
    ranks = [capture(tmp_path / f"r{n}", 20 / n, ranks=n, batch=8 // n) for n in (1, 2)]
    text, _ = answer(capsys, *ranks, "--key", "ranks")
    assert "The trajectory of cnn along the ranks" in text
    sizes = [capture(tmp_path / f"s{n}", 20, size=n) for n in (32, 64)]
    text, _ = answer(capsys, *sizes)
    assert text.index("No size is recommended, since a different size is different work.") < text.index(
        "The trajectory"
    )


def test_values_of_switches_are_words_and_not_true_and_false(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:  # fmt: skip
    runs = [capture(tmp_path / name, ms, compile=name == "on") for name, ms in (("off", 40), ("on", 20))]
    text, _ = answer(capsys, *runs)
    assert "along the use of torch.compile: scaling from no compile to compile." in text
    assert "False" not in text
