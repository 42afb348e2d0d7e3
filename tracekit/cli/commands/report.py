"""`tracekit report`: the whole report, in every format."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tracekit.analyses.registry import BUILT_IN
from tracekit.classes import dataclass
from tracekit.cli import options as flags
from tracekit.cli import output as out
from tracekit.cli.libraries import bytes_of
from tracekit.cli.options import Reading, Selection, with_flags
from tracekit.cli.sources import Sources, listed, local
from tracekit.cli.workers import Workers
from tracekit.errors import UsageError
from tracekit.report import formats
from tracekit.report.formats import Can

if TYPE_CHECKING:
    from tracekit.analyses.scope import Scope
    from tracekit.answers import Question
    from tracekit.cli.jobs import Compare, Joint
    from tracekit.report.formats import FigureFormat, Format, Page
    from tracekit.report.model import Report, Section
    from tracekit.trace import Trace

__all__ = ["report"]

MOST_IN_FULL: Final = 8
"""Of so many traces each has a report of its own: the devices of one machine."""
MOST_AS_DATA: Final = 64
"""Of more traces the reports are written as data only if that is asked for: a file of 0.2 MB can hold hundreds of processes."""
LEAST_APART: Final = 4
"""Fewer traces are read before workers have started."""
APART_BYTES: Final = 256 << 20
PAIR: Final = 2

Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="ANALYSIS",
        help="Report only this analysis; repeatable.",
        autocompletion=lambda: [one.name for one in BUILT_IN],
    ),
]
Every = Annotated[
    bool,
    typer.Option("--all", help="Show the full report of every trace, even if there are many."),
]
Beside = Annotated[
    str | None,
    typer.Option(
        metavar="RANK[,RANK]",
        help="In the joint view of a job, set this rank beside another one, or beside the fastest, and say what first differs.",
    ),
]


@with_flags
def report(
    traces: flags.TraceFiles,
    selection: Selection,
    only: Only = None,
    top: flags.Top = None,
    every: Every = False,
    format_: flags.ReportFormat = None,
    output: flags.Output = None,
    figures: flags.Figures = None,
    figure_format: flags.FigureFormat = "svg",
    ncu: flags.Ncu = None,
    compare: Beside = None,
    jobs: flags.Jobs = None,
    engine: flags.EngineChoice = None,
    scheduler: flags.Scheduler = None,
    *,
    reading: Reading,
) -> None:
    """Report what bounds a run, what costs most, and what to try."""
    chosen = formats.choose_format(Can.REPORT, format_, output, command="report", several=True)
    _check(only)
    workers, pair, paths = Workers(engine, scheduler, jobs), _ranks_of(compare), listed(traces)
    page = out.page_for(chosen)
    as_text = figures is None and Can.FILES not in chosen.can
    alone = every or bool(only) or figures is not None or selection.chooses
    # Workers fetch what is at an address themselves; and to hash many files would take as long as to read them.
    many = as_text and not alone and len(paths) > 1 and (len(paths) > MOST_IN_FULL or workers.chosen)
    joint, sources = (
        _joined(paths, selection, reading, ncu, workers, pair)
        if many
        else (None, Sources(list(map(local, paths)), selection, reading, ncu))
    )
    asked = _Asked()
    if joint is None and as_text:
        asked = _Asked(
            sources.question("report", only, top, every, chosen, page, pair),
            sources.question("whole report") if len(paths) == 1 and pair is None else None,
        )
    if (text := asked.answer(sources, only, top, chosen, page)) is not None:
        out.emit(text, output)
        return
    if as_text and not many and not alone and not ncu and _are_large(paths, chosen):
        if Can.PROSE in chosen.can:
            joint, sources = _joined(paths, selection, reading, ncu, workers, pair)
        else:
            text, paths = _page(paths, selection, reading, workers, pair, top, asked.question)
            if text is not None:
                out.emit(text, output)
                return
            sources = Sources(list(map(local, paths)), selection, reading)
    scopes, joint, fits = _read(sources, selection, joint, pair, alone=alone)
    read = [one.trace for one in scopes]
    if joint is not None:
        scopes = _compared(scopes, joint)
    scopes, overview = _shown(scopes, joint, selection, chosen, pair, every=every)
    made, reports = _reports(scopes, only, top, chosen)
    if figures is not None:
        _draw(reports, figures, figure_format)
    if output is not None and Can.FILES in chosen.can:
        _write_tables(reports, output, chosen, joint)
        return
    text = formats.render_reports(chosen, _told_apart(reports, read), page, overview)
    all_read = joint is None or joint.section.table("unread") is None
    if fits and all_read:  # a warning is to be seen every time
        asked.keep(text, made[0] if len(read) == 1 and not only and joint is None else None)
    out.emit(text, output)


@dataclass(frozen=True)
class _Asked:
    """What is asked with these flags, and the whole report of one trace, which answers other questions as well; None for what is not kept."""

    question: Question | None = None
    whole: Question | None = None

    def answer(
        self, sources: Sources, only: list[str] | None, top: int | None, chosen: Format, page: Page
    ) -> str | None:
        """The text that was made before, or that the whole report gives; None if neither was kept, or it does not tell enough."""
        if self.question is None or (text := self.question.answer()) is not None:
            return None if self.question is None else text
        data = None if self.whole is None else self.whole.data()
        if data is None:
            return None
        from tracekit.report.kept import part_of, unpack

        report = unpack(data)
        lacks_digest = Can.DATA in chosen.can and not only and report is not None and report.digest is None
        if report is None or lacks_digest or (part := part_of(report, only, top)) is None:
            return None
        if Can.PROSE in chosen.can:
            text = formats.render_text(chosen, part, page)
        else:
            [trace] = sources.read()[0]
            text = formats.render_reports(chosen, [(part, trace)], page)
        self.question.keep(text)
        return text

    def keep(self, text: str, whole: Report | None) -> None:
        """Remember the text, and the whole report if there is one."""
        if self.question is not None:
            self.question.keep(text)
        if whole is not None and self.whole is not None and self.whole.is_kept:
            from tracekit.report.kept import pack

            # a name is no Unicode, or a number has more than 64 bits
            with suppress(ValueError, OverflowError):
                self.whole.keep_data(pack(whole))


def _read(
    sources: Sources, selection: Selection, joint: Joint | None, pair: Compare | None, *, alone: bool
) -> tuple[list[Scope], Joint | None, bool]:
    """The analysed parts of the traces, the job that they are, and whether all of them was read."""
    from tracekit.analyses.scope import select

    read, fits = sources.read()
    scopes = [select(one, window=selection.window.value, step=selection.step) for one in read]
    if joint is None and not alone and 1 < len(read) <= MOST_IN_FULL:
        from tracekit.cli.jobs import of_scopes

        joint = of_scopes(scopes, sources.unread, pair)
    return scopes, joint, fits


def _reports(
    scopes: Sequence[Scope], only: list[str] | None, top: int | None, chosen: Format
) -> tuple[list[Report], list[tuple[Report, Trace]]]:
    """The reports with all rows of their tables, and, with their traces, those with at most the `top` rows."""
    from tracekit.report.build import build_report
    from tracekit.report.kept import limited

    whole = Can.DATA in chosen.can and not only
    made = [build_report(one.trace, only=only, scope=one, digest=whole) for one in scopes]
    for one in scopes:
        one.forget()
    shown = [replace(one, sections=tuple(limited(each, top) for each in one.sections)) for one in made]
    return made, [(report, one.trace) for report, one in zip(shown, scopes, strict=True)]


def _check(only: list[str] | None) -> None:
    """Raises UsageError for a name of no analysis, before the traces are read."""
    from tracekit.analyses.registry import get_analysis

    for name in only or ():
        get_analysis(name)


def _ranks_of(compare: str | None) -> Compare | None:
    """The ranks of `--compare`. Raises UsageError if they are no ranks."""
    if compare is None:
        return None
    parts = compare.split(",")
    if len(parts) > PAIR or not all(part.strip().isdecimal() for part in parts):
        raise UsageError(f"--compare {compare} names no ranks", remedy="give one or two, such as 3 or 3,0")
    ranks = [int(part) for part in parts]
    if len(ranks) == PAIR and ranks[0] == ranks[1]:
        raise UsageError(f"--compare {compare} names one rank twice", remedy="give two ranks, such as 3,0")
    return ranks[0], ranks[1] if len(ranks) == PAIR else None


def _draw(reports: Sequence[tuple[Report, Trace]], folder: Path, form: FigureFormat) -> None:
    """Write the figures of each report."""
    out.without_notes_of_matplotlib()
    from tracekit.report.figures import write

    for one, own in _folders(reports, folder):
        write(one, own, form)


def _are_large(paths: Sequence[Path], chosen: Format) -> bool:
    """Whether workers should read these traces one by one: all at once would fill the memory, and text and pages do not need that."""
    files = [path for path in paths if path.is_file()]
    one_by_one = Can.REPORT in chosen.can and Can.DATA not in chosen.can
    return one_by_one and len(files) == len(paths) >= LEAST_APART and bytes_of(files) > APART_BYTES


def _page(
    paths: Sequence[Path],
    selection: Selection,
    reading: Reading,
    workers: Workers,
    pair: Compare | None,
    top: int | None,
    question: Question | None,
) -> tuple[str | None, list[Path]]:
    """The page of a job, which workers make; None if the files are none with a rank each, and which of them are still to be read."""
    from tracekit.cli.jobs import of_files, options_of
    from tracekit.cli.pages import page_of_job

    joint, readable = of_files(paths, selection, reading, workers, pair)
    if joint is None:
        return None, readable
    text = page_of_job(joint, options_of(selection, reading), top, workers.jobs)
    if text is not None and question and len(readable) == len(paths):
        question.keep(text)
    return text, list(paths)


def _joined(
    paths: Sequence[Path],
    selection: Selection,
    reading: Reading,
    ncu: list[Path] | None,
    workers: Workers,
    pair: Compare | None,
) -> tuple[Joint | None, Sources]:
    """The job of files that workers read, and its trace to look at first; without a job, the files that can be read."""
    from tracekit.cli.jobs import of_files

    joint, readable = of_files(paths, selection, reading, workers, pair)
    if joint is None:
        return None, Sources(list(map(local, readable)), selection, reading, ncu)
    return joint, Sources([local(Path(joint.path))], replace(selection, rank=joint.rank), reading, ncu)


def _compared(scopes: list[Scope], joint: Joint) -> list[Scope]:
    """The parts of traces with what the joint view says of the waits of each."""
    from tracekit.names import clean

    metas = [one.trace.meta for one in scopes]
    waited = [joint.waited(meta.path, clean(meta.name)) for meta in metas]
    return [replace(one, compared=ns) for one, ns in zip(scopes, waited, strict=True)]


def _shown(
    scopes: list[Scope],
    joint: Joint | None,
    selection: Selection,
    chosen: Format,
    pair: Compare | None,
    *,
    every: bool,
) -> tuple[list[Scope], Section | None]:
    """The parts of traces to report in full, and what stands above them: the joint view of a job, or an overview of many traces."""
    from tracekit.names import clean

    if joint is None and pair is not None:
        raise UsageError(
            "--compare needs the joint view of a job",
            remedy="give the traces of its ranks, without --all, --only and --rank",
        )
    if joint is None:
        if every:
            return scopes, None
        if Can.DATA not in chosen.can and Can.FILES not in chosen.can:
            return _few(scopes, selection)
        if len(scopes) > MOST_AS_DATA:
            raise UsageError(
                f"{len(scopes)} traces would each have a report in {chosen.value}",
                path=scopes[0].trace.meta.path if scopes[0].trace.meta.parts == len(scopes) else None,
                remedy="choose one with --process, --rank or a single file, or take all of them with --all",
            )
        return scopes, None
    same = [one for one in scopes if clean(one.trace.meta.name) == joint.name] or scopes
    first = next((one for one in same if one.trace.meta.path == joint.path), same[0])
    if Can.PROSE not in chosen.can and len(scopes) > 1:
        others = [one for one in scopes if one is not first]
        return scopes if Can.DATA in chosen.can else [first, *others], joint.section
    single = "--process PID" if first.trace.meta.parts > 1 else "a single file as argument"
    who, other = (
        (clean(first.trace.meta.name), f"{single} shows another")
        if joint.rank is None
        else (f"rank {joint.rank}", "--rank N shows another, and --all shows all")
    )
    answer = f"{joint.section.answer} The report below is for {who}; {other}."
    return [first], replace(joint.section, answer=answer)


def _few(scopes: list[Scope], selection: Selection) -> tuple[list[Scope], Section | None]:
    """The traces to report in full, and an overview of all; no overview if there are few enough for a report each."""
    read = [scope.trace for scope in scopes]
    if len(read) <= MOST_IN_FULL:
        return scopes, None
    from tracekit.report import several

    ranks = {trace.meta.rank for trace in read}
    if None not in ranks and len(ranks) == len(read):
        other = "--rank N shows another report"
    elif read[0].meta.parts == len(read):
        other = "--process PID shows another report"
    else:
        other = "a single file as argument shows another report"
    table = several.overview_table(read, window=selection.window.value, step=selection.step)
    on_cpu = not any(trace.has_device for trace in read)
    overview = several.overview(table, f"{other}, and --all shows all reports", on_cpu=on_cpu)
    return [scopes[several.busiest(table)]], overview


def _told_apart(reports: Sequence[tuple[Report, Trace]], read: Sequence[Trace]) -> list[tuple[Report, Trace]]:
    """The reports; those of files that share their name with another one that was read begin with the name of their folder."""
    from tracekit.report.presentation import trace_infos

    paths = {id(trace): info.path for trace, info in zip(read, trace_infos(read), strict=True)}
    return [
        (replace(report, trace=replace(report.trace, path=paths[id(trace)])), trace)
        for report, trace in reports
    ]


def _write_tables(
    reports: Sequence[tuple[Report, Trace]], output: Path, chosen: Format, joint: Joint | None
) -> None:
    from tracekit.report.tables import write, write_section

    for one, folder in _folders(reports, output):
        write(one, folder, chosen.value)
    if joint is not None:
        from tracekit.report.job import calls_table

        section = joint.section
        write_section(
            replace(section, tables=(*section.tables, calls_table(joint.job))), output / "job", chosen.value
        )


def _folders(reports: Sequence[tuple[Report, Trace]], folder: Path) -> list[tuple[Report, Path]]:
    """Each report with its folder: `folder` for one report, else a folder below it for each trace.

    Every capture calls its trace `trace.json.gz`, so traces of one name take in the name of their folder, and those that
    still have the same name a number.
    """
    if len(reports) == 1:
        return [(reports[0][0], folder)]
    names = [trace.meta.name for _, trace in reports]
    paths = [Path(trace.meta.path) for _, trace in reports]
    longer = [
        f"{path.resolve().parent.name}-{name}" if names.count(name) > 1 else name
        for name, path in zip(names, paths, strict=True)
    ]
    own = [
        name if longer.count(name) == 1 else f"{name}-{longer[:at].count(name) + 1}"
        for at, name in enumerate(longer)
    ]
    return [(report, folder / name) for (report, _), name in zip(reports, own, strict=True)]
