"""What the columns of a table of runs mean, as a small TOML file says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Final

from tracekit.classes import dataclass
from tracekit.errors import UnreadableTraceError, UsageError, nearest
from tracekit.facts.units import NS_PER_MS, NS_PER_S, NS_PER_US
from tracekit.files import parse_toml

__all__ = [
    "CATEGORIES",
    "FIGURES",
    "MAY_BE_ZERO",
    "NUMBERS",
    "WORK",
    "Description",
    "description_of",
    "read_description",
]

NUMBERS: Final[dict[str, str]] = {
    "gpus": "the devices of a run (dies, where a card has several)",
    "batch": "samples of an iteration, over all devices",
    "micro_batch": "samples that go through a pipeline at once",
    "iterations": "the iterations of a run; without it the target is the time of one",
    "loader_threads": "threads that load data",
    "layers": "how many layers, or inner modules, the network has",
    "hidden": "the width of a layer",
    "heads": "the attention heads of a layer",
    "sequence": "the tokens of a sample",
    "tensor_parallel": "devices that share each layer",
    "data_parallel": "copies of the network",
    "pipeline_parallel": "stages of the pipeline",
    "parameters": "the parameters of the network",
    "rows": "the rows of a matrix product's result",
    "columns": "the columns of a matrix product's result",
    "inner": "the length of the sums in a matrix product",
    "in_channels": "the channels that a convolution reads",
    "out_channels": "the channels that a convolution writes",
    "image": "the height and width of the image that a convolution reads",
    "window": "the height and width of a convolution's window",
    "stride": "the stride of a convolution",
    "padding": "the padding of a convolution, at each edge",
    "flops": "the floating-point operations of an iteration, or of a kernel",
    "bytes": "the bytes that an iteration, or a kernel, moves",
    "peak_gflops": "the peak of a device, GFLOP/s",
    "bandwidth_gb_s": "the memory bandwidth of a device, GB/s",
}
"""Roles of columns that hold numbers above 0, and what they mean."""
MAY_BE_ZERO: Final = frozenset({"padding"})
"""Of these, the ones that 0 is a value of."""
CATEGORIES: Final[dict[str, str]] = {
    "device": "the name of the device; its peaks come from the catalogue, or from [devices]",
    "machine": "the machine in which the devices are",
    "network": "the name of the network, or of the case",
    "precision": "the precision of the arithmetic",
    "mode": "training or inference",
    "option": "what else tells runs of a network apart, such as fusion",
    "op": "the operator of a kernel",
}
"""Roles of columns that hold names."""
WORK: Final = "work"
"""The role of the column that holds the work of each layer, as `tracekit dataset` writes it. Rows that differ in it only are repetitions."""
FIGURES: Final[dict[str, str]] = {
    "peak_gflops": "the fp32 peak, GFLOP/s",
    "bandwidth_gb_s": "the bandwidth of the memory, GB/s",
    "multiprocessors": "multiprocessors, or compute units",
    "clock_mhz": "the boost clock",
    "l2_mb": "the second-level cache, MB",
    "watts": "the power limit",
    "process_nm": "the process, as the foundry names it",
}
"""What a description may say of a device, besides its `name` and its `dies`."""
_UNITS: Final = {
    "s": NS_PER_S,
    "ms": NS_PER_MS,
    "us": NS_PER_US,
    "ns": 1,
    "min": 60 * NS_PER_S,
    "h": 3600 * NS_PER_S,
}
_TABLES: Final = ("target", "columns", "rows", "devices")


@dataclass(frozen=True, slots=True)
class Description:
    """What the columns of a table mean."""

    target: str
    """The column of the time."""
    unit: str
    columns: Mapping[str, str]
    """The column of each role (`NUMBERS`, `CATEGORIES`)."""
    id: str = ""
    """The column that names a row; without one rows have numbers, from 0."""
    group: tuple[str, ...] = ()
    """The columns that tell configurations apart: rows that agree in them are repetitions. Empty: those of all roles and features."""
    features: tuple[str, ...] = ()
    """Columns of numbers without a role, for regressions."""
    devices: Mapping[str, Mapping[str, float | str]] = field(default_factory=dict)
    """By the value in the column of the device, or else of its peak, what is known of it: `name`, `peak_gflops`, `bandwidth_gb_s`, `dies`, …"""

    @property
    def seconds(self) -> float:
        """Of one unit of the target."""
        return _UNITS[self.unit] / NS_PER_S

    def as_json(self) -> dict[str, Any]:
        """What `description_of` reads."""
        return {
            "target": {"column": self.target, "unit": self.unit},
            "columns": dict(self.columns),
            "rows": {"id": self.id, "group": list(self.group), "features": list(self.features)},
            "devices": {name: dict(known) for name, known in self.devices.items()},
        }


def read_description(path: Path) -> Description:
    """The description in a TOML file.

    Raises UnreadableTraceError for what is no TOML, and UsageError for a key or a unit that there is not.
    """
    try:
        said = parse_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UnreadableTraceError("no such file", path=path) from None
    except (OSError, ValueError) as error:
        raise UnreadableTraceError(f"it is not TOML ({str(error).splitlines()[0]})", path=path) from error
    return description_of(said, path)


def description_of(said: Mapping[str, Any], path: Path) -> Description:
    """The description in these tables; `path` is their file, for errors.

    >>> said = {"target": {"column": "time_s", "unit": "s"}, "columns": {"gpus": "cards", "batch": "batch"}}
    >>> description_of(said, Path("columns.toml")).columns["gpus"]
    'cards'

    Raises UsageError for a key or a unit that there is not.
    """
    for name in said:
        _known(name, _TABLES, "table", path)
    target, rows = _table(said, "target", path), _table(said, "rows", path)
    columns, devices = _table(said, "columns", path), _table(said, "devices", path)
    for role in columns:
        _known(role, (*NUMBERS, *CATEGORIES, WORK), "role", path)
    for key in rows:
        _known(key, ("id", "group", "features"), "[rows] key", path)
    unit = _word(target.get("unit", "s"), "[target] unit", path)
    _known(unit, _UNITS, "unit", path)
    aim = target.get("column")
    if not isinstance(aim, str):
        raise UsageError(
            "it does not say which column is the target", path=path, remedy='write [target] column = "…"'
        )
    columns = {role: _word(column, f"[columns] {role}", path) for role, column in columns.items()}
    features = _words(rows.get("features", []), "[rows] features", path)
    if not columns and not features:
        raise UsageError("it names no column but the target", path=path, remedy='write [columns] batch = "…"')
    if aim in (*columns.values(), *features):
        raise UsageError(
            f"{aim!r} is the target, which cannot foretell itself", path=path, remedy="name other columns"
        )
    return Description(
        target=aim,
        unit=unit,
        columns=columns,
        id=_word(rows.get("id", ""), "[rows] id", path),
        group=_words(rows.get("group", []), "[rows] group", path),
        features=features,
        devices={str(name): _device(devices, name, path) for name in devices},
    )


def _table(said: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    found = said.get(name, {})
    if not isinstance(found, dict):
        raise UsageError(f"[{name}] is not a table", path=path)
    return found


def _device(devices: Mapping[str, Any], name: str, path: Path) -> dict[str, float | str]:
    said = _table(devices, name, path)
    for key, value in said.items():
        _known(key, ("name", "dies", *FIGURES), "[devices] key", path)
        if key == "name":
            _word(value, f"[devices.{name!r}] name", path)
        elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise UsageError(f"[devices.{name!r}] {key} is not a number above 0", path=path)
    return said


def _word(value: object, name: str, path: Path) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{name} is not text", path=path, remedy="write it in quotes")
    return value


def _words(value: object, name: str, path: Path) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise UsageError(f"{name} is not a list", path=path, remedy='write ["…", "…"]')
    return tuple(_word(each, name, path) for each in value)


def _known(word: object, words: Mapping[str, object] | tuple[str, ...], kind: str, path: Path) -> None:
    if word not in words:
        raise UsageError(
            f"there is no {kind} {word!r}",
            path=path,
            remedy=nearest(str(word), words, f"choose one of {', '.join(words)}"),
        )
