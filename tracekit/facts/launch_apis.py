"""Names of host calls that put work on a device, wait for it, or manage its memory (CUDA, ROCm and kin).

Names carry version suffixes (`_v7000`, `_ptsz`), so each table is a regular expression on the name's beginning. Here and in
other tables of names, letters and digits are those of ASCII: Polars compiles the classes of Unicode ten times as long.
"""

from __future__ import annotations

__all__ = [
    "ALLOCATION",
    "CAPTURE_BEGIN",
    "CAPTURE_END",
    "GRAPH_COPY",
    "GRAPH_LAUNCH",
    "KERNEL_LAUNCH",
    "LAUNCH",
    "MEMORY_LAUNCH",
    "RETURNED_MEMORY",
    "STREAM_WAIT_CALL",
    "SYNCHRONISATION",
]

KERNEL_LAUNCH = (
    r"^(cuda|cu|hip|hipExt|hipModule|hipExtModule|hipHccModule|hipDrv|musa|mu)"
    r"Launch([0-9A-Za-z_]*Kernel|Grid|ByPtr)"
    r"|^(cuda|cu)Launch(_(v[0-9]+|ptsz))*$"
    r"|^(urEnqueueKernelLaunch|piEnqueueKernelLaunch|zeCommandListAppendLaunch|runFunction)"
)
"""Calls that start one kernel: `cudaLaunchKernel`, `…ExC`, `cuLaunchKernelEx`, `hipExtModuleLaunchKernel`, …

`cudaLaunchHostFunc` is none of them: it puts a host function into the stream, which is no device activity.
"""

GRAPH_LAUNCH = r"^(cudaGraphLaunch|cuGraphLaunch|hipGraphLaunch)"
"""Calls that replay a captured graph: one call, many activities, one correlation id."""

CAPTURE_BEGIN = r"^(cuda|cu|hip)StreamBeginCapture"
"""Calls after which launches become nodes of a graph instead of work, …"""

CAPTURE_END = r"^(cuda|cu|hip)StreamEndCapture"
"""… until a call of these."""

GRAPH_COPY = r"^(cuda|cu|hip)Graph(Instantiate|Clone|ExecUpdate)"
"""Calls that copy the nodes of a graph: what is open around them says nothing of a single node."""

MEMORY_LAUNCH = (
    r"^(cuda|cu|hip|musa|mu)Mem(cpy|set)|^urEnqueueMem|^urEnqueueUSM(Memcpy|Fill)|^zeCommandListAppendMemory"
)
"""Calls that copy or fill memory."""

LAUNCH = f"{KERNEL_LAUNCH}|{GRAPH_LAUNCH}|{MEMORY_LAUNCH}"
"""Any call that puts work on a device."""

SYNCHRONISATION = (
    r"^(cuda|cu|hip|musa|mu)(Stream|Device|Event|Ctx)Synchronize|^cudaThreadSynchronize"
    r"|^(cudaMemcpy|cuMemcpy(DtoH|HtoD|DtoD)?|hipMemcpy(DtoH|HtoD)?|musaMemcpy)(_(v[0-9]+|ptds))*$|^hipMemcpyWithStream"
    r"|^(urEventWait|urQueueFinish|zeEventHostSynchronize|zeCommandQueueSynchronize)"
)
"""Calls in which the host waits until the device is done; blocking copies are among them."""

STREAM_WAIT_CALL = r"^(cuda|cu|hip|musa|mu)StreamWaitEvent"
"""Calls that make a stream wait for an event; the host does not wait."""

ALLOCATION = (
    r"^(cuda|hip|hipExt)(Malloc|Free|HostAlloc|HostMalloc|HostFree|HostRegister|HostUnregister)"
    r"|^(cu|hip)Mem(Alloc|Free|Create|Map|Unmap|Release|HostAlloc|SetAccess|AddressReserve|AddressFree)"
)
"""Calls that take device or pinned memory from the driver; `cudaFree` waits for the device as well."""

RETURNED_MEMORY = r"^(cuda|hip)Free(_|$)|^cuMem(Free|Unmap|Release)"
"""Those that give device memory back to the driver."""
