"""Ways in which real files are broken, done on purpose to the bytes of a good one."""

from __future__ import annotations

import gzip
import re
import struct
import zlib
from pathlib import Path

from .model import Planted
from .names import HOSTILE
from .write import rename

BARE_VALUES = ("NaN", "Infinity", "-Infinity", "N/A", "nan", "inf", "None")
MALFORMED = {
    "no_value": b'{"ph": "X", "cat": "kernel", "name": "broken", "pid": 0, "tid": 7, "ts": , "dur": 1.000}',
    "no_brace": b'{"ph": "X", "cat": "kernel", "name": "broken", "pid": 0, "tid": 7, "ts": 1.000, "dur": 1.000',
    "half_string": b'{"ph": "X", "cat": "kernel", "name": "broken',
    "text_time": b'{"ph": "X", "cat": "cpu_op", "name": "broken", "pid": 1, "tid": 1, "ts": "soon", "dur": 1.000}',
    "no_time": b'{"ph": "X", "cat": "cpu_op", "name": "broken", "pid": 1, "tid": 1, "dur": 1.000}',
    "no_duration": b'{"ph": "X", "cat": "cpu_op", "name": "broken", "pid": 1, "tid": 1, "ts": 1.000}',
    "no_name": b'{"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 1.000, "dur": 1.000}',
    "negative": b'{"ph": "X", "cat": "cpu_op", "name": "broken", "pid": 1, "tid": 1, "ts": 9.000, "dur": -4.000}',
    "huge": b'{"ph": "X", "cat": "cpu_op", "name": "broken", "pid": 1, "tid": 1, "ts": 1e300, "dur": 1e300}',
    "number": b"42",
    "null": b"null",
    "list": b"[]",
    "args_list": b'{"ph": "X", "cat": "cpu_op", "name": "broken", "pid": 1, "tid": 1, "ts": 1.0, "dur": 1.0, "args": []}',
    "deep": b'{"ph": "i", "name": "deep", "args": {"x": ' + b"[" * 2_000 + b"]" * 2_000 + b"}}",
}
"""Events to put into the middle of a file, by what is wrong with them. The first three break the JSON."""
BREAKS_JSON = ("no_value", "no_brace", "half_string")


def truncate(data: bytes, at: int) -> bytes:
    """The file as a full disk or a killed process leaves it: its first `at` bytes."""
    return data[:at]


def truncate_gz(data: bytes, share: float = 0.5) -> bytes:
    """A gz file of `data` that ends early, without the checksum at its end."""
    packed = gzip.compress(data, mtime=0)
    return packed[: int(len(packed) * share)]


def corrupt_gz(data: bytes) -> bytes:
    """A gz file of `data` whose checksum is wrong."""
    packed = gzip.compress(data, mtime=0)
    return packed[:-8] + struct.pack("<I", zlib.crc32(data) ^ 1) + packed[-4:]


def replace_name(data: bytes, name: str, raw: bytes) -> bytes:
    """Puts raw bytes where `name` stands as the name of events: escapes are the caller's business."""
    pattern = re.compile(rb'("name": )"' + re.escape(name.encode()) + rb'"')
    changed, count = pattern.subn(lambda match: match.group(1) + b'"' + raw + b'"', data)
    if not count:
        message = f"no event is named {name!r}"
        raise ValueError(message)
    return changed


def unescaped_quote(data: bytes, name: str) -> bytes:
    """As torch writes a range whose name holds quotes: `name "quoted" tail`, nothing escaped."""
    return replace_name(data, name, name.encode() + b' "quoted" tail')


def control_characters(data: bytes, name: str) -> bytes:
    """A tab, a bell, an escape, a newline and a zero byte, raw within a name."""
    return replace_name(data, name, name.encode() + b"\t\x07\x1b[31m\n\x00")


def not_utf8(data: bytes, name: str) -> bytes:
    """Latin-1, a lone continuation byte and a cut surrogate within a name."""
    return replace_name(data, name, name.encode() + b" caf\xe9 \x80 \xed\xa0\x80")


def bare_value(data: bytes, token: str, key: str = "memory bandwidth (GB/s)") -> tuple[bytes, int]:
    """Every value of an argument becomes a bare token that JSON does not have; also returns how many."""
    pattern = re.compile(rb'("' + re.escape(key.encode()) + rb'": )-?[0-9.eE+-]+')
    return pattern.subn(lambda match: match.group(1) + token.encode(), data)


def insert_event(data: bytes, ends: list[int], event: bytes, after: int | None = None) -> bytes:
    """Puts an event behind event number `after` (default: the middle); `ends` are from `dump_with_ends`."""
    at = ends[len(ends) // 2 if after is None else after]
    return data[:at] + b",\n  " + event + data[at:]


def malformed(data: bytes, ends: list[int], kind: str) -> bytes:
    """A file with one malformed event in its middle; the kinds are the keys of `MALFORMED`."""
    return insert_event(data, ends, MALFORMED[kind])


def gzip_bomb(path: Path, size: int = 1 << 30, *, valid: bool = True) -> Path:
    """A gz file of about a thousandth of `size` that unpacks to `size` bytes; memory stays small.

    `valid` makes it a real trace with very many equal events, else one endless string.
    """
    event = b'{"ph":"i","name":"x","ts":1.000,"pid":1,"tid":1,"s":"t"},\n' if valid else b"A"
    chunk = event * (1 + (1 << 20) // len(event))
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    with path.open("wb") as file:
        file.write(packer.compress(b'{"traceEvents": [' if valid else b'{"traceEvents": [{"name": "'))
        for _ in range(max(size // len(chunk), 1)):
            file.write(packer.compress(chunk))
        file.write(packer.compress(b"{}]}" if valid else b'"}]}'))
        file.write(packer.flush())
    return path


def hostile(planted: Planted) -> Planted:
    """The same trace under names that try to run code, break markup, or confuse a terminal."""
    seen = dict.fromkeys(s.name for s in planted.spans if s.kind in ("op", "annotation"))
    seen.update(dict.fromkeys(a.name for a in planted.activities if a.cls == "compute"))
    return rename(planted, {old: f"{HOSTILE[i % len(HOSTILE)]}{i}" for i, old in enumerate(seen)})
