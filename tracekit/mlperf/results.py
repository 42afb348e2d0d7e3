"""Results of MLPerf training in folders: logs as submissions hold them, or tables of runs and their events."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl

from tracekit.errors import UnreadableTraceError, reason_of
from tracekit.mlperf.log import Event, Log, literal, read_log, time_of
from tracekit.mlperf.runs import LoggedRun, runs_in
from tracekit.names import clean

__all__ = ["Results", "holds_results", "read_results"]

_LOGS: Final = re.compile(r".+\.(txt|log|out)(\.gz)?", re.IGNORECASE)
_RESULT: Final = re.compile(r"(?:(?P<path>.+)__)?result_(?P<number>\d+)\.(txt|log)(\.gz)?", re.IGNORECASE)
_TABLES: Final = ("runs.csv", "events.csv.gz")
_TPU_CORES: Final = re.compile(r"tpu-v\d+-(\d{1,6})$")
_COUNTED: Final = re.compile(r"(?:^|_)(\d{1,6})x[A-Z]")
_MOST_BYTES: Final = 1 << 30
"""Of a log, unpacked; the longest known have some 20 MB."""
_SYSTEMS: Final = "systems.json"


@dataclass(frozen=True, slots=True)
class Results:
    """The runs that were found, and what was left out, a line each."""

    runs: tuple[LoggedRun, ...]
    left_out: tuple[str, ...] = ()


def holds_results(path: Path) -> bool:
    """Whether the path is a log of MLPerf's, or a folder with such logs or their tables; of logs the beginning of one is looked at."""
    if path.is_dir():
        if all((path / name).is_file() for name in _TABLES):
            return True
        path = next(_logs(path), path)
    return (
        path.is_file()
        and _LOGS.fullmatch(path.name) is not None
        and any(":::MLL" in text for text in _lines(path, 1 << 22))
    )


def read_results(paths: Iterable[Path]) -> Results:
    """The runs in these logs and folders.

    Raises UnreadableTraceError if none of them holds a run.
    """
    runs: list[LoggedRun] = []
    left_out: list[str] = []
    for path in paths:
        if path.is_dir() and all((path / name).is_file() for name in _TABLES):
            runs += _of_tables(path)
            continue
        logs = list(_logs(path)) if path.is_dir() else [path]
        systems = _systems(path if path.is_dir() else path.parent)
        for log in logs:
            found = _of_log(log, path, systems)
            runs += found
            if not found:
                left_out.append(f"{clean(str(log))}: no run begins in it")
    if not runs:
        raise UnreadableTraceError(
            "no run of MLPerf's is in it", path=next(iter(paths), None), remedy="give logs with :::MLL lines"
        )
    return Results(tuple(runs), tuple(left_out))


def _logs(folder: Path) -> Iterator[Path]:
    yield from sorted(path for path in folder.rglob("*") if _LOGS.fullmatch(path.name) and path.is_file())


def _lines(path: Path, most: int = _MOST_BYTES) -> Iterator[str]:
    """The lines of a log, at most so many characters of them.

    Raises UnreadableTraceError if it cannot be read.
    """
    try:
        opened = gzip.open if path.name.lower().endswith(".gz") else open
        with opened(path, "rt", encoding="utf-8", errors="replace") as stream:
            while most > 0 and (line := stream.readline(1 << 20)):
                most -= len(line)
                yield line
    except (OSError, EOFError) as error:
        raise UnreadableTraceError(f"it cannot be read ({reason_of(error)})", path=path) from error


def _of_log(path: Path, top: Path, systems: Mapping[str, Any]) -> list[LoggedRun]:
    """The runs of a log. Its folders, or its name, may tell the organisation, the system and the benchmark."""
    name = path.name
    parts: list[str] = list(path.relative_to(top).parts[:-1]) if path.is_relative_to(top) else []
    if (match := _RESULT.fullmatch(name)) is not None and match["path"]:
        parts = match["path"].split("__")
    parts = [part for part in parts if part != "results"]
    log = read_log(_lines(path))
    known: dict[str, Any] = {}
    if len(parts) >= 2:
        known = {"benchmark": clean(parts[-1]), "system": clean(parts[-2])}
    if len(parts) >= 3:
        known["organisation"] = clean(parts[-3])
    system = known.get("system")
    beside = systems.get(f"{known.get('organisation', '')}/{system}", systems.get(system or "", {}))
    known["accelerators"] = _accelerators(log.events, system, beside or _description(path, parts))
    return runs_in(log, clean("/".join([*parts, name])), **known)


