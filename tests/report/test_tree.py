"""The tree of layers as text and as a page."""

from __future__ import annotations

import json
import re
import string
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import small_traces
from paths import SAMPLES
from planted import MS, US, Planted
from real_traces import trace_of, traces
from rich.cells import cell_len
from test_report_html import _title_after, needs_browser

import tracekit
from tracekit.facts.capture_names import LAYER_PREFIX
from tracekit.report import figures, html, markdown, terminal
from tracekit.report.build import build_report, build_section
from tracekit.report.format import arranged, costliest
from tracekit.report.formats import Page
from tracekit.report.html.charts import chart
from tracekit.report.html.tree import OPEN_LAYERS, Branches, branches
from tracekit.report.model import Table, Tree
from tracekit.report.repeats import repeats_as_one
from tracekit.report.terminal.grid import tree_lines
from tracekit.trace import Trace

TIMES = {"net": 0, "net.small": 10, "net.large": 0, "net.large.0": 30, "net.large.1": 50, "head": 5}
"""Own device time in µs, in the order in which the layers run."""


def planted(times: dict[str, int] = TIMES) -> Trace:
    """Layers one after the other, each inside those whose path begins its own."""
    made = Planted()
    opened: dict[str, int] = {}
    clock = 0
    for path, time in times.items():
        opened[path] = clock
        clock += US
        if time:
            made.activity("gemm", clock, time * US, launch=clock, call_ns=US)
            clock += time * US
    ends: dict[str, int] = {}
    for path, start in opened.items():
        parts = path.split(".")
        for count in range(1, len(parts) + 1):
            ends[".".join(parts[:count])] = start + (times[path] + 1) * US
    for path, start in opened.items():
        end = ends[path]
        made.span("annotation", f"{LAYER_PREFIX}{path}", start, end, layer=path, module_type="Part")
    return made.trace()


def tree_of(trace: Trace) -> Table:
    table = build_section(trace, "layers").table("tree")
    assert table is not None
    return table


def test_costly_branches_come_first() -> None:
    table = tree_of(planted())
    assert table.frame["path"].to_list() == list(TIMES)
    expected = ["net", "net.large", "net.large.1", "net.large.0", "net.small", "head"]
    assert arranged(table)["path"].to_list() == expected


def test_the_costliest_rows_bring_what_is_above_them() -> None:
    table = tree_of(planted())
    assert costliest(table, 3)["path"].to_list() == ["net", "net.large", "net.large.1"]
    by_own = terminal.sort_table(table, "device_own_ns")
    assert costliest(by_own, 4)["path"].to_list() == ["net", "net.large", "net.large.1", "net.large.0"]
    assert costliest(table, 100).height == len(TIMES)


def test_lines_have_indents_and_bars() -> None:
    lines = tree_lines(tree_of(planted()), width=78, rows=4)
    assert lines[0].split()[:3] == ["layer", "on", "device"]
    assert [len(line) - len(line.lstrip()) for line in lines[1:]] == [0, 2, 4, 4]
    bars = [line.count("█") for line in lines[1:]]
    assert bars == sorted(bars, reverse=True)
    assert bars[0] == 12
    assert "90.0 µs" in lines[1]


@pytest.mark.quick(3)
@pytest.mark.parametrize("width", [20, 40, 60, 80, 120])
@pytest.mark.parametrize("path", traces(*SAMPLES))
@pytest.mark.sampled(4)
def test_lines_fit(path: Path, width: int) -> None:
    lines = tree_lines(tree_of(trace_of(path)), width=width, rows=40)
    assert max(map(cell_len, lines)) <= max(width, 40)
    assert len(lines) == 41


def test_wide_letters_fit() -> None:
    lines = tree_lines(tree_of(planted({"模型" * 30: 1, "模型" * 30 + ".層" * 9: 2})), width=60, rows=9)
    assert max(map(cell_len, lines)) <= 60


def test_the_union_is_shown_where_it_differs() -> None:
    made = Planted()
    made.span("annotation", f"{LAYER_PREFIX}net", 0, MS, layer="net", module_type="Net")
    made.activity("gemm", 10 * US, 50 * US, launch=US, stream=1)
    assert "any running" not in tree_lines(tree_of(made.trace()), width=120, rows=9)[0]
    made.activity("gemm", 30 * US, 50 * US, launch=9 * US, stream=2)
    lines = tree_lines(tree_of(made.trace()), width=120, rows=9)
    assert "any running" in lines[0]
    assert "100 µs" in lines[1]
    assert "70.0 µs" in lines[1]


