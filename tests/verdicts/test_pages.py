"""Reports against expert pages: for each trace a TOML file that says what its raw events show, written without tracekit.

A page gives the kind of run, the window, what bounds it, its largest costs, the cause and place of its idle time, advice that
fits, and statements that must not appear. Comments in it give the reasoning.
"""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest
from paths import ROOT

import tracekit
from tracekit.analyses.breakdown import breakdown
from tracekit.analyses.idle import idle
from tracekit.analyses.kernels import kernels
from tracekit.analyses.scope import Scope, select
from tracekit.analyses.traits import traits
from tracekit.report import terminal
from tracekit.report.build import build_report
from tracekit.report.formats import Page
from tracekit.report.model import Report

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGES: Final = sorted(Path(__file__).parent.glob("*.toml"))
WIDE: Final = Page(width=10_000)
"""No sentence is broken, so that patterns match it."""
QUICK: Final = ("cpu_only", "mi250_minitoy", "trixi_v100")


@lru_cache(maxsize=2)
def reported(path: Path) -> tuple[dict[str, Any], Scope, Report]:
    """The page, and what tracekit says."""
    page = tomllib.loads(path.read_text("utf-8"))
    where = page["trace"]
    file = ROOT / where
    if where.startswith("shared/"):
        file = ROOT.parent / where.replace("shared/", "shared/traces/")
    if not file.exists():
        pytest.skip(f"{where} is absent")
    traces = tracekit.read_all(file)
    (trace,) = [
        t
        for t in traces
        if page.get("process", t.meta.process_ids[:1]) in (*t.meta.process_ids, t.meta.process_ids[:1])
    ]
    scope = select(trace)
    return page, scope, build_report(trace, scope=scope)


def first_screen(report: Report) -> str:
    """Verdict, costs, advice and notes."""
    return terminal.render(report, WIDE).split("\n──")[0]


FALLS_SHORT: Final = {
    ("kind", "cpu_only"): "30 events; only the sizes of the all-reduces suggest that it is training",
    ("window", "a100_cupti_counters"): "the counters' spans count as activities, although they have no times",
    ("bound", "a100_cupti_counters"): "a counter run has a verdict of its own",
}
"""What is not right yet, with the reason; a page that becomes right must leave this list."""


def params(what: str) -> list[Any]:
    def marks(path: Path) -> list[Any]:
        reason = FALLS_SHORT.get((what, path.stem))
        slow = [] if path.stem in QUICK else [pytest.mark.slow]
        return [*slow, pytest.mark.xfail(strict=True, reason=reason)] if reason else slow

    return [pytest.param(path, id=path.stem, marks=marks(path)) for path in PAGES]


LOW_PRECISION: Final = {"bf16", "fp16", "fp8", "mxfp4", "int8"}


@pytest.mark.slow
@pytest.mark.parametrize("path", params("kind"))
@pytest.mark.sampled(4)
def test_the_kind_of_run(path: Path) -> None:
    """Advice depends on these traits of a run."""
    page, scope, _ = reported(path)
    run, shown = page["run"], traits(scope)
    facts = {
        "training": run["kind"] == "training",
        "serving": run["kind"] == "serving",
        "amd": run["vendor"] == "AMD",
        "low_precision": bool(LOW_PRECISION & set(run.get("precision", []))),
        **{name: run[name] for name in ("pytorch", "compiled", "graphs", "fused_attention") if name in run},
    }
    assert {name: name in shown for name in facts} == facts


@pytest.mark.parametrize("path", params("window"))
def test_the_window_is_the_one_of_the_definitions(path: Path) -> None:
    page, scope, _ = reported(path)
    window = page["window"]
    assert scope.duration == window["duration_ns"]
    assert (scope.steps.height if scope.window == "steps" else 0) == window["steps"]
    if "busy_ns" in window:
        assert max(scope.intervals(device).measure for device in scope.device_ids) == window["busy_ns"]


@pytest.mark.parametrize("path", params("bound"))
def test_what_bounds_the_run(path: Path) -> None:
    page, _, report = reported(path)
    assert report.verdict.bound in page["bound"]["any"], report.verdict.headline


def shares(scope: Scope) -> dict[str, float]:
    """The largest parts of the window."""
    row = breakdown(scope).devices.sort("busy_ns").row(-1, named=True)
    window = row["window_ns"]
    found = {
        "idle": row["idle_ns"] / window,
        "communication": row["exposed_communication_ns"] / window,
        "copies": row["exposed_memory_ns"] / window,
    }
    for category, ns in kernels(scope).by_category.select("category", "total_ns").rows():
        found.setdefault(category, ns / window)
    return found


@pytest.mark.parametrize("path", params("costs"))
def test_the_largest_costs(path: Path) -> None:
    page, scope, _ = reported(path)
    found = shares(scope)
    wrong = {
        cost["what"]: (found.get(cost["what"]), cost["share"])
        for cost in page.get("cost", [])
        if not cost["share"][0] <= found.get(cost["what"], 0.0) <= cost["share"][1]
    }
    assert not wrong


@pytest.mark.parametrize("path", params("place"))
def test_the_cause_of_idle_time_and_its_place(path: Path) -> None:
    page, scope, report = reported(path)
    if "idle" not in page:
        pytest.skip("nothing to explain")
    low, high = page["idle"]["share"]
    assert low <= shares(scope)["idle"] <= high
    causes = idle(scope).by_cause.group_by("cause").agg(pl.col("total_ns").sum()).sort("total_ns")
    assert causes["cause"][-1] in page["idle"]["cause"]
    if "where" in page["idle"]:
        # Little idle time of a busy device is left to its section.
        text = first_screen(report) if low >= 0.1 else terminal.render(report, WIDE)
        assert re.search(page["idle"]["where"], text)


@pytest.mark.parametrize("path", params("advice"))
def test_the_advice_fits(path: Path) -> None:
    page, _, report = reported(path)
    given = [f"{advice.title} {advice.advice}" for advice in report.verdict.advice]
    wanted = [advice["says"] for advice in page.get("advice", [])]
    assert any(re.search(pattern, given[0]) for pattern in wanted), given[0]
    assert any(re.search(wanted[0], text) for text in given), (wanted[0], given)


@pytest.mark.parametrize("path", params("never"))
@pytest.mark.sampled(8)
def test_nothing_is_said_that_is_not_so(path: Path) -> None:
    page, _, report = reported(path)
    screen = first_screen(report)
    said = {
        never["says"]: (never["why"], match.group())
        for never in page.get("never", [])
        if (match := re.search(never["says"], screen))
    }
    assert not said
