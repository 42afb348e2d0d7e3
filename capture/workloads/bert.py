"""`bert`: BERT's pre-training, masked language modelling and next-sentence prediction; `size` is in tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from tracekit.capture.recipe import Recipe
from tracekit.capture.workloads import WorkloadOptions
from tracekit.capture.workloads.checks import import_transformers, variant_or_default
from tracekit.capture.workloads.data.samples import GeneratedSamples, torch_generator
from tracekit.capture.workloads.data.tokens import (
    IGNORED,
    TextLines,
    Tokenizer,
    ZipfWords,
    find_tokenizer,
    mask_tokens,
    sample_length,
)
from tracekit.capture.workloads.optimizers import AdamWWithWarmUp
from tracekit.errors import UsageError

__all__ = ["VARIANTS", "PairMaker", "SyntheticPairs", "TextPairs", "build", "build_model", "example_batch"]

VARIANTS: Final[tuple[str, ...]] = ("base", "large", "tiny")

_SHAPES: Final[dict[str, dict[str, int]]] = {
    "base": {},  # the defaults of transformers
    "large": {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
    },
}
_PAD, _CLS, _SEP, _MASK, _FIRST_WORD = 0, 101, 102, 103, 104  # as in BERT's own vocabulary
_SHORTEST = 16
_RATE = 1e-4
_DECAY = 0.01
_BYTES_PER_TOKEN = 4  # roughly that of English text; it spreads the samples over the files


@dataclass(frozen=True, slots=True)
class PairMaker:
    """Makes a training sample of two pieces of text; `cls`, `sep`, `mask` are the special tokens."""

    length: int
    words: ZipfWords
    cls: int = _CLS
    sep: int = _SEP
    mask: int = _MASK

    def split(self, random: torch.Generator) -> tuple[int, int]:
        """Return the numbers of tokens of the first and the second piece."""
        total = sample_length(self.length, random, _SHORTEST) - 3
        first = int(torch.randint(1, total, (), generator=random, device="cpu"))
        return first, total - first

    def make(
        self, first: torch.Tensor, second: torch.Tensor, *, follows: bool, random: torch.Generator
    ) -> dict[str, torch.Tensor]:
        """Return `input_ids`, `token_type_ids`, `attention_mask`, `labels` of shape (length) and the NSP label.

        The model predicts 15 % of the tokens. `next_sentence_label` is 0 if the second piece `follows`.
        """
        sep = torch.tensor([self.sep], device="cpu")
        whole = torch.cat([torch.tensor([self.cls], device="cpu"), first, sep, second, sep])
        maskable = torch.ones(len(whole), dtype=torch.bool, device="cpu")
        maskable[[0, len(first) + 1, -1]] = False
        inputs, labels = mask_tokens(whole, maskable, self.words, self.mask, random)
        kinds = (torch.arange(len(whole), device="cpu") > len(first) + 1).long()
        padding = (0, self.length - len(whole))
        return {
            "input_ids": functional.pad(inputs, padding, value=_PAD),
            "token_type_ids": functional.pad(kinds, padding),
            "attention_mask": functional.pad(torch.ones_like(whole), padding),
            "labels": functional.pad(labels, padding, value=IGNORED),
            "next_sentence_label": torch.tensor(0 if follows else 1, device="cpu"),
        }


@dataclass(frozen=True, slots=True)
class SyntheticPairs:
    """Makes samples of random words, distributed as in text."""

    pairs: PairMaker

    def __call__(self, random: torch.Generator) -> dict[str, torch.Tensor]:
        """Return a sample of `PairMaker.make`."""
        first, second = (self.pairs.words.draw(count, random) for count in self.pairs.split(random))
        return self.pairs.make(first, second, follows=_heads(random), random=random)


class TextPairs(Dataset[Any]):
    """Samples of real text: a piece, and with probability one half the next piece, else a piece from elsewhere."""

    def __init__(self, text: TextLines, tokenizer: Tokenizer, pairs: PairMaker, seed: int) -> None:
        self.text = text
        self.tokenizer = tokenizer
        self.pairs = pairs
        self.seed = seed
        self.stride = _BYTES_PER_TOKEN * pairs.length

    def __len__(self) -> int:
        return max(1, self.text.size // self.stride)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        random = torch_generator(self.seed, index)
        first_length, second_length = self.pairs.split(random)
        follows = _heads(random)
        tokens = self._tokens(index * self.stride, first_length + (second_length if follows else 0))
        if not tokens:
            raise UsageError("there is no text in it", path=self.text.path, remedy="name a text in UTF-8")
        # A text shorter than a sample still has two pieces.
        first_length = min(first_length, max(1, len(tokens) - 1)) if follows else first_length
        second = tokens[first_length:]
        if not follows:
            place = int(torch.randint(self.text.size, (), generator=random, device="cpu"))
            second = self._tokens(place, second_length)
        first = torch.tensor(tokens[:first_length], device="cpu")
        return self.pairs.make(
            first, torch.tensor(second, dtype=torch.int64, device="cpu"), follows=follows, random=random
        )

    def _tokens(self, place: int, count: int) -> list[int]:
        lines = self.text.lines_from(place)
        return list(islice((token for line in lines for token in self.tokenizer.encode(line)), count))


def _heads(random: torch.Generator) -> bool:
    return bool(torch.rand((), generator=random, device="cpu") < 0.5)


def build_model(variant: str, *, length: int = 0) -> nn.Module:
    """Return `BertForPreTraining` with random weights.

    It takes sequences of up to 512 tokens (tiny: 64), or more if `length` is more. Raises `UsageError` for an
    unknown variant and `MissingDependencyError` without transformers.
    """
    shape = {"max_position_embeddings": 512, **_SHAPES[variant_or_default("bert", variant, VARIANTS)]}
    shape["max_position_embeddings"] = max(length, shape["max_position_embeddings"])
    transformers = import_transformers()
    model: nn.Module = transformers.BertForPreTraining(transformers.BertConfig(**shape))
    return model


def forward(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Any:
    """Return the model's output: scores of words (batch, length, vocabulary) and of the next sentence (batch, 2)."""
    return model(
        input_ids=batch["input_ids"],
        token_type_ids=batch["token_type_ids"],
        attention_mask=batch.get("attention_mask"),
    )


