"""The native decoder of events, and passes over nested spans, where they were built: C extensions without which tracekit reads the same, but more slowly."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import Final

__all__ = ["SWITCH", "decoder", "nesting"]

SWITCH: Final = "TRACEKIT_NATIVE"
"""The environment variable that turns them off: 0."""

decoder: ModuleType | None = None
"""See `decoder.pyi`; None where it was not built, and where it is turned off."""
nesting: ModuleType | None = None
"""See `nesting.pyi`; likewise."""

if os.environ.get(SWITCH) != "0":
    with suppress(ImportError):  # there was no compiler
        decoder = import_module(f"{__name__}.decoder")
    with suppress(ImportError):
        nesting = import_module(f"{__name__}.nesting")
