"""Names as a reader sees them: cut to a width so that their most telling parts stay, on one line, without anyone's home folder."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import Final

import numpy as np
import polars as pl

from tracekit.facts.terminal_text import UNSAFE, printable

__all__ = [
    "HOME_FOLDER",
    "called_from",
    "category_name",
    "clean",
    "clean_frame",
    "clean_frames",
    "short_frame",
    "shorten_name",
    "shorten_names",
    "told_apart",
    "unbroken",
]


def shorten_name(name: str, width: int) -> str:
    """A name in at most `width` characters, with its most telling parts kept.

    Of a C++ signature go, one after the other, the parameters, the namespaces and calls of lambdas, and the template
    arguments from the innermost outwards, but for the one that tells what the kernel computes. What is still too long loses words
    of its middle; a line of Python code loses its path first.

    >>> shorten_name("void at::native::vectorized_elementwise_kernel<4, at::native::Add<float>>(int)", 50)
    'vectorized_elementwise_kernel<4, Add<float>>'
    >>> shorten_name("void at::native::vectorized_elementwise_kernel<4, at::native::Add<float>>(int)", 36)
    'vectorized_elementwise_kernel<Add>'
    >>> shorten_name("void par_ranged2d_kernel<advec_cell(int)::{lambda(int, int)#1}>(Range2d)", 24)
    'par_…kernel<advec_cell>'
    >>> shorten_name("[param|pytorch.model|warmup|forward]", 24)
    '[param|…warmup|forward]'
    >>> shorten_name("transformers/models/owlv2/modeling_owlv2.py(40): forward", 30)
    'modeling_owlv2.py(40): forward'
    >>> shorten_name("<class 'modeling.BertLayer'>.0.attention.query", 40)
    "<class 'modeling.Bert…0.attention.query"
    >>> shorten_name("abcdefghijklmnop", 9)
    'abcd…mnop'
    """
    if len(name) <= width:
        return name
    if len(name) > _LONGEST_READ:
        name = f"{name[: _LONGEST_READ // 2]}{name[-_LONGEST_READ // 2 :]}"
    if _PYTHON_LINE.search(name):
        return _short_line(name, width)
    signature = (
        ("<" in name or "(" in name) and not _IN_BRACKETS.fullmatch(name) and not _PYTHON_CLASS.search(name)
    )
    return _short_signature(name, width) if signature else _without_middle(name, width)


def _short_signature(name: str, width: int) -> str:
    for short in _shorter_signatures(name):
        if len(short) <= width:
            return short
    outer, bracket, _ = short.partition("<")
    inner = _telling_argument(short)
    if not inner:
        return _without_middle(short, width)
    room = width - len(inner) - 2
    if room >= min(len(outer), _LEAST_OUTER):
        return f"{_without_middle(outer, room) if room < len(outer) else outer}{bracket}{inner}>"
    return inner if len(inner) <= width else _without_middle(inner, width)


def shorten_names(names: Iterable[str], width: int) -> dict[str, str]:
    """The short form of each name. Those that would read alike show where they differ, as far as the width has room.

    >>> list(shorten_names(["Cijk_Ailk_BBS_MT64x16x32_MI16", "Cijk_Ailk_BBS_MT128x16x32_MI16"], 22).values())
    ['Cijk_…MT64x16x32_MI16', 'Cijk_…MT128x16x32_MI16']
    """
    short = {name: shorten_name(name, width) for name in names}
    alike: dict[str, list[str]] = {}
    for name, text in short.items():
        alike.setdefault(text, []).append(name)
    for group in alike.values():
        if len(group) > 1:
            for name, words in _differences({name: _WORD.findall(name) for name in group}).items():
                told = "…".join(words)
                room = width - len(told) - 1
                if words and room >= 0:
                    short[name] = f"{shorten_name(name, room).removesuffix('…')}…{told}"
    return short


def told_apart(paths: Sequence[str | PurePath]) -> list[str]:
    """Of each path the end that no other one has, without the name of its file where the folders tell as much.

    >>> told_apart(["runs/a/trace.json.gz", "runs/b/trace.json.gz", "x.json"])
    ['a', 'b', 'x.json']
    >>> told_apart(["a/1.json", "a/2.json", "b/1.json"])
    ['a/1.json', '2.json', 'b']
    """
    whole = [PurePath(path).parts for path in paths]
    seen = Counter(parts[-size:] for parts in set(whole) for size in range(1, len(parts) + 1))
    ends = [
        next((parts[-size:] for size in range(1, len(parts)) if seen[parts[-size:]] == 1), parts)
        for parts in whole
    ]
    folders = Counter(parts[:-1] for parts in set(whole))
    short = [
        end[:-1] if len(end) > 1 and folders[parts[:-1]] == 1 and seen[end[:-1]] <= 1 else end
        for parts, end in zip(whole, ends, strict=True)
    ]
    return [clean("/".join(end)) for end in short]


def _differences(names: dict[str, list[str]]) -> dict[str, list[str]]:
    """For each name, given in words, the first word that tells it from others, from those that share this one the next, and so on."""
    low, high = min(names.values()), max(names.values())  # what these two share all share
    at = next((index for index, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    parts: dict[str, dict[str, list[str]]] = {}
    for name, words in names.items():
        parts.setdefault(words[at] if at < len(words) else "", {})[name] = words
    if len(parts) == 1:
        return {name: [] for name in names}
    return {
        name: [word, *more] if word else more
        for word, members in parts.items()
        for name, more in _differences(members).items()
    }


_LONGEST_READ: Final = 8_192
"""Of a longer name the middle is not looked at."""
_WORD: Final = re.compile(r"[^\W_]+")
_IN_BRACKETS: Final = re.compile(r"<[^<>]*>")
"""What stands for work in no layer."""
_PYTHON_CLASS: Final = re.compile(r"<class '|<function |<bound method ")
"""A part of a layer's name that is no template of C++, but what Python prints of an object."""
_PYTHON_LINE: Final = re.compile(r"\.py(?:\(\d+\))?: ")
_LEAST_OUTER: Final = 8
"""What must be seen of a template's own name beside its telling argument."""

