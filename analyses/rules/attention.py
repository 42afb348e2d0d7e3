"""Rules about attention, which read the result of `kernels`: whether it is fused, and why not."""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.kernels import Kernels
from tracekit.analyses.rules.attention_work import AttentionWork, attention_work
from tracekit.analyses.rules.kernels import FIRST_WGMMA, capability_of, costliest, worth_faster
from tracekit.analyses.rules.rule import (
    Advice,
    Evidence,
    Rule,
    bounded,
    bounded_by_host,
    longest,
    longest_work,
    of_time,
)
from tracekit.analyses.scope import Scope, once
from tracekit.analyses.sdpa import Call, Kernel, Reason, Target, call_of, refusals
from tracekit.facts.units import count_of, format_count, format_ns
from tracekit.groups import kept, or_none
from tracekit.trace import one_of

__all__ = ["FLASH_ATTENTION_2", "SDPA_FALLBACK", "UNFUSED_ATTENTION"]

# -- unfused_attention ------------------------------------------------------------------------------

UNFUSED_ATTENTION_LEAST_SHARE: Final = 0.05
"""Below a twentieth of the time a fused kernel gains little."""
_FAST_PATH: Final = r"^aten::(_transformer_encoder_layer_fwd|_native_multi_head_attention)$"


def unfused_attention(scope: Scope, result: Kernels) -> Evidence | None:
    """Attention runs as separate operators (batched product, softmax, batched product), each through memory.

    In the forward pass, each call of a softmax comes with about two calls of `aten::bmm` or `aten::baddbmm`. The softmax of
    a classifier has no such calls. `scaled_dot_product_attention` has a rule of its own, `sdpa_fallback`. At stake is what a
    fused kernel does not do, forward and backward: the softmax; where shapes are recorded also what works on tensors of the
    shape of the scores between two products (scaling, mask, dropout, casts), and copies that change the layout of what is
    multiplied. Fused attention computes the products as well.

    Fires when this takes `UNFUSED_ATTENTION_LEAST_SHARE` of the time, unless it is that of the fast path of `nn.TransformerEncoder`.
    """
    found = once(scope, attention_work)
    beside, copies = found.scores_ns, found.copies_ns
    total = found.softmax_ns + beside + copies
    if (
        not found.is_by_hand
        or total / max(result.total_ns, 1) < UNFUSED_ATTENTION_LEAST_SHARE
        or _in_fast_path(scope)
    ):
        return None
    what = "apart from its matrix products, it takes" if beside or copies else "its softmax takes"
    further = [f"other work on the scores takes {format_ns(beside)}"] if beside else []
    further += [f"copies of the products' inputs take {format_ns(copies)}"] if copies else []
    return Evidence(
        title=f"Attention is not fused: {what} {of_time(total, scope)}",
        text=f"{count_of(found.softmax_calls, 'softmax call takes', 'softmax calls take')} {format_ns(found.softmax_ns)}, in "
        f"addition to {format_count(found.products)} batched matrix products (aten::bmm). "
        f"{_sentence_of(further)}The scores are written to memory and read back.",
        ns_at_stake=bounded(total, scope),
        stretches=longest_work(scope, "softmax"),
    )


def _in_fast_path(scope: Scope) -> bool:
    """Whether the softmax is mostly that of nn.TransformerEncoder's fast path for inference, in which no user can replace it."""
    stack = attribution(scope).model.stack
    rows = kept(scope.activities, scope.activities.select(one_of("category", "softmax")).to_series())
    inside = stack.inside(_FAST_PATH, or_none(rows["op_id"]), "op")
    ns = rows["duration"].to_numpy()
    return bool(2 * ns[inside].sum() > ns.sum())


def _sentence_of(clauses: list[str]) -> str:
    text = " and ".join(clauses)
    return f"{text[0].upper()}{text[1:]}. " if text else ""


UNFUSED_ATTENTION = Rule(
    id="unfused_attention",
    analysis="kernels",
    evidence=unfused_attention,
    advice=Advice(
        "[!sdpa] Use torch.nn.functional.scaled_dot_product_attention (in Hugging Face models "
        'attn_implementation="sdpa", where the model has it), or flex_attention for custom masks and biases.\n'
        "[sdpa] Other attention in this run is fused or uses scaled_dot_product_attention; use it here too, or flex_attention "
        "for custom masks and biases."
    ),
)


