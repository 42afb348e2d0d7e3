"""Cells, series and steps of MLPerf results against runs whose times, epochs and names are known."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.mlperf.test_logs import event, later, mllog, wrapped
from tracekit.cli.main import main
from tracekit.errors import UnreadableTraceError
from tracekit.mlperf import (
    Cell,
    LoggedRun,
    Results,
    cells_of,
    cells_table,
    compared,
    read_results,
    series_of,
    steps_table,
)
from tracekit.mlperf.jumps import with_jumps
from tracekit.mlperf.log import read_log
from tracekit.mlperf.questions import answers_of, read_questions
from tracekit.mlperf.runs import runs_in
from tracekit.report.mlperf import mlperf_section


def a_run(run_s: float, epochs: float, batch: int = 64, **more: object) -> LoggedRun:
    fields = {"name": "", "status": "success", "benchmark": "net", "organisation": "we", **more}
    return LoggedRun(run_s=run_s, epochs=epochs, batch=batch, samples=1000, **fields)  # type: ignore[arg-type]


def cell(system: str, chips: int, *runs: LoggedRun) -> Cell:
    return Cell("we", system, "net", chips, runs[0].batch, runs)


def test_one_run_with_more_epochs_changes_neither_throughput_nor_epochs() -> None:
    """The epochs of all runs were divided by the time of those that make the score: 2.4 times the throughput on twice the chips."""
    small = cell("1xBox", 1, *(a_run(100, 10) for _ in range(5)))
    large = cell("2xBox", 2, *(a_run(50, 10) for _ in range(4)), a_run(100, 20))
    assert cells_table([small, large])["samples_per_s"].to_list() == [100, 200]
    step = steps_table([small, large]).row(0, named=True)
    assert (step["throughput"], step["epochs"], step["limited_by"]) == (2, 1, "none")
    runs = [
        LoggedRun(name=f"{one.system}/{at}", status="success", run_s=run.run_s, epochs=run.epochs, batch=64 * (one.accelerators or 1), samples=1000,
                  benchmark="net", organisation="we", system=one.system, accelerators=one.accelerators)
        for one in (small, large) for at, run in enumerate(one.runs)
    ]  # fmt: skip
    assert (
        "with 2 times the throughput and 1.00 times the epochs" in mlperf_section(Results(tuple(runs))).answer
    )


# -- epochs ----------------------------------------------------------------------------------------


def trained(blocks: int, every: int, *, early: float = 0.0, lag: int = 0) -> LoggedRun:
    """A run of blocks of an epoch each, of 10 s, with an evaluation of 5 s after every so many, beside which the next block begins so much early."""
    lines, time = [event(1.6e9, "run_start")], 1.6e9
    for epoch in range(1, blocks + 1):
        lines.append(event(time, "block_start", first_epoch_num=epoch, epoch_count=1))
        time += 10
        if epoch % every == 0:
            ahead = (
                [event(time - early, "block_start", first_epoch_num=epoch + 1, epoch_count=1)]
                if early
                else []
            )
            lines += [*ahead, event(time, "eval_start", epoch_num=epoch - lag), event(time + 5, "eval_accuracy", 0.5, epoch_num=epoch - lag)]  # fmt: skip
            time += 0 if early else 5
    (run,) = runs_in(read_log([*lines, event(time + 5, "run_stop", status="success")]), "run")
    return run


@pytest.mark.parametrize(("blocks", "every"), [(12, 4), (12, 1), (4, 2), (2, 2), (6, 3), (1, 1)])
@pytest.mark.parametrize("early", [0.0, 1.0])
@pytest.mark.parametrize("lag", [0, 1])
def test_blocks_count_however_often_evaluations_come(blocks: int, every: int, early: float, lag: int) -> None:
    """Of 12 blocks with an evaluation after every fourth, 3 counted."""
    run = trained(blocks, every, early=early, lag=lag)
    assert (run.epochs, run.evaluations) == (blocks, blocks // every)


# -- rounds ----------------------------------------------------------------------------------------


def submitted(folder: Path, seconds: float = 10.0, chips: tuple[int, ...] = (8, 16)) -> Path:
    """Logs of one system whose 3 runs take so long on 8 chips."""
    for count in chips:
        for number in range(3):
            log = folder / "acme" / f"{count}xA" / "net" / f"result_{number}.txt"
            log.parent.mkdir(parents=True, exist_ok=True)
            end = 1.6e9 + 5 + seconds * 8 / count + number / 1000
            log.write_text("".join([*mllog(status=None), event(end, "run_stop", status="success")]))
    return folder


@pytest.mark.parametrize(
    ("names", "rounds"),
    [
        (("training_results_v0.6-master", "training_results_v0.7-main"), ("v0.6", "v0.7")),
        (("mlperf-0.6", "mlperf-v1.0"), ("v0.6", "v1.0")),
        (("v5.0", "0.7"), ("v0.7", "v5.0")),
        (("here", "there"), ("here", "there")),
    ],
)
def test_rounds_are_apart_however_their_folders_are_called(
    tmp_path: Path, names: tuple[str, str], rounds: tuple[str, str]
) -> None:
    """Folders called as GitHub's archives are were pooled without a word."""
    folders = [submitted(tmp_path / name, 10.0 * (at + 1)) for at, name in enumerate(names)]
    cells = cells_of(read_results(folders).runs)
    assert sorted({each.round for each in cells}) == list(rounds)
    assert sorted(round(each.score_s or 0) for each in cells) == [5, 10, 10, 20]
    assert (
        len(read_results([folders[0], folders[0]]).runs) == 6
    )  # one folder is one, however often it is given


