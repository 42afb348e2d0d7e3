"""Reports: `build` makes one from a trace, the other modules render it (`terminal`, `html`, `json_`, `markdown`,
`tables`, `figures`).

Nothing is imported here, so that a renderer costs only what it needs.
"""

__all__: list[str] = []
