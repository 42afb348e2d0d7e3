"""When each layer was at work, as nested bars for a timeline: on the host by phase, on the device by stream.

On the host a forward layer's bar is its own span. A backward node has no span of its layer, so a layer's backward bar
is the extent of a run of nodes, one after the other on one thread, that belong to it or to a layer inside it. On
a stream all bars are such runs of activities. A run ends with the step, the pass, the phase, and the outermost call
of a layer; an activity in no layer ends it as well. What belongs to which layer is told by `analyses.attribution`
(DEFINITIONS §5).
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.analyses.attribution import Attribution
from tracekit.analyses.attribution.span_places import StackModel
from tracekit.analyses.scope import Scope
from tracekit.facts.stack_names import PHASES
from tracekit.groups import or_none
from tracekit.spans import Int64Array, nest, take
from tracekit.trace import Schema

__all__ = ["LayerTracks", "layer_tracks"]

_BACKWARD = PHASES.index("backward")
_COLUMNS = ("thread", "phase", "layer_id", "start", "end", "work_ns", "level")

_BAR: Schema = {
    "phase": pl.Enum(PHASES),
    "layer_id": pl.Int64,
    "start": pl.Int64,
    "duration": pl.Int64,
    "work_ns": pl.Int64,
    "depth": pl.Int64,
}


class LayerTracks(msgspec.Struct, frozen=True, eq=False):
    """`host` has one row per bar: `process_id`, `thread_id`, `phase`, `layer_id`, `start`, `duration`, `work_ns`,
    `depth` (bars around it in its track, which is a thread and a phase). `device` has `device_id`, `stream_id` for
    the thread, and its track is the stream.

    Times are ns from the trace's origin. `work_ns` is the sum of the durations of the nodes or activities that a
    bar is made of; of a span its own. Rows are sorted by track, start, and the outer bar first.
    """

    host: pl.DataFrame
    device: pl.DataFrame


def layer_tracks(scope: Scope, attributed: Attribution) -> LayerTracks:
    """The bars of all layers; `attributed` is the attribution of `scope`.

    >>> import tracekit
    >>> from tracekit.analyses.attribution import attribution
    >>> from tracekit.analyses.scope import select
    >>> scope = select(tracekit.read("sample_traces/cnn_cpu/trace.json.gz"))
    >>> bars = layer_tracks(scope, attribution(scope)).host
    >>> sorted(bars["phase"].unique().cast(str))
    ['backward', 'data', 'forward', 'optimizer', 'other']
    """
    model = attributed.model
    threads = pl.DataFrame(
        {
            "thread": model.stack.thread,
            "process_id": model.stack.process,
            "thread_id": model.stack.frame["thread_id"],
        }
    ).unique("thread", keep="first")
    bars = pl.concat([_spans(model), _markers(model), _nodes(scope, attributed)])
    host = _nested(bars, ["thread", "phase"]).join(threads, on="thread", how="left", maintain_order="left")
    return LayerTracks(host=host.select("process_id", "thread_id", *_BAR), device=_device(scope, attributed))


def _spans(model: StackModel) -> pl.DataFrame:
    """The spans of layers, each from the first source that knows a layer there."""
    frames = [_bars([], [], [], [], [])]
    for number, source in enumerate(model.layers.sources):
        thread, start, end = source.nesting.thread, source.nesting.start, source.nesting.end
        _, which, _ = model.layers.at(thread, start)
        kept = np.flatnonzero((which == number) & (source.layer >= 0))
        row = model.stack.nesting.innermost_at(thread[kept], start[kept])
        phase = model.places(row).phase
        frames.append(_bars(thread[kept], phase, source.layer[kept], start[kept], end[kept]))
    return pl.concat(frames)


def _markers(model: StackModel) -> pl.DataFrame:
    """Ranges that stand for work in no layer, such as the optimizer's; of equal ones inside each other the outer."""
    phases, stack = model.phases, model.stack
    layer = take(phases.marked_layer, phases.marker_rows)
    kept = np.flatnonzero((layer >= 0) & (layer != take(layer, phases.markers.parent)))
    rows = phases.marker_rows[kept]
    return _bars(
        stack.thread[rows], phases.marked_phase[rows], layer[kept], stack.start[rows], stack.end[rows]
    )


