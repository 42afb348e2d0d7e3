"""The JSON Schema of the JSON report, made from the classes and the declared columns, so that it cannot drift."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, Final, Literal, Union

import polars as pl

from tracekit.analyses.registry import BUILT_IN, ON_REQUEST, Analysis
from tracekit.analyses.result import unit_of
from tracekit.digest.model import Plain
from tracekit.findings import Finding
from tracekit.report.diff_tables import SCHEMAS as DIFF_TABLES
from tracekit.report.model import SCHEMA_VERSION, HealthItem, TraceInfo, Unit, Verdict, Window
from tracekit.trace import Schema

__all__ = ["diff_schema", "report_schema"]

_PRIMITIVES: Final[dict[Any, dict[str, Any]]] = {
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
}
_DESCRIPTIONS: Final[dict[Unit, str]] = {
    "ns": "a duration in ns",
    "change": "by how much a duration in ns differs",
    "time": "an instant in ns from the trace's origin",
    "bytes": "bytes",
    "ratio": "a ratio, 1 is all",
    "gbps": "10⁹ bytes a second",
    "byte_rate": "bytes a second",
    "flop": "floating-point operations",
    "flop_rate": "floating-point operations a second",
    "device": "a device number; −1 is the host",
}
_FRACTIONS: Final = frozenset({"ratio", "gbps", "number", "byte_rate", "flop", "flop_rate"})
_AVERAGES: Final = ("mean", "median", "p95", "std", "trimmed")
"""Durations whose names begin so are not whole numbers."""


def report_schema() -> dict[str, Any]:
    """The schema (draft 2020-12) of what `tracekit.report.json.render.render` writes.

    Analyses and tables of other packages are allowed; those that come with tracekit must have their columns.
    """
    finding = _dataclass(Finding)
    finding["properties"]["seconds_at_stake"] = {"type": ["number", "null"]}
    verdict = _dataclass(Verdict)
    verdict["properties"]["advice"]["items"]["properties"]["seconds_at_stake"] = {"type": ["number", "null"]}
    schema: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "tracekit report",
        "description": "Times are ns, sizes bytes, ratios 0 to 1; null stands for what was not captured.",
        **_object(
            {
                "schema_version": {"const": SCHEMA_VERSION},
                "trace": _dataclass(TraceInfo),
                "window": _dataclass(Window),
                "health": {"type": "array", "items": _dataclass(HealthItem)},
                "verdict": verdict,
                "analyses": {
                    "type": "object",
                    "properties": {
                        analysis.name: _analysis(analysis) for analysis in (*BUILT_IN, *ON_REQUEST)
                    },
                    "additionalProperties": {"$ref": "#/$defs/analysis"},
                },
            }
        ),
        "$defs": {"finding": finding, "row": _row(), "analysis": _section({})},
    }
    schema["properties"]["digest"] = {
        "type": "object",
        "description": "the steps, and where their time went, for a comparison; of whole reports only",
        "required": list(Plain.__struct_fields__),
    }
    return schema


def diff_schema() -> dict[str, Any]:
    """The schema (draft 2020-12) of what `tracekit diff` writes as JSON."""
    tables = {
        name: {"type": "array", "items": _columns(list(columns), columns)}
        for name, columns in DIFF_TABLES.items()
    }
    section = _section(tables)
    point = _object({"label": {"type": "string"}, "text": {"type": "string"}})
    own = {
        "verdict": {"enum": ["slower", "faster", "same", "inconclusive"]},
        "points": {"type": "array", "items": point},
    }
    section["properties"] = {**own, **section["properties"]}
    section["required"] = list(section["properties"])
    finding = _dataclass(Finding)
    finding["properties"]["seconds_at_stake"] = {"type": ["number", "null"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "tracekit diff",
        "description": "Times are ns of a step, ratios 1 for all; null stands for what was not captured.",
        **_object({"schema_version": {"const": SCHEMA_VERSION}, "diff": section}),
        "$defs": {"finding": finding, "row": _row()},
    }


def _analysis(analysis: Analysis) -> dict[str, Any]:
    views = analysis.tables().items()
    return _section(
        {name: {"type": "array", "items": _columns(view.columns.split())} for name, view in views}
    )


def _section(tables: dict[str, Any]) -> dict[str, Any]:
    scalar = {"type": ["number", "string", "null"]}
    rows = {"type": "array", "items": {"$ref": "#/$defs/row"}}
    return _object(
        {
            "question": {"type": "string"},
            "answer": {"type": "string"},
            "not_captured": {"type": ["string", "null"]},
            "error": {"type": ["string", "null"]},
            "scalars": {"type": "object", "additionalProperties": scalar},
            "tables": {"type": "object", "properties": tables, "additionalProperties": rows},
            "findings": {"type": "array", "items": {"$ref": "#/$defs/finding"}},
        }
    )


def _row() -> dict[str, Any]:
    values = {"type": ["number", "string", "boolean", "array", "object", "null"]}
    return {"type": "object", "additionalProperties": values}


def _columns(names: list[str], types: Schema | None = None) -> dict[str, Any]:
    """Rows with at least these columns; more may come in a later version."""
    columns = {name: _column(name, (types or {}).get(name)) for name in names}
    return {"type": "object", "properties": columns, "required": names}


def _column(name: str, dtype: pl.DataType | type[pl.DataType] | None = None) -> dict[str, Any]:
    unit = unit_of(name)
    kind = "number" if unit in _FRACTIONS or (unit == "ns" and name.startswith(_AVERAGES)) else "integer"
    kind = {"text": "string", "flag": "boolean"}.get(unit, kind)
    if dtype is not None:
        kind = (
            "string"
            if dtype == pl.String
            else "number"
            if dtype.is_float()
            else "boolean"
            if dtype == pl.Boolean
            else "integer"
        )
    schema: dict[str, Any] = {"type": [kind, "null"]}
    if unit in _DESCRIPTIONS:
        schema["description"] = _DESCRIPTIONS[unit]
    return schema


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _dataclass(cls: type[Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return _object({field.name: _type(hints[field.name]) for field in dataclasses.fields(cls)})


def _type(hint: Any) -> dict[str, Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _dataclass(typing.cast("type[Any]", hint))
    if hint in _PRIMITIVES:
        return dict(_PRIMITIVES[hint])
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_type(argument) for argument in arguments]}
    if origin is tuple:
        return _tuple(arguments)
    if origin is dict:
        return {"type": "object", "additionalProperties": _type(arguments[1])}
    message = f"no JSON Schema for {hint!r}"
    raise TypeError(message)


def _tuple(arguments: tuple[Any, ...]) -> dict[str, Any]:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return {"type": "array", "items": _type(arguments[0])}
    return {
        "type": "array",
        "prefixItems": [_type(a) for a in arguments],
        "items": False,
        "minItems": len(arguments),
    }
