"""What a call of an operator has to do at least: FLOPs, bytes read, bytes written; and the models that tell it from its inputs.

A model is a function of the call's `Inputs` that returns its `Work`. It raises an exception of `ODD_INPUTS` where the inputs are
not those of its operator, and leaves a figure None that they do not tell. An installed package adds models by entry points of the
group `tracekit.operators`: the name is the operator's, the value the function.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from math import prod
from typing import Any, Final, Literal

import msgspec

__all__ = [
    "DTYPES",
    "ENTRY_POINT_GROUP",
    "MOST",
    "ODD_INPUTS",
    "Family",
    "Inputs",
    "Model",
    "Operator",
    "Unit",
    "Work",
    "json_list",
    "models",
    "operator_work",
]

ENTRY_POINT_GROUP: Final = "tracekit.operators"

Unit = Literal["matrix", "vector"]
"""Which units of a device compute it: those for matrix products, or the others."""

DTYPES: Final[dict[str, tuple[int, str | None]]] = {
    "float": (4, "fp32"),
    "double": (8, "fp64"),
    "c10::BFloat16": (2, "bf16"),
    "c10::Half": (2, "fp16"),
    **{f"c10::Float8_{kind}": (1, "fp8") for kind in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")},
    "c10::complex<float>": (8, "fp32"),
    "c10::complex<double>": (16, "fp64"),
    **dict.fromkeys(("long", "long int", "unsigned long", "long unsigned int"), (8, None)),
    **dict.fromkeys(("int", "unsigned int"), (4, None)),
    **dict.fromkeys(("short", "short int", "unsigned short", "short unsigned int"), (2, None)),
    **dict.fromkeys(("bool", "unsigned char", "signed char", "char"), (1, None)),
}
"""What the profiler calls a type of tensors: the bytes of an element, and the precision in whose peak its arithmetic is measured."""

ODD_INPUTS: Final = (
    *(ValueError, TypeError, AttributeError, LookupError, ArithmeticError),
    *(RecursionError, msgspec.DecodeError),
)
"""What inputs raise that are not those of an operator."""

MOST: Final = 2**53
"""Above this the shapes are damaged: no operator runs for hours, and sums must fit 64 bits."""

_MOST_DIMENSIONS: Final = 64
"""No tensor has more; products of far more sizes would take minutes."""

_FLAGS: Final = {"True": True, "False": False}


@dataclass(frozen=True, slots=True)
class Work:
    """The least work of one call; None where it cannot be told.

    Bytes are those of the inputs and outputs, each once. `precision` (fp64, fp32, bf16, fp16, fp8) and `unit` say which peak the
    FLOPs are measured against.
    """

    flops: int | None
    read: int | None = None
    written: int | None = None
    precision: str | None = None
    unit: Unit = "vector"


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of a call, by position, as the profiler writes them. What is missing or damaged raises one of ODD_INPUTS."""

    shapes: Sequence[Any]
    dtypes: Sequence[Any]
    concrete: Sequence[Any]
    """The scalar arguments, as texts."""

    def shape(self, place: int, least: int = 1) -> list[int]:
        """The sizes of a tensor with at least so many dimensions."""
        sizes = self.shapes[place]
        if not _is_shape(sizes) or len(sizes) < least:
            raise ValueError
        return list(sizes)

    def has(self, place: int) -> bool:
        """Whether a tensor of at least one dimension was given there."""
        return place < len(self.shapes) and bool(self.shapes[place])

    def elements(self, place: int) -> int:
        """The number of elements of a tensor."""
        return prod(self.shape(place, 0))

    def itemsize(self, place: int) -> int | None:
        """The bytes of an element; None of a type that is not known."""
        return DTYPES.get(self._dtype(place), (None, None))[0]

    def precision(self, place: int) -> str | None:
        """The precision of a tensor; None if its type has none, or is not known."""
        return DTYPES.get(self._dtype(place), (None, None))[1]

    def size(self, place: int) -> int | None:
        """The bytes of a tensor; None if its type is not known."""
        width = self.itemsize(place)
        return None if width is None else self.elements(place) * width

    def sizes(self, places: Sequence[int]) -> int | None:
        """The bytes of several tensors; those that were not given have none. None if a type is not known."""
        each = [self.size(place) for place in places if self.has(place)]
        return None if None in each else sum(size for size in each if size is not None)

    def number(self, place: int) -> int:
        """A scalar argument that is a whole number."""
        return int(self.concrete[place])

    def numbers(self, place: int) -> list[int]:
        """A scalar argument that is a list of whole numbers, not empty."""
        values = msgspec.json.decode(str(self.concrete[place]))
        if not isinstance(values, list) or not values or not all(type(n) is int for n in values):
            raise ValueError
        return values

    def flag(self, place: int) -> bool:
        """A scalar argument that is true or false."""
        return _FLAGS[self.concrete[place]]

    def flags(self, place: int) -> list[bool]:
        """A scalar argument that is a list of such."""
        return [_FLAGS[text.strip()] for text in self.concrete[place].strip("[]").split(",")]

    def _dtype(self, place: int) -> str:
        dtype = self.dtypes[place] if place < len(self.dtypes) else ""
        return dtype if isinstance(dtype, str) else ""


