"""Time and memory of whole processes, tracekit and HTA side by side in one run, as ratios.

    python benchmarks/run.py            50 MB and 470 MB (several minutes, most of them HTA's), and the report of 2.5 GB
    python benchmarks/run.py --short    8 MB, for CI: it shows that the benchmark works, and guards the limits loosely
    python benchmarks/run.py --trace-processor PATH --tracelens CHECKOUT    beside Perfetto's trace processor and AMD's TraceLens as well

Machines are shared and noisy, so the figures to compare are the ratios, and CPU time before wall time. Each
command runs `--rounds` times, alternating, and the fastest run of each counts. The exit code is 1 when a limit
is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from make_trace import source_trace

from tracekit._native import SWITCH

HERE = Path(__file__).resolve().parent
TRACEKIT = [sys.executable, "-c", "from tracekit.cli.entry import main; main()"]
HUGE_MB = 1500
"""From here on only the report is measured, whose memory must not grow with the file."""
BOUND_MB = 2000
LOADED = "select count(*), sum(dur) from slice"
"""What Perfetto's trace processor is asked, so that it loads the file; that is all it has for such a trace."""
TRACELENS = "TraceLens.Reporting.generate_perf_report_pytorch"
LOAD = "import sys, tracekit; tracekit.read(sys.argv[1])"


@dataclass(frozen=True)
class Cost:
    """What one process, with its helpers, took."""

    wall_s: float
    cpu_s: float
    peak_mb: float