def test_logs_given_one_by_one_are_one_configuration(tmp_path: Path) -> None:
    logs = sorted(submitted(tmp_path / "here", chips=(8,)).rglob("*.txt"))
    (one,) = cells_of(read_results(logs).runs)
    assert len(one.runs) == 3


def test_a_round_that_a_question_names_is_the_one_it_is_answered_from(tmp_path: Path) -> None:
    """The column was dropped without a word."""
    folders = [submitted(tmp_path / f"mlperf-0.{6 + at}", 10.0 * (at + 1)) for at in range(2)]
    cells = cells_of(read_results(folders).runs)
    asked = tmp_path / "cells.csv"
    asked.write_text("benchmark,accelerators,org,system,round\nnet,16,acme,16xA,0.6\nnet,16,acme,16xA,0.7\n")
    answers = answers_of(cells, read_questions(asked))
    assert (answers["predicted"] * 60).to_list() == pytest.approx([5.001, 10.001], abs=0.01)
    asked.write_text("benchmark,accelerators,org,system,round\nnet,16,acme,16xA,v0.7\n")
    assert answers_of(cells, read_questions(asked))["predicted"][0] * 60 == pytest.approx(10.001, abs=0.01)


# -- several batches at one size ---------------------------------------------------------------------


def two_batches() -> list[Cell]:
    """On 8 chips batches of 256 and 512, on 16 of 256 and 1,024: those of one batch scale by 110 / 70."""
    told = ((8, 256, 110, 10), (8, 512, 140, 14), (16, 256, 70, 10), (16, 1024, 100, 20))
    return [
        cell(f"{chips}xBox", chips, *[a_run(seconds, epochs, batch)] * 3)
        for chips, batch, seconds, epochs in told
    ]


