"""Two sides in tables: step times, the ratio, the change by each dimension, calls of the host, the list of changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import polars as pl

from tracekit.diff.compared import Compared
from tracekit.diff.model import AMOUNTS, MATCHED, Diff
from tracekit.diff.noise import Estimate, StepComparison
from tracekit.facts.units import format_change
from tracekit.report.model import Table, Tree, Unit, table_of
from tracekit.trace import Schema

__all__ = ["NOTHING", "SCHEMAS", "diff_tables"]

_TITLES: Final = {
    "phase": "By phase",
    "layer": "By layer, without the layers in it",
    "operator": "By operator",
    "category": "By category",
    "name": "By kernel, and by call that made a device wait",
    "communication": "Communication that nothing hides",
    "idle": "Idle time by cause",
    "type": "By type of layer",
}
"""The dimensions in the order of the page."""
_KEYS: Final = {
    "phase": ("phase",),
    "layer": ("path", "type", "status"),
    "operator": ("operator",),
    "category": ("category", "kind"),
    "name": ("name", "kind"),
    "communication": ("operator", "name"),
    "idle": ("category", "name"),
    "type": ("type",),
}
NOTHING: Final = {
    "phase": "not told apart",
    "path": "unattributed",
    "type": "no type",
    "operator": "outside operators",
    "name": "no recorded call",
}
"""What stands for a null in a column of names."""
_PLACES: Final = ("phase", "layer", "type", "operator", "category", "name", "shapes", "dtypes", "cause")
_OF_TREE: Final = ("tree_delta_ns", "tree_base_ns", "tree_new_ns")

_ESTIMATE: Final[Schema] = {**dict.fromkeys(("ratio", "low", "high", "p"), pl.Float64), "test": pl.String}
_CALLS: Final[Schema] = {
    **dict.fromkeys(("category", "name", "operator", "layer"), pl.String),
    **dict.fromkeys(("base_calls", "new_calls", "base_ns", "new_ns", "delta_ns"), pl.Float64),
}
SCHEMAS: Final[dict[str, Schema]] = {
    "steps": {
        **dict.fromkeys(("side", "name", "device"), pl.String),
        **dict.fromkeys(("runs", "steps", "warm_up", "outliers"), pl.Int64),
        **dict.fromkeys(("median_ns", "mean_ns", "p95_ns"), pl.Float64),
        **dict.fromkeys(("min_ns", "max_ns"), pl.Int64),
        "std_ns": pl.Float64,
    },
    "ratios": {"name": pl.String, **_ESTIMATE},
    "gates": {
        **dict.fromkeys(("gate", "outcome", "reason"), pl.String),
        **dict.fromkeys(("base_ns", "new_ns"), pl.Float64),
        **_ESTIMATE,
        **{f"mean_{key}": kind for key, kind in _ESTIMATE.items()},
    },
    "tree": {
        **dict.fromkeys(("layer_id", "parent_layer_id", "depth"), pl.Int64),
        **dict.fromkeys(("name", "path", "type", "status", "base_path", "matched_by"), pl.String),
        **dict.fromkeys(_OF_TREE, pl.Float64),
    },
    **{dimension: {**dict.fromkeys(keys, pl.String), **AMOUNTS} for dimension, keys in _KEYS.items()},
    "calls": _CALLS,
    "changes": {
        "delta_ns": pl.Float64,
        **dict.fromkeys(("kind", "title"), pl.String),
        **{f"place_{key}": pl.String for key in _PLACES},
        **dict.fromkeys(("before", "after"), pl.String),
        "layers": pl.Int64,
        "sure": pl.Boolean,
        **dict.fromkeys(("base_ns", "new_ns", "base_calls", "new_calls", "noise_ns"), pl.Float64),
    },
    "matched": {**MATCHED, "how": pl.String},
}
"""The columns of each table, in the order of the page."""

_TOLD: Final[dict[str, tuple[str, Unit]]] = {
    "path": ("layer", "text"),
    "tree_base_ns": ("base", "ns"),
    "tree_new_ns": ("new", "ns"),
    "tree_delta_ns": ("change", "change"),
    "share": ("of the change", "ratio"),
    "base_calls": ("calls in base", "number"),
    "new_calls": ("calls in new", "number"),
    "base_idle_ns": ("idle in base", "ns"),
    "new_idle_ns": ("idle in new", "ns"),
    "base_share": ("of base", "ratio"),
    "new_share": ("of new", "ratio"),
    "side": ("side", "text"),
    "p": ("p for slower", "number"),
    "test": ("test", "text"),
    "low": ("from", "number"),
    "high": ("to", "number"),
    "ratio": ("ratio", "number"),
    "noise_ns": ("standard error", "ns"),
    "mean_ratio": ("ratio of means", "number"),
    "gate": ("gate", "text"),
    "outcome": ("outcome", "text"),
}
"""Titles and units that the names of columns do not tell."""
_COLUMNS: Final = ({name: title for name, (title, _) in _TOLD.items()}, {name: unit for name, (_, unit) in _TOLD.items()})  # fmt: skip
_OF_CALLS: Final = {"base_calls": "base", "new_calls": "new", "base_ns": "time in base", "new_ns": "time in new", "delta_ns": "change in time"}  # fmt: skip
"""The titles in the table of calls, which are short, so that both numbers of calls stand on a narrow page."""
_SHORT: Final = ("base_ns", "new_ns", "delta_ns", "share")


def diff_tables(found: Compared) -> Iterator[Table]:
    """The tables in the order of the page; where nothing changed, only a page with room lists parts.

    Every time is per step. Those of a dimension sum to the change of the mean step, of `idle` and `communication` to that of their part.
    """
    diff, times, nothing = found.diff, found.times, found.unchanged
    several = max(times.base.steps, times.new.steps) > 1
    spread = ("median_ns", "mean_ns", "p95_ns", "min_ns", "max_ns") if several else ("mean_ns",)
    titles = {"steps": f"{diff.per}s", **({} if several else {"mean_ns": "time"})}
    yield _table("steps", f"Times of {diff.per}s", _step_times(found), ("side", "name", "steps", *spread), titles)  # fmt: skip
    ratio = ("name", "ratio", "low", "high", "p", "test")
    yield _table("ratios", "Ratio of new to base", _ratios(times), ratio, detail=not several)
    gated = ("gate", "outcome", "ratio", "low", "high", "p")
    yield _table("gates", "Gates", _gates(found), gated)
    if (diff.by["layer"]["depth"] > 0).any():
        yield _tree(diff.by["layer"], detail=nothing)
    shares = times.verdict in ("slower", "faster")
    on_cpu = all(facts.on_cpu for side in (diff.base, diff.new) for facts in side.facts)
    titles = {**_TITLES, **({"idle": "Time outside operators by cause"} if on_cpu else {})}
    for dimension, title in titles.items():
        # The types of layers repeat their paths, and on processors operators are what runs.
        told = not nothing and dimension != "type" and not (on_cpu and dimension == "name")
        yield _by(diff, dimension, title, shares=shares, detail=not told)
    title = f"Calls per {diff.per} that wait, allocate or load"
    # What tells the rows apart.
    alike = next(
        (
            more
            for more in ((), ("operator",), ("layer",))
            if diff.calls.select("category", "name", *more).is_unique().all()
        ),
        ("layer", "operator"),
    )
    short = ("category", "name", *alike, "base_calls", "new_calls", "delta_ns", "base_ns", "new_ns")
    yield _table("calls", title, diff.calls, short, _OF_CALLS, summed=True, detail=nothing)
    yield _table("changes", "Changes", _changes(diff), ("delta_ns", "kind", "title", "sure"), detail=True)
    matched = ("how", "base_ns", "new_ns", "base_share", "new_share")
    yield _table("matched", "How work was matched", diff.matched, matched, detail=True)


def _by(found: Diff, dimension: str, title: str, *, shares: bool, detail: bool) -> Table:
    """The rows of a dimension, the largest change first."""
    frame, keys = found.by[dimension], _KEYS[dimension]
    if dimension == "layer":  # those that only hold others stand in the tree
        frame = frame.filter((pl.col("base_sum") > 0) | (pl.col("new_sum") > 0))
    empty = frame.height == 1 and frame[keys[0]][0] is None
    frame = frame.with_columns(
        pl.col(key).cast(pl.String).fill_null(NOTHING[key]) for key in keys if key in NOTHING
    ).sort(pl.col("delta_ns").abs(), descending=True, maintain_order=True)
    title = f"{title}, {format_change(float(frame['delta_ns'].sum()))} in all"
    told = [key for key in keys if key not in ("kind", "status") and (key == keys[0] or key == "name")]
    short = (*told, *(name for name in _SHORT if shares or name != "share"), "kind")
    return _table(dimension, title, frame, short, summed=True, detail=detail or empty)


def _step_times(found: Compared) -> list[dict[str, Any]]:
    """A row for each side; quantiles and extremes are of all its steps, those that do not count included."""
    rows = []
    sides = (("base", found.diff.base, found.times.base), ("new", found.diff.new, found.times.new))
    for (name, side, one), runs in zip(sides, found.runs, strict=True):
        every = pl.concat([pl.Series(values=run, dtype=pl.Int64) for run in runs])
        devices = sorted({facts.device for facts in side.facts if facts.device})
        rows.append(
            {
                **{"side": name, "name": side.name, "device": ", ".join(devices) or None},
                **{"runs": one.runs, "steps": one.steps, "warm_up": one.warm_up, "outliers": one.outliers},
                **{"median_ns": one.median, "mean_ns": one.mean, "p95_ns": every.quantile(0.95, "linear")},
                **{"min_ns": every.min(), "max_ns": every.max(), "std_ns": every.std()},
            }
        )
    return rows


def _gates(found: Compared) -> list[dict[str, Any]]:
    return [
        {"gate": str(one.gate), "outcome": one.outcome, "reason": one.reason}
        | {"base_ns": one.change.base.median, "new_ns": one.change.new.median}
        | _estimate(one.change.median)
        | {f"mean_{key}": value for key, value in _estimate(one.change.mean).items()}
        for one in found.judgements
    ]


def _estimate(one: Estimate) -> dict[str, Any]:
    tested = {"p": one.p, "test": one.test} if one.test else {"p": None, "test": None}
    return {"ratio": one.ratio, "low": one.low, "high": one.high, **tested}


def _ratios(times: StepComparison) -> list[dict[str, Any]]:
    return [
        {"name": name, **_estimate(one)} for name, one in (("median", times.median), ("mean", times.mean))
    ]


def _changes(found: Diff) -> list[dict[str, Any]]:
    own = ("kind", "title", "delta_ns", "before", "after", "layers", "base_ns", "new_ns")
    return [
        {name: getattr(change, name) for name in (*own, "base_calls", "new_calls", "noise_ns", "sure")}
        | {f"place_{key}": value for key, value in change.place.items()}
        for change in found.changes
    ]


def _tree(layers: pl.DataFrame, *, detail: bool) -> Table:
    """The layers of both sides, each with the times of all below it."""
    status = pl.col("status").cast(pl.String).replace(["matched", "none"], None)
    frame = layers.with_columns(
        pl.col("path", "name").fill_null(NOTHING["path"]),
        pl.concat_str("type", status, separator=", ", ignore_nulls=True).alias("type"),
    )
    table = _table("tree", "Tree of layers", frame, ("path", *_OF_TREE), detail=detail)
    return replace(table, tree=Tree(_OF_TREE[0]))


def _table(
    name: str,
    title: str,
    rows: pl.DataFrame | list[dict[str, Any]],
    short: tuple[str, ...],
    titles: Mapping[str, str] = {},
    *,
    summed: bool = False,
    detail: bool = False,
) -> Table:
    """A table of these rows, with the columns of `SCHEMAS`; `short` may name more."""
    schema = SCHEMAS[name]
    frame = pl.DataFrame(rows, schema) if isinstance(rows, list) else rows
    frame = frame.select(pl.col(key).cast(kind) for key, kind in schema.items())
    return replace(
        table_of(name, title, frame, short, {**_COLUMNS[0], **titles}, _COLUMNS[1]),
        hidden=tuple(key for key in ("base_sum", "new_sum") if key in schema),
        summed=summed,
        detail=detail,
    )
