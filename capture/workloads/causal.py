"""Training a language model to predict the next token: the code that `gpt2` and `llama` share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from tracekit.capture.recipe import Recipe
from tracekit.capture.workloads import WorkloadOptions
from tracekit.capture.workloads.data.samples import GeneratedSamples
from tracekit.capture.workloads.data.tokens import TextLines, Tokenizer, ZipfWords, find_tokenizer
from tracekit.capture.workloads.optimizers import AdamWWithWarmUp
from tracekit.errors import UsageError

__all__ = ["SyntheticText", "TextSequences", "causal_example", "causal_recipe", "forward", "loss"]

_DECAY = 0.1
_BYTES_PER_TOKEN = 4  # roughly that of English text; it spreads the samples over the files
_FIRST_WORD = 3  # lower numbers are special tokens


@dataclass(frozen=True, slots=True)
class SyntheticText:
    """Makes samples of random words, distributed as in text."""

    words: ZipfWords
    length: int

    def __call__(self, random: torch.Generator) -> dict[str, torch.Tensor]:
        """Return `input_ids` (length)."""
        return {"input_ids": self.words.draw(self.length, random)}


class TextSequences(Dataset[Any]):
    """Samples of `length` consecutive tokens of real text, without padding; a short text is repeated."""

    def __init__(self, text: TextLines, tokenizer: Tokenizer, length: int) -> None:
        self.text = text
        self.tokenizer = tokenizer
        self.length = length
        self.stride = _BYTES_PER_TOKEN * length

    def __len__(self) -> int:
        return max(1, self.text.size // self.stride)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens: list[int] = []
        while (missing := self.length - len(tokens)) > 0:
            lines = self.text.lines_from(index * self.stride)
            more = list(islice((token for line in lines for token in self.tokenizer.encode(line)), missing))
            if not more:
                raise UsageError("there is no text in it", path=self.text.path, remedy="name a text in UTF-8")
            tokens += more
        return {"input_ids": torch.tensor(tokens, device="cpu")}


def causal_example(length: int) -> dict[str, torch.Tensor]:
    """Return a batch of one sample of `length` tokens, on the device of the context.

    It contains its attention mask, (1, 1, length, length): to make one, transformers would read values of the
    batch, which do not exist on meta.
    """
    mask = torch.ones((1, 1, length, length), dtype=torch.bool).tril()
    return {"input_ids": torch.full((1, length), _FIRST_WORD), "attention_mask": mask}


def forward(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Any:
    """Return the model's output, with scores (batch, length, vocabulary)."""
    return model(input_ids=batch["input_ids"], attention_mask=batch.get("attention_mask"))


def loss(output: Any, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the mean cross entropy of each token except the first, given the tokens before it."""
    scores = output.logits[:, :-1].float().flatten(0, 1)
    return functional.cross_entropy(scores, batch["input_ids"][:, 1:].flatten())


def causal_recipe(
    model: nn.Module, options: WorkloadOptions, *, variant: str, length: int, batch: int, rate: float
) -> Recipe:
    """Return the recipe that trains `model` on sequences of `length` tokens, with the options' data if any.

    `batch` is the default of a model that is not tiny, `rate` the highest learning rate. Raises `UsageError`
    if the data have no text or the length is 1.
    """
    if length < 2:
        raise UsageError(f"a sequence of {length} token", remedy="choose a size of at least 2")
    vocabulary = int(model.config.vocab_size)  # type: ignore[union-attr, arg-type]
    training = AdamWWithWarmUp(rate, decay=_DECAY, tiny=options.tiny)
    text = None
    if options.data is not None:
        tokenizer = find_tokenizer(options.data, _FIRST_WORD, vocabulary)
        text = TextSequences(TextLines(options.data), tokenizer, length)
        text[0]  # an error in the data must occur now, not in a loader process
    synthetic = SyntheticText(ZipfWords(_FIRST_WORD, vocabulary), length)
    return Recipe(
        model=model,
        dataset=GeneratedSamples(synthetic, options.seed) if text is None else text,
        forward=forward,
        loss=loss,
        optimizer=training.optimizer,
        after_update=training.after_update,
        clip_norm=1.0,
        task="language modelling",
        batch=options.batch or (2 if options.tiny else batch),
        size=length,
        synthetic=text is None,
        skipped=(lambda: 0) if text is None else text.text.skipped,
        config={
            "variant": "tiny" if options.tiny else variant,
            "vocabulary": vocabulary,
            **training.config,
            "tokenizer": "none" if text is None else text.tokenizer.name,
        },
    )
