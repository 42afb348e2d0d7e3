"""Names of ranges around a training or inference step: those of PyTorch's profiler, and those that people write.

A name is its words: letters between digits, punctuation and underscores. It names a step when one of its words means
a step and every other one only says of which kind or number. So `train_step`, `Iteration 12`, `iter_0005`, `[step]`,
`Epoch 1, batch 3 of 40` do; `optimizer_step`, `validation step`, `next_batch`, `batch_norm`, `warmup` do not, since a
word is left over. A step that is only a part of an iteration is not meant: `micro_batch`, `forward_step`.
"""

from __future__ import annotations

from typing import Final

__all__ = ["STEP_PREFIX", "STEP_RANGE"]

STEP_PREFIX: Final = "ProfilerStep#"
"""How the name of a step begins that PyTorch's profiler marks."""

_BETWEEN: Final = r"[\W\d_]*"
_STEP: Final = r"(?:steps?|iterations?|iters?|batch|batches)"
_KIND: Final = (
    r"(?:train|training|trainer|infer|inference|predict|prediction|generate|generation|decode|decoding|denoise"
    r"|denoising|bench|benchmark|timed|measured|profile|profiled|profiling|pl|global|main|one|single|mini|run|do|time"
    r"|loop|epoch)"
)
_NUMBER: Final = r"(?:of|to|no|num|number|idx|index|id)"

STEP_RANGE: Final = (
    rf"(?i)^{_BETWEEN}(?:(?:{_KIND}|{_STEP}){_BETWEEN}(?:{_NUMBER}{_BETWEEN})?)*"
    rf"{_STEP}(?:{_BETWEEN}{_NUMBER})*{_BETWEEN}$"
)
"""The name of a range around a step."""
