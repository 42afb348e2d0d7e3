"""Rules about the device's time, and about what the profile holds of it."""

from __future__ import annotations

from typing import Final

import polars as pl

from tracekit.analyses.breakdown import Breakdown
from tracekit.analyses.counters.analysis import has_ranges
from tracekit.analyses.result import has_launch_calls
from tracekit.analyses.rules.rule import Advice, Evidence, Rule, by_share, densest
from tracekit.analyses.scope import Scope
from tracekit.facts.stack_names import COMPILED_REGION, NOT_A_LAYER
from tracekit.facts.units import count_of, format_count, format_ns, format_share
from tracekit.groups import text_codes
from tracekit.name_table import any_matching
from tracekit.readers import format_named
from tracekit.trace import Trace

__all__ = ["DAMAGED_CAPTURE", "INCOMPLETE_CAPTURE", "LOW_UTILISATION"]

# -- low_utilisation --------------------------------------------------------------------------------

BUSY_ENOUGH: Final = 0.90
"""A well-fed training step keeps its device above this; the rest is copies and the price of starting kernels."""
MOSTLY_BUSY: Final = 0.75
"""From this share on the title says how long the device is idle."""


def low_utilisation(scope: Scope, result: Breakdown) -> Evidence | None:
    """The device does nothing for much of the window.

    The rule looks at the busiest device. The window cannot become shorter than the work of that device, so its idle time
    is the most that can be saved. The rules of idle, launches and steps give the reason.

    Fires when the busiest device works less than `BUSY_ENOUGH` of the window.
    """
    if not result.devices.height:
        return None
    row = result.devices.sort("busy_ns", "device_id", descending=[True, False]).row(0, named=True)
    utilisation = row["utilisation"]
    if utilisation is None or utilisation >= BUSY_ENOUGH:
        return None
    devices = result.devices.height
    mostly = f"busy only {format_share(utilisation)}"
    if utilisation > MOSTLY_BUSY:
        mostly = f"idle for {format_share(row['idle_ns'] / row['window_ns'])}"
    return Evidence(
        title=f"Device {row['device_id']} is {mostly} of the time",
        text=f"It is idle for {format_ns(row['idle_ns'])} of {format_ns(row['window_ns'])} and busy for "
        f"{format_ns(row['busy_ns'])}"
        + (f". It is the busiest of {devices} devices." if devices > 1 else "."),
        ns_at_stake=row["idle_ns"],
        severity=by_share(row["idle_ns"], row["window_ns"]),
        stretches=densest(
            scope.intervals(row["device_id"]).complement(scope.start, scope.end),
            scope,
        ),
    )


LOW_UTILISATION = Rule(
    id="low_utilisation",
    analysis="breakdown",
    evidence=low_utilisation,
    runs="device",
    advice=Advice("The sections on idle time and on launches show what it waits for."),
    restates=True,
)


# -- incomplete_capture -----------------------------------------------------------------------------

_FLAGS: Final = {"shapes": "--shapes", "memory": "--memory", "modules": "--stack"}
"""The flags of `tracekit capture` that record them."""


def incomplete_capture(scope: Scope, _result: Breakdown) -> Evidence | None:
    """The profile lacks data that a table of the report needs; the advice names the flag of torch.profiler.

    The finding names missing data only if a table of the report needs them. It asks for device activity only if there are
    runtime calls, so not for a run that used no device.

    Fires when a table of the report stays empty because a flag was not set; only for profiles of torch.profiler.
    """
    trace = scope.trace
    if not format_named(trace.meta.format).of_pytorch:
        return None
    lacking = _lacking(trace, scope)
    if not lacking:
        return None
    names = [what for what, _, _ in lacking]
    keys = list(dict.fromkeys(key for _, _, key in lacking))
    flags = tuple(_FLAGS[key] for key in ("shapes", "memory", "modules") if key in keys)
    return Evidence(
        title=f"The profile lacks {_listed(names)}",
        text=f"{'; '.join(f'without {what} there are no {table}' for what, table, _ in lacking).capitalize()}.",
        advice=Advice(
            f"Profile again with {_listed([_recorded_by(key, trace) for key in keys])}.", flags=flags
        ),
    )


