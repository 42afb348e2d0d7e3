"""Changes as they are written: as flags of `tracekit what-if`, and in TOML files with the names of the flags."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tracekit.analyses.what_if.changes import (
    Bandwidth,
    Change,
    FasterHost,
    Fuse,
    NoLoaderWait,
    OtherDevice,
    OverlapCommunication,
    Remove,
    RemoveSync,
    Scale,
    ShardOptimizer,
)
from tracekit.analyses.what_if.graphs import WHOLE, CudaGraph
from tracekit.analyses.what_if.pods import BucketInputs, PartitionSpace
from tracekit.errors import UsageError, nearest, reason_of
from tracekit.files import parse_toml

__all__ = ["changes_in", "changes_of"]

_MOST_BYTES: Final = 1 << 20


def _scale(word: str) -> Scale:
    selector, equals, factor = word.rpartition("=")
    if not equals:
        raise UsageError(
            f"--scale {word!r} has no factor", remedy="write SELECTOR=FACTOR, such as category:gemm=0.5"
        )
    return Scale(selector, _factor("scale", factor))


def _factor(name: str, value: Any) -> float:
    try:
        return float(str(value).removesuffix("x").removesuffix("×"))
    except ValueError:
        raise UsageError(
            f"--{name} {value!r} is not a number", remedy="write one such as 0.5 or 2x"
        ) from None


_SWITCHES: Final[Mapping[str, Callable[[], Change]]] = {
    "remove-sync": RemoveSync,
    "no-loader-wait": NoLoaderWait,
    "overlap-comm": OverlapCommunication,
    "bucket-inputs": BucketInputs,
}
_WITH_SELECTORS: Final[Mapping[str, Callable[[str], Change]]] = {
    "scale": _scale,
    "remove": Remove,
    "cuda-graph": CudaGraph,
}
_WITH_FACTOR: Final[Mapping[str, Callable[[float], Change]]] = {
    "faster-host": FasterHost,
    "bandwidth": Bandwidth,
}
_OF_DEVICES: Final[Mapping[str, Callable[[int], Change]]] = {
    "shard-optimizer": ShardOptimizer,
    "partition-space": PartitionSpace,
}
_NAMES: Final = (*_WITH_SELECTORS, "fuse", "device", *_OF_DEVICES, *_SWITCHES, *_WITH_FACTOR)


def changes_of(given: Mapping[str, Any]) -> list[Change]:
    """The changes that values under the names of flags stand for; an empty value or None stands for none.

    Raises UsageError for a name or a value that is none.

    >>> [one.label for one in changes_of({"scale": ["category:gemm=0.5"], "faster-host": "2x"})]
    ['--scale category:gemm=0.5', '--faster-host 2x']
    """
    return [change for name, value in given.items() for change in _changes(name, value)]


def _changes(name: str, value: Any) -> Iterator[Change]:
    if name not in _NAMES:
        raise UsageError(
            f"there is no change {name!r}", remedy=nearest(name, _NAMES, f"choose one of {', '.join(_NAMES)}")
        )
    if value is None or value is False:
        return
    if name in _WITH_SELECTORS:
        words = [WHOLE] if name == "cuda-graph" and value is True else value
        words = [words] if isinstance(words, str) else words
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise UsageError(f"{name} takes texts", remedy=f'write {name} = ["layer:encoder"]')
        yield from map(_WITH_SELECTORS[name], words)
    elif name in _SWITCHES:
        if value is not True:
            raise UsageError(f"{name} takes no value", remedy=f"write {name} = true")
        yield _SWITCHES[name]()
    elif name == "fuse":
        if value != "optimizer":
            raise UsageError(f"--fuse {value} is not known", remedy="write --fuse optimizer")
        yield Fuse()
    elif name == "device":
        yield OtherDevice(str(value))
    elif name in _OF_DEVICES:
        yield _OF_DEVICES[name](_count(name, value))
    else:
        yield _WITH_FACTOR[name](_factor(name, value))


def _count(name: str, value: Any) -> int:
    count = _factor(name, value)
    if not count.is_integer() or count < 1:
        raise UsageError(
            f"--{name} {value} is not a number of devices", remedy="write a whole one, such as 8"
        )
    return int(count)


def changes_in(path: Path) -> list[Change]:
    """The changes of a TOML file, such as `scale = ["category:gemm=0.5"]` and `remove-sync = true`.

    Raises UsageError when it cannot be read, or holds something else.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise UsageError("it is larger than 1 MiB", path=str(path), remedy="give a file of changes")
        return changes_of(parse_toml(text.decode()))
    except UsageError as error:
        raise UsageError(error.fault, path=str(path), remedy=error.remedy) from error
    except OSError as error:
        raise UsageError(
            f"cannot be read ({reason_of(error)})", path=str(path), remedy="check the path"
        ) from error
    except ValueError as error:
        raise UsageError(
            f"it is not TOML ({error})",
            path=str(path),
            remedy='write lines such as remove = "op:aten::dropout"',
        ) from error
