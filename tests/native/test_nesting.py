"""The native passes over nested spans and sets of intervals, built with sanitizers: what `tests/test_spans.py` and `tests/test_intervals.py` ask of them touches nothing
beyond an array.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tracekit import _native

ROOT = Path(__file__).resolve().parents[2]
_RUN = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("nesting", sys.argv[1])
from tracekit import span_passes
span_passes.native = importlib.util.module_from_spec(spec)
spec.loader.exec_module(span_passes.native)
import pytest
sys.exit(pytest.main(["-q", "-n", "0", "-p", "no:cacheprovider", "-k", "native", "-W", "ignore::pytest.PytestAssertRewriteWarning", *sys.argv[2:]]))
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None or sys.platform != "linux", reason="there is no C compiler")
def test_sanitizers_find_nothing(tmp_path: Path) -> None:
    source = Path(_native.__file__).with_name("nesting.c")
    built = tmp_path / "nesting.abi3.so"
    flags = [
        "-g",
        "-O1",
        "-Wall",
        "-Wextra",
        "-shared",
        "-fPIC",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=undefined",
    ]
    include = f"-I{sysconfig.get_paths()['include']}"
    made = subprocess.run(
        ["cc", *flags, include, str(source), "-o", str(built)], check=False, capture_output=True, text=True
    )
    if "cannot find" in made.stderr or "Python.h" in made.stderr:
        pytest.skip("the compiler has no sanitizers, or Python no headers")
    assert (made.returncode, made.stderr) == (0, "")
    libraries = [
        subprocess.run(
            ["cc", f"-print-file-name=lib{name}.so"], check=True, capture_output=True, text=True
        ).stdout.strip()
        for name in ("asan", "ubsan")
    ]
    run = subprocess.run(
        [
            sys.executable,
            "-c",
            _RUN,
            str(built),
            *(str(ROOT / "tests" / f"test_{of}.py") for of in ("spans", "intervals")),
        ],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "LD_PRELOAD": " ".join(libraries), "ASAN_OPTIONS": "detect_leaks=0"},
    )
    assert run.returncode == 0, run.stdout[-2_000:] + run.stderr[-2_000:]
