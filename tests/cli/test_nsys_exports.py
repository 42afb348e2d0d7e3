"""Every command on Nsight Systems exports: of one process and of two, of the oldest schema and of the newest."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from commands import ok
from paths import PUBLIC_NSYS, SAMPLES
from synthetic.nsys_export import SECRETS, Program, merged, write_parquetdir, write_sqlite
from synthetic.nsys_layered import Style, both, shape_of, training
from synthetic.nsys_odd import small
from synthetic.nsys_schema import NEWEST, OLDEST

from tracekit.analyses.registry import BUILT_IN
from tracekit.cli.main import main

FEW = 3
"""Of so many traces every report is shown in full in these tests."""

PLAN = shape_of("record")


def program() -> Program:
    made = training(1, PLAN, Style(marks="record")).program
    made.metric("SM Active", [(60_111_500_000 + 1_000 * i, i) for i in range(50)])
    return made


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sqlite(program(), tmp_path_factory.mktemp("one") / "t.sqlite", NEWEST)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", [analysis.name for analysis in BUILT_IN])
@pytest.mark.sampled(4)
def test_every_analysis(name: str, export: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert list(json.loads(ok(capsys, name, export, "-f", "json"))["analyses"]) == [name]


@pytest.mark.slow
def test_what_is_in_the_file(export: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "t.sqlite" in ok(capsys, "info", export)
    assert "unknown_rank" in ok(capsys, "doctor", export)


@pytest.mark.slow
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


@pytest.mark.slow
def test_two_processes_in_one_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = both(training(1, PLAN, Style(marks="record")), training(2, PLAN, Style(marks="record", pid=77)))
    path = write_sqlite(whole.program, tmp_path / "t.sqlite")
    heads = [line for line in ok(capsys, "report", path).splitlines() if line.startswith("══")]
    assert ["process 77" in heads[0], "process 4242" in heads[1]] == [True, True]
    flops = [
        line.partition("  ")[2] for line in ok(capsys, "info", path).splitlines() if "FLOP a step" in line
    ]
    alone = ok(capsys, "info", path, "--process", "4242")
    assert len(flops) == 2
    assert flops[1].split("  ")[-1] in alone
    one = ok(capsys, "report", path, "--process", "77")
    assert "process 4242" not in one
    assert "A2" in ok(capsys, "xsp", path, "--process", "77", "--analysis", "A2")
    page = tmp_path / "page.html"
    ok(capsys, "report", path, "-o", page)
    both_of_them = page.read_text("utf-8")
    assert [
        f'<a href="#part-{at}">process {pid}</a>' in both_of_them for at, pid in ((0, 77), (1, 4242))
    ] == [True] * 2
    ok(capsys, "report", path, "--process", "77", "-o", page)
    assert "process 4242" not in page.read_text("utf-8")
    assert page.read_text("utf-8").count("<!doctype html>") == 1


@pytest.mark.slow
def test_what_is_in_a_file_of_several_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = small(launches=4, pid=77), small(launches=6)
    second.kernel("late", 5_000_000, 6_000_000, correlation=0, device=3)
    second.device(3)
    path = write_sqlite(merged(first, second), tmp_path / "t.sqlite")
    text = ok(capsys, "info", path)
    rows = [line.split() for line in text.splitlines() if line.split()[:1] in (["77"], ["4242"])]
    kernels = dict(by_process(path))
    assert [row[0] for row in rows] == ["77", "4242"]
    assert rows[0][1:3] == ["0", str(kernels[77])]
    assert rows[1][1:4] == ["0,", "3", str(kernels[4242])]
    assert " ".join(rows[1][-2:]) == "6.00 ms"
    assert "\nFLOPs        not captured\n" in text
    data = json.loads(ok(capsys, "info", path, "-f", "json"))
    assert [(one["process_id"], one["device_activities"]["kernel"]) for one in data["traces"]] == [
        (77, kernels[77]),
        (4242, kernels[4242]),
    ]
    alone = json.loads(ok(capsys, "info", path, "--process", "77", "-f", "json"))
    assert alone == {name: value for name, value in data["traces"][0].items() if name in alone}
    for out in (text, ok(capsys, "doctor", path)):
        assert max(map(len, out.splitlines())) <= 80


def by_process(path: Path) -> list[tuple[int, int]]:
    with closing(sqlite3.connect(path)) as base:
        sql = "SELECT globalPid / 0x1000000 % 0x1000000 AS pid, count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL GROUP BY pid"
        return base.execute(sql).fetchall()


@pytest.mark.slow
def test_the_health_of_several_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = small(pid=77), small(pid=78), small(pid=79)
    second.kernel("nobody launched it", 500_000, 600_000, correlation=0, pid=78)
    path = write_sqlite(merged(first, second, third), tmp_path / "t.sqlite")
    text = ok(capsys, "doctor", path)
    assert (
        text.index("all 3 processes")
        < text.index("unknown_rank")
        < text.index("processes 77, 79: no other defect")
    )
    own = text[text.index("process 78") :]
    assert "unlinked_activity" in own
    assert text.count("unknown_rank") == text.count("unlinked_activity") == 1
    assert text.count("\nok ") == 3
    data = json.loads(ok(capsys, "doctor", path, "-f", "json"))
    assert [one["process_id"] for one in data["traces"]] == [77, 78, 79]
    for one in data["traces"]:
        alone = json.loads(ok(capsys, "doctor", path, "--process", str(one["process_id"]), "-f", "json"))
        assert alone == {"health": one["health"], "conservation": one["conservation"]}


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracekit.cli.commands.report.MOST_IN_FULL", FEW)


@pytest.mark.slow
def test_more_reports_as_data_than_anybody_asked_for_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracekit.cli.commands.report.MOST_AS_DATA", FEW)
    path = write_sqlite(many(FEW + 1), tmp_path / "t.sqlite")
    for words in (["-f", "json"], ["-f", "csv", "-o", str(tmp_path / "tables")]):
        with pytest.raises(SystemExit) as ended:
            main(["report", str(path), *words])
        assert ended.value.code == 2
        assert f"{FEW + 1} traces would each have a report in {words[1]}; choose" in capsys.readouterr().err
    assert not (tmp_path / "tables").exists()
    assert len(json.loads(ok(capsys, "report", path, "-f", "json", "--all"))["reports"]) == FEW + 1


@pytest.mark.slow
@pytest.mark.parametrize("form", ["table", "md"])
def test_of_many_processes_one_report_in_full(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    path = write_sqlite(many(FEW + 2), tmp_path / "t.sqlite")
    text = ok(capsys, "report", path, "-f", form)
    head = "══" if form == "table" else "*t.sqlite"
    first = next(line for line in text.splitlines() if line.startswith(head))
    assert first.split("·")[1].strip() == "process 102"
    assert text.count("Where did the device's time go?") == 1
    said = " ".join(text.split())
    assert "report below the table is about process 102" in said
    assert "--process PID" in said.replace("\\", "")
    lines = [
        line
        for line in text.splitlines()
        if line.replace("|", " ").split()[:1] in [[str(100 + i)] for i in range(FEW + 2)]
    ]
    assert len(lines) == FEW + 2
    busy = lines[2].replace("|", " ")
    (devices,) = json.loads(ok(capsys, "report", path, "--process", "102", "-f", "json"))["analyses"][
        "breakdown"
    ]["tables"]["devices"]
    assert f"{100 * devices['busy_ns'] / devices['window_ns']:.1f} %" in busy
    every = ok(capsys, "report", path, "-f", form, "--all")
    assert every.count("Where did the device's time go?") == FEW + 2
    one = ok(capsys, "report", path, "-f", form, "--process", "102")
    assert one in text
    assert one in every


@pytest.mark.slow
def test_many_processes_as_data_are_all_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_sqlite(many(FEW + 1), tmp_path / "t.sqlite")
    assert len(json.loads(ok(capsys, "report", path, "-f", "json"))["reports"]) == FEW + 1


@pytest.mark.slow
def test_a_page_of_many_processes_has_one_report_and_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_sqlite(many(FEW + 2), tmp_path / "t.sqlite")
    page = ok(capsys, "report", path, "-f", "html")
    assert "report below the table is about process 102" in page
    assert page.count('class="card verdict"') == 1
    assert all(f">{100 + at}</td>" in page for at in range(FEW + 2))
    assert ok(capsys, "report", path, "-f", "html", "--all").count('class="card verdict"') == FEW + 2


@pytest.mark.slow
def test_many_ranks_of_a_folder_without_a_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (sample,) = (path for path in SAMPLES if path.parent.name == "cnn_cpu")
    paths = [tmp_path / f"t-rank{i}.json.gz" for i in range(FEW + 1)]
    for path in paths:
        path.write_bytes(sample.read_bytes())
    said = " ".join(ok(capsys, "report", *paths).split())
    assert "Operators ran for" in said
    assert "The report below the table is about rank 0, which has the most operator time" in said
    assert "device time" not in said[: said.index("══")]


@pytest.mark.slow
def test_few_processes_have_a_report_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_sqlite(many(FEW), tmp_path / "t.sqlite")
    out = ok(capsys, "report", path)
    assert len([line for line in out.splitlines() if line.startswith("══")]) == FEW
    assert ok(capsys, "report", path, "--all") == out


def many(count: int) -> Program:
    """Processes from 100 on, of which the third has the most work."""
    return merged(*(small(launches=9 if i == 2 else 3, pid=100 + i) for i in range(count)))


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.quick(1)
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
    assert "The trace holds only user ranges" in out
