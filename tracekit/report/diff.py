"""Two sides compared, as a section: the verdict and the largest changes in words, then tables by dimension, and figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import polars as pl

from tracekit.analyses.result import Unit, column_of
from tracekit.diff.model import AMOUNTS, Diff
from tracekit.diff.noise import FEWEST_STEPS, Change
from tracekit.facts.units import count_of, format_change, format_ns, format_share
from tracekit.names import clean, clean_frame, shorten_name
from tracekit.report.diff_tree import grown, icicle
from tracekit.report.format import format_number
from tracekit.report.model import Column, Figure, Section, Table, Tree

__all__ = ["diff_section"]

MOST_TOLD: Final = 6
"""Changes that have a sentence; the table has all."""
_NAME_WIDTH: Final = 60
_TWICE: Final = 2
_LEAST_P: Final = 0.001
_LAYERS: Final = 3
"""Fewer layers with work make no figure: then kernels do."""

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
_NOTHING: Final = {
    "path": "unattributed",
    "type": "no type",
    "operator": "outside operators",
    "name": "no recorded call",
}
"""What stands for a null."""
_COLUMNS: Final[dict[str, tuple[str, Unit]]] = {
    "path": ("layer", "text"),
    "name": ("name", "text"),
    "kind": ("kind", "text"),
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
    "test": ("test", "text"),
    "low": ("from", "number"),
    "high": ("to", "number"),
    "ratio": ("ratio", "number"),
    "delta_ns": ("change", "change"),
    "noise_ns": ("standard error", "ns"),
}
_OF_TREE: Final = ("tree_delta_ns", "tree_base_ns", "tree_new_ns")
_SHORT: Final = "base_ns new_ns delta_ns share"


def diff_section(found: Diff, times: Change) -> Section:
    """The section of a comparison and of that of its step times: tables `steps`, `ratios`, one for each dimension, `calls`,
    `changes`, `matched` and the `tree` of layers.
    """
    return Section(
        "diff",
        "What changed from base to new, and is it more than noise?",
        " ".join(_answer(found, times)),
        tag=times.verdict,
        points=tuple((label, clean(text)) for label, text in _points(found, times)),
        tables=tuple(_tables(found, times)),
        figures=tuple(_figures(found)),
    )


# -- words -----------------------------------------------------------------------------------------


def _answer(found: Diff, times: Change) -> Iterator[str]:
    what = "A step" if found.per == "step" else "The window"
    base, new, ratio = format_ns(times.base.median), format_ns(times.new.median), times.median.ratio
    against = f"{new} instead of {base} at the median"
    if _nothing(found):
        yield f"Nothing changed: {what.lower()} takes {new} at the median on both sides, and all parts of it take as long."
    elif times.verdict == "same":
        yield f"{what} takes as long as before: {new} against {base} at the median."
    elif times.verdict == "inconclusive" or ratio is None:
        yield f"It is not clear whether {what.lower()} takes longer or shorter: {new} against {base} at the median."
    elif ratio >= _TWICE:
        yield f"{what} takes {ratio:.2f} times as long: {against}."
    elif ratio > 1 / _TWICE:
        amount = f"{format_share(ratio - 1)} longer" if ratio > 1 else f"{format_share(1 - ratio)} less time"
        yield f"{what} takes {amount}: {against}."
    else:
        yield f"{what} takes {format_share(ratio)} of the time: {against}."


def _nothing(found: Diff) -> bool:
    """Whether no figure differs."""
    sums = (frame["base_ns"].equals(frame["new_ns"]) for frame in found.by.values())
    return not found.change and not found.changes and all(sums)


def _points(found: Diff, times: Change) -> Iterator[tuple[str, str]]:
    if not _nothing(found):
        yield "test", _test(times)
    if found.change:
        yield (
            "mean",
            f"The mean {found.per} went from {format_ns(found.base.mean_ns)} to {format_ns(found.new.mean_ns)} "
            f"({format_change(found.change_ns)}); what follows sums to this.",
        )
    for change in found.changes[:MOST_TOLD]:
        yield "change", change.title
    others = found.changes[MOST_TOLD:]
    rest = float(found.rest + sum(change.delta for change in others))
    if rest:
        more = (
            f"{count_of(len(others), 'more change')}, and what no change explains"
            if others
            else "What no change explains"
        )
        yield "rest", f"{more}: {format_change(rest)}."
    for note in dict.fromkeys((*found.notes, *times.notes)):
        yield "note", note


def _test(times: Change) -> str:
    """The ratio of the medians and how sure it is."""
    middle, base, new = times.median, times.base, times.new
    number = format_number
    steps = f"{_steps(new)} of new against {_steps(base)} of base"
    if middle.ratio is None:
        return f"The median of base is 0, so there is no ratio; {steps}."
    ratio = f"Ratio of the medians {number(middle.ratio)}"
    if middle.low is None or middle.high is None:
        return f"{ratio}; {steps}. An interval needs {FEWEST_STEPS} steps on each side."
    p = f"p < {_LEAST_P}" if middle.p < _LEAST_P else f"p = {number(middle.p)}"
    interval = f"95 % interval {number(middle.low)} to {number(middle.high)} ({times.method})"
    return f"{ratio}, {interval}; {p} that new is not slower ({middle.test}); {steps}."


def _steps(side: Any) -> str:
    runs = f" in {side.runs} runs" if side.runs > 1 else ""
    return f"{count_of(side.steps, 'step')}{runs}"


# -- tables ----------------------------------------------------------------------------------------


def _tables(found: Diff, times: Change) -> Iterator[Table]:
    steps = "side name steps median_ns mean_ns p95_ns min_ns max_ns"
    yield _table("steps", "Times of steps", _step_times(found, times), steps)
    yield _table("ratios", "Ratio of new to base", _ratios(times), "name ratio low high p test")
    if (found.by["layer"]["depth"] > 0).any():
        yield _tree(found.by["layer"], detail=_nothing(found))
    unsaid = {"type", *(_TITLES if _nothing(found) else ())}
    if all(facts.on_cpu for side in (found.base, found.new) for facts in side.facts):
        unsaid.add("name")  # there the operators are what runs
    for dimension in _TITLES:
        if found.by[dimension].height:
            yield _by(
                found, dimension, shares=times.verdict in ("slower", "faster"), detail=dimension in unsaid
            )
    if found.calls.height:
        short = f"category name base_calls new_calls {_SHORT}"
        yield _table(
            "calls", "Calls of the host that wait, allocate or load code", found.calls, short, summed=True
        )
    yield _table("changes", "Changes", _changes(found), "delta_ns kind title", detail=True)
    matched = "how base_ns new_ns base_share new_share"
    yield _table("matched", "How work was matched", found.matched, matched, detail=True)


def _by(found: Diff, dimension: str, *, shares: bool, detail: bool) -> Table:
    """The rows of a dimension, the largest change first."""
    frame = found.by[dimension]
    names = [name for name in frame.columns if name not in AMOUNTS]
    if dimension == "layer":
        names = ["path", "type", "status"]
    texts = [pl.col(name).cast(pl.String) for name in names]
    filled = [
        text.fill_null(_NOTHING[name]) if name in _NOTHING else text
        for name, text in zip(names, texts, strict=True)
    ]
    frame = frame.select(*filled, *AMOUNTS)
    frame = frame.sort(pl.col("delta_ns").abs(), descending=True, maintain_order=True)
    title = f"{_TITLES[dimension]}, {format_change(float(frame['delta_ns'].sum()))} in all"
    told = names[:1] if dimension == "layer" else [name for name in names if name != "kind"]
    short = [
        *told,
        *(name for name in _SHORT.split() if shares or name != "share"),
        *(["kind"] if "kind" in names else []),
    ]
    return _table(dimension, title, frame, " ".join(short), summed=True, detail=detail)


def _step_times(found: Diff, times: Change) -> pl.DataFrame:
    rows = []
    for name, side, one in (("base", found.base, times.base), ("new", found.new, times.new)):
        kept = side.steps.filter("kept")["time_ns"]
        devices = sorted({facts.device for facts in side.facts if facts.device})
        rows.append(
            {
                "side": name,
                "name": side.name,
                "device": ", ".join(devices) or None,
                "runs": one.runs,
                "steps": one.steps,
                "warm_up": one.warm_up,
                "outliers": one.outliers,
                "median_ns": one.median,
                "mean_ns": one.mean,
                "p95_ns": kept.quantile(0.95, "linear"),
                "min_ns": kept.min(),
                "max_ns": kept.max(),
                "std_ns": kept.std(),
            }
        )
    return pl.DataFrame(rows)


def _ratios(times: Change) -> pl.DataFrame:
    rows = [
        {
            "name": name,
            "ratio": one.ratio,
            "low": one.low,
            "high": one.high,
            "p": one.p,
            "test": one.test,
        }
        for name, one in (("median", times.median), ("mean", times.mean))
    ]
    return pl.DataFrame(rows, schema_overrides=dict.fromkeys(("ratio", "low", "high"), pl.Float64))


def _changes(found: Diff) -> pl.DataFrame:
    places = dict.fromkeys(key for change in found.changes for key in change.place)
    rows = [
        {
            "delta_ns": change.delta_ns,
            "kind": change.kind,
            "title": change.title,
            **{f"place_{key}": change.place.get(key) for key in places},
            "before": change.before,
            "after": change.after,
            "layers": change.layers,
            "base_ns": change.base_ns,
            "new_ns": change.new_ns,
            "base_calls": change.base_calls,
            "new_calls": change.new_calls,
            "noise_ns": change.noise_ns,
        }
        for change in found.changes
    ]
    return pl.DataFrame(rows, infer_schema_length=None) if rows else pl.DataFrame()


def _tree(layers: pl.DataFrame, *, detail: bool) -> Table:
    status = pl.col("status").cast(pl.String).replace(["matched", "none"], None)
    kind = pl.concat_str("type", status, separator=", ", ignore_nulls=True)
    frame = layers.with_columns(pl.col("path").fill_null(_NOTHING["path"]), kind.alias("type")).select(
        "layer_id", "parent_layer_id", "depth", pl.col("name").fill_null(_NOTHING["path"]), "path", "type", "status", "base_path",
        "matched_by", *_OF_TREE,
    )  # fmt: skip
    table = _table("tree", "Tree of layers", frame, " ".join(("path", *_OF_TREE)), detail=detail)
    return replace(table, tree=Tree(_OF_TREE[0]))


def _table(
    name: str, title: str, frame: pl.DataFrame, short: str, *, summed: bool = False, detail: bool = False
) -> Table:
    columns = []
    for key, dtype in frame.schema.items():
        column = column_of(key, dtype)
        columns.append(Column(key, *_COLUMNS.get(key, (column.title, column.unit))))
    hidden = ("base_sum", "new_sum") if "base_sum" in frame.columns else ()
    shown = tuple(key for key in short.split() if key in frame.columns)
    return Table(
        name,
        title,
        clean_frame(frame),
        tuple(columns),
        frame.height,
        short=shown,
        hidden=hidden,
        summed=summed,
        detail=detail,
    )


# -- figures ---------------------------------------------------------------------------------------


def _figures(found: Diff) -> Iterator[Figure]:
    layers = found.by["layer"].filter(pl.col("status") != "none")
    if layers.height >= _LAYERS:
        tree = grown(_layer_leaves(found.by["layer"]))
        title = "Layers of both sides"
    else:
        frame = found.by["name"].with_columns(pl.col("name").fill_null(_NOTHING["name"]))
        tree = grown(
            ((kind, shorten_name(name, _NAME_WIDTH)), base, new)
            for kind, name, base, new in frame.select("kind", "name", "base_ns", "new_ns").rows()
        )
        title = "Kernels and idle time of both sides"
    drawn = icicle(tree, title)
    if drawn is not None:
        yield drawn
    sides = [
        (name, side.steps.filter("kept")["time_ns"])
        for name, side in (("base", found.base), ("new", found.new))
    ]
    series = [
        {"label": name, "x": list(range(times.len() + 1)), "y": [*times, times[-1]]}
        for name, times in sides
        if times.len()
    ]
    if len(series) > 1 and any(times.len() > 1 for _, times in sides):
        data = {"unit": "ns", "ends": ["first step", "last step"], "series": series}
        yield Figure("step_times", "Times of the steps in order", "line", data)


def _layer_leaves(layers: pl.DataFrame) -> Iterator[tuple[tuple[str, ...], float, float]]:
    """The own time of each layer with the names from the top down to its own."""
    paths: dict[int, tuple[str, ...]] = {}
    columns = (
        "layer_id",
        "parent_layer_id",
        pl.col("name").fill_null(_NOTHING["path"]),
        "base_ns",
        "new_ns",
    )
    for number, parent, name, base, new in layers.select(*columns).rows():
        paths[number] = (*paths.get(parent, ()), name)
        yield paths[number], base, new
