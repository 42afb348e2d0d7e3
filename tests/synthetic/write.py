"""Writers: one planted trace in the many shapes that real files have. Times never pass through a float."""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .model import Event, Planted

TIME_KEYS = ("ts", "dur")

LAYOUT: dict[str, tuple[tuple[str, ...], ...]] = {
    "X": (("ph", "cat", "name", "pid", "tid"), ("ts", "dur")),
    "s": (("ph", "id", "pid", "tid", "ts"), ("cat", "name", "bp")),
    "f": (("ph", "id", "pid", "tid", "ts"), ("cat", "name", "bp")),
    "M": (("name", "ph", "ts", "pid", "tid"),),
    "i": (("ph", "cat", "s", "name"), ("pid", "tid"), ("ts",)),
    "C": (("ph", "cat", "name", "pid"), ("ts",)),
}
"""Kineto's lines within an event; `args` always comes last, on lines of its own."""

OLD_CATEGORIES = {
    "cpu_op": "Operator",
    "user_annotation": "Operator",
    "cuda_runtime": "Runtime",
    "cuda_driver": "Runtime",
    "kernel": "Kernel",
    "gpu_memcpy": "Memcpy",
    "gpu_memset": "Memset",
    "Trace": "Trace",
}


@dataclass(frozen=True)
class Style:
    """How a file looks.

    `clock` is `base` (µs since baseTimeNanoseconds), `epoch` (absolute µs with ns), or `integer` (whole µs).
    """

    layout: str = "kineto"  # kineto | compact | a number of spaces
    clock: str = "base"
    array: bool = False  # a bare array of events
    shuffle_keys: int | None = None  # seed of another key order per event
    strings: bool = False  # ids and times as strings
    trailing_keys: bool = False  # the header's keys after traceEvents
    old: bool = False  # the categories and names of 2021
    sort_by_time: bool = False


STYLES: dict[str, Style] = {
    "kineto": Style(),
    "compact": Style(layout="compact"),
    "indent2": Style(layout="2"),
    "indent4": Style(layout="4"),
    "shuffled": Style(layout="compact", shuffle_keys=1),
    "array": Style(layout="compact", array=True),
    "strings": Style(strings=True),
    "trailing": Style(trailing_keys=True),
    "epoch": Style(clock="epoch"),
    "sorted": Style(layout="compact", sort_by_time=True),
    "year2021": Style(clock="integer", old=True),
}
"""Every variant by name. `year2021` needs a trace on whole microseconds: `generate(…, tick_ns=1000)`."""


class Raw(str):
    """Text that goes into the file as it is."""

    __slots__ = ()


def write(planted: Planted, path: str | Path, style: str | Style = "kineto") -> Path:
    """Writes a trace file; a name that ends in .gz is compressed."""
    target = Path(path)
    data = dump(planted, style)
    target.write_bytes(gzip.compress(data, mtime=0) if target.suffix == ".gz" else data)
    return target


def dump(planted: Planted, style: str | Style = "kineto") -> bytes:
    """The uncompressed file."""
    return dump_with_ends(planted, style)[0]


def dump_with_ends(planted: Planted, style: str | Style = "kineto") -> tuple[bytes, list[int]]:
    """The uncompressed file, and where each of `file_events(planted, style)` ends in it (in bytes)."""
    chosen = STYLES[style] if isinstance(style, str) else style
    events = [_printable(event, planted, chosen) for event in file_events(planted, chosen)]
    header = dict(planted.header)
    if chosen.clock != "base":
        header.pop("baseTimeNanoseconds")
    entries = [f'"{key}": {_text(value, chosen)}' for key, value in header.items()]
    newline = "" if chosen.layout == "compact" else "\n"
    comma = ", " if chosen.layout == "compact" else ",\n"
    pad = "" if chosen.layout == "compact" else "  "

    if chosen.array:
        out = "[" + newline
        after: list[str] = []
    else:
        before, after = (
            ([], entries) if chosen.trailing_keys else (entries, ['"traceName": "/tmp/trace.json"'])
        )
        opening = comma.join(pad + entry for entry in [*before, '"traceEvents": ['])
        # Kineto's own files begin with an empty line.
        out = ("\n" if chosen.layout == "kineto" else "") + "{" + newline + opening + newline
    parts, ends, length = [out.encode()], [], len(out.encode())
    for number, event in enumerate(events):
        text = _event_text(event, chosen) + (comma if number + 1 < len(events) else "")
        encoded = text.encode()
        parts.append(encoded)
        ends.append(length + len(encoded) - (len(comma) if number + 1 < len(events) else 0))
        length += len(encoded)
    tail = newline + pad + "]"
    if not chosen.array:
        tail += "".join(comma + pad + entry for entry in after) + newline + "}"
    parts.append((tail + newline).encode())
    return b"".join(parts), ends


