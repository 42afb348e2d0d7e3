"""The rules of the house (docs/architecture.md), asked of the graph of imports."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

ROOMS = (
    (
        "_native",
        "classes",
        "errors",
        "extensions",
        "facts",
        "files",
        "groups",
        "intervals",
        "limits",
        "name_table",
        "names",
        "notebook",
        "panics",
        "interval_passes",
        "span_passes",
        "spans",
        "statistics",
        "trees",
    ),
    ("findings", "machine_file", "range_filter", "manifest", "sweep_index"),
    ("trace",),
    ("health", "classify", "counted_work", "missing"),
    ("readers",),
    ("scrub", "api", ""),
    ("analyses",),
    ("analyses.rules", "answers", "digest"),
    ("verdict", "job", "scaling", "trajectory", "diff", "compare", "mlperf", "predict"),
    ("report", "merge", "pytest_plugin"),
    ("cli", "__main__"),
)
"""From the ground up: a module imports from its own room, from those beside it and from those below."""

BESIDE = "capture"
NATIVE = "_native"
"""The package of the C extension: of the program it is a part like others, but nobody else's business."""
MAY_OF_CAPTURE = (
    "capture",
    "errors",
    "facts",
    "files",
    "machine_file",
    "manifest",
    "statistics",
    "sweep_index",
    "",
)


class Import(NamedTuple):
    """That a module imports a name of another."""

    importer: str
    module: str
    name: str
    line: int
    for_types: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.name or 'it'} of {self.module}"


@cache
def modules() -> dict[str, Path]:
    """Every module by its name without `tracekit.`; packages by theirs."""
    found = {}
    for folder, prefix in (("tracekit", ()), ("analyses", ("analyses",)), ("capture", ("capture",))):
        for path in (ROOT / folder).rglob("*.py"):
            parts = (*prefix, *path.relative_to(ROOT / folder).with_suffix("").parts)
            if folder == "tracekit" and parts[0] in ("analyses", "capture"):
                continue  # the links by which the folder is the whole package
            found[".".join(part for part in parts if part != "__init__")] = path
    return found


@cache
def nodes_of(path: Path) -> tuple[ast.Import | ast.ImportFrom | ast.If | ast.Assign, ...]:
    """The imports of a module, its blocks for types only, and its `__all__`."""
    return tuple(
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        or (isinstance(node, ast.If) and _is_name(node.test, "TYPE_CHECKING"))
        or (isinstance(node, ast.Assign) and _is_name(node.targets[0], "__all__"))
    )


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


@cache
def imports() -> tuple[Import, ...]:
    """All imports between modules of the package, those inside functions too."""
    return tuple(found for name, path in modules().items() for found in _imports_of(name, path))


def _imports_of(importer: str, path: Path) -> Iterator[Import]:
    for_types = {inner for node in nodes_of(path) if isinstance(node, ast.If) for inner in ast.walk(node)}
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{importer}:{node.lineno}: a relative import"
            found = [(node.module or "", alias.name) for alias in node.names]
        else:
            continue
        for module, name in found:
            if module != "tracekit" and not module.startswith("tracekit."):
                continue
            target = module.removeprefix("tracekit").removeprefix(".")
            inner = f"{target}.{name}".removeprefix(".")
            if name and inner in modules():
                target, name = inner, ""  # noqa: PLW2901
            yield Import(importer, target, name, node.lineno, node in for_types)


def room(module: str) -> int:
    """The storey of a module: that of the longest name of a room that it begins with."""
    fits = [
        (len(name), storey)
        for storey, names in enumerate(ROOMS)
        for name in names
        if module == name or (name and module.startswith(f"{name}."))
    ]
    assert fits, f"{module} has no room: add it to ROOMS and to docs/architecture.md"
    return max(fits)[1]


def package(module: str) -> str:
    """The package that a module lies in; a package lies in itself."""
    return module if modules()[module].name == "__init__.py" else module.rpartition(".")[0]


