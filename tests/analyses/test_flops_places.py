"""Models of operators that vector units and memory serve read each argument where torch's own schemas have it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tracekit.analyses.flops.pointwise import BACKWARD, COMPARISONS, POINTWISE
from tracekit.analyses.flops.work import models

ATEN = torch.ops.aten


@pytest.mark.parametrize(("table", "operands"), [(POINTWISE, 0), (BACKWARD, 0), (COMPARISONS, None)])
def test_tensors_stand_where_the_schemas_have_them(table: dict[Any, str], operands: int | None) -> None:
    for key, names in table.items():
        count = key if operands is None else key[0]
        for name in names.split():
            packet = getattr(ATEN, name)
            places: set[int] = set()
            for overload in packet.overloads():
                arguments = getattr(packet, overload)._schema.arguments
                given = [
                    place
                    for place, each in enumerate(arguments)
                    if not each.is_out and "Tensor" in str(each.type)
                ]
                out = [place for place, each in enumerate(arguments) if each.is_out]
                assert all(place >= count for place in out), name
                places.update(given)
            assert max(places) == count - 1, name


PLACES: dict[str, dict[int, str]] = {
    "native_layer_norm": {0: "input", 1: "normalized_shape", 2: "weight", 3: "bias"},
    "native_layer_norm_backward": {
        0: "grad_out",
        1: "input",
        3: "mean",
        4: "rstd",
        5: "weight",
        7: "output_mask",
    },
    "native_group_norm": {0: "input", 1: "weight", 2: "bias", 3: "N", 6: "group"},
    "native_group_norm_backward": {
        0: "grad_out",
        1: "input",
        2: "mean",
        3: "rstd",
        4: "weight",
        9: "output_mask",
    },
    **{
        name: {0: "input", 1: "weight", 2: "bias", 3: "running_mean", 4: "running_var", 5: "training"}
        for name in ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm")
    },
    "_native_batch_norm_legit": {0: "input", 1: "weight", 3: "running_mean", 5: "training"},
    "_batch_norm_with_update": {0: "input", 1: "weight", 2: "bias", 3: "running_mean", 4: "running_var"},
    "native_batch_norm_backward": {
        **{0: "grad_out", 1: "input", 2: "weight", 5: "save_mean", 6: "save_invstd", 9: "output_mask"}
    },
    "cudnn_batch_norm_backward": {0: "input", 1: "grad_output", 2: "weight", 5: "save_mean", 6: "save_var"},
    "miopen_batch_norm_backward": {0: "input", 1: "grad_output", 2: "weight", 5: "save_mean", 6: "save_var"},
    "_fused_rms_norm": {0: "input", 1: "normalized_shape", 2: "weight"},
    "_fused_rms_norm_backward": {0: "grad_out", 1: "input", 3: "rstd", 4: "weight", 5: "output_mask"},
    "_softmax": {0: "self", 2: "half_to_float"},
    "_softmax_backward_data": {0: "grad_output", 1: "output", 3: "input_dtype"},
    "nll_loss_forward": {1: "target", 2: "weight", 3: "reduction"},
    "nll_loss_backward": {0: "grad_output", 1: "self", 2: "target", 3: "weight"},
    "binary_cross_entropy": {3: "reduction"},
    "embedding": {0: "weight", 1: "indices"},
    "embedding_dense_backward": {0: "grad_output", 1: "indices", 2: "num_weights"},
    "_embedding_bag": {
        **{
            0: "weight",
            1: "indices",
            2: "offsets",
            4: "mode",
            6: "per_sample_weights",
            7: "include_last_offset",
        }
    },
    "max_pool2d_with_indices": {1: "kernel_size", 2: "stride", 3: "padding", 4: "dilation", 5: "ceil_mode"},
    "max_pool1d": {1: "kernel_size", 2: "stride", 3: "padding", 4: "dilation", 5: "ceil_mode"},
    "addr": {1: "vec1", 2: "vec2", 3: "beta"},
    "median": {1: "dim"},
    "max_pool2d_with_indices_backward": {0: "grad_output", 1: "self", 7: "indices"},
    "avg_pool2d": {1: "kernel_size", 2: "stride", 3: "padding", 4: "ceil_mode"},
    "avg_pool2d_backward": {0: "grad_output", 1: "self", 2: "kernel_size"},
    "upsample_nearest2d_backward": {0: "grad_output", 1: "output_size", 2: "input_size"},
    "index_select": {1: "dim", 2: "index"},
    "gather": {2: "index"},
    "scatter_add_": {2: "index", 3: "src"},
    "index_add_": {2: "index", 3: "source"},
    "topk": {1: "k", 2: "dim"},
    "cumsum": {1: "dim", 2: "dtype"},
    "_fft_r2c": {1: "dim", 3: "onesided"},
    "_fft_c2r": {1: "dim", 3: "last_dim_size"},
    "_chunk_cat": {0: "tensors", 3: "out"},
    "_fused_adam_": {1: "grads", 2: "exp_avgs", 3: "exp_avg_sqs", 4: "max_exp_avg_sqs", 9: "weight_decay"},
    "_fused_adamw_": {1: "grads", 2: "exp_avgs", 3: "exp_avg_sqs", 4: "max_exp_avg_sqs", 9: "weight_decay"},
    "_fused_sgd_": {2: "momentum_buffer_list", 3: "weight_decay", 4: "momentum", 7: "nesterov"},
    "_fused_adagrad_": {2: "state_sums", 6: "weight_decay"},
}


@pytest.mark.parametrize("name", PLACES)
def test_what_a_model_reads_stands_where_a_schema_has_it(name: str) -> None:
    places, packet = PLACES[name], getattr(ATEN, name)
    schemas = [[each.name for each in getattr(packet, it)._schema.arguments] for it in packet.overloads()]
    assert any({place: names[place] for place in places if place < len(names)} == places for names in schemas)


def test_the_operators_are_those_of_torch() -> None:
    families = ("pointwise", "normalisation", "reduction", "pooling", "movement", "optimizer")
    names = [name for name, each in models().items() if each.family in families and name.startswith("aten::")]
    assert len(names) > 300
    of_torch = [name.removeprefix("aten::").removesuffix(" (square)") for name in names]
    assert not [name for name in of_torch if not hasattr(ATEN, name)]
