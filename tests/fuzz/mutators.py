"""Mutations of healthy inputs. Each takes a generator of random numbers, the folder of bases, and an empty folder to write to."""

from __future__ import annotations

import copy
import gzip
import io
import json
import os
import random
import re
import shutil
import sqlite3
import zipfile
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl
import zstandard

__all__ = ["MARKER", "MUTATORS", "Case"]

MARKER: Final = "<img src=x onerror=marker>"
"""A name that must never reach a page as an element."""

NUMBERS: Final = (
    0, 1, -1, 2**31, -(2**31), 2**32, 2**53, 2**62, 2**63 - 1, -(2**63), 2**63, 2**64, 10**30, -(10**30),
    0.5, -0.25, 1e308, -1e308, 1e-320, 9.3e18, 4e15,
)  # fmt: skip
TEXTS: Final = (
    "", " ", "\0", "nan", "-1", "1e999", MARKER, "</script><script>marker", "=1+1", "\x1b[31mred\x1b]0;t\x07",
    "\u202egnp.exe", "\ud800", "a" * 5_000, "../../etc/passwd", "{}", "%s%n", "aten::mm", "ProfilerStep#3", "nn.Module: L_0",
    "ncclDevKernel_AllReduce", "Memcpy HtoD (Pinned -> Device)", "Optimizer.step#Adam.step", "cudaLaunchKernel",
    "file.py(3): f", "\n", "١٢٣", "Iteration 3",
)  # fmt: skip
ODD: Final = (*NUMBERS, *TEXTS, None, True, False, [], {}, [1, "a", None], {"a": {"b": []}}, [[]] * 40)


@dataclass(frozen=True)
class Case:
    """What the commands are given."""

    path: Path
    flags: tuple[str, ...] = ()
    """Of a report."""


Mutator = Callable[[random.Random, Path, Path], Case]
MUTATORS: Final[dict[str, Mutator]] = {}


def mutator(make: Mutator) -> Mutator:
    MUTATORS[make.__name__] = make
    return make


def _json_base(rng: random.Random, bases: Path) -> bytes:
    name = rng.choice(
        ["planted.json", "compact.json", "layers.json", "layers.json", "capture", "real", "real"]
    )
    if name == "capture":
        return gzip.decompress((bases / "capture/trace.json.gz").read_bytes())
    return (rng.choice(sorted((bases / "real").iterdir())) if name == "real" else bases / name).read_bytes()


