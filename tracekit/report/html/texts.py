"""Texts as they stand in the page: none too long, paths by their last parts, and data that no text can break."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from markupsafe import Markup, escape

from tracekit.names import unbroken

__all__ = ["MAX_TEXT", "bounded", "embed", "prose", "tail", "tail_length"]

MAX_TEXT: Final = 1000
"""Letters of one text in the page; the JSON report has all."""

_GAP: Final = " … "


def bounded(value: Any) -> Any:
    """The value; of a text of more than `MAX_TEXT` letters the beginning and the end. Markup is ours and stays as it is.

    >>> len(bounded("a" * 16_000)), bounded("conv1"), bounded(7)
    (1000, 'conv1', 7)
    """
    if not isinstance(value, str) or isinstance(value, Markup) or len(value) <= MAX_TEXT:
        return value
    half = (MAX_TEXT - len(_GAP)) // 2
    return f"{value[: MAX_TEXT - len(_GAP) - half]}{_GAP}{value[-half:]}"


def _all_bounded(value: Any) -> Any:
    """The value with all texts in it bounded."""
    if isinstance(value, dict):
        return {key: _all_bounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_all_bounded(one) for one in value]
    return str(value) if isinstance(value, Markup) else bounded(value)


def embed(value: Any) -> Markup:
    r"""A value as JSON that can stand in a script element, whatever texts it holds.

    >>> str(embed("</script><!-- & \u2028"))
    '"\\u003c/script\\u003e\\u003c!-- \\u0026 \\u2028"'
    """
    text = msgspec.json.encode(_all_bounded(value)).decode()
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)  # noqa: S704 - nothing in it can end the element or begin another


_FLAG: Final = re.compile(r"(?<!\S)--[a-z][a-z-]{1,30}(?:=[\w,.-]{1,30})?")
_CODE: Final = re.compile(r"`([^`]{1,60})`")
_CUT: Final = re.compile(r"…(?=\w)")


def prose(text: str) -> Markup:
    r"""A sentence in which no line ends inside a figure, a flag, or between the dots of a cut name and the name.

    >>> str(prose("12.3 % with --workers=4."))
    '12.3\xa0% with <span class="flag">--workers=4.</span>'
    >>> str(prose("Record with `tracekit run`, not <b>"))
    'Record with <code>tracekit run</code>, not &lt;b&gt;'
    """
    whole = str(escape(_CUT.sub("…\u2060", unbroken(bounded(text)))))
    marked = _FLAG.sub(r'<span class="flag">\g<0></span>', _CODE.sub(r"<code>\1</code>", whole))
    return Markup(marked)  # noqa: S704 - it was escaped


_PATH: Final = re.compile(
    r"(?P<count>(?:[\d,]+ × )?)(?P<cut>(?:[^\s./:<>()]+\.)+)(?P<tail>(?!\*\.)[^\s./:<>()]+(?:\.\*)*\.[^\s./:<>()]+)"
)


_SHORT_PATH: Final = 32
"""There is room for so many letters; without their begins short paths read alike."""


def tail(text: str) -> Markup:
    """The last two parts of a long dotted path, not counting `*`; the others stand before them unseen, and are copied and found with them.

    >>> str(tail("2 × model.encoder.layer.*.attention.output"))
    '2 × <span class="cut">model.encoder.layer.*.</span>attention.output'
    >>> str(tail("stages.0.1.conv2")), str(tail("a.<b>"))
    ('stages.0.1.conv2', 'a.&lt;b&gt;')
    """
    text = bounded(text)
    path = _PATH.fullmatch(text) if text.count(".") > 1 and len(text) > _SHORT_PATH else None
    if path is None:
        return escape(text)
    return Markup('{}<span class="cut">{}</span>{}').format(path["count"], path["cut"], path["tail"])


def tail_length(text: str) -> int:
    """How many letters of a dotted path are seen; 0 if the text is none."""
    path = _PATH.fullmatch(text)
    return len(path["tail"]) if path else 0
