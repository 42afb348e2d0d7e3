"""The architectures of the `hf` workload. Importing it imports neither torch nor transformers."""

from __future__ import annotations

import difflib
from typing import Final

from tracekit.capture.workloads.hf import decoders as _hf_decoders
from tracekit.capture.workloads.hf import detection as _hf_detection
from tracekit.capture.workloads.hf import encoders as _hf_encoders
from tracekit.capture.workloads.hf import others as _hf_others
from tracekit.capture.workloads.hf import seq2seq as _hf_seq2seq
from tracekit.capture.workloads.hf import speech as _hf_speech
from tracekit.capture.workloads.hf import vision as _hf_vision
from tracekit.capture.workloads.hf.entry import HfEntry
from tracekit.errors import UsageError

__all__ = ["ENTRIES", "find", "names"]

ENTRIES: Final[dict[str, HfEntry]] = {
    entry.name: entry
    for module in (
        _hf_encoders,
        _hf_decoders,
        _hf_seq2seq,
        _hf_vision,
        _hf_detection,
        _hf_speech,
        _hf_others,
    )
    for entry in module.ENTRIES
}
"""All of them by name, families together."""

_BY_CLASS: Final = {entry.model.lower(): entry for entry in ENTRIES.values()}


def names() -> list[str]:
    """Return the names of all architectures, sorted."""
    return sorted(ENTRIES)


def find(name: str) -> HfEntry:
    """Return the architecture of that name, or of that model class; upper and lower case are the same.

    Raises `UsageError`, with the names that come close, when there is none.
    """
    wanted = name.lower()
    entry = ENTRIES.get(wanted) or _BY_CLASS.get(wanted)
    if entry is not None:
        return entry
    close = difflib.get_close_matches(wanted, [*ENTRIES, *_BY_CLASS], n=5, cutoff=0.5)
    close = list(dict.fromkeys(each if each in ENTRIES else _BY_CLASS[each].name for each in close))
    choice = f"did you mean {', '.join(close)}?" if close else "see tracekit capture --list"
    raise UsageError(f"unknown architecture {name!r}", remedy=choice)
