"""What a reader sees instead of the short names that the tables keep: one mapping for verdict, tables and figures."""

from __future__ import annotations

from tracekit.facts.category_names import category_name

__all__ = ["bound_name", "category_name"]


def bound_name(bound: str) -> str:
    """The name of a bound. Nothing in a profile proves that arithmetic and not bandwidth is short.

    >>> bound_name("compute-bound"), bound_name("idle")
    ('device-bound', 'idle')
    """
    return "device-bound" if bound == "compute-bound" else bound
