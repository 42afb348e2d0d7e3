"""One distributed job from the traces of its ranks: which belong together, read in parallel, compared on one clock."""

from tracekit.job.engine import Options, Outcome, summarise
from tracekit.job.job import Job, job_of
from tracekit.job.rank_set import RankSet, rank_sets

__all__ = ["Job", "Options", "Outcome", "RankSet", "job_of", "rank_sets", "summarise"]
