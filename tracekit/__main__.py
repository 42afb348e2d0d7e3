"""`python -m tracekit`."""

from tracekit.cli.entry import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
