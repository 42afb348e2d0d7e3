"""A trace with tracks of layers and of idle time added, for Perfetto and other viewers of Chrome's format."""

from tracekit.report.chrome.render import gzipped, write
from tracekit.report.chrome.tracks import micros

__all__ = ["gzipped", "micros", "write"]
