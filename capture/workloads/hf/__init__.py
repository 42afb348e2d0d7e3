"""`hf:NAME`: an architecture of transformers with random weights, trained on made-up data."""

from tracekit.capture.workloads.hf.workload import VARIANTS, build, build_model, example_batch

__all__ = ["VARIANTS", "build", "build_model", "example_batch"]
