def parents(thread: int, end: int, count: int, out: int, /) -> None: ...
def after(parents: int, width: int, count: int, out: int, /) -> None: ...
def depth(parents: int, width: int, count: int, out: int, /) -> None: ...
def nearest(parents: int, width: int, count: int, wanted: int, out: int, /) -> None: ...
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
