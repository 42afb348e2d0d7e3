"""What a host span says about why a device waits: names of spans, API calls and Python frames (DEFINITIONS §4).

Every pattern is a regular expression that is applied to distinct names only. The names of API calls stand in
`facts.launch_apis`, ranges that load data in `facts.stack_names.PHASE_MARKERS`.
"""

from __future__ import annotations

from typing import Final

from tracekit.facts.units import NS_PER_US

__all__ = [
    "ASYNCHRONOUS_CALL_NS",
    "CAUSES",
    "COLLECTIVE_SPAN",
    "COMPILING_CALL",
    "COMPILING_FRAME",
    "COMPILING_SPAN",
    "DATA_FRAME",
    "DATA_OPERATOR",
    "DRIVER_WORK",
    "ENGINE_CALL",
    "FORWARDING_FRAME",
    "LIBRARIES",
    "MODULE_LOADING",
    "NODE_CALL",
    "NOT_AN_OPERATOR",
    "PAGEABLE_COPY",
    "PROFILER_FRAME",
    "PYTHON_FILE",
    "QUEUED",
    "RECORDING_FRAME",
    "RELEASING_FRAME",
    "SLEEPING_CALL",
    "UNNAMED_COPY",
    "VALUE_OPERATOR",
    "WAITING_CALL",
    "cause_name",
]

CAUSES: Final = (
    "synchronisation",
    "data_loading",
    "allocation",
    "launch_api",
    "compilation",
    "module_loading",
    "operator_dispatch",
    "library_call",
    "python",
    "host_code",
    "profiler_overhead",
    "collective_bookkeeping",
    "launch_latency",
    "dependency",
    "kernel_gap",
    "unexplained",
    "not_captured",
)
"""Why a device is idle; the first twelve are what the host did while it was late. `library_call` and
`host_code` take the places of `operator_dispatch` and `python` in a program that shows no PyTorch, and no Python."""

QUEUED: Final = ("kernel_gap", "dependency", "unexplained")
"""Those of gaps before work that the host had queued in time."""


def cause_name(cause: str) -> str:
    """The name of a cause in a sentence.

    >>> cause_name("data_loading"), cause_name("launch_api")
    ('data loading', 'launch calls')
    """
    return _SPOKEN.get(cause, cause.replace("_", " "))


_SPOKEN: Final = {
    "launch_api": "launch calls",
    "module_loading": "loading code onto the device",
    "library_call": "library calls",
    "python": "Python",
    "host_code": "host code outside recorded calls",
    "dependency": "another stream",
    "kernel_gap": "gaps between queued kernels",
    "unexplained": "unknown cause",
    "not_captured": "cause not captured",
}


VALUE_OPERATOR: Final = r"^aten::(item|_local_scalar_dense|is_nonzero)$"
"""Operators that bring one value of a tensor to Python, as `.item()`, `float()`, `bool()` and `if tensor:` do.

`aten::nonzero`, `aten::masked_select` and copies wait in an API call inside them; outside it they dispatch.
"""

DATA_OPERATOR: Final = r"^aten::_?pin_memory$"
"""Operators that prepare a batch for its way to the device."""

DATA_FRAME: Final = r"(^|[/\\])torch[/\\]utils[/\\]data[/\\]"
"""Python frames of the data loader; what it calls (a data set, its transforms) lies inside them."""

COLLECTIVE_SPAN: Final = (
    r"^(record_param_comms$|c10d::|nccl:|rccl:|gloo:|mpi:|ucc:|torch\.distributed\.ddp\.reducer::)"
)
"""Operators and ranges around the start of a collective."""

