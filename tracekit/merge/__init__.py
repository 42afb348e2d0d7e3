"""The traces of a job's ranks as one file for Perfetto: an archive of them with their clocks, or one Chrome trace."""

from tracekit.merge.archive import write_archive
from tracekit.merge.chrome import write_chrome
from tracekit.merge.part import Part, parts_of

__all__ = ["Part", "parts_of", "write_archive", "write_chrome"]
