"""The collectives of a job as events of the Chrome trace format: a track for each rank with its calls and its waits in them, and an
arrow from the rank that came last to each that waited.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Final

import msgspec
import polars as pl

from tracekit.facts.capture_names import ENRICHED_CATEGORY
from tracekit.job import Job
from tracekit.report.chrome import micros

__all__ = ["tracks"]

_HEAD: Final = f'{{"cat":"{ENRICHED_CATEGORY}",'
_FLOW: Final = f'{{"cat":"{ENRICHED_CATEGORY}","name":"the last rank has come",'
_FIRST_FLOW: Final = 1 << 52
"""Numbers of flows of the traces are smaller, and a double holds it."""
_APART: Final = 1_000


def tracks(job: Job, zero_ns: int, processes: Mapping[int, int]) -> tuple[Iterator[bytes], int]:
    """The events, and how many arrows are among them. `processes` are the numbers of the tracks, one for each rank (its place in the job) that has one; the job's zero
    is at `zero_ns`. A rank may wait for one without a track, from which no arrow leads.
    """
    calls = _calls(job)
    arrows = calls.filter((pl.col("wait_ns") > 0) & (pl.col("last") != pl.col("at")))
    arrows = arrows.filter(pl.col("at").is_in(list(processes)) & pl.col("last").is_in(list(processes)))
    return _events(job, calls, arrows, zero_ns, processes), arrows.height


def _calls(job: Job) -> pl.DataFrame:
    """The calls of the collectives with what is shown of each, by rank and start, and the `lane` of each on its rank's track."""
    last = job.waits.collectives.select("match", "last", pl.col("name"), "group", "bytes")
    rows = job.waits.calls.join(last, on="match").sort("at", "start", "end", maintain_order=True)
    came = rows.filter(pl.col("at") == pl.col("last")).select("match", pl.col("start").alias("came"))
    rows = rows.join(came.unique("match", keep="first"), on="match", how="left", maintain_order="left")
    return rows.with_columns(pl.Series("lane", _lanes(rows), dtype=pl.Int64)).with_columns(
        pl.col("lane").filter(pl.col("at") == pl.col("last")).first().over("match").alias("last_lane")
    )


def _lanes(rows: pl.DataFrame) -> Iterator[int]:
    """Slices of one thread must nest, so that calls that overlap get a lane each."""
    ends: list[int] = []
    rank = -1
    for at, start, end in rows.select("at", "start", "end").rows():
        if at != rank:
            rank, ends = at, []
        lane = next((place for place, free in enumerate(ends) if free <= start), len(ends))
        ends[lane : lane + 1] = [end]
        yield lane


def _events(
    job: Job, calls: pl.DataFrame, arrows: pl.DataFrame, zero_ns: int, processes: Mapping[int, int]
) -> Iterator[bytes]:
    ranks = job.table.sort("at").select("rank", "trace").rows()
    labels = [trace if rank is None else f"rank {rank}" for rank, trace in ranks]
    for place, (at, process) in enumerate(processes.items()):
        own = calls.filter(pl.col("at") == at)
        if own.is_empty():
            continue
        yield _names(process, labels[at], place, own["lane"].unique().sort().to_list())
        yield from _lines(_slices(own, process, labels, zero_ns))
    numbers = count(_FIRST_FLOW)
    pairs = pl.DataFrame(
        {"pid": list(processes.values()), "at": list(processes)}, schema={"pid": pl.Int64, "at": pl.Int64}
    )
    flows = arrows.join(pairs, on="at", maintain_order="left").join(
        pairs.rename({"at": "last", "pid": "from"}), on="last", maintain_order="left"
    )
    flows = flows.with_columns(pl.Series("id", [next(numbers) for _ in range(flows.height)], dtype=pl.Int64))
    yield from _lines(_arrows(flows, zero_ns))


def _names(process: int, label: str, place: int, lanes: Sequence[int]) -> bytes:
    told = [
        ("process_name", 0, {"name": f"{label}: collectives"}),
        ("process_sort_index", 0, {"sort_index": place * _APART}),
    ]
    told += [("thread_name", lane, {"name": "collectives and waits"}) for lane in lanes]
    return b"".join(
        msgspec.json.encode(
            {"ph": "M", "cat": ENRICHED_CATEGORY, "name": name, "pid": process, "tid": lane, "args": args}
        )
        + b",\n"
        for name, lane, args in told
    )


def _slices(calls: pl.DataFrame, process: int, labels: Sequence[str], zero_ns: int) -> pl.Series:
    """Each call, and within it the wait."""
    names = {at: msgspec.json.encode(f"waits for {label}").decode() for at, label in enumerate(labels)}
    calls = calls.with_columns(pl.col("start") + zero_ns, (pl.col("end") - pl.col("start")).alias("duration"))
    args = pl.struct(
        "group", "bytes", pl.col("wait_ns"), pl.col("match").alias("collective")
    ).struct.json_encode()
    call = _slice(process, pl.format('"{}"', "name"), "duration", args)
    waits = calls.filter((pl.col("wait_ns") > 0) & (pl.col("last") != pl.col("at")))
    name = pl.col("last").replace_strict(names, return_dtype=pl.String)
    wait = _slice(
        process, name, "wait_ns", pl.struct(pl.col("match").alias("collective")).struct.json_encode()
    )
    return pl.concat([calls.select(call).to_series(), waits.select(wait).to_series()])


def _slice(process: int, name: pl.Expr, duration: str, args: pl.Expr) -> pl.Expr:
    place = pl.format(
        f',"pid":{process},"tid":{{}},"ts":{{}},"dur":{{}},"args":', "lane", micros("start"), micros(duration)
    )
    return pl.concat_str(pl.lit(f'{_HEAD}"ph":"X","name":'), name, place, args, pl.lit("}")).alias("line")


def _arrows(flows: pl.DataFrame, zero_ns: int) -> pl.Series:
    """From the start of the last rank's call to where the wait ends, both inside their calls."""
    came = pl.min_horizontal("came", pl.col("end") - 1)
    flows = flows.with_columns((pl.col("came") + zero_ns).alias("came"), (came + zero_ns).alias("to"))
    begin = pl.format(
        '"ph":"s","id":{},"pid":{},"tid":{},"ts":{}}}', "id", "from", "last_lane", micros("came")
    )
    end = pl.format(
        '"ph":"f","bp":"e","id":{},"pid":{},"tid":{},"ts":{}}}', "id", "pid", "lane", micros("to")
    )
    both = flows.select(pl.concat_str(pl.lit(_FLOW), begin, pl.lit(",\n" + _FLOW), end).alias("line"))
    return both.to_series()


def _lines(lines: pl.Series) -> Iterator[bytes]:
    if lines.len():
        yield (",\n".join(lines.to_list()) + ",\n").encode()
