"""The chain of work and waits that determines how long the window is, and what else could take longer at no cost.

The dependency graph (`analyses.graph`) has an edge for everything that the trace shows one thing waited for: the order of a thread and
of a stream, launches, events between streams, calls that wait for the device, threads that wait for others. The critical path is
the longest chain of edges from the begin to the end of the window. Its parts sum to the window exactly. Work off the path has *slack*:
it may take so much longer without a longer window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.graph.joint import Joint, joint_graph
from tracekit.analyses.graph.parts import Stretches, longest_of, recorded, tracks_of
from tracekit.analyses.recording import is_slowed, unrecorded_ns
from tracekit.analyses.result import Result, TableView
from tracekit.analyses.scope import Scope, once, select
from tracekit.analyses.whole import whole_steps
from tracekit.classes import dataclass
from tracekit.facts.idle_names import cause_name
from tracekit.facts.units import count_of, format_ns, format_share, listed
from tracekit.groups import none_to_null
from tracekit.intervals import IntervalSet
from tracekit.spans import Int64Array
from tracekit.trace import Trace

__all__ = ["TABLES", "CriticalPath", "critical_path"]

_LISTED: Final = 100
"""The number of rows in the table of the longest parts."""
_DOUBTFUL: Final = 0.1
"""Replays of traces whose links are all known differ by at most a few percent."""
_SAID: Final = 0.005
"""A smaller share of the window is not worth a word."""


def _by(column: str, what: str, more: str = "") -> TableView:
    return TableView(
        f"The critical path by {what}",
        f"{column} total_ns share{more}",
        titles={
            "share": "of the window",
            "total_ns": "on the path",
            "work_ns": "all its work",
            "slack_ns": "slack",
            "handovers": "times entered",
            "waited_ns": "waited in collectives",
        },
    )


TABLES: Final = {
    "by_cause": TableView(
        "The critical path by what it consists of",
        "resource cause total_ns share parts",
        titles={"share": "of the window", "total_ns": "on the path"},
        main=True,
    ),
    "by_rank": _by("rank", "rank", " handovers waited_ns"),
    "by_category": _by("category", "kind of work"),
    "by_layer": _by("layer", "layer", " work_ns slack_ns"),
    "by_operator": _by("operator", "operator"),
    "by_kernel": TableView(
        "Kernels, and how much longer each may take at no cost",
        "name total_ns share work_ns slack_ns",
        titles={
            "share": "of the window",
            "total_ns": "on the path",
            "work_ns": "all its work",
            "slack_ns": "slack",
        },
        processor_title="Operators on the critical path",
    ),
    "by_frame": _by("frame", "line of your code"),
    "longest": TableView(
        "Longest parts of the critical path",
        "start duration_ns rank resource cause name operator layer frame",
        titles={"duration_ns": "duration"},
        short="start duration_ns resource cause name layer",
    ),
    "steps": TableView(
        "Steps, and their replay with usual lags",
        "rank step name time_ns replayed_ns replay_error",
        titles={"time_ns": "recorded", "replayed_ns": "replayed", "replay_error": "off by"},
    ),
}
"""How each table is presented."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CriticalPath(Result):
    """The longest chain of work and waits through the window."""

    by_cause: pl.DataFrame
    """`resource` (device, processor, host, wait) and `cause` (a class of activities, or a cause of idle time) with `total_ns` on the
    path, `share` of the window and `parts`, the number of stretches. The parts sum to the window."""
    by_rank: pl.DataFrame | None
    """Of several ranks `rank`, `total_ns` on the path, `share`, `handovers`, how many times the path came to the rank from another one, and
    `waited_ns`, its time in matched collectives until the last rank had come. None of one trace."""
    by_category: pl.DataFrame
    """Work of the device on the path (without a device: operators) by `category`: `total_ns`, `share`."""
    by_layer: pl.DataFrame | None
    """`layer` (null: in none): `total_ns` on the path, `share`, `work_ns` (all activities of the layer, on the path or off it), and
    `slack_ns`: by how much these may grow together without a longer window (null without activities, and where nothing waits for them).
    None if no layer is known."""
    by_operator: pl.DataFrame | None
    """`operator` (null: in none): `total_ns`, `share`. None if no operator is known."""
    by_kernel: pl.DataFrame
    """`name` of an activity: `total_ns` on the path, `share`, `work_ns` and `slack_ns` as in `by_layer`."""
    by_frame: pl.DataFrame | None
    """The host's code on the path by `frame` of the user's Python code: `total_ns`, `share`. None if no frame is known."""
    longest: pl.DataFrame
    """The longest parts: `start`, `duration_ns`, `resource`, `cause`, `name`, `operator`, `layer`, `frame`; of several ranks also `rank`."""
    steps: pl.DataFrame | None
    """Of each step the recorded time `time_ns`, that of a replay in which launches, gaps and returns take their usual times
    (`replayed_ns`), and `replay_error`, by which part of it they differ. None without steps."""
    length_ns: int
    """The length of the path, which is that of the window."""
    device_ns: int | None
    """Work of devices on the path, without communication; None where no device was captured."""
    processor_ns: int | None
    """Work in operators on the path where no device was captured, without communication; else None."""
    communication_ns: int
    """Communication on the path."""
    host_ns: int
    """Code of the host on the path."""
    wait_ns: int
    """Waits on the path for neither: launch latencies, gaps between kernels, returns of calls."""
    links: int
    """All links of the graph between threads and streams."""
    inferred_links: int
    """Those of them that rest on times, since the trace does not record what waited for what."""
    inferred_ns: int | None
    """The time of the path that rests on them: before each of them that it takes, back to the link before. None without any."""
    replay_error: float
    """By which part of the window a replay with usual lags differs from what was recorded."""


