"""`manifest.json`: what was run to get the trace beside it; it names no host, user or absolute path."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import msgspec

from tracekit.errors import TracekitError, UnreadableTraceError

__all__ = ["MANIFEST_VERSION", "CaptureOptions", "Manifest", "Setting", "StepTimes", "read_manifest"]

MANIFEST_VERSION = 1
Setting = int | float | str | bool


class CaptureOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the profiler was set; `steps` were recorded after `wait` + `warmup` unrecorded ones."""

    steps: int = 3
    warmup: int = 1
    wait: int = 0
    record_shapes: bool = True
    profile_memory: bool = True
    with_stack: bool = False


class StepTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Durations of single steps in ns, under the profiler and without it (empty when not measured)."""

    profiled: list[int]
    unprofiled: list[int]

    def overhead(self) -> float | None:
        """Return median profiled over median unprofiled step time (1.0: no cost), None if not measured."""
        if not self.profiled or not self.unprofiled:
            return None
        return median(self.profiled) / median(self.unprofiled)


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was run. `schema_version` rises when a field changes its meaning.

    `parameters` counts every parameter of the model once. `device` is `cpu` or `cuda`. `accelerator_version`
    is the CUDA or ROCm version that torch was built for. `layer_ranges` is `structured` when the ranges carry
    arguments, `plain` when only names. `trace_defect` says why the trace is not valid JSON; None when it is.
    """

    schema_version: int = MANIFEST_VERSION
    tracekit_version: str
    workload: str
    config: dict[str, Setting]
    seed: int | None
    parameters: int
    layers: int
    device: str
    device_name: str
    platform: str
    cpu_threads: int
    python_version: str
    torch_version: str
    accelerator_version: str | None
    options: CaptureOptions
    layer_ranges: str
    step_times_ns: StepTimes
    trace: str
    trace_defect: str | None = None

    def to_json(self) -> bytes:
        """Return the manifest as indented UTF-8 JSON with a final newline."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


def read_manifest(path: Path) -> Manifest:
    """Return the manifest in the file at `path`.

    Raises `UnreadableTraceError` when the file cannot be read or is no manifest, and `TracekitError` when a
    newer version of tracekit wrote it.
    """
    try:
        content = path.read_bytes()
        version = msgspec.json.decode(content, type=_Versioned).schema_version
    except (OSError, msgspec.MsgspecError) as error:
        raise UnreadableTraceError(f"not a readable manifest ({error})", path=path) from error
    if version > MANIFEST_VERSION:
        raise TracekitError(f"its schema version is {version}", path=path, remedy="use a newer tracekit")
    try:
        return msgspec.json.decode(content, type=Manifest)
    except msgspec.MsgspecError as error:
        raise UnreadableTraceError(f"not a valid manifest ({error})", path=path) from error


class _Versioned(msgspec.Struct):
    schema_version: int
