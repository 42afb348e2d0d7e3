"""Faults of the Parquet reader that are no exceptions of Python's: it panics on some damaged files, and says so on stderr itself."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import polars as pl

__all__ = ["panics_as_errors"]

_STDERR = 2


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Turn a panic inside into a ComputeError with its first line, and keep its report off stderr.

    What else is written to stderr meanwhile is written afterwards.
    """
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()
    with tempfile.TemporaryFile() as caught:
        try:
            kept = os.dup(_STDERR)
        except OSError:  # it is closed
            kept = -1
        panicked = False
        try:
            if kept >= 0:
                os.dup2(caught.fileno(), _STDERR)
            yield
        except pl.exceptions.PanicException as panic:
            panicked = True
            raise pl.exceptions.ComputeError(str(panic).partition("\n")[0]) from panic
        finally:
            if kept >= 0:
                os.dup2(kept, _STDERR)
                os.close(kept)
                caught.seek(0)
                if not panicked and (text := caught.read()):
                    os.write(_STDERR, text)
