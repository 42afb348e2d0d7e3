"""Make the sample traces again: `python sample_traces/make.py [--device cuda] [NAME …]`.

On a CPU each sample is small on purpose: a few steps of a tiny model. On a GPU they are the real sizes, in two
precisions, so that one call of this script refreshes them all wherever a GPU is at hand.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tracekit.capture.run import run
from tracekit.errors import TracekitError
from tracekit.manifest import CaptureOptions, Precision, Settings

__all__ = ["Sample", "make", "samples"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One capture: the folder's name, the workload, its settings and the number of recorded steps."""

    folder: str
    workload: str
    settings: Settings
    steps: int = 3
    warmup: int = 2

    @property
    def command(self) -> str:
        """The command that makes the same capture."""
        words = [f"tracekit capture {self.workload}"]
        default = Settings()
        for name in Settings.__struct_fields__:
            value = getattr(self.settings, name)
            if value != getattr(default, name):
                flag = f"--{name.replace('_', '-')}"
                words.append(flag if value is True else f"{flag} {value}")
        return " ".join([*words, f"--steps {self.steps} --warmup {self.warmup} -o {self.folder}"])


def samples(device: str) -> Iterator[Sample]:
    """The samples of a device, `cpu` or `cuda`."""
    if device == "cpu":
        yield Sample("cnn_cpu", "cnn", Settings(batch=4, size=32))
        yield Sample("encoder_cpu", "encoder", Settings(batch=4, size=32))
        yield Sample("yolov5_cpu", "yolov5", Settings(tiny=True), steps=2)
        yield Sample("bert_cpu", "bert", Settings(tiny=True))
        yield Sample("dlrm_cpu", "dlrm", Settings(tiny=True))
        yield Sample("resnet50_cpu", "resnet50", Settings(tiny=True))
        yield Sample("bert_cpu_ddp", "bert", Settings(tiny=True, ranks=2))
        return
    both: tuple[Precision, ...] = ("fp32", "bf16")
    for precision in both:
        for workload, batch, size in (
            ("yolov5:s", 16, 640),
            ("bert:base", 16, 512),
            ("dlrm:kaggle", 2048, None),
            ("resnet50", 64, 224),
        ):
            name = workload.partition(":")[0]
            settings = Settings(device="cuda", batch=batch, size=size, precision=precision, workers=4)
            yield Sample(f"{name}_gpu_{precision}", workload, settings, warmup=5)


def make(sample: Sample, folder: Path) -> str:
    """Record a sample into its own folder below `folder`; returns a line that tells what came of it.

    Raises what `tracekit.capture.run.run` raises.
    """
    options = CaptureOptions(steps=sample.steps, warmup=sample.warmup)
    result = run(sample.workload, folder / sample.folder, settings=sample.settings, options=options)
    size = sum(trace.stat().st_size for trace in result.traces) / 1000
    plain, recorded = (min(result.manifest.step_times_ns(level)) / 1e6 for level in ("M", "MLG"))
    return f"{sample.folder}: {size:.0f} kB, step {plain:.2f} ms, recorded {recorded:.2f} ms"


def _main() -> int:
    parser = argparse.ArgumentParser(description="Make the sample traces again.")
    parser.add_argument("names", nargs="*", help="default: all of the device")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="default: beside this script")
    parser.add_argument("--commands", action="store_true", help="only print the commands")
    arguments = parser.parse_args()
    try:
        for sample in samples(arguments.device):
            if not arguments.names or sample.folder in arguments.names:
                print(sample.command if arguments.commands else make(sample, arguments.out), flush=True)
    except TracekitError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(_main())
