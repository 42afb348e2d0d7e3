"""An architecture of the `hf` workload as data. Importing it imports neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["HfEntry", "Row", "entries"]

Settings = Mapping[str, Any]
Row = tuple[str, str, str, Settings, Settings] | tuple[str, str, str, Settings, Settings, Settings]
"""Name, model class, configuration class, settings of the tiny model, of the full one, fields that differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HfEntry:
    """A model class of transformers, how large it shall be, and on what it is trained.

    `name` is what follows `hf:`. `task` is a short noun. `model` and `config` name classes of transformers;
    `tiny` and `full` are keyword arguments of the latter, and where one of them is a mapping with the key
    `class`, it stands for a configuration of that class. `inputs` names a kind of `_hf_inputs.KINDS`.

    `tiny_size` and `size` are the default sizes, in `unit`. `size_keys` are the settings, with dots between
    levels, that follow the size, or with /2 half of it; `step` is what a size must be a multiple of. `batch` is the default of the full
    model. `call` holds arguments of the model beside the batch.

    `train` are parts of names of parameters to be trained though transformers freezes them. `example_mask` says
    which attention mask an example batch brings: none, `causal` or `full`. `autocast` is false where the model's code
    fails in mixed precision; it then runs in full precision within such a training.
    """

    name: str
    task: str
    model: str
    config: str
    inputs: str
    tiny: Settings
    full: Settings
    tiny_size: int
    size: int
    batch: int
    unit: str = "tokens"
    step: int = 1
    size_keys: tuple[str, ...] = ()
    call: Settings = field(default_factory=dict)
    train: tuple[str, ...] = ()
    example_mask: str = ""
    autocast: bool = True


def entries(rows: tuple[Row, ...], **shared: Any) -> tuple[HfEntry, ...]:
    """Return an entry for each row; `shared` are the fields that all have, unless a row says otherwise."""
    made = []
    for name, model, config, tiny, full, *differing in rows:
        fields = {**shared, **(differing[0] if differing else {})}
        made.append(HfEntry(name=name, model=model, config=config, tiny=tiny, full=full, **fields))
    return tuple(made)
