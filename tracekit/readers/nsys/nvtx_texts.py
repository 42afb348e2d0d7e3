"""The meaning of the text of an NVTX range: an operator with its number and shapes, a layer, a step, or a plain range."""

from __future__ import annotations

import ast
import json
import warnings
from typing import Any, Final

import polars as pl

from tracekit.facts.capture_names import LAYER_PREFIX
from tracekit.facts.stack_names import LIBRARY_DOMAINS
from tracekit.facts.step_names import STEP_PREFIX
from tracekit.readers.nsys import vocabulary as words

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
    parts = _emitted(ranges["text"])
    rows = pl.DataFrame(
        {
            "name": pl.select(pl.coalesce(parts["stem"], ranges["text"])).to_series().cast(pl.Categorical()),
            "domain": ranges["domain"],
            "emitted": parts["stem"].is_not_null(),
            "sequence": parts["sequence"],
            "external_id": parts["external_id"],
            "shapes": parts["shapes"].cast(pl.Categorical()),
            "numbered": (parts["sequence"] >= 0).fill_null(value=False),
        }
    )
    key = ["name", "domain", "emitted", "numbered"]
    meanings = _meanings(rows.select(key).unique())
    joined = rows.join(meanings, on=key, how="left", maintain_order="left", nulls_equal=True)
    return joined.select(
        "kind",
        pl.coalesce("read_name", "name").alias("name"),
        pl.when(pl.col("numbered")).then("sequence").alias("sequence"),
        "external_id",
        pl.coalesce("shapes", "read_shapes").alias("shapes"),
        "layer",
        "module_type",
    )


def _emitted(texts: pl.Series) -> pl.DataFrame:
    """`stem`, `sequence`, `external_id`, `shapes` of texts that PyTorch writes: NAME[, seq = N][, op_id = N][, sizes =
    [[…]]][, input_op_ids = […]]; nulls for any other text. Splitting at the words costs a third of a regular expression.
    """

    def cut(part: pl.Expr, word: str, left: str, right: str) -> pl.Expr:
        return part.str.splitn(word, 2).struct.rename_fields([left, right])

    text = pl.col("text")
    rows = texts.alias("text").to_frame()
    if texts.str.contains(words.EMITTED_INPUTS, literal=True).any():
        rows = rows.select(cut(text, words.EMITTED_INPUTS, "text", "inputs")).unnest("text").drop("inputs")
    if rows["text"].str.contains(words.EMITTED_SIZES, literal=True).any():
        rows = rows.select(cut(text, words.EMITTED_SIZES, "head", "shapes").alias("cut")).unnest("cut")
    else:
        rows = rows.select(text.alias("head"), pl.lit(None, pl.String).alias("shapes"))
    rows = rows.select("shapes", cut(pl.col("head"), words.EMITTED_OPERATOR, "head", "op_id").alias("cut"))
    rows = rows.unnest("cut")
    rows = rows.select(
        "shapes", "op_id", cut(pl.col("head"), words.EMITTED_SEQUENCE, "stem", "seq").alias("cut")
    )
    rows = rows.unnest("cut").with_columns(
        pl.col("seq").cast(pl.Int64, strict=False).alias("sequence"),
        pl.col("op_id").cast(pl.Int64, strict=False).alias("external_id"),
    )
    # PyTorch 1.9 to 1.12 wrote no op_id, and an operator outside autograd has no number.
    sized = pl.col("shapes").str.starts_with("[[") & pl.col("shapes").str.ends_with("]")
    is_emitted = pl.col("sequence").is_not_null() | pl.col("external_id").is_not_null() | sized
    sound = (pl.col("seq").is_null() | pl.col("sequence").is_not_null()) & (
        pl.col("op_id").is_null() | pl.col("external_id").is_not_null()
    )
    return rows.select(
        pl.when(is_emitted & sound).then(column).alias(column)
        for column in ("stem", "sequence", "external_id", "shapes")
    )


def _meanings(names: pl.DataFrame) -> pl.DataFrame:
    """The meaning of distinct names."""
    text = pl.col("name").cast(pl.String)
    read = _read_literals(names.select(text.unique().alias("text"))["text"])
    names = names.with_columns(text.alias("text")).join(read, on="text", how="left", maintain_order="left")
    of_library = pl.col("domain").cast(pl.String).str.contains(LIBRARY_DOMAINS).fill_null(value=False)
    looks_like_one = text.str.contains(words.OPERATOR_NAME) | (
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
        .when(of_library | text.str.contains(words.LIBRARY_CALL))
        .then(pl.lit("op"))
        .when(text.str.contains(words.FORWARD_EVENT))
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
    rows = [(text, *parts) for text in candidates if (parts := _from_literal(text)) is not None]
    return pl.DataFrame(rows, schema=_READ, orient="row")


def _from_literal(text: str) -> tuple[str, str, str | None, str | None, str | None] | None:
    """Name, kind, layer, type and shapes of a marker; None if it is not a dict or has none of these.

    Only literals are read: with a call or a name in it, the text is plain text, and no part of it ever runs.
    """
    if (
        max(text.count("("), text.count("["), text.count("{")) > _LONGEST_LITERAL // 8
        or _depth(text) > _DEEPEST_LITERAL
    ):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's, about escapes in a text of the trace
            marker = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None  # it is a plain name that begins with a brace
    if not isinstance(marker, dict):
        return None
    module = marker.get("Module", marker.get("module"))
    if isinstance(module, str) and module:
        type_ = marker.get("Type", marker.get("type"))
        path = _valid(module)
        return (
            path,
            "module",
            path,
            _valid(type_) if isinstance(type_, str) else None,
            _shapes(marker.get("Inputs")),
        )
    operator = marker.get("op")
    if isinstance(operator, str) and operator:
        where = marker.get("mod")
        name = f"{where}.{operator}" if isinstance(where, str) and where else operator
        return _valid(name), "op", None, None, _shapes(_tensor_shapes(marker.get("args")))
    return None


def _valid(text: str) -> str:
    """The text without lone surrogates, which an escape can make and no frame can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


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
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return None  # it contains something that is not a shape
