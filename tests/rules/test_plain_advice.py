"""A program without PyTorch gets no advice that names PyTorch: every rule that does has another for it."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest
from planted import MS, Planted, finding

from tracekit.analyses import rules
from tracekit.analyses.rules import RULES
from tracekit.analyses.rules.rule import Rule
from tracekit.verdict.advice import GENERAL

NAMES_PYTORCH = re.compile(
    r"(?i)torch|DataLoader|\.item\(|\.to\(|non_blocking|pin_memory|tensor\.|optimizer|zero_grad|fused=|foreach|cudnn\.bench"
)
ONLY_ON_PYTORCH = {
    "optimizer_not_fused": "looks for ranges of torch.optim",
    "unfused_attention": "looks for operators of PyTorch",
    "value_reads": "looks for operators of PyTorch",
    "incomplete_capture": "speaks about profiles of torch.profiler only",
    "counter_replay": "speaks about counters of torch.profiler",
}


def texts(path: Path) -> list[str]:
    """Strings of a rule that are no documentation, no pattern, and not what it says to a program without PyTorch."""
    tree = ast.parse(path.read_text())
    left_out = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    plain = (node for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "plain")
    left_out |= {id(inner) for node in plain for inner in ast.walk(node)}
    strings = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in left_out)
    return [node.value for node in strings if isinstance(node.value, str) and " " in node.value]


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.id)
def test_every_rule_that_names_pytorch_has_other_words(rule: Rule) -> None:
    file = Path(str(rules.__file__)).with_name(f"{rule.id}.py")
    if any(NAMES_PYTORCH.search(text) for text in texts(file)):
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
    assert ("DataLoader" in found.advice) is names
    assert ("cudaMallocHost" in found.advice) is not names
