"""What the text of an NVTX range means: an operator with its number and shapes, a layer, a step, or a plain range."""

from __future__ import annotations

import ast
import json
from typing import Any, Final

import polars as pl

from tracekit.facts import nsys as facts
from tracekit.facts.capture_names import LAYER_PREFIX
from tracekit.facts.kineto import STEP_PREFIX

__all__ = ["interpreted"]

_LONGEST_LITERAL: Final = 4096
_DEEPEST_LITERAL: Final = 20
_MOST_LITERALS: Final = 100_000

_READ: Final[dict[str, pl.DataType]] = {
    "text": pl.String(),
    "read_name": pl.String(),
    "read_kind": pl.String(),
    "layer": pl.String(),
    "module_type": pl.String(),
    "read_shapes": pl.String(),
}


def interpreted(ranges: pl.DataFrame) -> pl.DataFrame:
    """Columns of the host frame for ranges with the columns `text` and `domain`.

    They are `kind`, `name`, `sequence`, `external_id`, `shapes`, `layer`, `module_type`, in the order of the rows.
    """
    text = pl.col("text")
    emitted = text.str.contains(", op_id = ", literal=True) | text.str.contains(", seq = ", literal=True)
    emitted = emitted.fill_null(value=False)
    parts = (
        ranges.select(pl.when(emitted).then("text").alias("text"))
        .to_series()
        .str.extract_groups(facts.EMITTED)
        .struct.unnest()
    )
    rows = pl.DataFrame(
        {
            "name": ranges["text"],
            "domain": ranges["domain"],
            "emitted": parts["name"].is_not_null(),
            "sequence": parts["seq"].cast(pl.Int64),
            "external_id": parts["op_id"].cast(pl.Int64),
            "shapes": parts["sizes"],
            "stem": parts["name"],
        }
    ).with_columns(pl.coalesce("stem", "name").cast(pl.Categorical()).alias("name"))
    rows = rows.with_columns((pl.col("sequence") >= 0).fill_null(value=False).alias("numbered"))
    key = ["name", "domain", "emitted", "numbered"]
    told = _told(rows.select(key).unique())
    joined = rows.join(told, on=key, how="left", maintain_order="left", nulls_equal=True)
    return joined.select(
        "kind",
        pl.coalesce("read_name", "name").alias("name"),
        pl.when(pl.col("numbered")).then("sequence").alias("sequence"),
        "external_id",
        pl.coalesce(pl.col("shapes").cast(pl.Categorical()), "read_shapes").alias("shapes"),
        "layer",
        "module_type",
    )


def _told(names: pl.DataFrame) -> pl.DataFrame:
    """What distinct names say."""
    text = pl.col("name").cast(pl.String)
    read = _read_literals(names.select(text.unique().alias("text"))["text"])
    names = names.with_columns(text.alias("text")).join(read, on="text", how="left", maintain_order="left")
    of_library = pl.col("domain").cast(pl.String).str.contains(facts.LIBRARY_DOMAINS).fill_null(value=False)
    looks_like_one = text.str.contains(facts.OPERATOR_NAME) | (
        pl.col("emitted") & (pl.col("numbered") | text.str.contains("::", literal=True))
    )
    own_layer = text.str.starts_with(LAYER_PREFIX)
    kind = (
        pl.when(pl.col("read_kind").is_not_null())
        .then("read_kind")
        .when(text.str.starts_with(STEP_PREFIX))
        .then(pl.lit("step"))
        .when(own_layer)
        .then(pl.lit("module"))
        .when(of_library | text.str.contains(facts.LIBRARY_CALL))
        .then(pl.lit("op"))
        .when(text.str.contains(facts.FORWARD_EVENT))
        .then(pl.lit("annotation"))
        .when(looks_like_one)
        .then(pl.lit("op"))
        .otherwise(pl.lit("annotation"))
    )
    layer = pl.coalesce("layer", pl.when(own_layer).then(text.str.strip_prefix(LAYER_PREFIX)))
    return names.with_columns(
        kind.alias("kind"),
        layer.cast(pl.Categorical()).alias("layer"),
        pl.col("module_type", "read_name", "read_shapes").cast(pl.Categorical()),
    ).drop("text", "read_kind")


def _read_literals(texts: pl.Series) -> pl.DataFrame:
    """Markers that are the text of a Python dict, read as data."""
    candidates = texts.filter(
        texts.str.starts_with("{").fill_null(value=False) & (texts.str.len_bytes() <= _LONGEST_LITERAL)
    ).head(_MOST_LITERALS)
    rows = [(text, *found) for text in candidates if (found := _from_literal(text)) is not None]
    return pl.DataFrame(rows, schema=_READ, orient="row")


def _from_literal(text: str) -> tuple[str, str, str | None, str | None, str | None] | None:
    """Name, kind, layer, type and shapes of a marker; None of one that is no dict or says nothing.

    Literals alone are read: a call or a name in the text makes it a plain one, and nothing of it ever runs.
    """
    if (
        max(text.count("("), text.count("["), text.count("{")) > _LONGEST_LITERAL // 8
        or _depth(text) > _DEEPEST_LITERAL
    ):
        return None
    try:
        marker = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None  # it is a name that begins with a brace
    if not isinstance(marker, dict):
        return None
    module = marker.get("Module", marker.get("module"))
    if isinstance(module, str) and module:
        type_ = marker.get("Type", marker.get("type"))
        return (
            module,
            "module",
            module,
            type_ if isinstance(type_, str) else None,
            _shapes(marker.get("Inputs")),
        )
    operator = marker.get("op")
    if isinstance(operator, str) and operator:
        where = marker.get("mod")
        name = f"{where}.{operator}" if isinstance(where, str) and where else operator
        return name, "op", None, None, _shapes(_tensor_shapes(marker.get("args")))
    return None


def _depth(text: str) -> int:
    depth = deepest = 0
    for letter in text:
        if letter in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif letter in ")]}":
            depth -= 1
    return deepest


def _tensor_shapes(arguments: Any) -> list[Any] | None:
    if not isinstance(arguments, list | tuple):
        return None
    return [
        list(one["shape"]) if isinstance(one, dict) and isinstance(one.get("shape"), list | tuple) else []
        for one in arguments
    ]


def _shapes(value: Any) -> str | None:
    """JSON text of a list of shapes."""
    if not isinstance(value, list | tuple) or not value:
        return None
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return None  # it holds something that is no shape
