"""Terminal and Markdown: snapshots of small reports, widths, and names that try to escape."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import hypothesis
import polars as pl
import pytest
import small_traces
from hypothesis import strategies as st
from paths import PUBLIC, ROOT, SAMPLES
from real_traces import report_of, traces
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

import tracekit
from tracekit.analyses import rules
from tracekit.findings import Finding
from tracekit.names import shorten_name, shorten_names
from tracekit.report import markdown, terminal
from tracekit.report.build import build_report, build_section
from tracekit.report.format import format_source, format_window, legend
from tracekit.report.formats import Page
from tracekit.report.model import Advice, Report
from tracekit.report.terminal.lines import draw
from tracekit.trace import Trace

SWEEP = "void clover::par_ranged2d_kernel<{}(global_variables&, int)::{{lambda(int, int)#1}}>(clover::Range2d, int)"
_ELASTIC = "Operator::Elastic<(int)1>"
_LAPLACE = "terra::shell::LaplaceSimple<double>, Kokkos::MDRangePolicy<Kokkos::Rank<(unsigned int)4> >"
_COPY = (
    "at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::"
    "operator()() const::{lambda()#7}::operator()() const::{lambda(float)#1}>(at::TensorIteratorBase&, int)::{lambda(int)#1}"
)
SNAPSHOTS = Path(__file__).parent / "snapshots"
MADE: dict[str, Callable[[Path], Trace]] = {
    "compute_bound": small_traces.compute_bound,
    "communication_bound": small_traces.communication_bound,
    "cpu": small_traces.cpu,
    "nothing": small_traces.nothing,
}


def _compare(text: str, name: str) -> None:
    """Compare with the stored text; UPDATE_SNAPSHOTS=1 stores it anew."""
    path = SNAPSHOTS / name
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.fixture
def _no_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the rules say is tested where they live; it must not change these texts."""
    monkeypatch.setattr(rules, "RULES", {})


def _with_findings(report: Report) -> Report:
    """The report with findings of every kind."""
    findings = (
        Finding("first", "critical", "The first thing", "Evidence of it.", "Do this, then that.", 1_000_000),
        Finding(
            "second", "warning", "The second thing", "More evidence " * 20, "Do it differently " * 20, None
        ),
        Finding(
            "third",
            "info",
            "The third thing",
            "Evidence that only the section's own page shows.",
            "Read on.",
            5,
        ),
    )
    sections = tuple(
        replace(one, findings=findings) if one.name == "steps" else one for one in report.sections
    )
    advice = tuple(Advice(f.title, f.advice, f.ns_at_stake, f.id, "steps", f.severity) for f in findings)
    return replace(report, sections=sections, verdict=replace(report.verdict, advice=advice))


@pytest.mark.usefixtures("_no_rules")
def test_findings_snapshot(tmp_path: Path) -> None:
    report = _with_findings(build_report(small_traces.compute_bound(tmp_path), only=["steps"]))
    _compare(terminal.render(report, Page(80)), "findings.terminal.txt")
    _compare(markdown.render(report), "findings.md")


@pytest.mark.quick(3)
@pytest.mark.usefixtures("_no_rules")
@pytest.mark.parametrize("name", MADE)
def test_terminal_snapshot(tmp_path: Path, name: str) -> None:
    _compare(terminal.render(build_report(MADE[name](tmp_path)), Page(80)), f"{name}.terminal.txt")


@pytest.mark.quick(2)
@pytest.mark.usefixtures("_no_rules")
@pytest.mark.parametrize("name", MADE)
def test_markdown_snapshot(tmp_path: Path, name: str) -> None:
    _compare(markdown.render(build_report(MADE[name](tmp_path))), f"{name}.md")


@pytest.mark.usefixtures("_no_rules")
def test_section_snapshot(tmp_path: Path) -> None:
    section = build_section(small_traces.compute_bound(tmp_path), "kernels")
    _compare(terminal.render_section(section, Page(80)), "kernels_section.terminal.txt")


