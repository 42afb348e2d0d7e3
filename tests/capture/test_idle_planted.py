"""Real training loops with one planted fault each: the verdict names the fault, and that of the plain loop does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

import tracekit
from tracekit.analyses.idle.causes import idle_causes
from tracekit.analyses.rules import run as run_rules
from tracekit.report.build import build_report
from tracekit.report.model import Verdict

STEPS = 3
TRIES = 3
FAULTS = ("Data loading", ".item()", "iny operators and the Python code")
"""What the verdict on the plain loop says of none of them; more faults are in tests/verdicts/test_cpu_faults.py."""


class Rows(Dataset):
    """Made-up rows; `work` rounds of Python on each."""

    def __init__(self, work: int = 0) -> None:
        self.work = work
        self.rows = torch.randn(64, 256)

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        row = self.rows[index % 64]
        return (slow_augmentation(row, self.work) if self.work else row), index % 10


def slow_augmentation(row: torch.Tensor, rounds: int) -> torch.Tensor:
    """Flips a row many times in Python."""
    for _ in range(rounds):
        row = row.flip(0) * 1.0
        sum(range(300))
    return row


def run(tmp_path: Path, rows: Rows, extra: Callable[[torch.Tensor], None], *, stacks: bool) -> Path:
    """Trains a small model for some steps below the profiler; `extra` runs in each with the loss."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = iter(DataLoader(rows, batch_size=16))
    path = tmp_path / "trace.json"
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=2, active=STEPS, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(str(path)),
        with_stack=stacks,
    ) as profiler:
        for _ in range(2 + STEPS):
            inputs, labels = next(loader)
            inputs = inputs.repeat(48, 1)
            loss = torch.nn.functional.cross_entropy(model(inputs), labels.repeat(48))
            loss.backward()
            extra(loss.detach())
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    return path


def nothing(loss: torch.Tensor) -> None:
    """The plain loop."""


def read_values(loss: torch.Tensor) -> None:
    """One value of the loss, as people log it."""
    assert loss.item() == loss.item()


def said(verdict: Verdict) -> str:
    return " ".join([verdict.headline, *(advice.title for advice in verdict.advice)])


def settled(check: Callable[[], None]) -> None:
    """A machine that is busy with other things plants waits of its own: one good run of three is enough."""
    for _ in range(TRIES - 1):
        try:
            check()
        except AssertionError:
            continue
        return
    check()


@pytest.mark.slow
@pytest.mark.parametrize("stacks", [True, False], ids=["stacks", "plain"])
def test_the_verdict_names_slow_augmentation(tmp_path: Path, stacks: bool) -> None:
    def check() -> None:
        trace = tracekit.read(run(tmp_path, Rows(work=150), nothing, stacks=stacks))
        verdict = build_report(trace).verdict
        assert "Data loading" in said(verdict)
        found = idle_causes(trace)
        assert found.by_cause["cause"][0] == "data_loading"
        assert found.by_cause["share"][0] > 0.25
        if stacks:
            assert "): slow_augmentation" in verdict.headline
            assert found.by_frame is not None
            assert "): slow_augmentation" in found.by_frame["frame"][0]

    settled(check)


@pytest.mark.slow
def test_values_that_are_read_cost_nothing_on_processors(tmp_path: Path) -> None:
    """So the section of idle time says it, not the verdict."""

    def check() -> None:
        findings = run_rules("idle", tracekit.read(run(tmp_path, Rows(), read_values, stacks=True))).findings
        assert [f.severity for f in findings if f.id == "value_reads"] == ["info"]

    settled(check)


@pytest.mark.slow
@pytest.mark.parametrize("stacks", [True, False], ids=["stacks", "plain"])
def test_the_verdict_on_the_plain_loop_names_none_of_them(tmp_path: Path, stacks: bool) -> None:
    def check() -> None:
        verdict = build_report(tracekit.read(run(tmp_path, Rows(), nothing, stacks=stacks))).verdict
        text = said(verdict)
        assert not [words for words in FAULTS if words in text], text

    settled(check)
