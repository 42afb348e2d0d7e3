"""What a kernel has to do on a device: the time that its peaks would take, and what decides how far it stays below them.

The quantities of `Work.matrix` have no dimension: sizes in elements, waves, fractions of tiles, shares of the cache. So they mean the same
on a device that was never seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from tracekit.classes import dataclass
from tracekit.errors import InconclusiveError
from tracekit.names import clean
from tracekit.predict.boards import Boards
from tracekit.predict.table import Floats, Runs

__all__ = ["FREE", "KINDS", "TILINGS", "Tiling", "Work", "works_of"]

TILINGS: Final[dict[str, tuple[tuple[int, int], ...]]] = {
    "any": ((128, 128), (128, 64), (64, 64), (32, 128), (128, 32), (32, 32)),
    "128x128": ((128, 128),),
    "128x64": ((128, 64),),
    "64x64": ((64, 64),),
}
"""How libraries cut the result of a product into tiles, columns by rows: into the one that fits best, or always into the same."""
_OF_TILE: Final = {128 * 128: 1.0, 128 * 64: 0.95, 64 * 64: 0.85, 128 * 32: 0.8, 32 * 32: 0.5}
"""What a tile of this size reaches of a multiprocessor's peak: small ones load more for each operation."""
_AROUND: Final = 24.0
"""Steps of the inner sum that a tile takes to begin and to end."""
_MISSED: Final = 0.5
"""The part of the tiles' reads that no other tile has brought into the cache."""
_PARTLY: Final = 0.5
"""The part of the last wave's idle multiprocessors that is lost."""
_WIDTH: Final[dict[str, int]] = {
    "fp16": 2,
    "bf16": 2,
    "float16": 2,
    "bfloat16": 2,
    "half": 2,
    "fp64": 8,
    "float64": 8,
}
"""Bytes of an element, where they are not 4."""
_RESIDENT: Final = 0.55
"""The share of the second-level cache that data may have which is found there again."""
_SHARP: Final = 8.0
_WINOGRAD: Final = 1.15
"""The arithmetic that convolutions count, over what they do, about: some transform theirs to less."""
_HELD: Final = 3e-4
"""Seconds: products that take longer at the peak are held down by the power limit."""
FREE: Final[dict[str, tuple[str, ...]]] = {
    "product": (
        "batch",
        "rows",
        "inner",
        "columns",
        "intensity",
        "rows modulo 4",
        "inner modulo 4",
        "columns modulo 4",
        "operator",
    ),
    "convolution": (
        *(
            "batch",
            "in channels",
            "out channels",
            "image",
            "window",
            "intensity",
            "image modulo 4",
            "image modulo 2",
        ),
        *("in channels modulo 4", "out channels modulo 4", "operator"),
    ),
    "shape": ("rows", "width", "elements", "width modulo 4", "width over its power of two", "operator"),
}
"""The kinds of kernels, and the columns of their matrices that are the same on all devices."""
_OF_DEVICE: Final = ("waves", "last wave", "used")
"""The further columns of kernels that work in tiles."""
KINDS: Final = {kind: free if kind == "shape" else (*free, *_OF_DEVICE) for kind, free in FREE.items()}


@dataclass(frozen=True, slots=True, eq=False)
class Tiling:
    """A way to cut results into tiles."""

    arithmetic: Floats
    """Seconds at the sustained peak, or at the bandwidth where the tiles read so much again that this takes longer."""
    columns: Floats
    """`_OF_DEVICE`, as logarithms to base 2."""


@dataclass(frozen=True, slots=True, eq=False)
class _Product:
    """The matrix product that a kernel is, or amounts to."""

    batch: Floats
    rows: Floats
    inner: Floats
    columns: Floats