@pytest.mark.quick(3)
@pytest.mark.parametrize("width", [40, 80, 132])
@pytest.mark.parametrize("path", traces(*SAMPLES, *PUBLIC))
@pytest.mark.sampled(8)
def test_no_line_is_wider_than_the_terminal(path: Path, width: int) -> None:
    text = terminal.render(report_of(path), Page(width))
    assert max(map(cell_len, text.splitlines())) <= width
    if width == 80:
        assert text.count("\n") <= 141


def test_shapes_are_whole_at_80_columns() -> None:
    section = build_section(tracekit.read(ROOT / "sample_traces/cnn_cpu/trace.json.gz"), "ops")
    by_shape = [table for table in section.tables if table.name == "by_shape"]
    text = terminal.render_section(replace(section, tables=tuple(by_shape)), Page(80, top=9))
    assert "  aten::convolution_backward  4×16×32×32, 4×16×32×32,   15.7 %" in text
    assert "\n                              16×16×3×3\n" in text
    assert "no room for: host, FLOP/s\n" in text
    assert "…" not in text
    assert max(map(cell_len, text.splitlines())) <= 80
    shapes = json.dumps([[1024, number] for number in range(90)])
    long = replace(by_shape[0], frame=by_shape[0].frame.with_columns(shapes=pl.lit(shapes)))
    text = terminal.render_section(replace(section, tables=(long,)), Page(80, top=1))
    assert "  1024×0, 1024×1, 1024×2," in text
    assert text.splitlines()[-1].strip().startswith("… ")


def test_a_long_question_is_whole(tmp_path: Path) -> None:
    section = build_section(small_traces.cpu(tmp_path), "breakdown")
    long = replace(section, question=" ".join(["word"] * 30) + "?")
    lines = terminal.render_section(long, Page(80)).splitlines()
    assert " ".join(lines[:2]).count("word") == 30
    assert lines[1].endswith("? " + "─" * (80 - len(lines[1].rstrip("─"))))
    assert max(map(cell_len, lines)) <= 80


def test_numbered_layers_have_their_class() -> None:
    section = build_section(tracekit.read(ROOT / "sample_traces/bert_cpu/trace.json.gz"), "layers")
    assert "          1 (BertLayer)  " in terminal.render_section(section, Page(80))


def test_verdict_comes_first(tmp_path: Path) -> None:
    head = terminal.render(build_report(small_traces.input_bound(tmp_path)), Page(80)).splitlines()[:5]
    assert head[0].startswith("INPUT-BOUND")
    assert any(line.startswith("costs") for line in head)
    assert any(line.startswith("try") for line in head)


def test_colour_only_when_asked_for(tmp_path: Path) -> None:
    report = build_report(small_traces.host_bound(tmp_path))
    assert "\x1b[" not in terminal.render(report, Page(80))
    assert "\x1b[" in terminal.render(report, Page(80, color=True))


@pytest.mark.parametrize("width", [4, 9, 12])
@pytest.mark.parametrize("color", [False, True])
def test_lines_are_drawn_as_rich_draws_them(width: int, color: bool) -> None:
    lines = [
        (),
        (("bold", "bold reverse"), ("", "dim"), (" and plain", "")),
        (("  ", ""), ("幅の広い文字", "bright_black"), (" ", "green"), ("🚀", "bold cyan")),
        (("  ", ""),),
    ]
    out = io.StringIO()
    system: Literal["standard"] | None = "standard" if color else None
    console = Console(file=out, width=width, force_terminal=color, color_system=system)
    text = Text("\n").join(Text.assemble(*line) for line in lines)
    console.print(text, no_wrap=True, overflow="ellipsis", crop=False)
    assert draw(lines, width, color) == out.getvalue()


def test_hostile_names_reach_no_terminal(tmp_path: Path) -> None:
    text = terminal.render(build_report(small_traces.hostile(tmp_path)), Page(200, top=20))
    assert not any(ord(letter) < 32 and letter != "\n" for letter in text)
    assert "\u202e" not in text


