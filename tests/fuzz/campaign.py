"""Mutates healthy inputs, asks every command about each, and holds the answers against laws.

    python tests/fuzz/campaign.py --cases 2000 [--first 0] [--jobs 2] [--only scale] [--keep FOLDER]

A case is its seed: `--first 1234 --cases 1` repeats one. Exit code 1 if a law was broken.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import importlib.metadata
import io
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
SECONDS: Final = 60
"""CPU time of one case, after which it counts as endless."""
MEBIBYTES: Final = 1_500
"""Memory of one case, above which it counts as too much."""
CASES_OF_A_FORK: Final = 100


@dataclass
class Tally:
    """Of one kind of mutation."""

    cases: int = 0
    readable: int = 0
    faults: int = 0
    seconds: float = 0.0
    mebibytes: int = 0


@dataclass
class Table:
    kinds: dict[str, Tally] = field(default_factory=dict)
    faults: list[tuple[int, str, str]] = field(default_factory=list)

    def add(self, row: dict[str, Any]) -> None:
        tally = self.kinds.setdefault(row["kind"], Tally())
        tally.cases += 1
        tally.readable += row["readable"]
        tally.faults += bool(row["faults"])
        tally.seconds = max(tally.seconds, row["seconds"])
        tally.mebibytes = max(tally.mebibytes, row["mebibytes"])
        self.faults += [(row["seed"], row["kind"], fault) for fault in row["faults"]]

    def __str__(self) -> str:
        lines = [
            f"{'mutation':<18}{'cases':>8}{'readable':>10}{'faulty':>8}{'slowest s':>11}{'most MiB':>10}"
        ]
        for kind, t in sorted(self.kinds.items()):
            lines.append(
                f"{kind:<18}{t.cases:>8}{t.readable:>10}{t.faults:>8}{t.seconds:>11.1f}{t.mebibytes:>10}"
            )
        lines += [f"seed {seed} ({kind}): {fault}" for seed, kind, fault in self.faults[:200]]
        return "\n".join(lines)


# -- one case, in a process that a worker forks -------------------------------------------------------


JSON: Final = ("-f", "json")


CHANGES: Final = (
    ("--rank",),
    ("--scale", "kernel:*=0.5", "--remove-sync"),
    ("--scale", "layer:*=2", "--no-loader-wait"),
    ("--faster-host", "2", "--fuse", "optimizer"),
    ("--cuda-graph", "step", "--overlap-comm"),
    ("--cuda-graph", "layer:*", "--cuda-graph", "op:*a*", "--remove-sync"),
    ("--remove", "category:memcpy", "--bandwidth", "2"),
    ("--device", "H200", "--shard-optimizer", "4"),
)


def questions(
    rng: random.Random, path: str, flags: tuple[str, ...], bases: Path, folder: Path
) -> list[tuple[str, ...]]:
    """The commands that are asked: mostly one, sometimes those whose answers must agree, or one twice (from the cache)."""
    from tracekit.analyses.registry import BUILT_IN

    healthy = str(bases / rng.choice(("planted.json", "layers.json", "new.sqlite", "capture")))
    sides = rng.choice(((healthy, path), (path, healthy), (path, path)))

    if rng.random() < 0.06:
        return [("report", path, *JSON, *flags), ("info", path, *JSON), ("doctor", path, *JSON)]
    weights: dict[tuple[str, ...], int] = {  # what costs most is asked less often
        ("report", path, *JSON, *flags): 11,
        ("report", path, *JSON, "--only", rng.choice(BUILT_IN).name, *flags): 16,
        ("report", path, *JSON, "--window", "trace"): 3,
        ("report", path, *JSON, "--max-events", "200"): 4,
        ("report", path, "-o", str(folder / "page.html"), *flags): 1,
        ("report", path, *flags): 3,
        ("report", path, "-f", "md"): 1,
        ("info", path, *JSON): 20,
        ("info", path): 2,
        ("doctor", path, *JSON): 16,
        ("doctor", path): 2,
        ("layers", path): 3,
        ("kernels", path, "-f", "csv"): 3,
        ("nsys-stats", path, *JSON): 3,
        ("nsys-stats", path, "-f", "csv", "-o", str(folder / "stats")): 1,
        ("critical-path", path, *JSON): 5,
        ("critical-path", path): 1,
        ("what-if", path, *rng.choice(CHANGES), *JSON): 6,
        ("what-if", path, *rng.choice(CHANGES)): 1,
        ("roofline", path, "--level", rng.choice(("op", "layer", "type", "model")), *JSON): 2,
        ("xsp", path, *JSON): 3,
        ("diff", *sides, *JSON): 4,
        ("diff", *sides, "--gate", "3%"): 2,
        ("diff", *sides, "-o", str(folder / "page.html")): 1,
        ("baseline", "save", "fuzz", path): 2,
        ("trend", path, healthy, *JSON): 2,
        ("merge", path, "-o", str(folder / "merged.json"), "--to", "chrome"): 2,
        ("compare", path, *JSON): 1,
        ("dataset", path, "-o", str(folder / "runs.csv")): 1,
        ("trajectory", path, "--key", "batch", *JSON): 1,
        ("export", path, "-o", str(folder / "frames")): 3,
        ("export", path, "--to", "chrome", "-o", str(folder / "out.json")): 3,
        ("scrub", path, str(folder / "scrubbed.sqlite")): 2,
    }
    (words,) = rng.choices(list(weights), list(weights.values()))
    return [words, words] if "-o" not in words and rng.random() < 0.06 else [words]


def run_case(seed: int, only: str, bases: Path, folder: Path) -> dict[str, Any]:
    """The row of one case; what it wrote stays in the folder."""
    from laws import Answer, broken_laws, disagreements
    from mutators import MUTATORS

    rng = random.Random(seed)
    kind = only or rng.choice(sorted(MUTATORS))
    os.environ["TRACEKIT_CACHE_DIR"] = str(folder / "cache")
    os.environ["TRACEKIT_BASELINES"] = str(folder / "baselines")
    (folder / "in").mkdir()
    case = MUTATORS[kind](rng, bases, folder / "in")
    begin = time.process_time()
    answers: list[Answer] = []
    for words in questions(rng, str(case.path), case.flags, bases, folder):
        code, out, err = _asked(list(words), folder)
        answers.append(Answer(words, code, out, err, [*folder.glob("page.html")]))
    faults = [f"{' '.join(one.words[:1])}: {fault}" for one in answers for fault in broken_laws(one)]
    if not case.flags:
        faults += disagreements(answers)
    first, last = answers[0], answers[-1]
    if len(answers) > 1 and first.words == last.words and (first.code, first.out) != (last.code, last.out):
        faults.append("the answer from the cache is another one")
    return {
        "seed": seed,
        "kind": kind,
        "readable": first.code not in (2, 3),
        "faults": list(dict.fromkeys(faults)),
        "seconds": time.process_time() - begin,
    }


def _asked(words: list[str], folder: Path) -> tuple[int, bytes, bytes]:
    """The program's exit code, stdout and stderr, as if it ran alone."""
    from tracekit.cli.main import main

    out, err = ((folder / name).open("w+b") for name in ("out", "err"))
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), encoding="utf-8")
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), encoding="utf-8", write_through=True)
    try:
        main(words)
        code = 0
    except SystemExit as left:
        code = int(left.code or 0)
    sys.stdout.flush()
    sys.stderr.flush()
    return code, (folder / "out").read_bytes(), (folder / "err").read_bytes()


