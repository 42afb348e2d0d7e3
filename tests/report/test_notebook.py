"""What a notebook shows of a trace, a result, a verdict and a report."""

from __future__ import annotations

import base64
import dataclasses
import re
from xml.etree import ElementTree

import polars as pl
import pytest
from paths import ROOT

import tracekit
from tracekit.analyses.rules import run
from tracekit.analyses.scope import select
from tracekit.report.build import build_report
from tracekit.report.model import Report
from tracekit.trace import Trace

CNN = ROOT / "sample_traces/cnn_cpu/trace.json.gz"
HOSTILE = "<script>alert(1)\x1b[31m\u202e"


@pytest.fixture(scope="module")
def trace() -> Trace:
    return tracekit.read(CNN)


@pytest.fixture(scope="module")
def report(trace: Trace) -> Report:
    return build_report(trace)


def elements(html: str) -> list[str]:
    """The names of the elements, of which each is closed in its place."""
    tree = ElementTree.fromstring(re.sub(r"<(img|hr)([^>]*)>", r"<\1\2/>", f"<all>{html}</all>"))  # noqa: S314 - our own
    return [each.tag for each in tree.iter()]


def test_each_object_is_html(trace: Trace, report: Report) -> None:
    for shown in (trace, report, report.verdict, run("kernels", trace), *report.sections):
        html = shown._repr_html_()  # type: ignore[attr-defined]
        assert {"div", "p"} & set(elements(html))
    assert report.verdict.headline in report._repr_html_()
    result = run("kernels", trace)._repr_html_()
    assert "by_name" in result
    assert "total_ns" in result  # the names by which the figures are reached


@pytest.mark.slow
def test_printed_objects_are_short(trace: Trace, report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result, section = run("kernels", trace), report.section("kernels")
    for each in (trace, select(trace), report, section, result):
        assert "shape: (" not in repr(each)  # no frame
        assert len(repr(each)) < 140
    text = str(report)
    assert report.verdict.headline in " ".join(text.split())
    assert 'print(report.section("workload")), or of breakdown, steps' in text
    assert max(map(len, text.splitlines())) <= 80
    assert 'print(report.section("memory")); ' in str(build_report(trace, only=["memory"]))
    assert "aten::convolution_backward" in str(section)
    assert str(report.verdict) == f"cpu: {report.verdict.headline}"
    assert str(result).splitlines()[0] == result.answer
    assert f"  by_name: {len(result.tables()['by_name'])} rows" in str(result).splitlines()


def test_names_are_text(trace: Trace) -> None:
    report = build_report(trace)
    hostile = dataclasses.replace(
        report,
        verdict=dataclasses.replace(report.verdict, headline=HOSTILE, notes=(HOSTILE,)),
        sections=tuple(dataclasses.replace(each, answer=HOSTILE) for each in report.sections),
    )
    result = dataclasses.replace(run("kernels", trace), answer=HOSTILE)
    by_name = result.tables()["by_name"].with_columns(name=pl.lit(HOSTILE))
    result = dataclasses.replace(result, by_name=by_name)  # type: ignore[call-arg]
    meta = dataclasses.replace(trace.meta, path=HOSTILE)
    elsewhere = dataclasses.replace(trace, meta=meta)
    for line in (str(result), repr(elsewhere), repr(select(elsewhere))):
        assert "\x1b" not in line
        assert "\u202e" not in line
    for shown in (hostile, hostile.verdict, hostile.sections[0], result, elsewhere):
        html = shown._repr_html_()  # type: ignore[attr-defined]
        assert "&lt;script&gt;" in html
        assert "<script" not in html
        assert "\x1b" not in html
        assert "\u202e" not in html


@pytest.mark.slow
def test_plots_are_images_in_one_call(report: Report) -> None:
    plots = report.plot()
    names = [figure.name for section in report.sections for figure in section.figures]
    assert repr(plots) == f"Plots({', '.join(names)})"
    images = re.findall(r'<img alt="[^"]*" src="data:image/svg\+xml;base64,([^"]*)">', plots._repr_html_())
    assert len(images) == len(names) > 2
    assert b"<svg" in base64.b64decode(images[0])
    section = report.section("breakdown")
    assert section is not None
    assert len(section.plot().figures) == len(section.figures)


def test_ipython_shows_it(report: Report) -> None:
    formatters = pytest.importorskip("IPython.core.formatters", reason="IPython is not installed")
    data, _ = formatters.DisplayFormatter().format(report)
    assert data["text/html"] == report._repr_html_()
