"""What the workloads check of the user's choices, so that a wrong one ends in one line and not in a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from tracekit.capture.workloads import WorkloadOptions
from tracekit.errors import UsageError

__all__ = ["chosen_variant", "refuse_data", "refuse_max_rows", "refuse_other_size"]


def chosen_variant(workload: str, variant: str, variants: Sequence[str]) -> str:
    """Return `variant`, or the first of `variants` when it is empty.

    Raises `UsageError`, naming the closest variants or all of them, when there is no such variant.
    """
    if not variant:
        return variants[0]
    if variant in variants:
        return variant
    close = difflib.get_close_matches(variant, variants)
    remedy = f"did you mean {' or '.join(close)}?" if close else f"choose one of: {', '.join(variants)}"
    raise UsageError(f"{workload} has no variant {variant!r}", remedy=remedy)


def refuse_data(workload: str, options: WorkloadOptions) -> None:
    """Raise `UsageError` when real data were asked for, of a workload that reads none."""
    if options.data is not None:
        raise UsageError(f"{workload} reads no real data", path=options.data, remedy="leave out --data")


def refuse_max_rows(workload: str, options: WorkloadOptions) -> None:
    """Raise `UsageError` when a limit of embedding rows was asked for, of a workload that heeds none."""
    if options.max_rows is not None:
        raise UsageError(f"{workload} has no embedding tables to cap", remedy="leave out --max-rows")


def refuse_other_size(workload: str, options: WorkloadOptions, size: int, unit: str) -> None:
    """Raise `UsageError` when another size was asked for than the only one the model is made for."""
    if options.size not in (None, size):
        raise UsageError(
            f"{workload} takes {size} {unit}, not {options.size}",
            remedy=f"leave out --size, or set it to {size}",
        )
