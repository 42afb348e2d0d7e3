"""A program without PyTorch gets no advice that names PyTorch: every rule that does has another for it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from planted import MS, Planted, finding

from tracekit.analyses.rules import RULES
from tracekit.analyses.rules.rule import Rule
from tracekit.verdict.advice import GENERAL

NAMES_PYTORCH = re.compile(
    r"(?i)torch|DataLoader|\.item\(|\.to\(|non_blocking|pin_memory|tensor\.|optimizer|zero_grad|fused=|foreach|cudnn\.bench"
)
ONLY_ON_PYTORCH = {
    "optimizer_in_passes": "looks for operators of PyTorch",
    "optimizer_not_fused": "looks for ranges of torch.optim",
    "unfused_attention": "looks for operators of PyTorch",
    "anomaly_detection": "looks for nodes of autograd",
    "autocast_casts": "looks for operators of PyTorch",
    "autograd_in_inference": "looks for operators of PyTorch",
    "processor_operators": "looks for operators of PyTorch",
    "updates_one_by_one": "looks for operators of PyTorch",
    "unfused_loss": "looks for operators of PyTorch",
    "value_reads": "looks for operators of PyTorch",
    "graph_breaks": "looks for regions of torch.compile",
    "sdpa_fallback": "looks for operators of PyTorch",
    "odd_sizes": "looks for operators of PyTorch",
    "many_embeddings": "looks for operators of PyTorch",
    "recomputation": "looks for operators of PyTorch",
    "double_precision": "looks at the types of PyTorch's operators",
    "object_collectives": "looks for ranges of PyTorch's backends",
    "incomplete_capture": "speaks about profiles of torch.profiler only",
    "counter_replay": "speaks about counters of torch.profiler",
}


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.id)
def test_every_rule_that_names_pytorch_has_other_words(rule: Rule) -> None:
    if NAMES_PYTORCH.search(f"{rule.advice.text} {rule.advice.processor}"):
        assert rule.advice.plain or rule.id in ONLY_ON_PYTORCH


def test_the_other_words_name_no_pytorch() -> None:
    for rule in RULES.values():
        if rule.advice.plain:
            assert not NAMES_PYTORCH.search(rule.advice.plain), rule.id
            assert rule.advice.plain.endswith(".")
    for _, words in GENERAL.values():
        assert not NAMES_PYTORCH.search(words.plain or words.text), words


@pytest.mark.parametrize(("kernel", "names"), [("saxpy", False), ("void at::native::add<4>(int)", True)])
def test_advice_follows_what_the_trace_shows(kernel: str, names: bool) -> None:
    made = Planted()
    made.activity(kernel, 0, 90 * MS)
    made.copy("HtoD (Pageable -> Device)", 90 * MS, 10 * MS, 50_000_000)
    trace = made.trace()
    found = finding(replace(trace, meta=replace(trace.meta, format="nsys")), "memory", "pageable_copies")
    assert found is not None
    assert ("pin_memory()" in found.advice) is names
    assert ("cudaMallocHost" in found.advice) is not names
