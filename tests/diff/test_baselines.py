"""Baselines as a user keeps them: names, places, writers at once, and files that are damaged."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from commands import run
from planted_runs import DDP, planted, same, written

from tracekit.diff import baselines
from tracekit.diff.baselines import VARIABLE, folder, load, path_of, remove, save, stored
from tracekit.errors import UnreadableTraceError, UsageError


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def there() -> list[str]:
    return sorted(path.name for path in folder().iterdir())


def test_the_folder_is_the_nearest_one_upwards(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder() == place / ".tracekit" / "baselines"
    save("main", [planted("one")])
    deep = place / "src" / "package"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    assert folder() == place / ".tracekit" / "baselines"
    assert load("main").runs[0].name == "one"
    monkeypatch.setenv(VARIABLE, str(place / "elsewhere"))
    assert save("main", [planted("two")]) == place / "elsewhere" / "main.runs"
    assert load("main").runs[0].name == "two"


def test_what_is_saved_again_replaces_what_was_there() -> None:
    save("main", [planted("one"), planted("two")])
    save("main", [planted("three")])
    side = load("main")
    assert (side.name, [one.name for one in side.runs]) == ("main", ["three"])
    assert same(side.runs[0].digests[0], planted("three").digests[0])
    assert abs(stored("main").saved_ns - time.time_ns()) < 60 * 10**9


@pytest.mark.parametrize("name", ["", ".", "..", "../up", "a/b", "/etc/passwd", "a\\b", ".hidden", "-flag", "a b", "a\n", "a\0", "é", "x" * 101])  # fmt: skip
def test_what_leads_elsewhere_is_no_name(name: str) -> None:
    for call in (path_of, load, remove, lambda each: save(each, [planted("one")])):
        with pytest.raises(UsageError, match="is not a name for a baseline"):
            call(name)


@pytest.mark.parametrize(
    "name", ["main", "v1.2.3", "nightly-2026-11-23", "a", "H100=bf16+fused@x_1", "x" * 100]
)
def test_usual_names_are_names(name: str) -> None:
    save(name, [planted("one")])
    assert [one.name for one in baselines.baselines() if not isinstance(one, Exception)] == [name]
    remove(name)
    assert not list(baselines.baselines())


def test_a_link_is_replaced_not_followed(place: Path) -> None:
    mine = place / "mine"
    mine.write_text("keep")
    folder().mkdir(parents=True)
    path_of("main").symlink_to(mine)
    save("main", [planted("one")])
    assert mine.read_text() == "keep"
    assert load("main").runs[0].name == "one"


@pytest.mark.parametrize("failure", [OSError(30, "Read-only file system"), OSError(28, "No space left on device"), KeyboardInterrupt()])  # fmt: skip
def test_a_failure_leaves_the_old_one(monkeypatch: pytest.MonkeyPatch, failure: BaseException) -> None:
    save("main", [planted("old")])

    def fail(*_: object) -> None:
        raise failure

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", fail)
        if isinstance(failure, OSError):
            with pytest.raises(UsageError, match=f"main.runs: the baseline cannot be saved .{failure.strerror}.; set TRACEKIT_BASELINES"):  # fmt: skip
                save("main", [planted("new")])
        else:
            with pytest.raises(KeyboardInterrupt):
                save("main", [planted("new")])
    assert load("main").runs[0].name == "old"
    assert there() == ["main.runs"]


def test_a_folder_that_cannot_be_made(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "file").touch()
    monkeypatch.setenv(VARIABLE, str(place / "file" / "below"))
    with pytest.raises(
        UsageError, match=r"the baseline cannot be saved .Not a directory.; set TRACEKIT_BASELINES"
    ):
        save("main", [planted("one")])
    with pytest.raises(UsageError, match="there is no baseline 'main'"):
        load("main")


def test_a_damaged_one_is_said_and_the_others_are_listed(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b", "c"):
        save(name, [planted(name)])
    path_of("b").write_bytes(path_of("b").read_bytes()[:-1])
    (folder() / "no name.runs").touch()
    with pytest.raises(UnreadableTraceError, match=r"b.runs: no valid file of saved runs"):
        load("b")
    code, out, err = run(capsys, "baseline", "list", "-f", "csv")
    assert (code, [line.split(",")[0] for line in out.splitlines()]) == (0, ["name", "a", "c"])
    assert err == f"tracekit: left out: {path_of('b')}: no valid file of saved runs (its bytes are not those that were saved); save it again\n"  # fmt: skip
    # The step times, which it is there for, had no room beside the names of programs and devices.
    shown = [run(capsys, "baseline", *words)[1] for words in (["list"], ["show", "a"])]
    assert all(re.search(r"^  name .* steps +step +program", text, re.MULTILINE) for text in shown)
    code, out, err = run(capsys, "baseline", "show", "b")
    assert (code, out) == (3, "")
    assert run(capsys, "baseline", "rm", "b")[0] == 0
    assert not path_of("b").exists()


def _while_read(write: Callable[[], None]) -> int:
    """How often a baseline was read, always whole, while others wrote it."""
    with ThreadPoolExecutor(1) as beside:
        writing = beside.submit(write)
        reads = 0
        while not writing.done():
            (one,) = load("shared").runs
            assert one.name.startswith("writer")
            reads += 1
        writing.result()
    return reads


def test_threads_that_save_at_once() -> None:
    save("shared", [planted("writer")])

    def write(number: int) -> None:
        for each in range(8):
            save("shared", [planted(f"writer {number}")])
            save(f"own-{number}-{each}", [planted("own")])

    def all_of_them() -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(write, range(4)))

    assert _while_read(all_of_them)
    assert len(there()) == 33


@pytest.mark.slow
def test_processes_that_save_at_once(place: Path) -> None:
    save("shared", [planted("writer")])
    code = (
        "import sys; from planted_runs import planted; from tracekit.diff.baselines import save\n"
        "for each in range(40): save('shared', [planted(f'writer {sys.argv[1]}')]); save(f'own-{sys.argv[1]}-{each}', [planted('own')])"
    )
    tests = Path(__file__).parent
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent), str(tests.parent.parent)]),
    }

    def write() -> None:
        started = [
            subprocess.Popen([sys.executable, "-c", code, str(each)], env=environment) for each in range(6)
        ]
        assert [each.wait() for each in started] == [0] * 6

    assert _while_read(write) > 10
    assert there() == sorted([*(f"own-{n}-{each}.runs" for n in range(6) for each in range(40)), "shared.runs"])  # fmt: skip


# -- the command ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_way_of_a_baseline(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "baseline", "save", "ddp", DDP)
    path = place / ".tracekit" / "baselines" / "ddp.runs"
    assert (code, err) == (0, f"saved ddp: 1 run in {path}\n")
    assert path.stat().st_size < 100_000
    first, second = (written(place / f"{name}.json") for name in ("first", "second"))
    code, _, err = run(capsys, "baseline", "save", "ddp", first, second)
    assert (code, err) == (0, f"replaced ddp: 2 runs in {path}\n")
    code, out, _ = run(capsys, "baseline", "list", "-f", "json")
    (row,) = json.loads(out)["baselines"]
    code, out, _ = run(capsys, "diff", "--against", "ddp", first, "-f", "json")
    shown = next(one for one in json.loads(out)["diff"]["tables"]["steps"] if one["side"] == "base")
    told = ("ddp", 2, shown["steps"], shown["median_ns"])
    assert (row["name"], row["runs"], row["steps"], row["step_ns"]) == told
    code, out, _ = run(capsys, "baseline", "show", "ddp")
    assert "first.json" in out
    assert run(capsys, "baseline", "rm", "ddp")[1:] == ("", f"removed {path}\n")
    code, _, err = run(capsys, "baseline", "show", "ddp")
    assert (code, err) == (2, f"tracekit: error: there is no baseline 'ddp' in {path.parent}; save one with tracekit baseline save\n")  # fmt: skip


def test_a_run_that_cannot_be_read_saves_nothing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = written(place / "good.json")
    code, _, err = run(capsys, "baseline", "save", "main", good, place / "no.json")
    assert (code, err) == (3, f"tracekit: error: {place}/no.json: no such file; check the path\n")
    assert not path_of("main").exists()


def test_a_wrong_name_asks_for_the_nearest(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save("nightly", [planted("one")])
    code, _, err = run(capsys, "baseline", "rm", "nigthly")
    assert (code, err.endswith("; did you mean nightly?\n")) == (2, True)
    assert run(capsys, "baseline", "save", "../up", place)[0] == 2
