"""Predictors as files: JSON that is looked at closely before it is believed. Nothing in a file is run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tracekit.errors import TracekitError, UnreadableTraceError, reason_of
from tracekit.files import write_text
from tracekit.predict.auto import OUTSIDE, Predictor
from tracekit.predict.conformal import Intervals
from tracekit.predict.describe import description_of
from tracekit.predict.members import restore_member
from tracekit.predict.support import INSIDE, Support

__all__ = ["FORMAT", "VERSION", "dumped", "load", "restored", "save"]

FORMAT: Final = "tracekit prediction"
VERSION: Final = 2
_MOST_BYTES: Final = 64 << 20
_MOST_MEMBERS: Final = 32
_MOST_COUNTED: Final = 1 << 53
_WRONG: Final = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError)


def save(predictor: Predictor, path: Path) -> Path:
    """Write a predictor. Raises UsageError if it cannot be written."""
    return write_text(path, dumped(predictor))


def dumped(predictor: Predictor) -> str:
    """A predictor as JSON; the same predictor gives the same text."""
    said = {
        "format": FORMAT,
        "version": VERSION,
        "rows": predictor.rows,
        "configurations": predictor.configurations,
        "common": dict(predictor.common),
        "description": predictor.description.as_json(),
        "weights": _plain(predictor.weights),
        "errors": _plain(predictor.errors),
        "intervals": predictor.intervals.state(),
        "support": predictor.support.state(),
        "members": {name: member.state() for name, member in predictor.models.items()},
    }
    return json.dumps(said, allow_nan=False, separators=(",", ":")) + "\n"


def load(path: Path) -> Predictor:
    """The predictor in a file. Raises UnreadableTraceError for a file that holds none."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        raise UnreadableTraceError("no such file", path=path, remedy="check the path") from None
    except OSError as error:
        raise UnreadableTraceError(f"it cannot be read ({reason_of(error)})", path=path) from error
    if len(raw) > _MOST_BYTES:
        raise UnreadableTraceError("the file is larger than 64 MiB", path=path, remedy="fit the model again")
    try:
        said = json.loads(raw.decode("utf-8"), parse_constant=_no_number, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise UnreadableTraceError("it is not JSON", path=path, remedy=_AGAIN) from error
    return restored(said, path)


_AGAIN: Final = "write it with: tracekit predict fit"


def restored(said: object, path: Path) -> Predictor:
    """The predictor that JSON says; `path` is its file, for errors. Raises UnreadableTraceError if it says none."""
    if not isinstance(said, dict) or said.get("format") != FORMAT:
        raise UnreadableTraceError("it is not a fitted model", path=path, remedy=_AGAIN)
    if said.get("version") != VERSION:
        raise UnreadableTraceError(
            f"it is of version {str(said.get('version'))[:20]!r}, this tracekit reads {VERSION}",
            path=path,
            remedy="fit the model again",
        )
    try:
        return _restored(said, path)
    except UnreadableTraceError:
        raise
    except (*_WRONG, TracekitError) as error:
        raise UnreadableTraceError(
            f"the fitted model in it is damaged ({type(error).__name__}: {str(error)[:120]})",
            path=path,
            remedy="fit the model again",
        ) from error


def _restored(said: Mapping[str, Any], path: Path) -> Predictor:
    members, weights = said["members"], said["weights"]
    if not isinstance(members, dict) or not 0 < len(members) <= _MOST_MEMBERS:
        raise ValueError("it has no members, or too many")
    kinds = {
        str(kind): {str(name): _number(each) for name, each in shares.items()}
        for kind, shares in weights.items()
    }
    if not {INSIDE, OUTSIDE} <= kinds.keys():
        raise ValueError("weights are missing")
    for shares in kinds.values():
        if (
            not shares.keys() <= members.keys()
            or min(shares.values()) < 0
            or not math.isclose(sum(shares.values()), 1)
        ):
            raise ValueError("the weights of the members do not sum to 1")
    return Predictor(
        description=description_of(said["description"], path),
        models={name: restore_member(name, state) for name, state in members.items()},
        weights=kinds,
        errors={
            str(kind): {str(name): _number(each) for name, each in of.items()}
            for kind, of in said["errors"].items()
        },
        intervals=Intervals.restore(said["intervals"]),
        support=Support.restore(said["support"]),
        common={str(column): str(value) for column, value in said["common"].items()},
        rows=_count(said["rows"]),
        configurations=_count(said["configurations"]),
    )


def _number(value: object) -> float:
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError("a number is none")
    return float(value)


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _MOST_COUNTED:
        raise ValueError("a number of rows is none")
    return value


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:20]} is too large")
    return value


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is not a number")


def _plain(table: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    return {kind: dict(each) for kind, each in table.items()}
