"""Operators that move data: copies, fills, gathers and scatters, embeddings. No FLOPs but where numbers are added.

Bytes: what is read and written. A gather reads its indices and the elements that they name, not the whole table. Random numbers are
bytes alone: the arithmetic that makes them is not counted. Of tensors that are joined (`cat`) the type is known if a kernel's name tells
it, or a call inside: that takes a part of the result (`narrow`), which processors do where there is more than a little to copy.
"""

from __future__ import annotations

from itertools import pairwise
from math import ceil, prod
from typing import Final

from tracekit.analyses.flops.tensors import (
    INDEX,
    asked_width,
    bytes_of,
    is_tensor,
    list_shapes,
    list_width,
    made,
    of_sums,
    tensors,
)
from tracekit.analyses.flops.work import Family, Inputs, Model, Work

__all__ = ["FAMILY"]

FAMILY: Final = Family("movement")


def _plus(*sizes: int | None) -> int | None:
    return None if None in sizes else sum(size for size in sizes if size is not None)


@FAMILY.model("aten::copy_")
def _copy(inputs: Inputs) -> Work:
    """`copy_(self, source)`."""
    return Work(0, inputs.size(1), inputs.size(0))


@FAMILY.model("aten::clone", "aten::_local_scalar_dense")
def _clone(inputs: Inputs) -> Work:
    """`clone(input)`."""
    return Work(0, inputs.size(0), inputs.size(0))


@FAMILY.model("aten::pixel_shuffle", "aten::pixel_unshuffle", composite=True, arguments=2)
@FAMILY.model("aten::native_channel_shuffle", composite=True)
def _shuffled(inputs: Inputs) -> Work:
    """`pixel_shuffle(input, factor)`: processors do it themselves, devices copy a view of the input."""
    return Work(0, inputs.size(0), made(inputs.elements(0), inputs.itemsize(0)))


@FAMILY.model("aten::_to_copy")
def _converted(inputs: Inputs) -> Work:
    """`_to_copy(input, dtype, …)`."""
    width = asked_width(inputs, 1, inputs.itemsize(0)) if len(inputs.concrete) > 1 else None
    return Work(0, inputs.size(0), made(inputs.elements(0), width))


@FAMILY.model("aten::fill_", "aten::zero_")
def _fill(inputs: Inputs) -> Work:
    """`fill_(self, value)`."""
    size = inputs.size(0)
    return Work(0, None if size is None else 0, size)


@FAMILY.model(
    *(f"aten::{name}_" for name in ("normal", "uniform", "random", "bernoulli", "exponential", "geometric"))
)
def _random(inputs: Inputs) -> Work:
    """`normal_(self, …)`; a second tensor holds probabilities."""
    return Work(None, bytes_of(inputs, tensors(inputs)[1:]), inputs.size(0))


@FAMILY.model("aten::arange", "aten::randperm", composite=True)
def _counted(inputs: Inputs) -> Work:
    """`arange(start, end, step, out)` and `randperm(n, …, out)`; without `out` they call themselves with it."""
    given = tensors(inputs)
    numbers = [float(text) for text in inputs.concrete[: given[0] if given else 0] if text]
    if not numbers:
        raise ValueError
    start, end, step = (0.0, numbers[0], 1.0) if len(numbers) == 1 else (*numbers, 1.0)[:3]
    return Work(0, 0, made(ceil((end - start) / step), inputs.itemsize(given[0])))


@FAMILY.model("aten::_foreach_copy_", composite=True)
def _copies(inputs: Inputs) -> Work:
    """`_foreach_copy_(tensors, sources)`."""
    size = made(sum(map(prod, list_shapes(inputs, 0))), list_width(inputs, 0))
    return Work(0, size, size)


@FAMILY.model("aten::cat", inside=("aten::narrow", "aten::copy_"))
def _joined(inputs: Inputs) -> Work:
    """`cat(tensors, dim)`. On processors it takes the parts of its result one by one (`narrow`), and copies those of another type before."""
    parts = tensors(inputs, range(2, len(inputs.shapes)))
    elements, width = sum(map(prod, list_shapes(inputs, 0))), list_width(inputs, 0)
    if width is not None or not parts:
        return Work(0, made(elements, width), made(elements, width))
    written = made(elements, inputs.itemsize(parts[0]))
    # `narrow` has one tensor among its inputs, `copy_` two in a row.
    copied = any(other == one + 1 for one, other in pairwise(parts))
    return Work(0, None if copied else written, written)


@FAMILY.model("aten::stack", composite=True, inside=("aten::view",))
def _stacked(inputs: Inputs) -> Work:
    """`stack(tensors, dim)`: `cat` does it, and `view` of what that makes tells the type of the result."""
    elements, width = sum(map(prod, list_shapes(inputs, 0))), list_width(inputs, 0)
    if width is not None or not is_tensor(inputs, 2):
        return Work(0, made(elements, width), made(elements, width))
    return Work(0, None, made(elements, inputs.itemsize(2)))


