"""Errors of a training step, turned into errors that name their source and the remedy."""

from __future__ import annotations

import errno
import re
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch

from tracekit.capture import workloads
from tracekit.capture.plan import Plan
from tracekit.capture.tracebacks import own_part, own_text
from tracekit.errors import OutOfMemoryError, TracekitError, UsageError, WorkloadError

__all__ = ["lacks_memory", "own_errors"]

_LONGEST_TEXT: Final = 200
_NO_MEMORY: Final = ("not enough memory", "can't allocate memory", "out of memory")
_NO_SHARED_MEMORY: Final = (
    "unable to allocate shared memory",
    "unable to write to file </torch_",
    "out of shared memory",
)
_LOADER_ENDED: Final = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) "
    r"(?:is killed by signal: (?P<signal>[^.]+)|exited unexpectedly(?: with exit code (?P<code>\d+))?)"
)

_RECEIVING: Final = frozenset({"reductions.py", "resource_sharer.py", "connection.py", "queues.py"})
_HEARD_SECONDS: Final = 1


@contextmanager
def own_errors(plan: Plan) -> Iterator[None]:
    """Turn errors of the block into errors that name their source.

    Raises OutOfMemoryError if a step does not fit into memory; UsageError if the disk or the shared memory is full;
    TracekitError if a loader process ended; WorkloadError for any other error in code that is not tracekit's.
    """
    try:
        yield
    except (TracekitError, KeyboardInterrupt):
        raise
    except (Exception, SystemExit) as error:  # a script that exits would end the capture without a message
        plain = _of_machine(error, plan)
        if plain is not None:
            raise plain from error
        if workloads.is_built_in(plan.workload):
            raise
        base, in_file, _ = plan.workload.partition(".py:")
        own = own_part(error, Path(f"{base}.py") if in_file else None)
        raise WorkloadError(
            f"{plan.workload} raised {own_text(error)[:_LONGEST_TEXT]}", traceback=own
        ) from error


def lacks_memory(error: BaseException) -> bool:
    """True if there was not enough memory, on the device or the host."""
    text = str(error)
    return isinstance(error, torch.cuda.OutOfMemoryError | MemoryError) or any(
        words in text for words in _NO_MEMORY
    )


def _of_machine(error: BaseException, plan: Plan) -> TracekitError | None:
    """The error as one line, if the machine and not the code causes it."""
    text = str(error)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return UsageError("the disk is full", remedy="make room, or write elsewhere")
    if any(words in text for words in _NO_SHARED_MEMORY):
        return UsageError(
            "the loader processes have no shared memory left (/dev/shm)",
            remedy="lower --batch or --workers, or enlarge it",
        )
    if lacks_memory(error):
        return OutOfMemoryError(
            f"a step of {plan.workload} does not fit the memory of {plan.settings.device}",
            remedy="lower --batch or --size, or add --checkpoint-activations",
        )
    if plan.settings.workers and isinstance(error, OSError | EOFError) and _while_receiving(error):
        return _of_lost_loader()
    return _of_loader([end for text in _texts(error) if (end := _LOADER_ENDED.search(text))])


def _while_receiving(error: BaseException) -> bool:
    """True if it arose while a batch was taken from a loader process, which has then ended."""
    files = (Path(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(file.name in _RECEIVING and file.parent.name == "multiprocessing" for file in files)


def _of_lost_loader() -> TracekitError | None:
    """Torch raises an error about a loader's end when it learns of it, a moment later."""
    try:
        time.sleep(_HEARD_SECONDS)
    except RuntimeError as error:
        end = _LOADER_ENDED.search(str(error))
        if end is not None:
            return _of_loader([end])
    return TracekitError("a loader process ended", remedy="--workers 0 shows where")


def _texts(error: BaseException | None) -> Iterator[str]:
    """The error and its causes: a loader's end is reported twice, and only the first report says how it ended."""
    while error is not None:
        yield str(error)
        error = error.__cause__ or error.__context__


def _of_loader(ends: Sequence[re.Match[str]]) -> TracekitError | None:
    if not ends:
        return None
    end = next((each for each in ends if each["signal"] or each["code"]), ends[0])
    if end["signal"] == "Killed":
        return OutOfMemoryError(
            "the system killed a loader process, as it does when memory runs out",
            remedy="lower --workers, --batch or --size",
        )
    how = f"crashed ({end['signal']})" if end["signal"] else "ended"
    if end["code"]:
        how = f"ended with exit code {end['code']}"
    return TracekitError(f"a loader process {how}", remedy="--workers 0 shows where")
