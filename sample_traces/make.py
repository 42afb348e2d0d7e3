"""Make the sample traces again: `python sample_traces/make.py [--device cuda]`.

Each sample is small on purpose: three training steps of a small model, with shapes and memory events.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tracekit.capture.run import run
from tracekit.errors import TracekitError
from tracekit.manifest import CaptureOptions, Settings

__all__ = ["SAMPLES", "make_all"]

# workload → batch and size. A GPU gets larger steps, or it would do nothing but wait for launches.
SAMPLES = {
    "cpu": {"cnn": (4, 32), "encoder": (4, 32)},
    "cuda": {"cnn": (64, 64), "encoder": (32, 128)},
}
_SUFFIX = {"cpu": "cpu", "cuda": "gpu"}


def make_all(folder: Path, device: str) -> None:
    """Record every sample for `device` (`cpu` or `cuda`) into its own folder below `folder`.

    Raises what `tracekit.capture.run.run` raises.
    """
    for workload, (batch, size) in SAMPLES[device].items():
        name = f"{workload}_{_SUFFIX[device]}"
        result = run(
            workload,
            folder / name,
            settings=Settings(device=device, batch=batch, size=size),
            options=CaptureOptions(steps=3, warmup=2),
        )
        plain, recorded = (min(result.manifest.step_times_ns(level)) / 1e6 for level in ("M", "MLG"))
        print(
            f"{name}: {result.trace.stat().st_size / 1000:.0f} kB, step {plain:.2f} ms, recorded {recorded:.2f} ms"
        )


def _main() -> int:
    parser = argparse.ArgumentParser(description="Make the sample traces again.")
    parser.add_argument("--device", choices=sorted(SAMPLES), default="cpu")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="default: beside this script")
    arguments = parser.parse_args()
    try:
        make_all(arguments.out, arguments.device)
    except TracekitError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(_main())
