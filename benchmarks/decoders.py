"""JSON decoders and gzip readers side by side on one trace: MB of JSON per second of CPU.

    python benchmarks/decoders.py trace.json

Each decoder does the least that tracekit needs of it: typed fields of every event, with `args` split by kind.
DuckDB and orjson are measured when they are installed; tracekit depends on neither.
"""

from __future__ import annotations

import gzip
import importlib
import io
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
from isal import igzip

from tracekit.readers.kineto import native
from tracekit.readers.kineto.frames import RawFrames
from tracekit.readers.kineto.records import decode_array
from tracekit.readers.kineto.salvage import Defects
from tracekit.readers.kineto.source import BLOCK_BYTES


def rate(name: str, size: int, work: Callable[[], Any]) -> None:
    best = float("inf")
    for _ in range(3):
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    print(f"  {name:<44}{size / best / 1e6:8.0f} MB/s")


def to_frames(array: bytes) -> None:
    RawFrames(Defects()).add(decode_array(array))


def blocks_of(array: bytes) -> Iterator[bytes]:
    """The events in blocks as the reader cuts them."""
    at = 1
    while at < len(array):
        cut = array.rfind(b"},", at, at + BLOCK_BYTES) + 1 if at + BLOCK_BYTES < len(array) else len(array)
        while cut < len(array) and array[cut + 1 : cut + 99].lstrip()[:1] != b"{":
            cut = array.rfind(b"},", at, cut - 1) + 1
        yield array[at:cut]
        at = cut + 1


def natively_to_frames(blocks: Sequence[bytes]) -> None:
    raw = RawFrames(Defects())
    for block in blocks:
        columns = native.decode(block, len(block))
        raw.add(columns if columns is not None else decode_array(b"[" + block + b"]"))


def main() -> None:
    text = Path(sys.argv[1]).read_bytes()
    array = text[text.index(b"[", text.index(b'"traceEvents"')) : text.rindex(b"]") + 1]
    size = len(array)
    print(f"{size / 1e6:.0f} MB of events, one core")
    rate("msgspec, typed records", size, lambda: decode_array(array))
    rate("msgspec, records to Polars frames (tracekit)", size, lambda: to_frames(array))
    if native.is_built():
        blocks = [*blocks_of(array)]
        rate("native, to columns", size, lambda: [native.decode(block, len(block)) for block in blocks])
        rate("native, columns to Polars frames (tracekit)", size, lambda: natively_to_frames(blocks))
    rate("msgspec, untyped", size, lambda: msgspec.json.decode(array))
    lines = (
        array.strip(b"[] \n").replace(b"\n  },\n  {\n", b"}\0{").replace(b"\n", b" ").replace(b"\0", b"\n")
    )
    args = pl.Struct(
        {"External id": pl.String, "correlation": pl.String, "stream": pl.String, "Input Dims": pl.String}
    )
    fields = dict.fromkeys(("ph", "cat", "name", "pid", "tid", "ts", "dur"), pl.String)
    schema: Any = {**fields, "args": args}
    rate(
        "Polars NDJSON with a schema (4 of args' keys)",
        size,
        lambda: pl.read_ndjson(io.BytesIO(lines), schema=schema),
    )
    for module, call in (("orjson", lambda m: m.loads(array)), ("duckdb", lambda m: duckdb_rows(m, lines))):
        try:
            loaded = importlib.import_module(module)
        except ImportError:
            print(f"  {module} is not installed")
            continue
        rate(f"{module}", size, lambda loaded=loaded, call=call: call(loaded))
    packed = gzip.compress(text, 6)
    rate("gzip (standard library)", len(text), lambda: gzip.decompress(packed))
    rate("isal (tracekit)", len(text), lambda: igzip.decompress(packed))


def duckdb_rows(duckdb: Any, lines: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".ndjson") as file:
        file.write(lines)
        file.flush()
        connection = duckdb.connect()
        connection.execute("set threads = 1")
        query = f"select count(name), count(ts), count(args) from read_json('{file.name}')"
        connection.execute(query).fetchall()


if __name__ == "__main__":
    main()
