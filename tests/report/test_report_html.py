"""The page: one file, nothing loaded, nothing executed that is not ours; tried out in a browser where there is one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import small_traces
from markupsafe import escape
from paths import GPU_SAMPLES, PUBLIC, SAMPLES
from real_traces import report_of, trace_of, traces

from tracekit.analyses.ranks import summary_of
from tracekit.analyses.registry import BUILT_IN
from tracekit.analyses.scope import select
from tracekit.job import job_of, rank_sets
from tracekit.job.rank_set import Member
from tracekit.names import unbroken
from tracekit.report import html
from tracekit.report.build import build_report
from tracekit.report.format import is_silent
from tracekit.report.formats import Page
from tracekit.report.glossary import COLUMNS, meaning
from tracekit.report.html.charts import chart
from tracekit.report.html.timeline import timeline
from tracekit.report.job import job_section
from tracekit.report.json.render import render as as_json
from tracekit.report.model import Report
from tracekit.trace import CATEGORIES, Trace

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def needs_browser(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test that opens a page in a browser."""
    return pytest.mark.slow(pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")(test))


FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    "--window-size=1280,900",
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


def _page(trace: Trace) -> str:
    return html.render(build_report(trace), trace)


def _title_after(page: str, folder: Path) -> str:
    """The document's title after the page's scripts have run."""
    path = folder / "page.html"
    path.write_text(page, encoding="utf-8")
    profile = f"--user-data-dir={folder / 'profile'}"
    command = [str(CHROMIUM), *FLAGS, profile, "--virtual-time-budget=4000", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, timeout=120, check=True)
    found = re.search(r"<title>(.*?)</title>", done.stdout.decode("utf-8"), re.DOTALL)
    assert found is not None
    return found.group(1)


class Elements(HTMLParser):
    """Collects the elements of a page with their attributes, and the texts of its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.in_script = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.in_script = tag == "script"

    def handle_endtag(self, tag: str) -> None:
        self.in_script = False

    def handle_data(self, data: str) -> None:
        if self.in_script:
            self.scripts.append(data)


@pytest.fixture
def hostile(tmp_path: Path) -> Trace:
    return small_traces.hostile(tmp_path)


def test_hostile_names_make_no_elements(hostile: Trace) -> None:
    found = Elements(_page(hostile))
    tags = [tag for tag, _ in found.elements]
    assert tags.count("script") == 3
    assert not {"img", "iframe", "object", "embed", "link", "form", "base"} & set(tags)
    handlers = [name for _, attributes in found.elements for name in attributes if name.startswith("on")]
    assert handlers == []
    assert all("style" not in attributes for _, attributes in found.elements)


def test_embedded_data_cannot_leave_their_element(hostile: Trace) -> None:
    scripts = Elements(_page(hostile)).scripts
    data = json.loads(scripts[0])
    assert any("</script>" in name for name in data["names"])
    for text in scripts[:2]:
        assert not set(text) & set("<>&\u2028\u2029")


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(hostile: Trace) -> None:
    page = _page(hostile)
    for _, attributes in Elements(page).elements:
        for name in ("src", "href", "srcset", "action", "data", "poster", "xlink:href"):
            value = attributes.get(name)
            assert value is None or value.startswith("#"), (name, value)
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert style is not None
    assert "url(" not in style.group(1)
    assert "@import" not in style.group(1)
    assert not re.search(r"(fetch|XMLHttpRequest|WebSocket|import)\s*\(", page.split("</main>")[1])


def test_policy_allows_only_our_own(hostile: Trace) -> None:
    policy = next(
        attributes["content"]
        for tag, attributes in Elements(_page(hostile)).elements
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


@needs_browser
def test_hostile_names_do_nothing_in_a_browser(hostile: Trace, tmp_path: Path) -> None:
    assert _title_after(_page(hostile), tmp_path) == "small · tracekit report"


@needs_browser
def test_escaping_holds_without_the_policy(hostile: Trace, tmp_path: Path) -> None:
    page, count = re.subn(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", _page(hostile))
    assert count == 1
    assert _title_after(page, tmp_path) == "small · tracekit report"


@needs_browser
def test_the_browser_would_notice(hostile: Trace, tmp_path: Path) -> None:
    """Without escaping the payloads do run, so the two tests above test something."""
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", _page(hostile))
    page = page.replace("</main>", small_traces.HOSTILE[1] + "</main>")
    assert _title_after(page, tmp_path) == "PWNED"


ACT = """<script>
setTimeout(() => {
  const out = {errors: window.errors};
  const table = [...document.querySelectorAll("details.grid")].find((t) => t.textContent.trim().startsWith("By name"));
  const rows = () => [...table.querySelectorAll("tbody tr")].filter((row) => !row.hidden);
  const columns = () => [...table.querySelectorAll("th")].filter((head) => head.checkVisibility()).length;
  out.columns = [columns()];
  table.querySelector(".wide input").click();
  out.columns.push(columns());
  out.hint = table.querySelector("th[title]").title;
  out.first = rows().length;
  table.querySelector(".more").click();
  out.every = rows().length;
  const search = table.querySelector(".find input");
  search.value = "kernel_7";
  search.dispatchEvent(new Event("input"));
  out.found = rows().length;
  search.value = "";
  search.dispatchEvent(new Event("input"));
  const head = [...table.querySelectorAll("th")].find((th) => th.textContent === "total");
  head.querySelector("button").click();
  out.order = head.getAttribute("aria-sort");
  out.largest = rows()[0].cells[0].textContent;
  document.getElementById("theme").click();
  out.theme = document.documentElement.dataset.theme;
  const canvas = document.getElementById("canvas");
  canvas.focus();
  const picked = document.getElementById("picked");
  const press = (target, key) => target.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
  for (const key of ["w", "+", "d", "ArrowRight", ".", "."]) press(canvas, key);
  out.neighbour = picked.querySelector("b").textContent;
  const find = document.getElementById("find");
  find.value = "KERNEL_1";
  find.dispatchEvent(new Event("input"));
  out.hits = document.getElementById("found").textContent;
  press(canvas, "Escape");
  press(find, "Enter");
  const told = () => [...picked.querySelectorAll(".chain > div")].map((row) => [...row.children].map((part) => part.textContent));
  out.picked = picked.textContent;
  out.chain = told();
  picked.querySelector(".reference").click();
  out.launch = picked.querySelector("b").textContent;
  out.launched = told();
  document.querySelector("[data-do=link]").click();
  out.link = location.hash;
  const box = canvas.getBoundingClientRect();
  const at = {clientX: box.left + 400, clientY: box.top + 36, bubbles: true, cancelable: true};
  canvas.dispatchEvent(new WheelEvent("wheel", {...at, deltaY: -100}));
  document.querySelector("[data-do=all]").click();
  document.querySelectorAll("#groups input").forEach((box) => { if (!box.parentNode.textContent.includes("threads")) box.click(); });
  canvas.dispatchEvent(new PointerEvent("pointermove", at));
  out.tip = document.getElementById("tip").textContent;
  document.title = JSON.stringify(out);
}, 500);
</script>"""


@needs_browser
def test_tables_and_timeline_answer(tmp_path: Path) -> None:
    script = small_traces.Script()
    script.step(0, 0, 2000)
    for index in range(20):
        script.work(f"kernel_{index}", 100.0 * index + 5, 100.0 * index + 10, 20 + index)
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", _page(script.read(tmp_path)))
    watch = "<script>window.errors = []; window.onerror = (text) => window.errors.push(text);</script>"
    page = page.replace("<head>", "<head>" + watch).replace("</body>", ACT + "</body>")
    out: dict[str, Any] = json.loads(_title_after(page, tmp_path))
    assert out["errors"] == []
    assert (out["first"], out["every"], out["found"]) == (5, 20, 1)
    assert out["columns"][0] == 6 < out["columns"][1]
    assert out["hint"] == meaning("kernels", "name")
    assert (out["order"], out["largest"]) == ("descending", "kernel_19")
    assert out["theme"] in ("light", "dark")
    assert out["neighbour"] == "operator dispatch"
    assert out["hits"] == "11 found"
    assert out["picked"].startswith(
        "kernel_1 · matrix multiplication, 21.0 µs, starts at 110 µs · device 0, stream 7"
    )
    assert out["chain"] == [
        ["Launch", "cudaLaunchKernel 4.00 µs, 5.00 µs earlier"],
        ["Operator", "aten::mm 6.00 µs"],
        ["Phase", "forward"],
        ["Layer known by", "unattributed"],
    ]
    assert out["launch"] == "cudaLaunchKernel"
    assert ["Launched", "kernel_1 21.0 µs"] in out["launched"]
    assert re.fullmatch(
        r"#timeline&from=\d+&to=\d+&select=\d+&find=KERNEL_1&(light|dark)",
        out["link"].replace("&amp;", "&"),
    )
    assert out["tip"].startswith("ProfilerStep#0 · step, 2.00 ms")


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "kind"), [(3, "stack"), (40, "columns")])
def test_bars_of_steps_stay_within_the_figure(tmp_path: Path, steps: int, kind: str) -> None:
    script = small_traces.Script()
    for number in range(steps):
        script.step(number, 100.0 * number, 100)
        script.work("gemm_kernel", 100.0 * number + 5, 100.0 * number + 10, 20 + number)
    figure = build_report(script.read(tmp_path)).sections[1].figures[0]
    drawn = chart(figure)
    assert drawn.kind == kind
    assert len(drawn.rows) == steps
    ends = [row.parts[-1].offset + row.parts[-1].length for row in drawn.rows]
    assert max(ends) == pytest.approx(100, abs=0.01)
    assert sum(bar.length for bar in drawn.legend) == pytest.approx(100, abs=0.1)
    assert f'class="{"columns" if kind == "columns" else "stack"}"' in _page(script.read(tmp_path))


@pytest.mark.slow
def test_no_line_ends_between_a_figure_and_its_unit(tmp_path: Path) -> None:
    trace = small_traces.host_bound(tmp_path)
    page, headline = _page(trace), build_report(trace).verdict.headline
    assert re.search(r"\d (%|ms|µs|s)\b", headline + " ")  # there are such figures
    shown = re.search(r'<p class="headline">(.*?)</p>', page, re.DOTALL)
    assert shown is not None
    assert shown.group(1).replace("\xa0", " ") == headline
    assert not re.search(r"\d (%|ns|µs|ms|s)(?!\w)", shown.group(1))


def test_no_timeline_without_anything(tmp_path: Path) -> None:
    trace = small_traces.nothing(tmp_path)
    assert timeline(trace, build_report(trace)) is None
    assert "The timeline needs" not in _page(trace)


@needs_browser
def test_a_browser_that_cannot_unpack_says_so(tmp_path: Path) -> None:
    page = re.sub(
        r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", _page(small_traces.host_bound(tmp_path))
    )
    page = page.replace("<head>", "<head><script>delete window.DecompressionStream;</script>")
    tell = "<script>setTimeout(() => { document.title = document.getElementById('picked').textContent; }, 300)</script>"
    assert _title_after(page.replace("</body>", tell + "</body>"), tmp_path).startswith(
        "This browser cannot unpack the timeline"
    )


@pytest.mark.quick(2)
@pytest.mark.parametrize("path", traces(*PUBLIC))
@pytest.mark.sampled(4)
def test_every_trace_makes_a_page(path: Path) -> None:
    page = html.render(report_of(path), trace_of(path))
    assert page.count("<h1>") == 1
    assert "</html>" in page


# -- short before anything is opened -----------------------------------------------------------------


HEIGHT = """<script>
setTimeout(() => { document.title = JSON.stringify([document.documentElement.scrollHeight, document.documentElement.scrollWidth]); }, 900);
</script>"""


@needs_browser
@pytest.mark.parametrize("name", ["bert_cpu", "cnn_cpu", "resnet50_gpu_bf16", "yolov5_gpu_fp32"])
@pytest.mark.sampled(2)
def test_a_page_is_short_before_anything_is_opened(name: str, tmp_path: Path) -> None:
    (path,) = (one for one in (*SAMPLES, *GPU_SAMPLES) if one.parent.name == name)
    page = re.sub(
        r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html.render(report_of(path), trace_of(path))
    )
    height, width = json.loads(_title_after(page.replace("</body>", HEIGHT + "</body>"), tmp_path))
    assert 1000 < height <= 4000
    assert width <= 1280


@needs_browser
def test_a_page_of_several_ranks_is_short(tmp_path: Path) -> None:
    paths = [path for path in reversed(SAMPLES) if path.parent.name == "bert_cpu_ddp"]  # the late one first
    pairs = [(report_of(path), trace_of(path)) for path in paths]
    members = [Member(trace.meta.path, summary_of(select(trace))) for _, trace in pairs]
    joint = job_section(job_of(rank_sets(members)[0]))
    page = html.render_reports(pairs, Page(), joint)
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    height, width = json.loads(_title_after(page.replace("</body>", HEIGHT + "</body>"), tmp_path))
    assert len(pairs) == 2
    assert 1000 < height <= 4000
    assert width <= 1280


def test_what_is_folded_is_in_the_page(tmp_path: Path) -> None:
    trace = small_traces.host_bound(tmp_path)
    report, page = build_report(trace), _page(trace)
    for section in report.sections:
        for finding in section.findings:
            assert str(escape(unbroken(finding.title))) in page
        for table in () if is_silent(section) else section.tables:
            assert not table.frame.height or table.series or str(escape(table.title)) in page
    for item in report.health:
        assert str(escape(item.meaning)) in page


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_of_one_legend_differ(theme: str) -> None:
    style = files("tracekit.report.html").joinpath("templates", "report.css").read_text("utf-8")
    usual, _, others = style.partition("[data-theme")
    colours = dict(re.findall(r"--([cih]-[a-z-]+): #([0-9a-f]{6});", usual))
    if theme == "dark":
        colours |= dict(re.findall(r"--([cih]-[a-z-]+): #([0-9a-f]{6});", others))
    host = {name for name in colours if name.startswith("h-")} - {"h-operator"}  # which is called op as well
    work = {f"c-{category}" for category in CATEGORIES} & set(colours)
    instead = {
        "i-library-calls",
        "i-host-code-outside-recorded-calls",
    }  # of operators and Python in other programs
    idle = {name for name in colours if name.startswith("i-")} - instead
    assert min(map(len, (host, work, idle))) >= 7
    for one, other in combinations(sorted(host | work | idle), 2):
        pairs = zip(bytes.fromhex(colours[one]), bytes.fromhex(colours[other]), strict=True)
        assert sum((a - b) ** 2 for a, b in pairs) > 30**2, (one, other)


def test_hints_are_about_columns_that_there_are() -> None:
    shown = {
        name
        for analysis in BUILT_IN
        for view in analysis.tables().values()
        for column in view.columns.split()
        for name in (column, f"{analysis.name}.{column}")
    }
    assert set(COLUMNS) <= shown
    assert meaning("steps", "duration_ns") != meaning("idle", "duration_ns")


# -- several ranks -------------------------------------------------------------------------------------


def ranks(folder: Path) -> list[tuple[Report, Trace]]:
    """Reports of two ranks."""
    made = []
    for rank, build in enumerate((small_traces.host_bound, small_traces.compute_bound)):
        (folder / str(rank)).mkdir()
        trace = build(folder / str(rank))
        trace = replace(trace, meta=replace(trace.meta, rank=rank))
        made.append((build_report(trace), trace))
    return made


@pytest.mark.slow
def test_only_a_finding_has_a_severity(tmp_path: Path) -> None:
    pairs = ranks(tmp_path)
    page = html.render_reports(pairs, Page())
    items = re.findall(r'<ol class="advice">(.*?)</ol>', page, re.DOTALL)
    advice = [one for report, _ in pairs for one in report.verdict.advice]
    assert any(not one.finding for one in advice)
    assert sum(item.count('class="level') for item in items) == sum(bool(one.finding) for one in advice)


def test_no_line_ends_behind_the_dots_of_a_cut_name(tmp_path: Path) -> None:
    (report, trace), *_ = ranks(tmp_path)
    verdict = replace(report.verdict, headline="Most in …Head_0.Linear_25, and more … at the end.")
    page = html.render(replace(report, verdict=verdict), trace)
    assert "Most in …\u2060Head_0.Linear_25, and more … at the end." in page


@pytest.mark.slow
def test_several_ranks_are_one_page(tmp_path: Path) -> None:
    pairs = ranks(tmp_path)
    page = html.render_reports(pairs, Page())
    ids = [attributes["id"] for _, attributes in Elements(page).elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = {str(attributes.get("href", "#main"))[1:] for _, attributes in Elements(page).elements}
    assert links <= set(ids)
    assert page.count("<h1>") == 1
    for report, _ in pairs:
        assert (
            page.count(str(escape(unbroken(report.verdict.headline)))) == 2
        )  # in the table that compares, and in its own verdict


SWITCH = """<script>
setTimeout(() => {
  const out = {errors: window.errors, shown: [], timeline: []};
  const note = () => {
    out.shown.push(document.querySelector(".headline").textContent);
    out.timeline.push(document.querySelectorAll("#timeline .stage:not([hidden])").length);
  };
  note();
  document.querySelector("#ranks a[href='#rank-1']").click();
  setTimeout(() => {
    note();
    document.querySelector(".ranks a[href='#rank-0']").click();
    setTimeout(() => { note(); document.title = JSON.stringify(out); }, 500);
  }, 500);
}, 500);
</script>"""


@needs_browser
def test_ranks_are_shown_one_at_a_time(tmp_path: Path) -> None:
    pairs = ranks(tmp_path)
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html.render_reports(pairs, Page()))
    watch = "<script>window.errors = []; window.onerror = (text) => window.errors.push(text);</script>"
    page = page.replace("<head>", "<head>" + watch).replace("</body>", SWITCH + "</body>")
    out = json.loads(_title_after(page, tmp_path).replace("&nbsp;", " "))
    first, second = (unbroken(report.verdict.headline) for report, _ in pairs)
    assert out["errors"] == []
    assert [text.replace("\xa0", " ") for text in out["shown"]] == [
        text.replace("\xa0", " ") for text in (first, second, first)
    ]
    assert out["timeline"] == [1, 1, 1]


LINKED = """<script>
setTimeout(() => {
  const out = {errors: window.errors, addresses: []};
  const address = () => { document.querySelector("[data-do=link]").click(); return location.hash.split("&")[0]; };
  const visit = (hash, then) => { location.hash = hash; setTimeout(() => { out.addresses.push(address()); then(); }, 500); };
  const name = () => document.querySelector("[aria-current]").textContent;
  visit("#r1-q-kernels", () => {
    out.linked = name();
    out.buttons = document.querySelectorAll("#groups input").length;
    visit("#rank-0", () => {
      out.same = document.querySelectorAll("#groups input").length;
      const theme = () => document.documentElement.dataset.theme ?? "";
      for (const event of ["beforeprint", "afterprint"]) { window.dispatchEvent(new Event(event)); out[event] = theme(); }
      visit("#r1-timeline&from=1000&to=9000", () => {
        out.view = location.hash;
        document.title = JSON.stringify(out);
      });
    });
  });
}, 500);
</script>"""


@needs_browser
def test_a_link_names_its_rank(tmp_path: Path) -> None:
    page = re.sub(
        r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html.render_reports(ranks(tmp_path), Page())
    )
    watch = "<script>window.errors = []; window.onerror = (text) => window.errors.push(text);</script>"
    page = page.replace("<head>", "<head>" + watch).replace("</body>", LINKED + "</body>")
    out = json.loads(_title_after(page, tmp_path).replace("&amp;", "&"))
    assert (out["errors"], out["linked"]) == ([], "rank 1")
    assert out["addresses"] == ["#r1-timeline", "#timeline", "#r1-timeline"]
    assert out["view"].startswith("#r1-timeline&from=1000&to=9000")
    assert out["buttons"] == out["same"] > 0  # drawn once, however often a rank is shown
    assert (out["beforeprint"], out["afterprint"]) == ("light", "")


PRINT = """<script>
setTimeout(() => {
  const out = {errors: window.errors};
  const drawn = () => [...document.querySelectorAll(".stage:not([hidden]) canvas")].filter((canvas) => canvas.width * canvas.height).length;
  const note = () => {
    const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
    return {
      ranks: [...document.querySelectorAll(".rank .on-paper")].map((one) => one.textContent),
      drawn: drawn(), twice: ids.length - new Set(ids).size,
      open: document.querySelectorAll("details.callout:not([open])").length,
      theme: document.documentElement.dataset.theme ?? "",
    };
  };
  document.querySelector("#ranks a[href='#rank-1']").click();
  setTimeout(() => {
    document.documentElement.dataset.theme = "dark";
    window.dispatchEvent(new Event("beforeprint"));
    setTimeout(() => {
      out.paper = note();
      window.dispatchEvent(new Event("afterprint"));
      out.after = note();
      out.current = document.querySelector("[aria-current]").textContent;
      document.title = JSON.stringify(out);
    }, 200);
  }, 500);
}, 800);
</script>"""


@needs_browser
def test_paper_has_every_rank(tmp_path: Path) -> None:
    page = re.sub(
        r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html.render_reports(ranks(tmp_path), Page())
    )
    watch = "<script>window.errors = []; window.onerror = (text) => window.errors.push(text);</script>"
    page = page.replace("<head>", "<head>" + watch).replace("</body>", PRINT + "</body>")
    out = json.loads(_title_after(page, tmp_path))
    assert out["errors"] == []
    every = {"ranks": ["rank 0", "rank 1"], "drawn": 2, "twice": 0, "open": 0, "theme": "light"}
    assert out["paper"] == every
    assert (out["after"]["ranks"], out["after"]["theme"], out["current"]) == (["rank 1"], "dark", "rank 1")


# -- names of absurd length ----------------------------------------------------------------------------


@pytest.mark.slow
def test_absurdly_long_names_are_cut_in_the_middle(tmp_path: Path) -> None:
    """300 names of 16,000 letters: the page has the beginning and the end of each, the JSON report all."""
    script = small_traces.Script()
    for number in range(300):
        script.work(f"begin{number}_{'x' * 16_000}_end{number}", 10 * number, 10 * number + 5, 4)
    trace = script.read(tmp_path)
    report = build_report(trace)
    page = html.render(report, trace)
    assert len(page) < 5_000_000
    assert "x" * 1001 not in page
    assert "begin7_" in page
    assert "_end7" in page
    assert "x" * 16_000 in as_json(report)
