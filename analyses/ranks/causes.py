"""Why a rank is late: what it spends longer on than the other ranks of its groups do in the same steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import log, prod
from typing import Any, Final

import polars as pl

from tracekit.analyses.flops.work import is_shape, json_list
from tracekit.analyses.ranks.align import Alignment
from tracekit.analyses.ranks.blame import delays_of
from tracekit.analyses.ranks.mates import Mates, in_layer
from tracekit.analyses.ranks.summary import NO_STEP, Summary
from tracekit.analyses.ranks.waits import Waits
from tracekit.trace import Schema

__all__ = ["causes_of"]

_EXPLAINS: Final = 0.25
"""A cause explains at least this part of a delay."""
_MOST: Final = 16
"""For so many ranks the cause is looked for."""
_COMPARED: Final = 32
"""With so many others each of them is compared."""
_MOSTLY: Final = 0.8
"""A layer around others stands for them if it is the innermost with this part of what they take longer."""
_CAUSES: Final[Schema] = {
    "at": pl.Int64,
    "kind": pl.String,
    "what": pl.String,
    "where": pl.String,
    "longer_ns": pl.Int64,
    "steps": pl.Int64,
    "late_steps": pl.Int64,
    "times_operators": pl.Float64,
    "times_flops": pl.Float64,
    "times_inputs": pl.Float64,
}


def causes_of(summaries: Sequence[Summary], aligned: Alignment, waits: Waits) -> pl.DataFrame:
    """`at`, `kind`, `what`, `where`, `longer_ns`, `steps`, `late_steps`, `times_operators`, `times_flops`, `times_inputs` of the ranks that others wait for longest.

    In the steps in which the others wait for it, a rank spends `longer_ns` longer on this than the middle of the other ranks in its
    groups that do the same work (`ranks.mates`): on a `layer` (its path; the innermost one that holds most of the difference), on an `operator` in no layer, `idle` for a cause, or, if none of
    these explains a quarter of the delay, on all that it computes (`compute`), and `where` is the line of Python or the layer with most of it. A rank of which nothing explains a quarter of the delay has no row. Of the `late_steps` in which the others wait for it these are `steps`, which they have, too. `times_operators` is how many times as many operators (on a device
    activities) as the middle of the others it runs there, `times_flops` how many times as many FLOPs they have, `times_inputs` how many times as large the input of the longest is that differs most; null if a rank has none, and for idle time.
    """
    calls = aligned.calls.select(
        pl.col("match").alias("origin"), "at", "key", pl.col("step").fill_null(NO_STEP)
    )
    late = (
        delays_of(waits.blame, waits.collectives)
        .join(calls, on=["origin", "at"])
        .group_by("at", "key", "step")
        .agg(pl.col("ns").sum())
    )
    most = late.group_by("at").agg(pl.col("ns").sum()).sort("ns", "at", descending=[True, False])
    mates = Mates(summaries)
    rows = [
        _cause(at, late.filter(pl.col("at") == at), summaries, calls, mates) for at in most["at"].head(_MOST)
    ]
    return pl.DataFrame([row for row in rows if row is not None], schema=_CAUSES, orient="row")


def _cause(
    at: int, late: pl.DataFrame, summaries: Sequence[Summary], calls: pl.DataFrame, mates: Mates
) -> tuple[int, str, str, str | None, int, int, int, float | None, float | None, float | None] | None:
    key = late.group_by("key").agg(pl.col("ns").sum()).sort("ns", "key", descending=[True, False])["key"][0]
    others, comparable = _others_of(at, key, calls, mates)
    work = _work_of((at, *others), summaries, comparable=comparable)
    steps = late.select("step", "ns").join(_since(at, key, calls), on="step", how="left")
    spans = steps.with_columns(pl.int_ranges(pl.coalesce("first", "step"), pl.col("step") + 1).alias("of"))
    late = spans.explode("of").select(pl.col("of").alias("step"), "ns")
    late = late.join(work.filter(pl.col("at") == at)[["step"]], on="step", how="semi")
    delay = int(steps["ns"].sum()) if late.height else 0
    work = work.join(late[["step"]], on="step", how="semi")
    longer = _longer(work, at)
    best = max([*_layers(longer), *_others(longer)], key=lambda one: one[2], default=None)
    if best is None or best[2] < max(_EXPLAINS * delay, 1):
        # A device that is slower takes longer for everything, a little of which is in each layer.
        best = ("compute", "", int(longer.filter(pl.col("kind") != "idle")["longer_ns"].sum()))
    if best[2] < max(_EXPLAINS * delay, 1):
        return None
    kind, what, ns = best
    where = _where(work, at, what, ns) if kind == "idle" else None
    inside = pl.col("what") == what
    if kind == "layer":
        inside |= pl.col("what").str.starts_with(f"{what}.")
    of_kind = pl.lit(value=True) if kind == "compute" else (pl.col("kind") == kind) & inside
    there = work.filter(of_kind, pl.col("kind") != "idle")
    own, theirs = (work.filter(mine)["step"].n_unique() for mine in (pl.col("at") == at, pl.col("at") != at))
    return (at, kind, what, where, ns, theirs, own, *_amounts(there, at), _times_inputs(there, at))


def _others_of(at: int, key: str, calls: pl.DataFrame, mates: Mates) -> tuple[list[int], bool]:
    """The other ranks of a group that do the same work as this one; if none does, those of its other groups, the smallest ones first. Else all of the
    group, and False: their layers are not to be compared.
    """
    others = calls.filter((pl.col("key") == key) & (pl.col("at") != at))["at"].unique().sort().to_list()
    others = others[:: -(-len(others) // _COMPARED)] if others else []
    shared = calls.join(calls.filter(pl.col("at") == at)[["key"]].unique(), on="key", how="semi")
    ranks = shared.select("key", "at").unique().with_columns(pl.len().over("key").alias("size"))
    near = ranks.filter(pl.col("at") != at).group_by("at").agg(pl.col("size").min()).sort("size", "at")["at"]
    same = mates.of(at, others, near.to_list())
    return (same[:_COMPARED], True) if same else (others, False)


def _work_of(ranks: Sequence[int], summaries: Sequence[Summary], *, comparable: bool) -> pl.DataFrame:
    """What the ranks did, by `at`; without layers if they are not comparable."""
    columns = ("step", "kind", "what", "where", "ns", "count", "flops", "shapes")
    work = pl.concat(
        [summaries[one].work.select(pl.lit(one, dtype=pl.Int64).alias("at"), *columns) for one in ranks]
    )
    return work if comparable else work.filter(~in_layer())


def _since(at: int, key: str, calls: pl.DataFrame) -> pl.DataFrame:
    """`step`, `first`: of each step in which the rank meets this group the first one after the step in which it met it before: gradients may be summed over
    several steps.
    """
    steps = calls.filter(pl.col("at") == at, pl.col("key") == key)[["step"]].unique().sort("step")
    return steps.with_columns((pl.col("step").shift(1) + 1).alias("first"))


def _where(work: pl.DataFrame, at: int, cause: str, ns: int) -> str | None:
    """The place in which this rank spends most of so much more idle time of a cause; None if there is none."""
    here = (pl.col("kind") == "idle") & (pl.col("what") == cause)
    by_place = work.with_columns(
        kind=pl.when(here).then(pl.lit("place")).otherwise("kind"),
        what=pl.when(here).then("where").otherwise("what"),
    )
    places = _longer(by_place, at).filter(pl.col("kind") == "place").drop_nulls("what")
    places = places.filter(pl.col("longer_ns") > ns / 2)
    return places["what"][0] if places.height == 1 else None


def _amounts(work: pl.DataFrame, at: int) -> tuple[float | None, float | None]:
    """How many times as many operators and FLOPs this rank has in this work as the middle of the others that have any."""
    found = work.group_by("at").agg(pl.col("count", "flops").sum())
    own, others = found.filter(pl.col("at") == at), found.filter(pl.col("at") != at)
    times = []
    for name in ("count", "flops"):
        middle = others[name].filter(others[name] > 0).median()
        mine = int(own[name].sum())
        times.append(mine / middle if mine and isinstance(middle, float) else None)
    return times[0], times[1]


def _times_inputs(work: pl.DataFrame, at: int) -> float | None:
    """How many times as large as on the others the input is that differs most, of what takes this rank longest; None if some are larger and some
    smaller, or of other shapes.
    """
    most = work.filter(pl.col("at") == at).sort("ns").tail(1)
    alike = work.join(most, on=["kind", "what", "where"], how="semi", nulls_equal=True).drop_nulls("shapes")
    own, others = (
        alike.filter(mine)["shapes"].mode().sort() for mine in (pl.col("at") == at, pl.col("at") != at)
    )
    if not own.len() or not others.len():
        return None
    pairs = zip(json_list(own[0]), json_list(others[0]), strict=False)
    times = [_times(*pair) for pair in pairs]
    known = [each for each in times if each is not None]
    if not known or len(known) < len(times) or min(known) < 1 < max(known):
        return None
    return max(known, key=lambda each: abs(log(each)))


def _times(own: Any, other: Any) -> float | None:
    if not (is_shape(own) and is_shape(other) and len(own) == len(other)):
        return None
    mine, theirs = prod(own), prod(other)
    return 1.0 if mine == theirs else mine / theirs if mine and theirs else None


def _longer(work: pl.DataFrame, at: int) -> pl.DataFrame:
    """`kind`, `what`, `longer_ns`: what this rank spends longer on than the middle of the others, over these steps."""
    parts = ["step", "kind", "what"]
    work = work.group_by("at", *parts).agg(pl.col("ns").sum())
    others = work.filter(pl.col("at") != at)
    # A rank that does none of it spends 0 ns.
    ranks = others.group_by("step").agg(pl.col("at").n_unique().cast(pl.Int64).alias("ranks"))
    middle = others.group_by(parts).agg("ns").join(ranks, on="step")
    zeros = pl.lit(0, dtype=pl.Int64).repeat_by(pl.col("ranks") - pl.col("ns").list.len().cast(pl.Int64))
    middle = middle.select(*parts, pl.concat_list("ns", zeros).list.median().alias("middle"))
    return (
        work.filter(pl.col("at") == at)
        .join(ranks[["step"]], on="step", how="semi")
        .join(middle, on=parts, how="left")
        .group_by("kind", "what")
        .agg((pl.col("ns") - pl.col("middle").fill_null(0)).sum().round().cast(pl.Int64).alias("longer_ns"))
    )


_Cause = tuple[str, str, int]


def _others(longer: pl.DataFrame) -> Iterable[_Cause]:
    return longer.filter(pl.col("kind") != "layer").sort("kind", "what").rows()


def _layers(longer: pl.DataFrame) -> Iterable[_Cause]:
    """The innermost layer that holds most of what the layers take longer, with all layers in it; none if there are no layers."""
    sums: dict[str, int] = {}
    for path, ns in longer.filter(pl.col("kind") == "layer")[["what", "longer_ns"]].sort("what").rows():
        parts = path.split(".")
        for depth in range(1, len(parts) + 1):
            around = ".".join(parts[:depth])
            sums[around] = sums.get(around, 0) + ns
    whole = max(sums.values(), default=0)
    holding = [path for path, ns in sums.items() if ns > 0 and ns >= _MOSTLY * whole]
    if holding:
        innermost = max(holding, key=lambda path: (path.count("."), sums[path]))
        yield "layer", innermost, sums[innermost]
