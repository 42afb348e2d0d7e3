"""What a report says of a trace that `tracekit capture` recorded, as against one of another program."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import small_traces
from manifests import manifest

from tracekit.facts.capture_names import LAYER_PREFIX
from tracekit.manifest import Run, Settings
from tracekit.report.build import build_report
from tracekit.trace import Trace


def recorded(trace: Trace, level: str, settings: Settings | None) -> Trace:
    """The trace as that of a capture's run."""
    run = Run(level=level, trace=Path(trace.meta.path).name, step_times_ns=[1])  # type: ignore[arg-type]
    return dataclasses.replace(trace, manifest=manifest(settings=settings, runs=[run]))


def advices(trace: Trace, settings: Settings | None) -> list[str]:
    """The first advice of the verdict, and those of all findings."""
    report = build_report(recorded(trace, "MLG", settings))
    found = [finding.advice for section in report.sections for finding in section.findings]
    return [report.verdict.advice[0].advice, *found]


def test_advice_names_the_flags_of_capture_where_it_recorded_the_run(tmp_path: Path) -> None:
    trace = small_traces.input_bound(tmp_path)
    plain, named = advices(trace, None), advices(trace, Settings(device="cuda"))
    assert "num_workers" in plain[0]
    assert not any("; capture with" in text for text in plain), "a loop of one's own has no flags"
    assert named[0] == f"{plain[0].removesuffix('.')}; capture with --workers or --pin-memory."
    assert sum("--workers" in text for text in named[1:]) == 1, "in the section of the finding as well"
    assert not any("--pin-memory" in text for text in advices(trace, Settings(device="cpu")))


def test_a_switch_that_is_on_is_not_named(tmp_path: Path) -> None:
    trace = small_traces.short_kernels(tmp_path)
    assert any("--compile" in text for text in advices(trace, Settings()))
    compiled = advices(trace, Settings(compile=True))
    assert not any("--compile" in text for text in compiled)
    assert any("--batch" in text for text in compiled)


@pytest.mark.parametrize("known", [True, False])
def test_layers_alone_are_not_nothing(tmp_path: Path, known: bool) -> None:
    trace = small_traces.ranges_only(tmp_path)
    if known:
        trace = recorded(trace, "ML", Settings())
    report = build_report(trace)
    assert report.verdict.bound == "ranges only"
    level = " (level ML)" if known else ""
    assert report.verdict.headline.startswith(
        f"The trace holds only ranges of steps, phases and layers{level}. "
    )
    assert "--levels M,MLG" in report.verdict.advice[0].advice
    assert report.window.label == "no device activity and no operator was recorded"
    assert LAYER_PREFIX + "conv" in trace.host["name"].cast(str).to_list()
