"""The lengths of a graph's edges while changes are applied to them, and the code of its threads in pieces."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.analyses.attribution import attribution
from tracekit.analyses.graph.build import Dependencies
from tracekit.analyses.graph.joint import Lengths
from tracekit.analyses.graph.meetings import RankWaits
from tracekit.analyses.graph.model import LINKS, NEVER, Weights
from tracekit.analyses.idle.host_code import timeline
from tracekit.analyses.idle.span_causes import CAUSE_NUMBER
from tracekit.analyses.result import no_launches
from tracekit.classes import dataclass
from tracekit.errors import UsageError, nearest
from tracekit.facts.idle_names import CAUSES, cause_name
from tracekit.facts.stack_names import PHASES
from tracekit.groups import none_to_null, or_none
from tracekit.names import category_name, shorten_names
from tracekit.readers import how_to_record
from tracekit.spans import BoolArray, Int64Array, distinct_rows, take
from tracekit.trace import CATEGORIES

__all__ = ["KINDS", "Draft", "FloatArray", "HostTime", "Selection"]

FloatArray = npt.NDArray[np.float64]

KINDS: Final = ("layer", "kernel", "category", "op", "cause", "rank")
"""What a selector can name."""


_SHOWN_CATEGORIES: Final = {category_name(name): name for name in CATEGORIES}
_SHOWN_CAUSES: Final = {cause_name(name): name for name in CAUSES}
"""What tables call them: a user writes what he reads."""


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """What a selector fits: activities of devices (rows of `lines.rows`) and pieces of threads."""

    rows: BoolArray
    pieces: BoolArray


class HostTime:
    """The code of the graph's threads from its begin to its end, in pieces by the innermost span."""

    def __init__(self, made: Dependencies) -> None:
        self.made, self.scope = made, made.scope
        threads = np.unique(made.thread[made.thread >= 0])
        low, high = np.full(threads.size, made.begin), np.full(threads.size, made.end)
        stack = made.stack
        if threads.size:
            pieces = timeline(stack.nesting, threads).split(threads, low, high)
            self.thread = threads[pieces.interval]
            self.start, self.end, self.span = pieces.start, pieces.end, pieces.span
        else:
            self.thread = self.start = self.end = self.span = np.zeros(0, dtype=np.int64)

    @cached_property
    def cause(self) -> Int64Array:
        """The cause of each piece, as idle time has it (a number into CAUSES)."""
        return self.made.causes.of(self.span)

    @cached_property
    def _places(self) -> tuple[Int64Array, Int64Array]:
        distinct, back = distinct_rows(self.span, self.made.stack.size)
        places = attribution(self.scope).model.places(distinct)
        return places.layer[back], places.phase[back]

    @property
    def layer(self) -> Int64Array:
        """The layer of each piece (a row of the layer table; −1)."""
        return self._places[0]

    @property
    def phase(self) -> Int64Array:
        """The phase of each piece (a number into PHASES)."""
        return self._places[1]

    @cached_property
    def op(self) -> Int64Array:
        """The innermost operator around each piece (a span; −1)."""
        return take(self.made.operator, self.span)

    @cached_property
    def category(self) -> Int64Array:
        """The category of each piece's operator where no device was captured (a number into CATEGORIES; −1)."""
        of_span = np.full(self.made.stack.size, -1, dtype=np.int64)
        if self.scope.on_cpu:
            work = self.scope.activities.select("launch_id", pl.col("category").to_physical().cast(pl.Int64))
            of_span[work["launch_id"].to_numpy()] = work["category"].to_numpy()
        return take(of_span, self.op)

    def inside(self, spans: BoolArray) -> BoolArray:
        """Which pieces lie in one of these spans."""
        around = self.made.stack.nesting.nearest_ancestor(spans)
        inside: BoolArray = take(around, self.span) >= 0
        return inside

    def length(self, share: FloatArray, thread: Int64Array, start: Int64Array, end: Int64Array) -> FloatArray:
        """How much of each interval of a thread lies in pieces, each of which counts with its share."""
        found = np.zeros(thread.size)
        for code in np.unique(thread).tolist():
            low, high = np.searchsorted(self.thread, [code, code + 1])
            edges = np.append(self.start[low:high], self.end[high - 1 : high])
            sums = np.append(0.0, np.cumsum((self.end - self.start)[low:high] * share[low:high]))
            mine = thread == code
            found[mine] = np.interp(end[mine], edges, sums) - np.interp(start[mine], edges, sums)
        return found


