"""`deepspeech2`: speech recognition by convolutions and bidirectional recurrent layers; `size` is frames of 10 ms.

Variants are five layers of LSTMs of 1,024 or of GRUs of 800. An utterance is at most `size` frames long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from tracekit.capture.recipe import Recipe
from tracekit.capture.workloads import WorkloadOptions
from tracekit.capture.workloads.checks import refuse_max_rows, variant_or_default
from tracekit.capture.workloads.data.speech import (
    ALPHABET,
    BINS,
    SpeechBatch,
    SpeechFolder,
    SyntheticSpeech,
    collate_speech,
)
from tracekit.capture.workloads.recurrent import pack, with_data

__all__ = ["VARIANTS", "DeepSpeech2", "build", "build_model", "example_batch"]

VARIANTS: Final[tuple[str, ...]] = ("lstm1024", "gru800")

_BATCH, _TINY_BATCH = 16, 2
_SIZE, _TINY_SIZE = 1_600, 100
_LEARNING_RATE = 3e-4
_MOMENTUM = 0.9
_CLIP_NORM = 400.0
_LOUDEST = 20.0

Spelling = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Shape:
    cell: type[nn.LSTM | nn.GRU]
    width: int
    channels: int = 32
    layers: int = 5


_SHAPES = {"lstm1024": _Shape(nn.LSTM, 1024), "gru800": _Shape(nn.GRU, 800)}
_TINY_WIDTH, _TINY_CHANNELS = 32, 4


class MaskedConvolutions(nn.Module):
    """Two convolutions over frequency and time; the first halves the time.

    Frames after the end of an utterance, 0 in a batch, are set to 0 again between the convolutions: an utterance must
    not depend on the others in its batch. After the convolutions, packing removes these frames.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels, (41, 11), (2, 2), (20, 5))
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, (21, 11), (2, 1), (10, 5))
        self.bn2 = nn.BatchNorm2d(channels)
        self.activation = nn.Hardtanh(0, _LOUDEST)

    def forward(self, spectrograms: torch.Tensor, frames: torch.Tensor) -> Spelling:
        """Return features (batch, time, channels * 41) of `spectrograms` (batch, 161, time), and their lengths."""
        lengths = (frames + 1) // 2
        features = self.conv1(spectrograms.unsqueeze(1))
        places = torch.arange(features.shape[3], device=features.device)
        inside = (places < lengths.unsqueeze(1)).unsqueeze(1).unsqueeze(1)
        features = self.activation(self.bn1(features)) * inside
        features = self.activation(self.bn2(self.conv2(features)))
        return features.flatten(1, 2).transpose(1, 2), lengths


class TwoWayLayer(nn.Module):
    """A bidirectional recurrent layer that adds both directions; between layers its input is normalised."""

    def __init__(self, cell: type[nn.LSTM | nn.GRU], inputs: int, width: int, *, normalise: bool) -> None:
        super().__init__()
        self.width = width
        self.norm = nn.BatchNorm1d(inputs) if normalise else None
        self.rnn = cell(inputs, width, bidirectional=True)

    def forward(self, packed: PackedSequence) -> PackedSequence:
        """Return packed features of this layer's width."""
        if self.norm is not None:
            packed = with_data(packed, self.norm(packed.data))
        both, _ = self.rnn(packed)
        return with_data(both, both.data.view(-1, 2, self.width).sum(dim=1))


