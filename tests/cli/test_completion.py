"""What a shell offers, and which name is meant."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import run
from paths import ROOT

GPU = ROOT / "sample_traces/resnet50_gpu_bf16"


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("kernels", "x", "--table", "by_l"), {"by_layer"}),
        (("kernels", "--table", "by_category", "--sort", "to"), {"total_ns"}),
        (("critical-path", "--table", "by_c"), {"by_cause", "by_category"}),
        (("what-if", "x", "--device", "MI300"), {"MI300A", "MI300X"}),
        (("nsys-stats", "x", "-r", "cuda_gpu_kern_s"), {"cuda_gpu_kern_sum"}),
        (("diff", "new", "--against", "ma"), {"main"}),
        (("baseline", "show", "ma"), {"main"}),
        (("baseline", "sa"), {"save"}),
    ],
)
def test_values_are_offered(words: tuple[str, ...], offered: set[str], tmp_path: Path) -> None:
    (tmp_path / "main.runs").touch()
    asked = {
        "TRACEKIT_BASELINES": str(tmp_path),
        "_TRACEKIT_COMPLETE": "complete_bash",
        "COMP_WORDS": "\n".join(("tracekit", *words)),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tracekit"], capture_output=True, check=False, env={**os.environ, **asked}
    )
    assert set(done.stdout.decode().split()) == offered


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("help",), "tracekit --help"),
        (("version",), "tracekit --version"),
        (("predict", "fitt", "runs.csv"), "'fit'"),
        (("capture", "BERT"), "did you mean bert or"),
        (("what-if", GPU, "--scale", "kernel:batchnorm_backward=0.5"), "*batch_norm_backward"),
    ],
)
def test_a_wrong_name_has_a_nearest_one(
    words: tuple[object, ...], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, *words)
    assert code == 2
    assert meant in err
    assert err.count("\n") == 1
