"""The calls of operators with models in a trace, with their inputs as the models read them.

Of two kinds of inputs the operator's own record does not tell enough. The type of a list's tensors stands in the name of the kernel
that copies or updates them, and the sizes of a long list are those of gradients; what a collective moves stands in its record.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.flops.collective import RECORD
from tracekit.analyses.flops.long_lists import with_long_lists
from tracekit.analyses.flops.tensors import LIST
from tracekit.analyses.flops.work import operator_named
from tracekit.groups import distinct

__all__ = ["INPUTS", "is_composite", "modelled_calls", "modelled_names"]

INPUTS: Final = ("shapes", "dtypes", "concrete_inputs", "strides")

_WIDTH: Final = r"CatArrayBatchedCopy\w*<[^<>]*OpaqueType<([0-9]{1,4})u?>"
"""Kernels that copy tensors of one width into one (`cat`); old ones name the type."""

_TYPE: Final = (
    r"(?:CatArrayBatchedCopy\w*<"
    r"|multi_tensor_apply_kernel<.*?Functor_?<)"
    r"(float|double|c10::Half|c10::BFloat16|long|int|short|bool|signed char|unsigned char)\b"
)
"""Kernels that work on all tensors of a list, with the type of their elements."""


def modelled_names(names: pl.Series) -> list[str]:
    """Those of the names whose operators have a model."""
    return [name for name in distinct(names).cast(pl.String).to_list() if operator_named(name)]


def is_composite(name: str) -> bool:
    """Whether the operator of a name has a model that counts only where no others do its work."""
    operator = operator_named(name)
    return operator is not None and operator.composite


def modelled_calls(
    host: pl.DataFrame, device: pl.DataFrame | None = None, collectives: pl.DataFrame | None = None
) -> pl.DataFrame:
    """The calls of operators with models whose inputs were recorded: `span_id`, `name` and the columns of INPUTS as texts."""
    shaped = host[["span_id", "name", *INPUTS]]
    with_model = pl.col("name").is_in(modelled_names(shaped["name"]))
    shaped = shaped.filter(pl.col("shapes").is_not_null() & with_model)
    shaped = pl.DataFrame([shaped["span_id"], *(shaped[name].cast(pl.String) for name in ("name", *INPUTS))])
    if device is not None:
        shaped = with_long_lists(_with_list_types(shaped, device), host, device)
    if collectives is None:
        return shaped
    recorded = _recorded(collectives)
    return pl.concat([shaped.join(recorded, on="span_id", how="anti"), recorded])


def _with_list_types(calls: pl.DataFrame, device: pl.DataFrame) -> pl.DataFrame:
    """The calls, with the type of the elements, or their width, behind that of a list, where all kernels of the call agree on it."""
    lists = calls.filter(pl.col("dtypes").str.contains(LIST, literal=True))
    if not lists.height:
        return calls
    kernels = device.select(pl.col("op_id").alias("span_id"), "name").join(lists, on="span_id", how="semi")
    name = pl.col("name").cast(pl.String)
    of = pl.coalesce(name.str.extract(_WIDTH), name.str.extract(_TYPE))
    by_name = kernels[["name"]].unique().with_columns(of.alias("of"))
    types = (
        kernels.join(by_name, on="name")
        .group_by("span_id")
        .agg(pl.col("of").drop_nulls().min(), pl.col("of").drop_nulls().max().alias("last"))
        .filter(pl.col("of") == pl.col("last"))
        .drop("last")
    )
    of = pl.col("of").fill_null(
        ""
    )  # of a single row, Polars refuses a text that is null, even if it is not taken
    told = pl.col("dtypes").str.replace_all(f'"{LIST}"', pl.format('"{}:{}"', pl.lit(LIST), of))
    return (
        calls.join(types, on="span_id", how="left", maintain_order="left")
        .with_columns(pl.when(pl.col("of").is_not_null()).then(told).otherwise("dtypes").alias("dtypes"))
        .drop("of")
    )


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
