"""The command line. `main.main` is the program; heavy modules are imported inside the commands."""

__all__: list[str] = []
