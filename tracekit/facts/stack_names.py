"""What the names of host ranges and operators say about the phase and the layer that they belong to.

Every pattern is a regular expression that is applied to distinct names only.
"""

from __future__ import annotations

from typing import Final

from tracekit.facts.capture_names import LAYER_PREFIX, PHASE_PREFIX

__all__ = [
    "ACCUMULATE_NODE",
    "BACKWARD_LAYER",
    "BACKWARD_NODE",
    "BROADCAST",
    "BUFFER_LAYER",
    "CACHE_LOOKUP",
    "CLEARS_GRADIENTS",
    "COLLECTIVE",
    "COLLECTIVE_RANGE",
    "COMMUNICATION_LAYER",
    "COMPILED_GRAPH",
    "COMPILED_REGION",
    "DATA_LAYER",
    "DEVICE_TO_HOST",
    "ENGINE_PREFIX",
    "ENGINE_THREAD",
    "FSDP_FORWARD",
    "GRADIENT_HOOK",
    "GRADIENT_REDUCTION_LAYER",
    "GRAPH_LAYER",
    "HOST_TO_DEVICE",
    "LIBRARY_DOMAINS",
    "LOSS_LAYER",
    "MODULE_PREFIX",
    "NOT_A_LAYER",
    "NO_LAYERS",
    "PARTS_OF_STEP",
    "PEER_COPY",
    "PHASES",
    "PHASE_MARKERS",
    "REDUCTION",
    "REPLICATED_FORWARD",
    "SET_UP_LAYER",
    "WHOLE_FORWARD",
    "WRAPPER_PART",
]

PHASES: Final = ("forward", "backward", "optimizer", "communication", "data", "set_up", "other")

_CAPTURED = f"^{PHASE_PREFIX}"

_PEOPLE: Final[tuple[tuple[str, str, str], ...]] = (
    (r"^(?i:[^0-9A-Za-z_]*(forward|fwd)([ _]?(pass|step))?[^0-9A-Za-z_]*)$", "forward", "<forward>"),
    (r"^(?i:[^0-9A-Za-z_]*(compute[ _])?loss[^0-9A-Za-z_]*)$", "forward", "<loss>"),
    (r"^(?i:[^0-9A-Za-z_]*(backward|bwd)([ _]?(pass|step))?[^0-9A-Za-z_]*)$", "backward", "<backward>"),
    (
        r"^(?i:[^0-9A-Za-z_]*(optimi[sz]er([ _.]?step)?|zero[ _]grad)[^0-9A-Za-z_]*)$",
        "optimizer",
        "<optimizer>",
    ),
    (
        r"^(?i:[^0-9A-Za-z_]*(data[ _]?load(ing|er)?|load[ _](data|batch|inputs?)|(get|next|fetch)[ _]batch|h2d"
        r"|((batch|inputs?|data)[ _.])?to([ _](device|gpu|cuda))?"
        r"|(copy|move|send)[ _](batch|inputs?|data)([ _]to[ _](device|gpu|cuda))?)[^0-9A-Za-z_]*)$",
        "data",
        "<data>",
    ),
)
"""Names of phases that people give to ranges. Such a range is a phase, never a layer."""

REPLICATED_FORWARD: Final = r"^DistributedDataParallel\.forward$"

CLEARS_GRADIENTS: Final = rf"^Optimizer\.zero_grad#|{_CAPTURED}zero_grad$"
"""Ranges in which an optimizer clears gradients; they belong to its phase."""

PHASE_MARKERS: Final[tuple[tuple[str, str, str | None], ...]] = (
    (rf"{_CAPTURED}forward$", "forward", None),
    (rf"{_CAPTURED}loss$", "forward", "<loss>"),
    (rf"{_CAPTURED}backward$", "backward", "<backward>"),
    (rf"{_CAPTURED}(optimizer|zero_grad)$", "optimizer", "<optimizer>"),
    (rf"{_CAPTURED}(data|h2d)$", "data", "<data>"),
    (rf"{_CAPTURED}metrics$", "other", "<metrics>"),
    (r"^Optimizer\.(step|zero_grad)#", "optimizer", "<optimizer>"),
    (r"^enumerate\(DataLoader\)#", "data", "<data>"),
    (REPLICATED_FORWARD, "forward", "<DistributedDataParallel>"),
    (r"^torch(\.|::)distributed(\.ddp\.|::)reducer::", "communication", "<gradient reduction>"),
    (r"^FSDP::post_backward_reduce", "communication", "<gradient reduction>"),
    (r"^FSDP::(pre|post)_forward", "forward", "<FSDP>"),
    (r"^FSDP::[a-z_]*(backward|grad|reduce)", "backward", "<FSDP>"),
    *_PEOPLE,
)
"""Ranges that tell the phase: the name, the phase, and the name under which work in no layer is listed.

The first rows are those of captures, the next PyTorch's own, the last what people write.
"""

BACKWARD_LAYER: Final = "<backward>"
BUFFER_LAYER: Final = "<buffer synchronisation>"
WHOLE_FORWARD: Final = ("<forward>", "<DistributedDataParallel>", "<FSDP>")
"""What stands for a forward pass as a whole; its backward pass is `<backward>`."""

COMMUNICATION_LAYER: Final = "<communication>"
DATA_LAYER: Final = "<data>"
GRADIENT_REDUCTION_LAYER: Final = "<gradient reduction>"
GRAPH_LAYER: Final = "<cuda graph>"
LOSS_LAYER: Final = "<loss>"
SET_UP_LAYER: Final = "<set-up>"