def test_deep_trees_fit_a_page() -> None:
    path, times = "a", {}
    for _ in range(60):
        times[path] = 1
        path += ".a"
    lines = tree_lines(tree_of(planted(times)), width=60, rows=80)
    assert len(lines) == 61
    assert max(map(cell_len, lines)) <= 60
    assert all("a" in line for line in lines)


@pytest.mark.slow
def test_the_report_shows_the_tree_and_the_verdict_its_costs() -> None:
    report = build_report(planted())
    assert [(cost.label, cost.ns) for cost in report.verdict.layers] == [
        ("2 × net.large.* (Part)", 80 * US),
        ("net.small", 10 * US),
        ("head", 5 * US),
    ]
    text = terminal.render(report, Page(80))
    assert "layers  of 99.0 µs: 2 × net.large.* (Part) 80.0 µs (80.8 %)" in text
    assert 'By layer <span class="muted">of 99.0 µs; own time' in html.render(report, planted())
    assert re.search(r"^  net +████████████ +90.0 µs +94.7 %", text, re.MULTILINE)
    assert "net.large.1" in markdown.render(report)
    assert build_report(small_traces_without_layers()).verdict.layers == ()


def small_traces_without_layers() -> Trace:
    made = Planted()
    made.activity("gemm", 0, MS, launch=0)
    return made.trace()


# -- the page --------------------------------------------------------------------------------------


