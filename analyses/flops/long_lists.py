"""Lists of more tensors than the profiler records the sizes of (30), as those of an optimizer over a whole model.

The sizes of the gradients that a backward pass accumulates are recorded, and a kernel over lists (`multi_tensor_apply`) has a block
for each 65,536 elements of each tensor. So where a call has as many blocks as all gradients of its update need, or those of them with
one dimension or with more (parameters without and with decay), its lists are as large as theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import gcd, prod
from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.flops.distinct_calls import KEYS, Calls
from tracekit.analyses.flops.tensors import LIST
from tracekit.analyses.flops.work import MOST_DIMENSIONS, is_shape, json_list
from tracekit.facts.stack_names import ACCUMULATE_NODE
from tracekit.groups import at_rows, groups, kept, text_codes

__all__ = ["with_long_lists"]

_CHUNK: Final = 65_536
"""The elements of a tensor that a block of `multi_tensor_apply` works on."""
_NO_SIZES: Final = r"^[\[\], ]*$"
_DEPTH: Final = r"multi_tensor_apply_kernel<.*?TensorList\w*Metadata<(?:[\w:]+, ?)?(\d)"
"""The number of lists that a kernel goes through at once."""
_MOST_PASSES: Final = 64
"""More backward passes before one update are not looked for."""
_MOST_TENSORS: Final = 50_000
"""No model has more parameters, even times its passes; their sizes would take much memory."""


def with_long_lists(calls: Calls, host: pl.DataFrame, device: pl.DataFrame) -> Calls:
    """The calls, with the sizes of lists that were too long to be recorded, where gradients tell them."""
    inputs = calls.inputs
    unknown = calls.where(
        inputs["dtypes"].str.contains(LIST, literal=True) & inputs["shapes"].str.contains(_NO_SIZES)
    )
    if not unknown.size:
        return calls
    lists = calls.texts(unknown).with_columns(pl.Series("place", unknown))
    gradients = host[["name", "shapes", "start", "process_id"]]
    gradients = kept(gradients, gradients["name"] == ACCUMULATE_NODE.removesuffix("$"))
    gradients = gradients.drop_nulls("shapes").sort("start")
    if gradients["process_id"].n_unique() != 1:
        return calls
    lists = lists.join(_launched(device), on="span_id")
    lists = lists.with_columns(at_rows(host["start"], lists["span_id"]).alias("start")).sort("start")
    texts = gradients["shapes"].cast(pl.String).to_list()
    upto = np.searchsorted(gradients["start"].to_numpy(), lists["start"].to_numpy())
    known: dict[tuple[str, ...], dict[int, str | None]] = {}
    told: list[str | None] = []
    last, sizes_by_blocks = 0, dict[int, str | None]()
    for end, blocks, depth, shapes, dtypes in zip(
        upto.tolist(), *lists[["blocks", "depth", "shapes", "dtypes"]], strict=True
    ):
        if end > last:
            update, last = tuple(sorted(texts[last:end])), end
            if update not in known:
                known[update] = _by_blocks(update)
            sizes_by_blocks = known[update]
        sizes = sizes_by_blocks.get(blocks)
        told.append(None if sizes is None else _filled(shapes, dtypes, sizes, depth))
    lists = lists.with_columns(pl.Series("shapes", told, dtype=pl.String)).drop_nulls("shapes")
    alike = groups(*(text_codes(lists[name])[0] for name in KEYS))
    return calls.told(lists["place"].to_numpy(), alike.of, lists[alike.first])


def _launched(device: pl.DataFrame) -> pl.DataFrame:
    """Of calls that launch such kernels (`span_id`) the `blocks` of all and the `depth`."""
    depth = pl.col("name").cast(pl.String).str.extract(_DEPTH).cast(pl.Int64)
    named = device[["name"]].unique().with_columns(depth.alias("depth")).drop_nulls("depth")
    kernels = device[["op_id", "name", "grid"]].join(named, on="name")
    blocks = kernels["grid"].cast(pl.String).str.extract(r"(\d+)").cast(pl.Int64)
    return (
        kernels.with_columns(blocks.alias("blocks"))
        .drop_nulls(["op_id", "blocks"])
        .group_by(pl.col("op_id").alias("span_id"))
        .agg(pl.col("blocks").sum(), pl.col("depth").min())
    )


def _by_blocks(texts: Sequence[str]) -> dict[int, str | None]:
    """The sizes of all gradients of an update, and of those with one dimension and with more, as JSON by the number of their blocks.

    `texts` are the inputs of the nodes that accumulate them. None where lists of unlike sizes have as many blocks.

    >>> _by_blocks(["[[1000, 1000]]", "[[1000]]"])
    {17: '[[1000, 1000], [1000]]', 1: '[[1000]]', 16: '[[1000, 1000]]'}
    """
    if not 0 < len(texts) <= _MOST_TENSORS:
        return {}
    found: dict[int, str | None] = {}
    elements: dict[int, int] = {}
    counts = Counter(texts)
    tensors = [(sizes, count) for text, count in counts.items() for sizes in json_list(text)[:1]]
    if not all(is_shape(sizes) for sizes, _ in tensors):
        return {}
    often = gcd(*counts.values())
    for passes in (each for each in range(1, min(often, _MOST_PASSES) + 1) if often % each == 0):
        for least, most in ((0, MOST_DIMENSIONS), (0, 1), (2, MOST_DIMENSIONS)):
            chosen = [(sizes, count // passes) for sizes, count in tensors if least <= len(sizes) <= most]
            blocks = sum(-(-prod(sizes) // _CHUNK) * count for sizes, count in chosen)
            total = sum(prod(sizes) * count for sizes, count in chosen)
            written = ", ".join(str(sizes) for sizes, count in chosen for _ in range(count))
            found[blocks] = f"[{written}]" if elements.setdefault(blocks, total) == total else None
    return found


def _filled(shapes: str, dtypes: str, sizes: str, depth: int) -> str:
    """The shapes of a call as JSON, in which the first `depth` lists have these sizes.

    >>> _filled("[[], [], []]", '["TensorList", "TensorList", "Scalar"]', "[[3], [4]]", 3)
    '[[[3], [4]], [[3], [4]], []]'
    """
    kinds, filled = json_list(dtypes), []
    for place in range(len(json_list(shapes))):
        is_list = depth > 0 and place < len(kinds) and str(kinds[place]).startswith(LIST)
        depth -= is_list
        filled.append(sizes if is_list else "[]")
    return f"[{', '.join(filled)}]"
