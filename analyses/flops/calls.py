"""The calls of operators with models in a trace, with their inputs as the models read them.

Of two kinds of inputs the operator's own record does not tell enough. The type of a list's tensors stands in the name of the kernel
that copies or updates them, and the sizes of a long list are those of gradients; what a collective moves stands in its record.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.flops.collective import RECORD
from tracekit.analyses.flops.distinct_calls import KEYS, Calls
from tracekit.analyses.flops.long_lists import with_long_lists
from tracekit.analyses.flops.tensors import LIST
from tracekit.analyses.flops.work import operator_named
from tracekit.groups import are_known, at_rows, groups, or_none, text_codes, text_numbers, with_series
from tracekit.name_table import NameTable
from tracekit.spans import take

__all__ = ["is_composite", "modelled_calls"]

_WIDTH: Final = r"CatArrayBatchedCopy\w*<[^<>]*OpaqueType<([0-9]{1,4})u?>"
"""Kernels that copy tensors of one width into one (`cat`); old ones name the type."""

_TYPE: Final = (
    r"(?:CatArrayBatchedCopy\w*<"
    r"|multi_tensor_apply_kernel<.*?Functor_?<)"
    r"(float|double|c10::Half|c10::BFloat16|long|int|short|bool|signed char|unsigned char)\b"
)
"""Kernels that work on all tensors of a list, with the type of their elements."""


def is_composite(name: str) -> bool:
    """Whether the operator of a name has a model that counts only where no others do its work."""
    operator = operator_named(name)
    return operator is not None and operator.composite


def modelled_calls(
    host: pl.DataFrame,
    names: NameTable,
    device: pl.DataFrame | None = None,
    collectives: pl.DataFrame | None = None,
) -> Calls:
    """The calls of operators with models whose inputs were recorded; `names` are those of the spans of the host."""
    modelled = names.which(lambda name: operator_named(name) is not None)
    spans = np.flatnonzero(modelled & are_known(host["shapes"]))
    columns = [at_rows(host[name], spans) for name in KEYS]
    alike = groups(*(text_numbers(column) for column in columns))
    texts = [at_rows(column, alike.first).cast(pl.String) for column in columns]
    calls = Calls(spans, alike.of, pl.DataFrame(texts))
    if device is not None:
        calls = with_long_lists(_with_list_types(calls, host, device), host, device)
    if collectives is None:
        return calls
    recorded = _recorded(collectives)
    return calls.replaced(np.isin(calls.spans, recorded["span_id"].to_numpy()), recorded)


def _with_list_types(calls: Calls, host: pl.DataFrame, device: pl.DataFrame) -> Calls:
    """The calls, with the type of the elements, or their width, behind that of a list, where all kernels of the call agree on it."""
    lists = calls.where(calls.inputs["dtypes"].str.contains(LIST, literal=True))
    if not lists.size:
        return calls
    place = np.full(host.height, -1)
    place[calls.spans[lists]] = np.arange(lists.size)
    of = take(place, or_none(device["op_id"]))
    code, kernels = text_codes(at_rows(device["name"], np.flatnonzero(of >= 0)))
    names = pl.Series(kernels, dtype=pl.String).str
    types = [one or other for one, other in zip(names.extract(_WIDTH), names.extract(_TYPE), strict=True)]
    known = np.array([each is not None for each in types], dtype=bool)[code]
    code, of = code[known], of[of >= 0][known]
    # Kernels of several names may tell the same type.
    words = list(dict.fromkeys(types))
    number = np.array([words.index(each) for each in types], dtype=np.int64)[code]
    least, most = np.full(lists.size, len(words)), np.full(lists.size, -1)
    np.minimum.at(least, of, number)
    np.maximum.at(most, of, number)
    agree = np.flatnonzero(least == most)
    pairs = groups(calls.of[lists[agree]], least[agree])
    rows = calls.inputs[pairs.keys[0]]
    told = [
        dtypes.replace(f'"{LIST}"', f'"{LIST}:{words[each]}"')
        for dtypes, each in zip(rows["dtypes"], pairs.keys[1].tolist(), strict=True)
    ]
    return calls.told(lists[agree], pairs.of, with_series(rows, pl.Series("dtypes", told, dtype=pl.String)))


def _recorded(collectives: pl.DataFrame) -> pl.DataFrame:
    """The calls of RECORD: the elements in and out as shapes, their type, and as scalars the name and the size of the group."""
    known = collectives.drop_nulls(["span_id", "elements_in", "elements_out", "dtype", "group_size"])
    dtype, kind = pl.col("dtype").cast(pl.String), pl.col("name").cast(pl.String)
    return known.select(
        "span_id",
        pl.lit(RECORD).alias("name"),
        pl.format("[[{}],[{}]]", "elements_in", "elements_out").alias("shapes"),
        pl.format('["{}","{}"]', dtype, dtype).alias("dtypes"),
        pl.format('["{}","{}"]', kind, "group_size").alias("concrete_inputs"),
        pl.lit(None, pl.String).alias("strides"),
    )
