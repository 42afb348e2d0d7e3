"""The law of a training job's time: what its parameters are, and what it says for rows of runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracekit.predict.table import Floats, Runs

__all__ = ["PARAMETERS", "Jobs", "Known", "Parameter", "jobs_of", "parts_of"]

PER_GFLOPS: Final = 1000.0
"""Costs that a device's peak divides are given for a device of this many GFLOP/s."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the law, above 0."""

    name: str
    unit: str
    meaning: str
    spread: float = 5.0
    """How far, in natural logarithms, it may lie from its first guess before the data has to say so."""


PARAMETERS: Final = (
    Parameter("start", "s", "start-up of a run"),
    Parameter("start_device", "s", "start-up of a run, for each device"),
    Parameter("load_sample", "s", "to load a sample, on one thread"),
    Parameter("load_collate", "s", "to put a sample into its batch, on the one thread that does so"),
    Parameter("load_growth", "", "how the time to make a batch grows with its size, as an exponent", 0.3),
    Parameter("load_batch", "s", "to load a batch, however large"),
    Parameter("sample", "s", "of a device of 1000 GFLOP/s, to compute a sample"),
    Parameter("sample_layer", "s", "of a device of 1000 GFLOP/s, to compute a sample, for each layer"),
    Parameter("sample_host", "s", "to compute a sample, whatever the peak of the device"),
    Parameter("step", "s", "of a device of 1000 GFLOP/s, for an iteration, however small its batch"),
    Parameter("step_layer", "s", "of a device of 1000 GFLOP/s, for an iteration, for each layer"),
    Parameter("host", "s", "of the host, for an iteration"),
    Parameter("host_device", "s", "of the host, for an iteration, for each further device"),
    Parameter("sync", "s", "to synchronise several devices, for an iteration"),
    Parameter("sync_device", "s", "to synchronise, for an iteration and each further device"),
    Parameter("gather", "s", "to hand a sample to several devices"),
    Parameter("sharpness", "", "how well loading hides behind computing", 0.7),
)