def test_two_batches_at_one_size_are_compared_each_with_its_own() -> None:
    """The last batch of 8 chips, 512, went to the first of 16, 256, and the largest of 16 was compared with the smallest of 8."""
    steps = steps_table(two_batches())
    assert steps.select("batch_from", "batch_to").rows() == [(256, 256), (512, 1024)]
    assert steps["speedup"].to_list() == pytest.approx([110 / 70, 140 / 100])
    assert steps["epochs"].to_list() == pytest.approx([1, 20 / 14])
    assert cells_table(two_batches())["speedup"].to_list() == pytest.approx([1, 1, 110 / 70, 140 / 100])
    runs = [
        replace(run, system=one.system, accelerators=one.accelerators)
        for one in two_batches()
        for run in one.runs
    ]
    answer = mlperf_section(Results(tuple(runs))).answer
    assert "16 chips at batch 256 train 1.57 times as fast as 8 at batch 256" in answer
    assert compared(two_batches())[0][3:] == (None, None)  # of one size left no law
    assert "with three or more sizes" not in answer


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        ({"1xXE9680x8H100-SXM-80GB": 8, "2xXE9680x8H100-SXM-80GB": 16, "4xXE9680x8H100-SXM-80GB": 32}, "XE9680x8H100-SXM-80GB"),
        ({"tpu-v3-6": 3, "tpu-v3-12": 6, "tpu-v3-24": 12}, "tpu-v3"),
        ({"tpu-v3-32-TF": 16, "tpu-v3-128-TF": 64, "tpu-v3-2048-TF": 1024}, "tpu-v3-TF"),
        ({"pod-16-tf": 16, "pod-64-tf": 64}, "pod-tf"),
        ({"HLS-Gaudi2-N1-PT": 2, "HLS-Gaudi2-N4-PT": 8}, "HLS-Gaudi2-PT"),
        ({"dgxh100_n8_ngc24": 64, "dgxh100_n12_ngc24": 100}, "dgxh100_ngc24"),
        ({"1xDGX-2": 16, "2xDGX-2": 32}, "DGX-2"),
    ],
)  # fmt: skip
def test_one_kind_of_system_is_one_series(names: dict[str, int], kind: str) -> None:
    """The number of chips was removed from `v3` and `x8H100`, where it is that of the board or the node."""
    cells = [cell(name, chips, a_run(800 / chips, 10)) for name, chips in names.items()]
    assert list(series_of(cells)) == [f"we, {kind}, net"]


# -- faults of clocks and files ----------------------------------------------------------------------


def ahead(lines: list[str], at: int, seconds: int) -> list[str]:
    return [*lines[:at], *(later(text, 1000 * seconds) for text in lines[at:])]


def test_a_clock_that_jumps_forward_is_said(tmp_path: Path) -> None:
    """Three of five runs took an hour more, by the clock, and the score was theirs without a word."""
    place = tmp_path / "acme" / "8xA" / "net"
    place.mkdir(parents=True)
    for number in range(5):
        lines = ahead(mllog(), 12, 3600) if number < 3 else mllog()
        (place / f"result_{number}.txt").write_text("".join(lines))
    told = [run.problems for run in read_results([tmp_path]).runs]
    assert [bool(each) for each in told] == [True, True, True, False, False]
    assert told[0][0].startswith("3,600 s pass before line 13, but of another run no gap is longer than 10 s")
    assert "the clock may have jumped forward" in told[0][0]
    (alone,) = read_results([place / "result_0.txt"]).runs
    assert "no other gap is longer than 10 s" in alone.problems[0]
    assert not read_results([place / "result_4.txt"]).runs[0].problems


def test_long_blocks_are_no_jump(tmp_path: Path) -> None:
    """A first block that is longer in every run, or the only one, is none."""
    place = tmp_path / "acme" / "8xA" / "net"
    place.mkdir(parents=True)
    for number in range(3):
        (place / f"result_{number}.txt").write_text("".join(ahead(mllog(), 6, 600)))
    assert not any(run.problems for run in read_results([tmp_path]).runs)
    short = [*mllog()[:10], event(1.6e9 + 9000, "run_stop", status="success")]
    (place / "result_0.txt").write_text("".join(short))
    assert not read_results([place / "result_0.txt"]).runs[0].problems


