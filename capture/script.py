"""Running a script as Python itself would, while a few of its steps are recorded. It imports torch only when called."""

from __future__ import annotations

import difflib
import importlib.util
import os
import runpy
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from tracekit.capture.output import new_folder
from tracekit.capture.plan import check_numbers
from tracekit.capture.processes import leave
from tracekit.capture.run import prepare_torch
from tracekit.capture.tracebacks import own_frames
from tracekit.errors import UsageError
from tracekit.manifest import CaptureOptions

__all__ = ["run_script"]


def run_script(
    script: str,
    arguments: Sequence[str],
    out: Path,
    *,
    options: CaptureOptions,
    tell: Callable[[str], None],
    is_module: bool = False,
    stop: bool = False,
) -> int:
    """Run a script, or a module by its name, to its end as `__main__`, and write what was recorded of it into `out`.

    Returns the exit code of the script. Its traceback, if it ends by an exception, is printed as Python prints it. With
    `stop` it ends after the recorded steps. The state of Python stays the script's: its arguments, path and `__main__`.
    On a rank of several (RANK, WORLD_SIZE), `out` gets a folder for each.

    Raises `UsageError` if there is no such script, an option is out of range, `out` cannot be written to or nothing was
    recorded of a script that succeeded; `MissingDependencyError` without torch; `KeyboardInterrupt` after a Ctrl-C.
    """
    check_numbers(options)
    start = _module(script) if is_module else _file(script)
    prepare_torch()
    from tracekit.capture.watch import Watch  # noqa: PLC0415 - the import that brings torch

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        out /= f"rank{os.environ.get('RANK', '0')}"
    code, nothing, home = 0, None, os.getpid()
    try:
        with new_folder(out) as folder:
            watch = Watch(folder, options, script if is_module else Path(script).name, tell, stop=stop)
            sys.argv = [script, *arguments]
            with watch:
                code = _exit_code(start)
            if os.getpid() != home:
                leave(
                    code
                )  # a process that the script forked: at its very end it would wait for the profiler's threads
            if watch.manifest is None:
                nothing = watch.failure or watch.why_nothing(failed=bool(code))
                raise nothing
    except Exception as error:
        if error is not nothing or not code:
            raise
        tell(str(error))  # the script's own failure is the one to mend
    return code


def _exit_code(start: Callable[[], object]) -> int:
    """Run the code; return its exit code, after it has printed what Python prints of its end."""
    try:
        with _exits_later():
            start()
    except SystemExit as leave:
        if leave.code is None or isinstance(leave.code, int):
            return leave.code or 0
        sys.stderr.write(f"{leave.code}\n")
        return 1
    except BaseException as error:
        error.__traceback__ = own_frames(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        if isinstance(error, KeyboardInterrupt):
            raise
        return 1
    return 0


@contextmanager
def _exits_later() -> Iterator[None]:
    """In the block `os._exit` of this process's main thread ends the code as `sys.exit` does, so that what was recorded is written."""
    home, at_once = os.getpid(), os._exit

    def leave_later(status: int) -> NoReturn:
        if os.getpid() == home and threading.current_thread() is threading.main_thread():
            raise SystemExit(status)
        at_once(status)

    os._exit = leave_later
    try:
        yield
    finally:
        os._exit = at_once


def _file(script: str) -> Callable[[], object]:
    path = Path(script)
    if not path.is_file():
        if Path(script).name.startswith("python"):
            raise UsageError(f"{script} is not a script", remedy="leave it out: tracekit run SCRIPT.py")
        close = difflib.get_close_matches(path.name, (each.name for each in path.parent.glob("*.py")), n=1)
        remedy = f"did you mean {path.parent / close[0]}?" if close else "name a Python script that exists"
        raise UsageError("there is no such script", path=path, remedy=remedy)
    whole = os.path.abspath(path)  # noqa: PTH100 - as Python does it, without following links

    def start() -> None:
        main = ModuleType("__main__")
        main.__file__ = whole
        main.__dict__["__builtins__"] = __builtins__
        sys.modules["__main__"] = main
        sys.path.insert(0, str(path.resolve().parent))
        # Not with the flags of this file, such as its __future__ imports.
        exec(compile(path.read_bytes(), whole, "exec", dont_inherit=True), main.__dict__)  # noqa: S102

    return start


def _module(name: str) -> Callable[[], object]:
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise UsageError(f"there is no module {name!r}", remedy="name one that python -m would run")
    return lambda: runpy.run_module(name, run_name="__main__", alter_sys=True)
