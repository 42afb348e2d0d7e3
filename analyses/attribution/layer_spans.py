"""Which layer is open at a time on a thread: spans of layers from every source that a profile may have.

The sources, in their order of precedence (DEFINITIONS §5): the ranges of a capture; `nn.Module` frames
(`with_stack`); ranges that a person named, when they enclose at least one operator or launch on their thread or,
meanwhile, on one of the autograd engine, of those that the trace's `layer_ranges` leaves, with FSDP's hooks around a
module; and regions that torch.compile compiled.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import polars as pl

from tracekit.analyses.attribution.host_stack import HostStack
from tracekit.analyses.attribution.layer_ranges import (
    Spanning,
    fsdp_forwards,
    named_ranges,
    spanning_ranges,
    work_of,
)
from tracekit.analyses.attribution.recomputed import run_again
from tracekit.facts.capture_names import LAYER_PREFIX
from tracekit.facts.idle_names import NODE_CALL
from tracekit.facts.stack_names import COMPILED_REGION, MODULE_PREFIX
from tracekit.groups import any_known, groups, or_none, text_codes
from tracekit.limits import LONGEST_NAME
from tracekit.spans import Int64Array, Nesting, nest, take
from tracekit.trace import Trace

__all__ = [
    "LAYER_SCHEMA",
    "OF_MODEL",
    "ROOT",
    "LayerSource",
    "Layers",
    "layers_of",
    "nested_paths",
    "path_tree",
    "rows_of",
]


ROOT = "<root>"

OF_MODEL = ("capture", "module", "range", "compiled", "interval")
"""The sources of layers that are part of the model; other rows stand for work in no layer."""

_MOST_CONTAINERS = 32
"""A captured name with several parts is one layer: tracekit does not add modules around it that are never called."""

LAYER_SCHEMA = {
    "layer_id": pl.Int64,  # the row number
    "parent_layer_id": pl.Int64,  # null for a root
    "path": pl.String,  # qualified name
    "name": pl.String,  # the last part of it
    "type": pl.String,  # class of the module; null where the profile does not tell
    "source": pl.String,
    "depth": pl.Int64,
}


class LayerSource(msgspec.Struct, frozen=True, eq=False):
    """The spans of one source: nested by thread, each with the layer that it is a call of."""

    name: str
    nesting: Nesting
    layer: Int64Array

    def at(self, thread: Int64Array, time: Int64Array) -> tuple[Int64Array, Int64Array]:
        """For each (thread, time) the innermost open layer and the start of its span; −1 for none."""
        row = self.nesting.innermost_at(thread, time)
        return take(self.layer, row), take(self.nesting.start, row)


class SpanningSource(msgspec.Struct, frozen=True, eq=False):
    """Ranges without a thread, each with its layer."""

    name: str
    ranges: Spanning
    layer: Int64Array

    def at(self, thread: Int64Array, time: Int64Array) -> tuple[Int64Array, Int64Array]:
        """For each (thread, time) the innermost layer that is open in the thread's process, and its start; −1 for none."""
        row = self.ranges.at(thread, time)
        return take(self.layer, row), take(self.ranges.nesting.start, row)


