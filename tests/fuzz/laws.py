"""What holds of every answer, whatever the input."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mutators import MARKER

__all__ = ["Answer", "broken_laws", "disagreements"]

LONGEST_LINE: Final = 1_000
EXIT_CODES: Final = (0, 1, 2, 3, 4)
UNREADABLE: Final = 3
RAW: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200e\u200f\ud800-\udfff]")
"""Control, bidirectional and half characters, of which a terminal must see none."""
NOT_NEGATIVE: Final = re.compile(
    r"(_ns|_s|bytes|count|calls|gaps|activities|share|utilisation|occupancy|tflops|gbps|length|allocations|frees|launched)$"
)
SHARES: Final = re.compile(r"((^|_)share|utilisation|occupancy|overlap)$")
TIMES: Final = frozenset({"start_ns", "end_ns", "origin_utc_ns"})
LARGEST: Final = 2**63


@dataclass
class Answer:
    """What a command printed and wrote."""

    words: tuple[str, ...]
    code: int
    out: bytes = b""
    err: bytes = b""
    pages: list[Path] = field(default_factory=list)

    @property
    def command(self) -> str:
        return self.words[0]


def broken_laws(answer: Answer) -> Iterator[str]:
    """Each law that the answer breaks, as one line."""
    err = answer.err.decode("utf-8", "replace")
    out = answer.out.decode("utf-8", "replace")
    if answer.code not in EXIT_CODES:
        yield f"exit {answer.code}: {err.strip()[-300:]}"
        return
    if "Traceback (most recent call last)" in err or "Warning:" in err:
        yield f"stderr: {err.strip()[-300:]}"
    if answer.code and not err.strip() and not out.strip():
        yield "a failure without a word"
    if answer.code in (2, 3) and (err.count("\n") != 1 or len(err) > LONGEST_LINE + 1):
        yield f"an error of {err.count(chr(10))} lines and {len(err)} characters: {err[:200]!r}"
    for name, text in (("stderr", err), ("stdout", out)):
        raw = RAW.search(text.replace("\n", " ").replace("\t", " "))
        if raw:
            yield f"{name} holds {raw[0]!r}: {text[max(0, raw.start() - 60) : raw.end() + 20]!r}"
    for page in answer.pages:
        if MARKER in page.read_text(errors="replace") or "<script>marker" in page.read_text(errors="replace"):
            yield f"a name is an element in {page.name}"
    if answer.code not in (2, 3) and "json" in answer.words:
        yield from _of_json(out)


def _of_json(text: str) -> Iterator[str]:
    try:
        tree = json.loads(text, parse_constant=_refuse)
    except ValueError as error:
        yield f"no JSON: {error}: {text[:200]!r}"
        return
    for path, value in _figures(tree, ()):
        yield from _of_figure(path, value)
    analyses = tree.get("analyses") or {} if isinstance(tree, dict) else {}
    yield from _of_sums((analyses.get("breakdown") or {}).get("tables", {}).get("devices", []))


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _figures(tree: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], float]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _figures(value, (*path, str(key)))
    elif isinstance(tree, list):
        for value in tree:
            yield from _figures(value, path)
    elif isinstance(tree, int | float) and not isinstance(tree, bool):
        yield path, tree


def _of_figure(path: tuple[str, ...], value: float) -> Iterator[str]:
    key = path[-1] if path else ""
    where = ".".join(path[-4:])
    if abs(value) > LARGEST and "counters" not in path:  # a counter may have any value
        yield f"{where} = {value}: no such number"
    if key in TIMES:
        return
    if SHARES.search(key) and not -1e-9 <= value <= 1 + 1e-9:
        yield f"{where} = {value}: a share outside 0 to 1"
    elif NOT_NEGATIVE.search(key) and value < 0:
        yield f"{where} = {value}: negative"


def _of_sums(devices: list[dict[str, Any]]) -> Iterator[str]:
    for row in devices:
        if row["busy_ns"] + row["idle_ns"] != row["window_ns"]:
            yield f"device {row['device_id']}: busy and idle time are not the window"
        if not row["busy_ns"] <= row["compute_ns"] + row["communication_ns"] + row["memory_ns"]:
            yield f"device {row['device_id']}: the parts are less than the busy time"
        if row["exposed_communication_ns"] + row["overlap_ns"] > row["communication_ns"]:
            yield f"device {row['device_id']}: more is exposed than communicated"


def disagreements(answers: list[Answer]) -> Iterator[str]:
    """Commands that call the same file readable and unreadable."""
    readable = {answer.command: answer.code != UNREADABLE for answer in answers}
    if len(set(readable.values())) > 1:
        yield f"readable or not: {readable}"
