"""Records of calls that only pass the call on, to an inner one that does the work and is recorded again.

Of a tensor subclass (DTensor, jagged nested tensors, quantised weights) the outer record has the sizes and the type that the tensor
pretends to have; what its class does stands inside `PythonSubclass`. DTensor also asks there for the sizes of a result, on tensors
without data: a mode that is entered inside the class (`PythonDispatchMode`). A mode around an operator stands inside its record: it calls
the operator again or returns what it has (selective checkpointing a stored result, FakeTensorMode a tensor without data). Under `torch.func` (vmap, grad, jvp)
each level passes the call on by the same name, and the outer records have the sizes of one sample. Autocast calls the operator again in another type.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Final

import msgspec
import numpy as np
import polars as pl

from tracekit.analyses.flops.distinct_calls import INPUTS, Calls
from tracekit.analyses.flops.work import DTYPES, is_shape, json_list
from tracekit.groups import are_known, at_rows, groups, text_numbers, with_series
from tracekit.name_table import NameTable
from tracekit.spans import BoolArray, Int64Array, Nesting, take

__all__ = ["around", "passed_on"]

_SUBCLASS: Final = "PythonSubclass"
_MODE: Final = "PythonDispatchMode"
_COPY: Final = "aten::copy_"
_SAME, _OTHER, _BEHIND = "same", "other", "behind"


def passed_on(
    calls: Calls, host: pl.DataFrame, names: NameTable, nesting: Nesting, own_work: BoolArray
) -> tuple[Calls, BoolArray]:
    """The calls with their own inputs alone, and which spans of the host only pass a call on.

    `own_work` marks spans whose work is another than that of the operator around them.
    """
    mode = names.which(_MODE.__eq__)
    subclass = np.flatnonzero(names.which(_SUBCLASS.__eq__))
    handlers = np.concatenate([subclass, np.flatnonzero(mode)])
    aside = around(handlers, nesting, own_work)
    aside[handlers] = True
    if subclass.size:
        aside |= nesting.nearest_ancestor(_asked(mode, subclass, nesting)) >= 0
    again, caller = _again(are_known(host["shapes"]), names, nesting, own_work)
    if not again.size:
        return calls, aside
    kinds, own = _compared(again, caller, host)
    # A copy that converts is one of its own around the copy of what it converted.
    copies = names.which(_COPY.__eq__)
    aside[caller[(kinds == _OTHER) & ~copies[again]]] = True
    # One level may be autocast, which calls what it leaves as it is again; two are of torch.func alone.
    same = np.zeros(host.height, dtype=bool)
    same[again[kinds == _SAME]] = True
    levels = same & (nesting.nearest_ancestor(same, include_self=False) >= 0)
    levels[again[kinds == _BEHIND]] = True
    aside |= around(np.flatnonzero(levels), nesting, own_work)
    return _of_own(calls, own), aside


def around(spans: Int64Array, nesting: Nesting, own_work: BoolArray) -> BoolArray:
    """Which spans lie around these, up to one whose work is another than that of the operator around it."""
    found = np.zeros(own_work.size, dtype=bool)
    while spans.size:
        above = np.unique(nesting.parent[spans[~own_work[spans]]])
        above = above[above >= 0]
        spans = above[~found[above]]
        found[spans] = True
    return found


def _asked(mode: BoolArray, subclass: Int64Array, nesting: Nesting) -> BoolArray:
    """The modes that a tensor subclass enters."""
    of_class = np.zeros(mode.size, dtype=bool)
    of_class[subclass] = True
    asked: BoolArray = mode & (nesting.nearest_ancestor(of_class) >= 0)
    return asked


def _again(
    shaped: BoolArray, names: NameTable, nesting: Nesting, own_work: BoolArray
) -> tuple[Int64Array, Int64Array]:
    """The spans with inputs, the next of which around them is of the same name; and that one of each."""
    spans = np.flatnonzero(shaped & ~own_work & (nesting.parent >= 0))
    caller = take(nesting.nearest_ancestor(shaped), nesting.parent[spans])
    same = (caller >= 0) & (names.numbers[spans] == names.numbers[caller])
    return spans[same], caller[same]


def _compared(
    again: Int64Array, callers: Int64Array, host: pl.DataFrame
) -> tuple[np.ndarray, dict[int, int]]:
    """How the inputs of each span are to those of its caller, and the number of its own where others stand before them.

    `torch.func` records its whole stack, with the inputs of the call last: before them stand those of the caller.
    """
    inputs = [at_rows(host[column], spans) for spans in (again, callers) for column in ("shapes", "dtypes")]
    alike = groups(*(text_numbers(column) for column in inputs))
    texts = list(zip(*(at_rows(column, alike.first).cast(pl.String) for column in inputs), strict=True))
    relations = [_relation(*each, None) for each in texts]
    kinds = np.array([kind for kind, _ in relations], dtype=object)[alike.of]
    own = dict[int, int]()
    if any(count is not None for _, count in relations):
        for at, (span, caller, of) in enumerate(
            zip(again.tolist(), callers.tolist(), alike.of.tolist(), strict=True)
        ):
            kinds[at], count = _relation(*texts[of], own.get(caller))
            if count is not None:
                own[span] = count
    return kinds, own


@lru_cache(maxsize=4096)
def _relation(
    shapes: str, dtypes: str | None, shapes_above: str | None, dtypes_above: str | None, own: int | None
) -> tuple[str | None, int | None]:
    """The relation of inputs to those above them, of which the last `own` are its own (None: all), and how many are its own."""
    types, above = json_list(dtypes), json_list(dtypes_above)
    count = len(above) if own is None else own
    above = above[-count:] if count else above
    sizes, sizes_above = json_list(shapes), json_list(shapes_above)[-count:]
    if not above or len(types) % count or len(sizes) != len(types) or len(sizes_above) != count:
        return None, None
    if len(types) > count:
        # An empty one is a result that the operator is to fill (`out`), as where `abs` calls itself.
        behind = types == above * (len(types) // count) and not sizes[count:] == [[0]] != sizes_above
        return (_BEHIND, count) if behind else (None, None)
    if sizes == sizes_above:
        return (_SAME if types == above else _OTHER if all(map(_cast, types, above)) else None), None
    return (_OTHER if types == above and any(map(_resized, sizes, sizes_above)) else None), None


def _cast(of: object, above: object) -> bool:
    """Whether the types are the same, or both have fractions."""
    floating = (type(each) is str and DTYPES.get(each, (0, None))[1] is not None for each in (of, above))
    return of == above or all(floating)


def _resized(sizes: list[int], above: list[int]) -> bool:
    """Whether a tensor has another number of elements than the one above."""
    return is_shape(sizes) and is_shape(above) and prod(sizes) != prod(above)


def _of_own(calls: Calls, own: dict[int, int]) -> Calls:
    """The calls, with the last of their inputs alone where `own` has their number."""
    if not own:
        return calls
    places = calls.at(np.array(list(own)))
    pairs = groups(calls.of[places], np.array([own[span] for span in calls.spans[places].tolist()]))
    rows, counts = calls.inputs[pairs.keys[0]], pairs.keys[1].tolist()
    columns = [
        pl.Series(
            name, [_last(text, count) for text, count in zip(rows[name], counts, strict=True)], pl.String
        )
        for name in INPUTS
    ]
    return calls.told(places, pairs.of, with_series(rows, *columns))


@lru_cache(maxsize=4096)
def _last(text: str | None, count: int) -> str | None:
    return None if text is None else msgspec.json.encode(json_list(text)[-count:]).decode()