# What follows the last namespace says nothing alone: `gemvx::kernel`.
_NAMESPACE: Final = re.compile(r"\b(?:\w+(?:<[^<>]*>)?::)+(?!(?:kernel|functor|dispatch|combine)\b)(?=\w)")
_WRAPPER: Final = re.compile(r"^Kernel2?<(\w+)>$")
"""CUTLASS names its kernels in the argument of one and the same template."""
_UNNAMED: Final = re.compile(r"(?:\(anonymous namespace\)|<unnamed>)::")
_RETURN_TYPE: Final = re.compile(r"^(?:void |(?:std::)?enable_if<.*?>::type )")
_LAMBDA: Final = re.compile(r"::(?:\{lambda[^}]*\}|\[lambda[^\]]*\]|operator ?(?:const)?)")
_SPLIT_BRACKETS: Final = re.compile(r"> (?=>)")
_INNERMOST: Final = re.compile(r"\([^()]*\)")
_IDENTIFIER: Final = re.compile(r"(?<![\w:])[A-Za-z_]\w*(?:::\w+)?")
_TELLS_NOTHING: Final = re.compile(
    r"void|const|(?:un)?signed|int|long|short|char|bool|true|false|C|T\d+|type|value|__\w+|\w+_t|\w*(?:Type|Metadata|Policy\w*|Calculator)"
    r"|[bB]?[fF]loat\d*(?:_e\d\w+)?|decltype|nullptr|double\d?|[hH]alf2?|[aA]rray|[tT]uple|gpu_kernel_impl\w*|Parallel\w+|CombinedFunctorReducer|(?:[AB]Una|Bina)ryFunctor"
    r"|ReduceOp|enable_\w+|RowMajor|ColumnMajor"
)
"""Arguments that many kernels share: types, and templates that hold the one that matters."""


def _shorter_signatures(name: str) -> Iterator[str]:
    if name.startswith("Memcpy "):
        yield from (name.replace(" -> ", "→"), name.replace(" -> Device", "").replace("Device -> ", ""))
        name = name.partition(" (")[0]
    short = _without_parameters(_RETURN_TYPE.sub("", _UNNAMED.sub("", name)))
    yield short
    if "<" in short:
        short = short.replace("&(", "&")
        while short != (short := _INNERMOST.sub("", short)):
            pass
    short = _NAMESPACE.sub("", _LAMBDA.sub("", _SPLIT_BRACKETS.sub(">", short)))
    wrapped = _WRAPPER.match(short)
    if wrapped:
        short = wrapped.group(1)
    yield short
    inner = _telling_argument(short)
    yield from (cut for cut in (_elide(short, 3), _elide(short, 2)) if inner in cut)
    yield f"{short.partition('<')[0]}<{inner}>" if inner else _elide(short, 1)