# -- many cases ---------------------------------------------------------------------------------------


def work(seeds: Sequence[int], only: str, bases: Path, scratch: Path, keep: Path | None) -> None:
    """Run the cases of these seeds and print a row of JSON for each.

    A fork runs some cases one after another, as a program does that reads many files; the case that ends it is at fault, and
    another fork goes on. Polars starts its threads at the first frame that it computes, so this process must compute none.
    """
    for name in ("laws", "matplotlib.pyplot", "typer._adapters", "adbc_driver_sqlite", *_modules()):
        importlib.import_module(name)  # which the forks then need not do
    importlib.metadata.entry_points = functools.cache(
        importlib.metadata.entry_points
    )  # a folder of many files
    gc.freeze()

    while seeds:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            _run_some(seeds[:CASES_OF_A_FORK], only, bases, scratch, writer)
        os.close(writer)
        with os.fdopen(reader) as stream:
            rows = [json.loads(line) for line in stream]
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            why = f"ended by {signal.Signals(-status).name}" if status < 0 else "the campaign itself failed"
            seed = seeds[len(rows)]
            rows.append(
                {
                    "seed": seed,
                    "kind": only or "?",
                    "readable": False,
                    "seconds": 0,
                    "mebibytes": 0,
                    "faults": [why],
                }
            )
        for row in rows:
            print(json.dumps(row), flush=True)
            folder = scratch / str(row["seed"])
            if keep is not None and row["faults"]:
                shutil.copytree(
                    folder, keep / folder.name, symlinks=True, dirs_exist_ok=True, ignore=_no_pipes
                )
            shutil.rmtree(folder, ignore_errors=True)
        seeds = seeds[len(rows) :]


