"""Token numbers for language models: random numbers distributed as in text, and those of real text files."""

from __future__ import annotations

import codecs
import re
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import torch

from tracekit.capture.workloads.data.samples import SkipCounter
from tracekit.errors import UsageError

__all__ = [
    "IGNORED",
    "FileTokenizer",
    "HashedWords",
    "TextLines",
    "Tokenizer",
    "ZipfWords",
    "find_tokenizer",
    "mask_tokens",
    "sample_length",
]

IGNORED: Final = -100
"""The label of a token that is not predicted, as in torch's cross entropy and transformers."""

_ZIPF_EXPONENT = 1.05
_SHORT_SHARE = 0.1
_CONTINUATION_BYTES = bytes(range(0x80, 0xC0))
_LONGEST_LINE = 1 << 16
_LONGEST_SEARCH = 1 << 26


@lru_cache(maxsize=8)
def _zipf_cumulated(count: int) -> torch.Tensor:
    ranks = torch.arange(1, count + 1, dtype=torch.float64, device="cpu")
    shares = ranks.pow(-_ZIPF_EXPONENT).cumsum(0)
    return shares / shares[-1]


class ZipfWords:
    """Token numbers from `first` to below `vocabulary`, whose frequencies fall with rank as in text."""

    def __init__(self, first: int, vocabulary: int) -> None:
        self.first = first
        self.count = vocabulary - first

    def draw(self, count: int, random: torch.Generator) -> torch.Tensor:
        """Return `count` token numbers."""
        level = torch.rand(count, generator=random, dtype=torch.float64, device="cpu")
        ranks = torch.searchsorted(_zipf_cumulated(self.count), level, right=True)
        return ranks.clamp_(max=self.count - 1) + self.first


def sample_length(longest: int, random: torch.Generator, shortest: int = 8) -> int:
    """Return the number of tokens of a sample: nine in ten are full, the others have any length from `shortest`."""
    draw = torch.rand(2, generator=random, device="cpu").tolist()
    if draw[0] >= _SHORT_SHARE or longest <= shortest:
        return longest
    return shortest + int(draw[1] * (longest - shortest))


