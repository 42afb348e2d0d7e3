"""The analyses: each a pure function from a trace to a result.

`from tracekit.analyses.idle import idle` gives one; `tracekit.analyses.result.analyses()` lists all.
"""

__all__: list[str] = []
