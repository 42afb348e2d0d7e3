"""A program without PyTorch gets no advice that names PyTorch: every rule that does has another for it."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest
from planted import MS, Planted, finding

from tracekit.analyses import rules
from tracekit.facts import plain_advice

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
FILES = sorted(path for path in Path(str(rules.__file__)).parent.glob("*.py") if path.stem[0] != "_")


def texts(path: Path) -> list[str]:
    """Strings of a rule that are no documentation and no pattern: constants below keywords and in tables."""
    tree = ast.parse(path.read_text())
    documented = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    strings = (
        node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in documented
    )
    return [node.value for node in strings if isinstance(node.value, str) and " " in node.value]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_rule_that_names_pytorch_has_other_words(path: Path) -> None:
    if any(NAMES_PYTORCH.search(text) for text in texts(path)):
        assert path.stem in plain_advice.FINDINGS.keys() | ONLY_ON_PYTORCH.keys()


def test_the_other_words_name_no_pytorch() -> None:
    assert plain_advice.FINDINGS.keys() <= {path.stem for path in FILES}
    for text in (*plain_advice.FINDINGS.values(), *plain_advice.BOUNDS.values()):
        assert not NAMES_PYTORCH.search(text), text
    assert all(text.endswith(".") for text in plain_advice.FINDINGS.values())


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
