"""Every command on Nsight Systems exports: of one process and of two, of the oldest schema and of the newest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import ok
from paths import PUBLIC_NSYS
from synthetic.nsys_export import SECRETS, Program, write_parquetdir, write_sqlite
from synthetic.nsys_layered import Style, both, shape_of, training
from synthetic.nsys_schema import NEWEST, OLDEST

from tracekit.analyses.registry import BUILT_IN
from tracekit.cli.main import main

PLAN = shape_of("record")


def program() -> Program:
    made = training(1, PLAN, Style(marks="record")).program
    made.metric("SM Active", [(60_111_500_000 + 1_000 * i, i) for i in range(50)])
    return made


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sqlite(program(), tmp_path_factory.mktemp("one") / "t.sqlite", NEWEST)


@pytest.mark.parametrize("name", [analysis.name for analysis in BUILT_IN])
def test_every_analysis(name: str, export: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ok(capsys, name, export, "--window", "trace").strip()
    assert list(json.loads(ok(capsys, name, export, "-f", "json"))["analyses"]) == [name]


def test_what_is_in_the_file(export: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "t.sqlite" in ok(capsys, "info", export)
    assert "unknown_rank" in ok(capsys, "doctor", export)


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("parquet", [False, True])
def test_reports_of_every_form(
    parquet: bool, version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write = write_parquetdir if parquet else write_sqlite
    path = write(program(), tmp_path / ("t" if parquet else "t.sqlite"), version)
    page = tmp_path / "page.html"
    assert "net" in ok(capsys, "report", path)
    ok(capsys, "report", path, "-o", page)
    assert page.stat().st_size > 10_000


def test_two_processes_in_one_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = both(training(1, PLAN, Style(marks="record")), training(2, PLAN, Style(marks="record", pid=77)))
    path = write_sqlite(whole.program, tmp_path / "t.sqlite")
    heads = [line for line in ok(capsys, "report", path).splitlines() if line.startswith("══")]
    assert ["process 77" in heads[0], "process 4242" in heads[1]] == [True, True]
    one = ok(capsys, "report", path, "--process", "77")
    assert "process 4242" not in one
    assert "A2" in ok(capsys, "xsp", path, "--process", "77", "--analysis", "A2")
    page = tmp_path / "page.html"
    with pytest.raises(SystemExit) as left:
        main(["report", str(path), "-o", str(page)])
    assert left.value.code == 2
    assert "one HTML file holds one trace" in capsys.readouterr().err
    assert not page.exists()
    ok(capsys, "report", path, "--process", "77", "-o", page)
    assert page.read_text("utf-8").count("<!doctype html>") == 1


def test_no_report_tells_who_recorded_it(
    export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    ok(capsys, "report", export, "-o", page)
    shown = page.read_text("utf-8") + "".join(
        ok(capsys, command, export, "-f", "json") for command in ("report", "info", "doctor")
    )
    for secret in (*SECRETS.values(), "secret-user", "secret-command"):
        assert secret not in shown


@pytest.mark.parametrize("path", PUBLIC_NSYS, ids=lambda p: p.stem)
def test_reports_of_public_files(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ok(capsys, "report", path)
    assert 20 < len(out.splitlines()) < 260


@pytest.mark.parametrize(
    ("command", "remedy"), [(("view", "--once"), "--html"), (("export", "--to", "chrome"), "view --html")]
)
def test_what_needs_a_chrome_trace_says_so_at_once(
    command: tuple[str, ...], remedy: str, export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = () if command[0] == "view" else ("-o", str(tmp_path / "t.json"))
    with pytest.raises(SystemExit) as left:
        main([command[0], str(export), *command[1:], *target])
    said = capsys.readouterr().err
    assert left.value.code == 2
    assert "Nsight Systems" in said
    assert remedy in said
    assert said.count("\n") == 1


def test_too_little_memory_is_one_line(
    export: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("tracekit.api.read_all", exhausted)
    with pytest.raises(SystemExit) as left:
        main(["report", str(export), "--no-cache"])
    assert left.value.code == 2
    assert "not enough memory" in capsys.readouterr().err


def test_ranges_alone_are_not_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = Program()
    made.push_pop("net", 10, 900, tid=1)
    out = ok(capsys, "report", write_sqlite(made, tmp_path / "t.sqlite"))
    assert out.startswith("RANGES ONLY")
    assert "Only named ranges were recorded" in out
