"""Trajectories: the points of runs that differ in one setting, joined in its order, and what each segment means."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import polars as pl

from tracekit.classes import dataclass
from tracekit.manifest import PRECISIONS, Setting
from tracekit.trace import Schema
from tracekit.trajectory.labels import KEYS, Point, segment_of
from tracekit.trajectory.recommend import NUMERIC, Recommendation, Trial, recommend
from tracekit.trajectory.runs import LEVELS, Run, Swept, pooled

__all__ = ["POINTS", "SEGMENTS", "Trajectories", "trajectories_of", "varied_keys"]

POINTS: Final[Schema] = {
    "trajectory": pl.String, "level": pl.String, "name": pl.String, "key": pl.String, "run": pl.String, "time_ns": pl.Float64, "time_source": pl.String,
    "flops": pl.Float64, "source": pl.String, "bytes": pl.Float64, "bytes_source": pl.String, "intensity": pl.Float64, "flops_per_s": pl.Float64,
    "error": pl.Float64, "peak_flops_per_s": pl.Float64, "bandwidth_bytes_per_s": pl.Float64, "efficiency": pl.Float64, "covered_share": pl.Float64, "share": pl.Float64,
}  # fmt: skip
SEGMENTS: Final[Schema] = {
    "trajectory": pl.String, "level": pl.String, "name": pl.String, "from": pl.String, "to": pl.String, "label": pl.String, "intensity": pl.String,
    "performance_ratio": pl.Float64, "intensity_ratio": pl.Float64, "noise_ratio": pl.Float64, "share": pl.Float64,
}  # fmt: skip

_LEAST_SHARE: Final = 0.01
"""Layer types and categories with less of the time in every run are left out."""
_IDENTITY: Final = ("workload", "device", "device_name", "size", "tiny", "max_rows")
"""Settings by which programs differ, so that none is a better choice than another."""


@dataclass(frozen=True, slots=True, eq=False)
class Trajectories:
    """The runs of a sweep along one setting."""

    key: str
    runs: tuple[Run, ...]
    """Those that have a value of the key."""
    points: pl.DataFrame
    """One row per trajectory, row of a level and value of the key (`POINTS`), in the key's order. FLOPs and bytes are of a step and of
    all ranks, `error` is the standard error of `flops_per_s` relative to it; ceilings are those of all ranks, null if not known."""
    segments: pl.DataFrame
    """One row per pair of neighbouring points (`SEGMENTS`): `label` and `intensity` as `labels.segment_of` gives them, and the ratios of
    the later to the earlier point. A change of performance by less than the factor `noise_ratio` counts as none."""
    recommendations: tuple[tuple[str, Recommendation], ...]
    """Of each program with several timed configurations, by its name."""
    left_out: tuple[str, ...]
    """What is not in it and why, a line each."""


def varied_keys(runs: Sequence[Run]) -> list[str]:
    """The settings among `labels.KEYS` of which the runs of a workload have several values.

    >>> def run(batch):
    ...     settings = {"workload": "cnn", "batch": batch, "threads": 1}
    ...     return Run(name="", settings=settings, chosen=frozenset(), step_times=(), undisturbed=True, samples=1)
    >>> varied_keys([run(1), run(2)])
    ['batch']
    """
    values = defaultdict(set)
    for run in runs:
        for name in KEYS:
            values[run.settings["workload"], name].add(run.settings.get(name))
    return [name for name in KEYS if any(len(found) > 1 for (_, of), found in values.items() if of == name)]


def trajectories_of(swept: Swept, key: str) -> Trajectories:
    """The trajectories of these runs along the setting `key` (one of `labels.KEYS`), one for each combination of the others.

    The batch of a rank may differ along `ranks`. Runs with the same settings count as one (`runs.pooled`).
    """
    left_out = [*swept.left_out]
    unknown = [run.name for run in swept.runs if run.settings.get(key) is None]
    left_out += [f"{name}: its {key.replace('_', ' ')} is not known" for name in unknown]
    kept = pooled([run for run in swept.runs if run.settings.get(key) is not None])
    groups = _groups(kept, key)
    points = [row for title, group in groups for row in _points(title, group, key)]
    segments = [row for title, group in groups for row in _segments(title, group, key)]
    return Trajectories(
        key,
        tuple(kept),
        pl.DataFrame(points, schema=POINTS, orient="row"),
        pl.DataFrame(segments, schema=SEGMENTS, orient="row"),
        tuple(_recommendations(kept, swept)),
        tuple(left_out),
    )


def described(settings: Mapping[str, object], names: Sequence[str]) -> str:
    """Settings in words.

    >>> described({"batch": 8, "channels_last": True}, ["batch", "channels_last"])
    'batch 8, channels last'
    >>> described({"size": None, "tiny": False}, ["size", "tiny"])
    'default size, no tiny model'
    """
    named = {name: "tiny model" if name == "tiny" else name.replace("_", " ") for name in names}
    texts = {True: "{}", False: "no {}", None: "default {}"}
    return ", ".join(
        texts[value].format(name)
        if (value := settings[key]) is None or isinstance(value, bool)
        else f"{name} {value}"
        for key, name in named.items()
    )


# -- points and segments ---------------------------------------------------------------------------


def _groups(runs: Sequence[Run], key: str) -> list[tuple[str, list[Run]]]:
    """The runs of each trajectory, in the order of the key, with its title."""
    found = _by_settings(runs, {key, "batch"} if key == "ranks" else {key})
    if any(len({run.settings[key] for run in group}) < len(group) for group in found):
        found = _by_settings(runs, {key})
    differing = [
        name
        for name in dict.fromkeys(name for run in runs for name in run.settings)
        if name not in (key, "workload")
        and len({group[0].settings.get(name) for group in found}) > 1
        and all(len({run.settings.get(name) for run in group}) == 1 for group in found)
    ]
    return [
        (_title(group[0], differing), sorted(group, key=lambda run: _place(run.settings[key])))
        for group in found
    ]


def _title(run: Run, differing: Sequence[str]) -> str:
    return ", ".join(filter(None, (str(run.settings["workload"]), described(run.settings, differing))))


def _by_settings(runs: Sequence[Run], without: set[str]) -> list[list[Run]]:
    groups = defaultdict(list)
    for run in runs:
        groups[
            tuple(sorted((name, value) for name, value in run.settings.items() if name not in without))
        ].append(run)
    return list(groups.values())


def _place(value: Setting | None) -> float:
    """Where a value stands in the order of its key."""
    return PRECISIONS.index(value) + 1 if isinstance(value, str) else float(value or 0)


def _value(run: Run, key: str) -> str:
    """The value of the key in words."""
    value = run.settings[key]
    return described({key: value}, [key]) if isinstance(value, bool) else str(value)


def _rows(group: Sequence[Run]) -> Iterator[tuple[str, str, list[tuple[Run, dict[str, Any]]]]]:
    """Each level and name that matters, with the runs that have it and their rows, the longest name first."""
    found: defaultdict[tuple[str, str], list[tuple[Run, dict[str, Any]]]] = defaultdict(list)
    for run in group:
        for row in run.work.rows(named=True):
            found[row["level"], row["name"]].append((run, row))
    order = sorted(
        found, key=lambda at: (LEVELS.index(at[0]), -max(row["share"] for _, row in found[at]), at[1])
    )
    for level, name in order:
        rows = found[level, name]
        if level == "model" or max(row["share"] for _, row in rows) >= _LEAST_SHARE:
            yield level, name, rows


def _points(title: str, group: Sequence[Run], key: str) -> Iterator[dict[str, object]]:
    for level, name, rows in _rows(group):
        for run, row in rows:
            point, ranks = _point(run, row, key), _ranks(run)
            yield {
                "trajectory": title, "level": level, "name": name, "key": _value(run, key), "run": run.name,
                "time_source": "undisturbed" if run.undisturbed and level == "model" else "profiled",
                **{column: row[column] for column in ("time_ns", "source", "bytes_source", "intensity", "error", "covered_share", "share")},
                "flops": row["flops"] * ranks, "bytes": row["bytes"] * ranks, "flops_per_s": point.flops_per_s,
                "peak_flops_per_s": point.peak, "bandwidth_bytes_per_s": point.bandwidth,
                "efficiency": point.flops_per_s / point.attainable if point.attainable else None,
            }  # fmt: skip


def _point(run: Run, row: Mapping[str, Any], key: str) -> Point:
    """The point of all ranks, of which each has the work and the ceilings of the one that was read."""
    ranks, ceilings = _ranks(run), run.ceilings
    peak = None if ceilings is None else ceilings.peak(row["precision"], row["unit"] or "vector")
    bandwidth = None if ceilings is None else ceilings.bandwidth.get("DRAM")
    return Point(
        _place(run.settings[key]),
        row["intensity"],
        row["flops_per_s"] * ranks,
        row["error"],
        None if peak is None else peak * ranks * run.devices,
        None if bandwidth is None else bandwidth * ranks * run.devices,
        "analytic" not in row["bytes_source"],
        row["flops"] * ranks / (run.samples or float(run.settings.get("batch") or 1) * ranks),
        # The time of a layer holds that of views, which have no work, and at another size its FLOPs are others anyway.
        row["covered_share"] if row["level"] == "model" or key != "size" else 1.0,
    )


def _ranks(run: Run) -> float:
    return float(run.settings.get("ranks") or 1)


def _segments(title: str, group: Sequence[Run], key: str) -> Iterator[dict[str, object]]:
    for level, name, rows in _rows(group):
        for (one, before), (other, after) in pairwise(rows):
            # Threads of the host do not share the work of a device.
            kind = "choice" if key == "threads" and one.settings["device"] != "cpu" else KEYS[key]
            found = segment_of(_point(one, before, key), _point(other, after, key), kind)
            yield {
                "trajectory": title, "level": level, "name": name, "from": _value(one, key), "to": _value(other, key),
                "label": found.label, "intensity": found.intensity, "performance_ratio": found.change,
                "intensity_ratio": found.intensity_change, "noise_ratio": found.noise, "share": after["share"],
            }  # fmt: skip


# -- the best configuration ------------------------------------------------------------------------


def _recommendations(runs: Sequence[Run], swept: Swept) -> Iterator[tuple[str, Recommendation]]:
    programs = _by_settings(runs, {name for run in runs for name in run.settings} - set(_IDENTITY))
    differing = [
        name for name in _IDENTITY[1:] if len({group[0].settings.get(name) for group in programs}) > 1
    ]
    for group in programs:
        settings = group[0].settings
        varied = {name for name in settings if len({run.settings.get(name) for run in group}) > 1}
        trials = [trial for run in group if (trial := _trial(run, varied)) is not None]
        if len(trials) < 2:
            continue
        full = [
            float(one["batch"])
            for one in swept.out_of_memory
            if one["batch"] and all(one[name] == settings[name] for name in ("workload", "size", "tiny"))
        ]
        yield _title(group[0], differing), recommend(trials, too_large=min(full, default=None))


def _trial(run: Run, varied: set[str]) -> Trial | None:
    time = run.time_ns
    if not time or any(run.settings.get(name) is None for name in NUMERIC):
        return None
    place = {name: float(run.settings[name] or 0) for name in NUMERIC}
    return Trial(
        name=run.name,
        place=place,
        samples=float(run.samples or place["batch"] * place["ranks"]),
        time_ns=time,
        error=run.error,
        choice=tuple(
            (name, value) for name, value in run.settings.items() if name not in (*NUMERIC, *_IDENTITY)
        ),
        chosen=len(run.chosen & varied),
    )
