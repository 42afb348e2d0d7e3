"""Results of MLPerf training in folders: logs as submissions hold them, or tables of runs and their events."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import polars as pl

from tracekit.classes import dataclass
from tracekit.errors import UnreadableTraceError, reason_of
from tracekit.facts.units import count_of
from tracekit.mlperf.jumps import with_jumps
from tracekit.mlperf.log import Event, Log, is_marked, literal, read_log, time_of
from tracekit.mlperf.runs import LoggedRun, runs_in
from tracekit.names import clean

__all__ = ["Results", "holds_results", "read_results", "round_of"]

_LOGS: Final = re.compile(r".+\.(txt|log|out)(\.gz)?", re.IGNORECASE)
_RESULT: Final = re.compile(r"(?:(?P<path>.+)__)?result_(?P<number>\d+)\.(txt|log)(\.gz)?", re.IGNORECASE)
_TABLES: Final = ("runs.csv", "events.csv.gz")
_TPU_CORES: Final = re.compile(r"tpu-v[23]-(\d{1,6})(?![\d.])")
"""Later ones are named by their chips, or by their cores: which, no name tells."""
_COUNTED: Final = re.compile(r"(?:^|_)(\d{1,6})x([A-Z].*)")
_EACH: Final = re.compile(r"x(\d{1,3})(?![\d.])")
"""The chips of a node in the name of one, as in 2xXE9680Lx8H200."""
_DGX: Final = re.compile(r"(?:NVIDIA )?DGX[-_ ]?([12]|[ABH]\d{3})?(?!\d)", re.IGNORECASE)
_OF_DGX: Final = {"2": 16, None: None}
"""The chips of a node whose model is this; of others 8."""
_BEGINNING: Final = 1 << 22
_MOST_BYTES: Final = 1 << 30
"""Of a log, unpacked; the longest known have some 20 MB."""
_SYSTEMS: Final = "systems.json"
_ROUND: Final = re.compile(
    r"(?:^|(?=.*(?:mlperf|mlcommons|training|results|round)).*?(?<![a-z0-9.]))v?(\d\.\d)(?![\d.])",
    re.IGNORECASE,
)
"""How folders of the results of a round are called: with its number in front, or with one of these words. Other folders have versions of software."""
_LOOKED_AT: Final = 1 << 26
"""Of the files in a folder so many bytes at most, to tell whether they are logs."""


@dataclass(frozen=True, slots=True)
class Results:
    """The runs that were found, and what was left out, a line each."""

    runs: tuple[LoggedRun, ...]
    left_out: tuple[str, ...] = ()


def holds_results(path: Path) -> bool:
    """Whether the path is a log of MLPerf's, or a folder with such logs or their tables; of logs the beginning is looked at.

    Raises UnreadableTraceError if it is a log that cannot be read.
    """
    if not path.is_dir():
        return path.is_file() and _LOGS.fullmatch(path.name) is not None and _marked(path)
    if all((path / name).is_file() for name in _TABLES):
        return True
    left = _LOOKED_AT
    for log in sorted(_logs(path), key=lambda log: _RESULT.fullmatch(log.name) is None):
        with suppress(UnreadableTraceError):  # another may be whole
            if _marked(log):
                return True
        left -= min(log.stat().st_size, _BEGINNING)
        if left < 0:
            break
    return False


def _marked(log: Path) -> bool:
    return any(is_marked(text) for text in _lines(log, _BEGINNING))


def read_results(paths: Iterable[Path]) -> Results:
    """The runs in these logs and folders. Files and tables that cannot be read, and logs in which no run begins, are left out.

    Raises UnreadableTraceError if none of them holds a run.
    """
    given: dict[Path, list[LoggedRun]] = {}
    faults: list[UnreadableTraceError] = []
    others, seen = 0, set[Path]()
    paths = list({path.resolve(): path for path in paths}.values())
    for path in paths:
        runs = given.setdefault(path, [])
        if path.is_dir() and all((path / name).is_file() for name in _TABLES):
            try:
                runs += _of_tables(path)
            except UnreadableTraceError as fault:
                faults.append(fault)
            continue
        systems = _systems(path if path.is_dir() else path.parent)
        for log in _logs(path) if path.is_dir() else [path]:
            if log.resolve() in seen:
                continue
            seen.add(log.resolve())
            try:
                found = _of_log(log, path, systems)
            except UnreadableTraceError as fault:
                faults.append(fault)
                continue
            runs += found
            others += not found
    runs = _by_folder(given)
    if not runs:
        raise (
            faults[0]
            if faults
            else UnreadableTraceError("no log of MLPerf's is in it", path=next(iter(paths), None))
        )
    some = (f"{count_of(others, 'file')} without a line of MLPerf's",) if others else ()
    return Results(tuple(with_jumps(runs)), (*map(str, faults), *some))


def round_of(folder: str) -> str | None:
    """The round that the name of a folder tells.

    >>> [round_of(name) for name in ("training_results_v0.6-master", "mlperf-0.7", "v5.0", "0.6", "dgx2h_ngc19.05", "pytorch-2.1")]
    ['v0.6', 'v0.7', 'v5.0', 'v0.6', None, None]
    """
    match = _ROUND.match(folder)
    return None if match is None else f"v{match[1]}"


def _by_folder(given: Mapping[Path, list[LoggedRun]]) -> list[LoggedRun]:
    """The runs of all arguments. Folders that hold the same configuration, of one round as far as is known, are told apart by their names."""
    held = {
        path: {(run.round, run.organisation, run.system, run.benchmark) for run in runs}
        for path, runs in given.items()
        if path.is_dir()
    }
    found: list[LoggedRun] = []
    for path, runs in given.items():
        alike = [other for other in held if path in held and other != path and held[path] & held[other]]
        name = str(path) if any(other.name == path.name for other in alike) else path.name
        found += [replace(run, round=clean(f"{run.round} {name}".strip())) for run in runs] if alike else runs
    return found


def _logs(folder: Path) -> Iterator[Path]:
    yield from sorted(path for path in folder.rglob("*") if _LOGS.fullmatch(path.name) and path.is_file())


def _lines(path: Path, most: int = _MOST_BYTES) -> Iterator[str]:
    """The lines of a log, at most so many characters of them; of a file that was cut while it was compressed those before the cut.

    Raises UnreadableTraceError if it cannot be read.
    """
    line = ""
    try:
        opened = gzip.open if path.name.lower().endswith(".gz") else open
        with opened(path, "rt", encoding="utf-8", errors="replace") as stream:
            while most > 0 and (line := stream.readline(1 << 20)):
                most -= len(line)
                yield line
    except (OSError, EOFError, zlib.error) as error:
        if line and isinstance(error, EOFError):
            return
        raise UnreadableTraceError(f"it cannot be read ({reason_of(error)})", path=path) from error


def _of_log(path: Path, top: Path, systems: Mapping[str, Any]) -> list[LoggedRun]:
    """The runs of a log; none of another text. Its folders, or its name, may tell the organisation, the system and the benchmark.

    Raises UnreadableTraceError if it cannot be read, or no run begins in it.
    """
    log = read_log(_lines(path))
    if not log.events and not log.defects:
        return []
    parts: list[str] = list(path.relative_to(top).parts[:-1]) if path.is_relative_to(top) else []
    if (match := _RESULT.fullmatch(path.name)) is not None and match["path"]:
        parts = match["path"].split("__")
    parts = [part for part in parts if part != "results"]
    if (folder := _submission(path)) is not None:
        parts = [folder.name, path.absolute().parents[1].name, path.absolute().parent.name]
    known: dict[str, Any] = {}
    if len(parts) >= 2:
        known = {"benchmark": clean(parts[-1]), "system": clean(parts[-2])}
    if len(parts) >= 3:
        known["organisation"] = clean(parts[-3])
    system = known.get("system")
    beside = systems.get(f"{known.get('organisation', '')}/{system}", systems.get(system or "", {}))
    if not beside and folder is not None:
        beside = _description(folder, parts[-2])
    known["accelerators"] = _accelerators(log.events, system, beside)
    known["round"] = _round_above(path.parent)
    runs = runs_in(log, clean("/".join([*parts, path.name])), **known)
    if not runs:
        why = f": {'; '.join(log.defects)}" if log.defects else ""
        raise UnreadableTraceError(
            f"no run of MLPerf's is in it{why}", path=path, remedy="give logs with :::MLL lines"
        )
    return runs


def _round_above(folder: Path) -> str | None:
    """The round that the nearest folder tells, of this one and those that hold it."""
    return next((told for part in reversed(folder.absolute().parts) if (told := round_of(part))), None)


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
    return next((count for name in (system or "", platform) if (count := _named(name)) is not None), None)


def _named(system: str) -> int | None:
    """The chips that the name of a system tells; None if it tells none, or only the nodes.

    >>> [_named(name) for name in ("tpu-v3-512", "8xV100", "2xXE9680Lx8H200", "4xDGXA100", "1xDGX-2H", "2xDGX Station", "dgxa100_n4")]
    [256, 8, 16, 32, 16, None, None]
    """
    if (match := _TPU_CORES.search(system)) is not None:
        return int(match[1]) // 2  # two cores are a chip
    if (match := _COUNTED.search(system)) is None:
        return None
    count, rest = int(match[1]), match[2]
    if (model := _DGX.match(rest)) is not None:  # it counts nodes
        each = _OF_DGX.get(model[1], 8)
        return None if each is None else count * each
    each = int(found[1]) if (found := _EACH.search(rest)) is not None else 1
    return count * each


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


def _submission(log: Path) -> Path | None:
    """The folder of the organisation, if the log lies in a submission that describes its system: `systems/SYSTEM.json` beside the results."""
    place = log.absolute()
    return next((folder for folder in place.parents[2:4] if _described_in(folder, place.parents[1].name).is_file()), None)  # fmt: skip


def _described_in(folder: Path, system: str) -> Path:
    return folder / "systems" / f"{system}.json"


def _description(folder: Path, system: str) -> Any:
    with suppress(OSError, ValueError, RecursionError):
        return json.loads(_described_in(folder, system).read_text("utf-8"))
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
            "round": _round_above(folder),
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
