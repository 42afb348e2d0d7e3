"""The training data of the `hf` workload: one maker of samples for each kind of input.

A maker gets the model's configuration, the size and a random state, and returns the model's arguments for one
sample, on the host. `KINDS` has them by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.nn import functional

from tracekit.capture.workloads.data.tokens import IGNORED, ZipfWords, mask_tokens, sample_length
from tracekit.capture.workloads.hf.scenes import KINDS as SCENES
from tracekit.capture.workloads.hf.scenes import pixels

__all__ = ["KINDS", "Maker", "SampleMaker", "collate", "text_config"]

Maker = Callable[[Any, int, torch.Generator], dict[str, Any]]

_FIRST_WORD = 4  # lower numbers are special tokens
_SAMPLE_RATE = 16_000
_CHARACTERS_PER_SECOND = 14
_LONGEST_ANSWER = 128
_RAGGED = ("mask_labels", "class_labels")


@dataclass(frozen=True, slots=True)
class SampleMaker:
    """Makes samples of one kind for the model of `config`."""

    kind: str
    config: Any
    size: int

    def __call__(self, random: torch.Generator) -> dict[str, Any]:
        """Return the model's arguments for one sample, without the dimension of the batch."""
        return KINDS[self.kind](self.config, self.size, random)


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a batch: tensors stacked; a list for values of different sizes (boxes, masks)."""
    batch: dict[str, Any] = {}
    for key in samples[0]:
        values = [sample[key] for sample in samples]
        ragged = key in _RAGGED or isinstance(values[0], dict)
        batch[key] = values if ragged else torch.stack(values)
    return batch


def text_config(config: Any) -> Any:
    """Return the part of a configuration that describes the text model, or the whole configuration."""
    for part in ("text_config", "decoder"):
        inner = getattr(config, part, None)
        if inner is not None and hasattr(inner, "vocab_size"):
            return inner
    return config


def _vocabulary(config: Any) -> int:
    text = text_config(config)
    return int(getattr(text, "vocab_size", None) or text.src_vocab_size)


def _words(config: Any) -> ZipfWords:
    return ZipfWords(_FIRST_WORD, _vocabulary(config) - 1)  # the last may be the mask, or CTC's blank


def _pad(config: Any) -> int:
    pad: int | None = getattr(text_config(config), "pad_token_id", None)
    return 0 if pad is None else pad


def _tokens(config: Any, size: int, random: torch.Generator) -> dict[str, Any]:
    words = _words(config).draw(size, random)
    return {"input_ids": words, "labels": words.clone()}


def _padded(values: torch.Tensor, size: int, value: int) -> torch.Tensor:
    return functional.pad(values, (0, size - len(values)), value=value)


def _masked(config: Any, length: int, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    words = _words(config)
    text = words.draw(length, random)
    own_mask: int | None = getattr(config, "mask_token_id", None)
    mask = _vocabulary(config) - 1 if own_mask is None else own_mask
    return mask_tokens(text, torch.ones_like(text, dtype=torch.bool), words, mask, random)


def _masked_tokens(config: Any, size: int, random: torch.Generator) -> dict[str, Any]:
    length = sample_length(size, random)
    inputs, labels = _masked(config, length, random)
    return {
        "input_ids": _padded(inputs, size, _pad(config)),
        "attention_mask": _padded(torch.ones_like(inputs), size, 0),
        "labels": _padded(labels, size, IGNORED),
    }


def _coin(random: torch.Generator) -> torch.Tensor:
    return torch.randint(2, (), generator=random, device="cpu")


def _segments(size: int, random: torch.Generator) -> torch.Tensor:
    second = torch.randint(1, size, (), generator=random, device="cpu")
    return (torch.arange(size, device="cpu") >= second).long()


def _sentence_pairs(config: Any, size: int, random: torch.Generator) -> dict[str, Any]:
    sample = _masked_tokens(config, size, random)
    sample["token_type_ids"] = _segments(size, random) * sample["attention_mask"]
    return {**sample, "next_sentence_label": _coin(random)}


def _unpadded_sentence_pairs(config: Any, size: int, random: torch.Generator) -> dict[str, Any]:
    inputs, labels = _masked(config, size, random)
    kinds = _segments(size, random)
    return {
        "input_ids": inputs,
        "token_type_ids": kinds,
        "labels": labels,
        "next_sentence_label": _coin(random),
    }


def _sentence_order(config: Any, size: int, random: torch.Generator) -> dict[str, Any]:
    sample = _sentence_pairs(config, size, random)
    sample["sentence_order_label"] = sample.pop("next_sentence_label")
    return sample


def _replaced_tokens(config: Any, size: int, random: torch.Generator) -> dict[str, Any]:
    length = sample_length(size, random)
    words = _words(config)
    replaced = torch.rand(length, generator=random, device="cpu") < 0.15
    text = torch.where(replaced, words.draw(length, random), words.draw(length, random))
    return {
        "input_ids": _padded(text, size, _pad(config)),
        "attention_mask": _padded(torch.ones_like(text), size, 0),
        "labels": _padded(replaced.long(), size, 0),
    }


def _characters(config: Any, size: int, random: torch.Generator) -> dict[str, Any]:
    points = torch.randint(32, 0x250, (size,), generator=random, device="cpu")  # Unicode's Latin blocks
    return {"input_ids": points, "labels": _label(config, random)}


def _label(config: Any, random: torch.Generator) -> torch.Tensor:
    return torch.randint(config.num_labels, (), generator=random, device="cpu")


def _target_words(config: Any, count: int, random: torch.Generator) -> torch.Tensor:
    return _words(config).draw(max(8, min(count, _LONGEST_ANSWER)), random)


def _source_and_target(config: Any, size: int, random: torch.Generator) -> dict[str, Any]:
    length = sample_length(size, random)
    text = _words(config).draw(length, random)
    return {
        "input_ids": _padded(text, size, _pad(config)),
        "attention_mask": _padded(torch.ones_like(text), size, 0),
        "labels": _target_words(config, size // 4, random),
    }


def _source_input_and_target(config: Any, size: int, random: torch.Generator) -> dict[str, Any]:
    sample = _source_and_target(config, size, random)
    shifted = sample["labels"].roll(1)
    shifted[0] = config.decoder_start_token_id
    return {**sample, "decoder_input_ids": shifted}


def _noise(*shape: int, random: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=random, device="cpu")


def _characters_of_speech(config: Any, seconds: float, random: torch.Generator) -> torch.Tensor:
    count = max(2, int(seconds * _CHARACTERS_PER_SECOND))
    return torch.randint(_FIRST_WORD, _vocabulary(config) - 1, (count,), generator=random, device="cpu")


def _waveform_characters(config: Any, size: int, random: torch.Generator) -> dict[str, Any]:
    labels = _characters_of_speech(config, size / _SAMPLE_RATE, random)
    return {"input_values": _noise(size, random=random), "labels": labels}


def _waveform_words(config: Any, size: int, random: torch.Generator) -> dict[str, Any]:
    labels = _target_words(config, size // _SAMPLE_RATE * 3, random)
    return {"input_values": _noise(size, random=random), "labels": labels}


def _mel_words(config: Any, size: int, random: torch.Generator) -> dict[str, Any]:
    features = _noise(config.num_mel_bins, size, random=random)
    return {"input_features": features, "labels": _target_words(config, size // 25, random)}


def _frames_words(config: Any, size: int, random: torch.Generator) -> dict[str, Any]:
    features = _noise(size, config.input_feat_per_channel, random=random)
    return {"input_features": features, "labels": _target_words(config, size // 25, random)}


def _frames_characters(config: Any, size: int, random: torch.Generator) -> dict[str, Any]:
    return {
        "input_features": _noise(size, config.encoder_config.num_mel_bins, random=random),
        "attention_mask": torch.ones(size, dtype=torch.int64, device="cpu"),
        # Such a model has one output for eight frames of 10 ms, so it predicts pieces of words, not letters.
        "labels": _characters_of_speech(config, size / 400, random),
    }


def _spectrogram_class(config: Any, size: int, random: torch.Generator) -> dict[str, Any]:
    return {
        "input_values": _noise(size, config.num_mel_bins, random=random),
        "labels": _label(config, random),
    }


def _image_and_text(config: Any, size: int, random: torch.Generator) -> dict[str, Any]:
    length = int(text_config(config).max_position_embeddings)
    words = _words(config).draw(min(length, 77), random)
    return {"input_ids": words, "pixel_values": pixels(size, random)}


def _caption(config: Any, size: int, random: torch.Generator) -> dict[str, Any]:
    words = _words(config).draw(16, random)
    return {"pixel_values": pixels(size, random), "input_ids": words, "labels": words.clone()}


def _image_to_text(config: Any, size: int, random: torch.Generator) -> dict[str, Any]:
    return {"pixel_values": pixels(size, random), "labels": _words(config).draw(16, random)}


def _question(config: Any, size: int, random: torch.Generator) -> dict[str, Any]:
    answer = functional.one_hot(_label(config, random), config.num_labels).float()
    return {
        "input_ids": _words(config).draw(16, random),
        "pixel_values": pixels(size, random),
        "pixel_mask": torch.ones((size, size), dtype=torch.int64, device="cpu"),
        "labels": answer,
    }


def _document(config: Any, size: int, random: torch.Generator) -> dict[str, Any]:
    corners = torch.randint(1000, (size, 2, 2), generator=random, device="cpu").sort(dim=1).values
    return {
        "input_ids": _words(config).draw(size, random),
        "bbox": corners.flatten(1),  # left, top, right, bottom, in thousandths of the page
        "labels": torch.randint(config.num_labels, (size,), generator=random, device="cpu"),
    }


def _walk(steps: int, channels: int, random: torch.Generator) -> torch.Tensor:
    return _noise(steps, channels, random=random).cumsum(0)


def _patched_series(config: Any, size: int, random: torch.Generator) -> dict[str, Any]:
    series = _walk(size + config.prediction_length, config.num_input_channels, random)
    return {"past_values": series[:size], "future_values": series[size:]}


def _lagged_series(config: Any, size: int, random: torch.Generator) -> dict[str, Any]:
    past = size + max(config.lags_sequence)
    series = 10 + _walk(past + config.prediction_length, 1, random)[:, 0]
    times = torch.linspace(-0.5, 0.5, len(series), device="cpu")[:, None]
    times = times.expand(-1, config.num_time_features).contiguous()
    return {
        "past_values": series[:past],
        "past_time_features": times[:past],
        "past_observed_mask": torch.ones(past, device="cpu"),
        "future_values": series[past:],
        "future_time_features": times[past:],
    }


def _trajectory(config: Any, size: int, random: torch.Generator) -> dict[str, Any]:
    rewards = _noise(size, 1, random=random).abs()
    return {
        "states": _noise(size, config.state_dim, random=random),
        "actions": _noise(size, config.act_dim, random=random).tanh(),
        "rewards": rewards,
        "returns_to_go": rewards.flip(0).cumsum(0).flip(0),
        "timesteps": torch.arange(size, device="cpu"),
        "attention_mask": torch.ones(size, dtype=torch.int64, device="cpu"),
    }


KINDS: Final[dict[str, Maker]] = {
    **SCENES,
    "caption": _caption,
    "characters": _characters,
    "document": _document,
    "frames and characters": _frames_characters,
    "frames and words": _frames_words,
    "image and text": _image_and_text,
    "image to text": _image_to_text,
    "lagged series": _lagged_series,
    "masked tokens": _masked_tokens,
    "mel features and words": _mel_words,
    "patched series": _patched_series,
    "question": _question,
    "replaced tokens": _replaced_tokens,
    "sentence order": _sentence_order,
    "sentence pairs": _sentence_pairs,
    "sentence pairs, unpadded": _unpadded_sentence_pairs,
    "source and target tokens": _source_and_target,
    "source, input and target tokens": _source_input_and_target,
    "spectrogram and class": _spectrogram_class,
    "tokens": _tokens,
    "trajectory": _trajectory,
    "waveform and characters": _waveform_characters,
    "waveform and words": _waveform_words,
}
"""The makers by the kind of their samples."""
