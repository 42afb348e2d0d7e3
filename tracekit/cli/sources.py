"""The files of a command, read as it needs them, with progress on a terminal's stderr."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Final

from tracekit.answers import Question
from tracekit.cli.ceilings import kept_measurements, with_ceilings
from tracekit.cli.libraries import is_file, suit_libraries
from tracekit.cli.options import Reading, Selection
from tracekit.cli.output import say
from tracekit.errors import UnreadableTraceError, UsageError, nearest
from tracekit.facts.capture_names import MANIFEST_FILE
from tracekit.facts.terminal_text import printable
from tracekit.files import digest_of, keep_inputs

if TYPE_CHECKING:
    from tracekit.range_filter import RangeFilter
    from tracekit.readers.ncu import NcuReport
    from tracekit.trace import Trace

__all__ = [
    "Sources",
    "attached",
    "expanded",
    "listed",
    "local",
    "one_file",
    "read_each",
    "read_one",
    "read_reports",
    "shown",
    "tell_unread",
]

_MOST_SAID: Final = 8

_LONG_HASH_BYTES: Final = 256 << 20
"""The digest of less than this is known before Polars could be imported."""

_PROGRESS_AFTER_S: Final = 0.5
_PROGRESS_EVERY_S: Final = 0.1


class Sources:
    """Trace files, the selection among their traces, and tables of Nsight Compute that belong to them."""

    def __init__(
        self,
        paths: Sequence[Path],
        selection: Selection,
        reading: Reading,
        ncu: Sequence[Path] | None = None,
        *,
        machine: Path | None = None,
        all_processes: bool = False,
    ) -> None:
        self._paths = paths
        self._selection = selection
        self._reading = reading
        self._ncu = [local(path) for path in ncu or ()]
        self._machine = None if machine is None else local(machine)
        keep_inputs([*paths, *self._ncu, *([self._machine] if self._machine else [])])
        self._all_processes = all_processes
        self.unread: list[tuple[str, str]] = []
        """Of several files those that cannot be read, each with what is wrong with it."""

    @cached_property
    def _digests(self) -> list[str | None]:
        suit_libraries(self._paths)
        return _digests_of(self._paths, no_cache=self._reading.no_cache)

    def question(self, *subject: object) -> Question:
        """What is asked about these files; an answer that depends on what cannot be cached is not kept."""
        if self._reading.no_cache:
            return Question(self._digests)
        metrics = _digests_of(self._ncu, no_cache=self._reading.no_cache)
        # A manifest beside a trace may say more of it.
        names = [(path.name, digest_of(path.parent / MANIFEST_FILE)) for path in self._paths]
        if len(names) > 1:  # which the folders tell apart, if the names do not
            subject = (*subject, [path.resolve().parent.name for path in self._paths])
        digests = [] if None in metrics else self._digests
        measured = (
            kept_measurements() if self._machine is None else _digests_of([self._machine], no_cache=False)
        )
        return Question(digests, *subject, names, self._selection, self._reading.limits, metrics, measured)

    def read(self) -> tuple[list[Trace], bool]:
        """The traces, and whether nothing is to be said of them: stderr has which of several files cannot be read, which tables
        of Nsight Compute do not fit, and which measured ceilings cannot be used.

        Raises UnreadableTraceError if no file can be read. Raises UsageError when no trace, or more than one,
        is of the rank, when none is of the process, for a pattern that is no regular expression, when the choice
        of ranges leaves a trace none, and for measured ceilings of another device.
        """
        reports = read_reports(self._ncu)
        selection = self._selection
        ranges = selection.ranges.filter
        traces = _of_process(self._all(), selection.process)
        if selection.rank is not None:
            traces = [_of_rank(traces, selection.rank)]
        measured = [with_ceilings(_with_ranges(trace, ranges), self._machine) for trace in traces]
        pairs = [attached(trace, reports) for trace, _ in measured]
        fit = all(fits for _, fits in (*measured, *pairs))
        return [trace for trace, _ in pairs], fit and not self.unread

    def _all(self) -> list[Trace]:
        """Every trace of the files, with the communication that the patterns name."""
        patterns = self._selection.comm_pattern
        limits = replace(self._reading.limits, all_processes=self._all_processes)
        import tracekit.api

        traces: list[Trace] = []
        faults: list[UnreadableTraceError] = []
        for path, digest in zip(self._paths, self._digests, strict=True):
            progress = _progress(path)
            try:
                found = tracekit.api.read_all(
                    path, limits=limits, cache=digest is not None, digest=digest, progress=progress
                )
                if len(self._paths) > 1:
                    from tracekit.job.parts import check_events

                    for trace in found:
                        check_events(trace, str(path))
                traces += found
            except UnreadableTraceError as error:
                faults.append(error)
                self.unread.append((str(path), error.fault))
            finally:
                progress(-1, 0)
        if not traces:
            raise faults[0]
        tell_unread(self.unread)
        if not patterns:
            return traces
        from tracekit.classify import recategorise

        traces = [recategorise(trace, patterns) for trace in traces]
        _check_patterns(traces, patterns)
        return traces


def tell_unread(failed: Sequence[tuple[str, str]]) -> None:
    """Print a line on stderr for each of these paths and faults, of many for the first."""
    for path, fault in failed[:_MOST_SAID]:
        say(f"tracekit: left out: {shown(Path(path))}: {fault}")
    if len(failed) > _MOST_SAID:
        say(f"tracekit: left out: {len(failed) - _MOST_SAID:,} more")


def _check_patterns(traces: Sequence[Trace], patterns: Sequence[str]) -> None:
    """Raise UsageError for a pattern of --comm-pattern that matches no name, if there are names."""
    import polars as pl

    names = pl.concat([trace.device["name"].cast(pl.String).unique() for trace in traces]).unique().sort()
    for pattern in patterns if names.len() else ():
        if not names.str.contains(f"(?i){pattern}").any():
            by_word = {word: name for name in names for word in re.findall(r"[A-Za-z]{3,}", name or "")}
            like = nearest(re.sub(r"\W", "", pattern), by_word, "tracekit kernels lists their names")
            raise UsageError(f"no kernel matches --comm-pattern {pattern!r}", remedy=like)


def read_one(path: Path, process: int | None, reading: Reading, ranges: RangeFilter | None = None) -> Trace:
    """The one trace of a file, or that of a process of it; of its named ranges `ranges` count as layers.

    Raises UnreadableTraceError when it cannot be read, UsageError when it holds several processes and none is named,
    or `ranges` leaves none.
    """
    traces, _ = Sources([path], Selection(process=process), reading).read()
    if len(traces) > 1:
        raise UsageError(
            f"it holds {len(traces)} processes", path=path, remedy=f"name one: --process {_listed(traces)}"
        )
    return _with_ranges(traces[0], ranges)


def expanded(paths: Sequence[Path]) -> list[Path]:
    """The paths that `listed` gives, and what is at an address fetched; see there and `local` for what is raised."""
    return list(map(local, listed(paths)))


def listed(paths: Sequence[Path]) -> list[Path]:
    """The same paths, with `-` as standard input, and a folder, also one in a store, replaced by the traces in it: of a capture
    one a rank.

    Of several, folders with a damaged manifest or without traces are told on stderr; if nothing is left, one raises
    UnreadableTraceError.
    """
    files: list[Path] = []
    faults: list[UnreadableTraceError] = []
    for path in paths:
        try:
            files += _files_of(path)
        except UnreadableTraceError as error:  # noqa: PERF203 - few paths
            faults.append(error)
    if faults and not files:
        raise faults[0]
    tell_unread([(error.path or "", error.fault) for error in faults])
    return files


def _files_of(path: Path) -> list[Path]:
    if address := _address(path):
        from tracekit.readers.remote import traces_at

        return list(map(Path, traces_at(address)))
    if not _is_folder(here := local(path)):
        return [here]
    from tracekit.readers.folder import traces_below

    return traces_below(here)


def shown(path: Path) -> str:
    """The path as it may be printed: an address without what is secret in it."""
    address = _address(path)
    if address is None:
        return str(path)
    from tracekit.readers.remote import masked

    return masked(address)


def _address(path: Path) -> str | None:
    """The address that stands for the path, unless that of a file of this machine."""
    if ":" not in str(path):
        return None
    from tracekit.readers.remote import address_of

    address = address_of(path)
    return None if address is None or address.startswith("file:") else address


def local(path: Path) -> Path:
    """The path; instead of an address (https://, s3://, …) that of the file there, fetched for as long as the command runs.

    Raises UnreadableTraceError if it cannot be fetched, and UsageError for an address of an unknown kind.
    """
    if str(path) == "-":
        return Path("/dev/stdin")
    if ":" not in str(path):
        return path
    from tracekit.readers.remote import address_of, fetch, masked

    address = address_of(path)
    if address is None:
        return path
    progress = _progress(Path(masked(address)), "fetching")
    try:
        return fetch(address, progress)
    finally:
        progress(-1, 0)


def one_file(path: Path) -> Path:
    """The one trace of a file, a folder or standard input; see `expanded`. Raises UsageError if there are several."""
    paths = expanded([path])
    if len(paths) != 1:
        raise UsageError(
            "it holds several traces", path=path, remedy=f"give one of them, such as {quote(str(paths[0]))}"
        )
    return paths[0]


def read_each(paths: Sequence[Path], process: int | None, reading: Reading) -> list[tuple[str, list[Trace]]]:
    """The traces of each of several files, with a name that tells the file from the others. Those that cannot be read are told on stderr.

    Raises UnreadableTraceError if no file can be read, and UsageError if the one that there is has no such process.
    """
    from tracekit.names import told_apart

    files = expanded(paths)
    found: list[tuple[Path, list[Trace]]] = []
    faults: list[UnreadableTraceError | UsageError] = []
    for file in files:
        try:
            found.append((file, Sources([file], Selection(process=process), reading).read()[0]))
        except (UnreadableTraceError, UsageError) as error:  # noqa: PERF203 - few files
            faults.append(error)
    if not found:
        raise faults[0]
    tell_unread([(error.path or "", error.fault) for error in faults])
    return list(zip(told_apart([file for file, _ in found]), (traces for _, traces in found), strict=True))


def read_reports(paths: Sequence[Path] | None) -> list[NcuReport]:
    """The tables of Nsight Compute in these files. Raises UnreadableTraceError for one that holds none."""
    if not paths:
        return []
    files = [local(path) for path in paths]
    keep_inputs(files)
    from tracekit.readers.ncu import read_ncu

    return [read_ncu(file) for file in files]


def attached(trace: Trace, reports: Sequence[NcuReport]) -> tuple[Trace, bool]:
    """The trace with the metrics of the reports, and whether any kernel has them; if none has, stderr says so."""
    if not reports:
        return trace, True
    from tracekit.analyses.counters.ncu import join_ncu

    match = join_ncu(trace, *reports)
    if not match.linked:
        say(
            f"warning: {trace.meta.name}: none of the {match.measured:,} launches that Nsight Compute measured "
            f"matches one of the {match.kernels:,} kernels of the trace (name, grid or block differ for "
            f"{match.unmatched:,}, the number of launches for {match.ambiguous:,})"
        )
    return match.trace, match.linked > 0


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _digests_of(paths: Sequence[Path], *, no_cache: bool) -> list[str | None]:
    """The digest of each file's content, one after the other; None for what is not to be cached."""
    if no_cache:
        return [None] * len(paths)
    # A pipe cannot be read twice, and a device has no end.
    files = [path if is_file(path) else None for path in paths]
    if sum(file.stat().st_size for file in files if file) <= _LONG_HASH_BYTES:
        return [digest_of(file) if file else None for file in files]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as beside:
        hashing = [beside.submit(digest_of, file) if file else None for file in files]
        # Hashing releases the interpreter, so that it hides the import of Polars, which is needed most times.
        import tracekit.api  # noqa: F401

        return [it.result() if it else None for it in hashing]


def _of_process(traces: list[Trace], process: int | None) -> list[Trace]:
    """The traces of this process; all if `process` is None. Raises UsageError if there is no such process."""
    if process is None:
        return traces
    chosen = [trace for trace in traces if process in trace.meta.process_ids]
    if not chosen:
        raise UsageError(f"no trace belongs to process {process}", remedy=f"choose from {_listed(traces)}")
    return chosen


def _of_rank(traces: list[Trace], rank: int) -> Trace:
    """The one trace of this rank. Raises UsageError if there is none, or more than one."""
    chosen = [trace for trace in traces if trace.meta.rank == rank]
    if len(chosen) == 1:
        return chosen[0]
    ranks = ", ".join(f"{t.meta.name}: {'unknown' if t.meta.rank is None else t.meta.rank}" for t in traces)
    fault = f"{'several traces have' if chosen else 'no trace has'} rank {rank}"
    raise UsageError(fault, remedy=f"the ranks are {ranks}")


def _listed(traces: list[Trace]) -> str:
    return ", ".join(str(each) for trace in traces for each in trace.meta.process_ids) or "unknown"


def _with_ranges(trace: Trace, ranges: RangeFilter | None) -> Trace:
    """The same trace, in which only these user ranges count as layers."""
    if ranges is None:
        return trace
    from tracekit.analyses.attribution.layer_ranges import choose_ranges

    return choose_ranges(trace, ranges)


def _progress(path: Path, verb: str = "reading") -> Callable[[int, int], None]:
    """A line with the amount of the file that was read, on a terminal only; called with −1 it wipes itself."""
    began = shown = time.monotonic()
    visible = False
    wanted = sys.stderr.isatty()
    name = printable(path.name)

    def report(plain_bytes: int, _file_bytes: int) -> None:
        nonlocal shown, visible
        if not wanted:
            return
        now = time.monotonic()
        if plain_bytes < 0:
            if visible:
                sys.stderr.write("\r\033[K")
                sys.stderr.flush()
            return
        if now - began < _PROGRESS_AFTER_S or now - shown < _PROGRESS_EVERY_S:
            return
        shown, visible = now, True
        rate = plain_bytes / (now - began) / 1e6
        sys.stderr.write(f"\r\033[K{verb} {name}: {plain_bytes / 1e6:,.0f} MB, {rate:,.0f} MB/s")
        sys.stderr.flush()

    return report
