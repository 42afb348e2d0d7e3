"""Faults that a run may have, each as large as a part of its steps, and what the report must say first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fault_parts import (
    Parts,
    allocator,
    checkpointed,
    conversions,
    copies_of_lists,
    copying,
    dependency,
    dropout,
    eager_attention,
    early,
    empty_cache,
    evaluation,
    exposed,
    first_calls,
    full_memory,
    graph_breaks,
    guards,
    host_operators,
    item,
    late_gradients,
    loading,
    many_tables,
    odd_vocabulary,
    once,
    other_thread,
    paused_call,
    recompilation,
    saving,
    scores_in_memory,
    slow,
    small_copies,
    small_kernels,
    throttling,
    tiny_collectives,
    uneven_ranks,
    unfused_optimizer,
    waits,
    waits_between_small_kernels,
)
from runs import Compiled, Inference, Serving, Training

__all__ = ["FAULTS", "Fault"]

SINGLE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
SEVERAL = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


@dataclass(frozen=True)
class Fault:
    """A fault, and what the first advice or the headline must say."""

    make: Callable[[int, float], Parts]
    """From its time in a step in ns, and the part of the step that this is."""
    says: str
    bases: tuple[type, ...] = (Training,)
    stacks: tuple[bool, ...] = (True, False)
    """Whether it can be named with Python stacks, and without."""
    shares: tuple[float, ...] = (0.45, 0.15)
    timed: bool = True
    """The time at stake of the first advice must be what was planted."""
    needs_steps: bool = False
    """It shows only in a comparison of steps, or of the same place in several steps."""
    compares: bool = False
    """It is the difference of steps, and their pace differs by 3 % in runs with noise."""


ANY: Final = (Training, Inference, Serving)
MODELS: Final = (Training, Inference)

FAULTS: Final[dict[str, Fault]] = {
    "slow loader in the main process": Fault(loading(SINGLE), r"num_workers > 0", MODELS),
    "too few workers": Fault(loading(SEVERAL), r"Raise num_workers", MODELS),
    "slow host-to-device copy": Fault(
        copying("HtoD (Pinned -> Device)", blocks=False), r"(?i)separate stream", MODELS
    ),
    "pageable copies": Fault(copying("HtoD (Pageable -> Device)", blocks=True), r"(?i)pinned memory", MODELS),
    "many small copies": Fault(small_copies, r"(?i)small copies.*pack small inputs", MODELS),
    "tensors of lists that are copied one by one": Fault(
        copies_of_lists, r"(?i)small copies.*pack small inputs", MODELS
    ),
    "a value is read in each layer": Fault(item, r"\.item\(\)", MODELS, timed=False),
    "the host waits after each part": Fault(waits, r"torch\.cuda\.synchronize", MODELS, timed=False),
    "logging every step": Fault(
        lambda ns, _: slow(
            ns, ("python", "train.py(40): log"), ("python", "logging/__init__.py(1400): info")
        ),
        r"logging/__init__\.py",
        ANY,
        (True,),
    ),
    "printing every step": Fault(
        lambda ns, _: slow(ns, ("python", "train.py(50): report"), ("python", "<built-in function print>")),
        r"train\.py\(50\)",
        ANY,
        (True,),
    ),
    "code that was not recorded": Fault(
        lambda ns, _: slow(ns, ("python", "train.py(40): log")),
        r"no host call is recorded.*Record with_stack",
        MODELS,
        (False,),
    ),
    "no request comes": Fault(
        lambda ns, _: slow(
            ns,
            ("python", "server.py(20): wait_for_request"),
            ("python", "queue.py(154): get"),
            ("python", "<built-in method acquire of _thread.lock object at 0x7f01>"),
        ),
        r"The host waits for something else .* of the time, mostly in queue\.py\(154\): get, called from server\.py.*serve more",
        (Serving, Inference),
        (True,),
    ),
    "sleeping every step": Fault(
        lambda ns, _: slow(ns, ("python", "train.py(50): throttle"), ("python", "<built-in function sleep>")),
        r"The host sleeps .* of the time, mostly in train\.py\(50\): throttle.*remove the pause",
        ANY,
        (True,),
    ),
    "code in a range of the user's": Fault(
        lambda ns, _: slow(ns, ("annotation", "postprocess")), r"postprocess", MODELS
    ),
    "small kernels": Fault(
        small_kernels, r"(?i)fewer|launch(es)? less|fuse|into the graphs", (*MODELS, Compiled), timed=False
    ),
    "waits that graphs cannot hold": Fault(
        waits_between_small_kernels,
        r"first remove the 12 calls that synchronise within each step \(from torch\.cuda\.synchronize\(\)\)",
        shares=(0.45,),
        timed=False,
        needs_steps=True,
    ),
    "an optimizer that is not fused": Fault(unfused_optimizer, r"fused=True"),
    "eager attention": Fault(eager_attention, r"scaled_dot_product_attention", MODELS),
    "eager attention whose scores are scaled and cast": Fault(
        scores_in_memory, r"scaled_dot_product_attention", MODELS
    ),
    "dropout in each layer": Fault(dropout, r"^Dropout takes", MODELS),
    "activation checkpointing": Fault(checkpointed, r"checkpoint fewer layers"),
    "an odd vocabulary": Fault(odd_vocabulary, r"Pad 50,257 to 50,304", MODELS),
    "26 embedding tables": Fault(many_tables, r"(?i)one EmbeddingBag", timed=False),
    "fp32 products on a device with tensor cores": Fault(
        lambda *_: {"gemm": "ampere_sgemm_128x128_nn"},
        r"(?i)tf32|bfloat16",
        MODELS,
        shares=(0.45,),
        timed=False,
    ),
    "layout conversions": Fault(conversions, r"channels_last", MODELS),
    "recompilation in each step": Fault(recompilation, r"TORCH_LOGS=recompiles|compiled again", MODELS),
    "checks of compiled code": Fault(guards, r"(?i)guards", MODELS),
    "graph breaks": Fault(graph_breaks, r"TORCH_LOGS=graph_breaks", MODELS),
    "allocator churn": Fault(allocator, r"(?i)keep.*input shapes", MODELS),
    "the cache is emptied in each step": Fault(
        empty_cache, r"^The cache .* Remove torch\.cuda\.empty_cache\(\)", MODELS
    ),
    "memory that is nearly full": Fault(full_memory, r"(?i)memory.* full.*To free memory"),
    "a pause for garbage collection": Fault(
        lambda ns, _: once(ns, ("python", "train.py(60): step"), ("python", "<built-in function collect>")),
        r"train\.py\(60\)|collect",
        MODELS,
        (True,),
        needs_steps=True,
    ),
    "a checkpoint in one step": Fault(
        lambda ns, _: once(
            ns, ("python", "train.py(70): save_checkpoint"), ("python", "torch/serialization.py(900): save")
        ),
        r"serialization\.py|save_checkpoint",
        stacks=(True,),
        needs_steps=True,
    ),
    "a checkpoint in one step, of which only the copies are recorded": Fault(
        saving, r"copies to the host.*checkpoint", stacks=(False,), needs_steps=True
    ),
    "a first call in one step": Fault(
        first_calls(sizes=False),
        r"^One call of aten::_cudnn_attention_forward .*only once for these inputs.*cuDNN builds",
        MODELS,
    ),
    "inputs of a new size in each step": Fault(
        first_calls(sizes=True),
        r"^[56] calls of aten::_cudnn_attention_forward .*Pad inputs.*enable_cudnn_sdp",
        MODELS,
    ),
    "a pause in one call": Fault(
        paused_call, r"^One call of aten::addmm .*New inputs do not explain this.*garbage collection", MODELS
    ),
    "a part on the processor": Fault(
        host_operators(copies=True),
        r"^Operators that compute on the processor, and copies .*Keep their inputs on the device",
        MODELS,
    ),
    "inputs that are made on the processor": Fault(
        host_operators(copies=False),
        r"^Operators that compute on the processor keep .*Compute on the device",
        MODELS,
    ),
    "evaluation in one step, in a range": Fault(
        evaluation(("annotation", "evaluate")), r"(?i)evaluate less often", stacks=(False,), needs_steps=True
    ),
    "evaluation in one step, in a function": Fault(
        evaluation(("python", "train.py(80): validate")),
        r"(?i)evaluate less often",
        compares=True,
        needs_steps=True,
    ),
    "exposed all-reduce": Fault(exposed, r"(?i)overlap|during the backward"),
    "gradients that are reduced after the backward pass": Fault(
        late_gradients, r"(?i)overlap|during the backward"
    ),
    "many tiny collectives": Fault(tiny_collectives, r"(?i)larger collectives|in one collective|bucket_cap"),
    "uneven ranks": Fault(
        uneven_ranks, r"(?i)may be spent waiting for slower ranks.*Compare the ranks", needs_steps=True
    ),
    "a dependency on another stream": Fault(
        dependency("DtoD (Device -> Device)", events=False), r"(?i)waits? for .*stream", MODELS
    ),
    "weights that are copied just in time": Fault(
        dependency("HtoD (Pinned -> Device)", events=True), r"(?i)waits? for .*stream", MODELS
    ),
    "preprocessing before the first kernel": Fault(
        lambda ns, _: early(ns, ("python", "infer.py(10): run"), ("python", "image.py(33): resize")),
        r"image\.py\(33\)",
        MODELS,
        (True,),
    ),
    "a scheduler that is slow": Fault(
        lambda ns, _: early(ns, ("python", "vllm/v1/core/sched/scheduler.py(120): schedule")),
        r"scheduler\.py",
        (Serving,),
        (True,),
    ),
    "threads that keep each other from running": Fault(
        other_thread, r"(?i)another process.*lock", MODELS, (True,)
    ),
    "a clock that falls": Fault(throttling, r"nvidia-smi", MODELS, compares=True),
}
