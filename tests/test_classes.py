"""Our dataclasses behave as Python's."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from tracekit import classes


def _point(dataclass: Callable[..., Any]) -> Any:
    @dataclass(frozen=True, slots=True)
    class Point:
        """With every kind of field that we use."""

        x: int
        y: int | None = None
        names: list[str] = dataclasses.field(default_factory=list)
        label: str = dataclasses.field(default="", kw_only=True)
        hidden: str = dataclasses.field(default="", repr=False, compare=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "x", abs(self.x))

    return Point


OURS, PYTHONS = _point(classes.dataclass), _point(dataclasses.dataclass)


@classes.dataclass(frozen=True, slots=True)
class Base:
    """At the top of the module, so that it can be pickled."""

    kind: str
    made: tuple[int, ...] = ()


@classes.dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Below(Base):
    """Of one class of ours another one."""

    more: int = 0


def test_calls_are_the_same() -> None:
    ours, pythons = (str(inspect.signature(one)) for one in (OURS, PYTHONS))
    assert ours.split("names")[0] == pythons.split("names")[0]
    for arguments, named in (((-3,), {}), ((1, 2, ["a"], "h"), {"label": "b"})):
        ours, pythons = OURS(*arguments, **named), PYTHONS(*arguments, **named)
        assert repr(ours) == repr(pythons)
        assert dataclasses.astuple(ours) == dataclasses.astuple(pythons)
    for wrong in ((), (1, 2, [], "", "label")):
        with pytest.raises(TypeError, match="__init__"):
            OURS(*wrong)


def test_values_are_compared_and_kept() -> None:
    assert OURS(1, hidden="a") == OURS(-1, hidden="b") != OURS(2)
    assert OURS(1) != PYTHONS(1)
    assert OURS(1).names is not OURS(1).names
    assert {Base("a"): 1}[Base("a", ())] == 1
    with pytest.raises(TypeError, match="unhashable"):
        hash(OURS(1))  # it holds a list
    assert repr(Below(kind="a", more=1)) == "Below(kind='a', made=(), more=1)"


@pytest.mark.parametrize("dataclass", [classes.dataclass, dataclasses.dataclass], ids=["ours", "pythons"])
def test_the_value_of_one_field_is_compared_in_a_tuple(dataclass: Callable[..., Any]) -> None:
    @dataclass(frozen=True)
    class Alone:
        value: Any

    odd = Alone(float("nan"))
    assert odd == odd  # noqa: PLR0124 - as a list that holds it
    assert hash(Alone(3)) == hash((3,))
    assert Alone(3) == Alone(3) != Alone(4)


@pytest.mark.parametrize("value", [Base("a", (1,)), Below(kind="a", more=1)], ids=["alone", "below"])
def test_a_frozen_one_is_only_copied(value: Any) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'kind'"):
        value.kind = "b"
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'kind'"):
        del value.kind
    kept = pickle.loads(pickle.dumps(value))  # noqa: S301 - our own
    for made in (copy.copy(value), kept, dataclasses.replace(value)):
        assert dataclasses.astuple(made) == dataclasses.astuple(value)
    assert dataclasses.replace(value, kind="b").kind == "b"


def test_a_class_of_pythons_may_be_below_ours() -> None:
    @dataclasses.dataclass(frozen=True)
    class Theirs(Base):
        more: int = 0

    assert Theirs("a", more=2) == Theirs("a", (), 2)