@FAMILY.model("aten::_foreach_zero_", composite=True)
def _zeros(inputs: Inputs) -> Work:
    """`_foreach_zero_(tensors)`."""
    size = made(sum(map(prod, list_shapes(inputs, 0))), list_width(inputs, 0))
    return Work(0, None if size is None else 0, size)


@FAMILY.model("aten::split_with_sizes_copy", "fsdp::split_with_sizes_copy")
def _parted(inputs: Inputs) -> Work:
    """`split_with_sizes_copy(input, sizes, dim, …)`."""
    return Work(0, inputs.size(0), inputs.size(0))


@FAMILY.model("aten::_chunk_cat", "fsdp::chunk_cat")
def _chunks(inputs: Inputs) -> Work:
    """`_chunk_cat(tensors, dim, num_chunks, out)`: the type of what it reads is not recorded, and may be another."""
    read = made(sum(map(prod, list_shapes(inputs, 0))), list_width(inputs, 0))
    return Work(0, read, inputs.size(3) if is_tensor(inputs, 3) else None)


@FAMILY.model("aten::nonzero", "aten::masked_select")
def _found(inputs: Inputs) -> Work:
    """`masked_select(input, mask)`: how much it finds is not recorded."""
    return Work(0, bytes_of(inputs, (0, 1)), None)


@FAMILY.model(
    "aten::constant_pad_nd",
    *(f"aten::{kind}_pad{d}d" for kind in ("reflection", "replication") for d in (1, 2, 3)),
)
def _padded(inputs: Inputs) -> Work:
    """`constant_pad_nd(input, pad, value)`, with the pads of the last dimension first."""
    shape, pads = list(inputs.shape(0)), inputs.numbers(1)
    for place, size in enumerate(zip(pads[::2], pads[1::2], strict=True)):
        shape[-1 - place] += sum(size)
    return Work(0, inputs.size(0), made(prod(shape), inputs.itemsize(0)))


@FAMILY.model(
    *(f"aten::{kind}_pad{d}d_backward" for kind in ("reflection", "replication") for d in (1, 2, 3))
)
def _padded_back(inputs: Inputs) -> Work:
    """`reflection_pad2d_backward(grad, input, pad)`: each gradient is added to its place."""
    return Work(inputs.elements(0), inputs.size(0), inputs.size(1), inputs.precision(0))


@FAMILY.model("aten::multinomial", composite=True)
def _drawn(inputs: Inputs) -> Work:
    """`multinomial(probabilities, count, …)`: with replacement it is an operator of its own."""
    shape = inputs.shape(0)
    return Work(None, inputs.size(0), prod(shape[:-1]) * inputs.number(1) * INDEX)


# -- gathers and scatters ---------------------------------------------------------------------------


def _gathered(inputs: Inputs, table: int, index: int, each: int, flops: int = 0) -> Work:
    """The work of reading, for each index, so many elements of a table, and writing them."""
    size = made(inputs.elements(index) * each, inputs.itemsize(table))
    return Work(flops, _plus(inputs.size(index), size), size, inputs.precision(table))


@FAMILY.model("aten::embedding")
def _embedding(inputs: Inputs) -> Work:
    """`embedding(weight, indices, …)`: the rows that the indices name, one that is named twice read twice."""
    return _gathered(inputs, 0, 1, inputs.shape(0, 2)[1])


@FAMILY.model("aten::gather", "aten::take")
def _gather(inputs: Inputs) -> Work:
    """`gather(input, dim, index)` and `take(input, index)`: an element for each index."""
    return _gathered(inputs, 0, tensors(inputs)[1], 1)


