"""The comparison of two sides, from their digests."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.diff.cells import cells_as_arrays
from tracekit.diff.contributions import by_dimension, calls_of_host, shares_matched
from tracekit.diff.explain import explained
from tracekit.diff.idle_told import IdleTeller
from tracekit.diff.layers import Nodes, match_layers
from tracekit.diff.matching import Comparable, cells_of, reshaped, rows_of
from tracekit.diff.model import LAYERS, Contribution, Diff
from tracekit.diff.noise import counted_steps
from tracekit.diff.notes import notes_of, stalled
from tracekit.diff.pool import Pool, pool
from tracekit.diff.ranks import Ranks
from tracekit.diff.recorded import at_common_level, recorded
from tracekit.diff.waits import waits_of
from tracekit.diff.words import Teller
from tracekit.digest import Digest
from tracekit.groups import at_rows, or_none

__all__ = ["diff_of"]

_MOSTLY: Final = 0.5
_SOME: Final = 0.1
_TIMES: Final = ("slower", "faster", "idle")
"""Changes that a stall explains too: those in time alone."""


def diff_of(
    base: Sequence[Digest],
    new: Sequence[Digest],
    runs: tuple[Sequence[int], Sequence[int]] | None = None,
    *,
    paired: bool = False,
) -> Diff:
    """The change of the step time from base to new, explained. Each side is one process or several, which are pooled.

    `runs`: how many processes each run of both sides has, one after the other; without it all of a side are one run. Several runs show
    how sure a change is. `paired`: runs of one place belong together, and what both have in common is no noise.

    >>> import tracekit
    >>> from tracekit.digest import digest_of
    >>> made = digest_of(tracekit.read("sample_traces/cnn_cpu/trace.json.gz"))
    >>> same = diff_of([made], [made])
    >>> same.changes, same.change_ns
    ((), 0.0)
    """
    windows = not all(digest.has_steps for digest in (*base, *new))
    kept = _kept(base, new, windows=windows)
    of_runs = runs or (None, None)
    sides = (
        pool(base, kept[0], windows=windows, runs=of_runs[0]),
        pool(new, kept[1], windows=windows, runs=of_runs[1]),
    )
    has = recorded(sides[0].side.facts, sides[1].side.facts)
    nodes = match_layers(*((side.layers, side.leaves) for side in sides))
    layers = has.work and _in_common(nodes, *sides, same_frames=has.same_frames)
    if not layers:
        nodes = Nodes(pl.DataFrame(schema=LAYERS), {}, {}, None)
    sides = reshaped(rows_of(*sides, nodes), *sides)
    rows = at_common_level(rows_of(*sides, nodes), has, layers=layers)
    # Of layers that are not compared, or as a whole, the types are those of one side.
    compared = ~pl.col("node").is_in(nodes.whole_rows) if layers else pl.lit(value=False)
    rows = rows.with_columns(pl.when(pl.col("node").is_null() & layers | compared).then("type"))
    comparable = _comparable(rows, *sides, layers=layers)
    celled = cells_of(rows, comparable)
    cells = cells_as_arrays(celled, *sides, paired=paired)
    parents = or_none(nodes.frame["parent_layer_id"])
    matched = shares_matched(celled, sides[0].side, sides[1].side)
    calls = calls_of_host(rows, nodes, sides[0].side, sides[1].side)
    waits = waits_of(calls, nodes, same_kind=comparable.kinds)
    found = explained(cells, parents, names=comparable.names, waits=waits) if has.work else []
    on_cpu = sides[1].side.facts[0].on_cpu if comparable.kinds else None
    per: Literal["step", "window"] = "window" if windows else "step"
    teller = Teller(cells, rows, nodes, found, IdleTeller(calls, on_cpu, per), Ranks.of(celled, *sides))
    stood = stalled(base, new)
    hidden = stood.hides(float(sides[0].side.mean), float(sides[1].side.mean))
    changes = [teller.change(each, sure=each.sure and not (hidden and each.kind in _TIMES)) for each in found]
    changes.sort(key=lambda change: (not change.sure, -abs(change.delta), change.title))
    total = sides[1].side.mean - sides[0].side.mean
    return Diff(
        base=sides[0].side,
        new=sides[1].side,
        per=per,
        notes=tuple(notes_of(*sides, comparable, has, nodes, matched, stood=stood.told, windows=windows)),
        by=by_dimension(rows, nodes, sides[0].side, sides[1].side),
        calls=calls,
        matched=matched,
        changes=(
            *(one for one in changes if one.sure),
            *_moved(nodes),
            *(one for one in changes if not one.sure),
        ),
        rest=total - sum((change.delta for change in changes), start=Fraction(0)),
    )


def _kept(
    base: Sequence[Digest], new: Sequence[Digest], *, windows: bool
) -> list[list[npt.NDArray[np.bool_]]]:
    """Which steps of each process count: of windows all, else those that count in the comparison of the step times."""
    if windows:
        return [[np.ones(digest.steps.height, dtype=bool) for digest in side] for side in (base, new)]
    times = ([digest.steps["time_ns"].to_numpy() for digest in side] for side in (base, new))
    return counted_steps(*times)[0]


def _in_common(nodes: Nodes, base: Pool, new: Pool, *, same_frames: bool) -> bool:
    """Whether some of the work that lies in layers of the model lies in layers that both sides have; where only one side has Python frames,
    which show modules, most of it on both.
    """
    matched, shares = set(nodes.frame.filter(pl.col("status").is_in(["matched", "moved"]))["layer_id"]), []
    for side, numbers in ((base, nodes.base), (new, nodes.new)):
        paths = set(side.layers.filter("part_of_model")["path"])
        shared = [path for path in paths if numbers.get(path) in matched]
        timed = side.leaves.filter(pl.col("layer").is_in(paths)).select("ns", pl.col("layer").is_in(shared))
        whole, both = int(timed["ns"].sum()), int(timed.filter("layer")["ns"].sum())
        shares.append(both / whole if whole else 0.0)
    return max(shares) >= _SOME if same_frames else min(shares) >= _MOSTLY


def _comparable(rows: pl.DataFrame, base: Pool, new: Pool, *, layers: bool) -> Comparable:
    work = rows.filter(~pl.col("kind").is_in(["idle", "call"]))
    shapes = work.group_by("new").agg(pl.col("shapes").is_not_null().any())
    on_cpu = {facts.on_cpu for side in (base, new) for facts in side.side.facts}
    devices = {facts.device for side in (base, new) for facts in side.side.facts}
    names = True
    if len(devices) > 1 or len(on_cpu) > 1:
        known = work.group_by("kind", "name").agg(
            pl.col("ns").filter("new").sum().alias("new_ns"), pl.col("ns").filter(~pl.col("new")).sum()
        )
        common = known.filter(pl.col("ns") > 0, pl.col("new_ns") > 0)
        names = all(int(common[each].sum()) >= _MOSTLY * int(known[each].sum()) for each in ("ns", "new_ns"))
    return Comparable(
        layers=layers,
        shapes=shapes.height == 2 and bool(shapes["shapes"].all()),
        names=names,
        kinds=len(on_cpu) == 1,
    )


def _moved(nodes: Nodes) -> list[Contribution]:
    """The layers that moved, but not those that moved with the layer around them."""
    frame = nodes.frame
    moved = frame["status"] == "moved"
    inside = at_rows(moved, frame["parent_layer_id"]).fill_null(value=False)
    return [
        Contribution(
            kind="moved",
            delta=Fraction(0),
            title=f"layer {before} is now {after}",
            place={"layer": after, **({} if kind is None else {"type": kind})},
            before=before,
            after=after,
            layers=1,
        )
        for before, after, kind in frame.filter(moved & ~inside)["base_path", "new_path", "type"].rows()
    ]
