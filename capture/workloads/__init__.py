"""The registry of workloads. It imports no torch: a workload's module is imported when it is needed.

A workload is named `NAME` or `NAME:VARIANT`. A package of your own adds one through the entry-point group
`tracekit.workloads`; the entry is a `WorkloadFactory`. A file of your own is named `FILE.py:FUNCTION`, and the function
is the factory. The workloads that come with tracekit cannot be replaced.
"""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tracekit.capture.entries import of_published
from tracekit.capture.marks.names import PhaseRange
from tracekit.errors import UsageError
from tracekit.manifest import Setting

if TYPE_CHECKING:
    import torch
    from torch import nn

    from tracekit.capture.recipe import Recipe

__all__ = [
    "ENTRY_POINT_GROUP",
    "SHORT_NAMES",
    "InFile",
    "Loadable",
    "Workload",
    "WorkloadFactory",
    "WorkloadOptions",
    "built_in",
    "find",
    "is_built_in",
    "names",
]

ENTRY_POINT_GROUP = "tracekit.workloads"
_BUILT_IN = {
    name: EntryPoint(name=name, value=f"tracekit.capture.workloads.{name}:build", group=ENTRY_POINT_GROUP)
    for name in [
        "yolov5",
        "bert",
        "dlrm",
        "resnet50",
        "ssd300",
        "transformer",
        "deepspeech2",
        "gpt2",
        "llama",
        "vit",
        "lstm_translation",
        "hf",
        "cnn",
        "encoder",
    ]
}
SHORT_NAMES = {
    **{f"yolov5{variant}": f"yolov5:{variant}" for variant in "nsmlx"},
    **{f"resnet{depth}": f"resnet50:{depth}" for depth in (18, 34, 101, 152)},
    **{f"bert-{variant}": f"bert:{variant}" for variant in ("base", "large", "tiny")},
    "resnet": "resnet50",
    "lstm": "lstm_translation",
}
"""Short names of a workload with a variant."""


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """The user's choices; with None, or an empty variant, the workload chooses.

    `tiny` requests a model that takes a step in well under a second on one core. `data` is a file or folder of real
    data. `max_rows` caps the rows of each embedding table.
    """

    device: torch.device
    batch: int | None = None
    size: int | None = None
    seed: int = 0
    variant: str = ""
    tiny: bool = False
    data: Path | None = None
    max_rows: int | None = None


class Workload(Protocol):
    """A model in training. `config` holds its settings, for the manifest."""

    @property
    def model(self) -> nn.Module:
        """The model whose modules are marked as layers."""

    @property
    def config(self) -> Mapping[str, Setting]:
        """The settings that shape the run, such as the batch size."""

    def batches(self) -> Iterator[Any]:
        """Batches on the host, in an endless loop."""

    def step(self, batch: Any, phase: PhaseRange) -> torch.Tensor:
        """Train on one batch, each phase within `with phase(name):`; return the loss, detached."""


class WorkloadFactory(Protocol):
    """The function of a registry entry."""

    def __call__(self, options: WorkloadOptions) -> Workload | Recipe:
        """Build the workload on `options.device`, with torch's random state already seeded."""


class Loadable(Protocol):
    """A workload that is not imported yet."""

    def load(self) -> WorkloadFactory:
        """Import it."""


@dataclass(frozen=True, slots=True)
class InFile:
    """A function in the user's own file; a function that needs no arguments is a factory as well, or trains by itself."""

    path: Path
    function: str

    def load(self) -> WorkloadFactory:
        """Import the file. Raises `UsageError` if it has no such function."""
        spec = importlib.util.spec_from_file_location(f"tracekit_user_{self.path.stem}", self.path)
        if spec is None or spec.loader is None:
            raise UsageError("it is not a Python file", path=self.path, remedy="name it FILE.py:FUNCTION")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # the processes of a DataLoader must be able to import its classes
        sys.path.insert(0, str(self.path.parent.resolve()))  # as if the file were run as a script
        spec.loader.exec_module(module)
        function: Callable[..., Any] | None = getattr(module, self.function, None)
        if not callable(function):
            own = [name for name, value in vars(module).items() if inspect.isfunction(value)]
            close = difflib.get_close_matches(self.function, own, n=1)
            remedy = f"did you mean {self.path}:{close[0]}?" if close else ""
            raise UsageError(f"it has no function {self.function}", path=self.path, remedy=remedy)
        factory = function
        return factory if _takes_options(factory) else lambda _options: factory()


def _takes_options(function: Callable[..., Any]) -> bool:
    """True if it needs an argument, or has one of that name: `train(epochs=3)` is to be called as it is."""
    parameters = inspect.signature(function).parameters.values()
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return any(
        each.name == "options" or (each.default is each.empty and each.kind not in optional)
        for each in parameters
    )


def names() -> list[str]:
    """Return the names of all workloads, sorted, without their variants."""
    return sorted({*_BUILT_IN, *(entry.name for entry in entry_points(group=ENTRY_POINT_GROUP))})


def built_in() -> list[str]:
    """Return the names of the workloads that come with tracekit, in the order in which they are listed."""
    return list(_BUILT_IN)


def is_built_in(name: str) -> bool:
    """True if tracekit provides this workload."""
    return SHORT_NAMES.get(name, name).partition(":")[0] in _BUILT_IN


def find(name: str) -> tuple[Loadable, str]:
    """Return the workload `name` (or a short name such as `yolov5s`), whose `load()` imports it and returns a `WorkloadFactory`, and its variant.

    Raises `UsageError`, with similar names or all names, if there is no such workload.
    """
    base, _, variant = SHORT_NAMES.get(name, name).partition(":")
    if base.endswith(".py"):
        path = Path(base)
        if not path.is_file():
            raise UsageError("there is no such file", path=path, remedy="name a workload as FILE.py:FUNCTION")
        if not variant.isidentifier():
            raise UsageError(
                "no function is named",
                path=path,
                remedy=f"name it as FILE.py:FUNCTION, or record the script: tracekit run {shlex.quote(base)}",
            )
        return InFile(path, variant), ""
    if base in _BUILT_IN:
        return _BUILT_IN[base], variant
    for entry in entry_points(group=ENTRY_POINT_GROUP, name=base):
        return entry, variant
    close = difflib.get_close_matches(base.lower(), [*names(), *SHORT_NAMES], n=3)
    published = of_published(name)
    close += [] if published is None else [published]
    remedy = (
        f"did you mean {' or '.join(close)}? For" if close else f"choose one of: {', '.join(names())}; for"
    )
    remedy += " a model of your own, name FILE.py:FUNCTION"
    raise UsageError(f"unknown workload {name!r}", remedy=remedy)