def loss(output: Any, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the sum of both cross entropies, BERT's training loss."""
    words = output.prediction_logits.float().flatten(0, 1)
    guessed = functional.cross_entropy(words, batch["labels"].flatten(), ignore_index=IGNORED)
    follows = functional.cross_entropy(output.seq_relationship_logits.float(), batch["next_sentence_label"])
    return guessed + follows


def example_batch(variant: str, *, tiny: bool = False) -> dict[str, torch.Tensor]:
    """Return a batch of one full sample, of 512 tokens (tiny: 32), on the device of the context.

    A full sample needs no attention mask. transformers would read the mask's values, which do not exist on meta.
    """
    length = _default_length(variant, tiny=tiny)
    return {
        "input_ids": torch.full((1, length), _FIRST_WORD),
        "token_type_ids": torch.zeros((1, length), dtype=torch.int64),
        "labels": torch.full((1, length), _FIRST_WORD),
        "next_sentence_label": torch.zeros(1, dtype=torch.int64),
    }


def _default_length(variant: str, *, tiny: bool) -> int:
    return 32 if tiny or variant == "tiny" else 512


def build(options: WorkloadOptions) -> Recipe:
    """Build the workload, by default 8 sequences of 512 tokens a step, trained by AdamW with a warm-up.

    With `options.data`, a text file or a folder of `.txt`, it trains on that text. The
    `tokenizer.json` next to it turns its words into tokens, if there is one, else hashing does (`HashedWords`). Raises `UsageError` for an
    unknown variant, a size too small, or data without text; `MissingDependencyError` without transformers.
    """
    variant = variant_or_default("bert", options.variant, VARIANTS)
    variant = "tiny" if options.tiny else variant
    length = options.size or _default_length(variant, tiny=options.tiny)
    batch = options.batch or (2 if variant == "tiny" else 8)
    if length < _SHORTEST:
        raise UsageError(f"a sequence of {length} tokens", remedy=f"choose a size of at least {_SHORTEST}")
    with options.device:
        model = build_model(variant, length=length).to(options.device)
    vocabulary = int(model.config.vocab_size)  # type: ignore[union-attr, arg-type]
    pairs = PairMaker(length, ZipfWords(_FIRST_WORD, vocabulary))
    training = AdamWWithWarmUp(_RATE, decay=_DECAY, tiny=variant == "tiny")
    text = None if options.data is None else _text_pairs(options.data, pairs, vocabulary, options.seed)
    return Recipe(
        model=model,
        dataset=GeneratedSamples(SyntheticPairs(pairs), options.seed) if text is None else text,
        forward=forward,
        loss=loss,
        optimizer=training.optimizer,
        after_update=training.after_update,
        task="masked language modelling",
        batch=batch,
        size=length,
        synthetic=text is None,
        skipped=(lambda: 0) if text is None else text.text.skipped,
        config={
            "variant": variant,
            "vocabulary": vocabulary,
            **training.config,
            "masked_share": 0.15,
            "tokenizer": "none" if text is None else text.tokenizer.name,
        },
    )


def _text_pairs(data: Path, pairs: PairMaker, vocabulary: int, seed: int) -> TextPairs:
    text = TextLines(data)
    tokenizer = find_tokenizer(data, _FIRST_WORD, vocabulary)
    pairs = replace(
        pairs,
        cls=tokenizer.special("[CLS]", _CLS),
        sep=tokenizer.special("[SEP]", _SEP),
        mask=tokenizer.special("[MASK]", _MASK),
    )
    dataset = TextPairs(text, tokenizer, pairs, seed)
    dataset[0]  # an error in the data must occur now, not in a loader process
    return dataset
