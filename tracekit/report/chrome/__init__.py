"""A trace with tracks of layers, of idle time and of the critical path added, for Perfetto and other viewers of Chrome's format."""

from tracekit.report.chrome.render import gzipped, write
from tracekit.report.chrome.tracks import micros

__all__ = ["gzipped", "micros", "write"]
