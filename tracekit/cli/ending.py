"""The signals of a scheduler or a closing terminal: they end a command as Ctrl-C does, children included."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from tracekit.errors import TracekitError

__all__ = ["EndedBySignalError", "ended_by_signals"]

_NAMES: Final = ("SIGTERM", "SIGHUP")  # Windows has no SIGHUP
_AGAIN_SECONDS: Final = 0.05
_DEAF_SECONDS: Final = 15
"""How long further signals are left alone: a scheduler repeats them, and the children are being ended meanwhile."""


class EndedBySignalError(TracekitError):
    """A signal ended the command; the exit code is 128 and its number, as a shell has it.

    >>> str(EndedBySignalError(15)), EndedBySignalError(15).exit_code
    ('ended by SIGTERM', 143)
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number
        self.exit_code = 128 + number

    def leave_further_ones_alone(self) -> None:
        """Ignore the signal from now on, while the program ends.

        A scheduler repeats it, which would end the program with another code than the one it tells. Threads of a script
        that are still at work must still be ended by it.
        """
        if all(thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
            signal.signal(self.number, signal.SIG_IGN)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt in the block, and EndedBySignalError behind it.

    Python drops what is raised in a destructor, such as that of a DataLoader; an interrupt there is sent again.

    A signal that is being ignored, as SIGHUP below nohup, stays so. Outside of the main thread, which alone gets signals,
    nothing changes.
    """
    first: int | None = None
    replaced: dict[int, Any] = {}
    deaf_until = 0.0
    over = False
    report = sys.unraisablehook

    def interrupt(number: int, _frame: FrameType | None) -> None:
        nonlocal first, deaf_until
        if time.monotonic() < deaf_until:
            return
        first, deaf_until = number, time.monotonic() + _DEAF_SECONDS
        if hasattr(signal, "SIGCHLD") and callable(signal.getsignal(signal.SIGCHLD)):
            # torch raises an error for a loader that ends, and the same signal may have ended it. It would do so while
            # the program exits, too, so this stays.
            signal.signal(signal.SIGCHLD, lambda *_: None)
        raise KeyboardInterrupt

    def send_again() -> None:
        if not over:
            os.kill(os.getpid(), first or signal.SIGINT)

    def hear(dropped: Any) -> None:
        nonlocal deaf_until
        if dropped.exc_type is not KeyboardInterrupt:
            report(dropped)
            return
        deaf_until = 0.0
        threading.Timer(_AGAIN_SECONDS, send_again).start()

    names = _NAMES if threading.current_thread() is threading.main_thread() else ()
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    try:
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                replaced[number] = signal.signal(number, interrupt)
        if names:
            sys.unraisablehook = hear
        yield
    except (KeyboardInterrupt, Exception):
        if first is None:
            raise
        # Whatever went wrong then did so because of the signal: a loader that got it too, a rank that was ended.
        raise EndedBySignalError(first) from None
    finally:
        over = True
        if sys.unraisablehook is hear:
            sys.unraisablehook = report
        for number, handler in replaced.items():
            if (
                signal.getsignal(number) is interrupt
            ):  # not that of a script, whose threads may still be at work
                signal.signal(number, handler)