def _run_some(seeds: Sequence[int], only: str, bases: Path, scratch: Path, writer: int) -> NoReturn:
    """Write a row for each case and end this process, also after a case that took much memory."""
    for kind in (RuntimeWarning, UserWarning, FutureWarning):
        warnings.simplefilter("always", kind)
    code = 1
    try:
        for seed in seeds:
            used = resource.getrusage(resource.RUSAGE_SELF)
            limit = int(used.ru_utime + used.ru_stime) + SECONDS
            resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
            signal.alarm(5 * SECONDS)
            Path("/proc/self/clear_refs").write_text("5")  # the most memory counts from here
            folder = scratch / str(seed)
            folder.mkdir()
            row = run_case(seed, only, bases, folder)
            row["mebibytes"] = _most_memory() >> 10
            if row["mebibytes"] > MEBIBYTES:
                row["faults"].append(f"{row['mebibytes']} MiB of memory")
            os.write(writer, (json.dumps(row) + "\n").encode())
            if row["mebibytes"] > MEBIBYTES // 4:
                break
        code = 0
    finally:
        if code:
            (scratch / "error").write_text(traceback.format_exc())
        os._exit(code)


def _most_memory() -> int:
    """In KiB, since it was reset."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def _modules() -> Iterator[str]:
    """Those of tracekit but those that need torch."""
    for home, package in ((ROOT / "tracekit", "tracekit"), (ROOT / "analyses", "tracekit.analyses")):
        for file in sorted(home.rglob("*.py")):
            parts = file.relative_to(home).with_suffix("").parts
            if not {"capture", "__main__", "__init__"} & set(parts):
                yield ".".join((package, *parts))


def _no_pipes(folder: str, names: list[str]) -> list[str]:
    return [
        name for name in names if not (Path(folder) / name).is_file() and not (Path(folder) / name).is_dir()
    ]


def campaign(cases: int, *, first: int = 0, jobs: int = 2, only: str = "", keep: Path | None = None) -> Table:
    """Run that many cases in that many processes; Ctrl-C ends it with the table so far."""
    table = Table()
    workers: list[subprocess.Popen[str]] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:  # a killed case may still write
        scratch = Path(name)
        here = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent), *sys.path]),
            "POLARS_MAX_THREADS": "1",
        }
        subprocess.run([sys.executable, HERE / "bases.py", scratch / "bases"], check=True, env=here)

        def part(job: int) -> None:
            words = [sys.executable, HERE / "campaign.py", "--work", scratch, "--first", first + job]
            words += [
                "--cases",
                len(range(first + job, first + cases, jobs)),
                "--jobs",
                jobs,
                "--only",
                only,
                *(("--keep", keep) if keep else ()),
            ]
            with subprocess.Popen(
                [str(word) for word in words],
                stdout=subprocess.PIPE,
                env=here,
                text=True,
                start_new_session=True,
            ) as process:
                workers.append(process)
                assert process.stdout is not None
                for line in process.stdout:
                    table.add(json.loads(line))
            if process.returncode and process.returncode not in (-signal.SIGTERM, -signal.SIGINT):
                table.faults.append((first + job, "?", f"the worker ended with {process.returncode}"))

        with ThreadPoolExecutor(jobs) as pool:
            try:
                list(pool.map(part, range(jobs)))
            except KeyboardInterrupt:
                for process in workers:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGTERM)  # with the case that it runs
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=2_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="one kind of mutation")
    parser.add_argument("--keep", type=Path, help="keep the inputs that broke a law here")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work is not None:
        seeds = range(given.first, given.first + given.cases * given.jobs, given.jobs)
        work(seeds, given.only, given.work / "bases", given.work, given.keep)
        return
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.default_int_handler)  # which a shell's background jobs ignore
    begin = time.monotonic()
    table = campaign(given.cases, first=given.first, jobs=given.jobs, only=given.only, keep=given.keep)
    print(table)
    print(
        f"{sum(t.cases for t in table.kinds.values())} cases in {time.monotonic() - begin:.0f} s; broken: {Counter(k for _, k, _ in table.faults)}"
    )
    sys.exit(1 if table.faults else 0)


if __name__ == "__main__":
    main()