_Sizes = Mapping[str, Floats]
_Made = tuple[Floats, Floats, dict[str, Floats], _Product | None]
"""Operations, elements that are moved, columns, and the product."""


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Kernels of one kind."""

    rows: npt.NDArray[np.int64]
    """Which of the table's they are."""
    ops: tuple[str, ...]
    memory: Floats
    """Seconds at the bandwidth, or the cache's for data that it holds."""
    free: Floats
    """The columns `FREE`."""
    tilings: Mapping[str, Tiling]

    def base(self, tiling: Sequence[str]) -> Floats:
        """Seconds of arithmetic and memory, the longer one hiding most of the other, where each row has this tiling."""
        arithmetic = _chosen(tiling, {name: each.arithmetic for name, each in self.tilings.items()})
        return _longer(arithmetic, self.memory)

    def matrix(self, tiling: Sequence[str]) -> Floats:
        """The columns `KINDS`."""
        return np.column_stack(
            [self.free, _chosen(tiling, {name: each.columns for name, each in self.tilings.items()})]
        )


def _longer(one: Floats, other: Floats) -> Floats:
    """The longer of two times, which hides most of the other."""
    found: Floats = (one**4 + other**4) ** 0.25
    return found


def _chosen(names: Sequence[str], known: Mapping[str, Floats]) -> Floats:
    """Each row from the array of its name; the first one's where there is none."""
    found = next(iter(known.values())).copy()
    told = np.array(names, dtype=object)
    for name, values in known.items():
        rows = told == name
        found[rows] = values[rows]
    return found


def works_of(runs: Runs, boards: Boards) -> dict[str, Work]:
    """The kernels of a table, by their kind. Raises InconclusiveError for one whose dimensions are missing."""
    told = {role: runs.numbers(role) for role in _ROLES}
    kinds = np.where(
        np.isfinite(told["in_channels"]),
        "convolution",
        np.where(np.isfinite(told["inner"]), "product", "shape"),
    )
    ops = np.array([op.strip().lower() for op in runs.names("op")], dtype=object)
    width = np.array([_WIDTH.get(name.lower(), 4) for name in runs.names("precision")], dtype=np.float64)
    found = {}
    for kind in KINDS:
        rows = np.flatnonzero(kinds == kind)
        if not rows.size:
            continue
        sizes = {role: values[rows] for role, values in told.items()}
        board = {
            name: boards.column(name)[rows]
            for name in ("peak", "limit", "issue", "streamed", "multiprocessors", "l2_mb", "l2_gb_s")
        }
        flops, moved, columns, product = _MAKE[kind](sizes)
        moved = moved * width[rows]
        if not (np.isfinite(flops) & np.isfinite(moved)).all():
            op = ops[rows[~(np.isfinite(flops) & np.isfinite(moved))][0]]
            raise InconclusiveError(
                f"a row of operator {clean(op)} lacks dimensions", remedy=f"a {kind} needs {_NEEDS[kind]}"
            )
        columns["intensity"] = np.log2(flops / moved)
        columns["operator"] = np.array([sum(map(ord, op)) for op in ops[rows]], dtype=np.float64)
        free = np.column_stack([columns[name] for name in FREE[kind]])
        if product is None:
            tilings = {"": Tiling(_held(flops / (1e9 * board["peak"]), board), np.zeros((rows.size, 0)))}
        else:
            spared = _WINOGRAD if kind == "convolution" else 1.0
            limited = {**board, "limit": board["limit"] * spared, "width": width[rows]}
            tilings = {name: _tiling(tiles, product, limited) for name, tiles in TILINGS.items()}
        found[kind] = Work(rows, tuple(ops[rows]), _memory(moved, board), free, tilings)
    return found


def _held(at_peak: Floats, board: Mapping[str, Floats]) -> Floats:
    """Seconds of arithmetic that takes so many at the peak: long ones are at what the power limit allows."""
    usual = at_peak / board["issue"]
    held = 1 / (1 + _HELD / np.maximum(usual, 1e-12))
    reached = np.minimum(board["peak"] * board["issue"], board["limit"])
    slower: Floats = usual * (board["peak"] * board["issue"] / reached) ** held
    return slower


