"""`hf:NAME`: an architecture of transformers with random weights, trained on data that are made up.

`size` is in what the entry names as its unit: tokens, pixels of a side, samples, frames or steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

from tracekit.capture.recipe import Recipe
from tracekit.capture.workloads import WorkloadOptions
from tracekit.capture.workloads.data.tokens import sample_generator
from tracekit.capture.workloads.hf.entry import HfEntry
from tracekit.capture.workloads.hf.inputs import SampleMaker, collate, text_config
from tracekit.capture.workloads.hf.table import find, names
from tracekit.capture.workloads.hf.training import (
    AdamWWithWarmUp,
    GeneratedSamples,
    ambient,
    import_transformers,
    refuse_data,
)
from tracekit.errors import UsageError

__all__ = [
    "VARIANTS",
    "HfEntry",
    "build",
    "build_config",
    "build_model",
    "example_batch",
    "find",
    "loss",
    "names",
]

VARIANTS: Final[tuple[str, ...]] = ("bert", *(name for name in names() if name != "bert"))

_MATCHED: Final = ("image and boxes", "image and masks")  # their losses match by scipy's assignment
_LAYER_DROP: Final = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop")
_TOKEN_LIMITS: Final = ("max_position_embeddings", "n_positions", "max_seq_len", "context_length")
_RATE: Final = 1e-4
_DECAY: Final = 0.01


def build_config(entry: HfEntry, *, tiny: bool = False, size: int = 0) -> Any:
    """Return the entry's configuration, an object of transformers, for inputs of `size` (0: the default).

    Layers are never dropped at random, so that all steps do the same work, and no cache of keys and values is
    kept. Raises `UsageError` when the model cannot take that size, and `MissingDependencyError` without
    transformers or a package the model needs.
    """
    default = entry.tiny_size if tiny else entry.size
    size = size or default
    if size % entry.step or size < entry.step:
        raise UsageError(
            f"hf:{entry.name} takes no size of {size}",
            remedy=f"choose a multiple of {entry.step} {entry.unit}",
        )
    transformers = import_transformers(*(("scipy",) if entry.inputs in _MATCHED else ()))
    settings = _as_dict(entry.tiny if tiny else entry.full)
    for key in entry.size_keys:
        _set(settings, key, size)
    config = _made(transformers, {"class": entry.config, **settings})
    limit = _token_limit(config) if entry.unit == "tokens" else None
    if limit is not None and size > max(default, limit - 2):  # some keep two places for padding
        raise UsageError(
            f"hf:{entry.name} takes no size of {size}", remedy=f"choose at most {limit - 2} tokens"
        )
    for part in {id(each): each for each in (config, text_config(config))}.values():
        if getattr(part, "use_cache", False):
            part.use_cache = False
        for key in _LAYER_DROP:
            if getattr(part, key, 0):
                setattr(part, key, 0.0)
    return config


def _as_dict(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _as_dict(value) if isinstance(value, Mapping) else value for key, value in settings.items()}


def _set(settings: dict[str, Any], key: str, size: int) -> None:
    key, _, divisor = key.partition("/")
    *path, last = key.split(".")
    for part in path:
        settings = settings.setdefault(part, {})
    settings[last] = size // int(divisor or 1)


def _made(transformers: Any, settings: Mapping[str, Any]) -> Any:
    """Return the configuration that the settings describe: of the class they name, with others within."""
    inner = {
        key: _made(transformers, value) if isinstance(value, dict) and "class" in value else value
        for key, value in settings.items()
        if key != "class"
    }
    return getattr(transformers, settings["class"])(**inner)


def _token_limit(config: Any) -> int | None:
    for key in _TOKEN_LIMITS:
        value = getattr(config, key, None)
        if isinstance(value, int) and value > 0:  # XLNet has -1 for none
            return value
    return None


def _model(entry: HfEntry, config: Any) -> nn.Module:
    model: nn.Module = getattr(import_transformers(), entry.model)(config)
    for name, parameter in model.named_parameters():
        if any(part in name for part in entry.train):
            parameter.requires_grad_(True)
    return model.train()


def build_model(variant: str, tiny: bool = False) -> nn.Module:
    """Return the model of an architecture with random weights, ready to be trained.

    Raises `UsageError` for an unknown name, and `MissingDependencyError` without transformers or scipy.
    """
    entry = find(variant or VARIANTS[0])
    return _model(entry, build_config(entry, tiny=tiny))


def example_batch(variant: str, tiny: bool = False) -> dict[str, Any]:
    """Return a batch of one sample of the default size, on the device of the context.

    A mask of padding is left out, and some models get a mask for attention instead: to make one, transformers
    would read values of the batch, which there are none of on meta. Models that read values for other reasons
    cannot run there. Raises as `build_model` does.
    """
    entry = find(variant or VARIANTS[0])
    config = build_config(entry, tiny=tiny)
    maker = SampleMaker(entry.inputs, config, entry.tiny_size if tiny else entry.size)
    samples = (maker(sample_generator(0, index)) for index in count())
    full = next(each for each in samples if "attention_mask" not in each or each["attention_mask"].all())
    batch = collate([full])
    if "input_ids" in batch:
        batch.pop("attention_mask", None)
    if entry.example_mask:
        length = batch["input_ids"].shape[1]
        mask = torch.ones((1, 1, length, length), dtype=torch.bool, device="cpu")
        batch["attention_mask"] = mask.tril() if entry.example_mask == "causal" else mask
    return ambient(batch)


class _Forward:
    """Calls the model of an entry with a batch."""

    def __init__(self, entry: HfEntry) -> None:
        self.call = dict(entry.call)
        self.autocast = entry.autocast

    def __call__(self, model: nn.Module, batch: Mapping[str, Any]) -> Any:
        """Return the model's output; its `loss` is set where the model makes one."""
        if self.autocast:
            return model(**batch, **self.call)
        device = next(model.parameters()).device.type
        with torch.autocast(device, enabled=False):
            return model(**batch, **self.call)