PARTS_OF_STEP: Final = {
    "<forward>": "the forward pass",
    "<DistributedDataParallel>": "the forward pass of DistributedDataParallel",
    LOSS_LAYER: "the loss and its gradients",
    BACKWARD_LAYER: "the backward pass",
    "<optimizer>": "the optimizer",
    GRADIENT_REDUCTION_LAYER: "the reduction of gradients",
    BUFFER_LAYER: "DistributedDataParallel's buffer synchronisation",
    "<FSDP>": "the hooks of FSDP",
}
"""The parts of a step that work in no layer belongs to, in a sentence."""

NO_LAYERS: Final = {
    "<root>": "the model itself",
    **PARTS_OF_STEP,
    DATA_LAYER: "loading and copying of data",
    "<metrics>": "the metrics",
    COMMUNICATION_LAYER: "communication outside the layers",
    SET_UP_LAYER: "set-up copies",
    GRAPH_LAYER: "replayed graphs",
    "unattributed": "work outside any known layer",
    "<unattributed>": "work outside any known layer",
}
"""What the names in tables of layers stand for that are no layers, in a sentence."""

ENGINE_PREFIX: Final = "autograd::engine::evaluate_function: "
DEVICE_TO_HOST: Final = r"^(Memcpy|memcpy|Copy).*(DtoH|DeviceToHost)"
HOST_TO_DEVICE: Final = r"^(Memcpy|memcpy|Copy).*(HtoD|HostToDevice)"
"""Copies from and to the device, as CUPTI and ROCm name them."""

PEER_COPY: Final = r"^Memcpy PtoP"
"""Copies from one device to another, as CUPTI names them."""

BACKWARD_NODE: Final = rf"^{ENGINE_PREFIX}|^torch::autograd::AccumulateGrad$|^\w+Backward\d*$"
"""Operators that run a node of the backward graph; since 2021 one span of the engine surrounds each."""

ACCUMULATE_NODE: Final = r"torch::autograd::AccumulateGrad$"
"""Nodes that add a gradient to that of a weight; what reduces gradients between ranks hooks into them."""

ENGINE_THREAD: Final = r"(^|\()pt_autograd_[0-9]+\)?$"
"""How PyTorch names the threads of its autograd engine; its profiler writes `thread 42 (pt_autograd_0)`."""

GRADIENT_HOOK: Final = r"^(torch\.distributed\.ddp\.reducer::|FSDP::(root_)?post_backward|FullyShardedDataParallel\._post_backward)"
"""Ranges in which a wrapper handles the gradients of weights, even inside a node of the backward graph."""

COLLECTIVE: Final = r"(?i)all_?reduce|reduce_?scatter|all_?(to|2)_?all|all_?gather|broadcast|send|recv|(nccl|rccl|gloo|mpi|ucc):_?(reduce|scatter|gather)\b"
"""Ranges, operators and kernels whose names say which collective they are."""

REDUCTION: Final = r"(?i)all_?reduce|reduce_?scatter|(nccl|rccl|gloo|mpi|ucc):_?reduce\b"
"""Those of `COLLECTIVE` that sum over the ranks, as gradients are."""

BROADCAST: Final = r"(?i)broadcast"

COMPILED_REGION: Final = r"^Torch-Compiled Region(: \S+)?$"
"""A call of a compiled function. After a graph break, the rest of the function is a region inside this one."""

COMPILED_GRAPH: Final = r"^(## Call CompiledFxGraph|CompiledFunction)"
"""A call of one compiled graph, inside a region."""

CACHE_LOOKUP: Final = "TorchDynamo Cache Lookup"
"""The check of the conditions (guards) under which compiled code is valid, before each call."""

FSDP_FORWARD: Final = r"^FSDP::(?P<side>pre|post)_forward(?: \((?P<layer>.*)\))?$"
"""Hooks around the forward of a sharded module: the module lies between them."""

WRAPPER_PART: Final = r"\b(_fsdp_wrapped_module|_checkpoint_wrapped_module|_orig_mod)\b\.?"
"""Parts of a module's path that wrappers put there: sharding, checkpointing, compilation."""

COLLECTIVE_RANGE: Final = r"^(nccl|rccl|gloo|mpi|ucc):"
"""Ranges of PyTorch's backends for collectives; some run on threads of their own."""

MODULE_PREFIX: Final = "nn.Module: "
"""How PyTorch's profiler begins the name of a Python frame that is a module's call."""

LIBRARY_DOMAINS: Final = (
    r"(?i)^(NCCL|MPI|NVSHMEM|UCX|CCCL|CUB|Thrust|cuBLAS|cuBLASLt|cuDNN|cuSPARSE|cuSOLVER|cuFFT|cuRAND|cuTENSOR"
    r"|cuTensorNet|CUTLASS|NVTX_NCCL|DALI|NPP|nvJPEG|RAFT|libcudf|libcuml|TensorRT)$"
)
"""Domains in which libraries mark their own calls: what lies in such a range is an operator, not a layer."""

NOT_A_LAYER: Final = (
    rf"{_CAPTURED}|^{LAYER_PREFIX}|^Optimizer\.|^enumerate\(DataLoader\)#|^ProfilerStep#|{COLLECTIVE_RANGE}"
    r"|^FSDP::|^## Call CompiledFxGraph|^TorchDynamo |^AOTDispatcher |^Pregraph |^PyTorch Profiler"
    r"|^DistributedDataParallel\.forward$|^torch\.distributed\.ddp\.reducer::|^Iteration Start|^execute_([0-9]+_)?(context|model|new)_"
    r"|" + "|".join(pattern for pattern, _, _ in _PEOPLE)
)
"""Annotations that tools write about themselves, and phases; every other one is taken for a range of the user's."""
