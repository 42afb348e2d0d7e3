"""The whole report of a trace is kept, and gives what other flags ask for: the same text, without an analysis."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import run
from paths import GPU_SAMPLES, PUBLIC, SAMPLES
from synthetic import generate, write
from synthetic.nsys_export import merged, write_sqlite
from synthetic.nsys_layered import Style, shape_of, training

import tracekit
from tracekit.analyses.registry import BUILT_IN
from tracekit.answers import code_state
from tracekit.machine_file import machine_path
from tracekit.report import build
from tracekit.report.build import build_report
from tracekit.report.kept import pack, part_of, unpack
from tracekit.report.model import HealthItem

FLAGS = (
    ("--top", "3"),
    ("-f", "md"),
    ("-f", "html"),
    ("-f", "html", "--top", "2"),
    ("-f", "json", "--top", "1"),
    *(("--only", one.name) for one in BUILT_IN),
    ("--only", "steps", "--only", "kernels", "-f", "json", "--top", "4"),
)


@contextmanager
def without_analyses() -> Iterator[None]:
    """Fails where a report is built."""

    def refuse(*_arguments: Any, **_named: Any) -> None:
        pytest.fail("a report was built")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "build_report", refuse)
        yield


def said(capfd: pytest.CaptureFixture[str], *words: object) -> str:
    code, out, _ = run(capfd, "report", *words)
    assert code == 0
    return out


@pytest.mark.quick(1)
@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "path", [*SAMPLES, *GPU_SAMPLES, *PUBLIC], ids=lambda path: path.parent.name + path.name
)
def test_other_flags_are_answered_as_if_nothing_were_kept(
    path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said(capfd, path, "-f", "json")
    lacking = {each.name for each in build_report(tracekit.read(path)).sections if each.not_captured}
    for flags in FLAGS:
        kept = said(capfd, path, *flags)
        assert kept == said(capfd, path, *flags, "--no-cache"), flags
    with without_analyses():
        said(capfd, path, "--top", "5")
        said(capfd, path, "-f", "html", "--top", "5")
        said(capfd, path, "-f", "json", "--top", "5")
        if "breakdown" not in lacking:
            said(capfd, path, "--only", "breakdown", "--top", "5")


def test_a_report_without_a_digest_gives_no_data(capfd: pytest.CaptureFixture[str]) -> None:
    """`diff` reads the digest of a report as JSON."""
    path = SAMPLES[0]
    said(capfd, path)
    with without_analyses():
        said(capfd, path, "-f", "md")
    assert said(capfd, path, "-f", "json") == said(capfd, path, "-f", "json", "--no-cache")
    with without_analyses():
        said(capfd, path, "-f", "json", "--top", "2")


def test_a_wrong_use_is_refused_although_a_report_is_kept(capfd: pytest.CaptureFixture[str]) -> None:
    path = SAMPLES[0]
    said(capfd, path)
    assert run(capfd, "report", path, "--compare", "0,1")[0] == 2
    assert run(capfd, "report", path, "--only", "nothing")[0] == 2
    assert run(capfd, "report", path, "--top", "0")[0] == 2


def test_a_kept_report_that_is_damaged_is_made_again(capfd: pytest.CaptureFixture[str]) -> None:
    path = SAMPLES[0]
    first = said(capfd, path)
    for kept in Path(os.environ["TRACEKIT_CACHE_DIR"]).rglob("answer-*.txt"):
        data = bytearray(kept.read_bytes())
        data[len(data) // 2] ^= 1
        kept.write_bytes(data)
    assert said(capfd, path) == first
    with without_analyses():
        said(capfd, path, "--top", "2")


def test_a_report_comes_back_whole() -> None:
    report = build_report(tracekit.read(SAMPLES[0]), digest=True)
    again = unpack(pack(report))
    assert again is not None
    assert [each.name for each in again.sections] == [each.name for each in report.sections]
    for one, other in zip(report.sections, again.sections, strict=True):
        assert (one.answer, one.findings, one.scalars) == (other.answer, other.findings, other.scalars)
        for mine, theirs in zip(one.tables, other.tables, strict=True):
            assert mine.frame.equals(theirs.frame)
            assert mine.frame.schema == theirs.frame.schema
            assert (mine.name, mine.columns, mine.tree, mine.short) == (
                theirs.name,
                theirs.columns,
                theirs.tree,
                theirs.short,
            )
    assert (again.verdict, again.window, again.trace) == (report.verdict, report.window, report.trace)
    assert unpack(b"\x81\xa5trace\x01") is None
    assert unpack(pack(report)[:-9]) is None


def test_parts_that_alone_may_say_something_else_are_not_given() -> None:
    report = build_report(tracekit.read(SAMPLES[0]))
    assert part_of(report, ["breakdown"], None) is None, "it says how to record the device"
    assert part_of(report, ["steps"], None) is not None
    assert part_of(report, ["steps", "counters"], None) is None, "the report has no such section"
    broken = replace(report, health=(HealthItem("impossible_figure", "error", 1, "", "steps.steps.time_ns"),))
    assert part_of(broken, ["steps"], None) is None
    part = part_of(report, None, 2)
    assert part is not None
    assert all(table.frame.height <= 2 for section in part.sections for table in section.tables)


def test_of_several_processes_none_is_kept_as_the_whole(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Of ten, the report of the busiest answered for all of them, without the overview, and a page ended with a fault."""
    programs = [training(1, shape_of("range"), Style(pid=77 + at)).program for at in range(9)]
    path = tmp_path / "nine.sqlite"
    write_sqlite(merged(*programs), path)
    said(capfd, path)
    for flags in (("--all",), ("-f", "md"), ("--top", "1"), ("--only", "idle"), ("-f", "html")):
        assert said(capfd, path, *flags) == said(capfd, path, *flags, "--no-cache"), flags


def test_a_warning_about_measured_ceilings_is_printed_every_time(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made = generate(seed=3, steps=2, layers=1)
    path = write(made, tmp_path / "trace.json.gz")
    text = gzip.decompress(path.read_bytes()).decode()
    name = tracekit.read(path).meta.devices[0].name
    path = tmp_path / "other.json"
    path.write_text(text.replace(name, "FooGPU 9000"), "utf-8")
    machine = machine_path("FooGPU 9000")
    machine.parent.mkdir(parents=True)
    machine.write_text('{"schema_version": 99}')
    for flags in ((), (), ("-f", "md"), ("--top", "2")):
        assert "schema version is 99" in run(capfd, "report", path, *flags)[2], flags


def test_what_other_packages_bring_is_in_no_answer(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is an analysis in a folder of PYTHONPATH missing from what was kept without it, nor is kept what another reader read."""
    before = [*code_state()]
    (tmp_path / "my-1.0.dist-info").mkdir()
    (tmp_path / "my-1.0.dist-info" / "entry_points.txt").write_text("[tracekit.analyses]\nmine = my:mine\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [*code_state()] != before
    monkeypatch.setattr(
        "tracekit.answers.entry_points_of", lambda group: ["one"] * (group == "tracekit.readers")
    )
    said(capfd, SAMPLES[0])
    assert not [*Path(os.environ["TRACEKIT_CACHE_DIR"]).rglob("answer-*")]


def test_a_file_that_was_renamed_is_named_as_it_is_now(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = Path(shutil.copy(SAMPLES[0], tmp_path / "one.json.gz"))
    said(capfd, path)
    path = path.rename(tmp_path / "other.json.gz")
    kept = said(capfd, path, "-f", "json", "--only", "steps")
    assert "one.json.gz" not in kept
    assert kept == said(capfd, path, "-f", "json", "--only", "steps", "--no-cache")
