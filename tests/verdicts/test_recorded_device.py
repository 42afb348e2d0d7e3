"""What recording adds to the steps of a device's run is no loss of the program: it slows the host, and no kernel."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from faults import FAULTS
from manifests import manifest
from runs import Training, run_of, step_ns

from tracekit.analyses.parts import DeviceParts, run_parts
from tracekit.analyses.scope import select
from tracekit.manifest import Run
from tracekit.report.build import build_report
from tracekit.trace import Trace


def recorded(share: float, slowed: float | None) -> Trace:
    """Training whose device waits for this part of each step for small kernels; its steps take 1/`slowed` without recording."""
    usual = step_ns(Training)
    parts: dict[str, Any] = FAULTS["small kernels"].make(round(usual * share / (1 - share)), share)
    network: Any = type("Faulty", (Training,), parts)()
    network.usual = usual
    trace = run_of(network, None).recorded(stacks=False)
    if slowed is None:
        return trace
    each = select(trace).duration / select(trace).steps.height
    runs = [
        Run(level="M", step_times_ns=[round(each / slowed)] * 3),
        Run(level="MLG", step_times_ns=[round(each)] * 3, trace="trace.json.gz"),
    ]
    return dataclasses.replace(trace, manifest=manifest(runs=runs))


def parts_of(trace: Trace) -> DeviceParts:
    parts = run_parts(trace)
    assert isinstance(parts, DeviceParts)
    return parts


def test_what_recording_adds_is_taken_off_the_wait_for_the_host() -> None:
    plain, slow = parts_of(recorded(0.45, None)), parts_of(recorded(0.45, 1.3))
    assert plain.recording == 0
    assert slow.recording == pytest.approx(slow.basis * (1 - 1 / 1.3), rel=1e-3)
    assert slow.host_wait + slow.recording == plain.host_wait
    assert (slow.busy, slow.idle, slow.plain) == (plain.busy, plain.idle, slow.basis - slow.recording)


def test_it_is_at_most_the_wait_for_the_host() -> None:
    parts = parts_of(recorded(0.15, 3.0))
    assert parts.host_wait == 0
    assert parts.recording > 0


@pytest.mark.slow
def test_a_device_that_waits_because_of_the_recording_bounds_its_run() -> None:
    """BERT on an H100 was called bound by its host, although its device is busy most of the time without the profiler."""
    bound = build_report(recorded(0.45, None)).verdict
    free = build_report(recorded(0.45, 1.6)).verdict
    assert (bound.bound, free.bound) == ("launch/short-kernel-bound", "compute-bound")
    assert "of the time without recording" in free.headline
    assert any("Recording adds" in note for note in free.notes)
    assert not any("Recording adds" in note for note in bound.notes)


@pytest.mark.slow
def test_no_finding_about_idle_time_promises_what_recording_adds() -> None:
    trace = recorded(0.45, 1.4)
    parts = parts_of(trace)
    found = [
        finding
        for section in build_report(trace).sections
        for finding in section.findings
        if section.name in ("breakdown", "idle", "launches") and finding.ns_at_stake
    ]
    assert found
    assert max(finding.ns_at_stake or 0 for finding in found) <= parts.idle - parts.recording


@pytest.mark.parametrize("slowed", [None, 1.04, 0.9])
def test_little_or_unknown_slowing_changes_nothing(slowed: float | None) -> None:
    assert parts_of(recorded(0.45, slowed)).recording == 0
