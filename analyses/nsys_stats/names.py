"""How Nsight Systems calls what other profilers call differently, in its reports."""

from __future__ import annotations

from typing import Final

__all__ = ["COPIES", "FILL", "PUSH_POP", "START_END", "STYLES"]

COPIES: Final = {
    "HtoD": "[CUDA memcpy Host-to-Device]",
    "DtoH": "[CUDA memcpy Device-to-Host]",
    "DtoD": "[CUDA memcpy Device-to-Device]",
    "PtoP": "[CUDA memcpy Peer-to-Peer]",
    "HtoH": "[CUDA memcpy Host-to-Host]",
    "HtoA": "[CUDA memcpy Host-to-Array]",
    "AtoH": "[CUDA memcpy Array-to-Host]",
    "AtoA": "[CUDA memcpy Array-to-Array]",
    "AtoD": "[CUDA memcpy Array-to-Device]",
    "DtoA": "[CUDA memcpy Device-to-Array]",
    "Unified HtoD": "[CUDA memcpy Unified Host-to-Device]",
    "Unified DtoH": "[CUDA memcpy Unified Device-to-Host]",
    "Unified DtoD": "[CUDA memcpy Unified Device-to-Device]",
}
"""Direction in the name of a copy, as Kineto and `Trace` write it, to the operation of NVIDIA's reports."""

FILL: Final = "[CUDA memset]"
PUSH_POP: Final = "PushPop"
START_END: Final = "StartEnd"
STYLES: Final = (PUSH_POP, START_END)
"""The styles of NVTX ranges."""
