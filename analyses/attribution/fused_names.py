"""The operators in the name of a kernel that torch.compile fused.

Inductor names a kernel after the operators it was made of, `triton_poi_fused_add_native_layer_norm_3`: the kind of kernel, the operators
in alphabetical order joined by `_`, a number. The names of operators hold `_` themselves, so those of more than one word are listed here;
a word that is in none of them is an operator of one word.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

__all__ = ["fused_operators"]

_KERNEL: Final = re.compile(
    r"^(?:graph_\d+_)?(?:triton_(?:[a-z]{2,4}|split_scan|cooperative_red|mix_order_red)|cpp|triton)_fused_(?P<body>\w+?)(?:_(?P<n>\d+))?$"
)

_OF_SEVERAL_WORDS: Final = frozenset(
    """
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _fused_adam _fused_adamw _fused_sgd _log_softmax
    _log_softmax_backward_data _low_memory_max_pool2d_with_offsets _low_memory_max_pool_offsets_to_indices
    _native_batch_norm_legit _native_batch_norm_legit_functional _native_batch_norm_legit_no_training _safe_softmax
    _scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention _scaled_mm _softmax
    _softmax_backward_data _to_copy _unsafe_index _unsafe_index_put _unsafe_masked_index
    _unsafe_masked_index_put_accumulate _unsafe_view _weight_norm_interface adaptive_avg_pool2d adaptive_max_pool2d
    all_gather_into_tensor all_reduce as_strided as_strided_scatter avg_pool2d avg_pool2d_backward avg_pool3d batch_norm
    bernoulli_p binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor broadcast_in_dim
    broadcast_tensors clamp_max clamp_min constant_pad_nd convert_element_type convolution_backward copy_
    cudnn_batch_norm diagonal_scatter div_ elu_backward embedding_backward embedding_dense_backward empty_like
    empty_strided expand_as fill_ floor_divide full_like gelu_backward ge_ glu_backward group_norm hardsigmoid_backward
    hardswish_backward hardtanh_backward huber_loss huber_loss_backward index_add index_copy index_fill index_put index_put_ index_select
    inductor_force_stride_order inductor_lookup_seed inductor_random inductor_randint inductor_seeds layer_norm
    leaky_relu leaky_relu_backward log_sigmoid_forward log_softmax logical_and logical_not logical_or logical_xor
    logit_backward masked_fill masked_scatter masked_select max_pool2d max_pool2d_with_indices
    max_pool2d_with_indices_backward moe_forward mse_loss mse_loss_backward mul_ nan_to_num native_batch_norm
    native_batch_norm_backward native_dropout native_dropout_backward native_group_norm native_group_norm_backward
    native_layer_norm native_layer_norm_backward new_empty new_empty_strided new_full new_ones new_zeros nll_loss
    nll_loss2d_forward nll_loss_backward nll_loss_forward ones_like pixel_shuffle pixel_unshuffle rand_like randn_like
    reduce_scatter_tensor reflection_pad2d relu_ repeat_interleave replication_pad2d rms_norm scalar_tensor scatter_add
    scatter_reduce select_backward select_scatter sigmoid_backward silu_backward slice_backward slice_scatter
    smooth_l1_loss smooth_l1_loss_backward softplus_backward split_with_sizes split_with_sizes_copy squeeze_ std_mean sub_ sum_ tanh_backward
    threshold_backward topk_ triton_kernel_wrapper_functional triton_kernel_wrapper_mutation upsample_bicubic2d
    upsample_bilinear2d upsample_nearest2d upsample_nearest2d_backward var_mean view_as_complex view_as_real wait_tensor
    where_ zeros_like
    """.split()  # noqa: SIM905 - as a table of one word a line it would take four pages
)
_LONGEST: Final = max(name.count("_") for name in _OF_SEVERAL_WORDS) + 1


@lru_cache(maxsize=4096)
def fused_operators(kernel: str) -> tuple[str, ...]:
    """The operators that a fused kernel was made of; none for a kernel of another kind.

    >>> fused_operators("triton_red_fused__to_copy_add_native_layer_norm_3")
    ('_to_copy', 'add', 'native_layer_norm')
    >>> fused_operators("ampere_sgemm_128x64_tn")
    ()
    """
    match = _KERNEL.match(kernel)
    if match is None or match["body"].isdigit():
        return ()
    words = match["body"].split("_")
    names: list[str] = []
    at = 0
    while at < len(words):
        name, used = _first(words, at)
        if name:
            names.append(name)
        at += used
    return tuple(names)


def _first(words: list[str], at: int) -> tuple[str, int]:
    """The longest listed name that begins here, else one word; an empty word is a name's leading `_`."""
    for length in range(min(_LONGEST, len(words) - at), 1, -1):
        joined = "_".join(words[at : at + length])
        if joined in _OF_SEVERAL_WORDS:
            return joined, length
    if not words[at] and at + 1 < len(words) and words[at + 1]:
        return f"_{words[at + 1]}", 2
    return words[at], 1
