"""MLPerf's logs and tables: every run and score of round 0.6 that lies beside the checkout, and logs with faults."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import exp
from pathlib import Path

import polars as pl
import pytest

from tests.paths import ROOT
from tracekit.cli.main import main
from tracekit.errors import UnreadableTraceError
from tracekit.mlperf import Cell, LoggedRun, cells_of, cells_table, read_results, score_of, steps_table
from tracekit.mlperf.forecast import Question, compared, enough_chips, forecast, left_out
from tracekit.mlperf.log import read_log
from tracekit.mlperf.runs import runs_in

DATA = ROOT.parent / "shared" / "data" / "mlperf06"
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason="the tables of MLPerf 0.6 are not beside the checkout"
)


def logged(
    batch: int = 64, epochs: int = 3, second: float = 10.0, *, stop: str | None = "success", at: float = 1e9
) -> list[str]:
    """A log of a run whose epochs take so long, each with an evaluation of a second, one epoch a block."""

    def line(time: float, key: str, value: object = None, **metadata: object) -> str:
        return f":::MLL {at + time:.3f} {key}: {json.dumps({'value': value, 'metadata': metadata})}\n"

    lines = [
        line(0, "submission_benchmark", "net"),
        line(1, "init_start"),
        line(2, "global_batch_size", batch),
        line(5, "run_start"),
    ]
    for epoch in range(epochs):
        begin = 5 + epoch * (second + 1)
        lines += [
            line(begin, "block_start", first_epoch_num=epoch + 1, epoch_count=1),
            line(begin + second, "eval_start", epoch_num=epoch + 1),
            line(begin + second + 1, "eval_accuracy", 0.1 * epoch, epoch_num=epoch + 1),
            line(begin + second + 1, "block_stop", first_epoch_num=epoch + 1),
        ]
    return [*lines, line(5 + epochs * (second + 1), "run_stop", status=stop)] if stop else lines


# -- round 0.6 -------------------------------------------------------------------------------------


@pytest.mark.slow
@needs_data
def test_every_run_and_every_score_of_the_tables() -> None:
    runs = read_results([DATA]).runs
    told = pl.read_csv(DATA / "runs.csv")
    assert len(runs) == told.height
    found = {(run.organisation, run.system, run.benchmark, run.name.rpartition("_")[2]): run for run in runs}
    for row in told.rows(named=True):
        run = found[row["org"], row["system"], row["benchmark"], str(row["run"])]
        assert run.run_s == pytest.approx(row["run_s"], abs=2e-3)
        assert run.init_s == pytest.approx(row["init_s"], abs=2e-3)
        assert (run.batch, run.evaluations, run.last_epoch) == (
            row["global_batch"],
            row["evals"],
            row["last_epoch"],
        )
    cells = cells_table(cells_of(runs))
    scores = pl.read_csv(DATA / "cells.csv")
    joined = cells.join(
        scores, left_on=["organisation", "system", "benchmark"], right_on=["org", "system", "benchmark"]
    )
    assert joined.height == scores.height == cells.height
    assert float((joined["score_min"] - joined["score_min_right"]).abs().max() or 0) < 1e-3  # type: ignore[arg-type]


@needs_data
def test_whole_logs_say_what_the_tables_say() -> None:
    told = {
        (row["org"], row["system"], row["benchmark"], row["run"]): row
        for row in pl.read_csv(DATA / "runs.csv").rows(named=True)
    }
    runs = read_results([DATA / "raw"]).runs
    compared = 0
    for run in runs:
        row = told.get(
            (run.organisation, run.system, run.benchmark, int(run.name.partition("result_")[2][0]))
        )
        if row is not None:
            assert (run.accelerators, run.batch, run.evaluations) == (
                row["accelerators"],
                row["global_batch"],
                row["evals"],
            )
            assert run.run_s == pytest.approx(row["run_s"], abs=2e-3)
            compared += 1
    assert (len(runs), compared) == (13, 12)  # Intel's is in no table
    intel = next(run for run in runs if run.organisation == "Intel")
    assert intel.succeeded
    value, pause = intel.problems
    assert value == "a value that is neither JSON nor a Python literal in line 9"
    assert pause.startswith("1,473 s pass before line 402")  # of its lines 400 at each end are there
    assert pause.endswith("or lines are missing")


@needs_data
def test_epochs_count_blocks_and_not_what_their_evaluations_are_called() -> None:
    cells = {
        (cell.organisation, cell.system, cell.benchmark): cell for cell in cells_of(read_results([DATA]).runs)
    }
    assert [cells["Google", f"tpu-v3-{cores}", "ssd"].mean("epochs") for cores in (32, 512)] == [58, 75]
    assert cells["Google", "tpu-v3-32", "transformer"].mean("epochs") == cells[
        "Google", "tpu-v3-32", "transformer"
    ].mean("evaluations")
    assert cells["Google", "tpu-v3-32", "mask"].mean("epochs") == 15
    steps = steps_table(list(cells.values())).filter(pl.col("series") == "Google, tpu-v3, ssd")
    assert steps["limited_by"].to_list() == ["batch-limited", "batch-limited", "epoch-limited"]
    product = steps["speedup"] * steps["epochs"] * steps["evaluation"] * steps["training"]
    assert product.to_list() == pytest.approx(steps["chips"].to_list())


# -- scores ----------------------------------------------------------------------------------------


def test_a_score_drops_the_fastest_and_the_slowest_and_a_failure_is_slowest() -> None:
    times = [random.Random(7).uniform(10, 20) for _ in range(10)]
    assert score_of(times) == pytest.approx(sum(sorted(times)[1:-1]) / 8)
    assert score_of([*times, None]) == pytest.approx(sum(sorted(times)[1:]) / 9)
    assert score_of([*times, None, None]) is None
    assert score_of([]) is None


# -- logs with faults ------------------------------------------------------------------------------


def test_a_log_that_is_cut_two_runs_in_one_and_a_clock_that_jumps() -> None:
    (cut,) = runs_in(read_log(logged(stop=None)), "cut")
    assert (cut.status, cut.run_s, cut.epochs, cut.evaluations) == ("cut", None, 3, 3)
    assert cut.problems == ("the log ends before the run does",)
    two = runs_in(read_log([*logged(), *logged(second=20, at=2e9)]), "two")
    assert [run.run_s for run in two] == [33, 63]
    assert all("2 runs in one file" in run.problems for run in two)
    jumped = logged()
    jumped[8:8] = [text.replace("1000000", "999990", 1) for text in logged()[7:8]]
    (run,) = runs_in(read_log(jumped), "jumps")
    assert any(problem.startswith("the clock jumps back by") for problem in run.problems)
    assert run.run_s == 33


def test_lines_behind_other_text_wrapped_or_damaged() -> None:
    lines = logged()
    lines = [f"3: epoch {text}" if at % 2 else text for at, text in enumerate(lines)]
    long = lines[4]
    lines[4:5] = [long[:60] + "\n", long[60:]]
    lines.insert(3, ":::MLL yesterday run_start: {}\n")
    lines.insert(3, ":::MLL 1e99 run_start: {}\n")
    lines.insert(3, ":::MLL 1000000001.0 eval_offset: {value: true}\n")
    log = read_log(lines)
    assert log.defects == {
        "a value that is neither JSON nor a Python literal": (1, 4),
        "a time that is none": (1, 5),
        "no time or no key": (1, 6),
    }
    (run,) = runs_in(log, "odd")
    assert (run.run_s, run.epochs, run.batch) == (33, 3, 64)
    new = [
        f':::MLLOG {{"namespace": "", "time_ms": {1000 * second}, "key": "{key}", "value": 1, "metadata": {{}}}}\n'
        for second, key in ((1, "run_start"), (9, "run_stop"))
    ]
    (run,) = runs_in(read_log(new), "new")
    assert run.run_s == 8
    assert runs_in(read_log(["nothing here\n", ":::MLL\n"]), "none") == []


def test_nothing_in_a_log_is_evaluated(tmp_path: Path) -> None:
    bomb = f"__import__('pathlib').Path({str(tmp_path / 'run')!r}).touch()"
    log = read_log([f":::MLL 1.0 run_start: {bomb}\n", ":::MLL 2.0 run_stop: " + "[" * 100_000 + "\n"])
    assert [event.value for event in log.events] == [None, None]
    assert not list(tmp_path.iterdir())


# -- the command -----------------------------------------------------------------------------------


def results(folder: Path, sizes: dict[int, tuple[int, float, int]]) -> Path:
    for chips, (batch, second, epochs) in sizes.items():
        for number in range(3):
            place = folder / "acme" / f"box-{chips}" / "net"
            place.mkdir(parents=True, exist_ok=True)
            lines = logged(batch, epochs, second + number / 100)
            lines.insert(
                1,
                f":::MLL 1000000000.5 submission_platform: {json.dumps({'value': f'{chips}xBOX', 'metadata': {}})}\n",
            )
            with gzip.open(place / f"result_{number}.txt.gz", "wt") as stream:
                stream.writelines(lines)
    return folder


def answer(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> tuple[str, str]:
    with pytest.raises(SystemExit) as leave:
        main(["scaling", *map(str, arguments)])
    text = capsys.readouterr()
    assert (leave.value.code or 0) == code, text.err
    return " ".join(text.out.split()), text.err


def raw(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    with pytest.raises(SystemExit):
        main(["scaling", *map(str, arguments)])
    return capsys.readouterr().out


def test_names_that_end_in_the_number_of_chips_are_one_series(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Systems called `pod8-tf` and `pod16-tf` were two kinds of system, with one size each."""
    for chips in (8, 16):
        place = tmp_path / "acme" / "results" / f"pod{chips}-tf" / "net"
        described = tmp_path / "acme" / "systems" / f"pod{chips}-tf.json"
        for folder in (place, described.parent):
            folder.mkdir(parents=True, exist_ok=True)
        described.write_text(f'{{"number_of_nodes": 1, "accelerators_per_node": {chips}}}')
        for number in range(3):
            (place / f"result_{number}.txt").write_text("".join(logged(8 * chips, 4, 640 / chips)))
    assert "acme, pod-tf, net: 16 chips train 1.98 times as fast as 8" in answer(capsys, tmp_path)[0]


