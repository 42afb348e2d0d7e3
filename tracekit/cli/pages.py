"""The page of a job in HTML, the part of each rank made where its trace is read: all traces at once would fill the memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from tracekit.classes import dataclass
from tracekit.cli.ceilings import with_ceilings
from tracekit.cli.jobs import Joint, reading_progress
from tracekit.cli.sources import shown
from tracekit.errors import UnreadableTraceError
from tracekit.job.engine import Options, make

__all__ = ["page_of_job"]


@dataclass(frozen=True, slots=True)
class _Places:
    """The files in the order of the page, what tells the reports apart, and what each trace is called."""

    paths: tuple[str, ...]
    names: tuple[str, ...]
    titles: tuple[str, ...]
    waited: tuple[int, ...]
    top: int | None


def page_of_job(joint: Joint, options: Options, top: int | None, jobs: int | None) -> str | None:
    """The page: the joint view, and a report of each rank, that of `joint` first; None where files hold several ranks, or ranks are not
    known. Raises UnreadableTraceError for a file that was readable before.
    """
    from tracekit.report.html import Part, join_parts

    places = _places_of(joint, top)
    if places is None:
        return None
    progress = reading_progress()
    try:
        answers = make(places.paths, partial(_parts, places=places), options, jobs=jobs, progress=progress)
    finally:
        progress(0, 0)
    for one in answers:
        if one.error is not None:
            raise UnreadableTraceError(one.error, path=shown(Path(one.path)), remedy=one.remedy)
    parts = [msgspec.json.decode(packed, type=Part) for one in answers for packed in one.packed]
    return join_parts(parts, joint.section)


def _places_of(joint: Joint, top: int | None) -> _Places | None:
    members = sorted(joint.members, key=lambda member: member.path != joint.path)
    ranks = [member.rank for member in members]
    if (
        None in ranks
        or len(set(ranks)) < len(ranks)
        or len({member.path for member in members}) < len(members)
    ):
        return None
    from tracekit.report.presentation import file_name

    paths = tuple(member.path for member in members)
    files = [Path(path).name for path in paths]
    titles = [
        file_name(path, in_folder=files.count(name) > 1) for path, name in zip(paths, files, strict=True)
    ]
    waited = tuple(joint.waited(member.path, member.summary.facts.name) for member in members)
    return _Places(paths, tuple(f"rank {rank}" for rank in ranks), tuple(titles), waited, top)


def _parts(path: str, options: Options, places: _Places) -> Iterator[bytes]:
    """Runs in a worker."""
    from tracekit.job.parts import scopes_of
    from tracekit.report.build import build_report
    from tracekit.report.html import part_of

    at = places.paths.index(path)
    for scope in scopes_of(path, options, lambda trace: with_ceilings(trace, None)[0]):
        chosen = replace(scope, compared=places.waited[at])
        report = build_report(chosen.trace, top=places.top, scope=chosen)
        report = replace(report, trace=replace(report.trace, path=places.titles[at]))
        yield msgspec.json.encode(part_of(report, chosen.trace, at, places.names))
