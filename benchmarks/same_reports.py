"""Whether two revisions say the same figures about the same traces.

    python benchmarks/same_reports.py                     the working tree against HEAD
    python benchmarks/same_reports.py main~20 main        two revisions
    python benchmarks/same_reports.py main~20 --words     sentences too, not only the figures in them

Every command that answers in JSON runs in both revisions on the bundled samples, on the public traces beside the checkout
(where they are) and on generated ones. Numbers, names and keys must be equal. Of a sentence only the figures must be, so
that words may improve; `--words` compares them as well. The exit code is 1 when anything differs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PUBLIC = ROOT.parent / "shared" / "traces"
TREE = "the working tree"

COMMANDS = {
    "report": ("report", "-o"),
    "doctor": ("doctor", "-f", "json", "-o"),
    "info": ("info", "-f", "json", "-o"),
    "xsp": ("xsp", "-o"),
    "nsys-stats": ("nsys-stats", "-r", "all", "-r", "rules", "-o"),
}
"""What is asked of each trace; the file to write follows."""

PROGRAM = """
import json, runpy, sys
trace, commands = sys.argv[1], json.loads(sys.argv[2])
for name, words, target in commands:
    sys.argv = ["tracekit", words[0], trace, *words[1:], target]
    try:
        runpy.run_module("tracekit", run_name="__main__")
    except SystemExit as end:
        print(name, end.code or 0)
"""
"""One process a trace: that a command ends with an error is an answer as well."""

PROSE = frozenset(
    {
        "advice",
        "answer",
        "description",
        "evidence",
        "headline",
        "label",
        "law",
        "meaning",
        "not_captured",
        "notes",
    }
    | {"question", "title"}
)
"""Keys below which sentences stand."""
DROPPED = frozenset({"gpu_gaps", "gpu_time_util"})
"""Tables of nsys-stats that findings took the place of."""
NUMBERED = frozenset({"layer_id", "parent_layer_id"})
"""Numbers that only tell rows of one table apart."""
FIGURE = re.compile(r"\d(?:[\d,.]*\d)?(?: ?(?:%|ns|µs|ms|s|B|kB|MB|GB|TB|GB/s))?(?!\w|\.\d)")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", nargs="?", default="HEAD", help="a revision (default: HEAD)")
    parser.add_argument("new", nargs="?", help="a revision (default: the working tree)")
    parser.add_argument("--words", action="store_true", help="compare sentences too")
    parser.add_argument("--only", default="", help="only traces whose path has this in it")
    parser.add_argument(
        "--keep", type=Path, help="keep the answers of revisions in this folder, and use those there"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        traces = {name: path for name, path in inputs(scratch / "made") if options.only in name}
        old = answers(options.old, traces, options.keep, scratch / "old")
        new = answers(options.new or TREE, traces, options.keep, scratch / "new")
        found = list(differences(old, new, words=options.words))
    for line in found[:200]:
        print(line)
    print(f"{len(traces)} traces, {len(old)} answers, {len(found)} differences")
    return 1 if found or not old else 0


# -- the traces --------------------------------------------------------------------------------------


def inputs(folder: Path) -> Iterator[tuple[str, Path]]:
    """Name and path of every trace, those generated under `folder`."""
    samples = ROOT / "sample_traces"
    yield from (
        (f"samples/{path.parent.name}/{path.name}", path) for path in sorted(samples.glob("*/*.json.gz"))
    )
    for path in sorted([*PUBLIC.glob("kineto/*.json.gz"), *PUBLIC.glob("nsys/*.sqlite")]):
        yield f"public/{path.name}", path
    folder.mkdir()
    made = [sys.executable, "-c", MAKE, str(folder)]
    subprocess.run(made, check=True, env={**os.environ, "PYTHONPATH": str(ROOT / "tests")})
    yield from ((f"made/{path.name}", path) for path in sorted(folder.iterdir()))


MAKE = """
import sys
from pathlib import Path
from synthetic import Shape, generate, layered, write
from synthetic.nsys_export import write_sqlite
from synthetic.nsys_layered import Style, both, shape_of, training

folder = Path(sys.argv[1])
variants = [
    {}, {"devices": 2}, {"host_recorded": False}, {"device_recorded": False}, {"python_stacks": True, "workers": 2},
    {"vendor": "amd", "tick_ns": 1000, "zero_kernels": True}, {"graph": False, "triton": False, "communication": False},
    {"steps": 1}, {"steps": 0}, {"steps": 12, "python_stacks": True, "memory_events": False},
]
for seed, variant in enumerate(variants):
    write(generate(seed, **variant), folder / f"run{seed}.json.gz")