def _damaged(rng: random.Random, data: bytes) -> bytes:
    """The bytes with one to eight changes."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8])):
        at = rng.randrange(len(changed) + 1)
        size = rng.choice([1, 1, 4, 64, 1_000, len(changed) // 3])
        match rng.randrange(6):
            case 0:
                del changed[at : at + size]
            case 1:
                changed[at:at] = rng.randbytes(min(size, 4_000))
            case 2:
                changed[at:at] = changed[at : at + size]
            case 3:
                changed[at : at + size] = bytes(min(size, len(changed) - at))
            case 4:
                changed[at : at + 1] = bytes([rng.randrange(256)])
            case _:
                changed[at:at] = rng.choice([b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\xff", b"\x00"]) * rng.choice([1, 1, 3, 500])  # fmt: skip
        if not changed:
            return b""
    return bytes(changed)


@mutator
def damaged_bytes(rng: random.Random, bases: Path, folder: Path) -> Case:
    return _written(folder / "t.json", _damaged(rng, _json_base(rng, bases)))


@mutator
def cut_short(rng: random.Random, bases: Path, folder: Path) -> Case:
    data = _json_base(rng, bases)
    return _written(folder / "t.json", data[: rng.randrange(len(data))])


_NUMBER: Final = re.compile(rb"(?<=[:\[, ])-?\d[\d.eE+-]*(?=[,}\] \n])")
_STRING: Final = re.compile(rb'"[^"\\]{0,200}"')


_RAW: Final = (
    *(str(number).encode() for number in NUMBERS),
    *(b"NaN", b"-Infinity", b"1e999", b"-0", b"01", b"1.", b".5", b"0x10", b"", b"N/A", b'"12"', b"1" * 400),
    *(json.dumps(text).encode() for text in TEXTS),
)


@mutator
def json_text(rng: random.Random, bases: Path, folder: Path) -> Case:
    """Numbers and texts of the file replaced where they stand, also by what JSON does not allow."""
    data = _json_base(rng, bases)
    pattern = rng.choice([_NUMBER, _NUMBER, _STRING])
    found = list(pattern.finditer(data))
    many = rng.choice([1, 3, 30, len(found) // 4])
    pieces, at = [], 0
    for match in sorted(rng.sample(found, min(many, len(found))), key=lambda m: m.start()):
        pieces += [data[at : match.start()], rng.choice(_RAW)]
        at = match.end()
    return _written(folder / "t.json", b"".join([*pieces, data[at:]]))


@mutator
def json_values(rng: random.Random, bases: Path, folder: Path) -> Case:
    """Values of some events replaced, removed or added; events repeated, removed and put elsewhere."""
    tree = msgspec.json.decode(_json_base(rng, bases))
    events = tree["traceEvents"]
    for _ in range(rng.choice([1, 2, 10, 100])):
        if not events:
            break
        at = rng.randrange(len(events))
        match rng.randrange(10):
            case 0:
                events.insert(at, copy.deepcopy(rng.choice(ODD)))
            case 1:
                events.insert(rng.randrange(len(events)), events[at])
            case 2:
                del events[at : at + rng.choice([1, 5, len(events) // 2])]
            case 3:
                tree[rng.choice(list(tree))] = copy.deepcopy(rng.choice(ODD))
                if not isinstance(tree.get("traceEvents"), list):
                    break
                events = tree["traceEvents"]
            case _:
                if isinstance(events[at], dict):
                    _change(rng, events[at])
    return _written(folder / "t.json", json.dumps(tree).encode("utf-8", "replace"))


def _change(rng: random.Random, event: dict[str, Any]) -> None:
    args = event.get("args")
    target = args if isinstance(args, dict) and args and rng.random() < 0.5 else event
    key = rng.choice([*target, "dur", "ts", "cat", "ph", "id", "correlation"])
    if rng.random() < 0.2:
        target.pop(key, None)
    elif isinstance(target.get(key), int | float) and rng.random() < 0.6:
        value = target[key]
        target[key] = rng.choice(
            [-value, value * 1_000, value + 2**53, value * 1e12, -value * 1e9, value / 1e6, *NUMBERS]
        )
    else:
        target[key] = copy.deepcopy(rng.choice(ODD))


@mutator
def every_event(rng: random.Random, bases: Path, folder: Path) -> Case:
    """One key of all events, or of all of one category, gets another value."""
    tree = msgspec.json.decode(_json_base(rng, bases))
    category = rng.choice([event.get("cat") for event in tree["traceEvents"]])
    key = rng.choice(["ts", "dur", "pid", "tid", "name", "cat", "ph", "args", "id"])
    value, factor = copy.deepcopy(rng.choice(ODD)), rng.choice([None, None, -1, 1e6, 1e12, 0, 1e-3])
    for event in tree["traceEvents"]:
        if category is None or event.get("cat") == category:
            if factor is not None and isinstance(event.get(key), int | float):
                event[key] *= factor
            else:
                event[key] = value
    return _written(folder / "t.json", json.dumps(tree).encode("utf-8", "replace"))


@mutator
def missing_keys(rng: random.Random, bases: Path, folder: Path) -> Case:
    """Arguments that some or all events of a category lack, or have another value for."""
    tree = msgspec.json.decode(_json_base(rng, bases))
    category = rng.choice([event.get("cat") for event in tree["traceEvents"]])
    arguments = [
        event["args"] for event in tree["traceEvents"] if event.get("cat") == category and event.get("args")
    ]
    for _ in range(rng.choice([1, 1, 2, 5])):
        keys = sorted({key for each in arguments for key in each})
        if not keys:
            break
        key, part = rng.choice(keys), rng.choice([0.1, 0.5, 1.0])
        values = rng.choice(
            [[], [], [None], [rng.choice(ODD)], [each[key] for each in arguments if key in each]]
        )
        for each in arguments:
            if key in each and rng.random() < part:
                if values:
                    each[key] = copy.deepcopy(rng.choice(values))
                else:
                    del each[key]
    return _written(folder / "t.json", json.dumps(tree).encode("utf-8", "replace"))


@mutator
def unsteady_times(rng: random.Random, bases: Path, folder: Path) -> Case:
    """Times of many events moved a little or exchanged: spans that overlap without nesting, work before its launch, steps in disorder."""
    tree = msgspec.json.decode(_json_base(rng, bases))
    timed = [event for event in tree["traceEvents"] if isinstance(event.get("ts"), int | float)]
    chosen = rng.sample(timed, max(1, int(len(timed) * rng.choice([0.01, 0.2, 1.0]))))
    if rng.random() < 0.5:
        reach = rng.choice([1.0, 50.0, 5_000.0])
        for event in chosen:
            event["ts"] += round(rng.uniform(-reach, reach), 3)
            if rng.random() < 0.3 and isinstance(event.get("dur"), int | float):
                event["dur"] = round(event["dur"] * rng.choice([0, 0.5, 3, 100]), 3)
    else:
        times = [event["ts"] for event in chosen]
        rng.shuffle(times)
        for event, time in zip(chosen, times, strict=True):
            event["ts"] = time
    return _written(folder / "t.json", json.dumps(tree).encode())


@mutator
def gzipped(rng: random.Random, bases: Path, folder: Path) -> Case:
    data = _json_base(rng, bases)
    at = rng.randrange(len(data))
    packed = rng.choice(
        [
            gzip.compress(data, 1),
            gzip.compress(data[:at], 1) + gzip.compress(data[at:], 1),
            gzip.compress(gzip.compress(data, 1)),
        ]
    )
    return _written(
        folder / rng.choice(["t.json.gz", "t.json", "t.gz"]),
        rng.choice([packed, _damaged(rng, packed), packed[: len(packed) * 2 // 3]]),
    )


@mutator
def containers(rng: random.Random, bases: Path, folder: Path) -> Case:
    """A trace in a .zip beside others, or as .zst; whole, cut, damaged."""
    data = _json_base(rng, bases)
    if rng.random() < 0.5:
        packed, name = zstandard.compress(data, 1), "t.json.zst"
    else:
        stream, name = io.BytesIO(), "t.zip"
        with zipfile.ZipFile(stream, "w", rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as file:
            for inner in rng.choice([["t.json"], ["a/t.json"], ["../t.json"], ["t.json", "README"], ["a.json", "b.json"], []]):  # fmt: skip
                file.writestr(inner, data if inner != "README" else b"text")
        packed = stream.getvalue()
    return _written(
        folder / name, rng.choice([packed, _damaged(rng, packed), packed[: len(packed) * 2 // 3]])
    )


@mutator
def folders(rng: random.Random, bases: Path, folder: Path) -> Case:
    """A folder with traces of every kind, some damaged, and files of others."""
    root = folder / "run"
    root.mkdir()
    for number in range(rng.choice([0, 1, 2, 3])):
        name = rng.choice(["planted.json", "layers.json", "new.sqlite", "metrics.csv"])
        data = (bases / name).read_bytes()
        below = root / rng.choice(["", "", "a", "a/b", ".hidden", "plugins/profile"])
        below.mkdir(parents=True, exist_ok=True)
        ending = rng.choice([Path(name).suffix, Path(name).suffix, ".pt.trace.json", ".json.gz", ".txt", ""])
        (below / f"{number}{ending}").write_bytes(_damaged(rng, data) if rng.random() < 0.3 else data)
    if rng.random() < 0.4:
        (root / "manifest.json").write_bytes(
            rng.choice([b"", b"{}", b'{"traces": ["0.json"]}', b"[]", b"\xff"])
        )
    if rng.random() < 0.3:
        (root / "loop").symlink_to(rng.choice([root, folder, root / "gone"]))
    return Case(root)


@mutator
def sqlite_structure(rng: random.Random, bases: Path, folder: Path) -> Case:
    """Tables and columns dropped, renamed, made anew; cells of every type where numbers are expected."""
    path = folder / "t.sqlite"
    shutil.copy(bases / rng.choice(["new.sqlite", "new.sqlite", "old.sqlite"]), path)
    with closing(sqlite3.connect(path)) as base:
        for _ in range(rng.choice([1, 2, 5, 20])):
            with suppress(sqlite3.Error, OverflowError, UnicodeEncodeError):
                _change_table(rng, base)
        base.commit()
    return Case(path)


def _change_table(rng: random.Random, base: sqlite3.Connection) -> None:
    tables = [row[0] for row in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    if not tables:  # all were dropped
        return
    table = rng.choice(tables)
    columns = [row[1] for row in base.execute(f'PRAGMA table_info("{table}")')]
    column = rng.choice(columns)
    value = rng.choice([*NUMBERS, *TEXTS, None, b"\x00\xff", b""])
    match rng.randrange(12):
        case 0:
            base.execute(f'DROP TABLE "{table}"')
        case 1:
            base.execute(f'ALTER TABLE "{table}" DROP COLUMN "{column}"')
        case 2:
            base.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "{column}X"')
        case 3:
            base.execute(f'ALTER TABLE "{table}" RENAME TO "{rng.choice(["X" + table, table.lower()])}"')
        case 4:
            base.execute(f'DELETE FROM "{table}" WHERE rowid % {rng.choice([1, 2, 3])} = 0')
        case 5:
            base.execute(f'INSERT INTO "{table}" SELECT * FROM "{table}"')
        case 6:
            base.execute(f'UPDATE "{table}" SET "{column}" = ?', (value,))
        case 7:
            base.execute(f'UPDATE "{table}" SET "{column}" = "{column}" * {rng.choice([-1, 1000, 10**12])}')
        case 8:
            base.execute(
                f'CREATE VIEW "{rng.choice(["CUPTI_ACTIVITY_KIND_MEMSET", "V"])}" AS SELECT * FROM "{table}"'
            )
        case _:
            base.execute(
                f'UPDATE "{table}" SET "{column}" = ? WHERE rowid % 3 = {rng.randrange(3)}', (value,)
            )


@mutator
def sqlite_pages(rng: random.Random, bases: Path, folder: Path) -> Case:
    """Bytes changed where they stand, pages put in each other's place or emptied; sometimes everything shifted."""
    data = bytearray((bases / rng.choice(["new.sqlite", "old.sqlite"])).read_bytes())
    if rng.random() < 0.15:
        return _written(folder / "t.sqlite", _damaged(rng, bytes(data)))
    size = int.from_bytes(data[16:18], "big")
    pages = len(data) // size
    for _ in range(rng.choice([1, 1, 3, 20])):
        at = size * rng.randrange(1, pages)
        match rng.randrange(5):
            case 0:
                other = size * rng.randrange(1, pages)
                data[at : at + size], data[other : other + size] = (
                    data[other : other + size],
                    data[at : at + size],
                )
            case 1:
                data[at + rng.randrange(size) : at + size] = b""
                data[at:at] = bytes(len(data) % size and size - len(data) % size)
            case 2:
                begin = at + rng.randrange(size)
                data[begin : at + size] = bytes(at + size - begin)
            case _:
                for _ in range(rng.choice([1, 1, 8])):
                    data[at + rng.randrange(size)] = rng.randrange(256)
    return _written(folder / "t.sqlite", bytes(data))


