"""Forward-mode differentiation (`torch.autograd.forward_ad`): an operator computes its result, and then the tangent of it by other calls.

Both stand in one record. The calls of the tangent are those behind the first that takes an input apart (`_fw_primal`) or stands for the
tangent of one that has none (`_efficientzerotensor`); or, where the formula needs neither, those with a number of autograd, which what
computes the result has not. At the end torch compares the tangent with the result (`_has_same_storage_numel`).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tracekit.groups import or_none
from tracekit.name_table import NameTable
from tracekit.spans import BoolArray, Nesting

__all__ = ["tangents"]

_APART: Final = ("aten::_fw_primal", "aten::_efficientzerotensor")
_COMPARED: Final = "aten::_has_same_storage_numel"


def tangents(host: pl.DataFrame, names: NameTable, nesting: Nesting) -> tuple[BoolArray, BoolArray]:
    """The calls that operators make for the tangents of their results: work of its own beside that of the operator around them.

    The second array marks those known by their number alone, which are such only where the operator around them does its own work: under
    `torch.func` it passes that on by a call with a number, too.
    """
    parent = nesting.parent
    apart, compared = (np.flatnonzero(names.which(those.__contains__)) for those in (_APART, (_COMPARED,)))
    apart, compared = apart[parent[apart] >= 0], compared[parent[compared] >= 0]
    behind, numbered = np.zeros(host.height, dtype=bool), np.zeros(host.height, dtype=bool)
    if not apart.size and not compared.size:
        return behind, numbered
    first = np.full(host.height, host.height)
    np.minimum.at(first, parent[apart], apart)
    has_tangent = np.zeros(host.height, dtype=bool)
    has_tangent[parent[compared]] = True
    inside = np.flatnonzero(parent >= 0)
    around = parent[inside]
    behind[inside] = inside > first[around]
    numbered[inside] = has_tangent[around] & (or_none(host["sequence"])[inside] >= 0)
    return behind, numbered
