"""Which values of an export tell of the machine or its user, and where else in it they stand."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final, Literal

import polars as pl

from tracekit.scrub import private_names as facts

__all__ = ["Kind", "Values", "held_by", "occurring", "replacer"]

Kind = Literal["host", "user", "folder", "credential", "identifier", "environment", "argument", "asked for"]

SHORTEST: Final = 4
"""Characters of a value that is looked for: a shorter one is found everywhere by chance."""

_HOMES: Final = ("/home/", "/users/", "\\users\\")
_BLOCK: Final = 8 << 20
_DISTINCT: Final = 16
_MOST_VALUES: Final = 50_000
_LONGEST_VALUE: Final = 4096

_ASSIGNMENT: Final = re.compile(r"^([A-Za-z_][\w.%()]{0,127})=(.*)$", re.DOTALL)
_FLAG: Final = re.compile(r"^-{1,2}([\w-]+)(?:=(.*))?$", re.DOTALL)
_WHOLE_PATH: Final = re.compile(r"^(?:[/~]|[A-Za-z]:[/\\]|\\\\)")
_PLAIN: Final = re.compile(r"^[\d.,:+\-/ ]*$|^v?\d+(?:[.\-]\w{1,8})*$")
_ALLOWED_ROWS: Final = "|".join(
    {facts.CAPTURE_VALUES, *facts.EXPORT_ROWS.values(), *facts.ENVIRONMENT_ROWS.values()}
)
_OUTER: Final = " \t\r\n\"'"


@dataclass
class Values:
    """The values found so far, by kind; those that are too common to be looked for are counted apart."""

    exempt: frozenset[str] = frozenset()
    found: dict[str, Kind] = field(default_factory=dict)
    common: dict[Kind, int] = field(default_factory=dict)

    def add(self, value: str, kind: Kind) -> None:
        """Note one value: of a host's, user's or folder's name every one, of others those that cannot be a plain word."""
        value = (
            value.encode("utf-8", "replace").decode().strip(_OUTER).rstrip("/\\" if kind == "folder" else "")
        )
        if not value or value == facts.MARKER or value in self.exempt or len(value) > _LONGEST_VALUE:
            return
        if kind == "folder" and (re.match(facts.SYSTEM_FOLDERS, value) or not re.match(_WHOLE_PATH, value)):
            return
        if kind in ("environment", "argument") and not _is_distinct(value):
            return
        if kind != "asked for" and self._is_common(value, kind):
            if kind in ("host", "user"):
                self.common[kind] = self.common.get(kind, 0) + 1
        elif len(self.found) < _MOST_VALUES:
            self.found.setdefault(value, kind)

    def add_home(self, path: str, *, user: bool = True) -> None:
        """Note a home folder and, as its last part, the user's name."""
        self.add(path, "folder")
        if user and not re.match(facts.SYSTEM_FOLDERS, path.rstrip("/\\")):
            self.add(re.split(r"[/\\]", path.rstrip("/\\"))[-1], "user")

    def add_text(self, text: str) -> None:
        """Note what a removed text of any kind gives away: assignments of an environment, and home folders.

        Whose folder it is does not matter here: libraries hold the paths of the machine that built them (`/home/conda`).
        """
        parts = text.split("\0")
        if len(parts) == 1 and _ASSIGNMENT.match(text):
            parts = re.split(r"[;\n]", text)
        for part in parts:
            if assigned := _ASSIGNMENT.match(part):
                self.add_variable(assigned[1], assigned[2])
        for home in re.findall(facts.HOME_FOLDERS, text):
            self.add_home(home, user=False)

    def add_path(self, path: str) -> None:
        """Note a path of the person who recorded: the folder, and whose home it lies in."""
        self.add(path, "folder")
        for home in re.findall(facts.HOME_FOLDERS, path):
            self.add_home(home)

    def add_variable(self, name: str, value: str) -> None:
        """Note the value of a variable of the environment, and the parts of a list of paths."""
        if re.match(facts.HOST_VARIABLES, name):
            self.add_host(value)
        elif re.match(facts.USER_VARIABLES, name):
            self.add(value, "user")
        elif name in ("HOME", "USERPROFILE"):
            self.add_home(value)
        elif name in ("PWD", "OLDPWD"):
            self.add_path(value)
        elif re.search(facts.CREDENTIAL_NAMES, name):
            self.add(value, "credential")
        else:
            for piece in {value, *re.split(r"[:;,\s]", value)}:
                self.add(piece, "environment")

    def add_host(self, name: str) -> None:
        """Note a machine's name, with and without its domain."""
        self.add(name, "host")
        if "." in name and not _PLAIN.match(name):
            self.add(name.split(".", maxsplit=1)[0], "host")

    def add_command(self, words: Iterable[str]) -> None:
        """Note what a command line gives away: paths, addresses, and the values of flags that name a secret."""
        secret = False
        for word in words:
            flag = _FLAG.match(word)
            name, value = (flag[1], flag[2]) if flag else ("", word)
            if secret or (name and value and re.search(facts.CREDENTIAL_NAMES, name)):
                self.add(value or word, "credential")
            elif value:
                self.add(value, "argument")
                parent = str(PurePosixPath(value).parent)
                if value.startswith("/") and parent.count("/") > 1:
                    self.add_path(parent)
            secret = bool(name and value is None and re.search(facts.CREDENTIAL_NAMES, name))
            self.add_text(word)

    def is_asked_for(self, value: str) -> bool:
        """Whether the user named this value, which then need not tell of him."""
        return self.found.get(value) == "asked for"

    def _is_common(self, value: str, kind: Kind) -> bool:
        if _PLAIN.match(value):
            return len(value) < 2 * SHORTEST or kind not in ("credential", "host")
        if re.fullmatch(_ALLOWED_ROWS, value):
            return True
        lower = value.lower()
        return len(value) < SHORTEST or lower in facts.COMMON_WORDS or lower in facts.SCHEMA_WORDS


