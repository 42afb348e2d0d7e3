"""What a call of an operator has to do at least: FLOPs, bytes read, bytes written; and the models that tell it from its inputs.

A model is a function of the call's `Inputs` that returns its `Work`. It raises an exception of `ODD_INPUTS` where the inputs are
not those of its operator, and leaves a figure None that they do not tell. An installed package adds models by entry points of the
group `tracekit.operators`: the name is the operator's, the value the function.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache, wraps
from importlib import import_module
from math import prod
from typing import Annotated, Any, Final, Literal

import msgspec

from tracekit.extensions import entry_points_of

__all__ = [
    "DTYPES",
    "ENTRY_POINT_GROUP",
    "MOST",
    "MOST_DIMENSIONS",
    "ODD_INPUTS",
    "Family",
    "Inputs",
    "Model",
    "Operator",
    "Unit",
    "Work",
    "is_shape",
    "json_list",
    "model_patterns",
    "models",
    "operator_named",
    "operator_work",
    "read_inputs",
    "work_of",
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
    "c10::Float4_e2m1fn_x2": (1, "fp4"),  # two numbers in a byte, which torch counts as one element
    "c10::complex<float>": (8, "fp32"),
    "c10::complex<double>": (16, "fp64"),
    **dict.fromkeys(("long", "long int", "unsigned long", "long unsigned int"), (8, None)),
    **dict.fromkeys(("int", "unsigned int"), (4, None)),
    **dict.fromkeys(("short", "short int", "unsigned short", "short unsigned int"), (2, None)),
    **dict.fromkeys(("bool", "unsigned char", "signed char", "char"), (1, None)),
    **dict.fromkeys(("c10::qint8", "c10::quint8"), (1, None)),
    "c10::qint32": (4, None),
}
"""What the profiler calls a type of tensors: the bytes of an element, and the precision in whose peak its arithmetic is measured."""

_TYPES: Final = {"Float": "float", "Half": "c10::Half", "BFloat16": "c10::BFloat16"}
"""What the profiler calls types that files of other tools call as torch does. Double, Int and Bool are those of scalars in files of 2021."""

_SCALAR_TYPES: Final = (
    *("unsigned char", "signed char", "short", "int", "long", "c10::Half", "float", "double"),
    *("", "c10::complex<float>", "c10::complex<double>", "bool"),
    *("c10::qint8", "c10::quint8", "c10::qint32", "c10::BFloat16"),
    *("", "", "", "", "", "", ""),
    *(f"c10::Float8_{kind}" for kind in ("e5m2", "e4m3fn", "e5m2fnuz", "e4m3fnuz")),
    *("unsigned short", "unsigned int", "unsigned long"),
)
"""What the profiler calls the types that an argument `dtype` names by their numbers, in torch's order."""

ODD_INPUTS: Final = (
    *(ValueError, TypeError, AttributeError, LookupError, ArithmeticError),
    *(RecursionError, msgspec.DecodeError),
)
"""What inputs raise that are not those of an operator."""

MOST: Final = 2**53
"""Above this the shapes are damaged: no operator runs for hours, and sums must fit 64 bits."""

_TOO_LONG: Final = re.compile(r"(?<![.\d])\d{20}")
"""Whole numbers beyond 64 bits, with which floating-point arithmetic may fail."""

MOST_DIMENSIONS: Final = 64
"""No tensor has more; products of far more sizes would take minutes."""

_NO_KIND: Final = (None, None)

_FLAGS: Final = {"True": True, "False": False}


class Work(msgspec.Struct, frozen=True):
    """The least work of one call; None where it cannot be told.

    Bytes are those of the inputs and outputs, each once; of an input that repeats its elements (`expand`, overlapping windows) those that it has. `precision` (fp64, fp32, bf16, fp16, fp8) and `unit` say which peak the
    FLOPs are measured against.
    """

    flops: int | None
    read: int | None = None
    written: int | None = None
    precision: str | None = None
    unit: Unit = "vector"


