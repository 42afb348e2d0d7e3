"""A measurement of `tracekit machine` with known figures."""

from __future__ import annotations

import datetime

from tracekit.machine_file import Machine, Memory, Product, Rates


def machine(name: str, *, threads: int = 1, device: str = "cpu") -> bytes:
    """The file: 100 GFLOP/s in fp32 and 20 GB/s."""
    product = Product(precision="fp32", unit="matrix", size=256, best=1e11, median=9e10)
    memory = Memory(level="DRAM", set_bytes=1 << 27, best=2e10, median=2e10)
    rates = [Rates(threads=threads if device == "cpu" else None, products=[product], memory=[memory])]
    made = Machine(
        tracekit_version="0",
        measured_on=datetime.date(2026, 1, 2),
        device=device,  # type: ignore[arg-type]
        device_name=name,
        versions={},
        rates=rates,
    )
    return made.to_json()
