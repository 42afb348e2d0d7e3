"""Which format a file is of, and what a package adds to the formats."""

from __future__ import annotations

import gzip
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import zstandard
from paths import PUBLIC, PUBLIC_NSYS, SAMPLES

import tracekit
from tracekit.errors import UnreadableTraceError
from tracekit.limits import Limits
from tracekit.readers import FORMATS, KINETO, NSYS, format_named, format_of, installed_formats


@pytest.fixture
def entry_points(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """What stands for the entry points of installed packages."""
    points: list[object] = []
    monkeypatch.setattr("tracekit.readers.entry_points_of", lambda group: points)
    installed_formats.cache_clear()
    yield points
    installed_formats.cache_clear()


class Point:
    name = "theirs"

    def __init__(self, value: object) -> None:
        self.value = value

    def load(self) -> object:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


@pytest.mark.parametrize("path", [*SAMPLES, *PUBLIC, *PUBLIC_NSYS], ids=lambda p: f"{p.parent.name}-{p.name}")
def test_files_are_known_by_what_they_hold(path: Path, tmp_path: Path) -> None:
    expected = NSYS if path.suffix == ".sqlite" else KINETO
    assert format_of(path) is expected
    renamed = tmp_path / "trace"
    renamed.symlink_to(path)
    assert format_of(renamed) is expected


def test_what_calls_itself_an_export_is_one(tmp_path: Path) -> None:
    for name in ("a.sqlite", "b.nsys-rep", "C.QDREP"):
        (tmp_path / name).write_bytes(b"?")
        assert format_of(tmp_path / name) is NSYS
    assert format_of(tmp_path / "missing.sqlite") is KINETO  # which says that it is missing
    assert format_of(tmp_path) is KINETO
    (tmp_path / "t.parquet").touch()
    assert format_of(tmp_path) is NSYS


def test_formats_are_found_by_their_names() -> None:
    assert len({one.name for one in FORMATS}) == len(FORMATS)
    assert all(format_named(one.name) is one for one in FORMATS)
    assert format_named("of a package that is gone") is KINETO


def test_a_package_adds_a_format(entry_points: list[object], tmp_path: Path) -> None:
    theirs = replace(KINETO, name="theirs", recognises=lambda path: path.suffix == ".json", flags={})
    entry_points.append(Point(theirs))
    assert format_of(tmp_path / "t.json") is theirs
    assert format_of(tmp_path / "t.json.gz") is KINETO
    assert format_named("theirs") is theirs
    assert theirs.how_to_record("shapes").startswith("profile with another profiler")


def test_a_package_that_cannot_be_imported_is_named(entry_points: list[object], tmp_path: Path) -> None:
    entry_points.append(Point(ImportError("no such thing")))
    with pytest.warns(UserWarning, match=r"theirs cannot be imported \(no such thing\)"):
        assert format_of(tmp_path / "t.json") is KINETO


CNN = next(path for path in SAMPLES if path.parent.name == "cnn_cpu")


def zipped(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


@pytest.mark.parametrize("inner", [gzip.decompress, bytes], ids=["json", "json.gz"])
@pytest.mark.parametrize("outer", ["zst", "zip"])
def test_packed_traces_are_read_as_they_are(outer: str, inner: type[bytes], tmp_path: Path) -> None:
    data = inner(CNN.read_bytes())
    path = tmp_path / f"t.{outer}"
    if outer == "zst":
        half = len(data) // 2  # two frames are one stream
        path.write_bytes(zstandard.compress(data[:half]) + zstandard.compress(data[half:]))
    else:
        zipped(path, **{"__MACOSX/._t": b"?", "t": data})
    trace = tracekit.read(path)
    assert trace.host.equals(tracekit.read(CNN).host)
    assert not trace.health.filter(pl.col("severity") == "error").height


@pytest.mark.quick(1)
@pytest.mark.parametrize("outer", ["zst", "zip"])
def test_a_packed_trace_that_is_damaged_keeps_what_was_whole(outer: str, tmp_path: Path) -> None:
    data = gzip.decompress(CNN.read_bytes())
    path = tmp_path / f"t.{outer}"
    if outer == "zst":
        path.write_bytes(zstandard.compress(data))
    else:
        zipped(path, t=data)
    packed = path.read_bytes()
    path.write_bytes(packed[: len(packed) // 2] + bytes(64) + packed[len(packed) // 2 + 64 :])
    trace = tracekit.read(path)
    assert 0 < trace.host.height < tracekit.read(CNN).host.height
    assert "error" in trace.health["severity"].to_list()


def test_archives_that_hold_no_one_trace(tmp_path: Path) -> None:
    with pytest.raises(UnreadableTraceError, match="a zip archive of 2 files; unpack it first"):
        tracekit.read(zipped(tmp_path / "two.zip", a=b"{}", b=b"{}"))
    with pytest.raises(UnreadableTraceError, match="PNG"):
        tracekit.read(zipped(tmp_path / "picture.zip", a=b"\x89PNG"))
    bomb = tmp_path / "bomb.zst"
    bomb.write_bytes(zstandard.compress(b"{" + b" " * 10_000_000))
    with pytest.raises(UnreadableTraceError, match="times when decompressed"):
        tracekit.read(bomb, limits=Limits(free_bytes=1 << 20))


@pytest.mark.parametrize("head", ['"ID","Process ID","Kernel Name"\n', "==PROF== Connected to process 1\n"])
def test_a_table_of_nsight_compute_is_not_taken_for_a_trace(head: str, tmp_path: Path) -> None:
    """It was said to be no JSON, and that a trace of PyTorch's profiler is wanted, though a trace takes it as --ncu."""
    (path := tmp_path / "metrics.csv").write_text(head)
    with pytest.raises(
        UnreadableTraceError,
        match="an Nsight Compute table, not a trace; give a trace of the program, and this table with --ncu",
    ):
        tracekit.read(path)
