"""The ceilings of a device for work that was recorded on another one, whose precisions it may lack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

import polars as pl

from tracekit.analyses.roofline.pieces import pieces
from tracekit.analyses.roofline.rated import device_ceilings
from tracekit.analyses.scope import Scope
from tracekit.errors import InconclusiveError
from tracekit.facts.ceilings import Ceilings, chosen_ceilings
from tracekit.facts.units import format_share

__all__ = ["There", "ceilings_there", "stand_in"]

_STAND_IN: Final = "fp32"
_NARROW: Final = ("tf32", "bf16", "fp16")
"""What PyTorch computes in fp32 where a device has no unit for it. It does not run fp8 there, so nothing stands in for that."""
_MATTERS: Final = 0.05
"""If more of the time of the work has no peak on the other device, the prediction would be a guess."""


class There(NamedTuple):
    """The `ceilings` of another device, in which fp32 stands in for the precisions that it is `lacking`, of those that the work needs."""

    ceilings: Ceilings
    lacking: tuple[str, ...] = ()

    @property
    def told(self) -> str:
        """What that assumes, in words; empty if nothing."""
        if not self.lacking:
            return ""
        names = " or ".join(self.lacking)
        return (
            f"the catalogue has no {names} peak of {self.ceilings.device}: such work is assumed to run in {_STAND_IN}, where it may come closer to "
            "its roof than here"
        )

    def lacks(self) -> pl.Expr:
        """Whether a piece of work is in such a precision."""
        return pl.col("precision").is_in(self.lacking).fill_null(value=False)


def ceilings_there(scope: Scope, device: str) -> There:
    """The ceilings of a device that a user calls so, for the work of a scope.

    Raises UsageError for a device that is not in the catalogue, and InconclusiveError where the catalogue lacks a peak that the work needs.
    """
    work = pieces(scope)
    there = stand_in(chosen_ceilings(device), work)
    if lost := _unrated(work, device_ceilings(scope), there.ceilings):
        raise InconclusiveError(lost, path=scope.trace.meta.path, remedy="ask for a device with that peak")
    return there


def stand_in(new: Ceilings, work: pl.DataFrame) -> There:
    """The ceilings of a device for these pieces of work.

    >>> from tracekit.facts.ceilings import catalogue_ceilings
    >>> rows = pl.DataFrame({"precision": ["bf16"], "unit": ["matrix"], "flops": [1]})
    >>> there = stand_in(catalogue_ceilings("Tesla T4"), rows)
    >>> there.ceilings.peak("bf16") / 1e12, there.lacking
    (8.1, ('bf16',))
    """
    compute = dict(new.compute)
    for name in _NARROW:
        for unit in ("matrix", "vector"):
            rate = new.peak(_STAND_IN, unit)
            if new.peak(name, unit) is None and rate is not None:
                compute[name, unit] = rate
    needed = work.filter(pl.col("flops") > 0)["precision"].unique().to_list()
    known = new.peak(_STAND_IN) is not None
    lacking = (name for name in _NARROW if known and name in needed and not _has(new, name))
    return There(replace(new, compute=compute), tuple(lacking))


def _unrated(work: pl.DataFrame, old: Mapping[int, Ceilings], new: Ceilings) -> str:
    """What the catalogue lacks of a device, in words, if a part of the work that matters has a peak on its own device and none there; else
    empty.
    """
    rows = work.filter((pl.col("flops") > 0) & pl.col("precision").is_not_null())
    kinds = rows.group_by("device_id", "precision", "unit").agg(pl.col("piece_ns").sum()).rows()
    lost: dict[str, int] = {}
    for device, precision, unit, ns in kinds:
        here = old.get(device)
        known = here is not None and here.peak(precision, unit or "vector") is not None
        if known and new.peak(precision, unit or "vector") is None:
            lost[precision] = lost.get(precision, 0) + ns
    share = sum(lost.values()) / max(float(work["piece_ns"].sum()), 1.0)
    if share < _MATTERS:
        return ""
    names = " or ".join(sorted(lost))
    return (
        f"the catalogue has no {names} peak of {new.device}, and {format_share(share)} of the work needs it"
    )


def _has(ceilings: Ceilings, precision: str) -> bool:
    """Whether any of its units computes in the precision."""
    return any((precision, unit) in ceilings.compute for unit in ("matrix", "vector"))
