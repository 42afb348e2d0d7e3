"""The files that a command was given, read as it asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.cli.answers import Question
from tracekit.cli.asked import Reading, Which
from tracekit.cli.loading import attached, digests_of, load, load_all, manifest_digests, read_reports
from tracekit.range_filter import RangeFilter

if TYPE_CHECKING:
    from tracekit.trace import Trace

__all__ = ["Sources", "read_each", "read_one"]


class Sources:
    """Trace files, which of their traces are asked about, and tables of Nsight Compute that belong to them."""

    def __init__(
        self, paths: Sequence[Path], which: Which, reading: Reading, ncu: Sequence[Path] | None = None
    ) -> None:
        self._paths = paths
        self._which = which
        self._reading = reading
        self._ncu = ncu

    @cached_property
    def _digests(self) -> list[str | None]:
        return digests_of(self._paths, no_cache=self._reading.no_cache)

    def question(self, *asked: object) -> Question:
        """What is asked about these files; an answer that depends on what cannot be cached is not kept."""
        digests = self._digests
        metrics = digests_of(self._ncu or [], no_cache=self._reading.no_cache)
        known = zip(self._paths, manifest_digests(self._paths), strict=True)
        names = [(path.name, about) for path, about in known]
        limits = self._reading.limits
        return Question([] if None in metrics else digests, *asked, names, self._which, limits, metrics)

    def read(self) -> tuple[list[Trace], bool]:
        """The traces, and whether all tables of Nsight Compute fit them; if one does not, stderr says so.

        Raises UnreadableTraceError and UsageError as `load_all` and `read_reports` do.
        """
        reports = read_reports(self._ncu)
        loaded = load_all(
            self._paths,
            digests=self._digests,
            rank=self._which.rank,
            process=self._which.process,
            limits=self._reading.limits,
            comm_patterns=self._which.comm_pattern,
            ranges=self._which.ranges.filter,
        )
        fitted = [attached(trace, reports) for trace in loaded]
        return [trace for trace, _ in fitted], all(fits for _, fits in fitted)


def read_each(path: Path, process: int | None, reading: Reading) -> list[Trace]:
    """The traces of all processes of a file, or only that of one. Raises as `load_all` does."""
    digests = digests_of([path], no_cache=reading.no_cache)
    return load_all([path], digests=digests, rank=None, process=process, limits=reading.limits)


def read_one(path: Path, process: int | None, reading: Reading, ranges: RangeFilter | None = None) -> Trace:
    """The one trace of a file, or that of a process of it. Raises as `load` does."""
    (digest,) = digests_of([path], no_cache=reading.no_cache)
    return load(path, limits=reading.limits, digest=digest, process=process, ranges=ranges)
