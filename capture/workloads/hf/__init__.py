"""`hf:NAME`: an architecture of transformers with random weights, trained on data that are made up."""

from tracekit.capture.workloads.hf.workload import (
    VARIANTS,
    HfEntry,
    build,
    build_config,
    build_model,
    example_batch,
    find,
    loss,
    names,
)

__all__ = [
    "VARIANTS",
    "HfEntry",
    "build",
    "build_config",
    "build_model",
    "example_batch",
    "find",
    "loss",
    "names",
]