# -- sdpa_fallback ----------------------------------------------------------------------------------

SDPA_FALLBACK_LEAST_SHARE: Final = 0.05
"""Below a twentieth of the time a fused kernel gains little."""

_REMAINING: Final = (
    "a last dimension that is not contiguous, unaligned data, a backend that is switched off, or a PyTorch release that supports "
    "fewer inputs"
)
_REMAINING_CPU: Final = "a last dimension that is not contiguous, or a backend that is switched off"
_OF_MASK: Final = "a mask that requires a gradient, "
_POSSIBLE: Final = (
    "fp64 inputs, a head size that is not a multiple of 8, a last dimension that is not contiguous, heads or types that "
    "differ, or a backend that is switched off"
)
_POSSIBLE_CPU: Final = (
    "dropout in the attention, a mask that requires a gradient, head sizes or types that differ, or a backend that is "
    "switched off"
)
_ASK: Final = "torch.nn.attention.sdpa_kernel with a single backend warns why that backend cannot run."
_CASES: Final = 2
"""Reasons for the two kinds of inputs with the most time are enough."""


def sdpa_fallback(scope: Scope, result: Kernels) -> Evidence | None:
    """`scaled_dot_product_attention` runs as separate operators, because no fused kernel takes its inputs.

    The reasons follow from the recorded shapes, types and arguments. Strides are not recorded, and neither is whether a
    mask requires a gradient, so a trace may show no reason. At stake is the time of these calls without their matrix
    products, forward and backward, because fused attention computes the products as well.

    Fires when this takes `SDPA_FALLBACK_LEAST_SHARE` of the time.
    """
    found = once(scope, attention_work)
    total = int(found.math_ns.sum())
    share = total / max(result.total_ns, 1)
    if not found.math_calls or share < SDPA_FALLBACK_LEAST_SHARE:
        return None
    why, remedies = _reasons(scope, found)
    return Evidence(
        title="scaled_dot_product_attention is not fused and takes "
        f"{of_time(total, scope)}, not counting its matrix products",
        text=f"{count_of(found.math_calls, 'call runs', 'calls run')} as separate matrix products and a softmax. Apart from the "
        f"products, this takes {format_ns(total)}. {why}",
        ns_at_stake=bounded(total, scope),
        advice=Advice("\n".join(dict.fromkeys(remedies))),
        stretches=longest(
            pl.DataFrame(
                {
                    "start": (stack := attribution(scope).model.stack).start[found.math],
                    "duration": stack.end[found.math] - stack.start[found.math],
                }
            )
        ),
    )


def _reasons(scope: Scope, found: AttentionWork) -> tuple[str, list[str]]:
    """Why the calls with the most time are not fused, in sentences, and the remedies."""
    host = scope.trace.host[["shapes", "dtypes", "concrete_inputs"]][found.math]
    cases = (
        host.with_columns(pl.all().cast(pl.String), pl.Series("ns", found.math_ns))
        .group_by(pl.all().exclude("ns"))
        .agg(pl.col("ns").sum())
        .sort("ns", "shapes", descending=[True, False])
        .head(_CASES)
    )
    calls = [call_of(*row[:3]) for row in cases.rows()]
    known = [call for call in calls if call is not None]
    on_cpu = scope.on_cpu
    if not known and "shapes" in scope.trace.meta.captured:
        return (
            "The recorded inputs have no shapes, as with nested tensors, which fused attention supports only within limits.",
            [_ASK],
        )
    if not known:
        possible = _POSSIBLE_CPU if on_cpu else _POSSIBLE
        return f"The inputs were not recorded, so the reason is unknown. Possible reasons are {possible}.", [
            "Record {shapes} to see the inputs.",
            _ASK,
        ]
    texts, remedies = [], []
    target, capability = _target(scope)
    for call in known:
        kernels = refusals(call, target, capability)
        texts.append(_sentence(call, kernels, _REMAINING_CPU if on_cpu else _REMAINING))
        remedies += _remedies(kernels)
    return " ".join(dict.fromkeys(texts)), remedies