@mutator
def parquet(rng: random.Random, bases: Path, folder: Path) -> Case:
    path = folder / "export"
    shutil.copytree(bases / "parquet", path)
    for _ in range(rng.choice([1, 1, 3])):
        files = sorted(path.iterdir())
        if not files:
            break
        file = rng.choice(files)
        match rng.randrange(4):
            case 0:
                file.unlink()
            case 1:
                file.write_bytes(_damaged(rng, file.read_bytes()))
            case 2:
                file.rename(path / rng.choice(["X.parquet", "[a]*.parquet", file.name.lower()]))
            case _:
                odd = (pl.exceptions.PolarsError, OverflowError, UnicodeEncodeError)
                with suppress(*odd, pl.exceptions.PanicException):  # of a file that is damaged already
                    _change_column(rng, file)
    return Case(path)


def _change_column(rng: random.Random, file: Path) -> None:
    frame = pl.read_parquet(file, glob=False)
    column = rng.choice(frame.columns)
    value = rng.choice(
        [
            pl.lit(None),
            pl.lit(2**62),
            pl.lit(-5),
            pl.lit(1e300),
            pl.lit("text"),
            pl.col(column).reverse(),
            pl.lit([1]),
        ]
    )
    frame.with_columns(value.alias(column)).write_parquet(file)


