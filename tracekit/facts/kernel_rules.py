"""Which category a device activity belongs to: by the operator that launched it first, by its own name second.

Each table is ordered; the first pattern that matches wins. Patterns are case-insensitive Rust regular expressions
(no look-around), applied to distinct names only.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "AUTOGRAD_NODE",
    "COMMUNICATION",
    "KERNEL_RULES",
    "OPERATOR_RULES",
    "OPTIMIZER_RANGE",
    "TENSOR_CORE",
]

COMMUNICATION: Final = (
    r"nccl|rccl|cross_device_reduce|all_?reduce_(kernel|one_shot|two_shot)|one_?shot_?all_?reduce|two_?shot_?all_?reduce"
    r"|multimem_(all|one_shot)|symm_mem|custom_?all_?reduce|allreduce_fusion|all_?gather_kernel|reduce_?scatter_kernel"
    r"|alltoall|all_to_all|deep_?ep::|nvshmem|msccl|quickreduce|quick_?all_?reduce|^gloo:|^c10d::"
)
"""Collectives and point-to-point by kernel name (without a device: by operator); symmetric-memory and custom all-reduce kernels do not say nccl."""

AUTOGRAD_NODE: Final = r"^(?:autograd::engine::evaluate_function: )?(\w+?)Backward\d*$"
"""A node of the backward graph, alone or as the engine calls it; the group is the forward operator in camel case."""

OPTIMIZER_RANGE: Final = r"^Optimizer\.step#"

OPERATOR_RULES: Final[tuple[tuple[str, str], ...]] = (
    ("gemm", r"^triton_tem_fused_.*(mm|linear)"),
    ("convolution", r"^triton_tem_fused_.*conv"),
    ("attention", r"^triton_tem_fused_.*(attention|sdpa)"),
    ("fused", r"^triton_|^triton_kernel|^graph_\d+_(cpp|triton)_fused|^cpp_fused"),
    ("optimizer", r"^aten::_(fused_(adam|adamw|sgd|adagrad)|foreach_)|^(fused_adam|multi_tensor_)"),
    (
        "attention",
        r"scaled_dot_product|flash_attn|flash_attention|fmha|efficient_attention|_attention_|^attention",
    ),
    ("rnn", r"^aten::(_cudnn_rnn|_thnn_fused_lstm|_thnn_fused_gru|lstm|gru|rnn_|miopen_rnn|mkldnn_rnn)"),
    (
        "convolution",
        r"convolution|^aten::(slow_|thnn_)?conv\d?d?|conv_depthwise|^aten::mkldnn_conv|miopen_conv",
    ),
    (
        "gemm",
        r"^aten::(add|b|sparse_addm|_scaled_|_int_|_addmm_activation)?(mm|addmm|addmv|addbmm|baddbmm|mv|dot|vdot|matmul|linear|bmm|einsum"
        r"|mkldnn_linear|_scaled_mm|_grouped_mm|_scaled_grouped_mm|_weight_int\dpack_mm|_addmm_activation|ger)$",
    ),
    ("gemm", r"^fbgemm::(\w*gemm|f8f8|f8i4|bf16i4|bf16bf16|i8i8)"),
    ("copy", r"^fbgemm::\w*(quantize|(To|_to_)\w*float)"),
    (
        "normalisation",
        r"^aten::(native_|_native_|cudnn_|miopen_|_fused_)?(batch_norm|layer_norm|group_norm|instance_norm|rms_norm)"
        r"|rms_?norm|layer_?norm|^aten::_batch_norm",
    ),
    ("softmax", r"softmax"),
    (
        "embedding",
        r"embedding|^aten::(index|_index_put|index_put|index_select|gather|scatter|take|masked_select|masked_scatter"
        r"|nonzero|embedding_bag)(_|$)|^aten::_?index_put|permute_2D|fbgemm::|SplitLookupFunction|PermutePooledEmbs|BatchedUnaryEmbedding|^aten::index_add|^aten::index_copy",
    ),
    (
        "sort",
        r"^aten::(sort|topk|argsort|msort|unique|_unique|kthvalue|searchsorted|bucketize)|nms|^torchvision::nms",
    ),
    (
        "pooling",
        r"pool\dd|_pool|^aten::(max_pool|avg_pool|adaptive_)|upsample|interpolate|grid_sampler|^aten::im2col",
    ),
    (
        "random",
        r"^aten::(rand|normal_|uniform_|bernoulli|exponential_|random_|multinomial|native_dropout|_fused_dropout|dropout)",
    ),
    (
        "copy",
        r"^aten::(copy_|_to_copy|to|contiguous|clone|cat|_cat|stack|pad|constant_pad|transpose|permute|slice_backward|fill_|zero_|zeros|ones"
        r"|full|arange|flip|roll|repeat|expand|reflection_pad|chunk_cat|_chunk_cat|split_with_sizes_copy|new_\w+|resize_\w*|set_\w*)(_\w+)?$"
        r"|^aten::(view|_?unsafe_view|reshape|_reshape_alias|as_strided|t|squeeze|unsqueeze|select|slice|narrow|detach|alias|unbind|split"
        r"|split_with_sizes|chunk|unfold|flatten|unflatten|movedim|swapaxes|empty|lift_fresh|item|is_nonzero|resolve_conj|resolve_neg)(_\w*)?$"
        r"|fsdp::|^aten::_sparse_\w+_tensor|^aten::_local_scalar_dense|^aten::view_as",
    ),
    (
        "reduction",
        r"^aten::(sum|mean|max|min|amax|amin|argmax|argmin|norm|linalg_vector_norm|var|std|var_mean|prod|cumsum|cumprod|any|all|logsumexp"
        r"|nll_loss|cross_entropy|mse_loss|binary_cross_entropy|smooth_l1_loss|l1_loss|kl_div|count_nonzero|histc|bincount)(\w*)$",
    ),
    (
        "elementwise",
        r"^aten::(_?(add|sub|mul|div|rsub|addcmul|addcdiv|lerp|pow|sqrt|rsqrt|exp|log|log1p|sin|cos|tanh|sigmoid|relu|leaky_relu|gelu|silu"
        r"|hardswish|hardtanh|hardsigmoid|threshold|clamp|clamp_min|clamp_max|where|masked_fill|eq|ne|lt|le|gt|ge|neg|abs|reciprocal|sign"
        r"|floor|ceil|round|trunc|bitwise_\w+|logical_\w+|maximum|minimum|fmod|remainder|isnan|isinf|isfinite|erf|elu|celu|selu|mish|softplus"
        r"|prelu|glu|tril|triu|square|expm1|atan2|atan|acos|asin|nan_to_num|xlogy|_amp_\w+|floor_divide|true_divide|mul_add)"
        r"(_backward|_grad)?_?)$",
    ),
)
"""Operator name → category."""

KERNEL_RULES: Final[tuple[tuple[str, str], ...]] = (
    ("gemm", r"^triton_tem_fused_.*(mm|linear)"),
    ("convolution", r"^triton_tem_fused_.*conv"),
    ("attention", r"^triton_tem_fused_.*(attention|sdpa)"),
    ("fused", r"^triton_(poi|red|per|for|tem|spl|unk|mm|mix)?_?fused|^triton_"),
    # Names that a later rule would claim for a part of them: fbgemm holds gemm, pooled holds pool.
    (
        "embedding",
        r"split_embedding|permute_pooled|bounds_check_indices|linearize_index|_embedding_(codegen|bag)",
    ),
    # Without a device, operators that autograd runs itself.
    ("elementwise", r"torch::autograd::AccumulateGrad$"),
    ("copy", r"^detach_?$"),
    ("sort", r"[sm]btopk|gatherTopK"),
    ("elementwise", r"rotary|_rope_|rope_kernel"),
    ("optimizer", r"multi_tensor_apply|FusedAdam|FusedSgd|adam_kernel|lamb_kernel"),
    (
        "attention",
        r"flash_?(fwd|bwd|attn|attention|infer)|fmha|attn_fwd|attn_bwd|efficient_attention|attention|_attn_|mha_|fused_attn|paged_?attn|sdpa|FlashAttn|kv_?cache|reshape_and_cache",
    ),
    ("rnn", r"rnn|lstm|gru_|LSTM|GRU_elementWise|persist_(fp|bp)"),
    (
        "convolution",
        r"conv|_[sh]cudnn_|implicit_gemm|winograd|wgrad|dgrad|fprop|igemm_(fwd|bwd|wrw)|cudnn::(ops|cnn|detail|engines|ndNhwc)|miopen(Conv|SP3|Ig)|Im2d2Col|col2im|im2col"
        r"|nchwToNhwc|nhwcToNchw|computeOffsetsKernel|fft2d_",
    ),
    (
        "gemm",
        r"^gemm|[^b]gemm|[^f]bgemm|gemv|marlin|machete|fused_moe|Cijk_|cutlass|cublas|xmma|ampere_\w*_(s|h|bf)\d+|matmul|nvjet|_mm_|splitKreduce|wmma|wgmma|dot_kernel|hgemm|sgemm|ck::.*Gemm|ck_tile.*Gemm|mfma|wvSplitK",
    ),
    (
        "normalisation",
        r"batch_?norm|layer_?norm|group_?norm|instance_?norm|rms_?norm|bn_(fw|bw)_|RowwiseMoments|GammaBeta|LayerNorm|BatchNorm",
    ),
    ("softmax", r"soft_?max"),
    (
        "embedding",
        r"embedding|indexSelect|index_select|index_put|indexing_backward|gather|scatter|index_elementwise|indexFuncLarge|permute_2D|masked_select|index_kernel|_index_|IndexKernel|nonzero",
    ),
    ("sort", r"sort|topk|top_k|nms|radix|bitonic|unique|merge_?by_?key|DeviceSelect|DeviceScan|partition"),
    ("pooling", r"pool|upsample|grid_sampl|interp"),
    (
        "random",
        r"distribution_|dropout|philox|curand|rng|bernoulli|random|uniform_and_transform|normal_and_transform",
    ),
    (
        "copy",
        r"copy|CatArray|cat_kernel|transpose|permute|memcpy|memset|fill|FillFunctor|_cast|convert|pad_|arange|reshape|bfloat16_copy|chunk|_to_|unrolled_elementwise_kernel.*LoadWithCast|fillBuffer",
    ),
    (
        "reduction",
        r"reduce|reduction|sum_kernel|norm_kernel|mean|argmax|argmin|cumsum|scan_|nll_loss|loss|CrossEntropy",
    ),
    (
        "elementwise",
        r"elementwise|pointwise|gelu|silu|relu|sigmoid|tanh|act_and_mul|activation|TensorIterator|binary_op|unary|tril_triu|lpnorm|CUDAFunctor|rotary|rope|masked|axpy"
        r"|^cupy_\w+__(float|u?int|bool|complex)",
    ),
)
"""Kernel name → category, for kernels whose operator is unknown or says nothing."""

TENSOR_CORE: Final = (
    r"tensorop|s\d{3,6}gemm|h\d{3,6}gemm|s\d+(fprop|dgrad|wgrad)|xmma|wmma|wgmma|mma_|_hmma|_bf16_|f16_s\d|16816|1688|884|imma|nvjet"
    r"|_MI\d+x\d+x\d+|mfma|flash_?(fwd|bwd)|fmha|_tc_|tensor_?core|cutlass_\d+_\w*op|gmma"
)
"""Names of kernels that run on tensor or matrix cores."""
