"""A capture on several ranks: one process each on this machine, and one manifest for all of them. It imports no torch."""

from tracekit.capture.ranks.start import Failure, error_file, record_ranks

__all__ = ["Failure", "error_file", "record_ranks"]
