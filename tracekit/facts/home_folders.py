"""How a path tells whose it is: the home folder of a user, wherever in a text it stands."""

from __future__ import annotations

from typing import Final

__all__ = ["HOME_FOLDER"]

HOME_FOLDER: Final = r"(?:/home|/Users|[A-Za-z]:[/\\]+(?i:users))[/\\]+[^/\\\s\"':]+"
"""A regular expression for Python and for Polars. In texts of JSON separators stand twice or behind a backslash."""