@FAMILY.model("aten::index_select")
def _selected(inputs: Inputs) -> Work:
    """`index_select(input, dim, index)`: a slice of the input for each index."""
    shape = inputs.shape(0)
    if len(shape) > 1 and len(inputs.concrete) < 2:
        return Work(0, inputs.size(2), None)  # old profilers: across which dimension was not recorded
    side = shape[inputs.number(1)] if len(shape) > 1 else shape[0]
    return _gathered(inputs, 0, 2, prod(shape) // max(side, 1))


def _scattered(inputs: Inputs, index: int, source: int, *, adds: bool) -> Work:
    """The work of writing elements to places of the first input, or of adding them to what stands there."""
    count = inputs.elements(source if is_tensor(inputs, source) else index)
    written = made(count, inputs.itemsize(0))
    read = _plus(inputs.size(index), bytes_of(inputs, [source]), written if adds else 0)
    return Work(of_sums(inputs, 0, count) if adds else 0, read, written, inputs.precision(0))


@FAMILY.model("aten::scatter_")
def _scatter(inputs: Inputs) -> Work:
    """`scatter_(self, dim, index, source)`."""
    return _scattered(inputs, 2, 3, adds=False)


@FAMILY.model("aten::scatter", "aten::scatter_add", "aten::index_add", "aten::index_copy")
def _scattered_in_a_copy(inputs: Inputs) -> Work:
    """The same into a copy of the first input; how many elements of it are kept is not looked at, nor are additions."""
    return Work(None, bytes_of(inputs, (0, 2, 3)), inputs.size(0), inputs.precision(0))


@FAMILY.model("aten::scatter_add_", "aten::index_add_")
def _scatter_add(inputs: Inputs) -> Work:
    """`scatter_add_(self, dim, index, source)`: 1 FLOP for each element of the source."""
    return _scattered(inputs, 2, 3, adds=True)


@FAMILY.model("aten::index_copy_")
def _index_copy(inputs: Inputs) -> Work:
    """`index_copy_(self, dim, index, source)`."""
    return _scattered(inputs, 2, 3, adds=False)


@FAMILY.model("aten::embedding_dense_backward")
def _embedding_back(inputs: Inputs) -> Work:
    """`embedding_dense_backward(grad, indices, num_weights, …)`: a table of zeros to which each row is added."""
    rows = inputs.number(2) if len(inputs.concrete) > 2 else None
    width = inputs.itemsize(0)
    written = None if rows is None else made(rows * inputs.shape(0)[-1], width)
    return Work(inputs.elements(0), bytes_of(inputs, (0, 1)), written, inputs.precision(0))


@FAMILY.model("aten::_embedding_bag_dense_backward")
def _bag_back(inputs: Inputs) -> Work:
    """`_embedding_bag_dense_backward(grad, indices, offset2bag, bag_size, maximum_indices, num_weights, scale, mode, per_sample_weights, …)`.

    A table of zeros, to which the gradient of its bag is added for each index. In the mode of the largest each element of the gradient
    belongs to one row.
    """
    rows, width = inputs.number(5), inputs.shape(0, 2)[1]
    most = inputs.number(7) == _MOST
    flops = inputs.elements(0) if most else inputs.elements(1) * width * (1 + is_tensor(inputs, 8))
    read = bytes_of(inputs, (0, 4) if most else (0, 1, 2, 8))
    return Work(flops, read, made(rows * width, inputs.itemsize(0)), inputs.precision(0))


_MOST: Final = 2
"""The mode in which a bag takes the largest of its rows."""


@FAMILY.model("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
def _bag(inputs: Inputs) -> Work:
    """`_embedding_bag(weight, indices, offsets, scale, mode, sparse, per_sample_weights, include_last_offset, …)`.

    1 FLOP for each element of a row that is added, one more with weights. What it writes beside the bags is left out.
    """
    width = inputs.shape(0, 2)[1]
    rows = inputs.elements(1) * width
    read = _plus(made(rows, inputs.itemsize(0)), bytes_of(inputs, (1, 2, 6)))
    told = len(inputs.concrete) > 7
    flops = rows * (1 + is_tensor(inputs, 6)) if told else None
    bags = inputs.elements(2) - inputs.flag(7) if told else None
    written = None if bags is None else made(bags * width, inputs.itemsize(0))
    return Work(0 if told and inputs.number(4) == _MOST else flops, read, written, inputs.precision(0))


def _same(written: int) -> Model:
    """The model of an operator that writes so many bytes for each element of its first input."""

    def work(inputs: Inputs) -> Work:
        return Work(None, inputs.size(0), inputs.elements(0) * written)

    return work


def _rowwise(inputs: Inputs) -> Work:
    """`FloatToFP8RowwiseQuantized(input, forward)`: a byte for each number, and two numbers of 4 bytes for each row."""
    rows = prod(inputs.shape(0, 2)[:-1])
    return Work(None, inputs.size(0), inputs.elements(0) + 8 * rows)


def _rowwise_back(inputs: Inputs) -> Work:
    """`FP8RowwiseQuantizedToFloat(input, forward)`."""
    rows = prod(inputs.shape(0, 2)[:-1])
    return Work(None, inputs.size(0), 4 * (inputs.elements(0) - 8 * rows))


FAMILY.model("fbgemm::FloatToFP8RowwiseQuantized")(_rowwise)
FAMILY.model("fbgemm::FP8RowwiseQuantizedToFloat")(_rowwise_back)
FAMILY.model("fbgemm::FloatToHFP8Quantized")(_same(1))
FAMILY.model("fbgemm::HFP8QuantizedToFloat")(_same(4))
FAMILY.model("fbgemm::permute_pooled_embs_auto_grad", "fbgemm::permute_pooled_embs")(_same(4))
FAMILY.matching(r"torch::autograd::CppNode<fbgemm_gpu::PermutePooledEmbsFunction.*")(_same(4))
