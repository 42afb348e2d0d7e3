"""Logs of MLPerf as submitters and launchers write them: each says the same as the plain one."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import pytest

from tracekit.errors import UnreadableTraceError
from tracekit.mlperf import LoggedRun, cells_of, holds_results, read_results, series_of
from tracekit.mlperf.log import read_log
from tracekit.mlperf.runs import runs_in

Lines = list[str]


def event(time: float, key: str, value: object = None, **metadata: object) -> str:
    fields = {"namespace": "", "time_ms": round(1000 * time), "event_type": "POINT_IN_TIME", "key": key}
    return (
        f":::MLLOG {json.dumps({**fields, 'value': value, 'metadata': {'file': 'train.py', **metadata}})}\n"
    )


def mllog(count: str = "epoch", *, status: str | None = "success", at: float = 1.6e9) -> Lines:
    """A log of 3 blocks of 10 s, each with an evaluation of 1 s: 33 s, 3 epochs of 1,000 samples, a batch of 64."""
    lines = [
        event(at, "submission_benchmark", "net"), event(at + 1, "init_start"), event(at + 2, "global_batch_size", 64),
        event(at + 2, "train_samples", 1000), event(at + 5, "run_start"),
    ]  # fmt: skip
    for epoch in range(3):
        begin = at + 5 + 11 * epoch
        block = {"epoch": {"first_epoch_num": epoch + 1, "epoch_count": 1}, "samples": {"samples_count": 1000 * epoch}}[count]  # fmt: skip
        done = {"epoch": {"epoch_num": epoch + 1}, "samples": {"samples_count": 1000 * (epoch + 1)}}[count]
        lines += [
            event(begin, "block_start", **block), event(begin + 10, "block_stop", **block), event(begin + 10, "eval_start", **done),
            event(begin + 11, "eval_accuracy", 0.1 * epoch, **done), event(begin + 11, "eval_stop", **done),
        ]  # fmt: skip
    return [*lines, event(at + 38, "run_stop", status=status)] if status else lines


def wrapped(lines: Lines, width: int) -> Lines:
    return [text[at : at + width].rstrip("\n") + "\n" for text in lines for at in range(0, len(text), width)]


def later(text: str, ms: int) -> str:
    return re.sub(r'"time_ms": (\d+)', lambda match: f'"time_ms": {int(match[1]) + ms}', text)


def as_told(run: LoggedRun) -> tuple[object, ...]:
    return (
        run.status, run.run_s, run.init_s, run.epochs, run.evaluations, run.batch, run.accuracy,
        [(start, stop) for start, stop, _ in run.blocks], run.evaluation_s, run.problems,
    )  # fmt: skip


WRITTEN: dict[str, Callable[[Lines], Lines]] = {
    "ranks of slurm": lambda lines: [f"{at % 8}: {text}" for at, text in enumerate(lines)],
    "ranks of MPI": lambda lines: [f"[1,0]<stdout>:{text}" for text in lines],
    "coloured": lambda lines: [f"\x1b[32m{text.rstrip()}\x1b[0m\n" for text in lines],
    "a coloured mark": lambda lines: [text.replace(":::MLLOG ", "\x1b[1m:::MLLOG\x1b[0m ") for text in lines],
    "lines of Windows": lambda lines: [text.replace("\n", "\r\n") for text in lines],
    "text behind": lambda lines: [f"{text.rstrip()} (train.py:81) {{}}\n" for text in lines],
    "a tab": lambda lines: [text.replace(":::MLLOG ", ":::MLLOG\t") for text in lines],
    "broken at 40": lambda lines: wrapped(lines, 40),
    "broken between braces": lambda lines: [part for text in lines for part in (text[:-2] + "\n", text[-2:])],
    "two on a line": lambda lines: [a.rstrip() + b for a, b in zip(lines[::2], [*lines[1::2], "\n"], strict=False)],
    "four ranks": lambda lines: [f"{rank}: {later(text, 30 * rank)}" for text in lines for rank in range(4)][:-3],
    "a status in capitals": lambda lines: [text.replace("success", "SUCCESS") for text in lines],
    "a batch in quotes": lambda lines: [text.replace('"value": 64', '"value": "64"') for text in lines],
    "an accuracy by name": lambda lines: [text.replace('"value": 0.2', '"value": {"AUC": 0.2}') for text in lines],
}  # fmt: skip


@pytest.mark.parametrize("how", WRITTEN)
def test_however_a_log_is_written_it_says_the_same(how: str) -> None:
    (plain,) = runs_in(read_log(mllog()), "run")
    assert as_told(plain)[:6] == ("success", 33, 4, 3, 3, 64)
    (run,) = runs_in(read_log(WRITTEN[how](mllog())), "run")
    expected = as_told(plain)
    if how == "an accuracy by name":
        expected = (*expected[:6], (0.2,), *expected[7:])
    if how == "four ranks":  # an evaluation ends when the first rank says so
        assert (run.run_s, run.init_s, run.epochs, run.evaluations, run.problems) == (33, 4, 3, 3, ())
        return
    assert as_told(run) == expected


def test_samples_instead_of_epochs() -> None:
    """Blocks that are told by samples were one block, and the run had no epochs."""
    (plain,) = runs_in(read_log(mllog()), "run")
    (run,) = runs_in(read_log(mllog("samples")), "run")
    assert (run.epochs, run.evaluation_s) == (3, plain.evaluation_s)
    assert [block[:2] for block in run.blocks] == [block[:2] for block in plain.blocks]
    counted = [
        re.sub(r'"epoch_num": (\d)', r'"epoch_num": \g<1>00000', text)
        for text in mllog()
        if "block" not in text
    ]
    (bert,) = runs_in(read_log(counted), "run")  # its epoch_num are samples
    assert (bert.epochs, bert.last_epoch) == (300, 300_000)


@pytest.mark.parametrize(
    ("benchmark", "each", "size", "length", "epochs"),
    [
        ("bert", 300_000, 9_000_000, 512, 0.1),
        ("bert", 300_000, None, 512, None),
        ("gpt3", 300_000 * 2048, 9_000_000, 2048, 0.1),
        ("gpt3", 300_000 * 2048, 9_000_000, None, None),
        ("unet3d", 1000, 168, None, 3000),
    ],
)
def test_blocks_that_count_samples_or_tokens_are_no_epochs(
    benchmark: str, each: int, size: int | None, length: int | None, epochs: float | None
) -> None:
    """Three blocks of 300,000 samples were 900,000 epochs: only the numbers of evaluations were taken as samples."""

    def scaled(text: str) -> str:
        text = re.sub(r'"first_epoch_num": (\d+)', lambda match: f'"first_epoch_num": {(int(match[1]) - 1) * each}', text)  # fmt: skip
        text = text.replace('"epoch_count": 1', f'"epoch_count": {each}').replace('"value": 1000', f'"value": {size}')  # fmt: skip
        return re.sub(r'"epoch_num": (\d+)', lambda match: f'"epoch_num": {int(match[1]) * each}', text)

    lines = [scaled(text) for text in mllog() if size or "train_samples" not in text]
    told = [event(1.6e9, "max_sequence_length", length)] if length else []
    (run,) = runs_in(read_log([*told, *lines]), "run", benchmark=benchmark)
    assert run.epochs == (None if epochs is None else pytest.approx(epochs))


def test_blocks_of_one_epoch_beside_evaluations_that_count_samples() -> None:
    """Three evaluations up to 300,000 of a million samples, each after a block "of one epoch", were three epochs."""
    lines = [
        re.sub(r'"epoch_num": (\d)', r'"epoch_num": \g<1>00000', text).replace(
            '"value": 1000', '"value": 1000000'
        )
        for text in mllog()
    ]
    (run,) = runs_in(read_log(lines), "run")
    assert (run.epochs, run.last_epoch) == (0.3, 300_000)


def test_samples_of_an_evaluation_count_where_each_block_is_one_epoch() -> None:
    """Three blocks "of one epoch" were three epochs, where the last evaluation came after 3,000 of 4,000 samples."""
    lines = [
        text.replace('"samples_count"', '"epoch_count": 1, "samples_count"')
        if "block_start" in text
        else text
        for text in mllog("samples")
    ]
    lines = [text.replace('"value": 1000', '"value": 4000') for text in lines]
    (run,) = runs_in(read_log(lines), "run")
    assert (run.epochs, run.evaluations) == (0.75, 3)


@pytest.mark.parametrize("first", [0, 1])
def test_epochs_are_blocks_where_none_are_logged(first: int) -> None:
    """Such a run had no evaluation share, and epochs that count from 0 were one less."""
    (plain,) = runs_in(read_log(mllog()), "run")
    lines = [
        re.sub(r'"first_epoch_num": (\d+), "epoch_count": 1', r'"epoch_num": \1', text) for text in mllog()
    ]
    lines = [text.replace('"block_', '"epoch_') for text in lines]
    lines = [re.sub(r'"epoch_num": (\d)', lambda match: f'"epoch_num": {int(match[1]) - 1 + first}', text) for text in lines]  # fmt: skip
    (run,) = runs_in(read_log(lines), "run")
    assert as_told(run) == as_told(plain)
    assert cells_of([run])[0].shares == cells_of([plain])[0].shares == pytest.approx((30 / 33, 3 / 33, 0))


@pytest.mark.parametrize("kind", ["block", "epoch"])
@pytest.mark.parametrize(
    ("first", "evaluations", "epochs"),
    [
        (1, [1 + 0.05 * at for at in range(1, 16)], 0.75),  # as DLRM's reference logs
        (1, [0.05 * at for at in range(1, 16)], 0.75),
        (0, [0.05 * at for at in range(1, 16)], 0.75),
        (1, [1.5, 1.55, 1.6], 0.6),  # the first comes late
        (1, [1.75], 0.75),
        (0, [0.75], 0.75),
        (1, [1.5, 3.0, 4.5], 4.5),  # counted from 0
        (0, [0.5, 1.0], 1.0),
    ],
)
def test_parts_of_an_epoch_count_from_where_training_begins(
    kind: str, first: int, evaluations: list[float], epochs: float
) -> None:
    """An evaluation that carries 1.75 within the first epoch, called 1, was after 1.75 epochs."""
    number = (
        {"first_epoch_num": first, "epoch_count": 1}
        if kind == "block" and epochs <= 1
        else {"first_epoch_num": first}
    )
    lines = [event(1.6e9, "run_start"), event(1.6e9, f"{kind}_start", **(number if kind == "block" else {"epoch_num": first}))]  # fmt: skip
    for at, point in enumerate(evaluations, 1):
        lines += [event(1.6e9 + 9 * at, "eval_start", epoch_num=point), event(1.6e9 + 9 * at + 1, "eval_accuracy", 0.8, epoch_num=point)]  # fmt: skip
    (run,) = runs_in(read_log([*lines, event(1.6e9 + 900, "run_stop", status="success")]), "run")
    assert run.epochs == pytest.approx(epochs)
    assert run.last_epoch == evaluations[-1]


def test_steps_of_an_evaluation_are_epochs() -> None:
    """A run whose evaluations carry the number of the step alone had no epochs."""
    lines = [re.sub(r'"samples_count": (\d+)', lambda match: f'"step_num": {int(match[1]) // 50}', text) for text in mllog("samples")]  # fmt: skip
    (run,) = runs_in(read_log(lines), "run")
    assert (run.epochs, run.evaluations, len(run.blocks)) == (60 * 64 / 1000, 3, 3)
    (run,) = runs_in(read_log([text for text in lines if "batch" not in text]), "run")
    assert run.epochs is None


def evaluated(how: str, second: float) -> LoggedRun:
    """A run of 4 blocks of 100 s and 10,000 samples, each with an evaluation of 20 s by two metrics, the second so long after the first."""
    lines, time = [event(1.6e9, "train_samples", 1000), event(1.6e9, "run_start")], 1.6e9
    evaluations: list[tuple[float, dict[str, object]]] = []
    for at in range(4):
        # The end of a block may carry the number where the next one begins.
        lines += [event(time, "block_start", samples_count=10_000 * at), event(time + 100, "block_stop", samples_count=10_000 * (at + 1))]  # fmt: skip
        time += 100
        if how != "after training":
            evaluations.append((time, {"samples_count": 10_000 * (at + 1)}))
            time += 20
    if how == "after training":
        evaluations = [(time + 20 * at, {"samples_count": 10_000 * (at + 1)}) for at in range(4)]
        time += 80
    for begin, point in evaluations:
        names = ({}, {}) if how == "without names" else ({"metric": "FID"}, {"metric": "CLIP"})
        apart = [
            event(begin + 20 - second, "eval_stop", **point),
            event(begin + 20 - second, "eval_start", **point),
        ]
        lines += [
            event(begin, "eval_start", **point), event(begin + 20 - second, "eval_accuracy", 90, **point, **names[0]),
            *(apart if how == "each started" else []),
            event(begin + 20, "eval_accuracy", 0.1, **point, **names[1]), event(begin + 20, "eval_stop", **point),
        ]  # fmt: skip
    lines.append(event(time, "run_stop", status="success"))
    (run,) = runs_in(read_log(sorted(lines, key=lambda text: int(text.partition('"time_ms": ')[2].partition(",")[0]))), "run")  # fmt: skip
    return run


@pytest.mark.parametrize("how", ["with names", "without names", "each started", "after training"])
@pytest.mark.parametrize("second", [0.3, 5.0])
def test_an_evaluation_by_two_metrics_is_one(how: str, second: float) -> None:
    """It counted twice, what it took after its first metric was training, and blocks were paired with other evaluations than their own."""
    run = evaluated(how, second)
    assert (run.run_s, run.epochs, run.evaluations) == (480, 40, 4)
    if how != "without names" or second > 1:  # else the second one looks like that of another rank
        assert run.accuracy == (90, 0.1)
        assert sum(end - begin for begin, end in run.evaluation_s) == pytest.approx(80)
    assert cells_of([run])[0].shares == pytest.approx((400 / 480, 80 / 480, 0), abs=0.003)


def test_an_accuracy_that_is_no_number_is_an_evaluation() -> None:
    """The evaluation of a run that diverges was no line of a log, since NaN is no JSON."""
    log = read_log([text.replace('"value": 0.1', '"value": NaN') for text in mllog()])
    (run,) = runs_in(log, "run")
    assert (run.evaluations, run.epochs, log.defects) == (3, 3, {})


def test_a_run_that_starts_again_in_a_file_is_another_run() -> None:
    """It was one run that took as long as from the first start to the last stop."""
    for again in (
        mllog(at=1.7e9),
        [text for text in mllog(at=1.7e9) if "init" not in text and "submission" not in text],
    ):
        cut, run = runs_in(read_log([*mllog()[:9], *again]), "run")
        assert (cut.status, cut.run_s, run.status, run.run_s) == ("cut", None, "success", 33)
        assert all("2 runs in one file" in each.problems for each in (cut, run))


def test_a_long_line_takes_no_longer_than_its_length() -> None:
    """A line of quotes and backslashes took hours."""
    begun = monotonic()
    for text in (
        ":::MLLOG {" + "\\'" * 200_000,
        ":::MLL 1.0 a: {" + "'" * 99_999,
        ":::MLL 1.0 a: {'" + "\\'" * 99_999 + "\\",
    ):
        assert sum(count for count, _ in read_log([text]).defects.values()) == 1
    assert monotonic() - begun < 10


# -- folders ---------------------------------------------------------------------------------------


def submission(folder: Path, system: str, *, platform: str = "", described: bool = False) -> Path:
    place = folder / "acme" / "results" / system / "net"
    place.mkdir(parents=True)
    for number in range(5):
        told = [event(1.6e9, "submission_platform", platform)] if platform else []
        (place / f"result_{number}.txt").write_text("".join([*told, *mllog()]))
    if described:
        (folder / "acme" / "systems").mkdir(exist_ok=True)
        (folder / "acme" / "systems" / f"{system}.json").write_text(
            '{"number_of_nodes": 4, "accelerators_per_node": "8"}'
        )
    return place


def test_results_beside_other_texts_and_a_log_that_is_damaged(tmp_path: Path) -> None:
    """Requirements that lie before the results made them no results, and one damaged log ended the command with a fault."""
    place = submission(tmp_path, "box_8xA", described=False)
    (tmp_path / "acme" / "benchmarks").mkdir()
    (tmp_path / "acme" / "benchmarks" / "requirements.txt").write_text("numpy\n")
    packed = bytearray(gzip.compress("".join(mllog() * 99).encode()))
    packed[100:140] = bytes(40)
    (place / "result_5.txt.gz").write_bytes(packed)
    (place / "result_6.txt").write_text(":::MLPv0.5.0 resnet 1541635800.832 (train.py:12) run_start\n")
    assert holds_results(tmp_path)
    found = read_results([tmp_path])
    assert len(found.runs) == 5
    damaged, old, others = found.left_out
    assert "result_5.txt.gz: it cannot be read" in damaged
    assert "a form of round 0.5, which is not read" in old
    assert others == "1 file without a line of MLPerf's"
    with pytest.raises(UnreadableTraceError, match="cannot be read"):
        read_results([place / "result_5.txt.gz"])


def test_a_platform_of_so_many_nodes_is_not_of_so_many_chips(tmp_path: Path) -> None:
    """`4xDGXA100` was said to have 4 chips, and a pod of v4 half of its chips or of its cores."""
    for system, platform, chips in (("a_n4", "4xDGXA100", 32), ("b", "2xXE9680Lx8H200", 16), ("tpu-v4-512", "", None), ("tpu-v3-512-TF", "", 256)):  # fmt: skip
        (run, *_) = read_results([submission(tmp_path / system, system, platform=platform).parents[2]]).runs
        assert run.accelerators == chips, system


def test_rounds_side_by_side_are_scored_apart(tmp_path: Path) -> None:
    """Runs of one system in two rounds were one configuration, and its score that of neither."""
    for folder, seconds in (("training_results_v0.6", 10), ("training_results_v0.7", 5)):
        for chips in (8, 16):
            place = submission(tmp_path / folder, f"{chips}xA")
            for number, log in enumerate(sorted(place.iterdir())):
                end = 1.6e9 + 5 + seconds * 8 / chips + number / 1000
                log.write_text("".join([*mllog(status=None)[:-1], event(end, "run_stop", status="success")]))
    cells = cells_of(
        read_results([tmp_path / "training_results_v0.6", tmp_path / "training_results_v0.7"]).runs
    )
    assert [(cell.round, cell.accelerators, round(cell.score_s or 0, 3)) for cell in cells] == [
        ("v0.6", 8, 10.002), ("v0.7", 8, 5.002), ("v0.6", 16, 5.002), ("v0.7", 16, 2.502),
    ]  # fmt: skip
    assert list(series_of(cells)) == ["acme, A, net, v0.6", "acme, A, net, v0.7"]
    assert list(series_of(cells[::2])) == ["acme, A, net"]


def test_a_rank_whose_clock_is_fast_starts_no_other_run() -> None:
    lines = mllog()
    lines.insert(5, later(lines[4], 5000))
    (run,) = runs_in(read_log(lines), "run")
    assert (run.run_s, run.succeeded) == (33, True)


def test_the_folder_of_a_benchmark_alone_knows_its_system(tmp_path: Path) -> None:
    place = submission(tmp_path, "box", described=True)
    for given in (place, place / "result_0.txt", tmp_path):
        (run, *_) = read_results([given]).runs
        assert (run.organisation, run.system, run.benchmark, run.accelerators) == ("acme", "box", "net", 32)


def test_a_folder_s_name_does_not_change_the_unit(tmp_path: Path) -> None:
    """Tokens of GPT-3 were samples where the folder is called gpt3_tp8: 2,048 times the epochs."""
    for folder in ("gpt3", "gpt3_tp8"):
        place = submission(tmp_path / folder, "8xA").parent / folder
        place.mkdir()
        for log in sorted((place.parent / "net").iterdir()):
            lines = [re.sub(r'"epoch_count": 1|(?<="epoch_num": )[1-3]', lambda match: f"{match[0]}000000", text) for text in mllog()]  # fmt: skip
            told = [event(1.6e9, "submission_benchmark", "gpt3"), event(1.6e9, "max_sequence_length", 2048)]
            (place / log.name).write_text("".join([*told, *lines]))
            log.unlink()
        (run, *_) = read_results([tmp_path / folder]).runs
        assert run.benchmark == folder
        assert run.epochs == pytest.approx(3e6 / 2048 / 1000)


def test_a_run_that_is_cut_before_its_batch_counts_as_slowest(tmp_path: Path) -> None:
    """It was a configuration of its own, so that the score dropped a run that counts."""
    place = submission(tmp_path, "8xA")
    (place / "result_0.txt").write_text("".join(text for text in mllog(status=None) if "batch" not in text))
    (cell,) = cells_of(read_results([tmp_path]).runs)
    assert (len(cell.runs), len(cell.succeeded), cell.batch) == (5, 4, 64)