shapes = [
    Shape(), Shape(source="module"), Shape(source="fsdp"),
    Shape(checkpoint="reentrant"), Shape(reduction=True, same_thread=True), Shape(second_thread=True, numbers=False),
]
for seed, shape in enumerate(shapes):
    write(layered(seed, shape).planted, folder / f"layers{seed}.json")
first, second = training(1, shape_of("range"), Style()), training(2, shape_of("dict"), Style("dict", pid=777))
write_sqlite(first.program, folder / "one.sqlite")
write_sqlite(both(first, second).program, folder / "two.sqlite", "2.9.1")
"""


# -- the answers -------------------------------------------------------------------------------------

Answers = dict[str, Any]


def answers(revision: str, traces: dict[str, Path], keep: Path | None, scratch: Path) -> Answers:
    """`trace command` → its JSON, or its exit code."""
    scratch.mkdir(parents=True)
    code = ROOT if revision == TREE else checkout(revision, scratch / "code")
    store = scratch / "answers"
    if keep is not None and revision != TREE:
        commit = git("rev-parse", "--short", revision)
        store = keep / commit
    environment = {**os.environ, "PYTHONPATH": str(code), "TRACEKIT_CACHE_DIR": str(scratch / "cache")}

    def ask(item: tuple[str, Path]) -> Answers:
        name, path = item
        return ask_all(name, path, store / name.replace("/", "__"), environment, scratch)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return {key: value for one in pool.map(ask, traces.items()) for key, value in one.items()}


def ask_all(name: str, path: Path, target: Path, environment: dict[str, str], scratch: Path) -> Answers:
    """All commands on one trace; those kept from before are not run again."""
    ended = target / "ended.json"
    if not ended.exists():
        target.mkdir(parents=True, exist_ok=True)
        asked = json.dumps([(key, words, str(target / f"{key}.json")) for key, words in COMMANDS.items()])
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(path), asked],
            env=environment, cwd=scratch, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if run.returncode:
            sys.exit(f"{name}: {run.stderr[-2000:]}")
        ended.write_text(json.dumps(dict(line.rsplit(" ", 1) for line in run.stdout.splitlines())))
    codes = json.loads(ended.read_text())
    told: Answers = {}
    for key in COMMANDS:
        file = target / f"{key}.json"
        told[f"{name} {key}"] = json.loads(file.read_text()) if file.exists() else {"exit code": codes[key]}
    return told


def checkout(revision: str, folder: Path) -> Path:
    """The code of a revision, with the links by which one folder is the whole package."""
    folder.mkdir(parents=True)
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", revision, "tracekit", "analyses", "capture"],
        check=True, capture_output=True,
    )  # fmt: skip
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    for name in ("analyses", "capture"):
        link = folder / "tracekit" / name
        if not link.exists():
            link.symlink_to(f"../{name}")
    return folder


def git(*words: str) -> str:
    return subprocess.run(
        ["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True
    ).stdout.strip()


# -- their differences -------------------------------------------------------------------------------


def differences(old: Answers, new: Answers, *, words: bool) -> Iterator[str]:
    for key in old:
        yield from (f"{key}: {line}" for line in compare(old[key], new[key], "", words=words))


def compare(old: Any, new: Any, place: str, *, words: bool) -> Iterator[str]:
    """Where two JSON values differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            if key in NUMBERED or key in DROPPED:
                continue
            if key not in old or key not in new:
                yield f"{place}.{key} {'is gone' if key in old else 'is new'}"
            else:
                yield from compare(old[key], new[key], f"{place}.{key}", words=words)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, pair in enumerate(zip(old, new, strict=True)):
            yield from compare(*pair, f"{place}[{index}]", words=words)
    elif is_prose(place) and isinstance(old, str) and isinstance(new, str) and not words:
        if sorted(FIGURE.findall(old)) != sorted(FIGURE.findall(new)):
            yield f"{place}\n    {old}\n    {new}"
    elif isinstance(old, float) and isinstance(new, float):
        if not math.isclose(old, new, rel_tol=1e-9):  # sums of several threads differ in the last digits
            yield f"{place}\n    {old}\n    {new}"
    elif old != new:
        yield f"{place}\n    {shorten(old)}\n    {shorten(new)}"


def is_prose(place: str) -> bool:
    return re.sub(r"\[\d+\]$", "", place).rsplit(".", 1)[-1] in PROSE


def shorten(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) < 300 else text[:300] + "…"


if __name__ == "__main__":
    shutil.which("git") or sys.exit("git is needed")
    sys.exit(main())