def test_hostile_names_are_plain_text_in_markdown(tmp_path: Path) -> None:
    text = markdown.render(build_report(small_traces.hostile(tmp_path)), Page(top=20))
    assert "<script" not in text
    assert "<img" not in text
    assert "@someone" not in text
    assert "](https:" not in text


def test_sorting_a_section(tmp_path: Path) -> None:
    section = build_section(small_traces.compute_bound(tmp_path), "kernels")
    table = terminal.sort_table(section.tables[0], "min_ns")
    assert table.frame["min_ns"].to_list() == sorted(table.frame["min_ns"], reverse=True)
    by_name = terminal.sort_table(section.tables[0], "name")
    text = terminal.render_section(replace(section, tables=(by_name,)), Page(80, top=1))
    assert "Memcpy HtoD" in text
    assert terminal.sort_table(by_name, "nonsense") is by_name


@pytest.mark.parametrize(
    ("name", "width", "short"),
    [
        ("Memcpy HtoD (Pageable -> Device)", 40, "Memcpy HtoD (Pageable -> Device)"),
        ("void cutlass::Kernel2<cutlass_80_gemm_128x64>(Params)", 24, "cutlass_80_gemm_128x64"),
        ("void at::native::(anonymous namespace)::norm_kernel<float, int>(int)", 14, "norm_kernel<…>"),
        ("aten::convolution_backward", 20, "aten::…backward"),
        ("Memcpy HtoD (Pageable -> Device)", 31, "Memcpy HtoD (Pageable→Device)"),
        ("Memcpy DtoH (Device -> Pinned)", 24, "Memcpy DtoH (Pinned)"),
        ("<buffer synchronisation>", 20, "<buffer sy…nisation>"),
        ("TimesformerForVideoClassification_0", 31, "TimesformerFor…Classification_0"),
        ("[param|pytorch.alex_net|0|warmup|forward]", 26, "[param|…0|warmup|forward]"),
        ("models/owlv2/image_owlv2.py(620): post_process", 40, "owlv2/image_owlv2.py(620): post_process"),
        ("models/owlv2/image_owlv2.py(620): post_process", 32, "…owlv2.py(620): post_process"),
        ("models/owlv2/image_owlv2.py(620): post_process", 20, "post_process"),
        (
            "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, float>(int)",
            20,
            "gemvx::kernel<…>",
        ),
        (SWEEP.format("accelerate_kernel"), 44, "par_ranged2d_kernel<accelerate_kernel>"),
        (SWEEP.format("accelerate_kernel"), 30, "par_…kernel<accelerate_kernel>"),
        (SWEEP.format("accelerate_kernel"), 20, "accelerate_kernel"),
        (f"void amrex::launch_global<{_ELASTIC}::Fapply(int)::[lambda(int)]>()", 24, "launch_global<Fapply>"),
        (
            f"void Kokkos::Impl::launch<Kokkos::Impl::ParallelFor<{_LAPLACE}, Kokkos::Cuda> >()",
            22,
            "launch<LaplaceSimple>",
        ),
        (
            f"void at::native::elementwise_kernel<128, 2, {_COPY}>(int)",
            50,
            "elementwise_kernel<direct_copy_kernel_cuda>",
        ),
    ],
)
def test_short_names_keep_what_tells_most(name: str, width: int, short: str) -> None:
    assert shorten_name(name, width) == short


@pytest.mark.parametrize("width", [32, 40, 64, 80])
def test_names_of_one_table_stay_apart(width: int) -> None:
    lines = (Path(__file__).parents[1] / "data" / "kernel_names.txt").read_text("utf-8").splitlines()
    names = [line.split(maxsplit=1)[1] for line in lines if line and not line.startswith("#")]
    short = shorten_names(names, width)
    assert len(set(short.values())) == len(set(names))
    assert max(map(len, short.values())) <= width