def loss(output: Any, batch: Mapping[str, Any]) -> torch.Tensor:
    """Return the loss that the model made, for Decision Transformer the squared error of the actions."""
    made: torch.Tensor | None = getattr(output, "loss", None)
    if made is not None:
        return made.squeeze()
    return functional.mse_loss(output.action_preds.float(), batch["actions"])


def build(options: WorkloadOptions, name: str = "") -> Recipe:
    """Build the training of the architecture `name`, by default the options' variant, by AdamW with a warm-up.

    `options.tiny` takes a model and inputs small enough for a step in well under a second on one core. Raises
    `UsageError` for an unknown name, a size the model cannot take, or when real data are asked for, and
    `MissingDependencyError` without transformers or scipy.
    """
    entry = find(name or options.variant or VARIANTS[0])
    refuse_data(f"hf:{entry.name}", options.data)
    size = options.size or (entry.tiny_size if options.tiny else entry.size)
    with options.device:
        config = build_config(entry, tiny=options.tiny, size=size)
        model = _model(entry, config).to(options.device)
    training = AdamWWithWarmUp.of(_RATE, _DECAY, tiny=options.tiny)
    return Recipe(
        model=model,
        dataset=GeneratedSamples(SampleMaker(entry.inputs, config, size), options.seed),
        collate=collate,
        forward=_Forward(entry),
        loss=loss,
        optimizer=training.optimizer,
        after_update=training.after_update,
        clip_norm=1.0,
        task=entry.task,
        batch=options.batch or (2 if options.tiny else entry.batch),
        size=size,
        synthetic=True,
        config={
            "variant": entry.name,
            "tiny": options.tiny,
            "model_class": entry.model,
            "inputs": entry.inputs,
            "size_unit": entry.unit,
            "autocast": entry.autocast,
            "optimizer": "AdamW",
            "learning_rate": training.rate,
            "weight_decay": _DECAY,
            "warm_up_updates": training.warm_up,
        },
    )