class DeepSpeech2(nn.Module):
    """Convolutions, bidirectional recurrent layers and scores of 29 letters for each 20 ms.

    The layers get packed utterances, so that normalisation counts only sound and no padding.
    """

    def __init__(self, shape: _Shape) -> None:
        super().__init__()
        self.convolutions = MaskedConvolutions(shape.channels)
        high = (BINS + 3) // 4  # frequencies after two halvings
        self.layers = nn.Sequential(
            *(
                TwoWayLayer(
                    shape.cell,
                    shape.width if place else high * shape.channels,
                    shape.width,
                    normalise=place > 0,
                )
                for place in range(shape.layers)
            )
        )
        self.norm = nn.BatchNorm1d(shape.width)
        self.head = nn.Linear(shape.width, len(ALPHABET), bias=False)

    def forward(self, spectrograms: torch.Tensor, frames: torch.Tensor) -> Spelling:
        """Return scores (time, batch, 29) and the number of valid scores, for `spectrograms` (batch, 161, frames).

        `frames` (batch,) are the lengths, the longest first. On a GPU the host waits for the device once, as packing
        needs the lengths on the host.
        """
        features, lengths = self.convolutions(spectrograms, frames)
        packed = self.layers(pack(features, lengths))
        scores, _ = pad_packed_sequence(with_data(packed, self.head(self.norm(packed.data))))
        return scores, lengths


def build_model(variant: str, *, tiny: bool = False) -> DeepSpeech2:
    """Return the network of `variant`: 86,618,400 parameters (lstm1024) or 41,187,968 (gru800).

    A `tiny` one has layers of 32 and 4 channels. Raises `UsageError` for an unknown variant.
    """
    shape = _SHAPES[variant_or_default("deepspeech2", variant, VARIANTS)]
    return DeepSpeech2(_Shape(shape.cell, _TINY_WIDTH, _TINY_CHANNELS) if tiny else shape)


def example_batch(variant: str, *, tiny: bool = False) -> SpeechBatch:
    """Return a silence of 1,600 frames (1, 161, 1600), or 100 if `tiny`, labelled with one letter."""
    variant_or_default("deepspeech2", variant, VARIANTS)
    frames = _TINY_SIZE if tiny else _SIZE
    one = torch.ones(1, dtype=torch.int64)
    return torch.zeros(1, BINS, frames), one * frames, torch.ones(1, 1, dtype=torch.int64), one


def _forward(model: nn.Module, batch: SpeechBatch) -> Spelling:
    spelling: Spelling = model(batch[0], batch[1])
    return spelling


def _loss(spelling: Spelling, batch: SpeechBatch) -> torch.Tensor:
    scores, lengths = spelling
    _, _, labels, counts = batch
    # Sums over hundreds of frames: half precision is not enough.
    with torch.autocast(scores.device.type, enabled=False):
        chances = scores.float().log_softmax(dim=2)
        total = functional.ctc_loss(chances, labels, lengths, counts, reduction="sum", zero_infinity=True)
    return total / labels.shape[0]


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE, momentum=_MOMENTUM, nesterov=True)


def build(options: WorkloadOptions) -> Recipe:
    """Build the workload, by default 16 utterances of at most 16 s a step, trained by SGD with momentum.

    The loss is that of connectionist temporal classification (CTC). `data` is a folder of `NAME.wav` and `NAME.txt`;
    raises `UsageError` if there are none.
    """
    variant = variant_or_default("deepspeech2", options.variant, VARIANTS)
    refuse_max_rows("deepspeech2", options)
    batch = options.batch or (_TINY_BATCH if options.tiny else _BATCH)
    size = options.size or (_TINY_SIZE if options.tiny else _SIZE)
    dataset = (
        SyntheticSpeech(size, options.seed) if options.data is None else SpeechFolder(options.data, size)
    )
    shape = _SHAPES[variant]
    return Recipe(
        model=build_model(variant, tiny=options.tiny).to(options.device),
        dataset=dataset,
        forward=_forward,
        loss=_loss,
        optimizer=_optimizer,
        task="speech recognition",
        batch=batch,
        size=size,
        synthetic=options.data is None,
        collate=collate_speech,
        clip_norm=_CLIP_NORM,
        skipped=dataset.skipped if isinstance(dataset, SpeechFolder) else (lambda: 0),
        config={
            "variant": variant,
            "batch": batch,
            "longest_utterance_frames": size,
            "letters": len(ALPHABET),
            "width": _TINY_WIDTH if options.tiny else shape.width,
            "recurrent_layers": shape.layers,
            "optimizer": "SGD",
            "learning_rate": _LEARNING_RATE,
        },
    )