class Inputs(msgspec.Struct, frozen=True):
    """The inputs of a call, by position, as the profiler writes them. What is missing or damaged raises one of ODD_INPUTS."""

    shapes: Sequence[Any]
    dtypes: Sequence[Any]
    concrete: Sequence[Any]
    """The scalar arguments, as texts."""
    sound: bool = False
    """Whether the shapes are known to be lists of whole numbers that are not negative."""
    strides: Sequence[Any] = ()
    """Those of the inputs, where they are known and one is 0, so that along that side the elements repeat, or windows overlap."""

    def shape(self, place: int, least: int = 1) -> list[int]:
        """The sizes of a tensor with at least so many dimensions."""
        sizes: list[int] = self.shapes[place]
        if not (self.sound or is_shape(sizes)) or not least <= len(sizes) <= MOST_DIMENSIONS:
            raise ValueError
        if not sizes and self.dtypes[place : place + 1] == [""]:
            raise ValueError  # no tensor, or one without plain sizes, such as a nested one
        return sizes

    def has(self, place: int) -> bool:
        """Whether a tensor of at least one dimension was given there."""
        return place < len(self.shapes) and bool(self.shapes[place])

    def elements(self, place: int) -> int:
        """The number of elements of a tensor."""
        return prod(self.shape(place, 0))

    def _held(self, place: int) -> int:
        """The number of its elements that lie in memory: a side with a stride of 0 repeats the same ones, and there are no more than lie
        between the first and the last one.
        """
        shape = self.shape(place, 0)
        steps = self.strides[place] if place < len(self.strides) else ()
        if not isinstance(steps, list) or [*map(type, steps)] != [int] * len(shape):
            return prod(shape)
        sides = [(size, step) for size, step in zip(shape, steps, strict=True) if step != 0 or not size]
        between = sum((size - 1) * step for size, step in sides)
        count = prod(size for size, _ in sides)
        return min(count, between + 1) if between >= 0 else count

    def itemsize(self, place: int) -> int | None:
        """The bytes of an element; None of a type that is not known."""
        return self._kind(place)[0]

    def precision(self, place: int) -> str | None:
        """The precision of a tensor; None if its type has none, or is not known."""
        return self._kind(place)[1]

    def size(self, place: int) -> int | None:
        """The bytes of a tensor; None if its type is not known."""
        width = self._kind(place)[0]
        return None if width is None else self._held(place) * width

    def sizes(self, places: Iterable[int]) -> int | None:
        """The bytes of several tensors; those that were not given have none. None if a type is not known."""
        total, count = 0, len(self.shapes)
        for place in places:
            if place < count and self.shapes[place]:
                width = self._kind(place)[0]
                if width is None:
                    return None
                total += self._held(place) * width
        return total

    def tensors(self, place: int) -> list[list[int]]:
        """The shapes of a list of tensors, whose types are not recorded."""
        shapes = self.shapes[place]
        if not isinstance(shapes, list) or not all(map(is_shape, shapes)):
            raise ValueError
        return list(shapes)

    def given(self, place: int) -> bool:
        """Whether a scalar argument was recorded there, and is not None."""
        return place < len(self.concrete) and self.concrete[place] != ""

    def named_itemsize(self, place: int) -> int | None:
        """The bytes of an element of the type that an argument `dtype` names; None if it is not known."""
        return self._named(place)[0]

    def named_precision(self, place: int) -> str | None:
        """The precision of such a type; None if it has none, or is not known."""
        return self._named(place)[1]

    def _named(self, place: int) -> tuple[int | None, str | None]:
        number = self.number(place)
        return DTYPES.get(_SCALAR_TYPES[number] if 0 <= number < len(_SCALAR_TYPES) else "", _NO_KIND)

    def number(self, place: int) -> int:
        """A scalar argument that is a whole number."""
        return int(self.concrete[place])

    def numbers(self, place: int) -> tuple[int, ...]:
        """A scalar argument that is a list of whole numbers, not empty."""
        return _whole_numbers(str(self.concrete[place]))

    def flag(self, place: int) -> bool:
        """A scalar argument that is true or false."""
        return _FLAGS[self.concrete[place]]

    def flags(self, place: int) -> list[bool]:
        """A scalar argument that is a list of such."""
        return [_FLAGS[text.strip()] for text in self.concrete[place].strip("[]").split(",")]

    def _kind(self, place: int) -> tuple[int | None, str | None]:
        try:
            return DTYPES[self.dtypes[place]]
        except (LookupError, TypeError):
            return _NO_KIND


Model = Callable[[Inputs], Work]


class Operator(msgspec.Struct, frozen=True):
    """A model, the family of its operator, and whether other operators do its work where the trace shows them (`composite`).

    `inputs_of` is the operator directly around it whose inputs the model takes, where its own do not tell; `backward` is one in the
    backward node of the call whose inputs it takes if the scalar arguments were not recorded. The inputs of the operators directly
    inside it that `inside` names follow its own, in the order of their calls.
    """

    work: Model
    family: str
    composite: bool = False
    inputs_of: str | None = None
    backward: str | None = None
    inside: tuple[str, ...] = ()


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
        self.patterns: dict[str, Operator] = {}

    def model(
        self,
        *names: str,
        composite: bool = False,
        inputs_of: str | None = None,
        backward: str | None = None,
        inside: tuple[str, ...] = (),
        arguments: int | None = None,
    ) -> Callable[[Model], Model]:
        """Declare a function as the model of the operators of these names.

        `arguments` is how many a composite operator has. TorchScript records its whole stack as their inputs, with those last.
        """

        def declare(model: Model) -> Model:
            work = model if arguments is None else _of_last(model, arguments)
            for name in names:
                if name in self.operators:
                    message = f"{name} has two models"
                    raise ValueError(message)
                self.operators[name] = Operator(work, self.name, composite, inputs_of, backward, inside)
            return model

        return declare

    def matching(self, pattern: str) -> Callable[[Model], Model]:
        """Declare a function as the model of the operators whose whole name matches a regular expression; the first that does counts."""

        def declare(work: Model) -> Model:
            self.patterns[pattern] = Operator(work, self.name)
            return work

        return declare


