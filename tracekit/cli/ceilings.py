"""Measured ceilings beside the traces of a command: those of `--machine`, else those that `tracekit machine` left for the device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.cli.output import say
from tracekit.errors import UnreadableTraceError, UsageError
from tracekit.facts.units import count_of
from tracekit.files import digest_of, machines_folder

if TYPE_CHECKING:
    from tracekit.trace import Trace

__all__ = ["kept_measurements", "with_ceilings"]


_OTHER = "leave --machine out, or measure the device of the trace with tracekit machine"


def kept_measurements() -> list[tuple[str, str | None]]:
    """The measurements in tracekit's folder, each with the digest of its content: an answer may depend on them."""
    try:
        return [(path.name, digest_of(path)) for path in sorted(machines_folder().glob("*.json"))]
    except OSError:
        return []  # the folder may not be entered


def with_ceilings(trace: Trace, file: Path | None) -> tuple[Trace, bool]:
    """The trace with the ceilings in this file; without a file, with those that were measured for its device before, if the catalogue
    does not have it; and whether nothing is to be said of these: stderr has why they cannot be used.

    Raises UnreadableTraceError for a file that is no measurement, and UsageError for one of another device.
    """
    if file is None:
        return _with_kept(trace)
    from tracekit.machine_file import read_machine

    machine, threads = read_machine(file), _threads_of(trace)
    if (machine.device == "cpu") == trace.has_device:
        ran = "on a device" if trace.has_device else "on processors alone"
        raise UsageError(
            f"it is of {machine.device_name}, and {trace.meta.name} ran {ran}", path=file, remedy=_OTHER
        )
    names = {one.name for one in trace.meta.devices if one.name}
    if trace.has_device and names - {machine.device_name}:
        raise UsageError(
            f"it is of {machine.device_name}, and {trace.meta.name} ran on {', '.join(sorted(names))}",
            path=file,
            remedy=_OTHER,
        )
    ceilings = machine.ceilings(threads)
    if ceilings is None:
        raise UsageError(
            f"it has no rates with {count_of(threads or 0, 'thread')}",
            path=file,
            remedy=f"measure them with tracekit machine --threads {threads}",
        )
    return replace(trace, ceilings=ceilings), True


def _with_kept(trace: Trace) -> tuple[Trace, bool]:
    names = {one.name for one in trace.meta.devices}
    if not trace.has_device:
        names = set() if trace.manifest is None else {trace.manifest.device_name}
    name = names.pop() if len(names) == 1 else ""
    if not name:
        return trace, True
    from tracekit.facts.ceilings import catalogue_ceilings

    if catalogue_ceilings(name) is not None:
        return trace, True
    from tracekit.machine_file import stored_ceilings

    try:
        return replace(trace, ceilings=stored_ceilings(name, _threads_of(trace))), True
    except UnreadableTraceError as error:
        say(f"warning: {error}")
        return trace, False


def _threads_of(trace: Trace) -> int | None:
    """How many threads the program had on the processors; None on a device, or if the trace does not tell."""
    manifest = trace.manifest
    if trace.has_device or manifest is None:
        return None
    own = None if manifest.settings is None else manifest.settings.threads
    return own or manifest.cpu_threads
