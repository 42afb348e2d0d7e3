"""The flags of `tracekit capture` that do what an advice names in torch's words."""

from __future__ import annotations

import dataclasses
from typing import Final

from tracekit.findings import Finding
from tracekit.manifest import Manifest, Settings
from tracekit.report.model import Section, Verdict

__all__ = ["flags_for", "section_with_flags", "with_flags"]

_FLAGS: Final = (
    ("--workers", "workers", ("num_workers", "DataLoader workers")),
    ("--pin-memory", "pin_memory", ("pin_memory=True", "pinned memory", "pin host memory")),
    ("--precision", "precision", ("torch.autocast", "bf16 autocast", "precision (bf16")),
    ("--channels-last", "channels_last", ("memory_format=torch.channels_last",)),
    ("--compile", "compile", ("torch.compile",)),
    ("--checkpoint-activations", "checkpoint_activations", ("torch.utils.checkpoint",)),
    ("--batch", "batch", ("larger batch", "smaller micro-batch")),
    ("--threads", "threads", ("torch.set_num_threads",)),
    ("--shapes", "", ("record_shapes=True",)),
    ("--memory", "", ("profile_memory=True",)),
    ("--stack", "", ("with_stack=True",)),
    ("--warmup", "", ("warmup=", "After warm-up", "after warm-up")),
)
"""A flag, the setting that it sets, and the words in an advice that it answers."""


def flags_for(advice: str, settings: Settings) -> tuple[str, ...]:
    """The flags that follow an advice, in the order of the table, without switches that were on already.

    >>> flags_for("Raise num_workers, or use torch.compile and a larger batch.", Settings(compile=True))
    ('--workers', '--batch')
    """
    return tuple(
        flag
        for flag, setting, words in _FLAGS
        if any(word in advice for word in words) and getattr(settings, setting, None) is not True
    )


def with_flags(verdict: Verdict, manifest: Manifest | None) -> Verdict:
    """The verdict with the flags named behind each advice, where `tracekit capture` ran the training loop."""
    if manifest is None or manifest.settings is None:
        return verdict
    settings = manifest.settings
    told = tuple(dataclasses.replace(a, advice=_named(a.advice, settings)) for a in verdict.advice)
    return dataclasses.replace(verdict, advice=told)


def section_with_flags(section: Section, manifest: Manifest | None) -> Section:
    """The same for the findings of a section."""
    if manifest is None or manifest.settings is None:
        return section
    settings = manifest.settings
    return dataclasses.replace(section, findings=tuple(_finding(f, settings) for f in section.findings))


def _finding(finding: Finding, settings: Settings) -> Finding:
    return dataclasses.replace(finding, advice=_named(finding.advice, settings))


def _named(advice: str, settings: Settings) -> str:
    flags = flags_for(advice, settings)
    if not flags:
        return advice
    end = "." if advice.endswith(".") else ""
    return f"{advice.removesuffix('.')}; capture with {' or '.join(flags)}{end}"