def file_events(planted: Planted, style: str | Style = "kineto") -> list[Event]:
    """The events as the style names them, times still in integer ns: what a reader should find."""
    chosen = STYLES[style] if isinstance(style, str) else style
    events = planted.events
    if chosen.old:
        events = [_old(event) for event in events if _is_old(event)]
    if chosen.sort_by_time:
        events = sorted(events, key=lambda event: event["ts"])
    return events


def rename(planted: Planted, names: dict[str, str]) -> Planted:
    """The same trace with other names, in the events and in the truth."""
    return replace(
        planted,
        events=[{**event, "name": names.get(event["name"], event["name"])} for event in planted.events],
        spans=[replace(span, name=names.get(span.name, span.name)) for span in planted.spans],
        activities=[replace(a, name=names.get(a.name, a.name)) for a in planted.activities],
    )


def microseconds(ns: int) -> str:
    """Integer ns as µs with exactly three decimals.

    >>> microseconds(4203669603018756), microseconds(-5)
    ('4203669603018.756', '-0.005')
    """
    whole, rest = divmod(abs(ns), 1000)
    return f"{'-' if ns < 0 else ''}{whole}.{rest:03d}"


def _is_old(event: Event) -> bool:
    return event["ph"] in "Mi" or event.get("cat") in OLD_CATEGORIES or event.get("cat") == "ac2g"


def _old(event: Event) -> Event:
    new = dict(event)
    category = event.get("cat")
    if category == "ac2g":
        return {**new, "cat": "async", "name": "launch", "tid": _old_thread(event, device=event["ph"] == "f")}
    if category == "cpu_instant_event":
        new.pop("cat")
        new["args"] = {key: event["args"][key] for key in ("Device Type", "Device Id", "Bytes")}
        return new
    if category in OLD_CATEGORIES:
        new["cat"] = OLD_CATEGORIES[category]
        device = category in ("kernel", "gpu_memcpy", "gpu_memset")
        new["tid"] = _old_thread(event, device=device)
        if device or new["cat"] == "Runtime":
            new["args"] = {("external id" if k == "External id" else k): v for k, v in event["args"].items()}
    return new


def _old_thread(event: Event, *, device: bool) -> str:
    # A flow's end on a runtime call has a host thread; device rows have small process ids.
    return f"stream {event['tid']}" if device and event["pid"] < 1000 else str(event["tid"])


def _printable(event: Event, planted: Planted, style: Style) -> Event:
    """Times as text, and ids as strings where the style wants them."""
    new = dict(event)
    for key in TIME_KEYS:
        if key not in new:
            continue
        value = int(new[key])
        if key == "ts" and style.clock != "base":
            value += planted.config.base_ns
        if style.clock == "integer":
            if value % 1000:
                message = f"{key} = {value} ns is not a whole microsecond; generate with tick_ns=1000"
                raise ValueError(message)
            text = str(value // 1000)
        else:
            text = microseconds(value)
        new[key] = text if style.strings else Raw(text)
    if style.strings:
        for key in ("pid", "tid"):
            if key in new:
                new[key] = str(new[key])
        if "args" in new:
            new["args"] = {
                key: str(value) if key in ("stream", "External id") else value
                for key, value in new["args"].items()
            }
    if style.shuffle_keys is not None:
        keys = list(new)
        random.Random(f"{style.shuffle_keys} {event['ts']} {event['name']}").shuffle(keys)
        new = {key: new[key] for key in keys}
    return new


def _event_text(event: Event, style: Style) -> str:
    if style.layout != "kineto":
        return _text(event, style, level=2)
    lines = [
        ", ".join(f'"{key}": {_text(event[key], style)}' for key in line if key in event)
        for line in LAYOUT[event["ph"]]
    ]
    if "args" in event:
        args = ", ".join(
            f'"{key}": {json.dumps(value, ensure_ascii=False)}' for key, value in event["args"].items()
        )
        lines.append('"args": {\n      ' + args + "\n    }")
    return "  {\n    " + ",\n    ".join(line for line in lines if line) + "\n  }"


def _text(value: Any, style: Style, level: int = 1) -> str:
    """JSON text in the style's layout; `Raw` goes in as it is."""
    if isinstance(value, Raw):
        return str(value)
    if not isinstance(value, (dict, list)) or not value or style.layout in ("kineto", "compact"):
        if isinstance(value, dict):
            return "{" + ", ".join(f"{json.dumps(k)}: {_text(v, style)}" for k, v in value.items()) + "}"
        return json.dumps(value, ensure_ascii=False)
    step = " " * int(style.layout)
    inner, outer = "\n" + step * (level + 1), "\n" + step * level
    if isinstance(value, list):
        return "[" + ",".join(inner + _text(item, style, level + 1) for item in value) + outer + "]"
    body = ",".join(
        f"{inner}{json.dumps(key)}: {_text(item, style, level + 1)}" for key, item in value.items()
    )
    return "{" + body + outer + "}"
