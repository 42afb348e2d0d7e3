"""The workers that read the ranks of a job: Dask's, or processes of this machine."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import tracekit
from tracekit.classes import dataclass
from tracekit.errors import MissingDependencyError, UsageError
from tracekit.facts.distribution import DISTRIBUTION, how_to_install

if TYPE_CHECKING:
    from concurrent.futures import Executor

__all__ = ["ENGINES", "NO_PROFILE", "Engine", "Workers"]

Engine = Literal["processes", "dask"]
ENGINES: Final[tuple[Engine, ...]] = ("processes", "dask")

NO_PROFILE: Final = {"distributed.worker.profile.enabled": False}
"""Dask's setting without its profile of every second, 0.3 MB of a worker's memory for each rank."""

_ANSWERS_IN_S: Final = 10
_JOINS_IN_S: Final = 60
_VERSION: Final = "__import__('tracekit').__version__"


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers that the flags choose."""

    engine: Engine | None = None
    scheduler: str | None = None
    jobs: int | None = None

    def __post_init__(self) -> None:
        if self.scheduler is not None and self.engine == "processes":
            raise UsageError("--scheduler is for --engine dask", remedy="leave one of them out")
        if self.scheduler is not None and self.jobs is not None:
            raise UsageError("--jobs does not change the workers of a scheduler", remedy="leave it out")

    @property
    def chosen(self) -> bool:
        """Whether a flag asks for workers."""
        return self != Workers()

    @property
    def dask(self) -> bool:
        """Whether they are Dask's."""
        return self.engine == "dask" or self.scheduler is not None

    @contextmanager
    def executor(self, ranks: int) -> Iterator[Executor | None]:
        """Dask's executor; None for processes. Raises UsageError if the scheduler does not answer, or its workers lack tracekit."""
        if not self.dask:
            yield None
            return
        try:
            distributed: Any = importlib.import_module("distributed")
        except ImportError as error:
            raise MissingDependencyError(
                "--engine dask needs Dask", remedy=how_to_install("distributed")
            ) from error
        import logging

        for name in [each for each in logging.root.manager.loggerDict if each.startswith("distributed")]:
            logging.getLogger(name).setLevel(logging.CRITICAL)  # every failure is one line
        warnings.filterwarnings("ignore", "Creating scratch directories")  # of a busy disk
        with _cluster(distributed, self.scheduler, min(self.jobs or _cores(), ranks)) as where:
            try:
                client = distributed.Client(**where, timeout=_ANSWERS_IN_S)
            except (OSError, ValueError) as error:
                raise UsageError(
                    f"no Dask scheduler answers at {self.scheduler}", remedy="start one with: dask scheduler"
                ) from error
            with client:
                _check_workers(client, distributed)
                yield client.get_executor(pure=False)


def _cores() -> int:
    from tracekit.job.engine import cores

    return cores()


@contextmanager
def _cluster(distributed: Any, scheduler: str | None, count: int) -> Iterator[dict[str, Any]]:
    """How to reach the scheduler: the one at this address or in this file, else that of a new cluster on this machine."""
    if scheduler is None:
        import logging

        from tracekit.files import roomy_place, scratch_folder
        from tracekit.job.engine import interrupts_later

        dask: Any = importlib.import_module("dask")
        with (
            scratch_folder(roomy_place()) as scratch,
            dask.config.set({**NO_PROFILE, "temporary_directory": scratch}),
        ):
            with interrupts_later():
                cluster = distributed.LocalCluster(
                    n_workers=count,
                    threads_per_worker=1,
                    dashboard_address=None,
                    silence_logs=logging.CRITICAL,
                    env={"POLARS_MAX_THREADS": "1", "TMPDIR": scratch},
                )
            with cluster:
                yield {"address": cluster}
        return
    if "://" not in scheduler and not Path(scheduler).is_file():
        raise UsageError(
            f"--scheduler {scheduler} is not a file", remedy="give tcp://HOST:PORT or the scheduler's file"
        )
    yield {"address": scheduler} if "://" in scheduler else {"scheduler_file": os.fspath(scheduler)}


def _check_workers(client: Any, distributed: Any) -> None:
    """Raise UsageError if no worker joins, or one lacks this version of tracekit: it would end when it gets its first trace."""
    try:
        client.wait_for_workers(1, timeout=_JOINS_IN_S)
    except (TimeoutError, distributed.TimeoutError):
        address = client.scheduler.address
        raise UsageError(
            f"the scheduler has no worker, and none joined in {_JOINS_IN_S} s",
            remedy=f"start one with: dask worker {address}",
        ) from None
    remedy = f"install {DISTRIBUTION}=={tracekit.__version__} where the workers run"
    for worker, version in client.run(eval, _VERSION, on_error="return").items():
        if isinstance(version, Exception):
            raise UsageError(f"the Dask worker {worker} cannot use tracekit ({version})", remedy=remedy)
        if version != tracekit.__version__:
            fault = f"the Dask worker {worker} has tracekit {version}, and this is {tracekit.__version__}"
            raise UsageError(fault, remedy=remedy)
