"""Build the native decoder with AddressSanitizer and UBSan, and give it mutated blocks; needs gcc or clang.

    python tests/native/hammer.py --seconds 3600 [--seed 1]

What is wrong ends the process with the sanitizer's report.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from tracekit.readers.kineto.native import described  # noqa: E402

__all__ = ["hammer"]

_FLAGS: Final = (
    "-std=c11",
    "-O1",
    "-g",
    "-Wall",
    "-Wextra",
    "-Wno-unused-function",
    "-fno-omit-frame-pointer",
)
_SANITIZERS: Final = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def hammer(
    folder: Path, seconds: int, seed: int = 1, compiler: str = "cc"
) -> subprocess.CompletedProcess[str]:
    """Run it on events of the sample traces; the answer says how many texts it read."""
    program = folder / "hammer"
    subprocess.run([compiler, *_FLAGS, *_SANITIZERS, str(HERE / "hammer.c"), "-o", str(program)], check=True)
    (folder / "plan").write_text(_plan_lines())
    seeds = []
    for path in sorted((ROOT / "sample_traces").glob("*/trace*.json.gz"))[:4]:
        events: list[Any] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        seeds.append(folder / f"{path.parent.name}.lines")
        lines = (json.dumps(event) for event in [*_OTHERS * 40, *events[:: 1 + len(events) // 400]])
        seeds[-1].write_text(",\n".join(lines) + "\n")
    command = [str(program), str(seed), str(seconds), str(folder / "plan"), *map(str, seeds)]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, env={**os.environ, "LD_PRELOAD": ""}
    )


_EVENT: Final = {"ph": "X", "name": "k", "pid": 0, "tid": 7, "ts": 1682725898236567, "dur": 68.125}
_OTHERS: Final[list[dict[str, Any]]] = [
    {**_EVENT, "cat": "kernel", "args": {"device": 0, "stream": "7", "correlation": 3, "grid": [1, 2, 3], "registers per thread": 8}},
    {**_EVENT, "cat": "kernel", "args": {"est. achieved occupancy %": 50.25, "shared memory": 16, "External id": "616"}},
    {**_EVENT, "cat": "cuda_runtime", "args": {"correlation": 3, "external id": 9, "cbid": 211}},
    {**_EVENT, "cat": "cuda_sync", "args": {"stream": -1, "wait_on_stream": None}},
    {**_EVENT, "cat": "python_function", "name": "a\\b\"é😀", "args": {"Python id": 1, "Python parent id": None}},
    {**_EVENT, "cat": "overhead", "pid": "Spans", "tid": ""},
    {**_EVENT, "ph": "i", "name": "[memory]", "args": {"Addr": 1 << 46, "Bytes": -512, "Device Id": 0, "Device Type": 1}},
    {"args": {"Input Dims": [[2, 3], [], [[1]]], "Call stack": "a;b"}, "cat": "cpu_op", **_EVENT},
    {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
    {"ph": "s", "cat": "ac2g", "id": 5, "pid": 1, "tid": 1, "ts": 3},
]  # fmt: skip


def _plan_lines() -> str:
    tables, categories, instant = described()
    lines = []
    for table in tables:
        lines += ["T", *(f"F {number} {key.decode()}" for key, number in table)]
    lines += [f"C {number} {key.decode()}" for key, number in categories]
    return "\n".join([*lines, f"I {instant[1]} {instant[0].decode()}"])


def main() -> None:
    """Build, run, and pass on what it says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        answer = hammer(Path(folder), options.seconds, options.seed)
    print(answer.stdout, answer.stderr[:5_000], flush=True)
    sys.exit(answer.returncode)


if __name__ == "__main__":
    main()
