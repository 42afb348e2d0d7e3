"""A question that was answered before is answered from what is kept, and only then."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from paths import ROOT
from synthetic import generate, write

from tracekit import answers
from tracekit.answers import Question
from tracekit.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    assert not left.value.code
    return capsys.readouterr().out


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(generate(seed=3, steps=2, layers=1), tmp_path / "rank-0.json.gz")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows by one whenever a report or a section is built."""
    from tracekit.report import build

    count: list[object] = []

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def counting(*arguments: object, **named: object) -> object:
            count.append(None)
            return real(*arguments, **named)

        return counting

    monkeypatch.setattr(build, "build_report", counted(build.build_report))
    monkeypatch.setattr(build, "build_section", counted(build.build_section))
    return count


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["report", "-f", "html"],
        ["report", "--only", "steps"],
        ["kernels", "-f", "json"],
        ["idle", "-f", "md"],
    ],
)
def test_the_second_time_nothing_is_computed(
    words: list[str], trace: Path, made: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    first = run(capsys, *words, trace)
    assert len(made) == 1
    assert run(capsys, *words, trace) == first
    assert len(made) == 1
    run(capsys, *words, trace, "--no-cache")
    assert len(made) == 2


@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "more",
    [["--top", "2"], ["--window", "trace"], ["--step", "Step"], ["--comm-pattern", "gemm"], ["-f", "md"]],
    ids=lambda words: words[0],
)
def test_another_question_has_another_answer(
    more: list[str], trace: Path, made: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "kernels", trace)
    kept = run(capsys, "kernels", trace, *more)
    assert len(made) == 2
    assert kept == run(capsys, "kernels", trace, *more, "--no-cache")


@pytest.mark.slow
def test_the_width_of_the_terminal_is_part_of_the_question(
    trace: Path, made: list[object], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    run(capsys, "kernels", trace)
    monkeypatch.setenv("COLUMNS", "70")
    assert max(map(len, run(capsys, "kernels", trace).splitlines())) <= 70
    run(capsys, "kernels", trace, "-f", "json")
    monkeypatch.setenv("COLUMNS", "90")
    run(capsys, "kernels", trace, "-f", "json")
    assert len(made) == 3, "JSON knows no width"


@pytest.mark.slow
def test_a_file_that_changed_is_read_again(
    trace: Path, made: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    before = run(capsys, "kernels", trace)
    write(generate(seed=4, steps=2), trace)
    assert run(capsys, "kernels", trace) != before
    assert len(made) == 2


@pytest.mark.slow
def test_a_report_names_the_file_that_was_asked_for(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "report", trace)
    other = trace.rename(trace.with_name("renamed.json.gz"))
    assert "renamed" in run(capsys, "report", other)


@pytest.mark.slow
def test_equal_bytes_under_other_names_have_their_own_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cache gave the rank of the first name to all."""
    for rank in (3, 5):
        named = tmp_path / f"rank{rank}.json.gz"
        named.write_bytes((ROOT / "sample_traces" / "cnn_cpu" / "trace.json.gz").read_bytes())
        assert f"· rank {rank} ·" in run(capsys, "report", named)


def test_other_code_gives_other_answers(
    trace: Path, made: list[object], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(capsys, "kernels", trace)
    monkeypatch.setattr("tracekit.__version__", "another")
    run(capsys, "kernels", trace)
    assert len(made) == 2


def test_the_state_of_the_code_is_that_of_its_files() -> None:
    known = {Path(str(entry[0])).name for entry in answers.code_state() if isinstance(entry, tuple)}
    assert {"decide.py", "report.html.j2", "breakdown.py", "parts.py"} <= known


@pytest.mark.slow
def test_a_damaged_answer_is_made_again(
    trace: Path, made: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    first = run(capsys, "kernels", trace)
    (kept,) = Path(os.environ["TRACEKIT_CACHE_DIR"]).rglob("answer-*.txt")
    data = bytearray(kept.read_bytes())
    data[50] ^= 1
    kept.write_bytes(data)
    assert run(capsys, "kernels", trace) == first
    assert len(made) == 2
    assert kept.read_bytes() != data


def test_plugins_are_asked_every_time(
    trace: Path, made: list[object], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracekit.answers.entry_points_of", lambda group: ["one"])
    run(capsys, "kernels", trace)
    run(capsys, "kernels", trace)
    assert len(made) == 2


def test_a_cache_that_cannot_be_written_costs_only_time(
    trace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path / "file" / "below"))
    assert run(capsys, "kernels", trace)


def test_few_answers_are_kept_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(answers, "MOST_ANSWERS", 3)
    for number in range(6):
        Question(["0" * 64], number).keep(f"answer {number}")
    assert len(list(tmp_path.rglob("answer-*.txt"))) == 3
    assert Question(["0" * 64], 5).answer() == "answer 5"


@pytest.mark.slow
def test_an_answer_needs_no_polars(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "kernels", trace, "-f", "md")
    code = (
        "import sys\nfrom tracekit.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: assert not {'polars', 'numpy', 'rich'} & set(sys.modules), 'heavy'"
    )
    subprocess.run([sys.executable, "-c", code, "kernels", str(trace), "-f", "md"], check=True, cwd="/")


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "other",
    [["--max-events", "400"], ["--window", "trace"], ["--top", "1"], ["--causes"], ["--table", "streams"]],
    ids=" ".join,
)
def test_an_analysis_is_not_answered_with_the_answer_to_another_question(
    other: list[str], trace: Path, made: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "idle", trace)
    run(capsys, "idle", trace, *other)
    assert len(made) == 2


def test_the_answer_to_another_question_is_none_to_this(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path))
    one, other = Question(["0" * 64], 1), Question(["0" * 64], 2)
    one.keep("one")
    (kept,) = tmp_path.rglob("answer-*.txt")
    other.keep("other")
    (replaced,) = set(tmp_path.rglob("answer-*.txt")) - {kept}
    kept.replace(replaced)
    assert other.answer() is None
    replaced.unlink()
    replaced.symlink_to("/dev/zero")
    assert other.answer() is None