def critical_path(of: Scope | Trace | Sequence[Scope | Trace]) -> CriticalPath:
    """The critical path of a scope; of several, which are the ranks of a job, the one through all of them.

    Of a file that ends too early only the whole steps count. Raises UsageError if no collective links the ranks, and InconclusiveError if no
    step is whole.

    >>> import tracekit
    >>> result = critical_path(tracekit.read("sample_traces/cnn_cpu/trace.json.gz"))
    >>> result.length_ns == int(result.by_cause["total_ns"].sum())
    True
    """
    if isinstance(of, Scope | Trace):
        return once(of, lambda scope: _of_whole([scope]))
    return _of_whole([select(one) if isinstance(one, Trace) else one for one in of])


def _of_whole(scopes: Sequence[Scope]) -> CriticalPath:
    whole, told = whole_steps(scopes)
    found = _critical_path(joint_graph(whole))
    return replace(found, answer=f"{told} {found.answer}") if told else found


def _critical_path(joint: Joint) -> CriticalPath:
    path, window = recorded(joint), joint.window
    tracks = list(tracks_of(joint, path))
    longest = longest_of(tracks, _LISTED)
    parts = pl.concat([some for one in tracks for some in one.totals()])
    del tracks
    usual = joint.graph.replay(joint.usual)
    causes = _grouped(parts, window, "resource", "cause", counted=True)
    sums, on_cpu = _sums(causes), all(one.scope.on_cpu for one in joint.members)
    activities = _activities(joint)
    ranks = _ranks(joint, path, parts)
    work = parts.filter(pl.col("category").is_not_null())
    error = abs(int(usual[-1]) - joint.end) / window if window else 0.0
    doubt = (
        f" A replay with usual lags gives a window that differs by {format_share(error)}, so links between the work may be missing, and "
        "what is called waiting may be for other work."
        if error >= _DOUBTFUL
        else ""
    )
    return CriticalPath(
        answer=_answer(joint, sums, causes, ranks) + doubt,
        not_captured=joint.missing,
        by_cause=causes,
        by_rank=ranks,
        by_category=_grouped(work, window, "category"),
        by_layer=_if_any(_with_slack(_grouped(parts, window, "layer"), activities, "layer"), "layer"),
        by_operator=_if_any(_grouped(parts, window, "operator"), "operator"),
        by_kernel=_with_slack(_grouped(work, window, "name"), activities, "name"),
        by_frame=_if_any(_grouped(parts.filter(pl.col("resource") == "host"), window, "frame"), "frame"),
        longest=longest.select(*([] if ranks is None else ["rank"]), *_SHOWN).with_columns(
            pl.col(pl.Categorical, pl.Enum).cast(pl.String)
        ),
        steps=_steps(joint, usual),
        length_ns=int(parts["duration_ns"].sum()),
        device_ns=None if on_cpu else sums["device"],
        processor_ns=sums["device"] if on_cpu else None,
        communication_ns=sums["communication"],
        host_ns=sums["host"],
        wait_ns=sums["wait"],
        links=joint.between,
        inferred_links=joint.inferred,
        inferred_ns=int((path.end - path.start)[path.by_time].sum()) if joint.inferred else None,
        replay_error=error,
    )


