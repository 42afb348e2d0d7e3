"""One distributed job from the traces of its ranks: which belong together, read in parallel, compared on one clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit.job.engine import Options, Outcome, summarise

if TYPE_CHECKING:
    from tracekit.job.job import Job, job_of
    from tracekit.job.rank_set import RankSet, rank_sets

__all__ = ["Job", "Options", "Outcome", "RankSet", "job_of", "rank_sets", "summarise"]

_HOME = {
    "Job": "tracekit.job.job",
    "RankSet": "tracekit.job.rank_set",
    "job_of": "tracekit.job.job",
    "rank_sets": "tracekit.job.rank_set",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that workers start before it."""
    if name in _HOME:
        from importlib import import_module  # noqa: PLC0415 - the point of this function

        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
