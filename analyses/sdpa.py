"""Why `scaled_dot_product_attention` ran as separate operators: what its fused kernels ask of their inputs.

The kernels of a device are FlashAttention, which takes the fewest inputs, and memory-efficient attention; those of
processors are one. A trace holds shapes, types and scalar arguments, but no strides, and not whether a tensor requires a
gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from tracekit.analyses.flops import json_list

__all__ = ["SDPA_MATH", "Call", "Kernel", "Reason", "Target", "call_of", "refusals"]

Target = Literal["processor", "nvidia", "amd"]

SDPA_MATH: Final = r"^aten::_scaled_dot_product_attention_math$"
"""The operator that computes attention from separate operators."""

_DIMENSIONS: Final = 4
_HALF: Final = ("c10::Half", "c10::BFloat16")
_WIDEST_FLASH: Final = 256
_FIRST_FLASH: Final = (8, 0)
"""The first compute capability for which FlashAttention is built, and the first with bf16."""


class Call(msgspec.Struct, frozen=True):
    """The recorded inputs of a call: shapes and types of query, key, value and mask; None where they were not recorded."""

    query: tuple[int, ...]
    key: tuple[int, ...]
    value: tuple[int, ...]
    types: tuple[str, str, str]
    mask: tuple[int, ...] | None
    mask_type: str
    dropout: float
    causal: bool
    grouped: bool


class Reason(msgspec.Struct, frozen=True):
    """Why a kernel cannot take a call, as a clause, and what to do about it, as lines of advice; none: nothing helps."""

    why: str
    remedy: str


class Kernel(msgspec.Struct, frozen=True):
    """A fused kernel, and why it cannot take a call; no reasons: the trace shows none."""

    name: str
    reasons: tuple[Reason, ...]


def call_of(shapes: str | None, types: str | None, scalars: str | None) -> Call | None:
    """The inputs of a call of `aten::scaled_dot_product_attention` or `aten::_scaled_dot_product_attention_math`.

    The texts are JSON lists as the profiler writes them, by position. None if query, key and value are not all there.

    >>> call_of("[[1, 2, 8, 4], [1, 2, 8, 4], [1, 2, 8, 4], [], []]", '["float", "float", "float", "", "Scalar"]', '["", "", "", "", "0.1"]').dropout
    0.1
    """
    sizes, kinds, values = json_list(shapes), json_list(types), json_list(scalars)
    tensors = [_sizes(size) for size in sizes[:_DIMENSIONS]]
    if len(tensors) < _DIMENSIONS or len(kinds) < _DIMENSIONS or not all(tensors[:3]):
        return None
    query, key, value, mask = tensors
    names = [str(kind) for kind in kinds[:_DIMENSIONS]]
    return Call(
        query=query,
        key=key,
        value=value,
        types=(names[0], names[1], names[2]),
        mask=mask or None,
        mask_type=names[3],
        dropout=_number(values[4]) if len(values) > _DIMENSIONS else 0.0,
        causal=len(values) > 5 and values[5] == "True",
        grouped=len(values) > 6 and values[-1] == "True",
    )


def refusals(call: Call, target: Target, capability: tuple[int, int] | None = None) -> tuple[Kernel, ...]:
    """The fused kernels of a target, each with the reasons why it cannot take this call."""
    common = tuple(_of_any(call))
    if target == "processor":
        return (Kernel("fused attention", (*common, *_of_processor(call))),)
    return (
        Kernel("FlashAttention", (*common, *_of_flash(call, target, capability))),
        Kernel("memory-efficient attention", (*common, *_of_efficient(call, target, capability))),
    )


def _of_any(call: Call) -> Iterator[Reason]:
    tensors = (call.query, call.key, call.value)
    dimensions = [len(tensor) for tensor in tensors]
    if len(set(call.types)) > 1:
        yield Reason(
            f"query, key and value have different types ({', '.join(call.types)})",
            "Cast query, key and value to one type.",
        )
    if dimensions != [_DIMENSIONS] * 3:
        yield Reason(
            f"query, key and value have {', '.join(map(str, dimensions))} dimensions, not 4",
            "Reshape query, key and value to (batch, heads, length, head size).",
        )
        return
    if any(0 in tensor for tensor in tensors):
        yield Reason("a sequence is empty", "Leave empty sequences out.")
    if len({tensor[0] for tensor in tensors}) > 1:
        yield Reason(
            "query, key and value have different batch sizes",
            "Expand query, key and value to one batch size.",
        )
    heads = [tensor[1] for tensor in tensors]
    if len(set(heads)) > 1 and not call.grouped:
        yield Reason(
            f"query, key and value have {', '.join(map(str, heads))} heads",
            "Set enable_gqa=True for grouped heads.",
        )
    if call.query[-1] != call.key[-1]:
        yield Reason(
            f"query and key have different head sizes ({call.query[-1]} and {call.key[-1]})",
            "Pad query and key to one head size.",
        )


def _of_processor(call: Call) -> Iterator[Reason]:
    if call.dropout > 0:
        yield Reason(
            f"the dropout of the attention is {call.dropout:g}, and the kernel for processors has none",
            "[inference] Call model.eval(), or pass dropout_p=0.\n"
            "[!inference] Set the dropout of the attention to 0 (attention_dropout or attention_probs_dropout_prob in Hugging "
            "Face models).",
        )
    yield from _head_sizes_differ(call)
    if call.mask is not None and len(call.query) == _DIMENSIONS and not _mask_fits(call.mask, call):
        yield Reason(
            f"a mask of the shape {list(call.mask)} does not fit",
            "Give the mask 2 or 4 dimensions that are 1 or those of the scores (batch, heads, queries, keys).",
        )


def _of_flash(call: Call, target: Target, capability: tuple[int, int] | None) -> Iterator[Reason]:
    if call.types[0] not in _HALF:
        yield Reason(
            f"the inputs are {_named(call.types[0])}",
            'Use bf16 or fp16 inputs, for example under torch.autocast("cuda", dtype=torch.bfloat16).',
        )
    if call.mask is not None:
        yield Reason(
            "a mask is given",
            "Pass is_causal=True in place of a causal mask, and use flex_attention for other masks.",
        )
    yield from _head_sizes_differ(call)
    if call.query[-1] > _WIDEST_FLASH:
        yield Reason(
            f"the head size {call.query[-1]} is above {_WIDEST_FLASH}", "Use more heads of a smaller size."
        )
    if target == "nvidia" and capability is not None and capability < _FIRST_FLASH:
        yield Reason(f"the compute capability {capability[0]}.{capability[1]} is below 8.0", "")
    if call.causal and call.query[-2:-1] != call.key[-2:-1]:
        yield Reason(
            "is_causal is set for queries and keys of different lengths",
            "Use torch.nn.attention.bias.causal_lower_right or causal_upper_left.",
        )


def _of_efficient(call: Call, target: Target, capability: tuple[int, int] | None) -> Iterator[Reason]:
    half = call.types[0] in _HALF
    if call.types[0] not in (*_HALF, "float"):
        yield Reason(f"the inputs are {_named(call.types[0])}", "Use bf16, fp16 or fp32 inputs.")
    if (
        call.types[0] == _HALF[1]
        and target == "nvidia"
        and capability is not None
        and capability < _FIRST_FLASH
    ):
        yield Reason(
            f"the inputs are bf16 on compute capability {capability[0]}.{capability[1]}", "Use fp16 inputs."
        )
    multiple = 8 if half else 4
    wrong = sorted({size for size in (call.query[-1], call.value[-1]) if size % multiple})
    if wrong:
        yield Reason(
            f"the head size {' or '.join(map(str, wrong))} is not a multiple of {multiple}",
            f"Pad the head size to a multiple of {multiple}.",
        )
    if target == "amd" and call.grouped:
        yield Reason("enable_gqa is set", "Repeat the heads of key and value.")
    if target == "amd" and call.mask is not None and call.mask_type not in ("bool", call.types[0]):
        yield Reason(
            f"the mask is {_named(call.mask_type)}", "Use a mask of booleans, or of the type of the inputs."
        )


def _head_sizes_differ(call: Call) -> Iterator[Reason]:
    if call.value[-1] != call.query[-1] == call.key[-1]:
        yield Reason(
            f"the head sizes of query and value differ ({call.query[-1]} and {call.value[-1]})",
            "Pad query, key and value to one head size.",
        )


def _mask_fits(mask: tuple[int, ...], call: Call) -> bool:
    scores = (*call.query[:3], call.key[2])
    return len(mask) in (2, _DIMENSIONS) and all(
        size in (1, whole) for size, whole in zip(mask, scores[-len(mask) :], strict=True)
    )


def _named(kind: str) -> str:
    return {"double": "fp64", "float": "fp32", "c10::Half": "fp16", "c10::BFloat16": "bf16"}.get(kind, kind)


def _sizes(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(size) is int and size >= 0 for size in value):
        return ()
    return tuple(value)


def _number(value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        return 0.0