class Layers(msgspec.Struct, frozen=True, eq=False):
    """`table` has the columns of LAYER_SCHEMA, `numbers` its `layer_id` by path and source; `sources` are in their order of precedence; `spanning` (start/end ranges) comes after them."""

    table: pl.DataFrame
    numbers: Mapping[tuple[str, str], int]
    sources: tuple[LayerSource, ...]
    spanning: SpanningSource | None = None

    @property
    def methods(self) -> tuple[str, ...]:
        """The name of each source by the number that `at` gives."""
        names = tuple(each.name for each in self.sources)
        return names if self.spanning is None else (*names, self.spanning.name)

    def at(self, thread: Int64Array, time: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """For each (thread, time): the layer, the number of its source, and the start of its span; −1 for none."""
        layer = np.full(thread.size, -1, dtype=np.int64)
        source, start = layer.copy(), layer.copy()
        sources: list[LayerSource | SpanningSource] = [*self.sources]
        if self.spanning is not None:
            sources.append(self.spanning)
        for number, each in enumerate(sources):
            open_ = np.flatnonzero(layer < 0)
            if not open_.size:
                break
            layers, since = each.at(thread[open_], time[open_])
            hit = layers >= 0
            layer[open_[hit]], start[open_[hit]], source[open_[hit]] = layers[hit], since[hit], number
        return layer, source, start

    def id_of(self, path: str, source: str) -> int:
        """The number of a layer of `table`; −1 if it has none."""
        return self.numbers.get((path, source), -1)


def layers_of(
    trace: Trace,
    stack: HostStack,
    engine: Int64Array,
    pseudo: list[tuple[str, str]],
    steps: pl.DataFrame | None = None,
) -> Layers:
    """All layers of a trace.

    `engine` are the threads of the autograd engine, `pseudo` (path, source) of rows that stand for work in no layer. Ranges
    that are `steps` (`start`, `end`) are no layers.
    """
    trees = [
        each
        for each in (
            _captured(trace, stack),
            _modules(stack),
            _ranges(trace, stack, engine, steps),
            _compiled(stack),
        )
        if each is not None
    ]
    spanning = spanning_ranges(trace, stack, work_of(trace, stack))
    if spanning is not None:
        row, tree = nested_paths(spanning.nesting, spanning.names, "/")
        trees.append((spanning.nesting, row, tree, "interval"))
    rows: list[tuple[str, str, str | None, str | None]] = []  # path, source, parent's path, type
    for _, _, table, source in trees:
        rows += [(path, source, parent, type_) for path, parent, type_ in table.rows()]
    rows += [(path, source, None, None) for path, source in pseudo]
    table = _numbered(rows)
    numbers = {(path, source): number for number, path, source in table["layer_id", "path", "source"].rows()}
    sources: list[LayerSource] = []
    process_wide: SpanningSource | None = None
    for nesting, row, tree, source in trees:
        layer_ids = np.array([numbers[path, source] for path in tree["path"]], dtype=np.int64)
        if spanning is not None and nesting is spanning.nesting:
            process_wide = SpanningSource(source, spanning, take(layer_ids, row))
        else:
            sources.append(LayerSource(source, nesting, take(layer_ids, row)))
    return Layers(table, numbers, tuple(sources), process_wide)


_Found = tuple[Nesting, Int64Array, pl.DataFrame, str]
"""Spans, the row of each in the tree, the tree (`path`, `parent`, `type`; parents are in it), and the source."""


def _captured(trace: Trace, stack: HostStack) -> _Found | None:
    """Ranges of a capture; their tree is that of the qualified names, with the containers that are never called."""
    layer = stack.frame["layer"]
    rows = np.flatnonzero(layer.is_not_null().to_numpy()) if any_known(layer) else np.zeros(0, dtype=np.int64)
    if not rows.size:
        return None
    spans = stack.frame["layer", "module_type"][rows].with_columns(pl.all().cast(pl.String))
    exact = _layer_table(trace)
    if exact is not None:  # the profiler cannot write every name into a range
        spans = spans.join(exact, left_on="layer", right_on="printed", how="left", maintain_order="left")
        spans = spans.select(
            pl.coalesce("path", "layer").alias("path"), pl.coalesce("type", "module_type").alias("type")
        )
    else:
        spans = spans.rename({"layer": "path", "module_type": "type"})
    spans = spans.with_columns(pl.col("path", "type").str.slice(0, LONGEST_NAME))
    types = dict(spans.unique("path", keep="first", maintain_order=True).rows())
    if exact is not None:
        types = {**dict(exact["path", "type"].rows()), **types}
    tree = _dotted_tree(types, rooted=ROOT in types)
    return stack.nesting_of(rows), rows_of(spans["path"], tree["path"]), tree, "capture"


def _layer_table(trace: Trace) -> pl.DataFrame | None:
    """`printed` (the name in the range), `path`, `type` of every module of the table that the capture wrote."""
    if trace.meta.layers is None:
        return None
    try:
        table = msgspec.json.decode(trace.meta.layers, type=_Table)
    except msgspec.DecodeError:
        return None  # the reader has said so in the trace's health
    return pl.DataFrame(
        [
            (
                one.range_name.removeprefix(LAYER_PREFIX),
                *(text[:LONGEST_NAME] for text in (one.name or ROOT, one.type)),
            )
            for one in table.layers
        ],
        schema={"printed": pl.String, "path": pl.String, "type": pl.String},
        orient="row",
    ).unique("printed", keep="first", maintain_order=True)


class _Row(msgspec.Struct):
    name: str
    range_name: str
    type: str


class _Table(msgspec.Struct):
    layers: list[_Row]


def _dotted_tree(types: dict[str, str | None], *, rooted: bool) -> pl.DataFrame:
    paths: dict[str, str | None] = {}
    for path in types:
        part, alone = path, path == ROOT or path.count(".") >= _MOST_CONTAINERS
        while part and part not in paths:
            above = "" if alone else part.rpartition(".")[0]
            paths[part] = above or (ROOT if rooted and part != ROOT else None)
            part = above
    return path_tree([(path, parent, types.get(path)) for path, parent in paths.items()])


def _modules(stack: HostStack) -> _Found | None:
    """`nn.Module` frames; a path is made of the names of the frames around each other."""
    wanted = stack.of_kind("module")
    if wanted.any():
        wanted &= stack.frame["layer"].is_null().to_numpy()
    if not wanted.any():
        return None
    rows = np.flatnonzero(wanted)
    names = stack.frame["name"][rows].cast(pl.String).str.strip_prefix(MODULE_PREFIX)
    nesting = stack.nesting_of(rows)
    row, tree = nested_paths(nesting, names, ".")
    in_node = stack.nesting.nearest_ancestor(stack.named(NODE_CALL, "op"))[rows] >= 0
    row, tree = run_again(nesting, names, in_node, row, tree)
    types = tree.with_columns(
        pl.col("path").str.split(".").list.last().str.replace(r"_\d+$", "").alias("type")
    )
    return nesting, row, types, "module"


def _ranges(trace: Trace, stack: HostStack, engine: Int64Array, steps: pl.DataFrame | None) -> _Found | None:
    rows, names = named_ranges(trace, stack, engine, steps), pl.Series([], dtype=pl.String)
    if rows.size:
        names = stack.frame["name"][rows].cast(pl.String)
    sharded = fsdp_forwards(stack)
    if not rows.size and sharded is None:
        return None
    thread, start, end = stack.thread[rows], stack.start[rows], stack.end[rows]
    if sharded is not None:
        thread, start, end = (
            np.concatenate([a, b]) for a, b in zip((thread, start, end), sharded[:3], strict=True)
        )
        names = pl.concat([names, sharded[3]])
        order = np.lexsort((-end, start, thread))
        thread, start, end, names = thread[order], start[order], end[order], names[order]
    nesting = nest(thread, start, end)
    row, tree = nested_paths(nesting, names, "/")
    return nesting, row, tree, "range"


def _compiled(stack: HostStack) -> _Found | None:
    rows = np.flatnonzero(stack.named(COMPILED_REGION, "op", "annotation"))
    if not rows.size:
        return None
    names = stack.frame["name"][rows].cast(pl.String)
    nesting = stack.nesting_of(rows)
    row, tree = nested_paths(nesting, names, "/")
    return nesting, row, tree, "compiled"


def _numbered(rows: list[tuple[str, str, str | None, str | None]]) -> pl.DataFrame:
    """The layer table: parents by number, depths."""
    number = {(path, source): index for index, (path, source, _, _) in enumerate(rows)}
    depths: dict[tuple[str, str], int] = {}
    parents = {(path, source): (parent, source) for path, source, parent, _ in rows if parent is not None}
    for path, source, _, _ in rows:
        chain = [(path, source)]
        while chain[-1] not in depths and chain[-1] in parents:
            chain.append(parents[chain[-1]])
        depths.setdefault(chain[-1], 0)
        for above, below in zip(reversed(chain), list(reversed(chain))[1:], strict=False):
            depths[below] = depths[above] + 1
    layers = [
        (
            index,
            number[parents[path, source]] if (path, source) in parents else None,
            path,
            _last_part(path, parent),
            type_,
            source,
            depths[path, source],
        )
        for index, (path, source, parent, type_) in enumerate(rows)
    ]
    return pl.DataFrame(layers, schema=LAYER_SCHEMA, orient="row")


def _last_part(path: str, parent: str | None) -> str:
    if parent is None or parent == ROOT:
        return path
    return path[len(parent) + 1 :]


# -- paths ------------------------------------------------------------------------------------------
#
# The paths of spans that lie in one another, and the tree of them.

_DEEPEST = 128
"""Ranges inside more others than this count as the innermost range of that depth, which bounds the paths."""


def path_tree(rows: list[tuple[str, str | None, str | None]]) -> pl.DataFrame:
    """A tree of paths from its rows: `path`, `parent`, `type`."""
    schema = {"path": pl.String, "parent": pl.String, "type": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


def nested_paths(nesting: Nesting, names: pl.Series, separator: str) -> tuple[Int64Array, pl.DataFrame]:
    """For each span its row in the tree of all paths, and that tree; one round per level of nesting."""
    depth = nesting.depth()
    name, texts = text_codes(names)
    parts = [(text or "")[:LONGEST_NAME] for text in texts]
    # A path is a number until the end, and its text is made once: paths are far longer than names.
    number = np.full(depth.size, -1, dtype=np.int64)
    paths: list[str] = []
    parents: list[str | None] = []
    by_depth = np.argsort(depth, kind="stable")
    edges = np.cumsum(np.bincount(depth))
    for rows in np.split(by_depth, edges[:-1])[:_DEEPEST]:
        above = take(number, nesting.parent[rows])
        pairs = groups(above, name[rows])
        new = np.full(pairs.size, -1, dtype=np.int64)
        # In the order in which they first occur.
        for pair in np.argsort(pairs.first, kind="stable").tolist():
            outer, text = int(pairs.keys[0][pair]), parts[int(pairs.keys[1][pair])]
            if outer >= 0 and len(paths[outer]) + len(separator) + len(text) > LONGEST_NAME:
                new[pair] = outer  # what lies deeper counts as the outer one
                continue
            new[pair] = len(paths)
            parents.append(None if outer < 0 else paths[outer])
            paths.append(text if outer < 0 else f"{paths[outer]}{separator}{text}")
        number[rows] = new[pairs.of]
    number = take(number, nesting.nearest_ancestor(depth < _DEEPEST))
    # Paths that read the same are one, that of the last.
    last = {path: index for index, path in enumerate(paths)}
    kept = sorted(last.values())
    row_of = {paths[index]: row for row, index in enumerate(kept)}
    row = np.array([row_of[path] for path in paths], dtype=np.int64)[number]
    return row, path_tree([(paths[index], parents[index], None) for index in kept])


def rows_of(values: pl.Series, keys: pl.Series) -> Int64Array:
    """The row in `keys` of each value; −1 for a value that is not there."""
    rows = pl.DataFrame({"value": keys, "row": np.arange(keys.len())})
    joined = values.alias("value").to_frame().join(rows, on="value", how="left", maintain_order="left")
    row: Int64Array = or_none(joined["row"])
    return row
