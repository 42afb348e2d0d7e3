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
def joined(
    starts: int,
    ends: int,
    count: int,
    others_starts: int,
    others_ends: int,
    others: int,
    out_starts: int,
    out_ends: int,
    /,
) -> int: ...
def common(
    starts: int,
    ends: int,
    count: int,
    others_starts: int,
    others_ends: int,
    others: int,
    out_starts: int,
    out_ends: int,
    /,
) -> int: ...
def without(
    starts: int,
    ends: int,
    count: int,
    others_starts: int,
    others_ends: int,
    others: int,
    out_starts: int,
    out_ends: int,
    /,
) -> int: ...
def covered(
    starts: int, ends: int, until: int, count: int, points: int, number: int, out: int, /
) -> None: ...
