"""One run of a model: the recordings of its levels, and the figures from each of them (XSP's ladder).

The recording of a level disturbs all levels above it. So the latency of the model comes from the run at level M alone,
that of layers from the run at level ML, times of kernels from the run at level MLG, and no time from a run in which
hardware counters were measured.
"""

from __future__ import annotations

import polars as pl

from tracekit.analyses.attribution import attributed, attribution
from tracekit.analyses.counters.analysis import has_ranges
from tracekit.analyses.scope import Scope, launch_times, once, select, step_at
from tracekit.classes import dataclass
from tracekit.facts.ceilings import catalogue_ceilings
from tracekit.facts.device_peaks import fp32_tflops_of_clock, peak_bandwidth_gbps
from tracekit.groups import or_none
from tracekit.manifest import Level, Manifest, Settings
from tracekit.spans import Int64Array
from tracekit.statistics import trimmed_mean
from tracekit.trace import DeviceInfo, Trace

__all__ = ["PRECISIONS", "UNATTRIBUTED", "XspRun", "paths_of", "placed", "run_of", "steps_of"]

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
"""The precisions with a peak."""

UNATTRIBUTED = "<unattributed>"
"""The name of the layer for work outside layers."""


def placed(scope: Scope) -> pl.DataFrame:
    """The activities of the steps in the order of their launches (`launched`, ns), with `layer` (the path) and `type`."""
    return once(scope, _placed)


def _placed(scope: Scope) -> pl.DataFrame:
    rows = attributed(scope)
    paths = paths_of(scope, or_none(rows["layer_id"]))
    return (
        rows.with_columns(
            paths["layer"].fill_null(UNATTRIBUTED),
            paths["type"],
            pl.Series("launched", launch_times(scope.trace, rows)),
            pl.col("step") if scope.steps.height else pl.lit(0, pl.Int64).alias("step"),
        )
        .filter(pl.col("step").is_not_null())
        .sort("launched", "start", "activity_id")
    )


def steps_of(scope: Scope, times: Int64Array) -> pl.Series:
    """The number of the step that is open on the host at each time, null outside the steps; 0 without steps."""
    return (
        step_at(scope.steps, times)
        if scope.steps.height
        else pl.zeros(times.size, pl.Int64, eager=True).alias("step")
    )


def paths_of(scope: Scope, layers: Int64Array) -> pl.DataFrame:
    """`layer` (the path) and `type` of layers by number; null for −1."""
    table = attribution(scope).layers.select("layer_id", pl.col("path").alias("layer"), "type")
    numbers = pl.DataFrame({"layer_id": layers})
    return numbers.join(table, on="layer_id", how="left", maintain_order="left")[["layer", "type"]]


