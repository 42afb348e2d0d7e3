"""The words that tell of a machine or its user, and what becomes of them in the texts that are kept."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

import polars as pl

from tracekit.facts.home_folders import HOME_FOLDER
from tracekit.readers.nsys import vocabulary as facts
from tracekit.readers.nsys.pages import ColumnKind
from tracekit.readers.nsys.tables import Tables, whole

__all__ = ["MARKER", "Cleaner", "private_words"]

MARKER: Final = "[scrubbed]"
"""Stands where a word was."""

_SHORTEST: Final = 4
"""Characters of a word that is looked for: a shorter one stands in other words by chance."""
_LONG: Final = 8
"""Characters of a word that need not have a letter."""
_MOST_ROWS: Final = 1 << 16
_TABLES: Final = (*facts.METADATA_TABLES, "META_DATA_CAPTURE", "TARGET_INFO_SYSTEM_ENV")
_TELLING: Final = re.compile(r"EXPORT_HOST|EXPORT_USER|Hostname|(?:.*:)?(?:USER_NAME|WORKING_DIR)")
_VARIABLE: Final = re.compile(
    r"(?:^|[;\0\n])(?:USER|LOGNAME|HOSTNAME|\w*(?:TOKEN|SECRET|PASSWORD|API_KEY|ACCESS_KEY))=([^;\0\n]+)"
)
_COMMON: Final = frozenset(
    [
        "admin",
        "cuda",
        "data",
        "default",
        "docker",
        "false",
        "guest",
        "home",
        "host",
        "local",
        "localhost",
        "main",
        "model",
        "node",
        "none",
        "nvidia",
        "python",
        "root",
        "runner",
        "test",
        "torch",
        "train",
        "true",
        "ubuntu",
        "unknown",
        "user",
        "users",
        "work",
    ]
)
"""Names of users and hosts that tell nothing, and would tear the names of operators apart."""


def private_words(tables: Tables, keep: Iterable[str]) -> list[str]:
    """The names of host and user, the working folder and the secrets of the environment, but for those to `keep`."""
    kept = {word.lower() for word in keep}
    found: dict[str, str] = {}
    for value in _values(tables):
        for word in (value, value.split(".", maxsplit=1)[0]):  # a host is also called without its domain
            if _is_telling(word) and word.lower() not in kept:
                found.setdefault(word.lower(), word)
    return list(found.values())


def _values(tables: Tables) -> Iterator[str]:
    wanted: dict[str, ColumnKind] = {"name": "text", "value": "text"}
    for table in _TABLES:
        for name, value in whole(tables, table, wanted, _MOST_ROWS).drop_nulls().rows():
            if _TELLING.fullmatch(name):
                yield value.strip().rstrip("/\\")
            elif name == "DeviceEnvironment":
                yield from _VARIABLE.findall(value)


def _is_telling(word: str) -> bool:
    if word.startswith("/"):
        return word.count("/") > 1
    plain = word.lower() in _COMMON or word == MARKER or not re.search(r"[^\W\d]", word)
    return len(word) >= _SHORTEST and (not plain or (len(word) >= _LONG and word != MARKER))


class Cleaner:
    """Puts the marker in place of words, in any case of letters, and `~` in place of home folders; `replaced` counts the texts."""

    def __init__(self, words: Iterable[str]) -> None:
        # The longest first: of alternatives the first that fits is taken.
        longest = sorted(words, key=len, reverse=True)
        self._words = "(?i)" + "|".join(map(pl.escape_regex, longest)) if longest else None
        self.replaced = 0

    def cleaned(self, texts: pl.Series) -> pl.Series:
        """The texts (String) without these words and folders."""
        made = texts if self._words is None else texts.str.replace_all(self._words, MARKER)
        made = made.str.replace_all(HOME_FOLDER, "~")
        self.replaced += int((made != texts).sum())
        return made