def _nodes(scope: Scope, attributed: Attribution) -> pl.DataFrame:
    """Runs of the outermost backward nodes of each thread."""
    model = attributed.model
    stack, backward = model.stack, model.backward
    rows = np.flatnonzero(backward.is_node & (take(backward.node, stack.nesting.parent) < 0))
    places = model.places(rows)
    # A thread works off its nodes from the highest number down, so a higher one begins another backward pass.
    frame = pl.DataFrame({"thread": stack.thread[rows], "number": stack.sequence[rows]})
    latest_number = pl.when(pl.col("number") >= 0).then("number").forward_fill().over("thread")
    begins = frame.select(
        (latest_number > latest_number.shift(1)).fill_null(value=False).cum_sum().cast(pl.Int64)
    )
    step = _step_at(scope, stack.start[rows])
    group = _codes(begins.to_series().to_numpy(), step, places.phase)
    bars = _runs(
        stack.thread[rows], stack.start[rows], stack.end[rows], places.layer, group, attributed.layers
    )
    return bars.with_columns(pl.lit(_BACKWARD, pl.Int64).alias("phase")).select(_COLUMNS)


def _device(scope: Scope, attributed: Attribution) -> pl.DataFrame:
    rows, places = scope.activities, attributed.activities
    if scope.on_cpu or not rows.height:
        return pl.DataFrame(schema={"device_id": pl.Int64, "stream_id": pl.Int64, **_BAR})
    streams = (
        rows[["device_id", "stream_id"]].unique().sort("device_id", "stream_id").with_row_index("thread")
    )
    frame = rows.select(
        "device_id",
        "stream_id",
        "start",
        "end",
        "launch_id",
        pl.col("step").fill_null(-1),
        places["layer_id"].fill_null(-1),
        places["phase"].to_physical().cast(pl.Int64),
    )
    frame = frame.join(streams, on=["device_id", "stream_id"], nulls_equal=True).sort(
        "thread", "start", "end"
    )
    thread, start = frame["thread"].cast(pl.Int64).to_numpy(), frame["start"].to_numpy()
    # Kernels may begin before the one before them has ended; bars side by side must not overlap.
    following = frame.select(pl.col("start").shift(-1).over("thread")).to_series()
    end = frame.select(pl.min_horizontal("end", following)).to_series().to_numpy()
    phase = frame["phase"].to_numpy()
    calls = _outermost_calls(attributed.model, or_none(frame["launch_id"]))
    group = _codes(phase, frame["step"].to_numpy(), calls)
    bars = _runs(thread, start, end, frame["layer_id"].to_numpy(), group, attributed.layers, phase)
    bars = _nested(bars.select(_COLUMNS), ["thread"])
    bars = bars.join(
        streams.with_columns(pl.col("thread").cast(pl.Int64)), on="thread", maintain_order="left"
    )
    return bars.select("device_id", "stream_id", *_BAR)


def _outermost_calls(model: StackModel, launches: Int64Array) -> Int64Array:
    """A number for the outermost layer span around each launch; −1 for none."""
    outermost = np.full(launches.size, -1, dtype=np.int64)
    passed = 0
    for source in model.layers.sources:
        open_ = np.flatnonzero((outermost < 0) & (launches >= 0))
        rows = launches[open_]
        at = source.nesting.innermost_at(model.stack.thread[rows], model.stack.start[rows])
        depth = source.nesting.depth()
        roots = source.nesting.nearest_ancestor(depth == 0)
        call = take(roots, at)
        outermost[open_] = np.where(call >= 0, call + passed, -1)
        passed += depth.size
    return outermost


def _step_at(scope: Scope, time: Int64Array) -> Int64Array:
    index: Int64Array = np.searchsorted(scope.steps["start"].to_numpy(), time, side="right").astype(np.int64)
    return index


