"""Which category a device activity belongs to: by the operator that launched it first, by its own name second.

Each table is ordered; the first pattern that matches wins. Patterns are case-insensitive Rust regular expressions
(no look-around), applied to distinct names only.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "AUTOGRAD_NODE",
    "COMMUNICATION",
    "DMA",
    "KERNEL_RULES",
    "OPERATOR_RULES",
    "OPTIMIZER_RANGE",
    "OPTIMIZER_UPDATE",
    "ORDINARY_INSTRUCTIONS",
    "QUALIFIERS",
    "TENSOR_CORE",
    "TF32",
    "VIEWS",
]

QUALIFIERS: Final[tuple[tuple[str, str], ...]] = (
    (r"::(\{lambda[^}]*\}|\[lambda[^\]]*\]|operator ?(const)?)", ""),
    (r"<unnamed>::", ""),
    # A function or a functor without a name of its own is called by the namespace around it.
    (r"(\w+)::(kernel|globalKernel|functor|dispatch|combine)([<,> ]|$)", "${1}_${2}${3}"),
    (r"\b\w*::", ""),
    (
        r"([<,] ?)(const )?(\w*(_t|_traits|Type|Params|Args|Policy\w*|Layout|Traits|Coord|Shape)|cublas\w+|(Load|Store)WithCast|\w*Calculator)\b",
        "$1",
    ),
)
"""What goes from a kernel's name, after all that stands in parentheses, before a rule may match it: calls of lambdas, namespaces and
the types of data, which say how a kernel was built, not what it does."""

COMMUNICATION: Final = (
    r"nccl\w*Kernel|rccl|msccl|cross_device_(reduce|store)|all_?reduce_(kernel|fusion|prototype|one_?shot|two_?shot)"
    r"|(one|two)_?shot_?all_?reduce|custom_?all_?reduce|multimem_|symm_mem|all_?gather_(kernel|lastdim)|reduce_?scatter_(kernel|cross)"
    r"|all_?to_?all_?kernel|int(er|ra)node(_ll)?_(dispatch|combine)|notify_(dispatch|combine)|nvshmem|oneccl|hccl|barrier_on_stream|quick_?(all_?)?reduce"
    r"|userbuffers|^gloo:|^_?c10d(_functional(_autograd)?)?::"
)
"""Collectives and point-to-point by kernel name (without a device: by operator); symmetric-memory and custom all-reduce kernels do not say nccl."""

DMA: Final = r"^dma"
"""Requests to the copy engine of MTIA, which stand among its kernels."""

VIEWS: Final = (
    "view|_?unsafe_view|reshape|_reshape_alias|as_strided|t|squeeze|unsqueeze|select|slice|narrow|detach|alias|unbind|split|"
    "split_with_sizes|chunk|unfold|flatten|unflatten|movedim|swapaxes|empty|lift_fresh|item|is_nonzero|resolve_conj|resolve_neg"
)
"""Operators of PyTorch, without their namespace, that move nothing by themselves: views, empty tensors, reads of a value."""

AUTOGRAD_NODE: Final = r"^(?:autograd::engine::evaluate_function: )?(\w+?)Backward\d*$"
"""A node of the backward graph, alone or as the engine calls it; the group is the forward operator in camel case."""

OPTIMIZER_RANGE: Final = r"^Optimizer\.step#"
OPTIMIZER_UPDATE: Final = r"^Optimizer\.step#([^L]|L[^B])"
"""Those in which parameters are updated and no more: LBFGS runs the model in its steps."""

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
    ("gemm", r"^fbgemm::(\w*gemm|f8f8|f8i4|bf16i4|bf16bf16|i8i8)|^(quantized|mkldnn|onednn)::_?q?linear"),
    ("sort", r"topk_softmax|grouped_topk|moe_align"),
    ("elementwise", r"rotary|(^|[_:])rope(_|$)"),
    (
        "normalisation",
        r"^aten::(native_|_native_|cudnn_|miopen_|_fused_)?(batch_norm|layer_norm|group_norm|instance_norm|rms_norm)"
        r"|rms_?norm|layer_?norm|^aten::_(batch|weight)_norm",
    ),
    ("quantisation", r"quantize([^d]|$)|_quant(_|$)|^fbgemm::\w*(quantize|(To|_to_)\w*float)"),
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
        rf"|^aten::({VIEWS})(_\w*)?$"
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
    ("gemm", r"^triton_tem_fused_.*(mm|linear)|^gemm_fusion"),
    ("convolution", r"^triton_tem_fused_.*conv"),
    ("attention", r"^triton_tem_fused_.*(attention|sdpa)"),
    ("fused", r"^triton_(\w*_)?fused|^triton_[_\d]|^nvfuser_|_fusion(_\d+)*$"),
    # Names that a later rule would claim for a part of them: fbgemm holds gemm, pooled holds pool.
    (
        "embedding",
        r"split_embedding|permute_pooled|bounds_check_indices|linearize_index|_embedding_(codegen|bag)",
    ),
    # Without a device, operators that autograd runs itself.
    ("elementwise", r"torch::autograd::AccumulateGrad$"),
    ("copy", r"^detach_?$|_repack_"),
    (
        "optimizer",
        r"multi_tensor_apply|FusedAdam|FusedSgd|adam_?kernel|lamb_?kernel|kOptimizer|kPrecondition",
    ),
    # Mixtures of experts: choosing experts is a sort, moving the rows of tokens to them and back a gather.
    ("reduction", r"moe_(sum|reduc)|_cumsum"),
    ("embedding", r"^finalizeKernel|finalizeMoe|_finalize_matmul_scatter|expandInputRows|moe_(un)?permute"),
    ("quantisation", r"quant_moe_sort|MoeSmoothquant"),
    ("random", r"SamplingFrom|gumbel|_sample_kernel"),
    (
        "sort",
        r"topk|top_k|^routing[A-Z]|routing_compute|MoeRouting|moe_?(align|sort)|sort_quant|Expert(PrefixSum|Maps)|sort_expert",
    ),
    (
        "normalisation",
        r"batch_?norm|layer_?norm|group_?norm|instance_?norm|weight_?norm|rms_?norm|[lqk][12]?norm_|rms_normalize|_norm_(rope|quant)|bn(orm)?_(fw|bw)|(^|_)ln_(fwd|bwd)"
        r"|(^|_)lnorm|RowwiseMoments|GammaBeta|cuCompute(Part)?Grad|qknorm",
    ),
    (
        "attention",
        r"flash_?(fwd|bwd|attn|attention|mla)|fmha|attention|attn|(^|_)mha_|sdpa|paged_?(attn|kv|decode|prefill|mqa)|mqa_logits|kv_?cache"
        r"|_kv_buffer|reshape_and_cache|concat_and_cache|merge_?states|reduce_segments|(^|_)mla_|(^|_)sage_fwd|qk_int\d*_sv|gemm_softmax_gemm"
        r"|fwd_(grouped_)?kernel_(stage|splitK)|^_splitK_reduce|^_(fwd|bwd)_kernel$|^pa_[bf]|ms_deform",
    ),
    ("elementwise", r"rotary|rope(_|\W|\d|$|kernel|quant|update)|_sbhd_cached"),
    (
        "rnn",
        r"rnn|lstm|gru_|persist_(fp|bp)|selective_(scan|state)|chunk_(scan|state)|state_passing|delta_rule|^chunk_(fwd|bwd)_"
        r"|recompute_w_u|16x16_to_\d+x\d+_inverse",
    ),
    (
        "convolution",
        r"conv([^e]|$)|_[sh]cudnn_|implicit_gemm|winograd|_wino_|wgrad|dgrad|fprop|igemm_(fwd|bwd|wrw)|miopen(Conv|SP3|Ig)|Im2d2Col|col2im|im2col"
        r"|nchwToNhwc|nhwcToNchw|computeOffsetsKernel|fft2d_",
    ),
    (
        "gemm",
        r"^gemm|[^b]gemm|[^f]bgemm|gemv|marlin|machete|fused_?moe|fmoe|mfma|flatmm|Cijk_|cutlass_\d|xmma_|ampere_\w*_(s|h|bf)\d+|matmul|mul_mat"
        r"|nvjet|_mm(_|$)|^mm_kernel|einsum|(^|_)bmm_|inner_product|lora_(shrink|expand)|sp?m[mv]_kernel|csrm[mv]|splitKreduce|wmma|dot_kernel|wvSplitK"
        r"|impl_globalKernel",
    ),
    (
        "quantisation",
        r"quant(i[sz]|_|\W|\d|$|int|kernel)|cvt_\w+_to_fp\d|^MeanScaleKernel|(rowwise|8bit|fp8)\w*_to_float|_to_h?fp8|_qparam_|fused8bit|segmented_max_reduction",
    ),
    ("softmax", r"soft_?max"),
    (
        "embedding",
        r"embedding|indexSelect|index_select|index_put|indexing_backward|gather|scatter([^i]|$)|index_elementwise|indexFuncLarge|permute_2D|masked_select|index_kernel|index_(fill|add|copy)|IndexKernel|nonzero|get_rows|DeviceSelect|DeviceCompact|DevicePartition|partition_kernel",
    ),
    ("sort", r"sort|MergeAgent|KthValue|^compute(Block|Digit)|nms|radix|bitonic|unique|merge_?by_?key"),
    ("pooling", r"pool|upsample|grid_sampl|roi_align"),
    (
        "random",
        r"distribution_?(elementwise|nullary|unary|binary)|multinomial|dropout|philox|curand|(^|_)rng_|bernoulli|random|uniform_and_transform|normal_and_transform",
    ),
    ("elementwise", r"masked_fill"),
    (
        "copy",
        r"copy|CatArray|cat_kernel|transpose|permute|memcpy|memset|fill|_cast|convert|reorder|pad_|arange|reshape|chunk_cat|_to_(copy|dense|jagged|padded|float|half|bf16|fp\d)|SubTensorOp|SwapDimension|ShuffleInTensor|Tensor(Conversion|Padding|Slicing)Op",
    ),
    (
        "reduction",
        r"reduce|reduction|sum_kernel|^_sum_|norm_kernel|mean(_|Ops|Kernel|\W|$)|argmax|argmin|cumsum|scan(_|Kernel|Agent|Init)|ParallelScan|loss|cross_?entropy|BiasGrad|kldiv|_jsd_",
    ),
    (
        "elementwise",
        r"elementwise|elemwise|pointwise|eltwise|Cwise|gelu|silu|relu|swiglu|geglu|sigmoid|tanh|act_and_mul|activation|MIOpen(Neuron|Active)|TensorIterator"
        r"|(bi|u)nary(_?(op|func|transform|kernel)|$)|tril_triu|lpnorm|CUDAFunctor|masked|penalt|axpy|broadcast|OpTensor|Op\dd?Tensor|op_generic_tensor"
        r"|(^|_)(add|sub|mul|div|scale|triad)_(kernel|arrays?)|^cupy_\w+__(float|u?int|bool|complex)",
    ),
)
"""Kernel name → category, for kernels whose operator is unknown or says nothing."""

TENSOR_CORE: Final = (
    r"tensorop|s[0-9]{3,6}gemm|h[0-9]{3,6}gemm|s[0-9]+(fprop|dgrad|wgrad)|xmma|wmma|wgmma|mma_|_hmma|_bf16_|f16_s[0-9]|16816|1688|884|imma|nvjet"
    r"|_MI[0-9]+x[0-9]+x[0-9]+|mfma|flash_?(fwd|bwd)|fmha|_tc_|tensor_?core|cutlass_[0-9]+_[0-9A-Za-z_]*op|gmma"
)
"""Names of kernels that run on tensor or matrix cores, if they do not name the instructions of ordinary units."""

ORDINARY_INSTRUCTIONS: Final = r"(?i)_ffma_"
"""As in `sm80_xmma_gemm_f32f32_f32f32_f32_…_ffma_…`, which cuBLAS and cuDNN launch for fp32 without TF32."""

TF32: Final = r"(?i)tf32|s1688|_1688"
"""Kernels that multiply fp32 inputs in TF32."""
