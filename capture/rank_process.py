"""What one rank of a capture runs, in a process of its own."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

import msgspec
import torch
import torch.distributed as dist

from tracekit.capture.plan import Plan
from tracekit.capture.recorder import record
from tracekit.errors import OutOfMemoryError, TracekitError
from tracekit.manifest import Manifest

__all__ = ["main"]


def main(arguments: Sequence[str]) -> None:
    """Record one rank: `arguments` are the plan as JSON, the capture's folder, the scratch folder and the rank.

    Leaves `rankN.json`, the manifest with this rank's runs, or one line in `memoryN`, when a step does not fit the
    memory, or in `errorN`, in the scratch folder.
    """
    plan = msgspec.json.decode(arguments[0], type=Plan)
    folder, scratch, rank = Path(arguments[1]), Path(arguments[2]), int(arguments[3])
    signal.signal(signal.SIGTERM, _interrupt)
    if plan.settings.device == "cuda":
        if torch.cuda.device_count() < plan.settings.ranks:
            _fail(scratch, rank, f"{plan.settings.ranks} ranks need as many GPUs; lower --ranks")
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if plan.settings.device == "cuda" else "gloo")
    try:
        manifest = record(plan, folder, _teller(scratch, rank), rank=rank, keep=_keeper(scratch, rank))
        _keeper(scratch, rank)(manifest)
    except OutOfMemoryError as error:
        _fail(scratch, rank, str(error), kind="memory")
    except TracekitError as error:
        _fail(scratch, rank, str(error))
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        dist.destroy_process_group()


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


def _fail(scratch: Path, rank: int, text: str, *, kind: str = "error") -> None:
    (scratch / f"{kind}{rank}").write_text(text, "utf-8")
    sys.exit(1)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