_SHOWN: Final = ("start", "duration_ns", "resource", "cause", "name", "operator", "layer", "frame")


def _sums(causes: pl.DataFrame) -> dict[str, int]:
    """The time on the path of each resource, in ns; `device` has that of processors too, and `communication` is apart."""
    resource = pl.col("resource").replace({"processor": "device"})
    talks = (resource == "device") & (pl.col("cause") == "communication")
    kind = pl.when(talks).then(pl.lit("communication")).otherwise(resource).alias("kind")
    sums = causes.group_by(kind).agg(pl.col("total_ns").sum()).rows()
    return dict.fromkeys(("device", "communication", "host", "wait"), 0) | dict(sums)


def _grouped(parts: pl.DataFrame, window: int, *columns: str, counted: bool = False) -> pl.DataFrame:
    """The time on the path by these columns, the largest first."""
    total = pl.col("duration_ns").sum()
    count = [pl.col("parts").sum()] if counted else []
    sums = parts.group_by(*columns).agg(total.alias("total_ns"), (total / window).alias("share"), *count)
    sums = sums.with_columns(pl.col(name).cast(pl.String) for name in columns if name != "rank")
    return sums.sort("total_ns", *columns, descending=[True, *[False] * len(columns)], nulls_last=True)


def _if_any(rows: pl.DataFrame, column: str) -> pl.DataFrame | None:
    """The rows; None where the column tells nothing."""
    return rows if rows[column].is_not_null().any() else None


# -- slack and replay ------------------------------------------------------------------------------


def _ranks(joint: Joint, path: Stretches, parts: pl.DataFrame) -> pl.DataFrame | None:
    """The path by rank; None of one trace."""
    if len(joint.members) == 1:
        return None
    member = joint.member[path.vertex]
    member = member[member >= 0]
    came = np.bincount(member[1:][member[1:] != member[:-1]], minlength=len(joint.members))
    # Collectives of one rank may run at the same time.
    waited = [
        IntervalSet.of(begin := made.graph.time[one.vertex], begin + one.waited).measure
        for made, one in zip(joint.members, joint.waits, strict=True)
    ]
    return (
        pl.DataFrame({"rank": joint.ranks, "handovers": came, "waited_ns": waited})
        .join(_grouped(parts, joint.window, "rank"), on="rank", how="left")
        .with_columns(pl.col("total_ns", "share").fill_null(0))
        .select("rank", "total_ns", "share", "handovers", "waited_ns")
        .sort("rank")
    )


def _activities(joint: Joint) -> pl.DataFrame:
    """`name`, `layer`, `duration` and `slack` (null without a device) of every activity, in ns."""
    frames = []
    for number, made in enumerate(joint.members):
        owners = attribution(made.scope)
        if made.scope.on_cpu:
            layer_id, slack = (
                owners.activities["layer_id"],
                pl.repeat(None, owners.activities.height, dtype=pl.Int64),
            )
            rows = made.scope.activities
        else:
            rows, at = made.lines.rows, np.flatnonzero((joint.activity >= 0) & (joint.member == number))
            layer_id, of = rows["layer_id"], np.zeros(rows.height, dtype=np.int64)
            of[joint.activity[at]] = joint.slack[at]
            slack = pl.lit(none_to_null(of))  # what nothing waits for may grow as it likes
        layer = owners.layers["path"].cast(pl.Categorical).gather(layer_id)
        frames.append(rows.select("name", "duration", layer.alias("layer"), slack.alias("slack")))
    return pl.concat(frames)