def _of_last(model: Model, count: int) -> Model:
    @wraps(model)
    def work(inputs: Inputs) -> Work:
        before = len(inputs.shapes) - count
        if before <= 0:
            return model(inputs)
        last = slice(before, None)
        given = (inputs.shapes[last], inputs.dtypes[last], inputs.concrete[last])
        return model(Inputs(*given, inputs.sound, inputs.strides[last]))

    return work


_MODULES: Final = (
    *("matmul", "convolution", "attention", "recurrent"),
    *("pointwise", "normalisation", "reduction", "pooling", "movement", "indexing"),
    *("optimizer", "collective", "quantised", "serving", "triton"),
)
"""The modules that declare models."""


def models() -> dict[str, Operator]:
    """The models by the name of the operator: those of tracekit, and those of installed packages, which cannot replace one."""
    return _models(tuple(sys.path))


def operator_named(name: str) -> Operator | None:
    """The operator of a name, whose model is known by the name or by a pattern; None without a model."""
    operator = models().get(name)
    if operator is not None:
        return operator
    return next((operator for pattern, operator in model_patterns() if pattern.fullmatch(name)), None)


@cache
def model_patterns() -> list[tuple[re.Pattern[str], Operator]]:
    """The models whose operators are known by a pattern of their names, in the order in which they are tried."""
    families: list[Family] = [import_module(f"tracekit.analyses.flops.{name}").FAMILY for name in _MODULES]
    return [(re.compile(pattern), each) for family in families for pattern, each in family.patterns.items()]


@cache
def _models(_path: tuple[str, ...]) -> dict[str, Operator]:
    known: dict[str, Operator] = {}
    for name in _MODULES:
        family: Family = import_module(f"tracekit.analyses.flops.{name}").FAMILY
        known.update(family.operators)
    for entry in entry_points_of(ENTRY_POINT_GROUP):
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
    operator = operator_named(name)
    return None if operator is None else work_of(operator, Inputs(shapes, dtypes, concrete))


def work_of(operator: Operator, inputs: Inputs) -> Work | None:
    """The least work of one call of this operator; None with odd inputs, or if no figure can be told."""
    try:
        work = operator.work(inputs)
        if inputs.strides:  # which tell what is read; what is made of an input that repeats does not
            whole = operator.work(msgspec.structs.replace(inputs, strides=()))
            work = msgspec.structs.replace(whole, read=work.read)
        for figure in (work.flops, work.read, work.written):
            if figure is not None and not 0 <= figure <= MOST:
                return None
    except ODD_INPUTS:
        return None  # a trace is foreign matter: its inputs may be anything
    # That nothing is computed is no figure where the bytes are not known.
    return work if work.flops or work.read is not None or work.written is not None else None


_Size = Annotated[int, msgspec.Meta(ge=0)]
_SHAPES: Final = msgspec.json.Decoder(list[list[_Size]])


def json_list(text: str | None) -> list[Any]:
    """The list that a column of inputs (`shapes`, `dtypes`, `concrete_inputs`) holds as JSON; empty if it holds none, or a number of
    more digits than any argument has.

    >>> json_list("[[2, 3], []]"), json_list("[[2"), json_list(None), json_list(f"[{10**40}]")
    ([[2, 3], []], [], [], [])
    """
    try:
        value = msgspec.json.decode(text) if text and not _TOO_LONG.search(text) else []
    except (msgspec.DecodeError, RecursionError):
        return []
    return value if isinstance(value, list) else []


def read_inputs(shapes: str, dtypes: str | None, concrete: str | None, strides: str | None = None) -> Inputs:
    """The inputs of one call from the columns `shapes`, `dtypes`, `concrete_inputs` and `strides`; what is damaged has none.

    >>> read_inputs("[[2, 3], []]", '["float", "Scalar"]', '["", "7"]').shape(0)
    [2, 3]
    """
    kinds, scalars, steps = _types(dtypes), _scalars(concrete), json_list(strides)
    try:
        return Inputs(_SHAPES.decode(shapes), kinds, scalars, True, steps)
    except (msgspec.DecodeError, RecursionError):  # lists of tensors, or damaged
        return Inputs(json_list(shapes), kinds, scalars, False, steps)


_scalars = lru_cache(maxsize=4096)(json_list)


@lru_cache(maxsize=4096)
def _types(text: str | None) -> list[Any]:
    return [_TYPES.get(kind, kind) if isinstance(kind, str) else kind for kind in json_list(text)]


_BRACKETS: Final = str.maketrans("()", "[]")


@lru_cache(maxsize=1024)
def _whole_numbers(text: str) -> tuple[int, ...]:
    # Files of other tools may write (2, 2).
    values = msgspec.json.decode(text.translate(_BRACKETS), type=tuple[int, ...])
    if not values:
        raise ValueError
    return values


def is_shape(sizes: object) -> bool:
    """Whether it is a list of sizes, as of a tensor."""
    return (
        isinstance(sizes, list)
        and len(sizes) <= MOST_DIMENSIONS
        and all(type(size) is int and size >= 0 for size in sizes)
    )
