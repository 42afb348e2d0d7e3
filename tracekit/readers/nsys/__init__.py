"""The reader of Nsight Systems exports: SQLite files and folders of Parquet files, of every version of the schema."""

from tracekit.readers.nsys.reader import is_nsys, read_nsys

__all__ = ["is_nsys", "read_nsys"]
