"""Make a large trace by repeating a real one with shifted times and ids."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

__all__ = ["enlarge", "source_trace"]

ROOT = Path(__file__).resolve().parent.parent
PUBLIC = ROOT.parent / "shared" / "traces" / "kineto" / "ddp_rank0.json.gz"
_SHIFTED = ("External id", "correlation", "Sequence number", "Ev Idx")


def source_trace(folder: Path) -> Path:
    """A public training trace when it lies beside the checkout, else a generated one."""
    if PUBLIC.exists():
        return PUBLIC
    sys.path.insert(0, str(ROOT / "tests"))
    from synthetic import generate, write  # noqa: PLC0415 - only where no public trace is at hand

    return write(generate(seed=1, steps=4, layers=24), folder / "source.json.gz")


def enlarge(source: Path, target: Path, megabytes: float) -> None:
    """Repeat the events of `source` until the file has the size, in Kineto's own formatting."""
    document = json.loads(gzip.decompress(source.read_bytes()))
    events = document.pop("traceEvents")
    repeated = [event for event in events if event.get("ph") != "M"]
    spans = [e for e in repeated if e["ph"] == "X" and e.get("cat") != "Trace"]
    length = int(max(e["ts"] + e.get("dur", 0) for e in spans) - min(e["ts"] for e in spans)) + 1000
    ids = [
        value
        for event in repeated
        for key in _SHIFTED
        if isinstance(value := (event.get("args") or {}).get(key), int)
    ]
    stride = max(ids, default=0) + 1
    with target.open("w", encoding="utf-8") as file:
        file.write("{\n" + json.dumps(document, indent=2)[2:-2] + ',\n  "traceEvents": [\n')
        written, round_ = 0, 0
        for event in events:
            if event.get("ph") == "M":
                written += file.write(_text(event) + ",\n")
        while written < megabytes * 1e6:
            text = ",\n".join(_text(_shifted(event, round_, length, stride)) for event in repeated)
            written += file.write((",\n" if round_ else "") + text)
            round_ += 1
        file.write("\n  ]\n}\n")


def _shifted(event: dict[str, Any], round_: int, length: int, stride: int) -> dict[str, Any]:
    moved = {**event, "ts": event["ts"] + round_ * length}
    if isinstance(event.get("args"), dict):
        moved["args"] = {
            key: value + round_ * stride if key in _SHIFTED and isinstance(value, int) else value
            for key, value in event["args"].items()
        }
    if isinstance(event.get("id"), int):
        moved["id"] = event["id"] + round_ * stride
    name = str(event.get("name", ""))
    if name.startswith("ProfilerStep#"):
        moved["name"] = f"ProfilerStep#{int(name.removeprefix('ProfilerStep#')) + round_ * 10}"
    return moved


def _text(event: dict[str, Any]) -> str:
    head = json.dumps({key: value for key, value in event.items() if key != "args"})[1:-1]
    args = event.get("args")
    inner = "" if args is None else ',\n    "args": {\n      ' + json.dumps(args)[1:-1] + "\n    }"
    return "  {\n    " + head + inner + "\n  }"


if __name__ == "__main__":
    enlarge(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
