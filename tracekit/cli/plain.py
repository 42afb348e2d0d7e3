"""Commands whose help names arguments as they are typed, and which take plain words without typer's own conversion."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_origin

from typer.core import TyperArgument, TyperCommand

__all__ = ["PlainCommand", "plainly_converted"]


class PlainCommand(TyperCommand):
    """A command whose help names arguments as they are typed, without the types and ranges that they have in Python."""

    def __init__(self, *values: Any, **named: Any) -> None:
        super().__init__(*values, **named)
        for parameter in self.params:
            if isinstance(parameter, TyperArgument):
                _make_plain(parameter)
            vars(parameter)["_get_number_range_help_str"] = lambda: None  # [x>=1]

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, that of the help included."""
        return plainly_converted(super().get_params(ctx))


def _make_plain(argument: Any) -> None:
    usage = argument.metavar if argument.required else f"[{argument.metavar}]"
    argument.get_usage_pieces = lambda _context: [usage]
    argument.display_type_rich = lambda *_, **__: ""  # older releases of typer show no type


def plainly_converted(parameters: list[Any]) -> list[Any]:
    """The same parameters of a command, which take plain words without typer's own conversion."""
    for parameter in parameters:
        slow = getattr(parameter, "get_runtime_param", None)
        if slow is not None and "get_runtime_param" not in vars(parameter):
            vars(parameter)["get_runtime_param"] = _Conversion(slow).itself
    return parameters


class _Conversion:
    """The conversion of a word, and typer's own for a word that is not as plain as most: releases of typer that have
    `get_runtime_param` convert by pydantic, whose import takes as long as that of typer.
    """

    def __init__(self, slow: Callable[[], Any]) -> None:
        self._slow = slow

    def itself(self) -> _Conversion:
        """The same object, as typer asks for it."""
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value of the words, as typer calls for it."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        kind = param.type_descriptor
        try:
            return _converted(value, kind.annotation, kind.parameter_info, param.default)
        except ValueError:  # typer says what is wrong with it, if anything is
            return self._slow().coerce(value, param=param, ctx=ctx)


def _converted(value: Any, kind: Any, info: Any, default: Any) -> Any:
    """The value, as it is where it is the default. Raises ValueError for what has to be looked at more closely."""
    if get_origin(kind) is list and isinstance(value, list | tuple):
        return [_converted(each, get_args(kind)[0], info, None) for each in value]
    if info.parser is None and isinstance(kind, type) and issubclass(kind, Path):
        return kind(value)  # whether it can be read, the command says
    if value is default:
        return value
    if isinstance(value, str) and info.parser is not None:
        return info.parser(value)
    if isinstance(value, str) and isinstance(kind, type) and issubclass(kind, str):
        return kind(value)  # a text, or that of an Enum
    if kind is int and isinstance(value, str) and value.isascii() and value.isdigit():
        number = int(value)
        if (info.min is None or number >= info.min) and (info.max is None or number <= info.max):
            return number
    raise ValueError(value)
