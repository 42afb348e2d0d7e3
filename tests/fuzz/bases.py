"""The healthy inputs that the campaign mutates: small, of every format, with what each can hold. Run once, in a process of its own."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec
import planted_ncu
from paths import ROOT
from synthetic import Shape, dump, generate, layered
from synthetic.nsys_export import write_parquetdir, write_sqlite
from synthetic.nsys_odd import small
from synthetic.nsys_schema import OLDEST

MEMORY: list[dict[str, Any]] = [
    {
        "ph": "i",
        "s": "t",
        "cat": "cpu_instant_event",
        "name": "[memory]",
        "pid": 1,
        "tid": 1,
        "ts": 1_000 + 3 * number,
        "args": {
            "Total Reserved": 1 << 20,
            "Total Allocated": 512 * number,
            "Bytes": 512 if number % 3 else -512,
            "Addr": 4096 * number,
            "Device Id": 0,
            "Device Type": 1,
        },
    }
    for number in range(12)
]


REAL = (
    "bert_gpu_bf16/trace",
    "bert_cpu_ddp/trace-rank0",
    "dlrm_gpu_fp32/trace",
    "resnet50_gpu_fp32/trace",
    "yolov5_gpu_bf16/trace",
)
"""Sample traces with names, shapes and arguments that the planted ones lack."""
EVENTS = 500
"""Of an excerpt."""


def make(folder: Path) -> None:
    """One file or folder for each base."""
    folder.mkdir(parents=True)
    planted = generate(seed=5, steps=3, layers=2, devices=2)
    (folder / "planted.json").write_bytes(dump(planted, "kineto"))
    (folder / "compact.json").write_bytes(_sending(dump(generate(seed=6, steps=2, layers=1), "compact")))
    tree = json.loads(dump(layered(3, Shape(checkpoint="reentrant", reduction=True)).planted, "kineto"))
    tree["traceEvents"] += MEMORY
    (folder / "layers.json").write_text(json.dumps(tree))
    launches = [planted_ncu.Launch(name, planted_ncu.counted(1000, 64, 64, 50.0)) for name in ("a", "b", "a")]
    (folder / "metrics.csv").write_text(planted_ncu.raw(launches))
    program = small(launches=12)
    write_sqlite(program, folder / "new.sqlite")
    write_sqlite(program, folder / "old.sqlite", OLDEST)
    write_parquetdir(program, folder / "parquet")
    shutil.copytree(ROOT / "sample_traces/cnn_cpu", folder / "capture")
    _shorten(folder / "capture/trace.json.gz")
    for name in REAL:
        _excerpts(ROOT / f"sample_traces/{name}.json.gz", folder / "real")


def _sending(text: bytes) -> bytes:
    """The trace with its reductions as messages to another rank."""
    return (
        text.replace(b'"nccl:all_reduce"', b'"nccl:send 0->1"')
        .replace(b'"Collective name":"allreduce"', b'"Collective name":"send"')
        .replace(b'"Collective name": "allreduce"', b'"Collective name": "send"')
    )


def _shorten(path: Path) -> None:
    """The first step of a capture: a case takes as long as its report, and the other steps are alike."""
    tree = json.loads(gzip.decompress(path.read_bytes()))
    step = next(event for event in tree["traceEvents"] if event.get("name", "").startswith("ProfilerStep"))
    last = step["ts"] + step["dur"]
    events = [event for event in tree["traceEvents"] if event["ph"] == "M" or event["ts"] <= last]
    path.write_bytes(gzip.compress(json.dumps({**tree, "traceEvents": events}).encode(), 1))


def _excerpts(path: Path, folder: Path) -> None:
    """Three parts of a capture: of its begin, its middle and its end, each with the spans around it."""
    folder.mkdir(exist_ok=True)
    tree = msgspec.json.decode(gzip.decompress(path.read_bytes()))
    timed = sorted(
        (event for event in tree["traceEvents"] if event["ph"] != "M"), key=lambda event: event["ts"]
    )
    rest = [event for event in tree["traceEvents"] if event["ph"] == "M"]
    for at in (0, len(timed) // 2, len(timed) - EVENTS):
        part = timed[at : at + EVENTS]
        first = part[0]["ts"]
        around = [event for event in timed[:at] if event["ts"] + event.get("dur", 0) > first]
        text = json.dumps({**tree, "traceEvents": [*rest, *around, *part]})
        (folder / f"{path.parent.name}-{at}.json").write_text(text)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
