"""The operators in the names of fused kernels."""

from __future__ import annotations

import pytest

from tracekit.analyses.attribution.fused_names import fused_operators


@pytest.mark.parametrize(
    ("kernel", "operators"),
    [
        ("triton_poi_fused__to_copy_1", ["_to_copy"]),
        ("triton_poi_fused_0", []),
        ("triton_poi_fused_constant_pad_nd_moe_forward_0", ["constant_pad_nd", "moe_forward"]),
        ("triton_red_fused__unsafe_view_add_mean_mul_pow_rsqrt_1", ["_unsafe_view", "add", "mean", "mul", "pow", "rsqrt"]),
        ("graph_0_cpp_fused_native_layer_norm_0", ["native_layer_norm"]),
        ("cpp_fused__softmax_div_12", ["_softmax", "div"]),
        ("triton_per_fused__softmax_backward_data_native_dropout_backward_7",
         ["_softmax_backward_data", "native_dropout_backward"]),
        ("triton_tem_fused_mm_4", ["mm"]),
        ("triton_poi_fused_gelu", ["gelu"]),
        ("triton_poi_fused_max_pool2d_with_indices_relu_3", ["max_pool2d_with_indices", "relu"]),
        ("triton_matmul_kernel", []),
        ("void at::native::vectorized_elementwise_kernel<4>", []),
        ("", []),
    ],
)  # fmt: skip
def test_names_are_told_apart(kernel: str, operators: list[str]) -> None:
    assert list(fused_operators(kernel)) == operators
