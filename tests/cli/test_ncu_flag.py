"""--ncu: on the commands that take it, in what is kept, and when nothing fits."""

from __future__ import annotations

import io
import json
from pathlib import Path

import planted_ncu as ncu
import polars as pl
import pytest
from commands import run
from planted_ncu import Launch, counted
from synthetic import generate, write

import tracekit


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(generate(seed=3, steps=3), tmp_path / "rank-0.json.gz")


def table(trace: Path, file: Path, flops: int, read: int = 60) -> Path:
    """A table of all kernels of the trace, each with the same work."""
    rows = tracekit.read(trace).device.filter(pl.col("kind") == "kernel").sort("start")
    sizes = rows.select(pl.col("name", "grid", "block").cast(str)).rows()
    launches = [
        Launch(
            name,
            counted(flops, read, 4, 50.0),
            *(tuple(map(int, size.strip("[]").split(","))) for size in (grid, block)),
        )
        for name, grid, block in sizes
    ]
    file.write_text(ncu.raw(launches))
    return file


COMMANDS = [["report"], ["report", "-f", "json"], ["kernels"], ["counters"]]


@pytest.mark.slow
@pytest.mark.parametrize("words", COMMANDS[::2], ids=" ".join)
def test_what_is_kept_tells_tables_apart(
    words: list[str], trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "metrics.csv"
    _, plain, _ = run(capsys, *words, trace)
    table(trace, file, 1_000_000)
    code, one, err = run(capsys, *words, trace, "--ncu", file)
    assert (code, err) == (0, "")
    assert one != plain
    assert run(capsys, *words, trace, "--ncu", file)[1] == one
    table(trace, file, 7_000_000, 800)
    assert run(capsys, *words, trace, "--ncu", file)[1] not in (one, plain)
    assert run(capsys, *words, trace)[1] == plain
    # With the table read anew the answer is the same: nothing of it is in the cache of the trace.
    table(trace, file, 1_000_000)
    assert run(capsys, *words, trace, "--ncu", file, "--no-cache")[1] == one
    file.unlink()
    assert run(capsys, *words, trace, "--ncu", file)[0] == 3


def test_kernels_show_what_was_measured(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = table(trace, tmp_path / "metrics.csv", 640)
    code, out, _ = run(capsys, "kernels", trace, "--ncu", file, "--table", "measured", "-f", "csv")
    assert code == 0
    row = pl.read_csv(io.StringIO(out)).row(0, named=True)
    assert (row["intensity"], row["dram_source"]) == (10.0, "counter (ncu)")


@pytest.mark.slow
def test_xsp_takes_it(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = table(trace, tmp_path / "metrics.csv", 640)
    code, out, err = run(capsys, "xsp", trace, "--ncu", file, "--analysis", "A9", "-f", "json")
    assert (code, err) == (0, "")
    rows = json.loads(out)["xsp"]["A9"]["rows"]
    assert rows
    assert {
        (row["dram_source"], row["intensity"]) for row in rows if row["flops_source"] == "counter (ncu)"
    } == {("counter (ncu)", 10.0)}
    _, plain, _ = run(capsys, "xsp", trace, "--analysis", "A9", "-f", "json")
    assert json.loads(plain)["xsp"]["A9"]["rows"] == []


@pytest.mark.slow
@pytest.mark.parametrize("words", [*COMMANDS, ["xsp"]], ids=" ".join)
def test_a_table_of_which_nothing_fits_is_told_every_time(
    words: list[str], trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "other.csv"
    file.write_text(ncu.raw([Launch("another_program", counted(5))]))
    for _ in range(2):
        code, out, err = run(capsys, *words, trace, "--ncu", file)
        assert code == 0
        assert err.startswith("warning: rank-0: none of the 1 launches that Nsight Compute measured matches")
        assert err.count("\n") == 1
        if words[0] in ("report", "counters"):
            assert "another_program" in out
        if words == ["report", "-f", "json"]:
            assert "ncu_unmatched" in {item["kind"] for item in json.loads(out)["health"]}


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        ("no table\n", 3, "it holds no Nsight Compute table"),
        (ncu.raw([Launch("k", {"dram__bytes.sum": ("byte", "1.234,5")})]), 3, "decimal commas"),
    ],
)
@pytest.mark.parametrize("command", ["report", "kernels", "counters", "xsp"])
def test_a_file_that_is_none_is_one_line(
    command: str,
    content: str,
    code: int,
    says: str,
    trace: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "bad.csv"
    file.write_text(content)
    got, out, err = run(capsys, command, trace, "--ncu", file)
    assert (got, out) == (code, "")
    assert says in err
    assert err.count("\n") == 1


def test_other_commands_do_not_take_it(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "idle", trace, "--ncu", trace)[0] == 2


@pytest.mark.slow
def test_hostile_names_are_escaped(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "hostile.csv"
    file.write_text(ncu.raw([Launch("<script>alert(1)</script>\x1b[31m\u202e", counted(5))]))
    _, page, _ = run(capsys, "report", trace, "--ncu", file, "-f", "html")
    assert "<script>alert(1)" not in page
    assert "alert(1)" in page
    _, text, _ = run(capsys, "counters", trace, "--ncu", file)
    assert "\x1b" not in text
    assert "\u202e" not in text
    for shown in (page, text):
        assert ncu.PROGRAM not in shown
        assert ncu.MACHINE not in shown
