"""What shows in a trace that a program uses PyTorch, or Python at all: names of ranges, kernels and functions.

Every pattern is a regular expression that is applied to distinct names only.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "LOW_PRECISION",
    "PYTHON_FUNCTION",
    "PYTHON_KERNEL",
    "PYTORCH_KERNEL",
    "PYTORCH_RANGE",
    "TEXT_FUNCTION",
    "TRAINING_KERNEL",
    "TRAITS",
    "UNNAMED_FUNCTION",
]

PYTORCH_RANGE: Final = (
    r"^(aten|autograd|c10d|prims|torch|torchvision|FSDP)::|^torch\.|^ProfilerStep#|^tracekit\.(layer|phase|step)/"
    r"|^Optimizer\.|^enumerate\(DataLoader\)#|^DistributedDataParallel\.|^\{'Module'|^autograd_backward"
)
"""Ranges that PyTorch, its tools for NVTX, and captures of tracekit make."""

PYTORCH_KERNEL: Final = r"\b(at|c10|c10d|torch)::|^triton_(poi|per|red|tem|mm)_"
"""Kernels of PyTorch's own, and what torch.compile writes."""

PYTHON_KERNEL: Final = r"\bcupy_|\bcudapy::|^_ZN6cudapy|\bnumba\b"
"""Kernels that packages of Python write while they run (CuPy, Numba)."""

PYTHON_FUNCTION: Final = r"(^|;)(_?PyEval_|Py_(RunMain|BytesMain|Main)(;|$)|_PyRun_|PyRun_)"
"""Functions of the interpreter, in a sampled call chain."""

TEXT_FUNCTION: Final = r"_dtoa$|printf|^_?PyUnicode|^PyOS_double_to_string|^_IO_default_xsputn|^_?PyBytes_Format|Dragon4|std::num_put"
"""Functions that format numbers and texts: of Python, NumPy and the standard libraries of C and C++."""

UNNAMED_FUNCTION: Final = r"^(0x[0-9a-fA-F]+|\[.*\])$"
"""An address without a symbol, or what nsys writes in place of a function (`[Broken backtraces]`, `[vdso]`)."""

TRAINING_KERNEL: Final = (
    r"(?i)backward|_bwd_|dgrad|wgrad|multi_tensor_apply|bwd_?(kernel|data|weight)|fused_?adam|adam_kernel"
)
"""Names of kernels of the backward pass and of optimizers."""

TRAITS: Final[dict[str, tuple[str, str | None]]] = {
    "training": (
        r"^autograd::engine::|^Optimizer\.step|^torch::autograd::|^\w+Backward[0-9]*$|^tracekit\.phase/(backward|optimizer)$"
        r"|^FSDP::[a-z_]*backward|^RegisterPostBackward|^torch\.distributed\.ddp\.reducer|(?i)^[^0-9A-Za-z_]*(backward|bwd|optimi[sz]er([ _.]?step)?)([ _]?pass)?[^0-9A-Za-z_]*$"
        r"|^autograd_backward",
        TRAINING_KERNEL,
    ),
    "sparse_gradients": (
        r"^aten::(_embedding_bag|embedding)_sparse_backward|^aten::_sparse_coo_tensor",
        None,
    ),
    "serving": (
        r"(?i)\bvllm[/\\.]|\bsglang[/\\.]|tensorrt_llm|^execute_(model|context|new)_|LLMEngine",
        r"(?i)\bvllm::|\bsglang::|tensorrt_llm::|paged_attention|unified_attention|reshape_and_cache",
    ),
    "compiled": (
        r"^Torch-Compiled Region|CompiledFxGraph|^CompiledFunction|\(dynamo_timed\)$",
        r"^(graph_[0-9]+_)?triton_([a-z]{2,4}|mix_order_red)_fused_|^nvfuser_",
    ),
    "sdpa": (
        r"^aten::_?scaled_dot_product",
        r"(?i)flash_?(fwd|attn|attention)|fmha|\bsdpa|attn_fwd|efficient_attention",
    ),
    "fused_attention": (
        r"^aten::_(flash_attention|efficient_attention|scaled_dot_product_(flash|efficient|cudnn))",
        r"(?i)flash_?(fwd|bwd|attn|attention)|fmha|attn_fwd|efficient_attention|unified_attention|paged_attention|sage_fwd",
    ),
    "fused_optimizer": (r"^aten::_fused_(adam|adamw|sgd|adagrad)_?$", r"(?i)fused_?(adam|sgd|lamb)"),
    "ddp": (r"^DistributedDataParallel\.|^torch::distributed::ddp|^torch\.distributed\.ddp", None),
    "fsdp": (r"^FSDP::|^FullyShardedDataParallel\.|_fsdp", None),
    "sync_batch_norm": (r"^SyncBatchNorm|^aten::batch_norm_gather_stats", None),
    "loader": (r"^enumerate\(DataLoader\)#|^tracekit\.phase/data$|torch[/\\]utils[/\\]data[/\\]", None),
    "workers": (r"_MultiProcessingDataLoaderIter", None),
    "amd": (r"^hip[A-Z]", r"(?i)^(hip|amd|rocblas|Cijk_|ck::|void ck::|miopen)"),
    "mtia": (r"(?i)\bmtia\b|^runFunction", r"(?i)\bmtia\b"),
}
"""What a run does, uses or runs on, by the names of host spans and of device activities (None: no such name shows it)."""

LOW_PRECISION: Final = (
    r"(?i)bf16|bfloat|f16|half|fp8|f8f8|e4m3|e5m2|mxfp4|nvfp4|int8|hgemm|h[0-9]+gemm"
    r"|^quantized::|^Cijk_[a-z]{4}_[a-z]{4}_(?:B|H|F8|I8)|\bnvjet_(?:sm[0-9]+_)?[htq]"
)
"""Matrix kernels, and without a device operators, that compute with 16 bits or fewer. Tensile's names say so after the indices (`BBS` and `B_BS` are bf16),
cuBLAS's nvjet kernels in their first letter (h: fp16, t: bf16, q: fp8)."""