def _telling_argument(signature: str) -> str:
    """The first template argument that is no type of data and no mere wrapper; empty if there is none."""
    arguments = _IDENTIFIER.findall(signature.partition("<")[2])
    return next((one for one in arguments if not _TELLS_NOTHING.fullmatch(one)), "")


def _without_parameters(name: str) -> str:
    """Cut the parameter list off; a bracket after a space, as in `Memcpy HtoD (Pageable -> Device)`, is none."""
    depth = 0
    for index in range(len(name) - 1, 0, -1) if name.endswith(")") else ():
        depth += {")": 1, "(": -1}.get(name[index], 0)
        if depth == 0:
            return name if name[index - 1] == " " else name[:index]
    return name


def _elide(name: str, depth: int) -> str:
    """Write what stands in the `depth`-th and deeper pair of angle brackets as an ellipsis."""
    out: list[str] = []
    level = 0
    for index, letter in enumerate(name):
        opens = letter == "<" and index + 1 < len(name) and name[index + 1] not in "<= "
        closes = letter == ">" and index > 0 and name[index - 1] not in "- "
        if opens:
            level += 1
            if level == depth:
                out.append("<…>")
                continue
        elif closes and level:
            level -= 1
            if level == depth - 1:
                continue
        if level < depth:
            out.append(letter)
    return "".join(out)


