"""Kernels as real profilers name them, the operators that launch them, and the category of each pair."""

from __future__ import annotations

from dataclasses import dataclass

_AT = "void at::native::"
_ANON = "void at::native::(anonymous namespace)::"


@dataclass(frozen=True)
class Work:
    """One kernel with the chain of operators around its launch, outermost first."""

    category: str
    kernel: str
    ops: tuple[str, ...]
    backward: tuple[str, ...] = ()  # autograd node, then its operators
    backward_kernel: str = ""
    weight: float = 1.0  # of its duration, relative to the configured range
    call: str = "cudaLaunchKernel"


def _cutlass(name: str, wrapper: str = "cutlass::Kernel2") -> str:
    return f"void {wrapper}<{name}>({name}::Params)"


LAYERS: tuple[Work, ...] = (
    Work(
        "gemm",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1"
        "_execute_segment_k_off_kernel__5x_cublas",
        ("aten::linear", "aten::addmm"),
        ("AddmmBackward0", "aten::mm"),
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_nt_n_tilesize128x64x64_warpgroupsize1x1x1"
        "_execute_segment_k_off_kernel__5x_cublas",
        weight=2.0,
        call="cudaLaunchKernelExC",
    ),
    Work(
        "gemm",
        _cutlass("cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_nn_align8"),
        ("aten::matmul", "aten::mm"),
        ("MmBackward0", "aten::mm"),
        _cutlass("cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x4_nt_align8"),
        weight=2.0,
    ),
    Work(
        "convolution",
        _cutlass(
            "cutlass_tensorop_bf16_s16816fprop_optimized_bf16_256x64_32x4_nhwc_align8",
            "cutlass__5x_cudnn::Kernel",
        ),
        ("aten::conv2d", "aten::convolution", "aten::_convolution", "aten::cudnn_convolution"),
        ("ConvolutionBackward0", "aten::convolution_backward"),
        "void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int, int, int, float const*, int, "
        "float*, float const*, kernel_grad_params, unsigned long long, int, float, int, int, int, int)",
        weight=2.0,
    ),
    Work(
        "elementwise",
        f"{_AT}vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul> >"
        "(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)",
        ("aten::add",),
        ("MulBackward0", "aten::mul"),
        f"{_AT}vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float, "
        "at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul> >(int, at::native::BinaryFunctor"
        "<float, float, float, at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul>)",
        weight=0.2,
    ),
    Work(
        "elementwise",
        f"{_AT}vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, "
        "at::native::GeluType)::{lambda()#2}::operator()() const::{lambda()#4}::operator()() const::"
        "{lambda(c10::BFloat16)#1}, std::array<char*, 2ul> >(int)",
        ("aten::gelu",),
        ("GeluBackward0", "aten::gelu_backward"),
        f"{_AT}vectorized_elementwise_kernel<4, at::native::GeluBackwardCUDAKernelImpl(at::TensorIteratorBase&, "
        "at::native::GeluType)::{lambda()#2}::operator()() const::{lambda(float, float)#1}, std::array<char*, 3ul> >(int)",
        weight=0.2,
    ),
    Work(
        "softmax",
        f"{_ANON}cunn_SoftMaxForward<8, c10::BFloat16, float, c10::BFloat16, "
        "at::native::(anonymous namespace)::SoftMaxForwardEpilogue>(c10::BFloat16*, c10::BFloat16 const*, int)",
        ("aten::softmax", "aten::_softmax"),
        ("SoftmaxBackward0", "aten::_softmax_backward_data"),
        f"{_ANON}cunn_SoftMaxBackward<8, c10::BFloat16, float, c10::BFloat16, "
        "at::native::(anonymous namespace)::SoftMaxBackwardEpilogue>(c10::BFloat16*, c10::BFloat16 const*, int)",
        weight=0.4,
    ),
    Work(
        "normalisation",
        f"{_ANON}vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float, c10::BFloat16 const*, "
        "c10::BFloat16 const*, c10::BFloat16 const*, float*, float*, c10::BFloat16*)",
        ("aten::layer_norm", "aten::native_layer_norm"),
        ("NativeLayerNormBackward0", "aten::native_layer_norm_backward"),
        f"{_ANON}layer_norm_grad_input_kernel_vectorized<c10::BFloat16, float>(c10::BFloat16 const*, "
        "c10::BFloat16 const*, float const*, float const*, c10::BFloat16 const*, c10::BFloat16*, int)",
        weight=0.4,
    ),
    Work(
        "normalisation",
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(cudnnTensorStruct, float const*, "
        "cudnnTensorStruct, float*, float const*, float const*, float, float, float*, float*, float*, float*)",
        ("aten::batch_norm", "aten::_batch_norm_impl_index", "aten::cudnn_batch_norm"),
        ("CudnnBatchNormBackward0", "aten::cudnn_batch_norm_backward"),
        "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>(float, float, float, float, "
        "cudnnTensorStruct, float const*, cudnnTensorStruct, float const*)",
        weight=0.4,
    ),
    Work(
        "attention",
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, "
        "cutlass::bfloat16_t>, false, true, false, false, true, true, false, false>(pytorch_flash::Flash_fwd_params)",
        (
            "aten::scaled_dot_product_attention",
            "aten::_scaled_dot_product_flash_attention",
            "aten::_flash_attention_forward",
        ),
        ("ScaledDotProductFlashAttentionBackward0", "aten::_flash_attention_backward"),
        "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<pytorch_flash::Flash_bwd_kernel_traits<64, "
        "128, 128, 8, 4, 4, 4, false, false, cutlass::bfloat16_t>, false, true>(pytorch_flash::Flash_bwd_params)",
        weight=1.5,
    ),
    Work(
        "embedding",
        f"{_ANON}indexSelectLargeIndex<c10::BFloat16, long, unsigned int, 2, 2, -2, true>(at::cuda::detail::"
        "TensorInfo<c10::BFloat16, unsigned int>, int, int, unsigned int, unsigned int, long)",
        ("aten::embedding", "aten::index_select"),
        ("EmbeddingBackward0", "aten::embedding_dense_backward"),
        f"{_ANON}embedding_backward_feature_kernel<float, float, long>(long const*, float const*, float*, int, long, int)",
        weight=0.3,
    ),
    Work(
        "reduction",
        f"{_AT}reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>, "
        "unsigned int, float, 4, 4> >(at::native::ReduceOp<float>)",
        ("aten::mean",),
        weight=0.2,
    ),
    Work(
        "copy",
        f"{_AT}elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda"
        "(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda(float)#1}> >(int)",
        ("aten::to", "aten::_to_copy", "aten::copy_"),
        weight=0.2,
    ),
    Work(
        "pooling",
        f"{_ANON}max_pool_forward_nchw<float, float>(int, float const*, long, long, long, int, int, int)",
        ("aten::max_pool2d", "aten::max_pool2d_with_indices"),
        weight=0.3,
    ),
    Work(
        "sort",
        f"{_AT}sbtopk::gatherTopK<float, unsigned int, 2, false>(at::cuda::detail::TensorInfo<float const, "
        "unsigned int>, unsigned int, unsigned int, bool, unsigned int, unsigned int)",
        ("aten::topk",),
        weight=0.3,
    ),
    Work(
        "random",
        f"{_ANON}distribution_elementwise_grid_stride_kernel<float, 4, at::native::templates::cuda::"
        "uniform_and_transform<float, float, 4ul, at::CUDAGeneratorImpl*> >(long, at::PhiloxCudaState)",
        ("aten::rand_like", "aten::uniform_"),
        weight=0.2,
    ),
)

OPTIMIZER = Work(
    "optimizer",
    f"{_ANON}multi_tensor_apply_kernel<at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>, "
    "at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4> >(at::native::(anonymous namespace)::"
    "FusedOptimizerTensorListMetadata<4>)",
    ("aten::_fused_adamw_",),
    weight=0.6,
)

TRITON = (
    "triton_poi_fused_add_gelu_0",
    "triton_red_fused_add_mean_mul_pow_rsqrt_1",
    "triton_per_fused__softmax_2",
)

GRAPH_KERNELS: tuple[tuple[str, str], ...] = (
    ("gemm", LAYERS[0].kernel),
    ("normalisation", LAYERS[6].kernel),
    ("attention", LAYERS[8].kernel),
    ("elementwise", LAYERS[3].kernel),
)

NCCL = (
    (
        "allreduce",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "nccl:all_reduce",
    ),
    (
        "_allgather_base",
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "nccl:_all_gather_base",
    ),
    (
        "reduce_scatter_tensor_coalesced",
        "ncclKernel_ReduceScatter_RING_SIMPLE_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        "nccl:reduce_scatter_tensor_coalesced",
    ),
)
CUSTOM_COMMUNICATION = (
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*, vllm::RankSignals, vllm::Signal*, "
    "__nv_bfloat16*, int, int)",
    "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long, "
    "unsigned int**, unsigned long, unsigned long)",
)

AMD_KERNELS = {
    "gemm": "Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT16x16x128_MI16x16x1_SN_LDSB0_AFC1_AFEM1_WG64_4_1",
    "convolution": "miopenSp3AsmConv_v30_3_1_gfx9_fp32_f3x2_stride1.kd",
    "attention": "attn_fwd.kd",
}
AMD_CALLS = {
    "cudaLaunchKernel": "hipLaunchKernel",
    "cudaLaunchKernelExC": "hipExtModuleLaunchKernel",
    "cuLaunchKernel": "hipModuleLaunchKernel",
    "cudaMemcpyAsync": "hipMemcpyWithStream",
    "cudaMemsetAsync": "hipMemsetAsync",
    "cudaGraphLaunch": "hipGraphLaunch",
    "cudaStreamSynchronize": "hipStreamSynchronize",
    "cudaDeviceSynchronize": "hipDeviceSynchronize",
    "cudaEventRecord": "hipEventRecord",
    "cudaStreamWaitEvent": "hipStreamWaitEvent",
    "cudaMalloc": "hipMalloc",
    "cudaStreamIsCapturing": "hipStreamIsCapturing",
}

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    "\"><svg/onload=alert('3')>",
    "javascript:alert(4)",
    "{{ 7 * 7 }} {% raw %} ${7*7}",
    "'; DROP TABLE kernels; --",
    "__import__('os').system('true')",
    "[bold red]not markup[/bold red] [link=file:///etc/passwd]x[/link]",
    "=cmd|'/C calc'!A0",
    "\u202eright-to-left\u202c é 中文 \U0001f525",
    "a" * 5_000,
    "",
)
"""Names that must come out of every renderer as plain text."""