@dataclass(frozen=True, slots=True, eq=False)
class XspRun:
    """One run of a model, with the steps that were recorded at its levels; None for a level without steps.

    * `label`: its name
    * `manifest`: what the capture wrote about it
    * `layers`: the recording at level ML
    * `kernels`: the recording at level MLG
    * `counters`: the recording with hardware counters
    """

    label: str
    manifest: Manifest | None = None
    layers: Scope | None = None
    kernels: Scope | None = None
    counters: Scope | None = None

    @property
    def recordings(self) -> list[Scope]:
        """The existing recordings, the recording of the layers first."""
        return [each for each in (self.layers, self.kernels, self.counters) if each is not None]

    def step_ns(self, level: Level) -> float | None:
        """The 20 % trimmed mean of the step times of a level in ns, the slowest rank of each; None if not run."""
        return None if self.manifest is None else trimmed_mean(self.manifest.step_times_ns(level))

    @property
    def latency_ns(self) -> float | None:
        """The latency of the model: the time of a step at level M, in ns."""
        return self.step_ns("M")

    @property
    def samples(self) -> int | None:
        """Samples of a step over all ranks."""
        return None if self.manifest is None else self.manifest.samples_per_step

    @property
    def settings(self) -> Settings | None:
        """The settings of the run; None without a manifest."""
        return None if self.manifest is None else self.manifest.settings

    @property
    def has_own_loop(self) -> bool:
        """True for a recording of code with a loop of its own (`tracekit run`, a session), which has one level."""
        return self.manifest is not None and self.settings is None

    @property
    def batch(self) -> int | None:
        """Samples of one batch of one rank."""
        if self.settings is None or self.settings.batch is not None or self.samples is None:
            return None if self.settings is None else self.settings.batch
        return self.samples // (self.settings.ranks * self.settings.accumulate)

    @property
    def precision(self) -> str | None:
        """The precision in the settings of the run; None without a manifest."""
        return None if self.settings is None else self.settings.precision

    @property
    def on_cpu(self) -> bool:
        """True if the self time of operators replaces kernels, because no device was captured."""
        return self.kernels is not None and self.kernels.on_cpu

    @property
    def format(self) -> str:
        """The format of its traces (`Meta.format`)."""
        return next((scope.trace.meta.format for scope in self.recordings), "kineto")

    @property
    def device(self) -> DeviceInfo | None:
        """The device on which the kernels ran, as the traces describe it."""
        traces = [scope.trace for scope in (self.kernels, self.counters) if scope is not None]
        return next((device for trace in traces for device in _devices_in_use(trace)), None)

    @property
    def device_name(self) -> str | None:
        """The name of the device on which the kernels ran."""
        if self.device is not None:
            return self.device.name
        return None if self.manifest is None else self.manifest.device_name

    def peak_tflops(self, precision: str, unit: str = "matrix") -> float | None:
        """The peak of a unit of the device (matrix or vector) for one of PRECISIONS in 10¹² FLOP/s: the vendor's figure, or for fp32 else the peak from
        the size and the clock in the trace; None without both.
        """
        name, device = self.device_name, self.device
        listed = None if name is None else catalogue_ceilings(name, self._memory_bytes)
        peak = None if listed is None else listed.peak(precision, unit)
        if peak is not None or precision != "fp32" or device is None:
            return None if peak is None else peak / 1e12
        return fp32_tflops_of_clock(device.compute_capability, device.sm_count, device.clock_hz)

    @property
    def bandwidth_gbps(self) -> float | None:
        """The peak bandwidth of the device's memory in 10⁹ bytes/s: the vendor's figure, else the figure in the trace; None
        without both.
        """
        return self.recorded_bandwidth_gbps if self._listed_gbps is None else self._listed_gbps

    @property
    def _listed_gbps(self) -> float | None:
        name = self.device_name
        return None if name is None else peak_bandwidth_gbps(name, self._memory_bytes)

    @property
    def _memory_bytes(self) -> int | None:
        return None if self.device is None else self.device.memory_bytes

    @property
    def recorded_bandwidth_gbps(self) -> float | None:
        """The device's bandwidth in the trace if the vendor's figure is not listed; else None."""
        if self.device is None or self.device.memory_bandwidth is None:
            return None
        return None if self._listed_gbps else self.device.memory_bandwidth / 1e9


def run_of(
    label: str,
    *traces: Trace,
    manifest: Manifest | None = None,
    counters: Trace | None = None,
    step: str | None = None,
) -> XspRun:
    """A run from its traces; the level of each comes from the manifest next to it, else from its content.

    A trace with counters over single kernels belongs to a counter run, a trace with operators or device activities to
    level MLG, a trace with only layers to level ML. Raises UsageError if `step` matches nothing.

    >>> import tracekit
    >>> run = run_of("cnn", tracekit.read("sample_traces/cnn_cpu/trace.json.gz"))
    >>> run.layers is None, run.on_cpu
    (True, True)
    """
    recordings = {_level_of(trace): select(trace, step=step) for trace in traces}
    if counters is not None:
        recordings["counters"] = select(counters)
    manifest = manifest or next((trace.manifest for trace in traces if trace.manifest), None)
    return XspRun(label, manifest, **recordings)


def _level_of(trace: Trace) -> str:
    """The field of XspRun that holds the recording in a trace."""
    if has_ranges(trace):
        return "counters"
    works = trace.has_device or bool((trace.host["kind"] == "op").any())
    return "kernels" if works else "layers"


def _devices_in_use(trace: Trace) -> list[DeviceInfo]:
    """The named devices of a trace that worked; if none did, all named devices."""
    used = set(trace.device["device_id"].unique())
    return [one for one in trace.meta.devices if one.name and (one.device_id in used or not used)]