def _accelerators(events: Iterable[Event], system: str | None, beside: Any) -> int | None:
    """The number of chips: as the log's own description of the system has it, a description beside the logs, or the system's name."""
    platform = ""
    for event in events:
        if event.key == "submission_entry" and (told := _described(event.value)) is not None:
            return told
        if event.key == "submission_platform" and isinstance(event.value, str):
            platform = event.value
    with suppress(KeyError, ValueError, TypeError):
        return int(beside["number_of_nodes"]) * int(beside["accelerators_per_node"])
    for name in (system or "", platform):
        if (match := _TPU_CORES.search(name)) is not None:
            return int(match[1]) // 2  # two cores are a chip
        if (match := _COUNTED.search(name)) is not None:
            return int(match[1])
    return None


def _described(entry: Any) -> int | None:
    """Nodes times the accelerators of each in a `submission_entry`, whose values may be texts of dictionaries again."""
    found = literal(entry) if isinstance(entry, str) else entry
    nodes = found.get("nodes") if isinstance(found, dict) else None
    nodes = literal(nodes) if isinstance(nodes, str) else nodes
    with suppress(KeyError, ValueError, TypeError):
        each: list[Any] = nodes if isinstance(nodes, list) else [nodes]
        count = sum(int(node["num_nodes"]) * int(node["num_accelerators"]) for node in each)
        return count or None
    return None


def _description(log: Path, parts: Sequence[str]) -> Any:
    """The description of a log's system where a submission has it: `systems/SYSTEM.json` in the folder of the organisation; else empty."""
    for folder in log.parents[2:4] if len(parts) >= 2 else ():  # between them, results/ may lie
        with suppress(OSError, ValueError, RecursionError):
            return json.loads((folder / "systems" / f"{parts[-2]}.json").read_text("utf-8"))
    return {}


def _systems(folder: Path) -> Mapping[str, Any]:
    """Descriptions of systems beside the logs; empty if there are none."""
    for place in (folder, folder.parent):
        with suppress(OSError, ValueError):
            found = json.loads((place / _SYSTEMS).read_text("utf-8"))
            return found if isinstance(found, dict) else {}
    return {}


# -- tables -----------------------------------------------------------------------------------------


def _of_tables(folder: Path) -> list[LoggedRun]:
    """The runs of the tables `runs.csv` and `events.csv.gz`: the columns `cell` (organisation/system/benchmark), `run`, `line`, `t`, `key`,
    `value` (JSON), `epoch_num`, `first_epoch_num`, `epoch_count` and `status`.

    Raises UnreadableTraceError if a column is missing.
    """
    try:
        counts = (
            pl.read_csv(folder / _TABLES[0]).select("org", "system", "benchmark", "accelerators").unique()
        )
        columns = {
            "run": pl.Int64,
            "line": pl.Int64,
            "t": pl.String,
            "epoch_num": pl.Float64,
            "first_epoch_num": pl.Float64,
            "epoch_count": pl.Float64,
        }
        events = pl.read_csv(folder / _TABLES[1], infer_schema_length=0).with_columns(
            pl.col(name).cast(kind, strict=False) for name, kind in columns.items()
        )
    except (pl.exceptions.PolarsError, OSError) as error:
        raise UnreadableTraceError(
            f"it is not a table of MLPerf runs ({str(error).splitlines()[0]})", path=folder
        ) from error
    chips = {"/".join(row[:3]): row[3] for row in counts.rows()}
    runs = []
    for (cell, number), rows in events.group_by("cell", "run", maintain_order=True):
        parts = [*str(cell).split("/"), "", "", ""][:3]
        log = Log(tuple(map(_event_of, rows.iter_rows(named=True))), {})
        known = {
            "organisation": clean(parts[0]),
            "system": clean(parts[1]),
            "benchmark": clean(parts[2]),
            "accelerators": chips.get(str(cell)),
        }
        runs += runs_in(log, clean(f"{cell}/result_{number}"), **known)
    return runs


def _event_of(row: Mapping[str, Any]) -> Event:
    metadata = {
        name: row[name]
        for name in ("epoch_num", "first_epoch_num", "epoch_count", "status")
        if row[name] is not None
    }
    return Event(
        row["line"] or 0, time_of(row["t"] or "0") or 0, row["key"], literal(row["value"] or ""), metadata
    )