@pytest.mark.slow
def test_what_limits_each_step_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = results(
        tmp_path,
        {8: (64, 80.0, 4), 16: (128, 40.0, 4), 32: (256, 20.0, 6), 64: (256, 15.0, 6), 128: (512, 14.0, 6)},
    )
    text, _ = answer(capsys, folder)
    assert "acme, box, net: 128 chips train 3.6 times as fast as 8 (22.5 % efficiency)" in text
    assert "From 64 to 128 chips it is communication-limited" in text
    data = json.loads(answer(capsys, folder, "-f", "json")[0])
    steps = next(table for table in data["tables"] if table["name"] == "steps") if "tables" in data else None
    frame = steps_table(cells_of(read_results([folder]).runs))
    assert frame["limited_by"].to_list() == [
        "none",
        "epoch-limited",
        "batch-limited",
        "communication-limited",
    ]
    assert steps is None or len(steps["rows"]) == 4
    page = tmp_path / "page.html"
    answer(capsys, folder, "-o", page)
    html = page.read_text()
    assert "Epochs against batch" in html
    assert "<title>MLPerf results" in html
    assert "Trainings a minute, measured and forecast: acme, box, net" in html
    stack = html[html.index("Efficiency, and what the rest is lost to") :]
    shares = [float(each) for each in re.findall(r'class="row-total">([\d.]+) %', stack)]
    efficiency = cells_table(cells_of(read_results([folder]).runs))["efficiency"].to_list()
    assert shares == pytest.approx([100 * each for each in efficiency], abs=0.051)
    assert "efficiency <b></b>" in " ".join(stack.split())


