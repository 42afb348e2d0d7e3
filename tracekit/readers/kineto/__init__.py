"""The reader of PyTorch-profiler (Kineto) traces and of any other Chrome-format JSON."""

from tracekit.readers.kineto.reader import read_kineto

__all__ = ["read_kineto"]
