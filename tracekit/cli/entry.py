"""Where the installed program starts: small, so that Ctrl-C is met from the first moment on."""

from __future__ import annotations

import gc
import sys
from typing import Final

__all__ = ["main"]

_COLLECTED_AFTER: Final = 200_000
"""New objects between two searches for garbage. Of what is imported nothing becomes garbage, and the default of 700 searches it
150 times."""


def main() -> None:
    """Run the program and exit."""
    gc.set_threshold(_COLLECTED_AFTER)
    try:
        from tracekit.cli.main import main as run

        run()
    except KeyboardInterrupt:  # while the program was still being imported
        sys.stderr.write("tracekit: error: interrupted\n")
        sys.exit(130)
    finally:
        import signal  # at the top it would be a moment in which Ctrl-C is not met

        # Python itself has yet to end, and would answer a Ctrl-C with a traceback. A handler of a script's own stays.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        gc.freeze()  # else Python searches all that is left several times as it exits, 0.1 s in all
