"""The parts into which the verdict cuts a device's time; they sum to the basis exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from tracekit.analyses.result import Result
from tracekit.analyses.scope import Scope
from tracekit.analyses.steps import DATA_LOADER
from tracekit.facts.units import format_count
from tracekit.intervals import IntervalSet

__all__ = ["DeviceParts", "device_parts", "selected_compute"]

LEAD_IN_SHARE: Final = 0.05
"""From this share on, the host's work before the first device activity counts as part of the steps."""


@dataclass(frozen=True, slots=True)
class DeviceParts:
    """Times in ns. `compute + communication + memory + idle = basis`, and the five waits sum to `idle`.

    `basis` is the window, or the window with the `lead_in` before it: the time from the start of the first step
    to the first device activity, when that is a twentieth of the whole or more; `lead_in_host` is what of it did
    not pass in the data loader. `other_compute` is the part of `compute` in which only work ran that does not
    belong to the selected steps.
    """

    who: str
    device_id: int
    basis: int
    basis_name: str
    compute: int
    other_compute: int
    communication: int
    memory: int
    data_loading: int
    host_wait: int
    queued_wait: int
    unknown_wait: int
    lead_in: int
    lead_in_host: int
    causes_known: bool
    has_steps: bool
    devices: int
    streams: int

    @property
    def busy(self) -> int:
        """The time in which the device did anything, in ns."""
        return self.compute + self.communication + self.memory

    @property
    def idle(self) -> int:
        """The rest of the basis, in ns."""
        return self.basis - self.busy


def device_parts(scope: Scope, results: Mapping[str, Result]) -> DeviceParts:
    """The parts of the busiest device's time in the scope."""
    devices = results["breakdown"].tables()["devices"]
    row = devices.sort("busy_ns", descending=True).row(0, named=True)
    steps = scope.steps if scope.window == "steps" else scope.steps.clear()
    before = max(0, scope.start - int(steps["start"][0])) if steps.height else 0
    lead_in = before if before >= LEAD_IN_SHARE * (before + scope.duration) else 0
    host, queued, unknown = _waits(scope, int(row["device_id"]))
    # What is idle before the first or after the last activity of this device has no activity that ends it.
    unknown += int(row["idle_ns"]) - host - queued - unknown
    host += lead_in
    loading = min(_data_loading(results, 0 if lead_in else before), host)
    loaded_first = _loading_before(scope, lead_in) if lead_in and loading else 0
    return DeviceParts(
        who="The device" if devices.height == 1 else f"Device {row['device_id']}",
        device_id=int(row["device_id"]),
        basis=scope.duration + lead_in,
        basis_name=_basis_name(steps.height, lead_in),
        compute=int(row["compute_ns"]),
        other_compute=int(row["compute_ns"]) - selected_compute(scope, int(row["device_id"])),
        communication=int(row["exposed_communication_ns"]),
        memory=int(row["exposed_memory_ns"]),
        data_loading=loading,
        host_wait=host - loading,
        queued_wait=queued,
        unknown_wait=unknown,
        lead_in=lead_in,
        lead_in_host=min(lead_in - loaded_first, host - loading),
        causes_known=bool(scope.activities["launch_id"].is_not_null().any()),
        has_steps=steps.height > 0,
        devices=devices.height,
        streams=scope.overlapping.filter(pl.col("device_id") == row["device_id"])["stream_id"].n_unique(),
    )


def selected_compute(scope: Scope, device: int | None = None) -> int:
    """The time in which computation of the selected steps ran, in ns; `device` None for all."""
    if scope.activities.height == scope.overlapping.height:
        return scope.intervals(device, "compute").measure
    rows = scope.activities.filter(pl.col("class") == "compute")
    if device is not None:
        rows = rows.filter(pl.col("device_id") == device)
    return IntervalSet.of(rows["start"].to_numpy(), rows["end"].to_numpy()).measure


def _loading_before(scope: Scope, lead_in: int) -> int:
    """The time of the data loader in the lead-in, in ns."""
    spans = scope.trace.host.filter(pl.col("name").cast(pl.String).str.contains(DATA_LOADER))
    low = scope.start - lead_in
    starts, ends = spans["start"].to_numpy(), (spans["start"] + spans["duration"]).to_numpy()
    return IntervalSet.of(starts.clip(low, scope.start), ends.clip(low, scope.start)).measure


def _basis_name(steps: int, lead_in: int) -> str:
    if not steps:
        return "the window"
    what = "1 step" if steps == 1 else f"{format_count(steps)} steps"
    return what if lead_in else f"the window of {what}"


def _waits(scope: Scope, device: int) -> tuple[int, int, int]:
    """The device's idle gaps by what ended each: launched late by the host, launched before, launch unknown.

    A stream that waits while another works is not idle time of the device, so the gaps per stream cannot tell.
    """
    host = scope.trace.host.select(pl.col("span_id").alias("launch_id"), pl.col("start").alias("launched"))
    rows = (
        scope.overlapping.filter(pl.col("device_id") == device)
        .select("start", "end", "launch_id")
        .sort("start")
    )
    gaps = (
        rows.with_columns(pl.col("end").cum_max().shift(1).alias("free"))
        .filter(
            (pl.col("start") > pl.col("free"))
            & (pl.col("free") >= scope.start)
            & (pl.col("start") <= scope.end)
        )
        .join(host, on="launch_id", how="left")
    )
    length = pl.col("start") - pl.col("free")
    late, unknown = pl.col("launched") > pl.col("free"), pl.col("launched").is_null()
    row = gaps.select(
        length.filter(late).sum().alias("host"),
        length.filter(~late & ~unknown).sum().alias("queued"),
        length.filter(unknown).sum().alias("unknown"),
    ).row(0)
    return int(row[0]), int(row[1]), int(row[2])


def _data_loading(results: Mapping[str, Result], before: int) -> int:
    """Time of the steps in which only the data loader ran, in ns, less what passed `before` the window."""
    loading = results["steps"].tables()["table"]["data_loader_ns"]
    return int(loading.sum()) - min(before, int(loading[0])) if loading.len() else 0
