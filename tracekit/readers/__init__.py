"""Readers: each turns one file of one format into a `Trace`."""

from tracekit.readers._source import Limits
from tracekit.readers.kineto import read_kineto

__all__ = ["Limits", "read_kineto"]
