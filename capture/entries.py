"""The entries of the catalogue that `tracekit.capture.catalogue` wrote. It imports no torch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

__all__ = ["CATALOGUE", "Entry", "catalogue", "of_published"]

CATALOGUE: Final = Path(__file__).with_name("catalogue.json")


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A workload: its name with the variant, its task, its parameters, and its default batch and size.

    `forward_flops` are the FLOPs of one sample of the default size; None if they could not be counted.
    """

    name: str
    task: str
    parameters: int
    forward_flops: int | None
    batch: int
    size: int | None


def catalogue() -> list[Entry]:
    """The workloads that come with tracekit."""
    return msgspec.json.decode(CATALOGUE.read_bytes(), type=list[Entry])


def of_published(name: str) -> str | None:
    """The workload `hf:NAME` that the name of a published model holds; None if it holds none.

    >>> of_published("bert-base-uncased"), of_published("distilbert/distilbert-base"), of_published("facebook/opt-125m")
    ('hf:bert', 'hf:distilbert', 'hf:opt')
    """
    words = "-".join(re.findall("[a-z0-9]+", name.rpartition("/")[2].lower()))
    architectures = (entry.name for entry in catalogue() if entry.name.startswith("hf:"))
    held = [each for each in architectures if re.search(rf"\b{each.removeprefix('hf:')}", words)]
    return max(held, key=len, default=None)
