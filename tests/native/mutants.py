"""Inputs for both decoders: the mutators of `tests/fuzz` that write JSON, and two of their own.

    python tests/native/mutants.py --cases 20000 [--first 0] [--seconds 3600] [--blocks] [--last FILE]

reads each with and without the native decoder, in blocks of several sizes, and prints the seeds of those that differ. With
`--blocks` it compares runs of events of each file, changed a little more, and not the files, which takes a tenth of the time: what
the native decoder leaves is not read. FILE holds the seed that is under way, for what ends the process.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
for folder in (HERE.parents[1], HERE.parent, HERE.parent / "fuzz", HERE.parent / "nsys_stats", HERE):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from bases import make  # noqa: E402
from both_ways import block_differences, differences, raw_differences  # noqa: E402
from mutators import MUTATORS, _json_base  # noqa: E402

from tracekit.readers.kineto import native  # noqa: E402

__all__ = ["KINDS", "make_bases", "mutate"]

_SPACES: Final = ("", "", "", " ", "\n", "\n    ", "\r\n", "\t", "  ")
_EVENTS_OF_A_KIND: Final = 12
_WHOLE: Final = 20
"""Of so many files one is read whole, and the others up to their raw frames."""
_EVENT_BEGINS: Final = re.compile(rb'\{\s*"(?:ph|name|cat|pid)"\s*:')
_SHORT: Final = {
    '"': '\\"',
    "\\": "\\\\",
    "/": "\\/",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
}
_ODD_NAMES: Final = ("é漢😀", "a\\b", 'q"q', "tab\there", "},{", "[memory]", "", "/", "\x7f", "\u2028")
_ODD_NUMBERS: Final = (
    *("1.0005", "2.0015", "8796093022207.9996", "8796093022208.001", "1682725898236567.123", "-0", "-0.0", "0.1e1"),
    *("1E2", "1e-5", "1234567890123456789", "12345678901234567890", "1.10000", '"7"', '"007"', '"-3"', '" 5"', '"12.0"'),
    *('"0x1f"', '"stream 7"', "null", '""', "1e99", "1e100", "3000000000000000", "3000000000000001", "0.123456789012345678"),
)  # fmt: skip


def rewritten(rng: random.Random, bases: Path) -> bytes:
    """The same events written otherwise: other spaces, order of keys, escapes, forms of numbers, keys twice, keys more."""
    tree = json.loads(_json_base(rng, bases))
    events = tree.pop("traceEvents")
    oddity = rng.choice([0.0, 0.0005, 0.01, 0.2])
    if rng.random() < 0.3:
        shift = rng.choice([1682725898236567, 2**43, -(2**43), 0.5, 1e9, 2**43 - 10_000])
        for event in events:
            if isinstance(event, dict) and isinstance(event.get("ts"), int | float):
                event["ts"] += shift
    body = ",".join(_spaced(rng, _value(rng, event, oddity, 0)) for event in events)
    head = json.dumps(tree)[1:-1]
    return f'{{{head}{"," if head else ""}"traceEvents":{_spaced(rng, "[")}{body}]{rng.choice(_SPACES)}}}'.encode()


def _spaced(rng: random.Random, text: str) -> str:
    return rng.choice(_SPACES) + text + rng.choice(_SPACES)


def _value(rng: random.Random, value: Any, oddity: float, depth: int) -> str:
    if rng.random() < oddity / (1 + depth):
        value = rng.choice([*_ODD_NAMES, True, None, [], {}, [[{"a": [1]}]], "odd"])
        if rng.random() < 0.6:
            return rng.choice(_ODD_NUMBERS)
    if isinstance(value, dict):
        pairs = list(value.items())
        if rng.random() < oddity:
            rng.shuffle(pairs)
        if rng.random() < oddity and pairs:
            pairs.append(
                rng.choice([*pairs, ("ts", 3), ("cat", "kernel"), ("ph", "i"), ("args", {"device": 1})])
            )
        gap = rng.choice(_SPACES)
        inner = f"{gap},{gap}".join(
            f"{_text(rng, key, oddity / 20)}{gap}:{gap}{_value(rng, inner, oddity, depth + 1)}"
            for key, inner in pairs
        )
        return "{" + gap + inner + gap + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_value(rng, inner, oddity, depth + 1) for inner in value) + "]"
    if isinstance(value, str):
        return _text(rng, value, oddity)
    if isinstance(value, float) and rng.random() < oddity:
        return rng.choice([f"{value:.3f}", f"{value:.5f}", f"{value!r}", f'"{value}"', f"{value:e}"])
    return json.dumps(value)


def _text(rng: random.Random, text: str, oddity: float) -> str:
    """A text with the escapes that JSON wants, and others."""
    written = []
    for character in text:
        if character in _SHORT and (character != "/" or rng.random() < 0.5):
            written.append(_SHORT[character])
        elif ord(character) < 0x20 or rng.random() < oddity / 20:
            units = character.encode("utf-16-be", "surrogatepass")
            written += [f"\\u{units[at]:02x}{units[at + 1]:02X}" for at in range(0, len(units), 2)]
        else:
            written.append(character)
    return '"' + "".join(written) + '"'


def bytes_in_place(rng: random.Random, bases: Path) -> bytes:
    """A few bytes exchanged for others that mean something in JSON, so that most blocks stay whole."""
    data = bytearray(rewritten(rng, bases) if rng.random() < 0.5 else _json_base(rng, bases))
    for _ in range(rng.choice([1, 1, 2, 3, 10, 100])):
        _change_bytes(rng, data)
    return bytes(data)


def _change_bytes(rng: random.Random, data: bytearray) -> None:
    if not data:
        return
    at = rng.randrange(len(data))
    match rng.randrange(4):
        case 0:
            data[at] = rng.choice(b'"\\{}[],:0123456789-+.eE \n\t\x00\x1f\x7f\x80\xc3\xed\xffntfu')
        case 1:
            data[at : at + 1] = rng.choice([b"", b"\\", b'\\"', b"\\u00e9", b"\\ud83d", b"\xc3\xa9", b"00", b"e5", b".", b"null"])  # fmt: skip
        case 2:
            size, other = rng.choice([1, 4, 30]), rng.randrange(len(data))
            data[at : at + size] = data[other : other + size]
        case _:
            data[at] ^= 1 << rng.randrange(8)


_OWN: Final[dict[str, Callable[[random.Random, Path], bytes]]] = {
    "rewritten": rewritten,
    "bytes_in_place": bytes_in_place,
}
KINDS: Final = (
    *(*_OWN, "damaged_bytes", "cut_short", "json_text", "json_values", "every_event"),
    *("unsteady_times", "hostile_names", "scale", "gzipped"),
)


def make_bases(folder: Path) -> None:
    """The healthy inputs of `tests/fuzz`, in JSON and each cut down to a few events of each kind."""
    make(folder)
    for path in (*folder.glob("*.json"), folder / "capture/trace.json.gz"):
        data = path.read_bytes()
        tree = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
        of_kind: Counter[object] = Counter()
        events = [event for event in tree["traceEvents"] if _is_early(event, of_kind)]
        text = dump_like(data, {**tree, "traceEvents": events})
        path.write_bytes(gzip.compress(text, 1) if path.suffix == ".gz" else text)


def _is_early(event: dict[str, Any], of_kind: Counter[object]) -> bool:
    of_kind[event.get("ph"), event.get("cat")] += 1
    return of_kind[event.get("ph"), event.get("cat")] <= _EVENTS_OF_A_KIND


def dump_like(data: bytes, tree: object) -> bytes:
    """The tree as JSON, on lines if `data` is."""
    return json.dumps(tree, indent=2 if b"\n" in data[:100] else None).encode()


def mutate(seed: int, bases: Path, folder: Path) -> tuple[str, Path, int]:
    """The kind, the file and the size of blocks of a seed; `folder` is emptied first."""
    rng = random.Random(seed)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    kind = rng.choice([*KINDS, *_OWN, *_OWN])
    if kind in _OWN:
        path = folder / "t.json"
        path.write_bytes(_OWN[kind](rng, bases))
    else:
        path = MUTATORS[kind](rng, bases, folder).path
    return kind, path, rng.choice([max(500, path.stat().st_size // 4), 20_000, 8 << 20])


def main() -> None:
    """Compare, and exit with 1 if a file was read in two ways."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--blocks", action="store_true")
    parser.add_argument("--last", type=Path)
    options = parser.parse_args()
    if native.decoder is None:
        sys.exit("the native decoder is not built")
    blocks: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    _count_blocks(blocks)
    began, different = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as place:
        make_bases(Path(place, "bases"))
        for seed in range(options.first, options.first + options.cases):
            if time.monotonic() - began > options.seconds:
                break
            if options.last is not None:
                options.last.write_text(f"{seed}\n")
            try:
                kind, path, block_bytes = mutate(seed, Path(place, "bases"), Path(place, "case"))
            except ValueError:
                continue  # a mutator put a value into itself
            kinds[kind] += 1
            if options.blocks:
                found = _of_blocks(random.Random(seed), path.read_bytes())
            else:
                found = (raw_differences if seed % _WHOLE else differences)(path, block_bytes)
            if found:
                different += 1
                print(f"seed {seed} ({kind}): {found}", flush=True)
    print(
        f"{kinds.total():,} cases in {time.monotonic() - began:,.0f} s, {different} different; {dict(blocks)}; {dict(kinds)}"
    )
    sys.exit(1 if different else 0)


def _of_blocks(rng: random.Random, data: bytes) -> list[str]:
    """The differences of a few runs of events of a file, changed a little more."""
    begins = [match.start() for match in _EVENT_BEGINS.finditer(data)]
    found = []
    for _ in range(3 if begins else 0):
        first = rng.randrange(len(begins))
        last = min(first + rng.choice([1, 3, 20, 100]), len(begins) - 1)
        text = bytearray(data[begins[first] : begins[last]].rstrip(b", \r\n\t"))
        for _ in range(rng.choice([0, 0, 1, 3])):
            _change_bytes(rng, text)
        found += block_differences(bytes(text)) or []
    return found


def _count_blocks(blocks: Counter[str]) -> None:
    """Count the blocks that the native decoder takes and those that it leaves."""
    decode = native.decode

    def counted(text: bytes, end: int) -> native.Block | None:
        block = decode(text, end)
        if native.decoder is not None:
            blocks["left" if block is None else "taken"] += 1
        return block

    native.decode = counted


if __name__ == "__main__":
    main()
