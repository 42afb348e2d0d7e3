"""tracekit: where the time of a training or inference run went, and why.

>>> import tracekit
>>> trace = tracekit.read("sample_traces/cnn_cpu/trace.json.gz")
>>> trace.meta.format
'kineto'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracekit.api import read, read_all
    from tracekit.trace import Trace

__all__ = ["Trace", "__version__", "read", "read_all"]

__version__ = "0.1.0"

_HOME = {"read": "tracekit.api", "read_all": "tracekit.api", "Trace": "tracekit.trace"}


def __dir__() -> list[str]:
    """The names that the package promises."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Import on first use, so that `tracekit --help` does not wait for Polars."""
    if name in _HOME:
        from importlib import import_module  # noqa: PLC0415 - the point of this function

        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