@mutator
def ncu_table(rng: random.Random, bases: Path, folder: Path) -> Case:
    data = (bases / "metrics.csv").read_bytes()
    if rng.random() < 0.5:
        data = _damaged(rng, data)
    else:
        cells = data.split(b'","')
        for _ in range(rng.choice([1, 3, 9])):
            cells[rng.randrange(len(cells))] = str(rng.choice([*NUMBERS, *TEXTS])).encode("utf-8", "replace")
        data = b'","'.join(cells)
    _written(folder / "m.csv", data)
    shutil.copy(bases / "planted.json", folder / "t.json")
    return Case(folder / "t.json", ("--ncu", str(folder / "m.csv")))


@mutator
def manifests(rng: random.Random, bases: Path, folder: Path) -> Case:
    """A capture whose manifest.json is another."""
    shutil.copytree(bases / "capture", folder / "c")
    path = folder / "c/manifest.json"
    data = path.read_bytes()
    match rng.randrange(5):
        case 0:
            data = _damaged(rng, data)
        case 1:
            data = rng.choice(
                [b"", b"[]", b"null", b"[" * 50_000, b'{"a":' * 50_000, b"\xff\xfe", b"0" * 9_000]
            )
        case _:
            tree = json.loads(data)
            for _ in range(rng.choice([1, 2, 6])):
                _change_within(rng, tree)
            data = json.dumps(tree).encode("utf-8", "replace")
    path.write_bytes(data)
    return Case(folder / "c/trace.json.gz")