def _codes(*columns: Int64Array) -> Int64Array:
    """One number for each distinct combination."""
    frame = pl.DataFrame({f"c{number}": column for number, column in enumerate(columns)})
    return frame.select(pl.struct(pl.all()).rank("dense").cast(pl.Int64)).to_series().to_numpy()


def _runs(
    thread: Int64Array,
    start: Int64Array,
    end: Int64Array,
    layer: Int64Array,
    group: Int64Array,
    layers: pl.DataFrame,
    phase: Int64Array | None = None,
) -> pl.DataFrame:
    """Bars over items that are sorted by (thread, start): for each level of the tree the runs of one layer."""
    ancestors = _ancestors(layers)
    frames = [pl.DataFrame(schema=dict.fromkeys(_COLUMNS, pl.Int64))]
    if not thread.size:
        return frames[0]
    apart = (np.diff(thread, prepend=-1) != 0) | (np.diff(group, prepend=-1) != 0)
    for level in range(ancestors.shape[1]):
        at = np.where(layer >= 0, ancestors[np.maximum(layer, 0), level], -1)
        first = np.flatnonzero(apart | (np.diff(at, prepend=-2) != 0))
        frames.append(
            pl.DataFrame(
                {
                    "thread": thread[first],
                    "phase": phase[first] if phase is not None else np.zeros(first.size, dtype=np.int64),
                    "layer_id": at[first],
                    "start": start[first],
                    "end": np.maximum.reduceat(end, first),
                    "work_ns": np.add.reduceat(end - start, first),
                    "level": np.full(first.size, level, dtype=np.int64),
                }
            ).filter(pl.col("layer_id") >= 0)
        )
    return pl.concat(frames)


def _ancestors(layers: pl.DataFrame) -> Int64Array:
    """Row = layer, column = level: the ancestor of that level, itself included; −1 below it."""
    depth, parent = layers["depth"].to_numpy(), or_none(layers["parent_layer_id"])
    levels = int(depth.max()) + 1 if depth.size else 0
    ancestors = np.full((depth.size, levels), -1, dtype=np.int64)
    at = np.arange(depth.size, dtype=np.int64)
    for level in reversed(range(levels)):
        here = np.flatnonzero(depth[at] == level)
        ancestors[here, level] = at[here]
        at[here] = np.where(parent[at[here]] >= 0, parent[at[here]], at[here])
    return ancestors


def _bars(
    thread: npt.ArrayLike,
    phase: npt.ArrayLike,
    layer: npt.ArrayLike,
    start: npt.ArrayLike,
    end: npt.ArrayLike,
) -> pl.DataFrame:
    frame = pl.DataFrame(
        {"thread": thread, "phase": phase, "layer_id": layer, "start": start, "end": end},
        schema=dict.fromkeys(("thread", "phase", "layer_id", "start", "end"), pl.Int64),
    )
    own = (pl.col("end") - pl.col("start")).alias("work_ns")
    return frame.with_columns(own, pl.lit(0, pl.Int64).alias("level")).select(_COLUMNS)


def _nested(bars: pl.DataFrame, track: list[str]) -> pl.DataFrame:
    """The bars in the order of their tracks, with `duration` and their depth."""
    ordered = bars.with_columns((pl.col("start") - pl.col("end")).alias("shorter")).sort(
        *track, "start", "shorter", "level"
    )
    code = (
        _codes(*(ordered[name].to_numpy() for name in track))
        if ordered.height
        else np.zeros(0, dtype=np.int64)
    )
    depth = nest(code, ordered["start"].to_numpy(), ordered["end"].to_numpy()).depth()
    return ordered.with_columns(
        (pl.col("end") - pl.col("start")).alias("duration"),
        pl.Series("depth", depth, dtype=pl.Int64),
        pl.col("phase").replace_strict(dict(enumerate(PHASES)), return_dtype=pl.Enum(PHASES)),
    )
