"""One process in which HTA loads a file and runs its five main analyses, or only loads the ranks in a folder (`FOLDER load`)."""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

warnings.simplefilter("ignore")

from hta.trace_analysis import TraceAnalysis  # noqa: E402 - its import warns

if __name__ == "__main__":  # its helpers may import this file
    if sys.argv[2:] == ["load"]:
        TraceAnalysis(trace_dir=sys.argv[1])
        sys.exit()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "rank0.json").symlink_to(Path(sys.argv[1]).resolve())
        analysis = TraceAnalysis(trace_dir=folder)
        analysis.get_temporal_breakdown(visualize=False)
        analysis.get_idle_time_breakdown(visualize=False)
        analysis.get_gpu_kernel_breakdown(visualize=False)
        analysis.get_comm_comp_overlap(visualize=False)
        analysis.get_cuda_kernel_launch_stats(visualize=False)
