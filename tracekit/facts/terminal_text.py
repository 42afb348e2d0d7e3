"""The characters that never reach a terminal: a name in a trace, or of a file, may hold any."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["UNSAFE", "escaped", "printable"]

# Control characters would move a terminal's cursor; bidirectional marks would reorder what stands around them, and
# letters without width make two names look alike.
UNSAFE: Final = (
    r"[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060\u2066-\u2069\ufeff]+"
)
"""A run of them: a regular expression for Python and for Polars."""

_UNSAFE: Final = re.compile(UNSAFE)
_BEYOND_ASCII: Final = re.compile(UNSAFE.replace(r"\x00-\x1f", "").rstrip("+"))


def printable(text: str) -> str:
    r"""The text on one line, with a space for each run of control and direction characters.

    >>> printable("a\x1b[31mb\nc")
    'a [31mb c'
    """
    return _UNSAFE.sub(" ", text)


def escaped(document: str) -> str:
    r"""The same JSON document with the characters escaped that JSON itself allows in texts.

    >>> escaped('{"a":"b\u202ec"}')
    '{"a":"b\\u202ec"}'
    """
    if document.isascii() and "\x7f" not in document:
        return document
    return _BEYOND_ASCII.sub(lambda match: f"\\u{ord(match[0]):04x}", document)