def _change_within(rng: random.Random, tree: Any) -> None:
    """Another value somewhere in the tree."""
    while isinstance(tree, dict | list) and tree:
        key = rng.choice(list(tree) if isinstance(tree, dict) else range(len(tree)))
        if not isinstance(tree[key], dict | list) or not tree[key] or rng.random() < 0.3:
            tree[key] = copy.deepcopy(rng.choice(ODD))
            return
        tree = tree[key]


@mutator
def places(rng: random.Random, bases: Path, folder: Path) -> Case:
    """Files and folders with odd names, links, and what is neither."""
    name = rng.choice(
        [
            "a b.json",
            "-.json",
            "*.json",
            "[1].json",
            "é\u202e.json",
            "\x1b[31m.json",
            "n" * 200,
            "t.tar",
            "=1.json",
        ]
    )
    path = folder / name
    shutil.copy(bases / "planted.json", path)
    match rng.randrange(6):
        case 0:
            link = folder / "link.json"
            link.symlink_to(rng.choice([path, folder / "gone", link, folder]))
            return Case(link)
        case 1:
            os.mkfifo(folder / "pipe.json")
            return Case(
                rng.choice(
                    [folder, folder / "gone.json", path / "below.json", Path("x" * 5_000), Path("/dev/null")]
                )
            )
        case 2:
            (folder / "t.sqlite").mkdir()
            return Case(folder / "t.sqlite")
        case _:
            return Case(path)


@mutator
def scale(rng: random.Random, bases: Path, folder: Path) -> Case:
    """Thousands of devices, streams, threads, processes, steps or levels; each a small file."""
    many = rng.choice([50, 500, 3_000])
    what = rng.choice(["devices", "streams", "threads", "processes", "steps", "levels", "names", "ranks"])
    events: list[dict[str, Any]] = []
    for n in range(many):
        host = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10 * n, "dur": 9}
        call = {
            **host,
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "ts": 10 * n + 1,
            "dur": 2,
            "args": {"correlation": n},
        }
        work = {**host, "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 10 * n + 4, "dur": 4}
        args = {"device": 0, "stream": 7, "correlation": n}
        if what == "devices":
            args["device"] = work["pid"] = n
        elif what == "streams":
            args["stream"] = n
        elif what == "threads":
            host["tid"] = call["tid"] = n
        elif what == "processes":
            host["pid"] = call["pid"] = n
        elif what == "steps":
            events.append({**host, "cat": "user_annotation", "name": f"ProfilerStep#{n}", "dur": 10})
        elif what == "levels":
            host["ts"], host["dur"] = n, 20 * many - 2 * n
        elif what == "names":
            host["name"] = work["name"] = f"kernel_{n}<{'x' * rng.choice([1, 300])}>"
        else:
            args["Process Group Ranks"] = str(list(range(n % 300)))  # type: ignore[assignment]
            work["name"] = "ncclDevKernel_AllReduce"
        events += [host, call, {**work, "args": args}]
    return _written(folder / "t.json", json.dumps({"traceEvents": events}).encode())


@mutator
def hostile_names(rng: random.Random, bases: Path, folder: Path) -> Case:
    """Markers and control characters wherever a text stands."""
    tree = msgspec.json.decode(_json_base(rng, bases))
    for event in tree["traceEvents"]:
        for part in (event, event.get("args")):
            for key, value in (part or {}).items():
                if isinstance(value, str) and key not in ("ph", "cat") and rng.random() < 0.2:
                    part[key] = rng.choice([MARKER + value, value + rng.choice(TEXTS), rng.choice(TEXTS)])
    return _written(folder / "t.json", json.dumps(tree).encode("utf-8", "replace"))


_DIGITS: Final = re.compile(r"\d+")


@mutator
def numbers_in_names(rng: random.Random, bases: Path, folder: Path) -> Case:
    """Other numbers within texts, as in the names of kernels and steps."""
    tree = msgspec.json.decode(_json_base(rng, bases))
    share = rng.choice([0.002, 0.05, 0.5])
    for event in tree["traceEvents"]:
        for part in (event, event.get("args")):
            for key, value in (part or {}).items():
                if isinstance(value, str) and rng.random() < share:
                    part[key] = _DIGITS.sub(
                        lambda _: rng.choice(
                            ("0", "-1", "1e9", "٣", "²", "9" * rng.choice([10, 19, 20, 40, 5_000]))
                        ),
                        value,
                    )
    return _written(folder / "t.json", json.dumps(tree).encode())


def _written(path: Path, data: bytes) -> Case:
    path.write_bytes(data)
    return Case(path)