def _with_slack(sums: pl.DataFrame, activities: pl.DataFrame, column: str) -> pl.DataFrame:
    """The time on the path with all work of each group, and by how much it may grow: as much as that of its members which may grow
    least, since no path is lengthened by more than what its parts grow together.
    """
    work = activities.group_by(column).agg(
        pl.col("duration").sum().alias("work_ns"), pl.col("slack").min().alias("slack_ns")
    )
    joined = sums.join(
        work.with_columns(pl.col(column).cast(pl.String)),
        on=column,
        how="full",
        coalesce=True,
        nulls_equal=True,
    )
    filled = joined.with_columns(pl.col("total_ns", "share", "work_ns").fill_null(0))
    return filled.sort("total_ns", "work_ns", column, descending=[True, True, False], nulls_last=True)


def _steps(joint: Joint, usual: Int64Array) -> pl.DataFrame | None:
    frames = []
    for made, where, rank in zip(joint.members, joint.where, joint.ranks, strict=True):
        if made.steps.size < 2:
            continue
        recorded, replayed = np.diff(made.graph.time[made.steps]), np.diff(usual[where[made.steps]])
        frames.append(
            made.scope.steps.select(pl.lit(rank, pl.Int64).alias("rank"), "step", "name").with_columns(
                pl.Series("time_ns", recorded),
                pl.Series("replayed_ns", replayed),
                pl.Series("replay_error", np.abs(replayed - recorded) / np.maximum(recorded, 1)),
            )
        )
    if not frames:
        return None
    return pl.concat(frames) if len(joint.members) > 1 else frames[0].drop("rank")


# -- in words --------------------------------------------------------------------------------------


def _answer(joint: Joint, sums: dict[str, int], causes: pl.DataFrame, ranks: pl.DataFrame | None) -> str:
    window = joint.window
    if not window:
        return "The window holds no work, so there is no path."
    on_cpu = all(one.scope.on_cpu for one in joint.members)
    work = "work in operators" if on_cpu else "device work"
    launched = ranks is None and joint.members[0].count("launch") > 0
    unknown = int(causes.filter(pl.col("cause") == "unexplained")["total_ns"].sum())
    named = (
        (sums["device"], work),
        (sums["communication"], "communication"),
        (sums["host"], "other host code" if on_cpu else "host code"),
        (sums["wait"] - unknown, "waiting in launch latencies and gaps" if launched else "waiting"),
        (unknown, "waiting of unknown cause"),
    )
    shares = [
        f"{what} takes {format_share(ns / window)}"
        for ns, what in sorted(named, reverse=True)
        if ns >= _SAID * window
    ]
    text = f"The critical path is {format_ns(window)} long: {listed(shares)}.".replace(
        "takes 100.0 %", "takes all of it"
    )
    host = causes.filter(pl.col("resource") == "host")
    if host.height and sums["host"] >= _SAID * window:
        cause, ns = host["cause"][0], host["total_ns"][0]
        text += f" The largest part of the host code is {cause_name(cause)} ({format_ns(ns)})."
    if not on_cpu and not sum(one.count("launch") for one in joint.members):
        text += " No launches are known, so the path does not show when the host and the device wait for each other."
    plain = None if len(joint.members) > 1 else unrecorded_ns(joint.members[0].scope)
    if plain is not None and is_slowed(joint.members[0].scope):
        text += f" This is the path as recorded. Without recording the window takes {format_ns(plain)}, since the host is faster then."
    if ranks is None and sums["communication"] >= _SAID * window:
        text += " This is the path of one rank: its communication may be a wait for another rank."
    if ranks is not None:
        rank, _, share, *_ = ranks.sort("total_ns", "rank", descending=[True, False]).row(0)
        much = "All" if share == 1 else format_share(share)
        met = f"{count_of(joint.alike, 'call')} of communication"
        text += f" {much} of it lies on rank {rank} of {ranks.height} ranks, which are linked by {met}."
    return text
