"""The arithmetic of a run: which number format, and what torch must be told for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from tracekit.errors import UsageError
from tracekit.manifest import Precision

__all__ = ["autocast", "grad_scaler", "tensor_cores"]

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[object]:
    """A context in which operators run in this precision where that is safe; nothing for fp32 and tf32."""
    dtype = _AUTOCAST.get(precision)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


def grad_scaler(device: torch.device, precision: Precision) -> torch.amp.GradScaler:
    """The scaler of the loss that half-precision gradients need; one that does nothing for other precisions."""
    return torch.amp.GradScaler(device.type, enabled=precision == "fp16")


@contextmanager
def tensor_cores(device: torch.device, precision: Precision) -> Iterator[None]:
    """Let 32-bit products and convolutions use TF32 for `tf32`, forbid it for `fp32`, and restore what was.

    Raises UsageError for tf32 on a device that has none.
    """
    if precision == "tf32" and device.type != "cuda":
        raise UsageError(f"there is no tf32 on {device.type}", remedy="use --precision fp32 or bf16")
    products, convolutions = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = products, convolutions
