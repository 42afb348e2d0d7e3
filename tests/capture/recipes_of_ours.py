"""Workloads of a user's own, each named FILE.py:FUNCTION, for the tests: good ones and every kind of bad one."""

from __future__ import annotations

import atexit
import ctypes
import errno
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, get_worker_info

from tracekit.capture.recipe import Recipe
from tracekit.capture.workloads import WorkloadOptions

SIDE = 6


class Points(Dataset):
    def __len__(self) -> int:
        return 1_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        random = torch.Generator().manual_seed(index)
        return torch.randn(SIDE, generator=random), torch.randn(1, generator=random)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(SIDE, SIDE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.inner(x)) + x


def smooth(options: WorkloadOptions, **more: object) -> Recipe:
    """No dropout and no batch normalisation: a sample's gradient does not depend on the others in its batch."""
    more.setdefault("dataset", Points())
    return Recipe(
        model=nn.Sequential(Block(), Block(), nn.Linear(SIDE, 1)).to(options.device),
        forward=lambda model, batch: model(batch[0]),
        loss=lambda output, batch: functional.mse_loss(output, batch[1]),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        task="regression",
        batch=options.batch or 4,
        size=SIDE,
        synthetic=True,
        **more,
    )


def without_options() -> Recipe:
    return smooth(WorkloadOptions(torch.device("cpu")))


def leaves_its_parameters(options: WorkloadOptions) -> Recipe:
    """Rank 0 writes its parameters after each update to where an environment variable says."""

    def leave(model: nn.Module, updates: int) -> None:
        named = {name.removeprefix("module."): p.detach() for name, p in model.named_parameters()}
        # A shard is put together again by all ranks.
        state = {name: p.full_tensor() if hasattr(p, "full_tensor") else p for name, p in named.items()}
        if os.environ.get("RANK", "0") == "0":
            torch.save(state, f"{os.environ['TRACEKIT_TEST_PARAMETERS']}-{updates}.pt")

    return smooth(options, after_update=leave)


def raises_in_the_factory(options: WorkloadOptions) -> Recipe:
    raise ZeroDivisionError("in the factory")


def reads_a_missing_file(options: WorkloadOptions) -> Recipe:
    text = Path("/no/such/folder/of/mine.txt").read_text()
    return smooth(options, config={"text": text})


def exits(options: WorkloadOptions) -> Recipe:
    sys.exit(0)


class Missing(Points):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        raise LookupError("no such point")


def raises_in_its_data(options: WorkloadOptions) -> Recipe:
    return smooth(options, dataset=Missing())


class EndsItsLoader(Points):
    """In a process of a DataLoader, whichever comes to a sample behind the first few ends: by a signal, or a code."""

    def __init__(self, code: int) -> None:
        self.code = code

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index > 8 and get_worker_info() is not None:
            os.kill(os.getpid(), -self.code) if self.code < 0 else os._exit(self.code)
        return super().__getitem__(index)


def loses_a_killed_loader(options: WorkloadOptions) -> Recipe:
    return smooth(options, dataset=EndsItsLoader(-signal.SIGKILL))


def loses_a_crashed_loader(options: WorkloadOptions) -> Recipe:
    return smooth(options, dataset=EndsItsLoader(3))


def finds_the_disk_full(options: WorkloadOptions) -> Recipe:
    def fail(model: nn.Module, updates: int) -> None:
        if updates == 4 and os.environ.get("RANK", "1") == "1":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return smooth(options, after_update=fail)


def is_killed_by_a_signal(options: WorkloadOptions) -> Recipe:
    def die(model: nn.Module, updates: int) -> None:
        if updates == 4 and os.environ.get("RANK") == "1":
            os.kill(os.getpid(), int(os.environ["TRACEKIT_TEST_SIGNAL"]))

    return smooth(options, after_update=die)


def raises_in_a_step(options: WorkloadOptions) -> Recipe:
    return smooth(options, after_update=_fail_after(2))


def raises_while_profiled(options: WorkloadOptions) -> Recipe:
    """With one step and one warm-up, the updates 1 to 3 are the level M's."""
    return smooth(options, after_update=_fail_after(4))


def raises_on_the_second_rank(options: WorkloadOptions) -> Recipe:
    return smooth(options, after_update=_fail_after(4, rank="1"))


def is_killed_on_the_second_rank(options: WorkloadOptions) -> Recipe:
    def die(model: nn.Module, updates: int) -> None:
        if os.environ.get("RANK") == "1":
            os._exit(3)

    return smooth(options, after_update=die)


def aborts_when_python_ends(options: WorkloadOptions) -> Recipe:
    """Says that the functions for the end were called, and aborts where C++ destroys what is static."""
    libc = ctypes.CDLL(None)
    libc.__cxa_atexit(libc.abort, None, None)
    ended = Path(f"{os.environ['TRACEKIT_TEST_ENDED']}-{os.environ['RANK']}")
    atexit.register(ended.touch)
    return smooth(options)


def is_slow_while_profiled(options: WorkloadOptions) -> Recipe:
    """Says that it is there, and waits to be interrupted."""

    def wait(model: nn.Module, updates: int) -> None:
        if updates >= 4:
            Path(os.environ["TRACEKIT_TEST_READY"]).touch()
            for _ in range(600):  # a signal just before one long sleep would be handled behind it
                time.sleep(0.05)

    return smooth(options, after_update=wait)


def _fail_after(last: int, rank: str | None = None):
    def fail(model: nn.Module, updates: int) -> None:
        if updates == last and rank in (None, os.environ.get("RANK")):
            raise ValueError('step "four" is\none too many')

    return fail
