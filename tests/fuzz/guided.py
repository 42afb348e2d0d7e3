"""Lets coverage guide the mutation of small inputs of the readers; needs atheris, which is installed for this alone.

    python tests/fuzz/guided.py CORPUS -max_total_time=3600 -max_len=40000 -timeout=60

CORPUS is a folder that grows; a new one begins with small inputs of each format. The ending of a file's name says its format, so
each input begins with a byte that chooses it. What is no error of tracekit's own ends the run, and its input is kept as `crash-…`.
"""

from __future__ import annotations

import gzip
import importlib
import json
import pkgutil
import sys
import tempfile
from pathlib import Path
from typing import Final

import zstandard

ENDINGS: Final = ("json", "json.gz", "sqlite", "csv", "json.zst", "zip")


def seeds(corpus: Path, bases: Path) -> None:
    """Every base, cut down to what a few events need, with the byte of its format before it."""
    corpus.mkdir()
    for name, ending in (("planted.json", 0), ("layers.json", 0), ("old.sqlite", 2), ("metrics.csv", 3)):
        data = (bases / name).read_bytes()
        if name.endswith(".json"):
            tree = json.loads(data)
            kinds = {(event.get("cat"), event.get("ph")): event for event in tree["traceEvents"]}
            tree["traceEvents"] = [*kinds.values(), *tree["traceEvents"][-20:]]
            data = json.dumps(tree).encode()
        for number, packed in ((ending, data), (1, gzip.compress(data)), (4, zstandard.compress(data))):
            (corpus / f"{name}.{number}").write_bytes(bytes([number]) + packed)


def main() -> None:
    import atheris

    with atheris.instrument_imports(include=["tracekit"]):
        import tracekit
        import tracekit.readers

        for module in pkgutil.walk_packages(tracekit.readers.__path__, "tracekit.readers."):
            importlib.import_module(module.name)

    from tracekit.errors import TracekitError
    from tracekit.readers.ncu import read_ncu

    with tempfile.TemporaryDirectory() as name:
        folder, corpus = Path(name), Path(sys.argv[1])
        if not corpus.exists():
            importlib.import_module("bases").make(folder / "bases")
            seeds(corpus, folder / "bases")

        def one_input(data: bytes) -> None:
            ending = ENDINGS[data[0] % len(ENDINGS)] if data else "json"
            path = folder / f"t.{ending}"
            path.write_bytes(data[1:])
            try:
                (read_ncu if ending == "csv" else tracekit.read_all)(path)
            except TracekitError:
                return

        atheris.Setup(sys.argv, one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
