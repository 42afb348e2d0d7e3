"""The generated documentation says what the code says; `make docs-reference` mends it when it does not."""

from __future__ import annotations

import importlib.util
import re
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
CLI_PAGE = ROOT / "docs" / "reference" / "cli.md"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_no_page_has_drifted(generate: ModuleType) -> None:
    made_with = re.search(r"<!-- typer (\S+) -->", CLI_PAGE.read_text("utf-8"))
    same_typer = made_with is not None and made_with[1] == version("typer")
    drifted = [
        str(path.relative_to(ROOT))
        for path, text in generate.pages().items()
        # each version of typer lays its help out a little differently
        if (path != CLI_PAGE or same_typer) and (not path.exists() or path.read_text("utf-8") != text)
    ]
    assert not drifted, "run `make docs-reference`"


def test_every_command_and_flag_is_in_the_reference(generate: ModuleType) -> None:
    """Whatever typer's version."""
    page = CLI_PAGE.read_text("utf-8")
    sections = dict(re.findall(r"^## (tracekit[\w -]*)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    helps = dict(generate.command_helps())
    assert sections.keys() == helps.keys()
    flag = re.compile(r"(?<![\w-])--?[a-z][\w-]*")
    for name, text in helps.items():
        assert not re.search(r"<\w|list\[|\{", text), name  # types of Python
        assert set(flag.findall(text)) == set(flag.findall(sections[name])), name


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert set(re.findall(r": (\S+\.md)$", navigation, re.MULTILINE)) == pages


def test_links_between_files_of_the_repository_hold() -> None:
    """mkdocs checks those within docs/."""
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "sample_traces/README.md"):
        page = ROOT / name
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text("utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{name} links to {target}"
