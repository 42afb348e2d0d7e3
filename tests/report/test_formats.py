"""The table of output formats: every promise of it is kept, and what no format promises is refused."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import polars as pl
import pytest
import small_traces

from tracekit.errors import UsageError
from tracekit.report import formats
from tracekit.report.build import build_report, trace_info
from tracekit.report.formats import Can, Format, Page, check_traces, choose_format, formats_of

CONTENTS = (Can.REPORT, Can.SECTION, Can.TABLES, Can.FACTS, Can.STACKS, Can.FRAMES)
FUNCTIONS = {
    Can.PROSE: ("render", "render_section", "head"),
    Can.DOCUMENT: ("render_reports",),
    Can.DATA: ("render_data",),
    Can.FILES: ("encode_frame",),
    Can.STACKS: ("render_stacks",),
}
STACKS = pl.DataFrame({"device_id": [0], "phase": ["forward"], "frames": [["net"]], "value_ns": [7]})


@pytest.mark.parametrize("form", Format)
def test_a_module_has_what_its_line_promises(form: Format) -> None:
    module = import_module(form.module)
    for trait, names in FUNCTIONS.items():
        assert all(callable(getattr(module, name)) for name in names if trait in form.can)


@pytest.mark.parametrize("form", Format)
def test_every_content_has_exactly_one_way_to_be_written(form: Format) -> None:
    """A format that cannot be written would otherwise fall through to the text for a terminal."""
    ways = (Can.PROSE, Can.DOCUMENT, Can.FILES, Can.STACKS)
    assert sum(way in form.can for way in ways) == 1
    assert any(content in form.can for content in CONTENTS)
    assert form.alone in form.can


def test_every_suffix_tells_one_format() -> None:
    suffixes = [suffix for form in Format for suffix in form.suffixes]
    assert len(suffixes) == len(set(suffixes))
    for form in Format:
        for suffix in form.suffixes:
            assert choose_format(form.can, None, Path(f"x{suffix.upper()}"), command="it") is form


def test_the_suffix_of_a_format_that_fits_counts_first() -> None:
    path = Path("x.speedscope.json")
    assert choose_format(Can.REPORT, None, path, command="report", several=True) is Format.json
    assert choose_format(Can.STACKS, None, path, command="layers") is Format.speedscope


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("form", Format)
def test_what_a_format_cannot_hold_is_a_usage_error(content: Can, form: Format) -> None:
    if form in formats_of(content):
        assert choose_format(content, form, None, command="it") is form
    else:
        with pytest.raises(UsageError, match=f"it writes .*, not {form.value}"):
            choose_format(content, form, None, command="it")


@pytest.mark.quick(1)
@pytest.mark.parametrize("form", Format)
def test_no_writer_stands_in_for_another(form: Format, tmp_path: Path) -> None:
    trace = small_traces.compute_bound(tmp_path)
    report = build_report(trace, only=["steps"])
    section = report.sections[0]
    calls = {
        Can.PROSE | Can.DATA: lambda: formats.render_sections(form, [(section, trace_info(trace))], Page()),
        Can.DATA: lambda: formats.render_data(form, {"a": 1}),
        Can.FILES: lambda: formats.encode_frame(form, trace.device),
        Can.STACKS: lambda: formats.render_stacks(form, STACKS, "x"),
    }
    for trait, call in calls.items():
        if trait & form.can:
            assert call()
        else:
            with pytest.raises(LookupError, match=f"{form.value} cannot hold"):
                call()
    if Can.REPORT in form.can and Can.FILES not in form.can:
        assert formats.render_reports(form, [(report, trace)], Page())


def test_two_traces_in_one_file(tmp_path: Path) -> None:
    for form in Format:
        for content in CONTENTS:
            check_traces(content, form, 1)
    with pytest.raises(UsageError, match="give one, or use --rank or --process"):
        check_traces(Can.SECTION, Format.csv, 2)
    check_traces(Can.REPORT, Format.csv, 2)
    pairs = [
        (build_report(trace, only=["steps"]), trace) for trace in [small_traces.compute_bound(tmp_path)] * 2
    ]
    for form in (Format.table, Format.md, Format.html):
        text = formats.render_reports(form, pairs, Page())
        assert text.count("How long are the steps") == 2
        assert not text.startswith(formats.render_reports(form, pairs[:1], Page()))