def _is_distinct(value: str) -> bool:
    """Whether text that holds this value can hardly do so by chance, and tells of the place where it was recorded."""
    if len(value) < 2 * SHORTEST or _PLAIN.match(value) or re.match(facts.SYSTEM_FOLDERS, value):
        return False
    if value.startswith("/"):
        return value.count("/") > 1
    if "@" in value or "://" in value or re.match(r"(?i)^[a-z]:\\", value):
        return True
    mixed = any(c.isdigit() for c in value) and any(c.isalpha() for c in value)
    return len(value) >= _DISTINCT and mixed and not any(c.isspace() for c in value)


def occurring(texts: Iterator[pl.Series], values: Iterable[str]) -> set[str]:
    """Those of the values that stand in one of the texts (Series of String), in any case of letters, and every home folder.

    >>> sorted(occurring(iter([pl.Series(["by Ann", "at /home/bo/x", "for 7"])]), ["ann", "eve"]))
    ['/home/bo', 'ann']
    """
    by_lower = {value.lower(): value for value in values}
    wanted = [*by_lower.values(), *_HOMES]
    found: set[str] = set()
    for text in texts:
        hit = text.filter(text.str.contains_any(wanted, ascii_case_insensitive=True))
        if not hit.len():
            continue
        matches = hit.str.extract_many(wanted, ascii_case_insensitive=True, overlapping=True)
        found |= set(matches.explode().drop_nulls().str.to_lowercase().unique())
        found |= set(hit.str.extract_all(facts.HOME_FOLDERS).explode().drop_nulls().unique())
    return {by_lower.get(match, match) for match in found.difference(_HOMES)}


def held_by(path: Path, values: Iterable[str]) -> list[str]:
    """Those of the values that stand anywhere in a file's bytes, as UTF-8 and in any case of letters."""
    # Each byte as one character, so that any bytes are text that can be searched.
    wanted = {value.encode().decode("latin-1"): value for value in values}
    if not wanted:
        return []
    by_lower = {text.lower(): value for text, value in wanted.items()}
    kept = max(map(len, wanted)) - 1
    found: set[str] = set()
    tail = ""
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            text = tail + block.decode("latin-1")
            series = pl.Series([text])
            if series.str.contains_any(list(wanted), ascii_case_insensitive=True).item():
                hits = series.str.extract_many(list(wanted), ascii_case_insensitive=True, overlapping=True)
                found |= {by_lower[hit.lower()] for hit in hits.explode().to_list()}
            tail = text[-kept:] if kept else ""
    return sorted(found)


def replacer(values: Iterable[str]) -> Callable[[bytes], bytes]:
    """A function that puts the marker where one of the values stands, in UTF-8 and in any case of letters.

    >>> replacer(["/home/ann", "ann"])(b"load /home/ann/a.pt for Ann")
    b'load [scrubbed]/a.pt for [scrubbed]'
    """
    longest_first = sorted(values, key=len, reverse=True)
    if not longest_first:
        return lambda text: text  # an empty pattern would stand everywhere
    pattern = re.compile(b"|".join(re.escape(value.encode()) for value in longest_first), re.IGNORECASE)
    marker = facts.MARKER.encode()

    def replace(text: bytes) -> bytes:
        return pattern.sub(marker, text)

    return replace