@pytest.mark.parametrize("count", [{"epoch_count": 1000}, {}])
def test_a_first_block_of_more_epochs_is_no_jump(count: dict[str, int]) -> None:
    """A run that evaluates after 1,000 epochs, and then after each 20, was said to have lines missing, if it was the only one."""

    def told(jump: int) -> tuple[str, ...]:
        lines, time = [event(1.6e9, "global_batch_size", 64), event(1.6e9, "run_start")], 1.6e9
        for at in range(20):
            epochs = 20 if at else 1000
            last = 1000 + 20 * at
            many = {"epoch_count": epochs} if count else {}
            lines.append(event(time, "block_start", first_epoch_num=last - epochs + 1, **many))
            time += epochs / 2 + (0 if at else jump)
            done = {"epoch_num": last}
            lines += [
                event(time, "block_stop", first_epoch_num=last - epochs + 1),
                event(time, "eval_start", **done),
            ]
            time += 4
            lines.append(event(time, "eval_accuracy", 0.9, **done))
        (run,) = runs_in(read_log([*lines, event(time, "run_stop", status="success")]), "run")
        return with_jumps([run])[0].problems

    assert told(0) == ()
    (problem,) = told(3600)
    assert problem.startswith("4,100 s pass before line 4, but no other gap is longer than 10 s")


def test_a_run_without_the_time_of_its_start_has_no_score(tmp_path: Path) -> None:
    """It took 1,600,000,038 s."""
    lines = [event(0, "run_start") if '"run_start"' in text else text for text in mllog()]
    (run,) = runs_in(read_log(lines), "run")
    assert (run.run_s, run.succeeded, run.problems[0]) == (None, False, "no time of run_start")
    lines = [event(0, "run_stop", status="success") if '"run_stop"' in text else text for text in mllog()]
    (run,) = runs_in(read_log(lines), "run")
    assert (run.run_s, run.succeeded, run.problems[0]) == (None, False, "no time of run_stop")


