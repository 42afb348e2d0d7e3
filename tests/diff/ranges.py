"""Digests as `record_function` ranges give them: layers of no type, with `/` between their names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import polars as pl

from tracekit.digest import Digest


def ranges(digest: Digest, names: Mapping[str, str] | None = None) -> Digest:
    """The digest without types of layers, and with layers (and all below them) renamed."""

    def path(told: str) -> str:
        for old, new in (names or {}).items():
            told = re.sub(rf"^{old}(?=\.|$)", new, told)
        return told.replace(".", "/")

    of_model = digest.layers["part_of_model"]
    paths = {path(each): None for each in digest.layers.filter(of_model)["path"]}
    whole = {"/".join(parts[: n + 1]): None for parts in (each.split("/") for each in paths) for n in range(len(parts))}  # fmt: skip
    layers = pl.DataFrame(
        [
            {"path": each, "parent": each.rpartition("/")[0] or None, "name": each.rpartition("/")[2], "part_of_model": True}
            for each in whole
        ],
        digest.layers.schema,
    )  # fmt: skip
    moved = pl.col("layer").map_elements(path, pl.String)
    untyped = pl.lit(None, pl.String).alias("type")
    return replace(
        digest,
        layers=pl.concat([layers, digest.layers.filter(~of_model)]),
        leaves=digest.leaves.with_columns(moved, untyped),
    )