class Nesting(HTMLParser):
    """Whether every `details` closes, and the path of each layer with those around it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.paths: dict[str, list[str]] = {}
        self.pending = False
        self.depth = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "details":
            self.open.append("")
        if tag == "span" and given.get("class") == "layer-name":
            path = given["title"] or ""
            around = [one for one in self.open if one and one != path]
            if self.open and not self.open[-1]:
                self.open[-1] = path
            self.paths[path] = around

    def handle_endtag(self, tag: str) -> None:
        if tag == "details":
            self.open.pop()


def _page(trace: Trace) -> str:
    return html.render(build_report(trace), trace)


def test_the_tree_on_the_page_is_nested_as_the_layers_are() -> None:
    found = Nesting(_page(planted()))
    assert found.open == []
    expected = {path: [one for one in TIMES if path.startswith(f"{one}.")] for path in TIMES}
    assert found.paths == {**expected, "net.large.*": ["net", "net.large"]}


def test_hostile_layers_are_text(tmp_path: Path) -> None:
    page = _page(small_traces.hostile(tmp_path))
    found = Nesting(page)
    assert any("<img" in path for path in found.paths)
    assert "<img src=x" not in page
    assert "<iframe" not in page


ACT = """<script>
setTimeout(() => {
  const out = {errors: window.errors};
  const tree = [...document.querySelectorAll("details.tree")].at(-1);
  tree.open = true;
  const nodes = [...tree.querySelectorAll(".node")];
  const shown = () => nodes.filter((node) => node.checkVisibility()).length;
  out.first = shown();
  tree.querySelector("[data-tree=close]").click();
  out.closed = shown();
  tree.querySelector("[data-tree=open]").click();
  out.open = shown();
  const search = tree.querySelector(".find input");
  search.value = "LARGE.1";
  search.dispatchEvent(new Event("input"));
  out.found = nodes.filter((node) => node.checkVisibility()).map((node) => node.querySelector(".layer-name").title);
  search.value = "";
  search.dispatchEvent(new Event("input"));
  out.again = shown();
  const summary = tree.querySelector(".node summary");
  summary.focus();
  out.focus = document.activeElement === summary;
  document.title = JSON.stringify(out);
}, 500);
</script>"""


def _acted(page: str, folder: Path) -> dict[str, Any]:
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    watch = "<script>window.errors = []; window.onerror = (text) => window.errors.push(text);</script>"
    page = page.replace("<head>", "<head>" + watch).replace("</body>", ACT + "</body>")
    out: dict[str, Any] = json.loads(_title_after(page, folder))
    return out


def visible(tree: Branches) -> list[str]:
    """The paths of the rows that the page shows before anything is opened."""
    seen: list[str] = []
    opened: list[bool] = []
    for node in tree.nodes:
        del opened[len(opened) - node.ends :]
        if all(opened):
            seen.append(node.path)
        if node.inner:
            opened.append(node.open)
    return seen


def test_repeated_layers_are_one_row_with_their_sums() -> None:
    table = repeats_as_one(tree_of(planted()))
    assert table is not None
    rows = table.frame.select("path", "name", "device_ns", "device_own_ns").rows()
    assert ("net.large.*", "2 × Part", 80 * US, 80 * US) in rows
    assert table.frame["device_own_ns"].sum() == tree_of(planted()).frame["device_own_ns"].sum()
    assert table.frame["parent_layer_id"].is_null().sum() == 2
    assert repeats_as_one(tree_of(planted({"net": 0, "net.a": 1, "net.b": 2}))) is None


def test_texts_show_repeated_layers_as_one_row() -> None:
    report = build_report(planted(), only=["layers"])
    (section,) = report.sections
    assert "2 × Part" in terminal.render(report, Page(100))
    alone = terminal.render_section(section, Page(100))
    assert alone.index("Tree of layers, repeated ones as one") < alone.index("Tree of every layer")
    assert "net.large.\\*" in markdown.render(report, Page(100))
    in_order = replace(
        section,
        tables=tuple(replace(one, tree=one.tree and Tree(largest_first=False)) for one in section.tables),
    )
    assert "2 × Part" not in terminal.render_section(in_order, Page(100))


def test_ranges_whose_names_differ_in_the_last_part_only_are_one_row() -> None:
    made = Planted()
    for number in range(3):
        at = number * 100 * US
        made.span("annotation", f"blocks.{number}", at, at + 60 * US)
        made.activity("gemm", at + 20 * US, 30 * US, launch=at + 10 * US, call_ns=US)
    table = repeats_as_one(tree_of(made.trace()))
    assert table is not None
    assert ("3 × blocks.*", 90 * US) in table.frame.select("name", "device_ns").rows()


def test_many_siblings_open_as_few_rows_and_none_is_lost() -> None:
    times = {"net": 0, **{f"net.part{letter}": 1 for letter in string.ascii_letters}}
    tree = branches(tree_of(planted(times)), folded=True)
    assert len(visible(tree)) == 10
    assert {node.path for node in tree.nodes} == {*times, ""}
    (more,) = (node for node in tree.nodes if not node.path)
    assert (more.name, more.figures[0]) == ("44 more", "44.0 µs")


@pytest.mark.parametrize("path", traces(*SAMPLES))
def test_few_rows_of_the_tree_are_open_at_first(path: Path) -> None:
    table = tree_of(trace_of(path))
    merged = repeats_as_one(table)
    assert merged is not None
    assert merged.frame["device_own_ns"].sum() == table.frame["device_own_ns"].sum()
    assert 2 <= len(visible(branches(merged, folded=True))) <= OPEN_LAYERS


@needs_browser
def test_the_tree_opens_closes_and_finds(tmp_path: Path) -> None:
    out = _acted(_page(planted()), tmp_path)
    assert out["errors"] == []
    assert (out["first"], out["closed"], out["open"]) == (6, 2, 6)
    assert out["found"] == ["net", "net.large", "net.large.1"]
    assert out["again"] == out["first"]
    assert out["focus"]


@needs_browser
def test_five_thousand_layers_stay_usable(tmp_path: Path) -> None:
    times = {"net": 0}
    for block in range(500):
        times[f"net.{block}"] = 0
        times |= {f"net.{block}.{part}": 1 + block % 7 for part in range(9)}
    page = _page(planted(times))
    assert len(Nesting(page).paths) == 5002  # with net.* and net.*.*
    assert len(page) < 5_000_000
    out = _acted(page, tmp_path)
    assert out["errors"] == []
    assert out["open"] == 5000


@pytest.mark.slow
def test_the_icicle_puts_layers_below_each_other() -> None:
    section = build_section(planted(), "layers")
    (figure,) = section.figures
    nodes = figure.data["nodes"]
    assert figure.data["total"] == 95 * US
    assert [(n["label"], n["depth"], n["start"], n["value"]) for n in nodes] == [
        ("forward", 0, 0, 95 * US),
        ("net", 1, 0, 90 * US),
        ("small", 2, 0, 10 * US),
        ("large", 2, 10 * US, 80 * US),
        ("0", 3, 10 * US, 30 * US),
        ("1", 3, 40 * US, 50 * US),
        ("head", 1, 90 * US, 5 * US),
    ]
    drawn = chart(figure)
    assert drawn.levels == 4
    assert max(box.offset + box.length for box in drawn.boxes) == pytest.approx(100, abs=0.01)
    assert figures.encode(figure, "svg").startswith(b"<?xml")
    assert figures.encode(figure, "svg") == figures.encode(figure, "svg")


@pytest.mark.parametrize("path", traces(*SAMPLES))
def test_boxes_stay_below_the_one_they_belong_to(path: Path) -> None:
    (figure,) = build_section(tracekit.read(path), "layers").figures
    above: list[tuple[int, int]] = []
    for node in figure.data["nodes"]:
        del above[node["depth"] :]
        start, end = node["start"], node["start"] + node["value"]
        if above:
            assert above[-1][0] <= start
            assert end <= above[-1][1]
        assert len(above) == node["depth"]
        above.append((start, end))