def test_a_compressed_log_that_was_cut_counts_as_the_plain_one_does(tmp_path: Path) -> None:
    """It was left out, so that the score was one of fewer runs, none of them failed."""
    found = []
    for kind in ("plain", "gz"):
        place = tmp_path / kind / "acme" / "8xA" / "net"
        place.mkdir(parents=True)
        for number in range(3):
            whole = "".join(mllog()).encode()
            packed = gzip.compress(whole, 0)  # as long as the text
            packed = packed if number else packed[: len(packed) * 2 // 3]
            text = packed if kind == "gz" else zlib.decompressobj(31).decompress(packed)
            (place / f"result_{number}.txt{'.gz' if kind == 'gz' else ''}").write_bytes(text)
        (one,) = cells_of(read_results([tmp_path / kind]).runs)
        found.append((len(one.runs), len(one.succeeded), one.score_s))
    assert found[0] == found[1] == (3, 2, 33)
    empty = tmp_path / "result_0.txt.gz"
    empty.write_bytes(gzip.compress(b"".join(text.encode() for text in mllog()))[:12])
    with pytest.raises(UnreadableTraceError):
        read_results([empty])


# -- several ranks -----------------------------------------------------------------------------------


def test_a_wrapped_log_with_the_launcher_s_text_before_each_line_says_the_same() -> None:
    """What MPI writes before a line stayed within the event that was joined from it and the line before."""
    (plain,) = runs_in(read_log(mllog()), "run")
    for before in ("[1,0]<stdout>:", "3: "):
        lines = [before + part for text in mllog() for part in wrapped([text], 86)]
        assert runs_in(read_log(lines), "run") == [
            replace(plain, gaps=runs_in(read_log(lines), "run")[0].gaps)
        ]
        assert not read_log(lines).defects


@pytest.mark.parametrize("skew", [100, 800, 1900])
def test_what_ranks_with_several_clocks_log_counts_once(skew: int) -> None:
    """Blocks and evaluations of ranks 0.8 s apart counted twice."""
    lines = [text for line in mllog() for text in (line, later(line, skew))]
    (run,) = runs_in(read_log(lines), "run")
    assert (run.run_s, run.epochs, run.evaluations, len(run.blocks), run.problems) == (33, 3, 3, 3, ())


@pytest.mark.parametrize("ranks", [1, 2])
def test_evaluations_close_to_each_other_stay_two(ranks: int) -> None:
    """Of one rank, and of two: their number of an epoch may lag, so that both carry the same."""
    lines = [event(1.6e9, "run_start")]
    for at in range(4):
        begin = 1.6e9 + 1.2 * at
        lines += [
            event(begin, "block_start", first_epoch_num=at + 1, epoch_count=1), event(begin + 1, "eval_start", epoch_num=1),
            event(begin + 1.1, "eval_accuracy", 0.1 * at, epoch_num=1),
        ]  # fmt: skip
    lines.append(event(1.6e9 + 5, "run_stop", status="success"))
    lines = [later(line, 700 * rank) for line in lines for rank in range(ranks)]
    (run,) = runs_in(read_log(lines), "run")
    assert (run.evaluations, run.epochs) == (4, 4)


# -- shares --------------------------------------------------------------------------------------------


def test_initialisation_training_and_evaluation_have_their_shares(tmp_path: Path) -> None:
    """That of initialisation was nowhere: 4 s before a run of 33 s, of which 3 s are evaluations."""
    place = tmp_path / "acme" / "8xA" / "net"
    place.mkdir(parents=True)
    (place / "result_0.txt").write_text("".join(mllog()))
    results = read_results([tmp_path])
    row = cells_table(cells_of(results.runs)).row(0, named=True)
    assert row["init_share"] == pytest.approx(4 / 37)
    assert [row[f"{name}_share"] for name in ("training", "evaluation", "start")] == pytest.approx([30 / 33, 3 / 33, 0])  # fmt: skip
    shares = next(table for table in mlperf_section(results).tables if table.name == "shares")
    assert set(shares.short) >= {"init_share", "training_share", "evaluation_share", "start_share"}


def test_a_log_given_twice_counts_once(tmp_path: Path) -> None:
    folder = submitted(tmp_path / "here", chips=(8,))
    log = next(folder.rglob("*.txt"))
    assert len(read_results([folder, log]).runs) == 3


def test_a_run_that_was_cut_early_makes_no_other_a_jump(tmp_path: Path) -> None:
    """Its longest gap is shorter, since it has not come as far."""
    place = tmp_path / "acme" / "8xA" / "net"
    place.mkdir(parents=True)
    for number in range(3):
        lines = ahead(mllog(), 12, 600)
        (place / f"result_{number}.txt").write_text("".join(lines if number else lines[:9]))
    assert [len(run.problems) for run in read_results([tmp_path]).runs] == [1, 0, 0]


# -- what is said of faults ----------------------------------------------------------------------------


def test_an_argument_without_results_is_said_and_the_others_are_answered(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One empty folder, empty file, damaged log or table among good ones refused the whole answer."""
    good = submitted(tmp_path / "good")
    (empty := tmp_path / "empty").mkdir()
    (nothing := tmp_path / "zero.txt").touch()
    packed = bytearray(gzip.compress("".join(mllog() * 99).encode()))
    packed[100:140] = bytes(40)
    (damaged := tmp_path / "result_1.txt.gz").write_bytes(packed)
    (table := tmp_path / "table").mkdir()
    for name in ("runs.csv", "events.csv.gz"):
        (table / name).write_text("none\n")
    for others, said in (
        ([good], "16 chips train 2 times"),
        (sorted(good.rglob("*.txt")), "The results hold 1 config"),
    ):
        with pytest.raises(SystemExit) as leave:
            main(["scaling", *map(str, [empty, *others, nothing, damaged, table])])
        text = capsys.readouterr()
        assert not leave.value.code, text.err
        assert said in " ".join(text.out.split())
        lines = text.err.splitlines()
        assert [line.partition(": left out: ")[2].partition(":")[0] for line in lines] == [
            str(path) for path in (empty, nothing, damaged, table)
        ]
    with pytest.raises(SystemExit) as leave:
        main(["scaling", str(empty), str(table)])
    assert leave.value.code == 3
    assert "it is not a table of MLPerf runs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("statuses", "said", "score"),
    [
        (("aborted", "cut", "success", "success"), "2 runs failed or were cut short, and count as slowest.", False),
        (("back", "success", "success", "success"), "1 run has no time by its clock, and counts as slowest.", True),
        (("unknown", "success", "success", "success"), "1 run does not say how it ended, and counts as slowest.", True),
    ],
)  # fmt: skip
def test_runs_that_count_as_slowest_are_said_for_what_they_are(
    statuses: tuple[str, ...], said: str, score: bool
) -> None:
    """A run whose clock was set back "failed or was cut short", and where two of five runs failed "its runs failed"."""
    runs = []
    for status in statuses:
        fields = {"success": {}, "back": {"run_s": None}}.get(status, {"status": status})
        runs.append(replace(a_run(100, 10), system="8xA", accelerators=8, **fields))
    answer = mlperf_section(Results(tuple(runs))).answer
    assert said in answer
    assert answer.count("slowest") == (1 if score else 2)
    why = "1 configuration has no score, because too many of its runs count as slowest."
    assert (why in answer) is not score


def test_sizes_whose_chips_are_not_known_are_not_denied(tmp_path: Path) -> None:
    """Two sizes of one system were "no system in two sizes"."""
    runs = [replace(a_run(100, 10), system=f"dgxa100_n{nodes}") for nodes in (8, 16)]
    assert "but no system in two sizes whose score and chips are known," in mlperf_section(Results(tuple(runs))).answer  # fmt: skip
    one = (replace(runs[0], accelerators=64),)
    assert "but no system in two sizes, so" in mlperf_section(Results(one)).answer


def test_errors_say_what_was_given() -> None:
    """The forecast of a size that was left out had its epochs, and the answer did not say so."""
    runs = [replace(a_run(100 / chips, 10), system=f"{chips}xA", accelerators=chips) for chips in (1, 2, 4)]
    section = mlperf_section(Results(tuple(runs)))
    assert "the forecast from all others, given its batch and epochs, errs by" in section.answer
    (errors,) = (table for table in section.tables if table.name == "errors")
    assert errors.title == "Errors for the largest size left out, its batch and epochs given"


@pytest.mark.parametrize("width", [60, 80])
def test_what_limits_a_step_has_room_on_a_narrow_page(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Beside the batches of a series with several there was none for the answer."""
    submitted(tmp_path, chips=(8, 16, 32))
    for log in list(tmp_path.rglob("*.txt")):
        text = log.read_text().replace('"value": 64', '"value": 128')
        log.with_name(f"result_{log.stem[-1]}0.txt").write_text(text)
    monkeypatch.setenv("COLUMNS", str(width))
    with pytest.raises(SystemExit):
        main(["scaling", str(tmp_path)])
    page = capsys.readouterr().out
    steps = page[page.index("From each size to the next") : page.index("Sizes that were not run")]
    assert "limited by" in steps.splitlines()[1]
    assert steps.count(" none") == 4


def test_evaluations_count_until_the_run_ends() -> None:
    """Those that end later left no time to train, which was a fault in tracekit for series of three sizes."""

    def runs(evaluation: tuple[float, float], begin: float) -> list[LoggedRun]:
        fields: dict[str, Any] = {"blocks": ((begin, 25.0, 10.0),), "evaluation_s": (evaluation,), "evaluations": 1}  # fmt: skip
        return [replace(a_run(20, 10, **fields), system=f"{chips}xA", accelerators=chips) for chips in (1, 2, 4)]  # fmt: skip

    assert cells_of(runs((15.0, 99.0), 0.0))[0].shares == (1, 0, 0)
    assert cells_of(runs((15.0, 99.0), 16.0))[0].shares == pytest.approx((3 / 20, 1 / 20, 16 / 20))
    nothing = runs((0.0, 99.0), 22.0)
    assert cells_of(nothing)[0].shares is None
    assert "4 chips train 1 times as fast as 1" in mlperf_section(Results(tuple(nothing))).answer