def _sentence(call: Call, kernels: tuple[Kernel, ...], remaining: str) -> str:
    remaining = remaining if call.mask is None else _OF_MASK + remaining
    parts = [
        f"{kernel.name} cannot run, because {_joined(kernel.reasons)}"
        if kernel.reasons
        else f"{kernel.name} could run on the recorded inputs; the remaining possible reasons are {remaining}"
        for kernel in kernels
    ]
    return f"For a query of {list(call.query)}, {', and '.join(parts)}."


def _remedies(kernels: tuple[Kernel, ...]) -> list[str]:
    """What lets one of the kernels run: that with the fewest reasons; what asks for the reason where none shows."""
    unseen = [kernel for kernel in kernels if not kernel.reasons]
    if unseen:
        return [_ASK, *(reason.remedy for kernel in kernels for reason in kernel.reasons if reason.remedy)]
    curable = [kernel for kernel in kernels if all(reason.remedy for reason in kernel.reasons)]
    easiest = min(curable, key=lambda kernel: len(kernel.reasons), default=None)
    return [_ASK] if easiest is None else [reason.remedy for reason in easiest.reasons]


def _joined(reasons: tuple[Reason, ...]) -> str:
    texts = [reason.why for reason in reasons]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def _target(scope: Scope) -> tuple[Target, tuple[int, int] | None]:
    if scope.on_cpu:
        return "processor", None
    used = [device for device in scope.trace.meta.devices if device.device_id in scope.device_ids]
    if any(device.is_amd for device in used):
        return "amd", None
    return "nvidia", min(
        (d.compute_capability for d in used if d.compute_capability is not None), default=None
    )


SDPA_FALLBACK = Rule(
    id="sdpa_fallback",
    analysis="kernels",
    evidence=sdpa_fallback,
    advice=Advice(_ASK),
)


# -- flash_attention_2 ------------------------------------------------------------------------------

FLASH_ATTENTION_2_LEAST_SHARE: Final = 0.05
"""Below a twentieth of the time faster kernels gain little."""
FASTER: Final = 2.0
"""On an H100, FlashAttention 3 is 1.5 to 2.0 times as fast forward and 1.5 to 1.75 times backward (Shah and others, 2024)."""
_OF_FLASH_2: Final = r"\bFlash_(fwd|bwd)_kernel_traits\b"


def flash_attention_2(scope: Scope, result: Kernels) -> Evidence | None:
    """Attention runs in kernels of FlashAttention 2, which use the instructions of Ampere, on a device that has faster ones.

    From compute capability 9.0 on, tensor cores take operands from shared memory and work while warps do other things. Kernels of
    FlashAttention 3 and of cuDNN use that. At stake is what `FASTER` would save.

    Fires when such kernels take `FLASH_ATTENTION_2_LEAST_SHARE` of the summed device time, and as much of the window is at stake as
    `no_tensor_cores` asks.
    """
    rows = result.by_name.filter(pl.col("name").str.contains(_OF_FLASH_2))
    total = int(rows["total_ns"].sum())
    at_stake = bounded_by_host(int(total * (1 - 1 / FASTER)), scope)
    if total < FLASH_ATTENTION_2_LEAST_SHARE * max(result.total_ns, 1) or not worth_faster(at_stake, scope):
        return None
    capability = capability_of(scope.trace, result)
    if capability is None or capability < FIRST_WGMMA:
        return None
    return Evidence(
        title=f"FlashAttention 2 kernels take {of_time(total, scope)}",
        text=f"{count_of(int(rows['count'].sum()), 'launch takes', 'launches take')} {format_ns(total)}; {costliest(rows)} takes "
        "the most. They use the instructions of compute capability 8.0, and this device has faster ones.",
        ns_at_stake=at_stake,
        stretches=longest(scope.activities.filter(pl.col("name").cast(pl.String).str.contains(_OF_FLASH_2))),
    )


FLASH_ATTENTION_2 = Rule(
    id="flash_attention_2",
    analysis="kernels",
    evidence=flash_attention_2,
    runs="device",
    advice=Advice(
        "Use cuDNN attention (torch.nn.attention.sdpa_kernel(SDPBackend.CUDNN_ATTENTION) around the calls) or, on Hopper, "
        "FlashAttention 3, if they support the same head sizes, masks and types.",
        plain="Use cuDNN attention or, on Hopper, FlashAttention 3, if they support the same head sizes, masks and types.",
    ),
)