@hypothesis.given(
    st.sets(st.from_regex(r"k[a-z]{0,5}_[a-z]{1,7}x", fullmatch=True), min_size=2), st.integers(20, 80)
)
def test_what_distinguishes_kernels_is_kept_at_any_width(functions: set[str], width: int) -> None:
    short = shorten_names([SWEEP.format(function) for function in functions], width)
    assert len(set(short.values())) == len(functions)
    assert all(len(text) <= width for text in short.values())
    assert all(function in short[SWEEP.format(function)] for function in functions)


@hypothesis.given(st.lists(st.text("ab_<>(), :1", max_size=30)), st.integers(0, 40))
def test_any_names_fit_together(names: list[str], width: int) -> None:
    assert all(len(text) <= width for text in shorten_names(names, width).values())


@pytest.mark.parametrize("width", range(12))
def test_names_fit_any_width(width: int) -> None:
    for name in (
        "void f<int, g<h>>(a, b)",
        "operator<<(x<y",
        "->",
        "",
        "<<<>>>",
        "a) b) c)",
        "日本語の名前です",
    ):
        assert len(shorten_name(name, width)) <= max(width, 0)


def test_the_sorted_column_is_always_shown(tmp_path: Path) -> None:
    section = build_section(small_traces.compute_bound(tmp_path), "kernels")
    tables = tuple(terminal.sort_table(table, "p95_ns") for table in section.tables)
    text = terminal.render_section(replace(section, tables=tables), Page(60))
    assert "p95" in text


def test_the_window_of_steps_that_took_another_time_on_the_host(tmp_path: Path) -> None:
    window = build_report(small_traces.host_bound(tmp_path), only=["steps"]).window
    told = format_window(window)
    assert "on the host" not in told
    assert format_window(replace(window, duration_ns=window.duration_ns // 2)).endswith(
        "; on the host the step took 1.01 ms"
    )
    assert format_window(replace(window, duration_ns=window.duration_ns * 95 // 100)) == told.replace(
        "1.01 ms", "960 µs"
    )


def test_devices_without_a_name(tmp_path: Path) -> None:
    info = build_report(small_traces.host_bound(tmp_path), only=["steps"]).trace
    nameless = replace(
        info, devices=tuple(replace(info.devices[0], device_id=number, name="") for number in (0, 1))
    )
    assert "2 devices that the file does not name" in format_source(nameless)


@pytest.mark.parametrize(
    ("layers", "told"),
    [
        (["conv1", "<else>"], ""),
        (["conv1", "<optimizer>"], "Names in <…> stand for work outside the layers."),
        (["unattributed"], "unattributed stands for work outside any known layer."),
        (["<root>"], "<root> stands for the model itself."),
        (
            ["<data>", "<root>"],
            "Names in <…> stand for work outside the layers, <root> for the model itself, <data> for loading and copying of data.",
        ),
    ],
)
def test_names_that_are_no_layers_are_explained(layers: list[str], told: str) -> None:
    assert legend([pl.DataFrame({"path": layers}), pl.DataFrame({"cause": ["<set-up>"]})]) == told


def test_warnings_are_never_cut(tmp_path: Path) -> None:
    report = _with_findings(build_report(small_traces.compute_bound(tmp_path), only=["steps"]))
    text = " ".join(terminal.render(report, Page(60)).split())
    assert ("More evidence " * 20).strip() in text
    assert ("Do it differently " * 20).strip() in text


def test_the_line_above_one_of_several_reports_shows_that_it_is_cut() -> None:
    """It ended within a number: `1 device that the file does not name · 16,44` of 16,446 events."""
    trace = build_report(tracekit.read(ROOT / "sample_traces" / "cnn_cpu" / "trace.json.gz")).trace
    whole = f"══ {format_source(trace)} "
    assert terminal.head(trace, Page(width=len(whole) + 3)) == f"{whole}═══"
    narrow = terminal.head(trace, Page(width=len(whole) - 4))
    assert narrow.endswith(" …")
    assert len(narrow) <= len(whole) - 4
