"""The ceilings of a machine as `tracekit machine` measured them, and the file that keeps them.

The file names the model of the processor or GPU, and no host or user. It may come from elsewhere, so it is read strictly.
"""

from __future__ import annotations

import datetime
import hashlib
import re
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from tracekit.errors import UnreadableTraceError, UsageError, reason_of
from tracekit.facts.ceilings import Ceilings
from tracekit.facts.units import count_of
from tracekit.files import machines_folder, read_small

__all__ = [
    "MACHINE_VERSION",
    "UNSTEADY",
    "Machine",
    "Memory",
    "Product",
    "Rates",
    "machine_path",
    "read_machine",
    "stored_ceilings",
]

MACHINE_VERSION: Final = 1
UNSTEADY: Final = 1.2
_LARGEST: Final = 1 << 20
Rate = Annotated[float, msgspec.Meta(gt=0, lt=1e24)]
Count = Annotated[int, msgspec.Meta(ge=1, lt=2**62)]


class Product(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Products of square matrices in a precision: FLOP/s at the size that gave the highest rate."""

    precision: Literal["fp64", "fp32", "tf32", "bf16", "fp16"]
    unit: Literal["matrix", "vector"]  # that computed them
    size: Count  # rows of a matrix
    best: Rate
    median: Rate


class Memory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Updates `y += x` of arrays that fit a level of the memory: bytes/s, two reads and a write an element."""

    level: Literal["L1", "L2", "L3", "DRAM"]
    set_bytes: Count  # that each thread went over
    best: Rate
    median: Rate


class Rates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was measured with a number of CPU threads; None on a GPU."""

    threads: Count | None
    products: list[Product]
    memory: list[Memory]

    @property
    def unsteady(self) -> int:
        """How many of the rates were disturbed: their best trial is far above the median one."""
        pairs = [(one.best, one.median) for one in self.products]
        pairs += [(one.best, one.median) for one in self.memory]
        return sum(best > UNSTEADY * median for best, median in pairs)


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One measurement of a processor or GPU."""

    schema_version: int = MACHINE_VERSION  # rises when a field changes its meaning
    tracekit_version: str
    measured_on: datetime.date
    device: Literal["cpu", "cuda"]
    device_name: str
    versions: dict[str, str]  # of torch and numpy, which did the work
    rates: list[Rates]
    not_measured: dict[str, str] = msgspec.field(default_factory=dict)  # why, by level

    def to_json(self) -> bytes:
        """The measurement as indented UTF-8 JSON with a final newline."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"

    def ceilings(self, threads: int | None = None) -> Ceilings | None:
        """The best rates with this number of CPU threads, by default the largest number; None if it was not measured."""
        most = max(self.rates, key=lambda one: one.threads or 0, default=None)
        found = next((one for one in self.rates if one.threads == threads), None) if threads else most
        if found is None:
            return None
        using = "" if found.threads is None else f", {count_of(found.threads, 'thread')}"
        unsteady = "; the rates varied" if found.unsteady else ""
        return Ceilings(
            device=self.device_name,
            source=f"measured on {self.measured_on}{using}{unsteady}",
            compute={(one.precision, one.unit): one.best for one in found.products},
            bandwidth={one.level: one.best for one in found.memory},
            threads=found.threads,
        )


def machine_path(device_name: str) -> Path:
    """Where the measurement of a device lies by default. Raises UsageError as `machines_folder` does."""
    plain = re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-")[:60]
    exact = hashlib.sha256(device_name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return machines_folder() / f"{plain}-{exact}.json"


def read_machine(path: Path) -> Machine:
    """The measurement in a file.

    Raises UnreadableTraceError when it cannot be read, is none, or another version of tracekit wrote it.
    """
    remedy = "measure again with tracekit machine"
    try:
        content = read_small(path, at_most=_LARGEST)
        version = msgspec.json.decode(content, type=_Versioned).schema_version
        if version != MACHINE_VERSION:
            newer = "use a newer tracekit" if version > MACHINE_VERSION else remedy
            raise UnreadableTraceError(f"its schema version is {version}", path=path, remedy=newer)
        return msgspec.json.decode(content, type=Machine)
    except FileNotFoundError as error:
        raise UnreadableTraceError(
            "no such file", path=path, remedy="measure with tracekit machine -o"
        ) from error
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        fault = f"not a valid measurement ({reason_of(error)})"
        raise UnreadableTraceError(fault, path=path, remedy=remedy) from error


def stored_ceilings(device_name: str, threads: int | None = None) -> Ceilings | None:
    """The measured ceilings of a device with this name, for a processor with this number of threads.

    None when it was not measured, or not with so many threads. Without a number, those with the most threads. A virtual
    machine may call its processor by a name that others share. Raises what `read_machine` raises.
    """
    try:
        path = machine_path(device_name)
    except UsageError:
        return None  # nothing is kept without a folder
    try:
        if not path.exists():
            return None
    except OSError:
        return None  # the folder may not be entered
    machine = read_machine(path)
    return machine.ceilings(threads) if machine.device_name == device_name else None


class _Versioned(msgspec.Struct):
    schema_version: int
