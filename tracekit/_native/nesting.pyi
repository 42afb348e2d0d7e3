from collections.abc import Callable

def parents(thread: int, end: int, count: int, out: int, /) -> None: ...
def after(parents: int, width: int, count: int, out: int, /) -> None: ...
def depth(parents: int, width: int, count: int, out: int, /) -> None: ...
def nearest(parents: int, width: int, count: int, wanted: int, itself: int, out: int, /) -> None: ...
def take(values: int, width: int, count: int, rows: int, number: int, out: int, /) -> None: ...
def innermost(
    thread: int,
    start: int,
    end: int,
    parents: int,
    width: int,
    count: int,
    places: int,
    times: int,
    number: int,
    out: int,
    patience: int,
    /,
) -> None: ...
def overlap(thread: int, start: int, end: int, parents: int, width: int, count: int, /) -> bool: ...
def moments(
    start: int,
    end: int,
    parents: int,
    width: int,
    count: int,
    low: int,
    high: int,
    ends: int,
    number: int,
    times: int,
    out: int,
    /,
) -> int: ...

# Starts, ends and number of two lists of intervals, and where starts and ends of the answer go; how many there are.
_Merge = Callable[[int, int, int, int, int, int, int, int], int]
joined: _Merge
common: _Merge
without: _Merge

def covered(
    starts: int, ends: int, until: int, count: int, points: int, number: int, out: int, /
) -> None: ...
