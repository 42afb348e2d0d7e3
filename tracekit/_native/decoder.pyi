from typing import Any

Column = tuple[bytes, int, bytes, Any] | None

def plan(
    tables: tuple[tuple[tuple[bytes, int], ...], ...],
    categories: tuple[tuple[bytes, int], ...],
    instant: tuple[bytes, int],
    seed: int,
    /,
) -> object: ...
def decode(
    plan: object, text: bytes | bytearray, end: int, /
) -> (
    tuple[int, bool, bool, int, list[tuple[bytes, bytes | None, int, int, tuple[Column, ...], bytes]]] | None
): ...