def _tiling(tiles: Sequence[tuple[int, int]], product: _Product, board: Mapping[str, Floats]) -> Tiling:
    """The fastest of these tiles for each product."""
    one = board["peak"] * 1e9 / board["multiprocessors"]
    every = []
    for wide, high in tiles:
        number = product.batch * np.ceil(product.columns / wide) * np.ceil(product.rows / high)
        waves = number / board["multiprocessors"]
        last = np.ceil(waves) - waves
        turns = np.maximum(1.0, waves + _PARTLY * last)
        seconds = turns * 2 * wide * high * (product.inner + _AROUND) / (one * _OF_TILE[wide * high])
        used = product.batch * product.rows * product.columns / (number * wide * high)
        read = number * (wide + high) * product.inner * board["width"] / (1e9 * board["streamed"])
        every.append((seconds, read, np.log2(waves), np.log2(np.ceil(waves) / waves), np.log2(used)))
    table = np.array(every)
    best = np.argmin(table[:, 0], axis=0)
    seconds, read, *columns = table[best, :, np.arange(best.size)].T
    return Tiling(_longer(_held(seconds, board), _MISSED * read), np.column_stack(columns))


def _memory(moved: Floats, board: Mapping[str, Floats]) -> Floats:
    """Seconds of these bytes: those that the cache holds from the run before come from there."""
    resident = 1 / (1 + (moved / (_RESIDENT * board["l2_mb"] * 2**20)) ** _SHARP)
    seconds: Floats = (
        moved
        / 1e9
        * (resident / np.maximum(board["l2_gb_s"], board["streamed"]) + (1 - resident) / board["streamed"])
    )
    return seconds


def _product(sizes: _Sizes) -> _Made:
    batch = np.nan_to_num(sizes["batch"], nan=1.0)
    rows, inner, columns = sizes["rows"], sizes["inner"], sizes["columns"]
    named = {"batch": batch, "rows": rows, "inner": inner, "columns": columns}
    found = {name: np.log2(value) for name, value in named.items()}
    found |= {f"{name} modulo 4": np.mod(value, 4) for name, value in named.items()}
    moved = batch * (rows * inner + inner * columns + rows * columns)
    return 2 * batch * rows * inner * columns, moved, found, _Product(batch, rows, inner, columns)


def _convolution(sizes: _Sizes) -> _Made:
    batch = np.nan_to_num(sizes["batch"], nan=1.0)
    read, written, image, window = (
        sizes["in_channels"],
        sizes["out_channels"],
        sizes["image"],
        sizes["window"],
    )
    stride, padding = np.nan_to_num(sizes["stride"], nan=1.0), np.nan_to_num(sizes["padding"], nan=0.0)
    out = np.maximum(1.0, np.floor((image + 2 * padding - window) / stride) + 1)
    named = {"batch": batch, "in channels": read, "out channels": written, "image": out, "window": window}
    found = {name: np.log2(value) for name, value in named.items()}
    found |= {f"{name} modulo 4": np.mod(value, 4) for name, value in named.items()}
    found["image modulo 2"] = np.mod(out, 2)
    moved = batch * read * image**2 + read * written * window**2 + batch * written * out**2
    product = _Product(np.ones_like(batch), batch * out**2, read * window**2, written)
    return 2 * batch * out**2 * written * read * window**2, moved, found, product


def _shape(sizes: _Sizes) -> _Made:
    parts = np.column_stack([sizes[role] for role in ("batch", "sequence", "rows", "columns", "hidden")])
    given = np.isfinite(parts)
    elements = np.where(given.any(axis=1), np.nanprod(np.where(given, parts, 1.0), axis=1), np.nan)
    last = parts.shape[1] - 1 - np.argmax(given[:, ::-1], axis=1)
    width = np.nan_to_num(parts[np.arange(len(parts)), last], nan=1.0)
    found = {
        "rows": np.log2(elements / width),
        "width": np.log2(width),
        "elements": np.log2(elements),
        "width modulo 4": np.mod(width, 4),
        "width over its power of two": np.log2(width) - np.floor(np.log2(width)),
    }
    return elements, 2 * elements, found, None


_ROLES: Final = (
    "batch",
    "sequence",
    "rows",
    "columns",
    "inner",
    "hidden",
    "in_channels",
    "out_channels",
    "image",
    "window",
    "stride",
    "padding",
)
_MAKE: Final = {"product": _product, "convolution": _convolution, "shape": _shape}
_NEEDS: Final = {
    "product": "rows, inner and columns",
    "convolution": "in_channels, out_channels, image and window",
    "shape": "its sizes, such as batch and hidden",
}
