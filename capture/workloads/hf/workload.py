"""Building and training an architecture of transformers with random weights, on made-up data.

`size` is in the unit of the entry: tokens, pixels of a side, samples, frames or steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from itertools import count
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

from tracekit.capture.recipe import Recipe
from tracekit.capture.training import moved
from tracekit.capture.workloads import WorkloadOptions
from tracekit.capture.workloads.checks import import_transformers, refuse_data
from tracekit.capture.workloads.data.samples import GeneratedSamples, torch_generator
from tracekit.capture.workloads.hf.architectures import Architecture, find, names
from tracekit.capture.workloads.hf.inputs import SampleMaker, collate, text_config
from tracekit.capture.workloads.optimizers import AdamWWithWarmUp
from tracekit.errors import UsageError

__all__ = ["VARIANTS", "build", "build_config", "build_model", "example_batch", "loss"]

VARIANTS: Final[tuple[str, ...]] = ("bert", *(name for name in names() if name != "bert"))

_MATCHED: Final = ("image and boxes", "image and masks")  # their losses match by scipy's assignment
_LAYER_DROP: Final = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop")
_TOKEN_LIMITS: Final = ("max_position_embeddings", "n_positions", "max_seq_len", "context_length")
_RATE: Final = 1e-4
_DECAY: Final = 0.01


def build_config(architecture: Architecture, *, tiny: bool = False, size: int = 0) -> Any:
    """Return the architecture's configuration, an object of transformers, for inputs of `size` (0: the default).

    Layers are never dropped at random, so that all steps do the same work, and no cache of keys and values is
    kept. Raises `UsageError` if the model cannot take that size, and `MissingDependencyError` without
    transformers or a package the model needs.
    """
    default = architecture.tiny_size if tiny else architecture.size
    size = size or default
    if size % architecture.step or size < architecture.step:
        raise UsageError(
            f"hf:{architecture.name} takes no size of {size}",
            remedy=f"choose a multiple of {architecture.step} {architecture.unit}",
        )
    transformers = import_transformers(*(("scipy",) if architecture.inputs in _MATCHED else ()))
    settings = deepcopy(architecture.tiny if tiny else architecture.full)  # transformers may change them
    for key in architecture.size_keys:
        _set(settings, key, size)
    config = _config(transformers, {"class": architecture.config, **settings})
    limit = _token_limit(config) if architecture.unit == "tokens" else None
    if limit is not None and size > max(default, limit - 2):  # some reserve two positions for padding
        raise UsageError(
            f"hf:{architecture.name} takes no size of {size}", remedy=f"choose at most {limit - 2} tokens"
        )
    for part in {id(each): each for each in (config, text_config(config))}.values():
        if getattr(part, "use_cache", False):
            part.use_cache = False
        for key in _LAYER_DROP:
            if getattr(part, key, 0):
                setattr(part, key, 0.0)
    return config


def _set(settings: dict[str, Any], key: str, size: int) -> None:
    key, _, divisor = key.partition("/")
    *path, last = key.split(".")
    for part in path:
        settings = settings.setdefault(part, {})
    settings[last] = size // int(divisor or 1)


def _config(transformers: Any, settings: Mapping[str, Any]) -> Any:
    """Return the configuration that the settings describe: of the class that they name, with nested configurations."""
    inner = {
        key: _config(transformers, value) if isinstance(value, dict) and "class" in value else value
        for key, value in settings.items()
        if key != "class"
    }
    return getattr(transformers, settings["class"])(**inner)


def _token_limit(config: Any) -> int | None:
    for key in _TOKEN_LIMITS:
        value = getattr(config, key, None)
        if isinstance(value, int) and value > 0:  # XLNet uses -1 for none
            return value
    return None


def _model(architecture: Architecture, config: Any) -> nn.Module:
    model: nn.Module = getattr(import_transformers(), architecture.model)(config)
    for name, parameter in model.named_parameters():
        if any(part in name for part in architecture.train):
            parameter.requires_grad_(True)
    return model.train()


def build_model(variant: str, tiny: bool = False) -> nn.Module:
    """Return the model of an architecture with random weights, ready to be trained.

    Raises `UsageError` for an unknown name, and `MissingDependencyError` without transformers or scipy.
    """
    architecture = find(variant or VARIANTS[0])
    return _model(architecture, build_config(architecture, tiny=tiny))


def example_batch(variant: str, tiny: bool = False) -> dict[str, Any]:
    """Return a batch of one sample of the default size, on the device of the context.

    The padding mask is left out, and some models get an attention mask instead: to make one, transformers
    would read values of the batch, which do not exist on meta. Models that read values for other reasons
    cannot run there. Raises the errors of `build_model`.
    """
    architecture = find(variant or VARIANTS[0])
    config = build_config(architecture, tiny=tiny)
    maker = SampleMaker(architecture.inputs, config, architecture.tiny_size if tiny else architecture.size)
    samples = (maker(torch_generator(0, index)) for index in count())
    full = next(each for each in samples if "attention_mask" not in each or each["attention_mask"].all())
    batch = collate([full])
    if "input_ids" in batch:
        batch.pop("attention_mask", None)
    if architecture.example_mask:
        length = batch["input_ids"].shape[1]
        mask = torch.ones((1, 1, length, length), dtype=torch.bool, device="cpu")
        batch["attention_mask"] = mask.tril() if architecture.example_mask == "causal" else mask
    return moved(batch, torch.empty(0).device)  # type: ignore[no-any-return]


class _Forward:
    """Calls a model with a batch."""

    def __init__(self, architecture: Architecture) -> None:
        self.call = dict(architecture.call)
        self.autocast = architecture.autocast

    def __call__(self, model: nn.Module, batch: Mapping[str, Any]) -> Any:
        """Return the model's output; its `loss` is set if the model computes one."""
        if self.autocast:
            return model(**batch, **self.call)
        device = next(model.parameters()).device.type
        with torch.autocast(device, enabled=False):
            return model(**batch, **self.call)