def _without_middle(text: str, width: int) -> str:
    """The first and last words with an ellipsis between them; letters instead where words are too long."""
    if width <= 1:
        return "…"[:width]
    room, least = width - 1, (width - 1) // _LEAST_PART
    starts = [match.end() for match in _WORD_START.finditer(text)]
    tails = [size for at in starts if least <= (size := len(text) - at) <= room - least]
    heads = [_up_to(room - size, starts) for size in tails]
    whole = [pair for pair in zip(heads, tails, strict=True) if pair[0] >= least]
    # The end tells names of one beginning apart, so the first cut that fills the room has most of it.
    full = [pair for pair in whole if sum(pair) >= _FULL * room]
    head, tail = next(iter(full), max(whole, key=sum, default=(0, 0)))
    if not tail:
        tail = max(tails, default=room // 2)
        head = room - tail
    return f"{text[:head]}…{text[len(text) - tail :] if tail else ''}"


def _up_to(room: int, starts: list[int]) -> int:
    """The last of the places within so many letters."""
    return max((at for at in starts if at <= room), default=0)


_WORD_START: Final = re.compile(r"[\W_]+(?=[^\W_])|(?<=[a-z])(?=[A-Z][a-z])|(?<=[A-Z\d])(?=[A-Z][a-z])")
"""Where a word of a name begins: after a separator, or with a capital."""
_LEAST_PART: Final = 4
"""The beginning and the end of a name have at least this part of the room."""
_FULL: Final = 0.75


def _short_line(line: str, width: int) -> str:
    """The end of a line of Python code, `file.py(line): function`: from a folder on, from a word of the file's name, or the function."""
    *_, end = _PYTHON_LINE.finditer(line)
    for starts, lead in (("/", ""), (_WORD_START, "…")):
        for match in re.finditer(starts, line[: end.start()]):
            if len(line) - match.end() + len(lead) <= width:
                return f"{lead}{line[match.end() :]}"
    function = line[end.end() :]
    return function if len(function) <= width else _without_middle(function, width)


# -- categories -------------------------------------------------------------------------------------
#
# What a reader sees instead of the short names of categories that the tables keep.

_CATEGORIES: Final = {
    "gemm": "matrix multiplication",
    "copy": "copies and casts",
    "sort": "sorting",
    "fused": "fused kernels",
    "random": "random numbers",
    "rnn": "recurrent layers",
    "elementwise": "elementwise work",
    "embedding": "embedding and gather",
}


def category_name(category: str) -> str:
    """The name of a category of activities or of waiting.

    >>> category_name("gemm"), category_name("host_wait")
    ('matrix multiplication', 'host wait')
    """
    return _CATEGORIES.get(category, category.replace("_", " "))


# -- texts -------------------------------------------------------------------------------------------

HOME_FOLDER: Final = r"(?:/home|/Users|[A-Za-z]:[/\\]+(?i:users))[/\\]+[^/\\\s\"':]+"
"""The home folder of a user, wherever in a text it stands: a regular expression for Python and for Polars. In texts of JSON separators stand twice or behind a backslash."""

_QUANTITY: Final = re.compile(
    r"(?<=\d) (?=(?:%|ns|µs|ms|s|B|[kMGT]B|[kMGTP]?FLOP)(?![A-Za-z])|× )|(?<=\d ×) | (?=· )"
)
_HOME_RE: Final = re.compile(HOME_FOLDER)


def short_frame(frame: str) -> str:
    """A frame of Python code with the last folder of its path only, which is enough to recognise the file.

    >>> short_frame("/home/me/project/src/data/video.py(40): decode")
    'data/video.py(40): decode'
    """
    path, colon, function = frame.partition("): ")
    return "/".join(path.replace("\\", "/").split("/")[-2:]) + colon + function


def called_from(call: str | None, frame: str | None) -> str | None:
    """A call, and the frame of the user's code that led to it; None without both.

    >>> called_from("site-packages/lib/mask.py(4): expand", "/home/me/train.py(9): step")
    'lib/mask.py(4): expand, called from me/train.py(9): step'
    """
    if call is None or frame is None or call == frame:
        one = call or frame
        return None if one is None else short_frame(one)
    return f"{short_frame(call)}, called from {short_frame(frame)}"


def clean(text: str) -> str:
    r"""The text on one line, without control and direction characters, home folders written as `~`.

    >>> clean("a\x1b[31mb\n/home/someone/train.py")
    'a [31mb ~/train.py'
    """
    whole = text.encode("utf-8", "replace").decode("utf-8")  # file names may hold lone surrogates
    return _HOME_RE.sub("~", printable(whole))


def unbroken(text: str) -> str:
    r"""The text with a no-break space between each figure and its unit or what it counts, and before each `·`.

    >>> unbroken("busy 5.7 % of 300 ms")
    'busy 5.7\xa0% of 300\xa0ms'
    """
    return _QUANTITY.sub("\xa0", text)


def clean_frame(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with every text column cleaned, and every ratio or mean that is no finite number null."""
    return clean_frames([frame])[0]


def clean_frames(frames: Sequence[pl.DataFrame]) -> list[pl.DataFrame]:
    """The frames, cleaned as `clean_frame` does: all their texts at once, since they are few in each."""
    texts = [_as_text(column) for frame in frames for column in frame if column.dtype in _TEXTS]
    if texts and _any_unfit(whole := pl.concat(texts, rechunk=True)):
        whole = whole.to_frame("text").select(_CLEAN_TEXT).to_series()
        ends = np.cumsum([column.len() for column in texts]).tolist()
        texts = [whole[end - column.len() : end] for end, column in zip(ends, texts, strict=True)]
    done = []
    for frame in frames:
        made = [
            texts.pop(0).alias(column.name)
            if column.dtype in _TEXTS
            else _finite(column)
            if column.dtype.is_float()
            else column
            for column in frame
        ]
        done.append(pl.DataFrame(made) if made else frame)
    return done


def _as_text(column: pl.Series) -> pl.Series:
    return (column if column.dtype == pl.String else column.cast(pl.String)).alias("text")


def _any_unfit(texts: pl.Series) -> bool:
    """Whether a text is to be cleaned; of few texts Python finds out sooner than a query."""
    if texts.len() > _FEW_TEXTS:
        return bool(texts.str.contains(_UNFIT).any())
    # No pattern matches across a space between two texts. In what is printable only a home folder is unfit.
    whole = " ".join(filter(None, texts.to_list()))
    if whole.isprintable() and "/home" not in whole and "users" not in whole.lower():
        return False
    return _UNFIT_RE.search(whole) is not None


_FEW_TEXTS: Final = 1 << 10
_UNFIT: Final = f"{UNSAFE}|{HOME_FOLDER}"
_UNFIT_RE: Final = re.compile(_UNFIT)
_TEXTS: Final = (pl.String, pl.Categorical, pl.Enum)
_CLEAN_TEXT: Final = pl.col("text").str.replace_all(UNSAFE, " ").str.replace_all(HOME_FOLDER, "~")


def _finite(column: pl.Series) -> pl.Series:
    """The column, null where it is no finite number."""
    odd = ~np.isfinite(column.to_numpy())
    return column.set(pl.Series(odd), None) if int(odd.sum()) > column.null_count() else column
