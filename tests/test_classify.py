"""The category of realistic kernels: by collective, by operator, by kernel name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import polars as pl
import pytest
from paths import PUBLIC, PUBLIC_NSYS, ROOT, SAMPLES
from real_traces import traces

import tracekit
from tracekit.analyses.kernels import kernels
from tracekit.classify import activity_class, categorise
from tracekit.facts.kernel_rules import TENSOR_CORE
from tracekit.trace import COMPUTE_CATEGORIES

NAMES: Final = Path(__file__).parent / "data" / "kernel_names.txt"

# Kernel names as profilers write them, without a known operator; `NAMES` has those of more libraries.
KERNELS = {
    "gemm": [
        "ampere_sgemm_128x64_nn",
        "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn",
        "turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_tn_align2>(Params)",
        "void cutlass::Kernel<cutlass_80_simt_sgemm_128x128_8x4_nn_align1>(Params)",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>>>",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
        "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float>(params)",
        "void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>(params)",
        "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, __nv_bfloat16>",
        "void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensor<float const>>>(params)",
        "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN",
        "void ck::kernel_gemm_xdl_cshuffle_v3<ck::GridwiseGemm_xdl_cshuffle_v3>(Argument)",
        "triton_tem_fused_mm_3",
        "triton_tem_fused_addmm_relu_1",
        "void wvSplitKrc_<__hip_bfloat16, 64>(int)",
        "void marlin::Marlin<__nv_bfloat16, 256, 4, 16, 4>(int4 const*)",
        "void machete::prepacked_gemm<cutlass::bfloat16_t>",
        "fused_moe_kernel",
    ],
    "convolution": [
        "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16",
        "cudnn_ampere_scudnn_128x64_relu_xregs_large_nn_v1",
        "volta_scudnn_128x128_stridedB_splitK_small_nn_v1",
        "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int)",
        "void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int)",
        "void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1, false, true, true>(int)",
        "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized_bf16_256x64_32x4_nhwc_align8>(Params)",
        "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(params)",
        "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(params)",
        "void fft2d_r2c_32x32<float, false, 5u, true>(float2*)",
        "miopenSp3AsmConv_v30_3_1_gfx94x_fp32_f2x3_stride1",
        "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt128x128x32",
        "triton_tem_fused_convolution_0",
        "void at::native::im2col_kernel<float>(long, float const*)",
        "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3, float, int>(params)",
    ],
    "attention": [
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4>>(params)",
        "void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128>>(params)",
        "void flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128>>(params)",
        "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t>::Params)",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0",
        "attn_fwd",
        "attn_bwd_dk_dv",
        "void vllm::paged_attention_v2_kernel<__half, 128, 16>(params)",
        "kernel_unified_attention_2d",
        "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16>(params)",
        "triton_tem_fused_flex_attention_0",
        "void ck_tile::kentry<256, 2, ck_tile::FmhaFwdKernel<ck_tile::TileFmhaShape>>(params)",
    ],
    "normalisation": [
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)",
        "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<float, float>(long)",
        "void at::native::batch_norm_collect_statistics_kernel<at::native::InvStd, float>(params)",
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(cudnnTensorStruct)",
        "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>(float)",
        "void vllm::rms_norm_kernel<c10::BFloat16>(c10::BFloat16*)",
        "void vllm::fused_add_rms_norm_kernel<c10::Half, 8>(c10::Half*)",
        "void at::native::RowwiseMomentsCUDAKernel<float>(long)",
        "MIOpenBatchNormFwdTrainSpatial.kd",
        "void apex::layer_norm::cuApplyLayerNorm<float, float>(float*)",
    ],
    "softmax": [
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>(float*)",
        "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float>(params)",
        "void scaled_upper_triang_masked_softmax_warp_forward<c10::Half, c10::Half, float, 11>(params)",
    ],
    "embedding": [
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<float, long, unsigned int, 2, 2, -2, true>(params)",
        "void at::native::(anonymous namespace)::embedding_backward_feature_kernel<float, float, long>(params)",
        "void split_embedding_codegen_forward_unweighted_kernel<c10::Half, c10::Half, float, false, long, 2ul, 32ul>(params)",
        "void split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel_cta_per_row_1<c10::Half, float>(params)",
        "void split_embedding_backward_codegen_x_kernel<c10::Half>(at::PhiloxCudaState, fbgemm_gpu::FixedDivisor)",
        "void permute_pooled_embs_kernel<float>(float const*, long const*)",
        "void at::native::vectorized_gather_kernel<16, long>(char*)",
        "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel>(long)",
    ],
    "elementwise": [
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>>(int)",
        "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&)>(int)",
        "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float, at::native::MulFunctor>>(int)",
        "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel, true>(c10::BFloat16*)",
        "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)",
    ],
    "reduction": [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float>>>(params)",
        "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(params)",
    ],
    "sort": [
        "void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long, int, int>::Policy800, false>(int*)",
        "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(params)",
        "void at::native::bitonicSortKVInPlace<-2, -1, 16, 16, float, long>(params)",
        "void vision::ops::(anonymous namespace)::nms_kernel_impl<float>(int, double)",
    ],
    "pooling": [
        "void at::native::(anonymous namespace)::max_pool_forward_nchw<float, float>(int)",
        "void at::native::(anonymous namespace)::adaptive_average_pool<float>(float const*)",
        "void at::native::(anonymous namespace)::upsample_nearest2d_out_frame<float>(float const*)",
    ],
    "optimizer": [
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>>(params)",
        "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float, float, int>>(params)",
    ],
    "rnn": [
        "void LSTM_elementWise_fp<float, float, float, (cudnnRNNMode_t)2>(int)",
        "void at::native::(anonymous namespace)::kernel::lstm_cell_forward<float, float, int, 1>(params)",
        "_ZN5cudnn3rnn27RNN_blockPersist_fp_GRUI6__halfEE",
    ],
    "fused": [
        "triton_poi_fused__unsafe_view_mul_silu_2",
        "triton_red_fused_add_mean_mul_pow_rsqrt_0",
        "triton_per_fused__softmax_5",
    ],
    "copy": [
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>(int)",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 3, 64, 64>(float*)",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul>>(int)",
        "__amd_rocclr_fillBufferAligned.kd",
        "__amd_rocclr_copyBuffer.kd",
    ],
    "random": [
        "void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float, 4, uniform>(params)",
        "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float, float, unsigned int, 1, 4, bool>(params)",
    ],
    "communication": [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
        "void c10d::symmetric_memory::two_shot_all_reduce_kernel<c10::BFloat16>(params)",
        "void c10d::symmetric_memory::multimem_all_reduce_kernel<c10::BFloat16>(params)",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<bf16>(params)",
        "void deep_ep::intranode::dispatch<8, 768>(params)",
    ],
    "other": ["my_kernel", "void Foo::bar<float>(float*)"],
}

# The innermost operator around a launch decides before the kernel's name does.
OPERATORS = {
    "gemm": [
        "aten::mm",
        "aten::addmm",
        "aten::bmm",
        "aten::baddbmm",
        "aten::_scaled_mm",
        "aten::linear",
        "aten::_addmm_activation",
        "quantized::linear_dynamic",
        "mkldnn::_linear_pointwise",
    ],
    "convolution": [
        "aten::cudnn_convolution",
        "aten::miopen_convolution",
        "aten::convolution_backward",
        "aten::_conv_depthwise2d",
        "aten::conv2d",
        "aten::mkldnn_convolution",
    ],
    "attention": [
        "aten::_flash_attention_forward",
        "aten::_scaled_dot_product_efficient_attention",
        "flash_attn::_flash_attn_forward",
        "aten::_efficient_attention_backward",
    ],
    "normalisation": [
        "aten::native_layer_norm",
        "aten::cudnn_batch_norm",
        "aten::native_group_norm_backward",
        "_C::rms_norm",
        "_C::rms_norm_static_fp8_quant",
        "aten::native_batch_norm",
    ],
    "softmax": ["aten::_softmax", "aten::_log_softmax_backward_data"],
    "embedding": [
        "aten::embedding_dense_backward",
        "aten::index_select",
        "aten::gather",
        "aten::scatter_add_",
        "fbgemm::permute_pooled_embs_auto_grad",
        "fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function",
        "aten::index",
        "aten::nonzero",
    ],
    "elementwise": [
        "aten::add_",
        "aten::mul",
        "aten::relu_",
        "aten::threshold_backward",
        "aten::clamp_min",
        "aten::gelu_backward",
        "aten::where",
        "aten::addcdiv_",
        "_C::rotary_embedding",
    ],
    "reduction": [
        "aten::sum",
        "aten::mean",
        "aten::nll_loss_forward",
        "aten::linalg_vector_norm",
        "aten::cumsum",
    ],
    "sort": ["aten::sort", "aten::topk", "torchvision::nms", "_moe_C::topk_softmax"],
    "pooling": ["aten::max_pool2d_with_indices", "aten::adaptive_avg_pool2d", "aten::upsample_nearest2d"],
    "random": [
        "aten::normal_",
        "aten::native_dropout",
        "aten::randn",
        "aten::bernoulli_",
        "aten::native_dropout_backward",
    ],
    "copy": [
        "aten::copy_",
        "aten::cat",
        "aten::fill_",
        "aten::zero_",
        "aten::_local_scalar_dense",
        "aten::view",
        "aten::empty",
        "aten::as_strided",
        "aten::t",
        "aten::slice",
        "aten::detach",
    ],
    "quantisation": [
        "fbgemm::FloatToFP8RowwiseQuantized",
        "fbgemm::FP8RowwiseQuantizedToFloat",
        "_C::static_scaled_fp8_quant",
        "aten::quantize_per_tensor",
        "aten::fake_quantize_per_tensor_affine_cachemask",
    ],
    "optimizer": ["aten::_fused_adamw_", "aten::_foreach_add_", "aten::_fused_sgd_"],
    "rnn": ["aten::_cudnn_rnn", "aten::_thnn_fused_lstm_cell", "aten::miopen_rnn"],
    "fused": ["triton_poi_fused_add_0"],
    "other": ["my_ext::op", "torch::autograd::AccumulateGrad"],
}


def category(
    kind: str,
    name: str,
    operator: str | None = None,
    *,
    optimizer: bool = False,
) -> str:
    made = categorise(
        pl.Series([kind]),
        pl.Series([name], dtype=pl.Categorical()),
        pl.Series([operator], dtype=pl.String),
        pl.Series([optimizer]),
    )
    return str(made[0])


def of_kernels(names: Sequence[str]) -> dict[str, str]:
    """The category of each kernel, by its name alone."""
    count = len(names)
    made = categorise(
        pl.Series(["kernel"] * count),
        pl.Series(names, dtype=pl.Categorical()),
        pl.Series([None] * count, dtype=pl.String),
        pl.Series([False] * count),
    )
    return dict(zip(names, made.cast(pl.String).to_list(), strict=True))


@pytest.mark.parametrize("expected", KERNELS)
def test_kernel_names(expected: str) -> None:
    assert of_kernels(KERNELS[expected]) == dict.fromkeys(KERNELS[expected], expected)


def _names() -> dict[str, str]:
    """The names of the file, each with its category."""
    lines = [line.split(maxsplit=1) for line in NAMES.read_text("utf-8").splitlines()]
    chosen = (line for line in lines if line and not line[0].startswith("#"))
    return {name: "other" if category == "-" else category for category, name in chosen}


def test_names_of_libraries() -> None:
    expected = _names()
    assert len(expected) > 150
    assert of_kernels(list(expected)) == expected


@pytest.mark.parametrize("path", [*traces(*SAMPLES, *PUBLIC), *traces(*PUBLIC_NSYS)])
def test_nearly_all_time_of_every_trace_has_a_category(path: Path) -> None:
    for trace in tracekit.read_all(path):
        shares = dict(kernels(trace).by_category.select("category", "share").rows())
        assert shares.get("other", 0) <= 0.05


def test_every_category_is_documented_coloured_and_tested() -> None:
    text = (
        (ROOT / "docs" / "definitions.md").read_text("utf-8").split("**Category** of a compute activity:")[1]
    )
    documented = [word.strip() for word in text.partition(".")[0].split(",")]
    assert documented == list(COMPUTE_CATEGORIES)
    style = (ROOT / "tracekit" / "report" / "html" / "templates" / "report.css").read_text("utf-8")
    assert all(f"--c-{name}:" in style and f".k-{name}" in style for name in COMPUTE_CATEGORIES)
    assert set(_names().values()) >= set(COMPUTE_CATEGORIES)


@pytest.mark.parametrize("expected", OPERATORS)
def test_operators(expected: str) -> None:
    got = {name: category("kernel", "some_unknown_thing", name) for name in OPERATORS[expected]}
    assert got == dict.fromkeys(OPERATORS[expected], expected)


@pytest.mark.parametrize(
    ("kind", "name", "operator", "optimizer", "expected"),
    [
        # cuDNN's matrix product under a convolution is a convolution.
        ("kernel", "volta_sgemm_64x64_nt", "aten::cudnn_convolution", False, "convolution"),
        # A copy of the bias under addmm belongs to the product.
        (
            "kernel",
            "void at::native::vectorized_elementwise_kernel<4, direct_copy>",
            "aten::addmm",
            False,
            "gemm",
        ),
        # An operator that says nothing leaves the decision to the kernel.
        ("kernel", "ampere_sgemm_128x64_nn", "my_ext::op", False, "gemm"),
        # fbgemm in an argument's type makes no matrix product.
        ("kernel", "void my_kernel<float>(fbgemm_gpu::FixedDivisor)", None, False, "other"),
        # Whatever runs in Optimizer.step is the optimizer's, but not collectives and copies.
        (
            "kernel",
            "void at::native::vectorized_elementwise_kernel<4, AddFunctor>",
            "aten::add_",
            True,
            "optimizer",
        ),
        ("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "aten::add_", True, "communication"),
        # MTIA's requests to its copy engine stand among its kernels, whatever operator makes them.
        ("kernel", "DMA request", "aten::copy_", True, "memcpy"),
        ("memcpy", "Memcpy HtoD (Pageable -> Device)", "aten::copy_", True, "memcpy"),
        ("memset", "Memset (Device)", "aten::zero_", False, "memset"),
        ("op", "aten::mm", "aten::mm", False, "gemm"),
        ("op", "gloo:all_reduce", "gloo:all_reduce", False, "communication"),
    ],
)
def test_precedence(kind: str, name: str, operator: str | None, optimizer: bool, expected: str) -> None:
    assert category(kind, name, operator, optimizer=optimizer) == expected


def test_rows_keep_their_order_and_repeats() -> None:
    names = pl.Series(["attn_fwd", "ampere_sgemm_128x64_nn", "attn_fwd"], dtype=pl.Categorical())
    made = categorise(
        pl.Series(["kernel"] * 3), names, pl.Series([None] * 3, dtype=pl.String), pl.Series([False] * 3)
    )
    assert made.to_list() == ["attention", "gemm", "attention"]


def test_classes() -> None:
    frame = pl.DataFrame({"category": ["communication", "memcpy", "memset", "gemm", "other"]})
    classes = frame.select(activity_class()).to_series().to_list()
    assert classes == ["communication", "memory", "memory", "compute", "compute"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn", True),
        (
            "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8>(Params)",
            True,
        ),
        ("sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16", True),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", True),
        ("Cijk_Alik_Bljk_BBS_BH_MT256x192x64_MI16x16x1_SN", True),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>(params)", True),
        ("ampere_sgemm_128x64_nn", False),
        ("volta_sgemm_64x64_nt", False),
        ("void cutlass::Kernel<cutlass_80_simt_sgemm_128x128_8x4_nn_align1>(Params)", False),
        ("volta_scudnn_128x128_stridedB_splitK_small_nn_v1", False),
        ("void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int)", False),
        ("void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>(int)", False),
    ],
)
def test_names_of_tensor_core_kernels(name: str, expected: bool) -> None:
    assert pl.Series([name]).str.contains(f"(?i){TENSOR_CORE}").item() is expected
