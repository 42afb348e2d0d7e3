"""Where the installed program starts: small, so that Ctrl-C is met from the first moment on."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the program and exit."""
    try:
        from tracekit.cli.main import main as run

        run()
    except KeyboardInterrupt:  # while the program was still being imported
        sys.stderr.write("tracekit: error: interrupted\n")
        sys.exit(130)
