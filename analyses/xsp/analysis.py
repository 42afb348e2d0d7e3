"""XSP's analyses of recordings on disk: the files of a run, and its tables.

This module is above the analyses and below the command line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

import tracekit
from tracekit.analyses.counters.ncu import with_ncu
from tracekit.analyses.stated import StatedTable
from tracekit.analyses.xsp.catalogue import CATALOGUE
from tracekit.analyses.xsp.runs import XspRun, run_of
from tracekit.analyses.xsp.series import best_run, model_information, model_kernels
from tracekit.analyses.xsp.views import tables_of
from tracekit.classes import dataclass
from tracekit.errors import UnreadableTraceError, UsageError
from tracekit.manifest import MANIFEST_FILE, Manifest, manifest_beside, read_manifest
from tracekit.names import told_apart
from tracekit.readers.folder import runs_below
from tracekit.readers.ncu import read_ncu
from tracekit.sweep_index import DONE, INDEX_FILE, read_index
from tracekit.trace import Trace

__all__ = ["ReadTrace", "RunFiles", "find_runs", "xsp", "xsp_of"]

ReadTrace = Callable[[Path], Trace]


@dataclass(frozen=True, slots=True)
class RunFiles:
    """A run on disk.

    * `label`: the end of the path of its folder or file that tells it from the others
    * `manifest`: None for a trace alone
    * `traces`: the traces at the levels ML and MLG
    """

    label: str
    manifest: Manifest | None
    traces: tuple[Path, ...]


def find_runs(paths: Sequence[Path], *, rank: int | None = None) -> list[RunFiles]:
    """The runs in folders of captures and sweeps (finished runs only) and in folders of these, and trace files, each a run; none twice.

    With several ranks, the traces of `rank`, else of the first. Raises UnreadableTraceError for a folder with none or that
    is damaged, and UsageError for a rank that was not recorded.
    """
    runs = {Path(os.path.abspath(one.label)): one for path in paths for one in _runs_at(path, rank)}  # noqa: PTH100 - links stay
    return [replace(one, label=label) for label, one in zip(told_apart([*runs]), runs.values(), strict=True)]


def _runs_at(path: Path, rank: int | None) -> Iterator[RunFiles]:
    if not path.exists():
        raise UnreadableTraceError("no such file", path=path, remedy="check the path")
    if not path.is_dir():
        yield RunFiles(str(path), manifest_beside(path), (path,))
    elif (path / MANIFEST_FILE).is_file():
        yield _capture(path, rank)
    elif (path / INDEX_FILE).is_file():
        index = read_index(path)
        folders = index.filter(index["status"] == DONE)["folder"].drop_nulls().to_list()
        if not folders:
            raise UnreadableTraceError("no run of this sweep is done", path=path)
        for folder in folders:
            yield _capture(path / folder, rank)
    else:
        for below in runs_below(path):
            yield from _runs_at(below, rank)


def _capture(folder: Path, rank: int | None) -> RunFiles:
    manifest = read_manifest(folder / MANIFEST_FILE)
    recordings = [run for run in manifest.runs if run.trace is not None and run.level in ("ML", "MLG")]
    ranks = sorted({run.rank for run in recordings})
    if rank is not None and ranks and rank not in ranks:
        raise UsageError(f"rank {rank} was not recorded", path=folder, remedy=f"the ranks are {ranks}")
    own = ranks[:1] if rank is None else [rank]
    return RunFiles(
        str(folder), manifest, tuple(folder / str(run.trace) for run in recordings if run.rank in own)
    )


def xsp(
    paths: Sequence[Path | str],
    *,
    analyses: Sequence[str] | None = None,
    counters: Path | None = None,
    ncu: Sequence[Path | str] = (),
    batch: int | None = None,
    rank: int | None = None,
    step: str | None = None,
) -> dict[str, StatedTable]:
    """The tables of XSP's analyses (keys of CATALOGUE; all by default) of the runs in these files and folders.

    A1 and A15 have a row for each run; the others show the run with this `batch`, else with the optimal batch. `counters` is
    a trace with hardware counters of that run, `ncu` are tables of Nsight Compute, joined to the kernels of every run. Raises
    the errors of `find_runs` and `tracekit.read`, and UsageError for runs that differ in more than the batch.

    >>> tables = xsp(["sample_traces/cnn_cpu"], analyses=["A10"])
    >>> tables["A10"].frame["name"][0]
    'aten::convolution_backward'
    """
    files = find_runs([Path(path) for path in paths], rank=rank)
    reports = [read_ncu(path) for path in ncu]

    def read(path: Path) -> Trace:
        return with_ncu(tracekit.read(path), *reports)

    return xsp_of(files, read, analyses=analyses, counters=counters, batch=batch, step=step)


def xsp_of(
    files: Sequence[RunFiles],
    read: ReadTrace,
    *,
    analyses: Sequence[str] | None = None,
    counters: Path | None = None,
    batch: int | None = None,
    step: str | None = None,
) -> dict[str, StatedTable]:
    """As `xsp`, for the runs in these files, with a function that reads their traces."""
    keys = [key for key in CATALOGUE if analyses is None or key in analyses]
    runs = [XspRun(file.label, file.manifest) for file in files]
    _check_series(runs)
    shown = best_run(runs) if batch is None else _run_at(runs, batch)
    tables = {"A1": model_information(runs)}
    of_model: list[StatedTable] = []
    for number, file in enumerate(files):
        own_keys = [key for key in keys if key == "A15" or (number == shown and key != "A1")]
        if not own_keys:
            continue
        # One run after the other: a series may hold more traces than the memory.
        counter_trace = read(counters) if counters is not None and number == shown else None
        traces = map(read, file.traces)
        run = run_of(file.label, *traces, manifest=file.manifest, counters=counter_trace, step=step)
        tables |= tables_of(run, own_keys)
        of_model += [tables["A15"]] if "A15" in keys else []
    if of_model:
        tables["A15"] = model_kernels(of_model)
    return {key: tables[key] for key in keys}


def _run_at(runs: Sequence[XspRun], batch: int) -> int:
    batches = [run.batch for run in runs]
    if batch in batches:
        return batches.index(batch)
    raise UsageError(f"no run has batch {batch}", remedy=f"the batches are {', '.join(map(str, batches))}")


def _check_series(runs: Sequence[XspRun]) -> None:
    """Raise UsageError for runs that must not be compared in a table."""
    if len(runs) < 2:
        return
    labels: dict[int | None, str] = {}
    for run in runs:
        if setting := _difference(runs[0].manifest, run.manifest):
            raise UsageError(
                f"{runs[0].label} and {run.label} differ in {setting}",
                remedy="name the runs of one model that differ in the batch alone",
            )
        if run.batch in labels:
            fault = f"{labels[run.batch]} and {run.label} have the same batch"
            raise UsageError(fault, remedy="name one of them")
        labels[run.batch] = run.label


def _difference(one: Manifest | None, other: Manifest | None) -> str | None:
    """The first setting, except the batch, in which two runs differ."""
    if one is None or other is None:
        return "that one has no manifest"
    first, second = _compared(one), _compared(other)
    return next((name for name in first if first[name] != second.get(name)), None)


def _compared(manifest: Manifest) -> dict[str, object]:
    """The settings that all runs of a series share."""
    own = {"workload": manifest.workload, "device_name": manifest.device_name}
    if manifest.settings is None:
        return {**own, "settings": False}
    return {**own, "settings": True, **msgspec.structs.asdict(manifest.settings), "batch": None}
