"""The critical path as a track and as arrows of the Chrome trace format."""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit.analyses.graph.build import Dependencies, dependencies
from tracekit.analyses.graph.joint import alone
from tracekit.analyses.graph.model import LINKS
from tracekit.analyses.graph.parts import bars_of, part_name, parts_of
from tracekit.analyses.scope import select
from tracekit.facts.capture_names import ENRICHED_CATEGORY
from tracekit.trace import Trace

__all__ = ["LABEL", "arrows", "path_bars"]

LABEL = "critical path"
_ABOVE_ALL = -1_000
_BETWEEN = ("launch", "event", "inferred_wait", "synchronisation", "inferred_synchronisation")
"""The links that begin and end inside of what a viewer draws."""


def path_bars(trace: Trace) -> pl.DataFrame:
    """The parts of the critical path of the steps as bars of a track: `pid`, `label`, `sort`, `start`, `duration`, `name`, `args`.

    Parts of one kind that follow each other are one bar.
    """
    bars = bars_of(parts_of(alone(dependencies(select(trace)))))
    names = {one: part_name(one) for one in bars["part"].unique()}
    resource = pl.col("resource").cast(pl.String)
    return bars.select(
        pl.lit(trace.meta.process_id or 0, pl.Int64).alias("pid"),
        pl.lit(LABEL).alias("label"),
        pl.lit(_ABOVE_ALL, pl.Int64).alias("sort"),
        "start",
        pl.col("duration_ns").alias("duration"),
        pl.col("part").replace_strict(names, return_dtype=pl.String).alias("name"),
        pl.struct(resource, pl.col("name").alias("runs"), "operator", "layer")
        .struct.json_encode()
        .alias("args"),
    )


def arrows(trace: Trace) -> list[str]:
    """The links of the critical path between threads and streams as flow events, each as JSON."""
    made = dependencies(select(trace))
    graph = made.graph
    path = graph.path(graph.weights, made.replayed)
    links = path.link[path.link >= 0]
    links = links[np.isin(graph.links.kind[links], [LINKS.index(name) for name in _BETWEEN])]
    source, target = graph.links.source[links], graph.links.target[links]
    # An arrow binds to what is open: it leaves an activity just before its end, and reaches a call before its return.
    left = graph.time[source] + np.where(
        graph.links.after[links], np.maximum(graph.duration[source] - 1, 0), 0
    )
    reached = graph.time[target] - (made.thread[target] >= 0)
    origin = trace.meta.origin_ns
    lines = []
    for number, (vertex, at, other, until) in enumerate(
        zip(source.tolist(), left.tolist(), target.tolist(), reached.tolist(), strict=True)
    ):
        for phase, where, time in (("s", vertex, at), ("f", other, until)):
            pid, tid = _place(made, where)
            micros = f"{(time + origin) // 1000}.{(time + origin) % 1000:03}"
            bound = ',"bp":"e"' if phase == "f" else ""
            lines.append(
                f'{{"ph":"{phase}","cat":"{ENRICHED_CATEGORY}","name":"{LABEL}","id":{number},"pid":{pid},"tid":{tid},"ts":{micros}{bound}}}'
            )
    return lines


def _place(made: Dependencies, vertex: int) -> tuple[int, int]:
    """Process and thread under which a viewer draws a vertex."""
    row = int(made.activity[vertex])
    if row >= 0:
        line = int(made.lines.line[row])
        return int(made.lines.device[line]), int(made.lines.stream[line])
    first = int(np.searchsorted(made.stack.thread, made.thread[vertex]))
    host = made.stack.frame
    return int(host["process_id"][first]), int(host["thread_id"][first])