def mask_tokens(
    tokens: torch.Tensor,
    maskable: torch.Tensor,
    words: ZipfWords,
    mask: int,
    random: torch.Generator,
    share: float = 0.15,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the input and the labels of masked language modelling, both of the shape of `tokens`.

    A `share` of the tokens with `maskable` is chosen, at least one. Eight in ten of these become `mask`, one in
    ten any word, one in ten stays. The labels are the chosen tokens, elsewhere `IGNORED`.
    """
    level = torch.rand(tokens.shape, generator=random, device="cpu").masked_fill(~maskable, 2.0)
    count = max(1, round(share * int(maskable.sum())))
    target = torch.zeros(tokens.shape, dtype=torch.bool, device="cpu")
    target[level.topk(count, largest=False).indices] = True
    target &= maskable
    fate = torch.rand(tokens.shape, generator=random, device="cpu")
    any_word = torch.randint(
        words.first, words.first + words.count, tokens.shape, generator=random, device="cpu"
    )
    inputs = torch.where(target & (fate < 0.8), torch.full_like(tokens, mask), tokens)
    inputs = torch.where(target & (fate >= 0.9), any_word, inputs)
    return inputs, tokens.masked_fill(~target, IGNORED)


class Tokenizer(Protocol):
    """Turns text into token numbers. `name` goes into the manifest."""

    name: str

    def encode(self, text: str) -> list[int]:
        """Return the token numbers of `text`, without special tokens."""

    def special(self, word: str, default: int) -> int:
        """Return the number of the special token `word`, or `default` if there are no words to look up."""


class HashedWords:
    """Turns words and signs into token numbers by the CRC-32 of their lower-cased UTF-8 bytes.

    No real model uses such tokens, but equal words get equal numbers, and the frequencies are those of the
    text. The numbers go from `first` to below `vocabulary`.
    """

    name = "hashed words"
    _word = re.compile(r"\w+|[^\w\s]")

    def __init__(self, first: int, vocabulary: int) -> None:
        self.first = first
        self.count = vocabulary - first

    def encode(self, text: str) -> list[int]:
        """Return one token number for each word and each sign."""
        words = self._word.findall(text.lower())
        return [self.first + zlib.crc32(word.encode()) % self.count for word in words]

    def special(self, word: str, default: int) -> int:  # noqa: ARG002 - hashing knows no words
        """Return `default`."""
        return default


class FileTokenizer:
    """The tokenizer of a `tokenizer.json`."""

    name = "tokenizer.json"

    def __init__(self, path: Path, tokenizer: Any, vocabulary: int) -> None:
        self.path = path
        self._tokenizer = tokenizer
        size = int(tokenizer.get_vocab_size())
        if size > vocabulary:
            raise UsageError(
                f"the tokenizer has {size} tokens, the model {vocabulary}",
                path=path,
                remedy="move it away, or choose another variant",
            )

    def encode(self, text: str) -> list[int]:
        """Return the token numbers of `text`, without special tokens."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def special(self, word: str, default: int) -> int:  # noqa: ARG002 - of the protocol
        """Return the number of `word`; raises `UsageError` if the tokenizer has no such token."""
        number: int | None = self._tokenizer.token_to_id(word)
        if number is None:
            raise UsageError(f"the tokenizer has no token {word}", path=self.path, remedy="move it away")
        return number


def find_tokenizer(data: Path, first: int, vocabulary: int) -> Tokenizer:
    """Return the tokenizer of the `tokenizer.json` in or next to `data`, else `HashedWords`.

    Words are also hashed if the package tokenizers cannot be imported. Raises `UsageError` if the file
    cannot be read or has more tokens than the model's `vocabulary`.
    """
    path = (data if data.is_dir() else data.parent) / "tokenizer.json"
    if not path.is_file():
        return HashedWords(first, vocabulary)
    try:
        import tokenizers  # noqa: PLC0415 - comes with transformers, but this module does not need it
    except ImportError:
        return HashedWords(first, vocabulary)
    try:
        loaded = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception
        raise UsageError(f"it is not a tokenizer: {error}", path=path, remedy="move it away") from error
    return FileTokenizer(path, loaded, vocabulary)


class TextLines:
    """The lines of a text file, or of all `.txt` files in a folder, found by their byte position.

    Nothing is read ahead and no table of lines is kept, so that a file of any size can be used. A line that
    is not UTF-8 is skipped and counted. A line longer than 64 KiB comes in pieces.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            files = sorted(path.rglob("*.txt")) if path.is_dir() else [path]
            sizes = [file.stat().st_size for file in files]
        except OSError as error:
            raise _unreadable(path, error) from error
        self.files: Sequence[Path] = [file for file, size in zip(files, sizes, strict=True) if size]
        self.starts = [0, *accumulate(size for size in sizes if size)]
        if not self.files:
            raise UsageError(
                "there is no text in it", path=path, remedy="name a text file or a folder of .txt"
            )
        self._skipped = SkipCounter()

    @property
    def size(self) -> int:
        """The number of bytes of all files."""
        return self.starts[-1]

    def skipped(self) -> int:
        """Return the number of lines so far that were not UTF-8, over all loader processes."""
        return self._skipped()

    def lines_from(self, place: int) -> Iterator[str]:
        """Yield the lines that are not blank, once each, from the first that begins at byte `place` or later.

        Raises `UsageError` if a file cannot be read, or has 64 MiB in a row without a line of text.
        """
        first = bisect_right(self.starts, place) - 1
        offset = place - self.starts[first]
        turns = [(first, offset, None), *((n, 0, None) for n in range(first + 1, len(self.files)))]
        turns += [*((n, 0, None) for n in range(first)), (first, 0, offset)]  # type: ignore[list-item]
        barren = 0
        for number, begin, end in turns:
            for size, line in self._lines(self.files[number], begin, end):
                barren = 0 if line else barren + size
                if line:
                    yield line
                if barren > _LONGEST_SEARCH:
                    raise UsageError(
                        "64 MiB of it hold no text", path=self.files[number], remedy="name a text file"
                    )

    def _lines(self, path: Path, begin: int, end: int | None) -> Iterator[tuple[int, str]]:
        try:
            with path.open("rb") as file:
                continued = _go_to_line(file, begin)
                while (end is None or file.tell() < end) and (piece := file.readline(_LONGEST_LINE)):
                    cut = not piece.endswith(b"\n") and len(piece) == _LONGEST_LINE
                    yield len(piece), self._decode(piece, continued=continued, cut=cut)
                    continued = cut
        except OSError as error:
            raise _unreadable(path, error) from error

    def _decode(self, piece: bytes, *, continued: bool, cut: bool) -> str:
        if continued:
            piece = piece.lstrip(_CONTINUATION_BYTES)
        try:
            return codecs.getincrementaldecoder("utf-8")().decode(piece, final=not cut).strip()
        except UnicodeDecodeError:
            self._skipped.add()
            return ""


def _go_to_line(file: BinaryIO, begin: int) -> bool:
    """Move to the first line that begins at `begin` or later; return True inside a very long line."""
    if begin == 0:
        return False
    file.seek(begin - 1)
    passed = file.readline(_LONGEST_LINE)
    return not passed.endswith(b"\n") and len(passed) == _LONGEST_LINE


def _unreadable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"it cannot be read: {error.strerror or error}",
        path=path,
        remedy="name a text file or a folder of .txt",
    )