def test_no_arrow_goes_up() -> None:
    inside = [one for one in imports() if not one.importer.startswith(BESIDE)]
    wrong = [
        str(one)
        for one in inside
        if (
            not one.importer.startswith("cli")
            if one.module.startswith(BESIDE)
            else room(one.module) > room(one.importer)
        )
    ]
    assert not wrong, "\n".join(wrong)


def test_capture_stands_beside() -> None:
    wrong = [
        str(one)
        for one in imports()
        if one.importer.startswith(BESIDE) and one.module.partition(".")[0] not in MAY_OF_CAPTURE
    ]
    assert not wrong, "\n".join(wrong)


def test_no_cycle() -> None:
    above: dict[str, set[str]] = {name: set() for name in modules()}
    for one in imports():
        if not one.for_types and one.module != one.importer:
            above[one.importer].add(one.module)
    while leaves := {name for name, targets in above.items() if not targets & above.keys()}:
        above = {name: targets for name, targets in above.items() if name not in leaves}
    assert not above, f"a cycle among {sorted(above)}"


def test_nothing_private_crosses_a_package() -> None:
    wrong = []
    for one in imports():
        private = any(
            part.startswith("_") and part not in ("__main__", NATIVE) for part in one.module.split(".")
        )
        if (private or one.name.startswith("_")) and package(one.importer) != package(one.module):
            wrong.append(str(one))
    assert not wrong, "\n".join(wrong)


def test_what_another_package_imports_is_in_all() -> None:
    wrong = [
        str(one)
        for one in imports()
        if one.name
        and package(one.importer) != package(one.module)
        and one.name not in exported(one.module)
        and not one.name.startswith("__")
    ]
    assert not wrong, "\n".join(wrong)


@cache
def exported(module: str) -> frozenset[str]:
    """What the `__all__` of a module lists."""
    for node in nodes_of(modules()[module]):
        if isinstance(node, ast.Assign):
            return frozenset(ast.literal_eval(node.value))
    return frozenset()


def test_only_capture_imports_torch() -> None:
    wrong = [
        name
        for name, path in modules().items()
        if not name.startswith(BESIDE)
        for node in nodes_of(path)
        if isinstance(node, ast.Import | ast.ImportFrom)
        and any(alias.name.partition(".")[0] == "torch" for alias in node.names)
    ]
    assert not wrong


def test_a_verdict_reads_results_only() -> None:
    frames = {"host", "device", "activities", "overlapping", "intervals", "syncs", "counters", "memory"}
    wrong = [
        f"{name}:{node.lineno} reads .{node.attr}"
        for name, path in modules().items()
        if name.startswith("verdict")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr in frames
        and ast.unparse(node.value) in ("scope", "trace", "scope.trace")
    ]
    assert not wrong, "\n".join(wrong)


def test_the_wheel_holds_every_package() -> None:
    packages = (ROOT / "pyproject.toml").read_text("utf-8").partition("\npackages = [")[2].partition("]")[0]
    there = {
        ".".join(("tracekit", *folder.relative_to(ROOT).parts)).replace("tracekit.tracekit", "tracekit")
        for home in ("tracekit", "analyses", "capture")
        for folder in (path.parent for path in (ROOT / home).rglob("__init__.py"))
    }
    assert set(re.findall(r'"([\w.]+)"', packages)) == there


def test_the_wheel_holds_every_table_of_data() -> None:
    table = (ROOT / "pyproject.toml").read_text("utf-8").partition("[tool.setuptools.package-data]\n")[2]
    listed = {
        f"{package.replace('.', '/')}/{file}"
        for package, files in re.findall(r'^"([\w.]+)" = \[(.*)\]$', table.partition("\n[")[0], re.MULTILINE)
        for file in re.findall(r'"([\w.]+\.json)"', files)
    }
    there = {
        "tracekit/" + path.relative_to(ROOT).as_posix().removeprefix("tracekit/")
        for home in ("tracekit", "analyses", "capture")
        for path in (ROOT / home).rglob("*.json")
    }
    assert listed == there
