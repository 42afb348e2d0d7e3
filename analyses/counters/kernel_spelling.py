"""The spellings of one kernel's name: profilers write it mangled, demangled by different demanglers, or bare.

c++filt (Kineto) writes `void f<4, std::array<char*, 2ul> >(int)`, NVIDIA's tools `void f<(int)4, std::array<char *, (unsigned
long)2>>(T1)`. Two spellings are compared by their *signature*, the qualified name with its template arguments and without
result type, parameters, blanks and ways to write a constant; and where these differ (lambdas have no common spelling) by
their *base*, the bare name of the function.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["base_of", "signature_of"]

_LONGEST: Final = 1 << 16
"""The longest part of a name that is compared."""

_TOKEN: Final = re.compile(r"operator *(?:\(\)|\[\]|[-<>=!+*/&|^%~]+)|->|[<>()\[\]{}]|\s")
_ANONYMOUS: Final = re.compile(r"\(anonymous namespace\)|<unnamed>|_GLOBAL__N__\w+")
_WHOLE: Final = r"(?:unsigned |signed )?(?:char|short|int|long long|long|__int64)(?: int)?|unsigned"
_CAST: Final = re.compile(rf"\((?:{_WHOLE})\)(?=-?\d)")
_TRUTH: Final = re.compile(r"\(bool\)([01])\b")
_SUFFIX: Final = re.compile(r"(?<![\w.])(\d+)(?:ull|ul|u|ll|l)\b", re.IGNORECASE)
_NESTED: Final = re.compile(r"_ZN?[rVK]*(?:St|S[0-9A-Z]*_)?")
_LENGTH: Final = re.compile(r"\d{1,5}")


def signature_of(name: str) -> str:
    """The qualified name and its template arguments in one spelling; of a mangled name the name itself.

    >>> signature_of("void a::f<(int)4, T<char *, (unsigned long)2>>(int, T2)") == signature_of("void a::f<4, T<char*, 2ul> >(int)")
    True
    """
    if name.startswith("_Z"):
        return name
    head, _ = _split(name)
    head = _TRUTH.sub(lambda match: ("false", "true")[int(match[1])], head)
    return "".join(_SUFFIX.sub(r"\1", _CAST.sub("", head)).split())


def base_of(name: str) -> str:
    """The bare name of the function: without namespace, template arguments and parameters.

    Of a mangled name the last identifier before its template arguments.

    >>> base_of("void at::native::fill<4, F<float> >(int, F<float>)"), base_of("_ZN2at6native4fillILi4EEEvi"), base_of("fill")
    ('fill', 'fill', 'fill')
    """
    if name.startswith("_Z"):
        return _mangled(name)
    return _split(name)[1]


def _split(name: str) -> tuple[str, str]:
    """The name without result type and parameters, and the last part of it outside of brackets."""
    text = _ANONYMOUS.sub("@", name[:_LONGEST].strip())
    depth = begin = outside = 0
    end = len(text)
    parts: list[str] = []
    for token in _TOKEN.finditer(text):
        sign = token[0]
        if sign.isspace():
            if depth == 0:
                parts, begin, outside = [], token.end(), token.end()
        elif sign == "(" and depth == 0:
            end = token.start()
            break
        elif sign in "<([{":
            if depth == 0:
                parts.append(text[outside : token.start()])
            depth += 1
        elif sign in ">)]}":
            depth = max(depth - 1, 0)
            outside = token.end() if depth == 0 else outside
    if depth == 0:
        parts.append(text[outside:end])
    return text[begin:end], "".join(parts).rsplit("::", 1)[-1]


def _mangled(name: str) -> str:
    """The last of the identifiers at the beginning of a mangled name, each written behind its length."""
    start = _NESTED.match(name)
    at, last = (start.end() if start else 0), name
    while (length := _LENGTH.match(name, at)) is not None:
        at = length.end() + int(length[0])
        last = name[length.end() : at]
    return last
