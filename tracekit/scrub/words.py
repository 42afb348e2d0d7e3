"""The words that identify a machine or its user, and their replacement in the texts of a copy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

import polars as pl

from tracekit.names import HOME_FOLDER
from tracekit.readers.nsys import vocabulary as facts
from tracekit.readers.nsys.pages import ColumnKind
from tracekit.readers.nsys.tables import Tables, whole

__all__ = ["MARKER", "Cleaner", "private_words"]

MARKER: Final = "[scrubbed]"
"""The replacement of a word."""

_SHORTEST: Final = 4
"""The least number of characters of a private word: a shorter one occurs in other words by chance."""
_LONG: Final = 8
"""The least number of characters of a word without a letter."""
_LONGEST, _MOST_WORDS = 256, 100
"""The most characters in a word, and the most words: a file with more was made to slow the search down."""
_MOST_ROWS: Final = 1 << 16
_TABLES: Final = (*facts.METADATA_TABLES, "META_DATA_CAPTURE", "TARGET_INFO_SYSTEM_ENV")
_TELLING: Final = re.compile(r"EXPORT_HOST|EXPORT_USER|Hostname|(?:.*:)?(?:USER_NAME|WORKING_DIR)")
_VARIABLE: Final = re.compile(
    r"(?:^|[;\0\n])(?:USER|LOGNAME|HOSTNAME|\w*(?:TOKEN|SECRET|PASSWORD|API_KEY|ACCESS_KEY))=([^;\0\n]+)"
)
_COMMON: Final = re.compile(
    "admin|cuda|data|default|docker|false|guest|home|host|local|localhost|main|model|node|none|nvidia|python|root|runner"
    "|test|torch|train|true|ubuntu|unknown|user|users|work"
)
"""Names of users and hosts that identify nobody, and that occur in the names of operators."""


def private_words(tables: Tables, keep: Iterable[str]) -> list[str]:
    """The names of host and user, the working folder and the secrets of the environment, without those to `keep`."""
    kept = {word.lower() for word in keep}
    words: dict[str, None] = {}
    for value in _values(tables):
        for word in (value, value.split(".", maxsplit=1)[0]):  # a host is also called without its domain
            if _is_telling(word) and word.lower() not in kept:
                words[word.lower()] = None
    return list(words)[:_MOST_WORDS]


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
        return word.count("/") > 1 and len(word) <= _LONGEST
    if word == MARKER or _COMMON.fullmatch(word.lower()):
        return False
    has_letters = re.search(r"[^\W\d_]", word)
    return (_SHORTEST if has_letters else _LONG) <= len(word) <= _LONGEST


class Cleaner:
    """Replaces words by the marker, in any case of letters, and home folders by `~`; `replaced` counts the texts.

    `requested` words are replaced in every text, `private` words in texts that people write.
    """

    def __init__(self, requested: Iterable[str], private: Iterable[str]) -> None:
        self._requested, self._all = _pattern(requested), _pattern([*requested, *private])
        self.replaced = 0

    def cleaned(self, texts: pl.Series, *, by_people: bool) -> pl.Series:
        """The texts (String) without these words and folders."""
        pattern = self._all if by_people else self._requested
        result = texts.str.replace_all(pattern, MARKER) if pattern else texts
        result = result.str.replace_all(HOME_FOLDER, "~")
        self.replaced += int((result != texts).sum())
        return result


def _pattern(words: Iterable[str]) -> str:
    # The longest first: of alternatives the first that fits is taken.
    escaped = "|".join(pl.escape_regex(word) for word in sorted(words, key=len, reverse=True))
    return escaped and f"(?i){escaped}"
