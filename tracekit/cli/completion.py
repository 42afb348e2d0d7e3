"""What a shell offers behind the words that were typed."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

__all__ = ["analyses", "baselines", "columns", "devices", "stats_reports", "tables", "whole_words"]


def tables(ctx: Any) -> list[str]:
    """The tables of the analysis whose command it is."""
    return list(_views(ctx))


def columns(ctx: Any) -> list[str]:
    """The columns of these tables, of the one that `--table` names if it is given."""
    views = _views(ctx)
    chosen = views.get(ctx.params.get("table"))
    shown = views.values() if chosen is None else [chosen]
    return list(dict.fromkeys(name for view in shown for name in view.columns.split()))


def _views(ctx: Any) -> dict[str, Any]:
    from tracekit.analyses.registry import BUILT_IN, ON_REQUEST

    return {
        name: view
        for one in (*BUILT_IN, *ON_REQUEST)
        if one.name == ctx.info_name
        for name, view in one.tables().items()
    }


def analyses() -> list[str]:
    """The analyses of installed packages."""
    from tracekit.analyses import registry

    return [one.name for one in registry.analyses() if one not in registry.BUILT_IN]


def devices() -> list[str]:
    """The devices of the catalogue, each as one word."""
    from tracekit.facts import device_peaks

    names = [one.name for one in device_peaks.devices() if one.dram_gbps is not None]
    return [re.sub(r"^(Tesla|Instinct|Quadro|GeForce) | \(.*", "", name).replace(" ", "-") for name in names]


def stats_reports() -> list[str]:
    """The reports and rules of `nsys-stats`, and the words for several."""
    from tracekit.analyses.nsys_stats.catalogue import CATALOGUE

    return ["all", "rules", *CATALOGUE]


def baselines() -> list[str]:
    """The names of the saved baselines."""
    from tracekit.diff.baselines import names

    return names()


@contextmanager
def whole_words() -> Iterator[None]:
    """In the block bash's words are as they were typed; of its answers bash gets what stands behind the last colon typed.

    bash takes a colon for a word of its own: `yolov5:s` arrives as three words.
    """
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