COMPILING_SPAN: Final = (
    r"^(TorchDynamo |AOTDispatcher Compil|create_aot_dispatcher_function|_compile\.|compile_fx"
    r"|entire_(frame|backward)_compile|backend_compile|inductor_compile|code_gen|Inductor|GraphLowering\.|Scheduler\."
    r"|OutputGraph\.|PyCodeCache|CachingAutotuner\.(benchmark|precompile)|async_compile\.|triton_compile|TorchScript compil"
    r"|Fusion(KernelRuntime::(compile|FusionKernelRuntime)|ExecutorCache::getKernelRuntimeFor)|SegmentCandidateFinder|GpuLower"
    r"|(executor_utils::)?(NVRTC|Nvrtc|nvrtc)|(CompiledKernel|KernelExecutor|ExecutorDispatch)::|miopenFind|MIOpen find"
    r"|(XLA|xla)(Compile|_compile| compil)|[Jj]it_?[Cc]ompil|dynamo$)|\(dynamo_timed\)$|::([Cc]ompile(Program|Kernel)?|buildProgram)$|^([Tt]riton|[Kk]ernel) compil"
)
"""Ranges of torch.compile, nvFuser, NVRTC, MIOpen, XLA and Triton that trace, search or compile."""

COMPILING_FRAME: Final = (
    r"(^|[/\\])torch[/\\](_dynamo[/\\](convert_frame|output_graph|symbolic_convert|guards)\.py"
    r"|_inductor[/\\](graph|scheduler|codegen[/\\].*)\.py"
    r"|fx[/\\](_symbolic_trace|proxy|interpreter|experimental[/\\].*|passes[/\\].*)\.py\([0-9]+\): [^i]"
    r"|jit[/\\](_trace|_script|_recursive|frontend)\.py\([0-9]+\): [^i]|utils[/\\]cpp_extension\.py"
    r"|onnx[/\\].*\.py\([0-9]+\): [^i])"
    r"|(^|[/\\])triton[/\\](compiler[/\\]|runtime[/\\](autotuner|build)\.py)"
)
"""Python frames that trace or compile; not those that only lead to compiled code (`_dynamo/eval_frame.py`), nor those that say whether
something is being traced (`is_tracing`).
"""

COMPILING_CALL: Final = (
    r"^(cu|hip)Link(Add|Create|Complete)|^nvrtc|^hiprtc"
    r"|^(cuda|cu|hip)(Graph(Instantiate|Exec|Create|Destroy|AddNode)|Stream(Begin|End)Capture)"
)
"""API calls that build code for the device, graphs among it."""

MODULE_LOADING: Final = (
    r"^(cu|hip)(Module(Load|Unload)|Library(Load|Unload|GetModule))"
    r"|^(Lazy Function Loading|Runtime Triggered Module Loading)"
)
"""API calls that load code to the device, and what CUPTI reports of such loading inside other calls."""

DRIVER_WORK: Final = r"^(Command Buffer Full|Resource Allocation|Launch Overhead)"
"""What CUPTI reports among the overhead although the driver does it; the call around it has the time."""

RELEASING_FRAME: Final = r"(^|[/\\])torch[/\\](cuda|xpu|mps)[/\\](memory|__init__)\.py\([0-9]+\): empty_cache"
"""Python frames that give cached memory back to the driver."""

ENGINE_CALL: Final = (
    r"(^|[/\\])torch[/\\]autograd[/\\]graph\.py\([0-9]+\): _engine_run_backward$"
    r"|^<built-in method run_backward of torch\._C\._EngineBase "
)
"""Python functions in which a thread waits for the autograd engine, which launches on threads of its own; it runs no Python."""

SLEEPING_CALL: Final = r"^<built-in (function|method) (sleep|pause|sigwait|sigtimedwait)\b|^time\.sleep$"
"""Python functions in which a thread sleeps."""

WAITING_CALL: Final = (
    r"^<built-in (method (acquire|__enter__) of \w+\.(lock|RLock|SemLock) |method (get|put) of _queue\."
    r"|method (poll|control) of select\.|method (_?accept|recv\w*) of (_?socket\.)?socket |method read of _ssl\."
    r"|function (select|wait\w*)>)"
    r"|(^|[/\\])(queue\.py\([0-9]+\): (get|put|join)|selectors\.py\([0-9]+\): select"
    r"|threading\.py\([0-9]+\): (wait|wait_for|acquire|join|_wait_for_tstate_lock)"
    r"|concurrent[/\\]futures[/\\]_base\.py\([0-9]+\): (result|exception|wait|as_completed)"
    r"|multiprocessing[/\\](connection\.py\([0-9]+\): (wait|poll|_poll|_recv|_recv_bytes|recv_bytes|accept)"
    r"|synchronize\.py\([0-9]+\): (acquire|wait)|popen_\w+\.py\([0-9]+\): (wait|poll))"
    r"|socket\.py\([0-9]+\): (accept|readinto)|subprocess\.py\([0-9]+\): (_?wait|_?communicate))$"
)
"""Python functions in which a thread waits for another thread, a process or a message: what they call waits, too."""

