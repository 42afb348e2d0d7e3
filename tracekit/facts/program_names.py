"""What shows in a trace that a program uses PyTorch, or Python at all: names of ranges, kernels and functions.

Every pattern is a regular expression that is applied to distinct names only.
"""

from __future__ import annotations

from typing import Final

__all__ = ["PYTHON_FUNCTION", "PYTHON_KERNEL", "PYTORCH_KERNEL", "PYTORCH_RANGE", "UNNAMED_FUNCTION"]

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

UNNAMED_FUNCTION: Final = r"^(0x[0-9a-fA-F]+|\[.*\])$"
"""An address without a symbol, or what nsys writes in place of a function (`[Broken backtraces]`, `[vdso]`)."""
