"""Fused attention: its two products, of the pairs of a query and a key that are not masked (DEFINITIONS §7).

2 · B · H · pairs · (d_qk + d_v) FLOPs; grouped heads count as many as the query has. Backward recomputes the scores and makes four
more products, 3 · d_qk + 2 · d_v: 2.5 × forward where the widths are equal. A causal mask and a window leave out pairs, a mask that is
a tensor none: the kernels compute them all. Softmax, scale and dropout are not counted. Bytes are those of query, key, value, mask and
output, and backward of their gradients. Attention of separate operators (`_scaled_dot_product_attention_math`) is counted by its products.

Sequences of different lengths in one tensor have no FLOPs, unless their number and the longest show that all are as long: the trace
has no values of tensors. Nor has attention on a paged cache, whose used part is not recorded, and FlexAttention, whose mask is code.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final, NamedTuple

from tracekit.analyses.flops.work import Family, Inputs, Model, Work

__all__ = ["FAMILY", "attended_pairs", "attention_flops"]

FAMILY: Final = Family("attention")

Shape = Sequence[int]


def attended_pairs(queries: int, keys: int, *, first: int | None = None, last: int | None = None) -> int:
    """The number of pairs of query i and key j with first ≤ j − i ≤ last; None sets no limit.

    >>> attended_pairs(3, 2), attended_pairs(3, 2, last=0), attended_pairs(4, 4, first=-1, last=0)
    (6, 5, 7)
    """
    whole = queries * keys
    up_to_last = whole if last is None else _up_to(queries, keys, last)
    return up_to_last - (0 if first is None else min(up_to_last, _up_to(queries, keys, first - 1)))


def _up_to(queries: int, keys: int, last: int) -> int:
    """The pairs with j − i ≤ last. Query i sees i + last + 1 keys, at least none and at most all."""
    begin, end = last, queries + last
    return _triangle(end) - _triangle(begin) - _triangle(end - keys) + _triangle(begin - keys)


def _triangle(n: int) -> int:
    return n * (n + 1) // 2 if n > 0 else 0


def attention_flops(
    query: Shape, key: Shape, value: Shape, *, pairs: int | None = None, backward: bool = False
) -> int:
    """FLOPs of a fused attention of query (B, H, Nq, d), key and value (B, H', Nkv, d): its two products, backward its five.

    `pairs` are those of a head that are not masked; None: all.

    >>> attention_flops((1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8)), attention_flops((1, 1, 3, 8), (1, 1, 2, 8), (1, 1, 2, 8), pairs=5)
    (1024, 160)
    """
    batch, heads, queries, width = query
    seen = queries * key[2] if pairs is None else pairs
    products = 3 * width + 2 * value[3] if backward else width + value[3]
    return 2 * batch * heads * seen * products


class _Places(NamedTuple):
    """Where a schema has the arguments of an attention; None where it has none.

    Query, key and value stand one behind the other. `rows`: the tensors are (B, N, H, d), not (B, H, N, d).
    """

    query: int
    causal: (
        int | None
    )  # a flag, or with `kinds` a number: 0 none, 1 from the first pair on, 2 up to the last pair
    rows: bool = False
    backward: bool = False
    mask: int | None = None
    window: int | None = None  # how many keys to the left, and behind it to the right; −1 for all
    at_end: bool = False  # a causal mask and a window are aligned at the last query and key, not at the first
    kinds: bool = False
    ragged: tuple[int, int] | None = (
        None  # the starts of the sequences of query and key, their greatest lengths
    )
    unknown: tuple[int, ...] = ()  # if one of these is given, the keys that are used are not recorded


def _attention(at: _Places) -> Model:
    tensors = range(at.query, at.query + 3)
    read_ones = tensors if at.mask is None else (*tensors, at.mask)

    def work(inputs: Inputs) -> Work:
        if at.unknown and any(inputs.has(place) for place in at.unknown):
            raise ValueError
        query, key, value, told = _as_heads(inputs, at)
        batch, heads, queries, width = query
        if key[3] != width or value[:3] != key[:3] or key[0] != batch or not key[1] or heads % key[1]:
            raise ValueError
        first, last = _limits(inputs, at, queries, key[2])
        pairs = attended_pairs(queries, key[2], first=first, last=last)
        # The output has the queries' places and the values' width; backward, each gradient has the size of its tensor.
        itemsize = inputs.itemsize(at.query)
        written = None if itemsize is None else batch * heads * queries * value[3] * itemsize
        read = inputs.sizes(read_ones)
        if at.backward:
            # The output and its gradient are read too.
            read = None if read is None or written is None else read + 2 * written
            written = inputs.sizes(tensors)
        return Work(
            attention_flops(query, key, value, pairs=pairs, backward=at.backward) if told else None,
            read,
            written,
            inputs.precision(at.query),
            "matrix",
        )

    return work


def _as_heads(inputs: Inputs, at: _Places) -> tuple[list[int], list[int], list[int], bool]:
    """Query, key and value as (B, H, N, d), and whether all sequences are so long."""
    shapes = [inputs.shape(at.query + place, 3) for place in range(3)]
    if at.ragged is None or not inputs.has(at.ragged[0]):
        if any(len(shape) != 4 for shape in shapes):
            raise ValueError
        query, key, value = ([b, h, n, d] if not at.rows else [b, n, h, d] for b, h, n, d in shapes)
        return query, key, value, True
    starts, longest = at.ragged
    count = inputs.shape(starts)[0] - 1
    tokens = [prod(shape[:-2]) for shape in shapes]
    longs = [inputs.number(longest), inputs.number(longest + 1)]
    told = count == 1 or [count * longs[0], count * longs[1]] == tokens[:2]
    if told:
        lengths = [total // max(count, 1) for total in tokens]
        batch = count
    else:  # the bytes are those of all tokens, whatever the lengths are
        lengths, batch = tokens, 1
    query, key, value = (
        [batch, shape[-2], length, shape[-1]] for shape, length in zip(shapes, lengths, strict=True)
    )
    return query, key, value, told


def _limits(inputs: Inputs, at: _Places, queries: int, keys: int) -> tuple[int | None, int | None]:
    """The least and the greatest j − i of a pair that is not masked."""
    shift = keys - queries if at.at_end else 0
    if at.kinds and at.causal is not None:
        kind, width = inputs.number(at.causal), _side(inputs, at.window)
        shift = keys - queries if kind == 2 else 0
        return shift - width + 1 if width > 0 else None, shift if kind else None
    causal = at.causal is not None and inputs.flag(at.causal)
    left, right = _side(inputs, at.window), _side(inputs, None if at.window is None else at.window + 1)
    return shift - left if left >= 0 else None, shift if causal else shift + right if right >= 0 else None


def _side(inputs: Inputs, place: int | None) -> int:
    return inputs.number(place) if place is not None and inputs.given(place) else -1


_SDPA: Final = "aten::_scaled_dot_product_"
_FLASH: Final = _Places(0, 5, rows=True, window=6, at_end=True)
_FLASH_RAGGED: Final = _Places(0, 9, rows=True, window=10, at_end=True, ragged=(3, 5), unknown=(15, 16, 17))
_FLASH_BACKWARD: Final = _Places(1, 11, rows=True, backward=True, window=12, at_end=True)
_FLASH_RAGGED_BACKWARD: Final = _Places(
    1, 15, rows=True, backward=True, window=16, at_end=True, ragged=(9, 11)
)
_FLASH_3: Final = _Places(
    0, 24, rows=True, window=25, at_end=True, ragged=(7, 12), unknown=(3, 4, 5, 10, 11, 14, 15, 16)
)
_FORMS: Final[dict[str, _Places]] = {
    f"{_SDPA}flash_attention": _Places(0, 4),
    f"{_SDPA}flash_attention_for_cpu": _Places(0, 4, mask=5),
    f"{_SDPA}efficient_attention": _Places(0, 6, mask=3),
    f"{_SDPA}cudnn_attention": _Places(0, 6, mask=3),
    f"{_SDPA}fused_attention_overrideable": _Places(0, 5, mask=3),
    f"{_SDPA}flash_attention_backward": _Places(1, 11, backward=True),
    f"{_SDPA}flash_attention_for_cpu_backward": _Places(1, 7, backward=True, mask=8),
    f"{_SDPA}efficient_attention_backward": _Places(1, 11, backward=True, mask=4),
    f"{_SDPA}cudnn_attention_backward": _Places(1, 14, backward=True, mask=8),
    f"{_SDPA}fused_attention_overrideable_backward": _Places(1, 13, backward=True, mask=4),
    "aten::_flash_attention_forward": _Places(
        0, 8, rows=True, window=11, at_end=True, ragged=(3, 5), unknown=(13, 15)
    ),
    "aten::_flash_attention_backward": _Places(
        1, 11, rows=True, backward=True, window=15, at_end=True, ragged=(6, 8)
    ),
    "aten::_efficient_attention_forward": _Places(
        0, 9, rows=True, mask=3, window=13, kinds=True, ragged=(4, 6), unknown=(12,)
    ),
    "aten::_efficient_attention_backward": _Places(
        1, 14, rows=True, backward=True, mask=4, window=18, kinds=True, ragged=(6, 8)
    ),
    "aten::_cudnn_attention_forward": _Places(0, 10, mask=3, ragged=(4, 6)),
    "aten::_cudnn_attention_backward": _Places(1, 14, backward=True, mask=8, ragged=(9, 11)),
    # The packages flash-attn (of which `flashattn` was the first name), FlashAttention-3 and xformers.
    **{f"{package}::_flash_attn_forward": _FLASH for package in ("flash_attn", "flashattn")},
    **{f"{package}::_flash_attn_varlen_forward": _FLASH_RAGGED for package in ("flash_attn", "flashattn")},
    **{f"{package}::_flash_attn_backward": _FLASH_BACKWARD for package in ("flash_attn", "flashattn")},
    **{
        f"{package}::_flash_attn_varlen_backward": _FLASH_RAGGED_BACKWARD
        for package in ("flash_attn", "flashattn")
    },
    "flash_attn_3::fwd": _FLASH_3,
    "flash_attn_3::_flash_attn_forward": _FLASH_3,
    "flash_attn_3::bwd": _Places(
        1, 16, rows=True, backward=True, window=17, at_end=True, ragged=(9, 13), unknown=(11, 12)
    ),
    "flash_attn_3::_flash_attn_backward": _Places(
        1, 16, rows=True, backward=True, window=17, at_end=True, ragged=(6, 10), unknown=(8, 9)
    ),
    "xformers_flash::flash_fwd": _Places(
        0, 10, rows=True, window=11, at_end=True, ragged=(3, 6), unknown=(5, 14)
    ),
}

for _name, _at in _FORMS.items():
    FAMILY.model(_name)(_attention(_at))
FAMILY.model("aten::scaled_dot_product_attention", composite=True, arguments=8)(
    _attention(_Places(0, 5, mask=3))
)


@FAMILY.model("FlashAttnFunc", composite=True)
def _function(inputs: Inputs) -> Work:
    """The autograd function of flash-attn before it had operators: the window is a tuple, which is not recorded. So only bytes."""
    query, key, value = (inputs.shape(place, 4) for place in range(3))
    itemsize = inputs.itemsize(0)
    if key[:3] != value[:3]:
        raise ValueError
    output = None if itemsize is None else prod(query[:3]) * value[3] * itemsize
    return Work(None, inputs.sizes(range(3)), output, inputs.precision(0), "matrix")