def test_what_logs_without_a_batch_or_with_a_clock_that_stands_do_not_tell(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """They were said to be limited by communication "although the batch grows", and 32 chips to train 124 times as fast as 8."""
    for chips, second in ((8, 40.0), (16, 25.0), (32, -1.0)):
        folder = tmp_path / "acme" / f"box_{chips}xA" / "net"
        folder.mkdir(parents=True)
        (folder / "result_0.txt").write_text(
            "".join(line for line in logged(second=second) if "batch" not in line)
        )
    text, _ = answer(capsys, tmp_path)
    assert "16 chips train 1.58 times as fast as 8" in text
    assert (
        "it is batch- or communication-limited: training per chip gets slower, and the logs do not tell"
        in text
    )
    (stands,) = (run for run in read_results([tmp_path]).runs if run.accelerators == 32)
    assert (stands.run_s, stands.succeeded, stands.problems[0]) == (None, False, "the run ends as it begins")


def test_runs_with_faults_stand_first_and_unknown_sizes_are_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Of 22 runs the terminal showed 20, those with faults not among them; systems without a number of chips were said to have one size."""
    folder = tmp_path / "acme" / "box" / "net"
    folder.mkdir(parents=True)
    for number in range(24):
        (folder / f"result_{number:02}.txt").write_text("".join(logged()))
    (folder / "result_30.txt").write_text("".join(logged() + logged(at=2e9)))
    (folder / "result_31.txt").write_text("".join([*logged(), ":::MLL 1.0\n", ":::MLL 2.0\n"]))
    text, _ = answer(capsys, tmp_path)
    assert "The number of chips of 1 configuration is not known" in text
    assert "The logs of 3 runs have faults" in text
    assert "2 runs in one file" in text
    assert "in 2 lines, the first is line" in json.dumps(
        json.loads(answer(capsys, tmp_path, "-f", "json")[0])
    )
    described = tmp_path / "acme" / "systems" / "box.json"
    described.parent.mkdir()
    described.write_text('{"number_of_nodes": "2", "accelerators_per_node": "8"}')
    text, _ = answer(capsys, tmp_path)
    assert "not known" not in text
    assert "acme net 16 0.55" in text


def test_epochs_that_no_log_has_are_not_said_to_be_equal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A benchmark without epochs, as MiniGo, was said to need 1.00 times the epochs."""
    for chips, second in ((8, 40.0), (16, 25.0)):
        folder = tmp_path / "acme" / f"box_{chips}xA" / "net"
        folder.mkdir(parents=True)
        lines = [line for line in logged(second=second) if "block_" not in line]
        text = re.sub(r'"epoch_num": \d+', "", "".join(lines))
        for run in range(3):
            (folder / f"result_{run}.txt").write_text(text)
    text, _ = answer(capsys, tmp_path)
    assert "(78.8 % efficiency); its logs have no epochs, so its throughput is not known." in text
    assert "times the epochs" not in text


def test_what_is_no_result(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = results(tmp_path / "good", {8: (64, 80.0, 4)})
    assert "no system in two sizes" in answer(capsys, folder)[0]
    trace = ROOT / "sample_traces" / "cnn_cpu" / "trace.json.gz"
    assert "it holds no log of MLPerf's" in answer(capsys, folder, trace)[1]
    (tmp_path / "begun.txt").write_text(":::MLL 1.0 init_start: {}\n")
    assert "no run of MLPerf's is in it" in answer(capsys, tmp_path / "begun.txt", code=3)[1]
    with pytest.raises(UnreadableTraceError):
        read_results([tmp_path / "begun.txt"])


# -- forecasts -------------------------------------------------------------------------------------


@pytest.mark.slow
@needs_data
def test_the_largest_cells_of_round_0_6_are_foretold_from_the_others() -> None:
    errors = left_out(cells_of(read_results([DATA]).runs))
    google = [abs(error) for name, error in errors.items() if name.startswith("Google")]
    assert len(google) == 5
    assert sum(google) / 5 < 0.04
    largest = max(abs(error) for error in errors.values())
    assert largest < 0.3  # from one node to four, the network is new
    beside = [row for row in compared(cells_of(read_results([DATA]).runs)) if None not in row]
    ours, amdahl, power = (sum(abs(row[at] or 0) for row in beside) for at in (2, 3, 4))  # type: ignore[arg-type, misc]
    assert ours < min(amdahl, power) / 3


def cells(
    exponent: float,
    sizes: Sequence[tuple[int, int, float]],
    noise: float = 0.0,
    benchmark: str = "net",
    seed: int = 0,
) -> list[Cell]:
    """Cells whose epochs take a power of the batch of a chip."""
    rng = random.Random(seed)
    made = []
    for chips, batch, epochs in sizes:
        seconds = epochs * 1e5 * (batch / chips) ** exponent / batch
        runs = [
            LoggedRun(
                name="",
                status="success",
                run_s=seconds * exp(rng.gauss(0, noise)),
                epochs=float(epochs),
                batch=batch,
            )
            for _ in range(5)
        ]
        made.append(Cell("we", f"box-{chips}", benchmark, chips, batch, tuple(runs)))
    return made


SIZES = [(8, 512, 4), (16, 512, 4), (32, 1024, 5), (64, 1024, 5), (128, 1024, 5)]


@pytest.mark.slow
@pytest.mark.parametrize("exponent", [0.4, 0.7, 1.0])
def test_planted_powers_are_recovered_beyond_the_sizes_that_were_run(exponent: float) -> None:
    errors, held = [], 0
    for seed in range(40):
        known = cells(exponent, SIZES, 0.03, seed=seed)
        for chips, batch, epochs in ((256, 1024, 5), (512, 2048, 6)):
            (truth,) = cells(exponent, [(chips, batch, epochs)])
            found = forecast(known, Question("net", chips, batch, epochs))
            assert found is not None
            errors.append(abs(found.seconds / (truth.score_s or 1) - 1))
            held += found.low <= (truth.score_s or 1) <= found.high
    assert sum(errors) / len(errors) < 0.04
    assert held >= 0.85 * len(errors)


def test_steps_that_grow_with_the_chips_at_one_batch_of_a_chip() -> None:
    """Sizes with one batch of a chip were forecast at their mean, however much messages around the ring made the steps longer."""

    def at(chips: int) -> Cell:
        run_s = 4.0 * 100 * (1.0 + 0.004 * (chips - 1)) / chips
        run = LoggedRun(name="", status="success", run_s=run_s, epochs=4.0, batch=8 * chips)
        return Cell("we", f"box-{chips}", "net", chips, 8 * chips, (run,))

    known = [at(chips) for chips in (8, 16, 32, 64, 128)]
    for chips in (256, 512):
        found = forecast(known, Question("net", chips, 8 * chips, 4.0))
        assert found is not None
        assert found.seconds == pytest.approx(at(chips).score_s, rel=0.01)
    few = forecast(known[:3], Question("net", 64, 512, 4.0))
    assert few is not None
    assert few.high > 1.06 * few.seconds  # of three sizes no law is named, but they differ


def test_steps_that_grow_with_the_chips_on_three_sizes_and_in_two_rounds() -> None:
    """They were forecast at the mean of three sizes, 24 % too short in one of two rounds, whose largest size followed from that of the other."""

    def at(chips: int, year: str) -> Cell:
        run_s = (100.0 if year == "v4.0" else 80.0) * chips**-0.9
        run = LoggedRun(name="", status="success", run_s=run_s, epochs=4.0, batch=8 * chips)
        return Cell("we", f"box-{chips}", "net", chips, 8 * chips, (run,), year)

    known = [at(chips, year) for chips in (8, 16, 32, 64) for year in ("v4.0", "v4.1")]
    errors = left_out(known)
    assert list(errors) == ["we, box, net, v4.0", "we, box, net, v4.1"]
    assert list(errors.values()) == pytest.approx([0, 0], abs=0.01)


def test_amdahl_s_law_is_exact_where_it_holds() -> None:
    def at(chips: int) -> Cell:
        return Cell(
            "we",
            f"box-{chips}",
            "net",
            chips,
            512,
            (LoggedRun(name="", status="success", run_s=20 + 4000 / chips, epochs=4.0, batch=512),),
        )

    ((_, chips, _, amdahl, power),) = compared([at(chips) for chips in (8, 16, 32, 64)])
    assert chips == 64
    assert amdahl == pytest.approx(0, abs=1e-9)
    assert power is not None
    assert power < -0.05


def test_what_a_forecast_needs_and_where_doubling_ends() -> None:
    known = cells(0.05, SIZES)
    assert forecast(known, Question("other", 64)) is None
    fewest, most = enough_chips(known, Question("net", 128)) or (0, 0)
    assert fewest == 128  # a power of 0.05 gains 3.5 %
    assert most < 1024
    assert enough_chips(cells(0.8, SIZES), Question("net", 128)) == (1024, 1024)  # no chip without a sample
    alone = forecast(known[:1], Question("net", 16))
    assert alone is not None
    assert alone.high > 1.5 * alone.low
    assert forecast(known, Question("net", 128)).epochs == 5  # type: ignore[union-attr]


def test_forecasts_from_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = results(
        tmp_path / "results", {8: (64, 80.0, 4), 16: (128, 40.0, 4), 32: (256, 20.0, 6), 64: (256, 15.0, 6)}
    )
    asked, answers = tmp_path / "cells.csv", tmp_path / "answers.csv"
    asked.write_text(
        "id,org,system,benchmark,accelerators,global_batch,last_epoch\na,acme,box-128,net,128,256,6\nb,x,y,unknown,8,,\n"
    )
    _, errors = answer(capsys, "--fit", folder, "--forecast", asked, "-o", answers)
    assert "the results do not tell 1 of 2 times" in errors
    table = pl.read_csv(answers)
    assert table.columns[:2] == ["id", "predicted"]
    (one, none) = table.rows(named=True)
    assert 6 * 11 / 60 < one["predicted"] < 6 * 16 / 60
    assert one["low"] < one["predicted"] < one["high"]
    assert none["predicted"] is None
    asked.write_text("id,benchmark,accelerators\na,unknown,8\nb,nothing,8\n")
    unknown = answer(capsys, "--fit", folder, "--forecast", asked, "-o", tmp_path / "none.csv", code=4)[1]
    assert "the results tell none of the times that are asked for; ask for" in unknown
    assert not (tmp_path / "none.csv").exists()
    assert "a forecast needs --fit and --forecast" in answer(capsys, "--fit", folder, code=2)[1]
    assert "scaling needs runs" in answer(capsys, code=2)[1]
    asked.write_text("id,benchmark\n1,net\n")
    assert "it has no column accelerators" in answer(capsys, "--fit", folder, "--forecast", asked, code=2)[1]
    asked.write_text("benchmark,accelerators\nnet,-3\n")
    assert (
        "row 1 below the titles has no number of chips"
        in answer(capsys, "--fit", folder, "--forecast", asked, code=2)[1]
    )
    asked.write_text("benchmark,accelerators\nnet,8\nnet,eight\n")
    assert "row 2 below the titles" in answer(capsys, "--fit", folder, "--forecast", asked, code=2)[1]
    asked.write_text("benchmark,accelerators\nnet,8\n,8\n")
    assert (
        "row 2 below the titles has no benchmark"
        in answer(capsys, "--fit", folder, "--forecast", asked, code=2)[1]
    )
    lost = answer(capsys, "--fit", folder, "--forecast", tmp_path / "lost.csv", code=3)[1]
    assert lost.endswith("lost.csv: no such file; check the path\n")


def test_a_log_of_another_benchmark_does_not_count_as_that_of_its_folder(tmp_path: Path) -> None:
    """A log of `ssd` in a folder of `resnet` was a run of resnet, without a word; variants and other words are no contradiction."""
    for folder, told in (
        ("resnet", "ssd"),
        ("resnet", "resnet"),
        ("mask-rcnn", "maskrcnn"),
        ("pictures", "ssd"),
    ):
        place = tmp_path / "Org" / "tpu-v3-32-TF" / folder
        place.mkdir(parents=True, exist_ok=True)
        text = "".join(logged()).replace('"net"', f'"{told}"')
        (place / f"result_{told}.txt").write_text(text)
    found = {(run.name.split("/")[-2], run.benchmark): run.problems for run in read_results([tmp_path]).runs}
    assert found == {
        ("resnet", "ssd"): ("the log is of ssd, its folder of resnet: it counts as ssd",),
        ("resnet", "resnet"): (),
        ("mask-rcnn", "mask-rcnn"): (),
        ("pictures", "pictures"): (),
    }


@pytest.mark.slow
@needs_data
def test_more_chips_or_a_larger_batch_never_take_longer() -> None:
    """Where the nearest size changed from one to the next, forecasts rose by 13 % for more chips, and by 20 % for a larger batch."""
    known = cells_of(read_results([DATA]).runs)
    mask, ssd = (
        Question("mask", 8, 128, 15.0, "google", "TPU-v3-512"),
        Question("ssd", 64, 1, 75.0, "Google", "tpu-v3-512"),
    )
    for questions in (
        [replace(mask, accelerators=chips) for chips in (16, 22, 26, 32, 45, 64, 128, 256)],
        [replace(ssd, batch=batch) for batch in (512, 1024, 2048, 2896, 4096)],
    ):
        found = [forecast(known, question) for question in questions]
        times = [each.seconds for each in found if each is not None]
        assert len(times) == len(questions)
        assert all(after < 1.01 * before for before, after in pairwise(times))


def test_a_forecast_passes_through_the_sizes_that_were_run() -> None:
    """Between two of them it followed from the nearer one alone, and jumped in the middle."""
    steep = cells(0.9, [(8, 1024, 4), (64, 1024, 4)], benchmark="net")
    flat = [
        replace(cell, organisation="they")
        for cell in cells(0.3, [(8, 1024, 4), (16, 1024, 4), (32, 1024, 4), (64, 1024, 4)])
    ]
    for cell in steep:
        found = forecast([*steep, *flat], Question("net", cell.accelerators or 1, 1024, 4.0, "we", "box-8"))
        assert found is not None
        assert found.seconds == pytest.approx(cell.score_s, rel=1e-9)
    below, above = (
        forecast([*steep, *flat], Question("net", chips, 1024, 4.0, "we", "box-8")) for chips in (22, 23)
    )
    assert below is not None
    assert above is not None
    assert above.seconds == pytest.approx(below.seconds, rel=0.08)


def test_tables_of_questions_as_programs_write_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Titles in capitals and numbers with a point were refused; a batch that is no number was taken as none, and so were all others."""
    folder = results(tmp_path / "results", {8: (64, 80.0, 4), 16: (128, 40.0, 4)})
    asked = tmp_path / "cells.csv"
    asked.write_text(
        "\ufeffID, Benchmark ,Accelerators,Global_Batch,Last_Epoch,Org\na, NET ,16.0,128.0,4.0,ACME\nb,net,16,,,\n",
        encoding="utf-8",
    )
    first, second = csv.DictReader(io.StringIO(raw(capsys, "--fit", folder, "--forecast", asked)))
    sides = {name: second[name] for name in ("id", "low", "high")}  # without epochs it is less certain
    assert {**first, **sides} == second
    assert float(sides["low"]) < float(first["low"]) < float(first["high"]) < float(sides["high"])
    assert float(first["predicted"]) == pytest.approx((4 * 41.01 + 0) / 60, rel=0.01)
    for values, fault in (
        ("16,abc,4", "no batch"),
        ("16,0,4", "no batch"),
        ("16,128,-3", "no number of epochs"),
        ("16.5,128,4", "no number of chips"),
    ):
        asked.write_text(f"benchmark,accelerators,batch,epochs\nnet,8,64,4\nnet,{values}\n")
        assert (
            f"row 2 below the titles has {fault}"
            in answer(capsys, "--fit", folder, "--forecast", asked, code=2)[1]
        )


def test_answers_in_a_format_that_holds_no_table_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A page of HTML was a CSV, and a format that was asked for counted for nothing."""
    folder = results(tmp_path / "results", {8: (64, 80.0, 4)})
    asked = tmp_path / "cells.csv"
    asked.write_text("benchmark,accelerators\nnet,8\n")
    for flags in (("-o", tmp_path / "answers.html"), ("-f", "html")):
        assert (
            "scaling --forecast writes"
            in answer(capsys, "--fit", folder, "--forecast", asked, *flags, code=2)[1]
        )
    answer(capsys, "--fit", folder, "--forecast", asked, "-o", tmp_path / "answers.parquet")
    assert pl.read_parquet(tmp_path / "answers.parquet")["from_chips"].to_list() == [8]


def test_epochs_of_one_batch_are_the_mean_of_its_sizes() -> None:
    """They were those of the size with the most epochs."""
    known = cells(0.7, [(8, 512, 4), (16, 512, 6)])
    assert forecast(known, Question("net", 32)).epochs == 5  # type: ignore[union-attr]


def test_a_series_of_one_size_has_no_speed_up() -> None:
    """A system of 2,048 chips stood there with an efficiency of 100 %, against itself."""
    alone, several = cells(0.0, SIZES[:1], benchmark="one"), cells(0.0, SIZES[:2])
    found = cells_table([*alone, *several])
    assert found["efficiency"].is_null().to_list() == [True, False, False]
    assert found["speedup"].is_null().to_list() == [True, False, False]
