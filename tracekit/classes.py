"""Classes that hold values, made in a third of the time that Python takes.

For each class Python compiles six methods. A report imports a hundred such classes, for which that took a twelfth of all CPU time of a
small trace. Here all classes share all methods but `__init__`.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls: type | None = None, /, **how: bool) -> Any:
        """The same as Python's, for a class that says nothing of its own about equality.

        >>> @dataclass(frozen=True)
        ... class Pair:
        ...     first: int
        ...     second: str = ""
        >>> Pair(1), Pair(1) == Pair(1, ""), Pair(1) == Pair(2), {Pair(1)} == {Pair(1)}
        (Pair(first=1, second=''), True, False, True)
        """
        return (lambda made: _made(made, **how)) if cls is None else _made(cls, **how)


def _made(cls: type[Any], *, repr: bool = True, eq: bool = True, frozen: bool = False, **how: bool) -> Any:
    # Python refuses a class below a frozen one that it does not freeze itself.
    below = any(map(dataclasses.is_dataclass, cls.__bases__))
    made: Any = dataclasses.dataclass(init=not frozen, repr=False, eq=False, frozen=frozen and below, **how)(
        cls
    )
    if frozen:
        made.__init__ = _init_of(made)
    if frozen and not below:
        made.__dataclass_params__.frozen = True
        made.__setattr__, made.__delattr__ = _refuse, _refuse
        made.__getstate__, made.__setstate__ = _state, _set_state
    if repr and "__repr__" not in vars(cls):
        made.__repr__ = _shown
    if eq:
        made.__eq__, made.__hash__ = _equal, _hash if frozen else None
    return made


def _init_of(made: Any) -> Any:
    """The one method that has to be compiled, in a function that gives it the defaults, as Python does it."""
    fields = sorted(dataclasses.fields(made), key=lambda one: bool(one.kw_only))
    known: dict[str, Any] = {"SET": object.__setattr__, "DEFAULT": _DEFAULT}
    head, body = ["self"], []
    for one in fields:
        name = value = one.name
        if one.kw_only and "*" not in head:
            head.append("*")
        if one.default is not dataclasses.MISSING:
            known[f"_{name}"] = one.default
            name = f"{name}=_{name}"
        elif one.default_factory is not dataclasses.MISSING:
            known[f"_{name}"] = one.default_factory
            name, value = f"{name}=DEFAULT", f"_{name}() if {name} is DEFAULT else {name}"
        head.append(name)
        body.append(f"SET(self, {one.name!r}, {value})")
    if hasattr(made, "__post_init__"):
        body.append("self.__post_init__()")
    text = f"def make({', '.join(known)}):\n def __init__({', '.join(head)}): {'; '.join(body) or 'pass'}\n return __init__"
    compiled: dict[str, Any] = {}
    exec(text, vars(sys.modules[made.__module__]), compiled)  # noqa: S102
    init = compiled["make"](**known)
    init.__annotations__ = {one.name: one.type for one in fields} | {"return": None}
    init.__qualname__ = f"{made.__qualname__}.__init__"
    return init


_DEFAULT: Final = object()
"""Stands for what the function of a field gives."""


def _refuse(_self: Any, name: str, *value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot {'assign to' if value else 'delete'} field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, one.name) for one in dataclasses.fields(self)]


def _set_state(self: Any, values: list[Any]) -> None:
    for one, value in zip(dataclasses.fields(self), values, strict=True):
        object.__setattr__(self, one.name, value)


def _shown(self: Any) -> str:
    values = (f"{one.name}={getattr(self, one.name)!r}" for one in dataclasses.fields(self) if one.repr)
    return f"{type(self).__qualname__}({', '.join(values)})"


def _equal(self: Any, other: Any) -> Any:
    if self.__class__ is not other.__class__:
        return NotImplemented
    values = _values_of(self.__class__)
    return values(self) == values(other)


def _hash(self: Any) -> int:
    return hash(_values_of(self.__class__)(self))


@cache
def _values_of(cls: Any) -> Callable[[Any], Any]:
    """What gives the values that are compared."""
    names = [one.name for one in dataclasses.fields(cls) if one.compare]
    if len(names) > 1:
        return attrgetter(*names)
    return lambda one: tuple(getattr(one, name) for name in names)
