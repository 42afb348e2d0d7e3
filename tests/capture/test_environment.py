"""What a manifest says of the machine, and what it must not say; the state of the code."""

import getpass
import json
import platform
import socket
import subprocess
from pathlib import Path

import pytest
import torch

from tracekit.capture import environment
from tracekit.capture.environment import describe_machine, git_revision
from tracekit.capture.output import without_paths

CPU = torch.device("cpu")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch) -> Path:
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text("one")
    git("init", "-q")
    git("add", "net.py")
    git("-c", "user.name=n", "-c", "user.email=e", "commit", "-q", "-m", "first")
    return tmp_path


def git(*words: str) -> str:
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout.strip()


def test_the_revision_is_the_commit_and_a_plus_says_that_files_differ(repository: Path) -> None:
    commit = git("rev-parse", "HEAD")
    assert len(commit) == 40
    assert git_revision() == commit
    (repository / "new.txt").write_text("not yet part of it")
    assert git_revision() == commit
    (repository / "net.py").write_text("two")
    assert git_revision() == f"{commit}+"


def test_there_is_no_revision_outside_of_git_or_without_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_revision() is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_revision() is None


def test_a_repository_without_a_commit_has_no_revision(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    git("init", "-q")
    assert git_revision() is None


def test_a_git_that_does_not_answer_is_given_up(repository: Path, monkeypatch) -> None:
    monkeypatch.setattr(environment, "GIT_SECONDS", 0)
    assert git_revision() is None


def test_the_machine_is_described_and_not_named() -> None:
    described = describe_machine(CPU)
    assert described["device"] == "cpu"
    assert described["cpu_threads"] == torch.get_num_threads()
    assert described["platform"] == f"{platform.system()} {platform.machine()}"
    assert described["versions"]["torch"] == torch.__version__
    assert described["versions"]["python"] == platform.python_version()
    text = json.dumps(described)
    for secret in (str(Path.home()), str(Path.cwd()), getpass.getuser(), socket.gethostname()):
        # A user may be called as something that stands in any text ("root" does not, "cpu" would).
        assert secret not in text


@pytest.mark.parametrize(
    ("text", "release"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.82.01  Wed Oct 27 21:21:55 UTC 2021",
            "470.82.01",
        ),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build", "580.95.05"),
        ("570.133\n", "570.133"),
        ("GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)", None),
        (None, None),
    ],
)
def test_the_driver_is_what_its_module_tells(text, release, tmp_path: Path, monkeypatch) -> None:
    if text is not None:
        (tmp_path / "version").write_text(text)
    monkeypatch.setattr(environment, "_DRIVER", (tmp_path / "none", tmp_path / "version"))
    assert environment._driver() == release


def test_only_libraries_that_are_loaded_have_a_version(monkeypatch) -> None:
    monkeypatch.delitem(environment.sys.modules, "timm", raising=False)
    assert "timm" not in describe_machine(CPU)["versions"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/me/net.py:build raised", "net.py:build raised"),
        ("cannot open 'C:\\Users\\me\\x.txt'", "cannot open 'x.txt'"),
        ("a/b/c and 3/4 and ./x/y", "a/b/c and 3/4 and ./x/y"),
        ("nothing here", "nothing here"),
        ("/file", "/file"),
    ],
)
def test_folders_are_left_out_of_texts(text: str, expected: str) -> None:
    assert without_paths(text) == expected
