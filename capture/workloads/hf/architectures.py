"""The architectures of the `hf` workload, read from `architectures.json`."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, Final

import msgspec

from tracekit.capture.entries import of_published
from tracekit.errors import UsageError

__all__ = ["ARCHITECTURES", "Architecture", "find", "names"]


class Architecture(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model class of transformers, its sizes, and its training data.

    `name` is what follows `hf:`. `task` is a short noun. `model` and `config` name classes of transformers;
    `tiny` and `full` are keyword arguments of the latter, and if one of them is a mapping with the key
    `class`, it describes a configuration of that class. The numbers of a tiny model's special tokens lie within its
    vocabulary. `inputs` names a kind of `inputs.KINDS`.

    `tiny_size` and `size` are the default sizes, in `unit`. `size_keys` are the settings, with dots between
    levels, that equal the size, or with /2 half of it; a size must be a multiple of `step`. `batch` is the default
    of the full model. `call` holds arguments of the model in addition to the batch.

    `train` are parts of names of parameters that are trained although transformers freezes them. `example_mask` says
    which attention mask an example batch contains: none, `causal` or `full`. `autocast` is false if the model's code
    fails in mixed precision; it then runs in full precision within such a training. `note` is for the reader of the
    file: the published model of the full size, or the reason for a setting.
    """

    name: str
    task: str
    model: str
    config: str
    inputs: str
    tiny: dict[str, Any]
    full: dict[str, Any]
    tiny_size: int
    size: int
    batch: int
    unit: str = "tokens"
    step: int = 1
    size_keys: tuple[str, ...] = ()
    call: dict[str, Any] = {}
    train: tuple[str, ...] = ()
    example_mask: str = ""
    autocast: bool = True
    note: str = ""


ARCHITECTURES: Final = {
    each.name: each
    for each in msgspec.json.decode(
        Path(__file__).with_suffix(".json").read_bytes(), type=tuple[Architecture, ...]
    )
}
"""All architectures by name, grouped by family."""

_BY_CLASS: Final = {each.model.lower(): each for each in ARCHITECTURES.values()}


def names() -> list[str]:
    """Return the names of all architectures, sorted."""
    return sorted(ARCHITECTURES)


def find(name: str) -> Architecture:
    """Return the architecture of that name, or of that model class; upper and lower case are equal.

    Raises `UsageError`, with similar names, if there is none.
    """
    key = name.lower()
    architecture = ARCHITECTURES.get(key) or _BY_CLASS.get(key)
    if architecture is not None:
        return architecture
    close = difflib.get_close_matches(key, [*ARCHITECTURES, *_BY_CLASS], n=5, cutoff=0.5)
    close = list(dict.fromkeys(each if each in ARCHITECTURES else _BY_CLASS[each].name for each in close))
    published = of_published(name)
    similar = published or ", ".join(f"hf:{each}" for each in close)
    remedy = f"did you mean {similar}?" if similar else "see tracekit capture --list"
    raise UsageError(f"unknown architecture {name!r}", remedy=remedy)
