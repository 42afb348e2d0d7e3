"""The dependency graph of a scope: what waited for what, its replay, its slack and its longest path."""

__all__: list[str] = []
