"""`manifest.json`: what was run to get the traces beside it; it names no host, user or absolute path.

`tracekit.capture` writes it while it records, and a report on the folder reads it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

import msgspec

from tracekit.errors import UnreadableTraceError, reason_of
from tracekit.facts.capture_names import MANIFEST_FILE
from tracekit.files import read_small

__all__ = [
    "LEVELS",
    "MANIFEST_FILE",
    "MANIFEST_VERSION",
    "PRECISIONS",
    "CaptureOptions",
    "Level",
    "Manifest",
    "Parallel",
    "Precision",
    "Run",
    "Setting",
    "Settings",
    "is_manifest",
    "manifest_beside",
    "read_manifest",
    "traces_in",
    "usable_manifest_beside",
]

MANIFEST_VERSION: Final = 2
_LARGEST: Final = 32 << 20
"""1,000 ranks of 1,000 steps take 12 MB."""
_LONGEST: Final = 4096
Text = Annotated[str, msgspec.Meta(max_length=_LONGEST)]
Setting = int | float | Text | bool
Amount = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
Time = Annotated[int, msgspec.Meta(ge=1, lt=2**62)]
"""What no run can have had makes a file that is no manifest."""

Level = Literal["M", "ML", "MLG", "metrics"]
LEVELS: Final[tuple[Level, ...]] = get_args(Level)
"""M: steps only, no profiler. ML: also phases and layers, by the host's clock. MLG: the profiler, with kernels.
metrics: FLOPs are counted, and hardware counters where there are some; its times mean nothing."""

Precision = Literal["fp32", "tf32", "bf16", "fp16"]
PRECISIONS: Final[tuple[Precision, ...]] = get_args(Precision)
Parallel = Literal["ddp", "fsdp"]


class CaptureOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the profiler was set; `steps` were recorded after `wait` + `warmup` unrecorded ones."""

    steps: int = 3
    warmup: int = 1
    wait: int = 0
    record_shapes: bool = True
    profile_memory: bool = True
    with_stack: bool = False


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a training ran. None leaves the choice to the workload, or to torch."""

    device: Text = "cpu"
    batch: int | None = None  # samples
    size: int | None = None  # what one sample measures, in the workload's own unit
    precision: Precision = "fp32"
    compile: bool = False
    channels_last: bool = False
    workers: int = 0
    pin_memory: bool | None = None
    accumulate: int = 1  # batches that make one step
    checkpoint_activations: bool = False
    tiny: bool = False
    max_rows: int | None = None  # the most rows of each embedding table
    threads: int | None = None  # torch's own on a CPU
    ranks: int = 1
    parallel: Parallel = "ddp"
    seed: int = 0


class Run(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One recording: a level on a rank."""

    level: Level
    rank: Amount = 0
    trace: Text | None = None  # the file's name; None where the level writes none
    step_times_ns: list[Time]  # of single steps
    losses: list[float] = msgspec.field(default_factory=list)
    peak_memory_bytes: Amount | None = None  # the most that torch's allocator held; None where it cannot tell
    trace_defect: Text | None = None  # why the trace is no valid JSON; None when it is


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was run."""

    schema_version: int = MANIFEST_VERSION  # rises when a field changes its meaning
    tracekit_version: Text
    workload: Text
    task: Text = ""
    settings: Settings | None = None  # None: a loop of the user's own was recorded
    options: CaptureOptions
    config: dict[Text, Setting]  # the workload's own settings
    seed: int | None = None
    synthetic: bool | None = None  # whether the data were
    skipped_samples: Amount = 0  # how often a sample that was drawn was unusable, one drawn twice as two
    parameters: Amount  # of the model, each once
    layers: Amount
    samples_per_step: Amount | None = None  # over all ranks
    flops_per_step: Amount | None = None
    """2 × multiply-adds of matrix products, convolutions and attention, forward and backward, of one rank; None: not counted."""

    device: Text
    device_name: Text
    platform: Text
    cpu_threads: Amount
    versions: dict[Text, Text]  # of python, torch and what else matters
    git_revision: Text | None = None  # of the folder in which the capture ran
    layer_ranges: Text  # `structured` when the ranges carry arguments, `plain` when only names
    runs: list[Run]
    stopped: Text | None = None  # why the capture ended before all its levels; None when it did not
    nsys: Text | None = None  # the file name of the Nsight Systems profile beside it; None when there is none
    counters_missing: Text | None = None
    """Why the level metrics of a GPU has no hardware counters; None where it has them, was not run, or ran on a CPU."""

    def to_json(self) -> bytes:
        """Return the manifest as indented UTF-8 JSON with a final newline; a text that is too long (of an error) is cut."""
        return msgspec.json.format(msgspec.json.encode(_cut(msgspec.to_builtins(self))), indent=2) + b"\n"

    def step_times_ns(self, level: Level) -> list[int]:
        """Durations of the steps of a level, the slowest rank of each; empty when the level was not run."""
        ranks = [run.step_times_ns for run in self.runs if run.level == level]
        return [max(step) for step in zip(*ranks, strict=False)]

    def overhead(self, level: Level = "MLG") -> float | None:
        """Return the median step time of a level over that without any recording (1.0: it costs nothing).

        None when either was not measured.
        """
        times, base = self.step_times_ns(level), self.step_times_ns("M")
        from statistics import median  # noqa: PLC0415 - it takes 2 ms, and a trace seldom needs it

        return median(times) / median(base) if times and base else None


def manifest_beside(trace: Path) -> Manifest | None:
    """The manifest in the trace's folder that lists it as one of its own; None when there is none.

    Another program's `manifest.json`, or a damaged one, says nothing of the trace.
    """
    try:
        return usable_manifest_beside(trace)
    except UnreadableTraceError:
        return None


def usable_manifest_beside(trace: Path) -> Manifest | None:
    """As `manifest_beside`, for who tells the user of what is lost with it.

    Raises UnreadableTraceError when there is one that is damaged, or of another version.
    """
    path = trace.parent / MANIFEST_FILE
    try:
        if not path.exists():
            return None
    except (OSError, ValueError):  # no path that can be; who reads the trace says so
        return None
    if _is_foreign(path):
        return None
    manifest = read_manifest(path)
    own = {run.trace for run in manifest.runs} | {
        path.name for path in _nsys_profiles(trace.parent, manifest)
    }
    return manifest if trace.name in own else None


def _nsys_profiles(folder: Path, manifest: Manifest) -> list[Path]:
    """The Nsight Systems profile of a capture: its export, if it was made, and the profile itself."""
    if manifest.nsys is None:
        return []
    profile = folder / manifest.nsys
    return [profile.with_suffix(".sqlite"), profile]


def traces_in(folder: Path) -> list[Path]:
    """The profiler's traces of a capture's folder, one a rank; those of the layers' clock when there is none.

    Of a capture below nsys it is the profile's export where that lies beside it, else the profile where an `nsys` on the
    PATH can export it.

    Raises what `read_manifest` raises, and UnreadableTraceError when the manifest lists no trace.
    """
    manifest = read_manifest(folder / MANIFEST_FILE)
    runs = [run for run in manifest.runs if run.trace is not None]
    for profile in _nsys_profiles(folder, manifest):
        exported = profile.suffix == ".sqlite"
        if profile.is_file() and (exported or not runs or shutil.which("nsys") is not None):
            return [profile]
    of_levels = ([run for run in runs if run.level == level] for level in ("MLG", "ML", "metrics"))
    best: list[Run] = next((runs_of_level for runs_of_level in of_levels if runs_of_level), [])
    if not best:
        stopped = manifest.stopped
        fault = "the capture has no trace" + (f": it was stopped ({stopped})" if stopped else "")
        raise UnreadableTraceError(fault, path=folder, remedy="capture with --levels MLG")
    return [folder / str(run.trace) for run in sorted(best, key=lambda run: run.rank)]


_FAILURES: Final = (OSError, ValueError, msgspec.MsgspecError, RecursionError)
"""ValueError: a path that cannot be one. RecursionError: a file that is nested too deep."""


def is_manifest(path: Path) -> bool:
    """Whether the file is a manifest of tracekit's, of any version; other programs write files of this name as well."""
    try:
        msgspec.json.decode(_content(path), type=_Versioned)
    except _FAILURES:
        return False
    return True


