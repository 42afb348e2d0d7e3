"""The program of one rank of a capture, in its own process."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

import msgspec
import torch
import torch.distributed as dist

from tracekit.capture.plan import Plan
from tracekit.capture.processes import leave
from tracekit.capture.ranks import Failure, error_file
from tracekit.capture.recorder import record
from tracekit.errors import TracekitError, UsageError, WorkloadError
from tracekit.manifest import Manifest

__all__ = ["main"]

_LONGEST_TEXT: Final = 200
_INTERRUPTED: Final = 130
_ENDING: Final = (signal.SIGINT, signal.SIGTERM)


def main(arguments: Sequence[str]) -> None:
    """Record one rank: `arguments` are the plan as JSON, the capture's folder, the scratch folder and the rank.

    Writes `rankN.json`, the manifest with this rank's runs, or `errorN.json`, a `Failure`, into the scratch folder.
    """
    plan = msgspec.json.decode(arguments[0], type=Plan)
    folder, scratch, rank = Path(arguments[1]), Path(arguments[2]), int(arguments[3])
    for kind in _ENDING:
        signal.signal(kind, _interrupt)
    try:
        _join(plan, rank)
        manifest = record(plan, folder, _teller(scratch, rank), rank=rank, keep=_keeper(scratch, rank))
        _keeper(scratch, rank)(manifest)
    except TracekitError as error:
        own_part = error.traceback if isinstance(error, WorkloadError) else ""
        _fail(scratch, rank, Failure(type(error).__name__, str(error), _traceback(error.__cause__), own_part))
    except Exception as error:  # noqa: BLE001 - the parent raises it again, as it cannot see it otherwise
        text = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_TEXT]
        _fail(scratch, rank, Failure("TracekitError", text, _traceback(error)))
    dist.destroy_process_group()
    leave(0)  # while C++ ends, a thread of gloo that frees a tensor sometimes aborts the process


def _join(plan: Plan, rank: int) -> None:
    """Join the process group of the ranks."""
    on_gpu = plan.settings.device == "cuda"
    if on_gpu:
        if torch.cuda.device_count() < plan.settings.ranks:
            raise UsageError(f"{plan.settings.ranks} ranks need as many GPUs", remedy="lower --ranks")
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if on_gpu else "gloo")


def _keeper(scratch: Path, rank: int) -> Callable[[Manifest], None]:
    def keep(manifest: Manifest) -> None:
        temporary = scratch / f".rank{rank}.json"
        temporary.write_bytes(manifest.to_json())
        temporary.replace(scratch / f"rank{rank}.json")

    return keep


def _teller(scratch: Path, rank: int) -> Callable[[str], None]:
    def tell(line: str) -> None:
        if rank == 0:
            with (scratch / "progress").open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")

    return tell


def _fail(scratch: Path, rank: int, failure: Failure) -> NoReturn:
    temporary = scratch / f".error{rank}.json"
    temporary.write_bytes(msgspec.json.encode(failure))
    temporary.replace(error_file(scratch, rank))
    _leave(1)


def _leave(code: int) -> NoReturn:
    """Exit at once. Finished levels are written; leaving the process group would wait for ranks that hang."""
    sys.stderr.flush()
    os._exit(code)


def _traceback(error: BaseException | None) -> str:
    return "" if error is None else "".join(traceback.format_exception(error))


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    """Stop at once: finished levels are kept, and an exception could arise inside torch, which would print it."""
    _leave(_INTERRUPTED)
