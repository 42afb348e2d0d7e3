"""What every analysis returns."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import polars as pl

from tracekit.findings import Finding

__all__ = ["NotCaptured", "Result"]


@dataclass(frozen=True, slots=True)
class NotCaptured:
    """What the profile lacks for an answer."""

    what: str
    remedy: str = ""
    """What records it, as a sentence without an end."""
    instead: str = ""
    """What takes its place."""

    def __str__(self) -> str:
        if self.instead:
            return f"{self.what}{f' ({self.remedy})' if self.remedy else ''}; {self.instead}"
        return f"{self.what}; {self.remedy}" if self.remedy else self.what


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Result:
    """The base of all results.

    Subclasses add frames and scalars as fields, with units in their names. `answer` is one sentence;
    `not_captured` says what the profile lacks and which flag captures it, and is None when the question could be
    answered.
    """

    answer: str
    not_captured: NotCaptured | str | None = None
    findings: tuple[Finding, ...] = ()

    def tables(self) -> dict[str, pl.DataFrame]:
        """The result's frames by field name; one that is None was not captured and is left out."""
        return {name: value for name, value in self._own_fields() if isinstance(value, pl.DataFrame)}

    def scalars(self) -> dict[str, int | float | str | None]:
        """The result's plain figures by field name."""
        return {
            name: value
            for name, value in self._own_fields()
            if value is None or isinstance(value, int | float | str)
        }

    def _own_fields(self) -> list[tuple[str, Any]]:
        base = {field.name for field in dataclasses.fields(Result)}
        return [(f.name, getattr(self, f.name)) for f in dataclasses.fields(self) if f.name not in base]