def _is_foreign(path: Path) -> bool:
    """Whether the file is another program's: whole JSON, and no manifest of tracekit's."""
    try:
        content = _content(path)
        whole = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    except _FAILURES:
        return False
    return "schema_version" not in whole or "tracekit_version" not in whole


def _content(path: Path) -> bytes:
    return read_small(path, at_most=_LARGEST)


def read_manifest(path: Path) -> Manifest:
    """Return the manifest in the file at `path`.

    Raises `UnreadableTraceError` when the file cannot be read, is no manifest, names files outside its folder,
    or another version of tracekit wrote it.
    """
    try:
        content = _content(path)
        version = msgspec.json.decode(content, type=_Versioned).schema_version
    except _FAILURES as error:
        raise UnreadableTraceError(f"not a readable manifest ({reason_of(error)})", path=path) from error
    if version != MANIFEST_VERSION:
        newer = version > MANIFEST_VERSION
        remedy = "use a newer tracekit" if newer else "capture again"
        raise UnreadableTraceError(f"its schema version is {version}", path=path, remedy=remedy)
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
    except _FAILURES as error:
        raise UnreadableTraceError(f"not a valid manifest ({error})", path=path) from error
    for name in (manifest.nsys, *(run.trace for run in manifest.runs)):
        if name is not None and (name in ("", "..") or Path(name).name != name):
            fault = f"it names {name!r}, which is not a file of its folder"
            raise UnreadableTraceError(fault, path=path, remedy="give the trace itself")
    return manifest


class _Versioned(msgspec.Struct):
    schema_version: int


def _cut(value: Any) -> Any:
    """The same plain value, with no text that is too long to be read again."""
    if isinstance(value, str):
        return value[:_LONGEST]
    if isinstance(value, dict):
        return {_cut(key): _cut(each) for key, each in value.items()}
    return [_cut(each) for each in value] if isinstance(value, list | tuple) else value
