"""Files are written whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tracekit.errors import UsageError
from tracekit.files import (
    cache_root,
    make_directory,
    scratch_folder,
    write_all,
    write_bytes,
    write_chunks,
    write_text,
)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "report.html"
    path.write_text("the old report")
    return path


def _full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_a_full_disk_leaves_the_old_file(old: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    monkeypatch.setattr(os, call, _full)
    with pytest.raises(UsageError, match="No space left on device") as caught:
        write_text(old, "the new report")
    assert old.read_text() == "the old report"
    assert list(old.parent.iterdir()) == [old]
    assert str(caught.value).startswith(f"{old}: it cannot be written (No space left on device)")


def test_a_missing_folder_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file or directory"):
        write_text(tmp_path / "missing" / "report.json", "{}")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it cannot be written"):
        write_text(tmp_path, "{}")
    assert not list(tmp_path.iterdir())


def test_a_file_is_no_folder(old: Path) -> None:
    with pytest.raises(UsageError):
        make_directory(old)


def test_replaces_and_keeps_the_mode(old: Path) -> None:
    old.chmod(0o640)
    assert write_text(old, "the new report") == old
    assert old.read_text() == "the new report"
    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    assert list(old.parent.iterdir()) == [old]


def test_a_new_file_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_bytes(tmp_path / "new", b"\x00")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o644


def test_a_link_is_replaced_and_not_followed(old: Path) -> None:
    before, link = old.read_bytes(), old.with_name("link")
    link.symlink_to(old)
    write_text(link, "the new report")
    assert link.read_text() == "the new report"
    assert not link.is_symlink()
    assert old.read_bytes() == before


def test_a_pipe_or_device_is_written_to() -> None:
    write_text(os.devnull, "gone")
    assert Path(os.devnull).is_char_device()
    read, write = os.pipe()
    write_text(f"/dev/fd/{write}", "through a pipe")
    os.close(write)
    with open(read, "rb") as pipe:  # noqa: PTH123
        assert pipe.read() == b"through a pipe"


def test_a_file_behind_stdout_gets_the_text_at_its_end(old: Path) -> None:
    before = old.read_text()
    with old.open("a") as stream:
        write_text(f"/dev/fd/{stream.fileno()}", "more")
    assert old.read_text() == f"{before}more"


def test_half_a_surrogate_pair_does_not_stop_the_report(tmp_path: Path) -> None:
    write_text(tmp_path / "report", "a\ud800b")
    assert (tmp_path / "report").read_text() == "a?b"


def test_an_interrupt_leaves_nothing_behind(old: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"half"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_chunks(old, chunks())
    assert old.read_text() == "the old report"
    assert list(old.parent.iterdir()) == [old]


def test_a_folder_is_written_whole_or_not_at_all(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk left some tables of the new report beside others of the old one."""
    folder = old.parent

    def files() -> Iterator[tuple[str, bytes]]:
        yield old.name, b"new"
        monkeypatch.setattr(os, "fsync", _full)
        yield "second.csv", b"new"

    with pytest.raises(UsageError, match="No space left on device"):
        write_all(folder, files())
    assert list(folder.iterdir()) == [old]
    assert old.read_text() == "the old report"
    monkeypatch.undo()
    assert write_all(folder / "a" / "b", [("x", b"1"), ("y", b"2")])[1].read_bytes() == b"2"
    assert sorted(each.name for each in (folder / "a" / "b").iterdir()) == ["x", "y"]


@pytest.mark.parametrize("calls", ["fsync", "replace"])
def test_an_interrupted_folder_is_not_begun(old: Path, calls: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C during `export` left an empty folder."""
    real, seen = getattr(os, calls), []

    def interrupted(*given: Any) -> None:
        seen.append(given)
        if len(seen) == 2:
            raise KeyboardInterrupt
        real(*given)

    monkeypatch.setattr(os, calls, interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_all(old.parent / "tables", [("x", b"1"), ("y", b"2")])
    assert list(old.parent.iterdir()) == [old]


def test_a_link_in_a_folder_of_tables_is_replaced(old: Path) -> None:
    folder = make_directory(old.parent / "tables")
    (folder / "a.csv").symlink_to(old)
    write_all(folder, [("a.csv", b"new")])
    assert old.read_text() == "the old report"
    assert (folder / "a.csv").read_bytes() == b"new"
    assert not (folder / "a.csv").is_symlink()
    (folder / "b.csv").mkdir()
    with pytest.raises(UsageError, match="Is a directory"):
        write_all(folder, [("a.csv", b"newer"), ("b.csv", b"")])
    assert (folder / "a.csv").read_bytes() == b"new"


def _made_a_day_ago(path: Path) -> Path:
    (path / "entry").mkdir(parents=True)
    for each in (path / "entry", path):
        os.utime(each, (time.time() - 90_000,) * 2)
    return path


def test_what_a_killed_process_left_goes_with_the_next_write(old: Path) -> None:
    folder, outside = old.parent, make_directory(old.parent / "outside")
    gone = [_made_a_day_ago(folder / f".{name}-0a1b2c3d.tmp") for name in ("tracekit", "capture", "nsys")]
    with scratch_folder(folder) as made:
        gone.append(folder / Path(made).name)
    _made_a_day_ago(gone[-1])
    own = _made_a_day_ago(folder / ".tracekit-notes.tmp")
    link = folder / ".tracekit-aaaaaaaa.tmp"
    link.symlink_to(_made_a_day_ago(outside / "kept"))
    os.utime(link, (0, 0), follow_symlinks=False)
    with scratch_folder(folder) as fresh:
        write_text(old, "the new report")
        assert Path(fresh).is_dir()
    assert not any(path.exists() for path in gone)
    assert own.exists()
    assert link.is_symlink()
    assert (outside / "kept" / "entry").exists()


def test_an_interrupt_while_a_scratch_folder_comes_or_goes_leaves_none(tmp_path: Path, monkeypatch) -> None:
    make = tempfile.mkdtemp

    def interrupted(*made: object, **named: object) -> None:
        if not made:
            make(**named)
        raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "mkdtemp", interrupted)
    with pytest.raises(KeyboardInterrupt):
        scratch_folder(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(tempfile.TemporaryDirectory, "_rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt), scratch_folder(tmp_path) as scratch:
        Path(scratch, "draft").touch()
    assert list(tmp_path.iterdir()) == []


def test_two_writers_of_one_file_each_write_all_of_it(old: Path) -> None:
    texts = [letter * 100_000 for letter in "ab"]

    def write(text: str) -> None:
        for _ in range(20):
            write_text(old, text)

    threads = [threading.Thread(target=write, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert old.read_text() in {*texts, "the old report"}
    assert list(old.parent.iterdir()) == [old]


def test_a_cache_folder_that_is_not_absolute_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRACEKIT_CACHE_DIR")
    monkeypatch.setenv("HOME", "/somewhere")
    for odd in ("", "here", "~/.cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", odd)
        assert cache_root() == Path("/somewhere/.cache/tracekit")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert cache_root() == Path("/cache/tracekit")
