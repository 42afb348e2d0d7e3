"""Spectrograms of speech with their transcripts: made-up, or from a folder of WAV files with text files."""

from __future__ import annotations

import wave
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from tracekit.capture.workloads.data.samples import SkipCounter, log_normal_length, numpy_generator
from tracekit.errors import UsageError

__all__ = [
    "ALPHABET",
    "BINS",
    "SpeechBatch",
    "SpeechFolder",
    "SyntheticSpeech",
    "Utterance",
    "collate_speech",
]

ALPHABET: Final = "_'ABCDEFGHIJKLMNOPQRSTUVWXYZ "  # the first is the blank
BINS = 161
FRAMES_PER_OUTPUT = 2

_SYNTHETIC_UTTERANCES = 100_000
_FRAMES_PER_SECOND = 100
_MEDIAN_SECONDS, _SECONDS_SIGMA, _SECONDS_LEAST, _SECONDS_MOST = 11, 0.45, 1, 35
_LETTERS_PER_SECOND = (14.0, 15.0)
_SAMPLE_RATE = 16_000
_WINDOW = 2 * (BINS - 1)  # 20 ms, so that there are 161 bins
_HOP = _SAMPLE_RATE // _FRAMES_PER_SECOND
_MOST_BAD_IN_A_ROW = 1_000

Utterance = tuple[torch.Tensor, torch.Tensor]
SpeechBatch = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


class SyntheticSpeech(Dataset[Utterance]):
    """Random spectrograms and letters, as long as read sentences are, at most `longest` frames of 10 ms.

    A sample is a spectrogram (161, frames) and letters (count,) from 1, 14 to 15 for each second; it depends on its
    index and the seed alone.
    """

    def __init__(self, longest: int, seed: int) -> None:
        self.longest = longest
        self.seed = seed

    def __len__(self) -> int:
        return _SYNTHETIC_UTTERANCES

    def __getitem__(self, index: int) -> Utterance:
        random = numpy_generator(self.seed, index)
        frames = log_normal_length(
            random,
            median=_MEDIAN_SECONDS * _FRAMES_PER_SECOND,
            sigma=_SECONDS_SIGMA,
            least=min(_SECONDS_LEAST * _FRAMES_PER_SECOND, self.longest),
            most=min(_SECONDS_MOST * _FRAMES_PER_SECOND, self.longest),
        )
        letters = max(round(random.uniform(*_LETTERS_PER_SECOND) * frames / _FRAMES_PER_SECOND), 1)
        labels = random.integers(1, len(ALPHABET), letters)
        spectrogram = random.standard_normal((BINS, frames), dtype=np.float32)
        return torch.from_numpy(spectrogram), torch.from_numpy(labels)


def collate_speech(samples: Sequence[Utterance]) -> SpeechBatch:
    """Return spectrograms (batch, 161, longest), their frames (batch,), labels (batch, most) and their counts (batch,).

    The longest utterance comes first; the others are padded with 0.
    """
    ordered = sorted(samples, key=lambda sample: -sample[0].shape[1])
    return (
        pad_sequence([spectrogram.t() for spectrogram, _ in ordered], batch_first=True)
        .transpose(1, 2)
        .contiguous(),
        torch.tensor([spectrogram.shape[1] for spectrogram, _ in ordered]),
        pad_sequence([labels for _, labels in ordered], batch_first=True),
        torch.tensor([len(labels) for _, labels in ordered]),
    )


def spectrogram_of(samples: torch.Tensor) -> torch.Tensor:
    """Return the logarithmic spectrogram (161, frames) of sound (samples,) at 16 kHz, of mean 0 and deviation 1.

    Its windows are 20 ms long and begin each 10 ms; sound must be longer than half a window.
    """
    waves = torch.stft(samples, _WINDOW, _HOP, window=torch.hamming_window(_WINDOW), return_complex=True)
    loudness = torch.log1p(waves.abs())
    return (loudness - loudness.mean()) / loudness.std().clamp(min=1e-6)


class SpeechFolder(Dataset[Utterance]):
    """WAV files anywhere below a folder, each with its text in a file of the same name that ends in `.txt`.

    An utterance is usable if its sound is of one channel of 16 bits at 16 kHz and at most `longest` frames of 10 ms
    long, and its text has letters, no more than the model could spell in that time. Any other is replaced by the next
    usable utterance and counted in `skipped`, once for each request.
    """

    def __init__(self, root: Path, longest: int) -> None:
        """List the files below `root`; raises `UsageError` if there are none."""
        self.root = root
        self.longest = longest
        self.skipped = SkipCounter()
        self._sounds = sorted(root.rglob("*.wav")) if root.is_dir() else []
        if not self._sounds:
            raise UsageError(
                "no WAV files in a folder", path=root, remedy="name a folder of NAME.wav and NAME.txt"
            )

    def __len__(self) -> int:
        return len(self._sounds)

    def __getitem__(self, index: int) -> Utterance:
        index = range(len(self))[index]
        for place in range(index, index + min(len(self), _MOST_BAD_IN_A_ROW)):
            utterance = self._read(self._sounds[place % len(self)])
            if utterance is not None:
                return utterance
            if place == index:
                self.skipped.add()
        raise UsageError(
            f"no usable utterance from {self._sounds[index].name!r} on",
            path=self.root,
            remedy="give one channel of 16 bits at 16 kHz, a .txt next to it, and a --size of enough frames",
        )

    def _read(self, path: Path) -> Utterance | None:
        try:
            text = path.with_suffix(".txt").read_text(encoding="utf-8").upper()
            with wave.open(str(path), "rb") as sound:
                if (sound.getnchannels(), sound.getsampwidth(), sound.getframerate()) != (1, 2, _SAMPLE_RATE):
                    return None
                frames = 1 + sound.getnframes() // _HOP
                if frames > self.longest or sound.getnframes() < _WINDOW:
                    return None
                pcm = np.frombuffer(sound.readframes(sound.getnframes()), dtype="<i2")
        except (OSError, UnicodeDecodeError, EOFError, wave.Error):
            return None
        letters = [ALPHABET.index(letter) for letter in " ".join(text.split()) if letter in ALPHABET[1:]]
        # A doubled letter needs a blank between.
        needed = len(letters) + sum(a == b for a, b in pairwise(letters))
        if not letters or needed > frames // FRAMES_PER_OUTPUT or len(pcm) < _WINDOW:
            return None
        samples = torch.from_numpy(pcm.astype(np.float32) / 32_768)
        return spectrogram_of(samples), torch.tensor(letters)
