"""Completion in bash, which takes a colon for a word of its own: `yolov5:s` arrives as three words."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

__all__ = ["whole_words"]


@contextmanager
def whole_words() -> Iterator[None]:
    """In the block bash's words are as they were typed; of its answers bash gets what stands behind the last colon typed."""
    if os.environ.get("_TRACEKIT_COMPLETE") != "complete_bash":
        yield
        return
    words: list[str] = []
    own = ""
    for word in os.environ.get("COMP_WORDS", "").split("\n")[: int(os.environ.get("COMP_CWORD", "0")) + 1]:
        if words and (word.strip(":") == "" != word or words[-1].endswith(":")):
            words[-1] += word
            own = words[-1].rpartition(":")[0] + ":"
        else:
            words.append(word)
            own = ""
    os.environ |= {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    answers = io.StringIO()
    try:
        with redirect_stdout(answers):
            yield
    finally:
        sys.stdout.write(answers.getvalue().replace(f"\n{own}", "\n").removeprefix(own))
        sys.stdout.flush()
