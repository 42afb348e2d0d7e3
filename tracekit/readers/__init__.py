"""Readers: each module turns one file of one format into a `Trace`."""

__all__: list[str] = []
