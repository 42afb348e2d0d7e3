"""Units: everything is held in integer ns and bytes, and turned into something readable only when shown."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "NS_PER_MS",
    "NS_PER_S",
    "NS_PER_US",
    "count_of",
    "format_bytes",
    "format_change",
    "format_count",
    "format_flop",
    "format_ns",
    "format_share",
    "listed",
    "times",
]

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

NOT_CAPTURED = "–"
_ROUNDS_UP = 0.9995
"""From this part of a unit on three digits round to 1.00 of it."""
_FLOP_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def format_ns(ns: float | None) -> str:
    """A time with three significant digits and its unit.

    >>> [format_ns(t) for t in (0, -999, 25_473, 999_500, 3_907_825, 61_000_000_000, None)]
    ['0 ns', '−999 ns', '25.5 µs', '1.00 ms', '3.91 ms', '61.0 s', '–']
    """
    if ns is None:
        return NOT_CAPTURED
    for size, unit in ((NS_PER_S, "s"), (NS_PER_MS, "ms"), (NS_PER_US, "µs")):
        if abs(ns) >= size * _ROUNDS_UP:
            return f"{_three_digits(ns / size)} {unit}".replace("-", "−")
    return f"{ns:.0f} ns".replace("-", "−")


def format_change(ns: float | None) -> str:
    """By how much a time differs, with its sign.

    >>> format_change(3_907_825), format_change(-999), format_change(-0.1)
    ('+3.91 ms', '−999 ns', '0 ns')
    """
    whole = round(ns or 0)
    sign = "" if not whole else "+" if whole > 0 else "−"
    return NOT_CAPTURED if ns is None else f"{sign}{format_ns(abs(ns))}"


def format_bytes(count: float | None) -> str:
    """A number of bytes in decimal units (1 GB = 10⁹ B).

    >>> [format_bytes(b) for b in (0, 512, 38_535_168, 141_000_000_000)]
    ['0 B', '512 B', '38.5 MB', '141 GB']
    """
    if count is None:
        return NOT_CAPTURED
    for size, unit in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if abs(count) >= size * _ROUNDS_UP:
            return f"{_three_digits(count / size)} {unit}"
    return f"{count:.0f} B"


def format_flop(count: float, *, per_second: bool = False) -> str:
    """A number of floating-point operations, or a rate of them.

    >>> format_flop(0), format_flop(12_345_678_901_234), format_flop(4.1e12, per_second=True)
    ('0 FLOP', '12.3 TFLOP', '4.10 TFLOP/s')
    """
    of_unit = next((each for each in _FLOP_UNITS if count >= each[0] * _ROUNDS_UP), None)
    text = f"{count:.0f} FLOP" if of_unit is None else f"{_three_digits(count / of_unit[0])} {of_unit[1]}FLOP"
    return f"{text}/s" if per_second else text


def format_share(part: float | None) -> str:
    """A ratio as a percentage with one decimal.

    >>> format_share(0.31416), format_share(-0.02), format_share(None)
    ('31.4 %', '−2.0 %', '–')
    """
    return NOT_CAPTURED if part is None else f"{round(100 * part, 1) or 0:.1f} %".replace("-", "−")


def format_count(count: int | None) -> str:
    """A whole number with thousands separated.

    >>> format_count(1234567)
    '1,234,567'
    """
    return NOT_CAPTURED if count is None else f"{count:,}"


def count_of(count: int, one: str, many: str = "") -> str:
    """A number of things, whose plural is `many`, or has an s.

    >>> count_of(1, "step"), count_of(1200, "step"), count_of(2, "kernel was", "kernels were")
    ('1 step', '1,200 steps', '2 kernels were')
    """
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def listed(parts: Sequence[str], word: str = "and") -> str:
    """The parts one after the other, the last behind a word.

    >>> listed(["a", "b", "c"]), listed(["a"])
    ('a, b and c', 'a')
    """
    return f" {word} ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def times(count: int) -> str:
    """How often.

    >>> times(1), times(2)
    ('once', 'twice')
    """
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    decimals = 0 if magnitude >= 99.95 else 1 if magnitude >= 9.995 else 2
    return f"{value:.{decimals}f}"