Model = Callable[[Inputs], Work]


@dataclass(frozen=True, slots=True)
class Operator:
    """A model, the family of its operator, and whether other operators do its work where the trace shows them (`composite`)."""

    work: Model
    family: str
    composite: bool = False


class Family:
    """The models of a family of operators. A module of this package declares them on its `FAMILY`.

    >>> family = Family("sums")
    >>> @family.model("mylib::total")
    ... def total(inputs: Inputs) -> Work:
    ...     return Work(inputs.elements(0), inputs.size(0))
    >>> list(family.operators)
    ['mylib::total']
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.operators: dict[str, Operator] = {}

    def model(self, *names: str, composite: bool = False) -> Callable[[Model], Model]:
        """Declare a function as the model of the operators of these names."""

        def declare(work: Model) -> Model:
            for name in names:
                if name in self.operators:
                    message = f"{name} has two models"
                    raise ValueError(message)
                self.operators[name] = Operator(work, self.name, composite)
            return work

        return declare


_MODULES: Final = ("matmul", "convolution", "attention")
"""The modules that declare models."""


def models() -> dict[str, Operator]:
    """The models by the name of the operator: those of tracekit, and those of installed packages, which cannot replace one."""
    return _models(tuple(sys.path))


@cache
def _models(_path: tuple[str, ...]) -> dict[str, Operator]:
    known: dict[str, Operator] = {}
    for name in _MODULES:
        family: Family = import_module(f"tracekit.analyses.flops.{name}").FAMILY
        known.update(family.operators)
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        known.setdefault(entry.name, Operator(entry.load(), entry.value.partition(":")[0]))
    return known


def operator_work(name: str, shapes: Any, dtypes: Any, concrete: Any) -> Work | None:
    """The least work of one call of an operator, as the profiler writes its inputs; None without a model or with odd inputs.

    `shapes` are those of the inputs, `dtypes` their types, `concrete` the scalar arguments as texts, all by position.

    >>> operator_work("aten::mm", [[2, 3], [3, 4]], ["float", "float"], ["", ""])
    Work(flops=48, read=72, written=32, precision='fp32', unit='matrix')
    >>> operator_work("aten::mm", [[2, 3], [5, 4]], ["float", "float"], ["", ""]) is None
    True
    """
    operator = models().get(name)
    if operator is None:
        return None
    try:
        work = operator.work(Inputs(shapes, dtypes, concrete))
        figures = (work.flops, work.read, work.written)
        possible = all(figure is None or 0 <= figure <= MOST for figure in figures)
    except ODD_INPUTS:
        return None  # a trace is foreign matter: its inputs may be anything
    return work if possible and any(figure is not None for figure in figures) else None


def json_list(text: str | None) -> list[Any]:
    """The list that a column of inputs (`shapes`, `dtypes`, `concrete_inputs`) holds as JSON; empty if it holds none.

    >>> json_list("[[2, 3], []]"), json_list("[[2"), json_list(None)
    ([[2, 3], []], [], [])
    """
    try:
        value = msgspec.json.decode(text) if text else []
    except (msgspec.DecodeError, RecursionError):
        return []
    return value if isinstance(value, list) else []


def _is_shape(sizes: object) -> bool:
    return (
        isinstance(sizes, list)
        and len(sizes) <= _MOST_DIMENSIONS
        and all(type(size) is int and size >= 0 for size in sizes)
    )
