"""Files are written whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tracekit.errors import UsageError
from tracekit.files import make_directory, write_bytes, write_text


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
    assert str(caught.value).startswith(f"{old}: cannot write the report (No space left on device)")


def test_a_missing_folder_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file or directory"):
        write_text(tmp_path / "missing" / "report.json", "{}")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write the report"):
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


def test_follows_a_link(old: Path) -> None:
    link = old.with_name("link")
    link.symlink_to(old)
    write_text(link, "the new report")
    assert link.is_symlink()
    assert old.read_text() == "the new report"


def test_a_pipe_or_device_is_written_to() -> None:
    write_text(os.devnull, "gone")
    assert Path(os.devnull).is_char_device()


def test_half_a_surrogate_pair_does_not_stop_the_report(tmp_path: Path) -> None:
    write_text(tmp_path / "report", "a\ud800b")
    assert (tmp_path / "report").read_text() == "a?b"
