"""Recurrent layers: every matrix of weights meets every element of the sequence once, 2 FLOPs for each of its entries.

That holds for the products of the inputs and of the hidden states, with layers, directions and projections. Biases, gates and
activations of fused layers are not counted. Backward, the same again for the gradients of the inputs and, if asked for, for those of
the weights. The fused cells have one FLOP for each sum, product and activation of their gates.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

from tracekit.analyses.flops.work import Family, Inputs, Model, Work

__all__ = ["FAMILY"]

FAMILY: Final = Family("recurrent")


def _products(inputs: Inputs, weights: Sequence[Sequence[int]]) -> int:
    """FLOPs of one pass; vectors among the weights are biases. The sequence is (N, B, C), or packed (N, C)."""
    matrices = [weight for weight in weights if len(weight) == 2]
    sequence = inputs.shape(0, 2)
    if not matrices or matrices[0][1] != sequence[-1]:
        raise ValueError
    return 2 * prod(sequence[:-1]) * sum(map(prod, matrices))


def _bytes(width: int | None, *shapes: Sequence[int]) -> int | None:
    return None if width is None else width * sum(map(prod, shapes))


def _states(inputs: Inputs, places: Sequence[int]) -> list[list[int]]:
    """The states that were given: hidden, and of an LSTM the cells."""
    return [inputs.shape(place) for place in places if inputs.has(place)]


def _layers(weights: int, states: tuple[int, ...], two_ways: int) -> Model:
    """All layers and directions in one call, of a GPU's library; the weights are a list."""

    def work(inputs: Inputs) -> Work:
        matrices, given = inputs.tensors(weights), _states(inputs, states)
        sequence, width = inputs.shape(0, 2), inputs.itemsize(0)
        output = [*sequence[:-1], given[0][-1] * (1 + inputs.flag(two_ways))]
        return Work(
            _products(inputs, matrices),
            _bytes(width, sequence, *matrices, *given),
            _bytes(width, output, *given),
            inputs.precision(0),
            "matrix",
        )

    return work


FAMILY.model("aten::_cudnn_rnn")(_layers(1, (4, 5), two_ways=13))
FAMILY.model("aten::miopen_rnn")(_layers(1, (3, 4), two_ways=11))


@FAMILY.model("aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu", composite=True, arguments=9)
def _any(inputs: Inputs) -> Work:
    """`lstm(input, states, weights, …)`, or packed `lstm(input, sizes of the batches, states, weights, …)`."""
    packed = not inputs.given(3)
    weights, states = inputs.tensors(2 + packed), inputs.shapes[1 + packed]
    shapes = inputs.tensors(1 + packed) if states and isinstance(states[0], list) else [states]
    sequence, width = inputs.shape(0, 2), inputs.itemsize(0)
    output = [*sequence[:-1], shapes[0][-1] * (1 + inputs.flag(7 + packed))]
    return Work(
        _products(inputs, weights),
        _bytes(width, sequence, *weights, *shapes),
        _bytes(width, output, *shapes),
        inputs.precision(0),
        "matrix",
    )


def _layers_backward(states: tuple[int, ...], output: int, mask: int) -> Model:
    def work(inputs: Inputs) -> Work:
        matrices, wanted = inputs.tensors(1), inputs.flags(mask)[3]
        sequence, width, given = inputs.shape(0, 2), inputs.itemsize(0), _states(inputs, states)
        result = inputs.shape(output, 2)  # which is read with its gradient
        return Work(
            _products(inputs, matrices) * (1 + wanted),
            _bytes(width, sequence, *matrices, *given, result, result),
            _bytes(width, sequence, *given, *(matrices if wanted else ())),
            inputs.precision(0),
            "matrix",
        )

    return work


FAMILY.model("aten::_cudnn_rnn_backward")(_layers_backward((4, 5), output=6, mask=21))
FAMILY.model("aten::miopen_rnn_backward")(_layers_backward((4, 5), output=6, mask=20))


def _one_layer(*, biases: int, backward: bool) -> Model:
    """One direction of one layer on processors: `mkldnn_rnn_layer(input, weight, weight, bias, bias, states, …)`.

    Without biases, which a flag tells, the weights stand in their places as well.
    """

    def work(inputs: Inputs) -> Work:
        flops = _products(inputs, [inputs.shape(place, 2) for place in (1, 2)])
        sequence, state, width = inputs.shape(0, 2), inputs.shape(5), inputs.itemsize(0)
        output = [*sequence[:-1], state[-1]]
        tensors = inputs.sizes(range(7) if inputs.flag(biases) else (0, 1, 2, 5, 6))
        if backward:
            both = _bytes(width, output, output)
            read = None if tensors is None or both is None else tensors + both
            return Work(2 * flops, read, tensors, inputs.precision(0), "matrix")
        return Work(flops, tensors, _bytes(width, output, state, state), inputs.precision(0), "matrix")

    return work


FAMILY.model("aten::mkldnn_rnn_layer")(_one_layer(biases=12, backward=False))
FAMILY.model("aten::mkldnn_rnn_layer_backward")(_one_layer(biases=17, backward=True))


def _cell(gates: int, plain: int, biases: int) -> Model:
    """A cell, of whose gates the products were made before: `cell(input gates, hidden gates, state, input bias, hidden bias)`.

    `plain` is the number of FLOPs for each element of the state, `biases` how many more there are with biases.
    """

    def work(inputs: Inputs) -> Work:
        state = inputs.shape(2, 2)
        if inputs.shape(0) != [*state[:-1], gates * state[-1]] or inputs.shape(1) != inputs.shape(0):
            raise ValueError
        flops = prod(state) * (plain + (biases if inputs.has(3) else 0))
        # Written are the states, and for backward the gates.
        states = 2 if gates == 4 else 1
        kept = [*state[:-1], (4 if gates == 4 else 5) * state[-1]]
        written = _bytes(inputs.itemsize(0), *[state] * states, kept)
        return Work(flops, inputs.sizes(range(5)), written, inputs.precision(0))

    return work


# Of each gate a sum, five activations, and c = f·c + i·g, h = o·tanh(c).
FAMILY.model("aten::_thnn_fused_lstm_cell")(_cell(4, 4 + 5 + 4, biases=8))
# Of each gate a sum, r · hidden, three activations, and h = (h − n)·z + n.
FAMILY.model("aten::_thnn_fused_gru_cell")(_cell(3, 3 + 1 + 3 + 3, biases=6))
