"""The pytest plugin, in a test suite of its own as a user has it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path

import msgspec
import polars as pl
import pytest
from noisy_runs import pair
from planted_runs import cnn

from tracekit.diff.baselines import save
from tracekit.diff.runs import Run
from tracekit.digest import Digest
from tracekit.readers.kineto import reader

assert reader  # pytester forgets modules that a test is the first to import, and a second copy of their classes is another one

pytest_plugins = ["pytester"]

_INSTALLED = any(entry.value == "tracekit.pytest_plugin" for entry in entry_points(group="pytest11"))
PLUGIN = (
    *(() if _INSTALLED else ("-p", "tracekit.pytest_plugin")),
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
)
"""An installed tracekit has it by its entry point; of a checkout on the path it is named."""


def digest(times: list[int]) -> Digest:
    """A run with these step times, all of one leaf."""
    own = cnn()
    steps = pl.DataFrame({"step": range(len(times)), "name": "", "time_ns": times}, schema=own.steps.schema)
    leaf = int(own.leaves.filter(pl.col("kind") == "compute")["leaf"][0])
    values = steps.select("step", leaf=pl.lit(leaf, pl.Int64), ns="time_ns", calls=pl.lit(1, pl.Int64), duration_ns="time_ns")  # fmt: skip
    return replace(own, steps=steps, values=values)


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with two reports, `slow` and `fast`, and a baseline of the fast one."""
    base, new = pair((1,), 50, "independent", slower=0.08)
    monkeypatch.setenv("TRACEKIT_BASELINES", str(pytester.path / "baselines"))
    for name, times in (("fast", base[0]), ("slow", new[0]), ("short", base[0][:3] + 10**6)):
        report = {"schema_version": "1.0", "digest": digest(times.tolist()).plain()}
        Path(pytester.path, f"{name}.json").write_bytes(msgspec.json.encode(report))
    save("main", [Run("fast", (digest(base[0].tolist()),))])
    return pytester


def test_a_regression_fails_the_test_with_the_sentence_of_the_gate(suite: pytest.Pytester) -> None:
    suite.makepyfile("""
        def test_speed(assert_no_regression):
            assert_no_regression("slow.json", "fast.json")

        def test_speed_against_a_baseline(assert_no_regression):
            assert_no_regression("slow.json", "main", gate=["3%"])
    """)
    result = suite.runpytest_inprocess(*PLUGIN)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        ["*AssertionError: 3% failed: The median step time grew by *the limit is 3 %*"]
    )


def test_what_did_not_change_passes(suite: pytest.Pytester) -> None:
    suite.makepyfile("""
        from pathlib import Path

        def test_speed(assert_no_regression):
            (found,) = assert_no_regression(Path("fast.json"), ["fast.json"])
            assert found.outcome == "passed"
            assert_no_regression("slow.json", "main", gate="20%")
    """)
    suite.runpytest_inprocess(*PLUGIN).assert_outcomes(passed=1)


def test_an_inconclusive_gate_skips_unless_told_otherwise(suite: pytest.Pytester) -> None:
    suite.makepyfile("""
        def test_skips(assert_no_regression):
            assert_no_regression("short.json", "fast.json")

        def test_fails(assert_no_regression):
            assert_no_regression("short.json", "fast.json", inconclusive="fail")

        def test_passes(assert_no_regression):
            assert_no_regression("short.json", "fast.json", inconclusive="pass")
    """)
    result = suite.runpytest_inprocess(*PLUGIN, "-rs")
    result.assert_outcomes(passed=1, failed=1, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*3% inconclusive:*fewer than 5 steps prove nothing*"])


def test_a_mistyped_word_for_inconclusive_gates_is_an_error(suite: pytest.Pytester) -> None:
    """`inconclusive="failed"` let the test pass."""
    suite.makepyfile("""
        def test_speed(assert_no_regression):
            assert_no_regression("short.json", "fast.json", inconclusive="failed")
    """)
    result = suite.runpytest_inprocess(*PLUGIN)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*UsageError: inconclusive is 'failed'*skip, fail or pass*"])


@pytest.mark.parametrize(
    ("baseline", "fault"),
    [
        ("mian", "there is no baseline 'mian'"),
        # `there is no baseline 'before.json.gz'` was told of a file that was misspelt.
        ("before.json.gz", "before.json.gz: no such file"),
    ],
)
def test_what_is_neither_path_nor_baseline_is_an_error(
    suite: pytest.Pytester, baseline: str, fault: str
) -> None:
    suite.makepyfile(f"""
        def test_speed(assert_no_regression):
            assert_no_regression("slow.json", "{baseline}")
    """)
    result = suite.runpytest_inprocess(*PLUGIN)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*{fault}*"])


def test_the_plugin_imports_nothing_heavy() -> None:
    code = "import sys, tracekit.pytest_plugin; sys.exit(any(name in sys.modules for name in ('numpy', 'polars')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
