"""What was measured, from runs and from tables, in one form: a row for each measurement."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Final

import polars as pl

from tracekit.classes import dataclass
from tracekit.manifest import Setting
from tracekit.trace import Schema
from tracekit.trajectory import Run, Swept
from tracekit.trajectory.runs import TYPES as TYPES_OF_RUN

__all__ = ["FIGURES", "IDENTITY", "OPTION", "TYPES", "Measured", "joined", "measured_runs"]

IDENTITY: Final = ("model", "device", "precision")
FIGURES: Final = ("latency_ns", "samples", "flops", "size", "accuracy")
OPTION: Final = "option "
"""The columns of options begin so, since a table may call them anything."""
TYPES: Final[Schema] = {"at": pl.Int64, **TYPES_OF_RUN}

_OWN: Final = ("workload", "device", "device_name", "precision")
"""Settings that are the model, the device or the precision, as are the threads of a processor; the others are options."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Measured:
    """Measurements.

    `rows` has the columns `IDENTITY` (texts; the precision is empty if it is not known), `FIGURES` (`latency_ns` of a step, the
    `samples` in it, its FLOPs; null if not known) and one for each option of the case, a text, its name behind `OPTION`; null
    means not given. `types` has the time of each layer type (`TYPES`), `at` the number of its row.
    """

    rows: pl.DataFrame
    types: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=TYPES))
    size_name: str = "parameters"
    """What `size` is."""
    left_out: tuple[str, ...] = ()
    """What is not in it and why, a line each."""
    profiled: int = 0
    """The runs whose step times are with the profiler."""


def measured_runs(swept: Swept) -> Measured:
    """The runs as measurements. On a processor the threads belong to the device: `cpu, 2 threads`.

    FLOPs are those that the capture counted if all runs have them, else those that the traces tell.

    >>> settings = {"workload": "cnn", "device": "cpu", "device_name": "", "threads": 2, "precision": "fp32", "batch": 4}
    >>> one = Run(name="", settings=settings, chosen=frozenset(), step_times=(2000,), undisturbed=True, samples=4)
    >>> measured_runs(Swept((one,), (), ())).rows.drop("flops", "size", "accuracy").row(0)
    ('cnn', 'cpu, 2 threads', 'fp32', 2000.0, 4.0, '4')
    """
    left_out = [*swept.left_out]
    left_out += [
        f"{run.name}: it has no step times; capture the level M" for run in swept.runs if not run.time_ns
    ]
    runs = [run for run in swept.runs if run.time_ns]
    counted = all(run.counted_flops is not None for run in runs)
    processors = {run.settings["device_name"] for run in runs if run.settings["device"] == "cpu"}
    rows = [
        {
            "model": str(run.settings["workload"]),
            "device": _device(run, several=len(processors) > 1),
            "precision": str(run.settings["precision"]),
            "latency_ns": run.time_ns,
            "samples": run.samples,
            "flops": run.counted_flops if counted else _flops(run),
            "size": run.parameters,
            "accuracy": None,
            **{f"{OPTION}{name}": value for name, value in _options(run).items()},
        }
        for run in runs
    ]
    types = [run.types.with_columns(pl.lit(at, pl.Int64).alias("at")) for at, run in enumerate(runs)]
    schema = {
        **dict.fromkeys(IDENTITY, pl.String),
        **dict.fromkeys(FIGURES, pl.Float64),
        **dict.fromkeys((name for row in rows for name in row if name.startswith(OPTION)), pl.String),
    }
    return Measured(
        rows=pl.DataFrame(rows, schema=schema, orient="row"),
        types=pl.concat([one.select(*TYPES) for one in types]) if types else pl.DataFrame(schema=TYPES),
        left_out=tuple(left_out),
        profiled=sum(not run.undisturbed for run in runs),
    )


def _device(run: Run, *, several: bool) -> str:
    """The device; processors by their name only where there are several."""
    name, threads = run.settings["device_name"], run.settings["threads"]
    if run.settings["device"] != "cpu":
        return str(name or run.settings["device"])
    word = str(name) if several and name else "cpu"
    return f"{word}, {threads} thread{'s' * (threads != 1)}" if threads else word


def _options(run: Run) -> dict[str, str | None]:
    """The batch, and the other settings that were chosen: what is as the workload has it is not given."""
    names = [name for name in run.settings if name == "batch" or name in run.chosen]
    own = (*_OWN, "threads") if run.settings["device"] == "cpu" else _OWN
    return {name.replace("_", " "): _text(run.settings[name]) for name in names if name not in own}


def _text(value: Setting | None) -> str | None:
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _flops(run: Run) -> float | None:
    of_model = run.work.filter(pl.col("level") == "model")["flops"]
    return float(of_model[0]) if len(of_model) else None


def joined(parts: Iterable[Measured]) -> Measured:
    """All measurements of these parts, of which there is at least one; an option that a part does not have is not given there. Sizes of
    another kind than the first ones are not known: no model is smaller for being told in bytes.
    """
    every = [*parts]
    types, at = [], 0
    for part in every:
        types.append(part.types.with_columns(pl.col("at") + at))
        at += part.rows.height
    sized = [part.size_name for part in every if part.rows["size"].count()]
    name = sized[0] if sized else "parameters"
    other = dict.fromkeys(each for each in sized if each != name)
    unsized = pl.lit(None, pl.Float64).alias("size")
    rows = [part.rows if part.size_name == name else part.rows.with_columns(unsized) for part in every]
    left_out = [line for part in every for line in part.left_out]
    return Measured(
        rows=pl.concat(rows, how="diagonal"),
        types=pl.concat(types),
        size_name=name,
        left_out=(*left_out, *(f"the sizes in {each}, since the first ones are in {name}" for each in other)),
        profiled=sum(part.profiled for part in every),
    )
