"""What a scheduler or a closing terminal sends before it kills: it ends a command as Ctrl-C does, children included."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from tracekit.errors import TracekitError

__all__ = ["EndedBySignalError", "ended_by_signals"]

_NAMES: Final = ("SIGTERM", "SIGHUP")  # Windows has no SIGHUP
_DEAF_SECONDS: Final = 15
"""How long further signals are left alone: a scheduler repeats them, and the children are being ended meanwhile."""


class EndedBySignalError(TracekitError):
    """A signal ended the command; the exit code is 128 and its number, as a shell has it.

    >>> str(EndedBySignalError(15)), EndedBySignalError(15).exit_code
    ('ended by SIGTERM', 143)
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.exit_code = 128 + number


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt in the block, and EndedBySignalError behind it.

    A signal that is being ignored, as SIGHUP below nohup, stays so.
    """
    first: int | None = None
    deaf_until = 0.0

    def interrupt(number: int, _frame: FrameType | None) -> None:
        nonlocal first, deaf_until
        if time.monotonic() < deaf_until:
            return
        first, deaf_until = number, time.monotonic() + _DEAF_SECONDS
        raise KeyboardInterrupt

    numbers = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    heard = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    try:
        for number in heard:
            signal.signal(number, interrupt)
        yield
    except KeyboardInterrupt:
        if first is None:
            raise
        raise EndedBySignalError(first) from None
    finally:
        for number in heard:
            signal.signal(number, before[number])