def measure(command: list[str], environment: dict[str, str]) -> Cost:
    """Run a command to its end; the peak is that of its largest process."""
    began = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
    ) as process:
        error = process.stderr.read() if process.stderr else b""
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command[-4:])} failed: {error.decode(errors='replace')[-500:]}")
    return Cost(time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def best(costs: list[Cost]) -> Cost:
    return Cost(min(c.wall_s for c in costs), min(c.cpu_s for c in costs), min(c.peak_mb for c in costs))


def peers(
    trace: Path, work: Path, options: argparse.Namespace
) -> dict[str, tuple[list[str], dict[str, str]]]:
    """What other tools do with the file, where they are there: their commands, and what these need in the environment."""
    found: dict[str, tuple[list[str], dict[str, str]]] = {}
    if not options.no_hta:
        found["hta"] = [sys.executable, str(HERE / "peer_hta.py"), str(trace)], {}
    if options.trace_processor:
        found["trace processor"] = [str(options.trace_processor), "-Q", LOADED, str(trace)], {}
    if options.tracelens:
        written = ["--profile_json_path", str(trace), "--output_csvs_dir", str(work / "tracelens")]
        found["tracelens"] = (
            [sys.executable, "-m", TRACELENS, *written],
            {"PYTHONPATH": str(options.tracelens)},
        )
    return found


def compare(trace: Path, rounds: int, work: Path, options: argparse.Namespace) -> dict[str, Cost]:
    """The costs of each command on one file, alternating between them."""
    fresh = {**os.environ, "TRACEKIT_CACHE_DIR": str(work / "cache")}
    commands: dict[str, list[str]] = {"report": [*TRACEKIT, "report", str(trace), "--no-cache"]}
    if trace.stat().st_size > HUGE_MB * 1e6:
        return {"report": measure(commands["report"], fresh)}
    commands["load"] = [sys.executable, "-c", LOAD, str(trace)]
    environments = dict.fromkeys(commands, fresh)
    for name in ("report", "load"):
        commands[f"{name}, msgspec"], environments[f"{name}, msgspec"] = (
            commands[name],
            {**fresh, SWITCH: "0"},
        )
    for name, (command, needed) in peers(trace, work, options).items():
        commands[name], environments[name] = command, {**os.environ, **needed}
    costs: dict[str, list[Cost]] = {name: [] for name in [*commands, "first", "second"]}
    for _ in range(rounds):
        for name, command in commands.items():
            costs[name].append(measure(command, environments.get(name, fresh)))
        shutil.rmtree(work / "cache", ignore_errors=True)
        costs["first"].append(measure([*TRACEKIT, "report", str(trace)], fresh))
        costs["second"].append(measure([*TRACEKIT, "report", str(trace)], fresh))
    return {name: best(values) for name, values in costs.items() if values}


def table(megabytes: float, costs: dict[str, Cost]) -> str:
    lines = [f"\n{megabytes:,.0f} MB of JSON       wall      CPU     peak"]
    lines += [f"  {n:<16}{c.wall_s:8.2f} s{c.cpu_s:8.2f} s{c.peak_mb:7.0f} MB" for n, c in costs.items()]
    own = costs["report"]
    for name in ("hta", "trace processor", "tracelens"):
        if (peer := costs.get(name)) is not None:
            ratios = peer.wall_s / own.wall_s, peer.cpu_s / own.cpu_s, peer.peak_mb / own.peak_mb
            lines.append("  {:<26}{:5.1f} x {:7.1f} x {:6.1f} x".format(f"{name} / report", *ratios))
    if "first" not in costs:
        return "\n".join(lines)
    first, second = costs["first"], costs["second"]
    lines.append(f"  second / first  {second.wall_s / first.wall_s:8.0%} {second.cpu_s / first.cpu_s:8.0%}")
    lines.append(f"  load peak / JSON{costs['load'].peak_mb / megabytes:7.2f} x")
    return "\n".join(lines)


def missed(megabytes: float, costs: dict[str, Cost], *, strict: bool) -> list[str]:
    """The limits that were not met. A short run checks only what noise cannot break."""
    found = []
    if "first" not in costs:
        too_much = costs["report"].peak_mb > BOUND_MB
        return [f"{megabytes:.0f} MB: a report takes more than {BOUND_MB} MB of memory"] if too_much else []
    # A short run's first report takes under a second, of which the start of Python is a fifth.
    if costs["second"].cpu_s > costs["first"].cpu_s * (0.4 if strict else 0.8):
        found.append(f"{megabytes:.0f} MB: a second report is not fast enough")
    if strict and costs["load"].peak_mb > 2 * megabytes and megabytes > 200:
        found.append(f"{megabytes:.0f} MB: loading takes more than twice the JSON")
    if "hta" in costs:
        hta, own = costs["hta"], costs["report"]
        wall, cpu, memory = (25, 25, 3.5) if megabytes > 200 else (5, 5, 1.5) if strict else (0, 0.5, 0)
        if (
            hta.wall_s < wall * own.wall_s
            or hta.cpu_s < cpu * own.cpu_s
            or hta.peak_mb < memory * own.peak_mb
        ):
            found.append(
                f"{megabytes:.0f} MB: not {wall} x HTA's wall, {cpu} x its CPU, {memory} x its memory"
            )
    return found


def help_time(rounds: int = 7) -> float:
    return best([measure([*TRACEKIT, "--help"], dict(os.environ)) for _ in range(rounds)]).wall_s


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--megabytes", type=float, nargs="*")
    parser.add_argument("--no-hta", action="store_true")
    parser.add_argument("--trace-processor", type=Path, help="Perfetto's trace_processor_shell")
    parser.add_argument(
        "--tracelens", type=Path, help="a checkout of TraceLens, what it needs being installed"
    )
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    sizes = options.megabytes or ([8.0] if options.short else [50.0, 470.0, 2500.0])
    rounds = options.rounds or (2 if options.short else 3)
    problems: list[str] = []
    figures: dict[str, object] = {"help_s": help_time()}
    print(f"tracekit --help: {figures['help_s'] * 1000:.0f} ms")  # type: ignore[operator]
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        source = source_trace(work)
        for megabytes in sizes:
            trace = work / "rank0.json"
            # In a process of its own: a child's peak memory starts from that of the process that forked it.
            maker = [sys.executable, str(HERE / "make_trace.py"), str(source), str(trace), str(megabytes)]
            subprocess.run(maker, check=True)
            costs = compare(trace, 1 if megabytes > 200 else rounds, work, options)
            print(table(trace.stat().st_size / 1e6, costs), flush=True)
            figures[f"{megabytes:.0f}"] = {name: vars(cost) for name, cost in costs.items()}
            problems += missed(megabytes, costs, strict=not options.short)
    if options.short:
        command = [sys.executable, str(HERE / "ranks.py"), "--short"]
        ranks = subprocess.run([*command, "--no-hta"] if options.no_hta else command, check=False)
        problems += ["jobs of many ranks"] if ranks.returncode else []
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))
    for problem in problems:
        print(f"MISSED {problem}")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
