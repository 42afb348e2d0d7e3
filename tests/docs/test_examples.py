"""The examples of the documentation run."""

from __future__ import annotations

import re
import shlex
import sys
import urllib.request
from pathlib import Path
from typing import Any

import planted_machine
import planted_ncu
import pytest
from private_nsys import private_export

import tracekit
from tracekit.analyses.breakdown import breakdown
from tracekit.analyses.flops import Work, operator_work
from tracekit.cli.main import app, main
from tracekit.readers import installed_formats
from tracekit.report.build import build_report

ROOT = Path(__file__).resolve().parent.parent.parent
SAMPLE = ROOT / "sample_traces" / "cnn_cpu" / "trace.json.gz"
EXTENDING = "docs/extending.md"
_FENCE = re.compile(
    r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL
)


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page in this language, in order."""
    text = (ROOT / page).read_text("utf-8")
    return [match["text"] for match in _FENCE.finditer(text) if match["language"] == language]


def titled(page: str, title: str) -> str:
    """The one code block of a page with this title."""
    text = (ROOT / page).read_text("utf-8")
    (found,) = [match["text"] for match in _FENCE.finditer(text) if match["title"] == title]
    return found


def run(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as leave:
        main([str(argument) for argument in arguments])
    return int(leave.value.code or 0)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Installs a module of the documentation, as far as entry points are concerned."""

    def install(kind: str) -> None:
        name = f"my_{kind}"
        (tmp_path / f"{name}.py").write_text(titled(EXTENDING, f"{name}.py"), "utf-8")
        table = titled(EXTENDING, f"pyproject.toml of the {kind}")
        table = re.sub(r'^\[project\.entry-points\."(.+)"\]$', r"[\1]", table, flags=re.MULTILINE)
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", "utf-8")
        (info / "entry_points.txt").write_text(table.replace('"', ""), "utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, name, raising=False)

    return install


def own_lines(code: str) -> int:
    """Lines that are not imports, blank or documentation."""
    lines = [line.strip() for line in code.splitlines()]
    return sum(bool(line) and not line.startswith(("import ", "from ", '"""', "#")) for line in lines)


@pytest.mark.parametrize("title", ["my_analysis.py", "my_operator.py", "my_workload.py", "my_reader.py"])
def test_examples_are_short(title: str) -> None:
    assert own_lines(titled(EXTENDING, title)) < 10


def test_analysis(package: Any, capsys: pytest.CaptureFixture[str]) -> None:
    package("analysis")
    section = build_report(tracekit.read(SAMPLE)).section("longest")
    assert section is not None
    assert section.error is None
    assert section.question == "Which single activity is the longest?"
    assert section.answer.endswith(" ms.")
    assert run("analysis", "longest", SAMPLE) == 0
    assert section.answer in capsys.readouterr().out


def test_operator(package: Any) -> None:
    call = ("mylib::gated", [[8, 3], [8, 3]], ["c10::Half", "c10::Half"], ["", ""])
    assert operator_work(*call) is None
    package("operator")
    assert operator_work(*call) == Work(flops=48, read=96, written=48, precision="fp16")
    assert operator_work("mylib::gated", [], [], []) is None


def test_workload(package: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    package("workload")
    folder = tmp_path / "runs" / "points"
    assert run("capture", "points", "-o", folder, "--steps", "2") == 0
    assert str(folder / "trace.json.gz") in capsys.readouterr().out
    trace = tracekit.read(folder / "trace.json.gz")
    assert trace.host.filter(trace.host["kind"] == "step").height == 2
    assert "layers" in trace.meta.captured


def test_reader(package: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "kernels.csv"
    path.write_text(
        "name,device_id,stream_id,start,duration\ngemm_kernel,0,7,1000,50\nncclDevKernel_AllReduce,0,20,1040,30\n"
    )
    package("reader")
    installed_formats.cache_clear()
    try:
        trace = tracekit.read(path)
        (row,) = breakdown(trace).devices.to_dicts()
        assert (row["window_ns"], row["compute_ns"], row["exposed_communication_ns"]) == (70, 50, 20)
        assert build_report(trace).verdict.bound == "too little"
        assert run("launches", path) == 0
        assert "record with --with-calls" in capsys.readouterr().out
    finally:
        installed_formats.cache_clear()


@pytest.mark.quick(1)
@pytest.mark.parametrize("page", ["README.md", "docs/python.md", "docs/layers.md"])
def test_python_examples(
    page: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    for code in blocks(page, "python"):
        exec(compile(code, page, "exec"), names)  # noqa: S102
    assert capsys.readouterr().out


PAGES = ("README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")))
COMMANDS = sorted({
    part.strip()
    for page in PAGES
    for block in blocks(page, "sh")
    for line in block.splitlines()
    for part in re.split(r"&&|\|", re.sub(r"\s+#.*", "", line))
    if part.strip().startswith("tracekit ")
})  # fmt: skip
RECORDING = ("tracekit capture", "tracekit run")
"""Their tests have processes of their own."""


def _at_hand(word: str) -> str:
    """The sample instead of a trace, and its folder instead of a capture's."""
    if word.endswith("trace.json.gz") or word in ("before.json.gz", "after.json.gz"):
        return str(SAMPLE)
    if re.fullmatch(r"rank[01]\.json\.gz", word):
        return str(ROOT / "sample_traces" / "bert_cpu_ddp" / f"trace-{word}")
    if word.startswith("runs/ddp"):
        return str(ROOT / "sample_traces" / "bert_cpu_ddp")
    return str(SAMPLE.parent) if word.startswith("runs/") else word


def _fetch(link: str) -> bool:
    """A browser: it loads what the page would load."""
    request = urllib.request.Request(link.rpartition("url=")[2])  # noqa: S310 - of our own server
    if "url=" in link:
        request.add_header("Origin", "https://ui.perfetto.dev")
    with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310
        return bool(answer.read())


@pytest.mark.quick(1)
@pytest.mark.parametrize("command", [c for c in COMMANDS if not c.startswith(RECORDING)])
def test_commands(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every `tracekit …` line of every page, on the sample."""
    monkeypatch.chdir(tmp_path)
    private_export(tmp_path / "profile.sqlite")
    words = [_at_hand(word) for word in shlex.split(command)[1:]]
    if "--ncu" in words:
        Path("metrics.csv").write_text(planted_ncu.raw([planted_ncu.Launch("k", planted_ncu.counted(1))]))
    if "results/" in words:
        log = Path("results", "acme", "box-8", "net", "result_0.txt")
        log.parent.mkdir(parents=True)
        log.write_text(":::MLL 1.0 run_start: {}\n:::MLL 9.0 run_stop: {'metadata': {'status': 'success'}}\n")
    if "runs.csv" in words:
        rows = [(gpus, batch, 5 + 2 * batch / gpus + gpus) for gpus in (1, 2, 4) for batch in (8, 16, 32)]
        lines = [",".join(map(str, row)) for row in rows]
        Path("runs.csv").write_text("\n".join(["num_gpus,batch_size,time_s", *lines]))
    if "latencies.csv" in words:
        rows = ["model,device,precision,batch,latency_ms", "net,A100,fp32,8,4.1", "net,H100,fp32,8,2.2"]
        Path("latencies.csv").write_text("\n".join(rows))
    if "--machine" in words:
        Path("machine.json").write_bytes(planted_machine.machine("a processor"))
    if (
        words[0] == "view"
    ):  # it would serve until Ctrl-C, and what it serves may be made by the command before it
        words = [str(SAMPLE) if word.endswith(".json.gz") else word for word in words] + [
            "--once",
            "--port",
            "0",
        ]
        monkeypatch.setattr("webbrowser.open", _fetch)
    code = run(*words)
    captured = capsys.readouterr()
    if "--step" in words:  # the sample has no ranges of that name
        assert (code, "no annotation matches" in captured.err) == (2, True)
    elif any(word.startswith("--nvtx-") for word in words) and "--nvtx-domain" not in words:
        assert (code, "leaves no range" in captured.err) == (2, True)
    else:
        assert code == 0, captured.err
        assert captured.out or any(tmp_path.iterdir())


def test_there_are_commands_to_check() -> None:
    assert len(COMMANDS) > 15


def test_exit_codes_of_the_documentation_are_those_of_the_program() -> None:
    text = (ROOT / "docs" / "getting-started.md").read_text("utf-8")
    told = [int(code) for code in re.findall(r"^\| (\d) \|", text, re.MULTILINE)]
    assert told == [0, 1, 2, 3, 4]
    assert app.info.epilog is not None
    assert [int(code) for code in re.findall(r"\b(\d) ", str(app.info.epilog))] == told


def test_readme_and_changelog_name_every_analysis() -> None:
    from tracekit.analyses.registry import BUILT_IN

    for page, start in (("README.md", "Each analysis is a command"), ("CHANGELOG.md", "* Analyses:")):
        listed = (ROOT / page).read_text("utf-8").partition(start)[2].partition(".\n")[0]
        assert re.findall(r"`(\w+)`", listed) == [analysis.name for analysis in BUILT_IN], page
