"""How good `tracekit predict TRACE --batch 2x` is: the step that it predicts from a capture, against one that is measured.

    python benchmarks/predict_trace.py --device cuda                  # six workloads, each doubled twice; over a minute
    python benchmarks/predict_trace.py gpt2@4 --doublings 1 --tiny    # WORKLOAD@BATCH; seconds on a CPU

Times are the medians of steps without the profiler. The last column says whether the measured step lies in the predicted range.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import tracekit
from tracekit.analyses.scope import select
from tracekit.capture.run import CaptureResult, run
from tracekit.errors import TracekitError
from tracekit.manifest import CaptureOptions, Level, Settings
from tracekit.predict import predict_from_trace

DEFAULT = ["resnet50@16", "bert:base@4", "vit@8", "gpt2@2", "yolov5:s@4", "dlrm:kaggle@1024"]


@dataclass(frozen=True)
class Row:
    """A workload at a batch, in ms: the step, what is predicted at twice the batch, and what is measured there."""

    workload: str
    batch: int
    now: float
    predicted: float
    low: float
    high: float
    measured: float

    @property
    def error(self) -> float:
        return abs(self.predicted - self.measured) / self.measured

    @property
    def inside(self) -> bool:
        return self.low <= self.measured <= self.high

    def __str__(self) -> str:
        times = (self.now, self.predicted, self.low, self.high, self.measured)
        now, predicted, low, high, measured = (f"{each:.1f} ms" for each in times)
        range_ = f"{low} to {high}"
        cells = (self.workload, str(self.batch), now, predicted, range_, measured, f"{self.error:.1%}")
        return f"| {' | '.join([*cells, 'yes' if self.inside else 'no'])} |"


def captured(
    workload: str, batch: int, folder: Path, given: argparse.Namespace, *, traced: bool
) -> CaptureResult:
    settings = Settings(
        device=given.device,
        batch=batch,
        precision=given.precision,
        tiny=given.tiny,
        workers=given.workers,
        threads=1 if given.device == "cpu" else None,
    )
    options = CaptureOptions(steps=given.steps, warmup=3)
    levels: tuple[Level, ...] = ("M", "MLG") if traced else ("M",)
    return run(workload, folder / str(batch), settings=settings, options=options, levels=levels)


def rows(text: str, given: argparse.Namespace) -> Iterator[Row]:
    """Each batch with its double, until one fails."""
    workload, _, first = text.partition("@")
    batches = [int(first) << doubling for doubling in range(given.doublings + 1)]
    with tempfile.TemporaryDirectory() as folder:
        try:
            before = captured(workload, batches[0], Path(folder), given, traced=True)
            for batch, twice in pairwise(batches):
                found = predict_from_trace(select(tracekit.read(before.trace)), batch=2)
                before = captured(workload, twice, Path(folder), given, traced=twice != batches[-1])
                measured = statistics.median(before.manifest.step_times_ns("M"))
                times = (found.now_ns, found.step_ns, found.low_ns, found.high_ns, measured)
                yield Row(workload, batch, *(each / 1e6 for each in times))
        except TracekitError as error:
            print(f"| {workload} | {error} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("workloads", nargs="*", default=DEFAULT, metavar="WORKLOAD@BATCH")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--doublings", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--workers", type=int, help="0 on a CPU, 8 on a GPU")
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    if given.workers is None:
        given.workers = 0 if given.device == "cpu" else 8
    print("| workload | batch | step | predicted at twice | range | measured | error | in the range |")
    print("|---|---|---|---|---|---|---|---|")
    found = []
    for text in given.workloads:
        for row in rows(text, given):
            found.append(row)
            print(row, flush=True)
    errors = [row.error for row in found] or [float("nan")]
    inside = sum(row.inside for row in found)
    print(
        f"\nMean error {statistics.mean(errors):.1%}, worst {max(errors):.1%}; {inside} of {len(found)} in the range."
    )


if __name__ == "__main__":
    main()
