"""Inputs of a call that its own record does not tell, and that of a call around it, inside it or in its backward pass does."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from tracekit.analyses.flops.distinct_calls import INPUTS, KEYS, Calls
from tracekit.analyses.flops.work import Operator
from tracekit.groups import are_known, at_rows, groups, text_numbers
from tracekit.name_table import NameTable
from tracekit.spans import BoolArray, Int64Array, Nesting, take

__all__ = ["with_inputs_of_others"]


def with_inputs_of_others(
    calls: Calls, host: pl.DataFrame, names: NameTable, nesting: Nesting, known: Mapping[str, Operator]
) -> Calls:
    """The calls, with the inputs that their models take from others (`Operator`); `names` are those of the spans of the host."""
    calls = _of_caller(calls, host, nesting, known)
    calls = _of_backward(calls, host, names, nesting, known)
    return _of_called(calls, host, names, nesting, known)


def _of_caller(calls: Calls, host: pl.DataFrame, nesting: Nesting, known: Mapping[str, Operator]) -> Calls:
    """The calls, with the inputs of the operator directly around where the model takes those; without it the call is left out."""
    lenders = {name: operator.inputs_of for name, operator in known.items() if operator.inputs_of}
    borrowing = calls.named(lenders)
    if not borrowing.size:
        return calls
    parents = nesting.parent[calls.spans[borrowing]]
    around = host[np.maximum(parents, 0)].select(pl.col("name").alias("around"), *INPUTS).cast(pl.String)
    expected = pl.col("name").replace_strict(lenders, default=None, return_dtype=pl.String)
    lent = calls.texts(borrowing)["span_id", "name"].hstack(around).filter(pl.Series(parents >= 0))
    return calls.replaced(_at(borrowing, calls), lent.filter(pl.col("around") == expected))


def _at(places: Int64Array, calls: Calls) -> BoolArray:
    away = np.zeros(calls.of.size, dtype=bool)
    away[places] = True
    return away


def _of_backward(
    calls: Calls, host: pl.DataFrame, names: NameTable, nesting: Nesting, known: Mapping[str, Operator]
) -> Calls:
    """The calls without scalar arguments, with the inputs of their backward where the model takes those.

    A backward node has the sequence number of the call, and the operator directly inside it has the inputs.
    """
    lenders = {name: operator.backward for name, operator in known.items() if operator.backward}
    bare = calls.named(lenders)
    bare = bare[~are_known(calls.inputs["concrete_inputs"])[calls.of[bare]]]
    if not bare.size:
        return calls
    sequence = host["sequence"]
    inside = host[np.flatnonzero(names.which(set(lenders.values()).__contains__))]
    nodes = nesting.parent[inside["span_id"].to_numpy()]
    lent = inside.select(pl.col("name").alias("lender"), *INPUTS).cast(pl.String)
    lent = lent.with_columns(sequence[np.maximum(nodes, 0)].alias("sequence")).filter(pl.Series(nodes >= 0))
    lent = lent.drop_nulls("sequence").unique("sequence", keep="none")
    taken = calls.texts(bare).select(
        "span_id",
        "name",
        pl.col("name").replace_strict(lenders, return_dtype=pl.String).alias("lender"),
        sequence[calls.spans[bare]].alias("sequence"),
    )
    taken = taken.join(lent, on=["sequence", "lender"])
    return calls.replaced(_at(calls.at(taken["span_id"].to_numpy()), calls), taken)


def _of_called(
    calls: Calls, host: pl.DataFrame, names: NameTable, nesting: Nesting, known: Mapping[str, Operator]
) -> Calls:
    """The calls, with the inputs of those directly inside them behind their own where the model takes those."""
    lenders = {name: operator.inside for name, operator in known.items() if operator.inside}
    borrowing = calls.named(lenders)
    if not borrowing.size:
        return calls
    place = np.full(host.height, -1)
    place[calls.spans[borrowing]] = np.arange(borrowing.size)
    wanted = {inner for inside in lenders.values() for inner in inside}
    called = np.flatnonzero(names.which(wanted.__contains__) & are_known(host["shapes"]))
    caller = take(place, nesting.parent[called])
    called, caller = called[caller >= 0], caller[caller >= 0]
    columns = [at_rows(host[name], called) for name in KEYS]
    alike = groups(*(text_numbers(column) for column in columns))
    inner = [at_rows(column, alike.first).cast(pl.String).to_list() for column in columns]
    lends = np.array([[name in inside for name in inner[0]] for inside in lenders.values()], dtype=bool)
    outer = np.array([[*lenders].index(name) if name in lenders else -1 for name in calls.inputs["name"]])
    mine = lends[outer[calls.of[borrowing]][caller], alike.of]
    caller, of = caller[mine], alike.of[mine]
    order = np.argsort(caller, kind="stable")
    holding, begins = np.unique(caller[order], return_index=True)
    # Of the calls, those with the same inputs and the same calls inside are the same.
    held = [each.tobytes() for each in np.split(of[order], begins[1:])]
    told = dict[tuple[int, bytes], int]()
    number = [
        told.setdefault(each, len(told))
        for each in zip(calls.of[borrowing[holding]].tolist(), held, strict=False)
    ]
    own = calls.inputs[[row for row, _ in told]]
    inside = [np.frombuffer(each, dtype=of.dtype).tolist() for _, each in told]
    both = {
        name: [
            _behind(text, [texts[each] for each in held])
            for text, held in zip(own[name], inside, strict=True)
        ]
        for name, texts in zip(INPUTS, inner[1:], strict=True)
    }
    rows = own.with_columns(pl.Series(name, texts, dtype=pl.String) for name, texts in both.items())
    return calls.told(borrowing[holding], np.array(number, dtype=np.int64), rows)


def _behind(own: str | None, inner: list[str | None]) -> str | None:
    """The items of other lists behind those of a list, all as JSON; those of its own where one of the others is not known.

    >>> _behind("[1, 2]", ["[3]", "[4]"]), _behind("[1]", ["[2]", None])
    ('[1, 2,3,4]', '[1]')
    """
    known = [text.removeprefix("[").removesuffix("]") for text in inner if text is not None]
    if len(known) < len(inner):
        return own
    return None if own is None else f"{own.removesuffix(']')},{','.join(known)}]"