class Draft:
    """The lengths of all edges, in ns, with the changes so far; and what they take for granted.

    `spread` is −1, 0 or 1: changes whose effect is not sure take their best, likeliest or worst case. `left` is the part of each piece of
    a thread that is left. `waits` are the waits of its rank for others, if those are there.
    """

    def __init__(
        self, made: Dependencies, host: HostTime, spread: int, rank: int, waits: RankWaits | None = None
    ) -> None:
        graph = made.graph
        self.made, self.host, self.spread, self.rank, self.waits = made, host, spread, rank, waits
        self.duration = graph.duration.astype(np.float64)
        self.left = np.ones(host.span.size)
        self.off = np.zeros(graph.links.source.size, dtype=bool)
        self.lag = graph.links.lag.astype(np.float64)
        self.gap = graph.lag.astype(np.float64)
        """What passes on a stream before each activity, while nothing holds it back."""
        self.added = np.zeros(graph.time.size)
        """Work of threads that comes on top, at each vertex."""
        self.waits_for_device = True
        """Whether the host still waits for the device where it did."""
        self.assumptions: list[str] = []

    # -- what a change can do ------------------------------------------------------------------------

    def scale_rows(self, rows: BoolArray, factor: float | FloatArray) -> None:
        """Activities of devices take that many times as long."""
        at = self._vertices(rows)
        self.duration[at] *= factor[self.made.activity[at]] if isinstance(factor, np.ndarray) else factor

    def scale_gaps(self, rows: BoolArray, factor: float) -> None:
        """The gaps on the stream before activities take that many times as long, as if there were that many of them."""
        self.gap[self._vertices(rows)] *= factor

    def remove_rows(self, rows: BoolArray) -> None:
        """Activities of devices are gone, with the gap before each and the latency of its launch.

        What an activity waited for from another stream, the next of its own stream waits for: there the gap after it is gone.
        """
        self.scale_rows(rows, 0.0)
        links, vertices = self.made.graph.links, self._vertices(rows)
        gone = np.zeros(self.made.activity.size, dtype=bool)
        gone[vertices] = True
        self.lag[self.links_of("launch") & gone[links.target]] = 0.0
        held = np.zeros(gone.size, dtype=bool)
        held[links.target[self.links_of("event", "inferred_wait")]] = True
        self.gap[vertices + (held & gone)[vertices]] = 0.0

    def _vertices(self, rows: BoolArray) -> Int64Array:
        """Where these activities start."""
        at = np.flatnonzero(self.made.activity >= 0)
        return at[rows[self.made.activity[at]]]

    def scale_pieces(self, pieces: BoolArray, factor: float) -> None:
        """Code of threads takes that many times as long."""
        self.left[pieces] *= factor

    def need_launches(self, label: str) -> None:
        """Raises UsageError where no activity has a launch, and so nothing shows what the host keeps the device waiting for."""
        flag, known = label.partition(" ")[0], no_launches(self.made.scope) is None
        if known and (self.links_of("launch").any() or not self.made.lost):
            return
        what, remedy = (
            "is linked to the device's work",
            how_to_record("launches", self.made.scope.trace.meta.format),
        )
        if known:
            what, remedy = (
                "agrees with the clock of the device",
                "record again: the clocks of host and device disagree",
            )
        raise UsageError(
            f"no launch {what}, so the trace does not show how long the device waits for the host",
            remedy=f"leave {flag} out, or {remedy}",
        )

    def take_out(self, links: BoolArray) -> None:
        """These links hold nothing back."""
        self.off |= links

    def assume(self, sentence: str) -> None:
        """Note what a change assumes."""
        if sentence not in self.assumptions:
            self.assumptions.append(sentence)

    def links_of(self, *kinds: str) -> BoolArray:
        """Which links are of these kinds."""
        mask: BoolArray = np.isin(self.made.graph.links.kind, [LINKS.index(kind) for kind in kinds])
        return mask

    def waits_in(self, pieces: BoolArray) -> BoolArray:
        """Which links end waits of calls that lie in these pieces."""
        made, host, links = self.made, self.host, self.made.graph.links
        waits = self.links_of("synchronisation", "inferred_synchronisation")
        at = np.flatnonzero(waits)
        thread, time = made.thread[links.target[at]], made.graph.time[links.target[at]]
        for code in np.unique(thread).tolist():
            low, high = np.searchsorted(host.thread, [code, code + 1])
            mine = thread == code
            piece = np.searchsorted(host.start[low:high], time[mine], side="left") - 1
            waits[at[mine]] = pieces[low + np.maximum(piece, 0)]
        return waits

    # -- what it comes to ----------------------------------------------------------------------------

    def lengths(self) -> Lengths:
        """The lengths of all edges."""
        work = self._work()
        return Lengths(self._weights(work), work, np.rint(self.duration).astype(np.int64))

    def _work(self) -> Int64Array:
        """The work on the chain into each vertex, in ns."""
        made, graph = self.made, self.made.graph
        work = graph.work.astype(np.float64)
        before = np.append(0, np.arange(work.size - 1))
        ran = made.activity[before] >= 0
        ran &= np.append(False, graph.lane[1:] == graph.lane[:-1]) & (graph.duration[before] > 0)
        work[ran] *= self.duration[before[ran]] / graph.duration[before[ran]]
        changed = self.left != 1
        if changed.any():
            on_thread = np.flatnonzero(
                (made.thread >= 0) & np.append(False, made.thread[1:] == made.thread[:-1])
            )
            whole = graph.time[on_thread] - graph.time[on_thread - 1]
            left = self.host.length(
                self.left, made.thread[on_thread], graph.time[on_thread - 1], graph.time[on_thread]
            )
            work[on_thread] *= np.where(whole > 0, left / np.maximum(whole, 1), 1)
        return np.rint(work + self.added).astype(np.int64)

    def _weights(self, work: Int64Array) -> Weights:
        """The lengths of all edges in ns."""
        made, graph, links = self.made, self.made.graph, self.made.graph.links
        lag = self.lag.copy()
        begin = np.flatnonzero(self.links_of("begin") & (made.thread[links.target] >= 0))
        if begin.size and (self.left != 1).any():
            target = links.target[begin]
            start, whole = np.full(begin.size, made.begin), graph.time[target] - made.begin
            left = self.host.length(self.left, made.thread[target], start, graph.time[target])
            lag[begin] *= np.where(whole > 0, left / np.maximum(whole, 1), 1)
        carried = np.where(links.after, np.rint(self.duration)[links.source], 0)
        link = np.where(self.off, NEVER, np.rint(lag + carried)).astype(np.int64)
        return Weights(work + np.rint(self.gap).astype(np.int64), link)

    # -- selectors -----------------------------------------------------------------------------------

    def select(self, selector: str) -> Selection:
        """What a selector such as `layer:encoder.*` fits.

        Raises UsageError for one that is none, and for one that fits nothing.
        """
        kind, colon, pattern = selector.partition(":")
        if kind not in KINDS or not colon or not pattern:
            how = "write layer:, kernel:, category:, op:, cause: or rank: and a name, with * for any letters"
            remedy = how if kind in KINDS else nearest(kind, KINDS, how)
            raise UsageError(f"{selector!r} selects nothing", remedy=remedy)
        found: Selection = getattr(self, f"_{kind}")(pattern)
        if not found.rows.any() and not found.pieces.any():
            raise UsageError(
                f"no {kind} in the window matches {pattern!r}", remedy=self._there(kind, pattern)
            )
        return found

    @cached_property
    def rows(self) -> pl.DataFrame:
        """The activities of `lines.rows` with `anchor`, the span that launched each (−1)."""
        anchor = pl.coalesce("launch_id", "op_id").fill_null(-1).alias("anchor")
        return self.made.lines.rows.with_columns(anchor)

    def none(self) -> Selection:
        """A selection of nothing."""
        return Selection(np.zeros(self.rows.height, dtype=bool), np.zeros(self.host.span.size, dtype=bool))

    def _layer(self, pattern: str) -> Selection:
        layers = attribution(self.made.scope).layers["path"].cast(pl.String)
        fits = np.append(_fits(layers, pattern) | _fits(layers, f"{pattern}.*"), False)
        rows = fits[self.rows["layer_id"].fill_null(-1).to_numpy()]
        return Selection(rows, fits[self.host.layer])

    def _kernel(self, pattern: str) -> Selection:
        pattern = pattern if "*" in pattern else f"*{pattern}*"
        names = self.rows["name"].cast(pl.String)
        rows = _fits(names, pattern)
        launches = np.zeros(self.made.stack.size, dtype=bool)
        launches[self.rows["launch_id"].filter(pl.Series(rows)).drop_nulls().to_numpy()] = True
        return Selection(rows, self.host.inside(launches))

    def _category(self, pattern: str) -> Selection:
        pattern = _SHOWN_CATEGORIES.get(pattern, pattern)
        rows = _fits(self.rows["category"].cast(pl.String), pattern)
        numbers = [i for i, name in enumerate(CATEGORIES) if _fits(pl.Series([name]), pattern)[0]]
        launches = np.zeros(self.made.stack.size, dtype=bool)
        launches[self.rows["launch_id"].filter(pl.Series(rows)).drop_nulls().to_numpy()] = True
        pieces = (
            np.isin(self.host.category, numbers) if self.made.scope.on_cpu else self.host.inside(launches)
        )
        return Selection(rows, pieces)

    def _op(self, pattern: str) -> Selection:
        stack = self.made.stack
        spans = _fits(stack.frame["name"], pattern) & stack.of_kind("op")
        around = stack.nesting.nearest_ancestor(spans)
        return Selection(take(around, self.rows["anchor"].to_numpy()) >= 0, take(around, self.host.span) >= 0)

    def _cause(self, pattern: str) -> Selection:
        pattern = _SHOWN_CAUSES.get(pattern, pattern.replace("-", "_").replace(" ", "_"))
        if pattern not in CAUSES:
            raise UsageError(
                f"there is no cause {pattern!r}",
                remedy=nearest(pattern, CAUSES, f"choose one of {', '.join(CAUSES)}"),
            )
        self.need_launches("cause:")
        pieces = self.host.cause == CAUSE_NUMBER[pattern]
        return Selection(self.none().rows, pieces & (self.host.category < 0))

    def _rank(self, pattern: str) -> Selection:
        """All that a rank does but for communication."""
        if pattern != str(self.rank):
            return self.none()
        talks = self.host.category == CATEGORIES.index("communication")
        return Selection((self.rows["class"] != "communication").to_numpy(), ~talks)

    def moving(self) -> FloatArray:
        """What activities take, in ns; collectives without their waits for other ranks, so far as these are known."""
        took = self.made.lines.rows["duration"].to_numpy().astype(np.float64)
        if self.waits is not None and self.waits.on_stream:
            took[self.made.activity[self.waits.vertex]] -= self.waits.waited
        return took

    def of_phase(self, phase: str) -> Selection:
        """The activities and pieces of a phase."""
        number = PHASES.index(phase)
        rows = self.rows["phase"].to_physical().cast(pl.Int64).fill_null(-1).to_numpy() == number
        return Selection(rows, self.host.phase == number)

    def _there(self, kind: str, pattern: str) -> str:
        """The names of a kind that there are."""
        if kind == "rank":
            return f"write the number of a rank that was given, such as rank:{self.rank}"
        used = none_to_null(np.unique(np.append(or_none(self.rows["layer_id"]), self.host.layer)))
        names = {
            "layer": attribution(self.made.scope).layers["path"].gather(used),
            "kernel": self.rows["name"],
            "op": self.made.stack.frame.filter(pl.col("kind") == "op")["name"],
            "category": (self.made.scope.activities if self.made.scope.on_cpu else self.rows)["category"],
            "cause": pl.Series(
                [CAUSES[i] for i in np.unique(self.host.cause[self.host.category < 0]).tolist()],
                dtype=pl.String,
            ),
        }[kind]
        distinct = sorted(
            names.drop_nulls().unique().cast(pl.String), key=lambda name: (name.startswith("<"), name)
        )
        shown = [*dict.fromkeys(shorten_names(distinct[:100], 40).values())]
        there = (
            f"there {'is' if len(shown) == 1 else 'are'} {', '.join(shown[:6])}{', …' if len(shown) > 6 else ''}"
            if shown
            else "there are none"
        )
        # A signature of C++ is like no word of it.
        words = {f"*{word}*": None for part in _WORDS for name in distinct for word in part.findall(name)}
        return nearest(pattern, distinct) or nearest(pattern, words, there)


_WORDS: Final = (re.compile(r"\w{4,40}"), re.compile(r"[^\W_]{4,40}"))
"""The names in a name, and what stands between their underscores."""


def _fits(names: pl.Series, pattern: str) -> BoolArray:
    """Which names a pattern fits, in which * stands for any letters; each distinct name is looked at once."""
    column = names.cast(pl.Categorical) if names.dtype == pl.String else names
    distinct = column.unique().drop_nulls()
    # No other letter is special: names hold brackets.
    fits = re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL).fullmatch
    wanted = distinct.filter(
        pl.Series([fits(name) is not None for name in distinct.cast(pl.String)], dtype=pl.Boolean)
    )
    if not wanted.len():
        return np.zeros(names.len(), dtype=bool)
    found: BoolArray = (
        column.to_physical().is_in(wanted.to_physical().implode()).fill_null(value=False).to_numpy()
    )
    return found
