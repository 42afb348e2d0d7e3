"""Output of `ncu --csv` made by hand: both pages, with the truth known."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

IDENTITY = (
    *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream"),
    *("Block Size", "Grid Size", "Device", "CC"),
)
RULES = ("Rule Name", "Rule Type", "Rule Description", "Estimated Speedup Type", "Estimated Speedup")
PROGRAM, MACHINE = "a_private_program", "a-private-machine"
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"


def instruction(kind: str) -> str:
    """The name of the counter of an instruction such as `ffma`."""
    return f"smsp__sass_thread_inst_executed_op_{kind}_pred_on.sum"


KINDS = tuple(f"{kind}{what}" for kind in "dfh" for what in ("add", "mul", "fma"))


@dataclass(frozen=True)
class Launch:
    """A launch that was measured: metrics by name, each with its printed unit and value."""

    name: str
    metrics: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (32, 1, 1)
    device: int = 0
    process: int = 4321
    id: int | None = None

    def identity(self, number: int) -> list[str]:
        own = number if self.id is None else self.id
        sizes = [f"({x}, {y}, {z})" for x, y, z in (self.block, self.grid)]
        who = [str(own), str(self.process), PROGRAM, MACHINE, self.name, "1", "7"]
        return [*who, *sizes, str(self.device), "8.0"]


def counted(
    flops: int | None = None, read: int = 0, written: int = 0, occupancy: float | None = None, **more: int
) -> dict[str, tuple[str, str]]:
    """Metrics of a launch: `flops` fp32 additions, bytes, percent of occupancy, and instructions by kind."""
    found = {}
    if flops is not None:
        counts = {**dict.fromkeys(KINDS, 0), "fadd": flops, **more}
        found |= {instruction(kind): ("inst", f"{count:,}") for kind, count in counts.items()}
    found["dram__bytes_read.sum"] = ("byte", f"{read:,}")
    found["dram__bytes_write.sum"] = ("byte", f"{written:,}")
    if occupancy is not None:
        found[OCCUPANCY] = ("%", f"{occupancy:.2f}")
    return found


def raw(launches: Sequence[Launch]) -> str:
    """The raw page; units are those of the first launch."""
    names = list(dict.fromkeys(name for one in launches for name in one.metrics))
    units = {name: next(one.metrics[name][0] for one in launches if name in one.metrics) for name in names}
    rows = [[*IDENTITY, *names], [*[""] * len(IDENTITY), *(units[name] for name in names)]]
    for number, one in enumerate(launches):
        rows.append([*one.identity(number), *(one.metrics.get(name, ("", ""))[1] for name in names)])
    return _text(rows)


def details(launches: Sequence[Launch], section: str = "Command line profiler metrics") -> str:
    """The details page, with a row of advice for each launch, as ncu has them: shorter than the header."""
    rows: list[list[str]] = [
        [*IDENTITY, "Section Name", "Metric Name", "Metric Unit", "Metric Value", *RULES]
    ]
    for number, one in enumerate(launches):
        who = one.identity(number)
        rows += [[*who, section, name, unit, value, ""] for name, (unit, value) in one.metrics.items()]
        rows.append(
            [*who, "Rule", "", "", "", "Bottleneck", "OPT", 'Say "less", 1,234 times.', "local", "9.5"]
        )
    return _text(rows)


def _text(rows: Sequence[Sequence[str]]) -> str:
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return out.getvalue()
