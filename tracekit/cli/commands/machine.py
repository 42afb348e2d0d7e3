"""`tracekit machine`: measure the ceilings of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli.capture_options import numbers_of
from tracekit.cli.commands.capture import tell
from tracekit.cli.ending import ended_by_signals
from tracekit.cli.listing import Listing, format_of
from tracekit.cli.options import format_option
from tracekit.cli.output import say
from tracekit.report.formats import Can, Format

if TYPE_CHECKING:
    from tracekit.machine_file import Machine

__all__ = ["machine"]


def machine(
    device: Annotated[
        str, typer.Option(metavar="DEVICE", help="Measure this device: cpu, cuda or cuda:N.")
    ] = "cpu",
    threads: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="Numbers of CPU threads. The default is the powers of two up to torch's own number.",
        ),
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The file to write. The default is a file for this device in tracekit's folder.",
        ),
    ] = None,
    format_: Annotated[
        Format, format_option(Can.TABLES, "The format of the table on stdout.")
    ] = Format.table,
) -> None:
    """Measure how fast this machine computes and moves data.

    Products of matrices give the highest rate of each precision, updates of arrays the bandwidth of the memory and the caches. The file keeps the rates as ceilings for runs on the same device.
    """
    from tracekit.capture.run import prepare_torch
    from tracekit.files import make_directory, write_bytes
    from tracekit.machine_file import machine_path

    chosen = format_of(format_, None, command="machine")
    counts = numbers_of("--threads", threads) if threads else []
    prepare_torch()
    with ended_by_signals():
        from tracekit.capture.device import device_name, resolve_device
        from tracekit.capture.machine import measure

        # A folder that cannot be made is known before the measurement, not after it.
        path = output or machine_path(device_name(resolve_device(device)))
        make_directory(path.parent)
        found = measure(device, counts, tell=tell)
    write_bytes(path, found.to_json())
    _listing(found).emit(chosen)
    if disturbed := _disturbed(found):
        say(f"warning: {disturbed}")
    say(f"stored in {path}")


def _listing(found: Machine) -> Listing:
    import polars as pl

    from tracekit.facts.units import format_bytes

    rows = []
    for rates in found.rates:
        for one in rates.products:
            size = f"{one.size} × {one.size}"
            rows.append((f"{one.precision} products", rates.threads, one.best, one.median, "GFLOP/s", size))
        for each in rates.memory:
            name = f"{each.level} bandwidth"
            rows.append((name, rates.threads, each.best, each.median, "GB/s", format_bytes(each.set_bytes)))
    schema = {
        "ceiling": pl.String(),
        "threads": pl.Int64(),
        "best": pl.Float64(),
        "median": pl.Float64(),
        "unit": pl.String(),
        "size": pl.String(),
    }
    frame = pl.DataFrame(rows, schema, orient="row").with_columns(pl.col("best", "median") / 1e9)
    shown = [name for name in schema if name != "threads" or found.device == "cpu"]
    return Listing(
        "ceilings", "How fast can this machine compute and move data?", _answer(found), frame, shown
    )


def _answer(found: Machine) -> str:
    """Both ceilings and where they meet, and what was not measured."""
    from tracekit.facts.units import count_of, format_bytes, format_flop

    lines = []
    most = found.ceilings()
    if most and (peak := most.peak("fp32")) and (bandwidth := most.bandwidth.get("DRAM")):
        using = "" if most.threads is None else f" with {count_of(most.threads, 'thread')}"
        lines.append(
            f"{found.device_name}{using} computes up to {format_flop(peak, per_second=True)} in fp32 and moves up to "
            f"{format_bytes(bandwidth)}/s: fp32 work of less than {most.ridge('fp32'):.3g} FLOP per byte of memory is bound "
            "by the memory."
        )
        fewer = [
            one for one in map(found.ceilings, [rates.threads for rates in found.rates]) if one is not None
        ]
        fastest = max(fewer, key=lambda one: one.peak("fp32") or 0)
        if (rate := fastest.peak("fp32") or 0) > peak and fastest.threads is not None:
            lines.append(
                f"That is less than the {format_flop(rate, per_second=True)} of {count_of(fastest.threads, 'thread')}, so other programs "
                "probably slowed it."
            )
    lines += [f"Not measured: {name} ({why})." for name, why in found.not_measured.items()]
    return " ".join(lines) or f"{found.device_name}."


def _disturbed(found: Machine) -> str:
    """Whether the rates may be too low because other programs ran; empty if nothing says so."""
    from tracekit.facts.units import count_of
    from tracekit.machine_file import UNSTEADY

    uneven = sum(rates.unsteady for rates in found.rates)
    if not uneven:
        return ""
    total = sum(len(rates.products) + len(rates.memory) for rates in found.rates)
    return (
        f"of {count_of(total, 'rate')}, {uneven} varied by more than {(UNSTEADY - 1) * 100:.0f} %, as they do while other "
        "programs run; measure again when the machine is idle"
    )
