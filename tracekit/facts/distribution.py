"""The name under which the package index has tracekit, and its optional parts.

`tracekit` itself is the name of another project there; the package that is imported and the command have it all the same.
"""

from __future__ import annotations

from typing import Final

__all__ = ["DISTRIBUTION", "EXTRAS", "how_to_install"]

DISTRIBUTION: Final = "tracekit-torch"

EXTRAS: Final = {
    "capture": ("torch", "nvtx"),
    "hf": ("transformers", "scipy"),
    "remote": ("obstore",),
    "predict": ("scikit-learn", "scipy"),
}
"""The extras that add something to a command, and the packages that only they install."""


def how_to_install(extra: str) -> str:
    """The command that installs an extra.

    >>> how_to_install("capture")
    "pip install 'tracekit-torch[capture]'"
    """
    return f"pip install '{DISTRIBUTION}[{extra}]'"
