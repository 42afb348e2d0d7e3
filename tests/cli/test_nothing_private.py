"""No command shows where and by whom an Nsight Systems export was recorded: every output, in every format."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from private_nsys import PLANTED, WORDS, private_export

from tracekit.analyses.registry import BUILT_IN
from tracekit.cli.main import main

ANALYSES = [analysis.name for analysis in BUILT_IN]
PRIVATE = [*WORDS, PLANTED]


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("private") / "in.sqlite"
    private_export(path)
    return path


def shown_in(text: str) -> list[str]:
    """The private values in a text, or in what is packed in it."""
    texts = [text, *unpacked(text)]
    return [value for value in PRIVATE if any(value in one.lower() for one in texts)]


def unpacked(text: str) -> Iterator[str]:
    for packed in re.findall(r"[A-Za-z0-9+/]{40,}={0,2}", text):
        try:
            raw = base64.b64decode(packed, validate=True)
        except ValueError:
            continue
        yield raw.decode("latin-1")
        for bits in (15, -15, 31):
            try:
                yield zlib.decompress(raw, bits).decode("latin-1")
            except zlib.error:  # noqa: PERF203 - three tries
                continue


def texts_of(path: Path) -> Iterator[str]:
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    for file in files:
        yield file.read_bytes().decode("latin-1")
        if file.suffix == ".parquet":
            yield pl.read_parquet(file).select(pl.all().cast(pl.String, strict=False)).write_csv()


def run(*words: str) -> None:
    with pytest.raises(SystemExit) as left:
        main(words)
    lost = words[0] == "doctor"  # of the private trace an event lacks its time
    assert left.value.code in ((0, 1, None) if lost else (0, None))


def test_the_check_finds_what_is_packed() -> None:
    text = f"open {WORDS[0]} " * 9
    for packed in (text.encode(), zlib.compress(text.encode()), zlib.compress(text.encode(), wbits=31)):
        assert shown_in(f"<script>{base64.b64encode(packed).decode()}</script>") == [WORDS[0]]
    assert shown_in("a run of something else " * 9) == []


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "words",
    [
        *(["report", "--format", form] for form in ("table", "md", "json")),
        *([command, "--format", form] for command in ("info", "doctor") for form in ("table", "json")),
        *([name, "--format", "json"] for name in ANALYSES),
        ["kernels", "--format", "csv"],
    ],
    ids=" ".join,
)
@pytest.mark.sampled(4)
def test_nothing_private_is_printed(
    private: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run(words[0], str(private), *words[1:])
    told = capsys.readouterr()
    assert len(told.out) > 20
    assert shown_in(told.out + told.err) == []


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["report"], "report.html"),
        (["report"], "report.json"),
        (["report"], "report.md"),
        (["report", "--format", "csv"], "tables"),
        (["report", "--format", "parquet"], "tables"),
        (["export"], "frames"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_nothing_private_is_written(private: Path, tmp_path: Path, words: list[str], name: str) -> None:
    run(words[0], str(private), *words[1:], "-o", str(tmp_path / name))
    texts = list(texts_of(tmp_path / name))
    assert sum(map(len, texts)) > 1000
    assert [shown_in(text) for text in texts if shown_in(text)] == []


@pytest.mark.slow
def test_nothing_private_is_kept_in_the_cache(
    private: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path / "cache"))
    run("report", str(private), "-o", str(tmp_path / "report.html"))
    texts = list(texts_of(tmp_path / "cache"))
    assert texts
    assert [shown_in(text) for text in texts if shown_in(text)] == []


def test_errors_name_the_file_alone(
    private: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = tmp_path / "cut.sqlite"
    cut.write_bytes(private.read_bytes()[:-5000])
    with pytest.raises(SystemExit):
        main(["report", str(cut)])
    told = capsys.readouterr().err
    assert told.startswith("tracekit: error: ")
    assert shown_in(told) == []