def _recorded_by(key: str, trace: Trace) -> str:
    """The flag that records this, in braces; stacks without modules are those of profilers before 2022."""
    if key == "modules" and "stacks" in trace.meta.captured:
        return "a newer PyTorch, whose stacks name the modules"
    return f"{{{key}}}"


def _lacking(trace: Trace, scope: Scope) -> list[tuple[str, str, str]]:
    """(what, the table it would enable, the key of the flags that record it)."""
    captured = trace.meta.captured
    called = (trace.host["kind"] == "runtime").any() if trace.host.height else False
    launched = trace.has_device or called
    has_ops = "ops" in captured or (trace.host.height > 0 and bool((trace.host["kind"] == "op").any()))
    rows: list[tuple[bool, str, str, str]] = [
        (
            called and not trace.has_device and not has_ranges(trace),
            "device activity",
            "device figures",
            "everything",
        ),
        (not has_ops, "operators", "times by operator and layer", "everything"),
        (
            trace.has_device and "launches" not in captured and not has_launch_calls(trace),
            "launch calls",
            "launch delays and causes of idle time",
            "everything",
        ),
        ("steps" not in captured and not scope.steps.height, "steps", "step times", "steps"),
        (has_ops and "shapes" not in captured, "shapes", "times by shape", "shapes"),
        (
            has_ops and not captured & {"layers", "modules"} and not _has_ranges(trace),
            "layers",
            "times by layer",
            "modules",
        ),
        (launched and "memory" not in captured, "allocator events", "tables of allocated memory", "memory"),
    ]
    return [(what, table, key) for missing, what, table, key in rows if missing]


def _has_ranges(trace: Trace) -> bool:
    """Whether the trace has user ranges or regions of torch.compile, which can stand for layers."""
    name, kind = trace.host["name"], trace.host["kind"]
    ranges = text_codes(name.filter(kind == "annotation"))[1]
    if (~pl.Series(ranges, dtype=pl.String).str.contains(NOT_A_LAYER)).any():
        return True
    return any_matching([*ranges, *text_codes(name.filter(kind == "op"))[1]], COMPILED_REGION)


def _listed(items: list[str]) -> str:
    return f"{', '.join(items[:-1])} and {items[-1]}" if len(items) > 1 else "".join(items)


INCOMPLETE_CAPTURE = Rule(
    id="incomplete_capture",
    analysis="breakdown",
    evidence=incomplete_capture,
    advice=Advice("Profile again."),
    about_run=False,
)


# -- damaged_capture --------------------------------------------------------------------------------

EARLY_SHARE: Final = 0.01
"""Rounding puts a few activities before their launch; if it is one in a hundred, the clocks disagree."""

_MATTERS: Final = ("absurd_duration", "missing_duration", "negative_duration", "event_without_time")
"""Defects of severity warning that change times."""


def damaged_capture(scope: Scope, _result: Breakdown) -> Evidence | None:
    """The file is damaged or its clocks disagree, so figures may be wrong.

    Fires on every defect of severity error, and on defects that shift or falsify times; not on `no_event`, since a file without
    events has no times, and the verdict says what to record.
    """
    trace = scope.trace
    health = trace.health.filter(pl.col("kind") != "no_event")
    early = int(health.filter(pl.col("kind") == "activity_before_launch")["count"].sum())
    late_clocks = trace.device.height > 0 and early / trace.device.height >= EARLY_SHARE
    rows = health.filter(
        (pl.col("severity") == "error")
        | pl.col("kind").is_in(_MATTERS)
        | (pl.lit(late_clocks) & (pl.col("kind") == "activity_before_launch"))
    )
    if not rows.height:
        return None
    broken = (rows["severity"] == "error").any()
    listed = "; ".join(
        f"{format_count(count)} × {meaning}" for count, meaning in rows[["count", "meaning"]].rows()
    )
    apart = f" ({format_share(early / trace.device.height)} of the activities)" if late_clocks else ""
    return Evidence(
        title=f"The trace has {count_of(rows.height, 'kind')} of damage that may make times wrong",
        text=f"{listed}{apart}.",
        severity="warning" if broken or late_clocks else "info",
    )


DAMAGED_CAPTURE = Rule(
    id="damaged_capture",
    analysis="breakdown",
    evidence=damaged_capture,
    advice=Advice(
        "Record again with fewer active steps, let export_chrome_trace finish before the process ends, and use a "
        "current driver and profiler, which keep the host and device clocks synchronised."
    ),
)
