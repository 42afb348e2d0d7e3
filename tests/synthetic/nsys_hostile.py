"""Nsight Systems exports with bytes that are damaged, and with names that want to be run."""

from __future__ import annotations

from pathlib import Path

from .nsys_export import write_parquetdir, write_sqlite
from .nsys_odd import MAIN, small


def truncated(folder: Path, share: float) -> Path:
    """The first part of a file, as a copy that was interrupted."""
    path = write_sqlite(small(launches=400), folder / "t.sqlite")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    return path


def scribbled(folder: Path, share: float, *, pages: int = 3) -> Path:
    """Some pages from there on hold noise."""
    path = write_sqlite(small(launches=400), folder / "t.sqlite")
    data = bytearray(path.read_bytes())
    first = max(int(len(data) * share) // 4096, 1) * 4096
    length = min(4096 * pages, len(data) - first)
    data[first : first + length] = bytes((7 * i + 13) % 251 for i in range(length))
    path.write_bytes(data)
    return path


HOSTILE_MARKERS = (
    "{'Module': __import__('os').system('touch %s')}",
    "{'Module': 'a', 'x': __import__('os').system('touch %s')}",
    "{'Module': [c for c in ().__class__.__base__.__subclasses__()], 'y': open('%s', 'w')}",
    "{'Module': " + "[" * 10_000 + "]" * 10_000 + "}",
    "{'Module': " + "{'Module': " * 3_000 + "1" + "}" * 3_000 + "}",
    "{" * 100_000,
    "{'Module': 'never ends",
    "{'Module': '" + "\\x41" * 50_000 + "'}",
    "{'Module': 9**9**9}",
    "{'Module': " + "-" * 50_000 + "1}",
    "{'Module': " + "-" * 4_000 + "1}",
    "{'Module': " + "1+" * 2_000 + "1j}",
    "{'Module': " + "not " * 1_000 + "1}",
    "{'Module': " + "lambda:" * 500 + "1}",
    "{'Module': " + "'b' " * 1_000 + "}",
    "{'Module': 'a\\d \\N{LATIN SMALL LETTER A} \\ud800', 'x': 1if 2else 3}",
    "{'Module': '\\ud800'}",
    "{'Module': 'a', 'Inputs': [1e999, -1e999, " + "9" * 3_900 + "]}",
    "{'Module': 'a', 'Type': 5, 'Inputs': [{'x': ()}, ..., b'x', {1, 2}]}",
    "{'Module': ''}",
    "{'Module': '..'}",
    "{'Module': 7}",
    "{'Module': None}",
    "{'Module': b'bytes'}",
    "{'Module': 'a\\'b'}",
    "{}",
    "{'TrainableParams': {}}",
    "aten::mm, seq = 99999999999999999999999999, op_id = 99999999999999999999999999",
    "aten::mm, seq = -1, op_id = -1, sizes = " + "[" * 50_000,
    "aten::mm, seq = , op_id = , sizes = , input_op_ids = ",
    "aten::mm, sizes = [[" + "1, " * 100_000 + "1]]",
    ", seq = 5",
    "tracekit.layer/",
    "tracekit.layer/" + "a." * 5_000,
    "ProfilerStep#99999999999999999999999999",
    "ProfilerStep#",
)
"""Names of ranges that must stay data; `%s` is a file that code in them would create."""


def hostile_markers(folder: Path, proof: Path, *, parquet: bool = False) -> Path:
    """Every launch of `small` lies in ranges with these names. Code that runs leaves the file `proof`."""
    program = small()
    for i, marker in enumerate(HOSTILE_MARKERS):
        name = marker.replace("%s", str(proof))
        for launch in range(4):
            at = 20_000 + 100_000 * launch + 2_000 + i
            program.push_pop(name, at, at + 70_000 - 2 * i, tid=MAIN, registered=bool(i % 2))
    return (write_parquetdir if parquet else write_sqlite)(program, folder / ("t" if parquet else "t.sqlite"))