PROFILER_FRAME: Final = r"(^|[/\\])torch[/\\](profiler|autograd[/\\]profiler)\b"
"""Python frames of the profiler; the ranges that it offers (`record_function`) are among them."""

RECORDING_FRAME: Final = (
    r"(^|[/\\])tracekit[/\\]capture[/\\]"
    r"((marks[/\\]\w+|device|profiler|seen|sessions)\.py\(\d+\): |watch\.py\(\d+\): (after$|_[^i]|_is_))"
)
"""Python frames of tracekit's capture that mark steps, phases and layers; not `_in_phase` and `function`, which call the program's
own code."""

NODE_CALL: Final = r"^autograd::engine::evaluate_function"
"""Around each node of autograd and its hooks."""

NOT_AN_OPERATOR: Final = (
    r"^(DistributedDataParallel\.forward$|FSDP::|Torch-Compiled Region|## Call CompiledFxGraph|ProfilerStep#)"
)
"""Ranges that some versions list among the operators; Python runs in them."""

PAGEABLE_COPY: Final = r"(?i)pageable"
"""Copies from or to memory that the driver must stage, so that the call waits for them."""

UNNAMED_COPY: Final = r"(?i)(HtoD|DtoH) \((Host|Device) -> (Device|Host)\)|HostToDevice|DeviceToHost"
"""Copies that do not say whether the host's memory is pinned (ROCm)."""

ASYNCHRONOUS_CALL_NS: Final = 10 * NS_PER_US
"""A copy call that does not wait returns within about 10 µs."""

PYTHON_FILE: Final = r"^(.+\.py)\(\d+\): "
"""A frame of Python code, `file.py(line): function`; built-in functions have none."""

FORWARDING_FRAME: Final = (
    r"(^|[/\\])torch[/\\](utils[/\\]_[0-9A-Za-z_]+|_ops|overrides|_tensor|_dynamo[/\\]eval_frame|autograd[/\\]function)\.py"
    r"|(^|[/\\])torch[/\\]nn[/\\]modules[/\\](module|container)\.py\([0-9]+\): (_[0-9A-Za-z_]*call[0-9A-Za-z_]*|forward|inner)$|^(contextlib|functools|threading|runpy)\.py|(^|[/\\])(contextlib|functools)\.py"
)
"""Python frames that only lead to others."""

LIBRARIES: Final = frozenset(
    {
        *("torch", "torchvision", "torchaudio", "torchtext", "torchdata", "torchao", "torchtune", "torchrec"),
        *(
            "functorch",
            "triton",
            "numpy",
            "scipy",
            "pandas",
            "PIL",
            "cv2",
            "skimage",
            "sklearn",
            "matplotlib",
        ),
        *("transformers", "accelerate", "datasets", "tokenizers", "diffusers", "peft", "timm", "safetensors"),
        *("huggingface_hub", "lightning", "lightning_fabric", "pytorch_lightning", "torchmetrics", "ignite"),
        *("deepspeed", "megatron", "apex", "xformers", "flash_attn", "bitsandbytes", "vllm", "sglang"),
        *("einops", "tqdm", "albumentations", "kornia", "webdataset", "ray", "tracekit", "cupy", "numba"),
        *("transformer_engine", "fsspec", "pyarrow", "h5py", "tensorboard", "wandb", "mlflow", "hydra"),
    }
)
"""Packages that are no code of the user's: the profiler leaves `site-packages` out of the paths of frames."""
