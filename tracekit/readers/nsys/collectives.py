"""Communication in an Nsight Systems export: that of NCCL, which marks it with ranges, and that of MPI, in tables of its own."""

from __future__ import annotations

import re
from typing import Final

import polars as pl

from tracekit.readers.nsys import vocabulary as words

__all__ = ["OF_MPI", "collectives_in", "mpi_calls", "with_group_sizes"]

_NUMBER: Final = r"\d{1,3}(?:,\d{3})+|\d{1,18}"
_COMMUNICATOR: Final = r"[\w,]*\w"
OF_MPI: Final = {"size": "elements_in", "recvSize": "elements_out", "remoteRank": "peer"}
"""The columns of MPI's tables that are read, and what they mean; sizes are bytes."""


def collectives_in(host: pl.DataFrame) -> pl.DataFrame:
    """The ranges of collectives and point-to-point communication, with the data of their payloads; times as in `host`."""
    name = pl.col("name").cast(pl.String)
    chosen = host.select("name").unique().filter(name.str.contains(words.NCCL_COLLECTIVE))
    rows = host.join(chosen, on="name", how="semi", maintain_order="left")
    return rows.select(
        name.str.strip_prefix("nccl").str.to_lowercase().cast(pl.Categorical()).alias("name"),
        _field(words.COMMUNICATOR, _COMMUNICATOR).alias("group"),
        _number(words.RANKS).alias("group_size"),
        pl.coalesce(*map(_number, words.MESSAGE_SIZES)).alias("elements_in"),
        _number(words.PEER).alias("peer"),
        pl.lit("byte").cast(pl.Categorical()).alias("dtype"),
        *("process_id", "thread_id", "start", "duration"),
    )


def mpi_calls(calls: pl.DataFrame, page: pl.DataFrame) -> pl.DataFrame:
    """The calls of MPI (host spans) with the sizes and peers that the rows of their table, `page`, hold.

    They get no group: the handle of a communicator is a number of its own in each process.
    """
    return calls.select("name", "process_id", "thread_id", "start", "duration").with_columns(
        pl.lit(None, dtype=pl.String).alias("group"),
        pl.lit(None, dtype=pl.Int64).alias("group_size"),
        pl.lit("byte").cast(pl.Categorical()).alias("dtype"),
        *(
            (page[column] if column in page.columns else pl.lit(None)).cast(pl.Int64).alias(name)
            for column, name in OF_MPI.items()
        ),
    )


def with_group_sizes(collectives: pl.DataFrame | None, host: pl.DataFrame | None) -> pl.DataFrame | None:
    """Collectives with the number of ranks from the creation of their communicator; null if two creations differ.

    NCCL gives some the size of the part for one rank (its `collectives.cc`): `elements_in` becomes that of all parts, and null if
    their number is not known.
    """
    if collectives is None or host is None:
        return collectives
    payloads = host.select("payload").unique().drop_nulls()
    sizes = payloads.select(
        _field(words.COMMUNICATOR, _COMMUNICATOR).alias("group"), _number(words.RANKS).alias("ranks")
    )
    sizes = sizes.drop_nulls().unique().filter(pl.col("group").is_unique())
    joined = collectives.join(sizes, on="group", how="left", maintain_order="left")
    joined = joined.with_columns(pl.coalesce("group_size", "ranks").alias("group_size")).drop("ranks")
    of_part = pl.col("name").cast(pl.String).is_in(_SIZED_BY_PART)
    return joined.with_columns(
        pl.when(of_part)
        .then(pl.col("elements_in") * pl.col("group_size"))
        .otherwise("elements_in")
        .alias("elements_in")
    )


_SIZED_BY_PART: Final = ("reducescatter", "scatter", "alltoall")


def _field(title: str, value: str) -> pl.Expr:
    """A value of the payload; some versions write it as text with thousands separators."""
    text = pl.col("payload").cast(pl.String).str.extract(rf'"{re.escape(title)}"\s*:\s*"?({value})', 1)
    return text.str.replace_all(",", "", literal=True)


def _number(title: str) -> pl.Expr:
    return _field(title, _NUMBER).cast(pl.Int64, strict=False)
