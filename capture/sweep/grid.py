"""The runs of a sweep: every combination of a few settings, each as a `Plan` with a key. It imports no torch."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import msgspec

from tracekit.capture.plan import Plan
from tracekit.errors import UsageError
from tracekit.manifest import CaptureOptions, Level, Precision, Settings

__all__ = ["Grid", "folder_of", "label_of", "run_key", "series_key"]

_KEY: Final = 16
_SHORT_KEY: Final = 8
_LONGEST_NAME: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The values of each setting that a sweep combines. A setting without values takes that of `settings`.

    `workloads` are named as in `tracekit.capture.run.run`, the others as in `tracekit.manifest.Settings`, and None
    means that the workload, or torch, chooses. Runs come in the order of the fields, the last one changing fastest,
    and batches from small to large. So runs that differ in the seed alone are apart in time.
    """

    workloads: Sequence[str]
    seed: Sequence[int] = ()
    size: Sequence[int | None] = ()
    precision: Sequence[Precision] = ()
    compile: Sequence[bool] = ()
    channels_last: Sequence[bool] = ()
    checkpoint_activations: Sequence[bool] = ()
    accumulate: Sequence[int] = ()
    workers: Sequence[int] = ()
    threads: Sequence[int | None] = ()
    batch: Sequence[int | None] = ()

    def plans(
        self, *, settings: Settings, options: CaptureOptions, levels: tuple[Level, ...], data: Path | None
    ) -> list[Plan]:
        """One plan for each distinct combination; `settings` give the values that the grid does not vary.

        Raises UsageError if there is no workload or a number is out of range.
        """
        if not self.workloads:
            raise UsageError("the sweep has no workload", remedy="name at least one")
        names = [field.name for field in fields(self)][1:]
        lists: list[Sequence[Any]] = [getattr(self, name) or (getattr(settings, name),) for name in names]
        # The workload's own batch comes first, because its size is not known.
        lists[-1] = sorted(lists[-1], key=lambda batch: batch or 0)
        plans: dict[str, Plan] = {}
        for workload, *values in itertools.product(self.workloads, *lists):
            plan = Plan(
                workload=workload,
                settings=msgspec.structs.replace(settings, **dict(zip(names, values, strict=True))),
                options=options,
                levels=levels,
                data=None if data is None else os.path.abspath(data),  # noqa: PTH100 - links stay what they are called
            )
            plan.check()
            plans.setdefault(run_key(plan), plan)
        return list(plans.values())


def run_key(plan: Plan) -> str:
    """A hash of the whole plan, 16 hexadecimal digits. The path of the data counts, its content does not.

    >>> run_key(Plan(workload="cnn")) == run_key(Plan(workload="cnn", settings=Settings()))
    True
    """
    return hashlib.sha256(msgspec.json.encode(plan, order="sorted")).hexdigest()[:_KEY]


def series_key(plan: Plan) -> str:
    """The key of all runs that differ from this one only in the batch and the seed."""
    anonymous = msgspec.structs.replace(plan.settings, batch=None, seed=0)
    return run_key(msgspec.structs.replace(plan, settings=anonymous))


def folder_of(plan: Plan) -> str:
    """The name of the run's folder: the name of the workload and a short key.

    >>> folder_of(Plan(workload="yolov5:s")).startswith("yolov5-s-")
    True
    """
    name = Path(plan.workload).name if ".py:" in plan.workload else plan.workload
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:_LONGEST_NAME] or "run"
    return f"{plain}-{run_key(plan)[:_SHORT_KEY]}"


def label_of(plan: Plan, grid: Grid) -> str:
    """The workload, the batch, and the other settings that the grid varies, for a line of progress.

    >>> label_of(Plan(workload="cnn", settings=Settings(batch=8, threads=2)), Grid(workloads=["cnn"], threads=[1, 2]))
    'cnn threads 2 batch 8'
    """
    words = [plan.workload]
    for field in fields(grid)[1:]:
        value = getattr(plan.settings, field.name)
        varied = len(set(getattr(grid, field.name))) > 1
        if not varied and (field.name != "batch" or value is None):
            continue
        name = field.name.replace("_", " ")
        if isinstance(value, bool):
            words += [name] if value else []
        else:
            words.append(f"{name} {'default' if value is None else value}")
    return " ".join(words)
