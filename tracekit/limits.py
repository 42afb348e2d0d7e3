"""How much a reader takes from a file that it does not trust."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """How far a compressed file may grow before it is taken for an attack.

    Real traces compress 8 to 60 times; a file of zeros compresses 1,000 times. The ratio is looked at only
    beyond `free_bytes`, since short files can be extreme.
    """

    max_ratio: int = 200
    free_bytes: int = 256 << 20
    max_bytes: int = 64 << 30
    enforced: bool = True
