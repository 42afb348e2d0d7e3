"""`tracekit scaling`: how a program scales over its runs on 1, 2, 4 … ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli import options as flags
from tracekit.cli import output as out
from tracekit.cli.options import Reading, with_flags
from tracekit.cli.sources import expanded
from tracekit.cli.workers import Workers
from tracekit.errors import InconclusiveError, UnreadableTraceError, UsageError
from tracekit.files import is_special, keep_inputs
from tracekit.report import formats
from tracekit.report.formats import Can, Format

if TYPE_CHECKING:
    from tracekit.job.rank_set import Member
    from tracekit.report.model import Section
    from tracekit.scaling import Run

__all__ = ["scaling"]


class Batch(str, Enum):
    """Which batch is the same in all runs."""

    strong = "strong"
    weak = "weak"


@with_flags
def scaling(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN...",
            help="Runs of one program: each a trace, a folder or a pattern of the traces of its ranks. A folder may also hold several runs. "
            "Or results of MLPerf training: logs, or folders of them.",
        ),
    ] = None,
    fit: Annotated[
        Path | None, flags.flag("Results of MLPerf training to forecast from.", "--fit", metavar="RESULTS")
    ] = None,
    questions: Annotated[
        Path | None,
        flags.flag(
            "A CSV of configurations (benchmark, accelerators, batch, epochs): forecast their time to train.",
            "--forecast",
            metavar="FILE",
        ),
    ] = None,
    without_batch: Annotated[
        Batch | None,
        flags.flag(
            "If no batch is recorded: in every run, all ranks together (strong) or each rank (weak) had the same.",
            "--scaling",
            of=Batch,
        ),
    ] = None,
    step: flags.Step = None,
    format_: flags.ReportFormat = None,
    output: flags.Output = None,
    figures: flags.Figures = None,
    figure_format: flags.FigureFormat = "svg",
    jobs: flags.Jobs = None,
    engine: flags.EngineChoice = None,
    scheduler: flags.Scheduler = None,
    *,
    reading: Reading,
) -> None:
    """Show how a program scales over its runs on 1, 2, 4 … ranks.

    The speed-up and efficiency of each run, what efficiency is lost to, and the laws that the step times follow.
    """
    if fit is not None or questions is not None:
        _forecast(fit, questions, format_, output, unused=runs)
        return
    if not runs:
        raise UsageError("scaling needs runs", remedy="name runs, or --fit RESULTS --forecast FILE")
    chosen = formats.choose_format(Can.REPORT, format_, output, command="scaling", several=True)
    if (section := _of_results(runs)) is not None:
        out.emit_section(section, chosen, output, figures=figures, figure_format=figure_format)
        return
    compared = _compared(_read(runs, step, Workers(engine, scheduler, jobs), reading))
    from tracekit.report.scaling import scaling_section
    from tracekit.scaling import scaling_of

    section = scaling_section(
        scaling_of(compared, without_batch=None if without_batch is None else without_batch.value)
    )
    out.emit_section(section, chosen, output, figures=figures, figure_format=figure_format)


def _forecast(
    fit: Path | None,
    questions: Path | None,
    given: Format | None,
    output: Path | None,
    unused: Sequence[Path] | None,
) -> None:
    """Write the answers, as CSV unless a format is given. Raises UsageError unless both files are given, and nothing else."""
    if fit is None or questions is None or unused:
        raise UsageError(
            "a forecast needs --fit and --forecast, and no runs",
            remedy="tracekit scaling --fit RESULTS --forecast FILE -o ANSWERS.csv",
        )
    told = given or (Format.csv if output is None or is_special(output) else None)
    chosen = formats.choose_format(Can.FRAMES, told, output, command="scaling --forecast")
    from tracekit.mlperf import cells_of, read_results
    from tracekit.mlperf.questions import answers_of, borrowed, read_questions

    rows = read_questions(questions)
    keep_inputs([questions])
    results = read_results([fit])
    for line in results.left_out:
        out.say(f"tracekit: left out: {line}")
    answers = answers_of(cells_of(results.runs), rows)
    unknown = answers["predicted"].null_count()
    if unknown == answers.height > 0:
        raise InconclusiveError(
            "the results tell none of the times that are asked for",
            path=fit,
            remedy="ask for benchmarks that they hold, on systems whose number of chips they tell",
        )
    if unknown:
        out.say(f"tracekit: the results do not tell {unknown} of {answers.height} times")
    for line in borrowed(answers):
        out.say(f"tracekit: {line}")
    out.emit_frame(answers, chosen, output)


def _of_results(paths: Sequence[Path]) -> Section | None:
    """The section of results of MLPerf; None if no path is such. Each path that is none beside others is said, and left out."""
    from tracekit.mlperf import holds_results, read_results

    faults: list[UnreadableTraceError] = []
    of_mlperf = []
    for path in paths:
        try:
            if holds_results(path):
                of_mlperf.append(path)
                continue
            faults.append(UnreadableTraceError("it holds no log of MLPerf's, as others do", path=path))
        except UnreadableTraceError as fault:
            faults.append(fault)
    if not of_mlperf:
        return None
    from tracekit.report.mlperf import mlperf_section

    results = read_results(of_mlperf)
    for line in (*faults, *results.left_out):
        out.say(f"tracekit: left out: {line}")
    return mlperf_section(results)


def _read(runs: Sequence[Path], step: str | None, workers: Workers, reading: Reading) -> list[Run]:
    """The runs of these arguments; what cannot be read is said, and left out.

    Raises UnreadableTraceError if nothing can be read.
    """
    from tracekit.job import Options, summarise
    from tracekit.job.rank_set import Member
    from tracekit.scaling import runs_of

    given = [_traces_of(path) for path in runs]
    faults = [each for each in given if isinstance(each, UnreadableTraceError)]
    groups = [each for each in given if isinstance(each, list)]
    paths = [path for group in groups for path in group]
    # The workers of a scheduler have another working directory.
    places = {str(Path(path).absolute()) if workers.dask else path: path for path in paths}
    options = Options(reading.limits, not reading.no_cache, step=step)
    with workers.executor(len(places)) as executor:
        read = summarise(list(places), options, executor=executor, jobs=workers.jobs)
    outcomes = {places[one.path]: replace(one, path=places[one.path]) for one in read}
    faults += [
        UnreadableTraceError(one.error, path=one.path, remedy=one.remedy)
        for one in outcomes.values()
        if one.error
    ]
    members: list[list[Member]] = [
        [Member(path, summary) for path in group for summary in outcomes[path].summaries] for group in groups
    ]
    if not any(members):
        raise faults[0]
    for fault in faults:
        out.say(f"tracekit: left out: {fault}")
    return runs_of(members)


def _traces_of(path: Path) -> list[str] | UnreadableTraceError:
    """The traces of a run, or why there are none. The path may be a pattern that the shell left as it is."""
    matches = [Path(each) for each in sorted(glob(str(path)))]  # noqa: PTH207 - it may be absolute
    try:
        return [str(each) for each in expanded(matches or [path])]
    except UnreadableTraceError as error:
        return error


def _compared(runs: Sequence[Run]) -> list[Run]:
    """The runs with steps of the program that most are of; each of the others is said.

    Raises InconclusiveError if there is none.
    """
    from tracekit.scaling import same_program

    timed = [run for run in runs if run.step_times]
    for run in runs:
        if run not in timed and timed:
            out.say(
                f"tracekit: left out: {run.name}: no steps; --step REGEX names the ranges that are its steps"
            )
    if not timed:
        raise InconclusiveError("no run has steps", remedy="name the ranges that are steps with --step REGEX")
    same, others = same_program(timed)
    for run in others:
        what = (
            f"{run.program}, not {same[0].program}" if run.program and same[0].program else "another program"
        )
        out.say(f"tracekit: left out: {run.name}: it is a run of {what}")
    return same