def loss(output: Any, batch: Mapping[str, Any]) -> torch.Tensor:
    """Return the model's own loss, or for Decision Transformer the squared error of the actions."""
    own: torch.Tensor | None = getattr(output, "loss", None)
    if own is not None:
        return own.squeeze()
    return functional.mse_loss(output.action_preds.float(), batch["actions"])


def build(options: WorkloadOptions) -> Recipe:
    """Build the training of the options' variant, by AdamW with a warm-up.

    `options.tiny` takes a model and inputs small enough for a step in well under a second on one core. Raises
    `UsageError` for an unknown name, a size the model cannot take, or if real data are requested, and
    `MissingDependencyError` without transformers or scipy.
    """
    architecture = find(options.variant or VARIANTS[0])
    refuse_data(f"hf:{architecture.name}", options)
    size = options.size or (architecture.tiny_size if options.tiny else architecture.size)
    with options.device:
        config = build_config(architecture, tiny=options.tiny, size=size)
        model = _model(architecture, config).to(options.device)
    training = AdamWWithWarmUp(_RATE, decay=_DECAY, tiny=options.tiny)
    return Recipe(
        model=model,
        dataset=GeneratedSamples(SampleMaker(architecture.inputs, config, size), options.seed),
        collate=collate,
        forward=_Forward(architecture),
        loss=loss,
        optimizer=training.optimizer,
        after_update=training.after_update,
        clip_norm=1.0,
        task=architecture.task,
        batch=options.batch or (2 if options.tiny else architecture.batch),
        size=size,
        synthetic=True,
        config={
            "variant": architecture.name,
            "tiny": options.tiny,
            "model_class": architecture.model,
            "inputs": architecture.inputs,
            "size_unit": architecture.unit,
            "autocast": architecture.autocast,
            **training.config,
        },
    )
