"""How long a step would take after a change, before anyone makes it."""

from tracekit.analyses.what_if.analysis import TABLES, WhatIf, predicted, what_if
from tracekit.analyses.what_if.changes import (
    Bandwidth,
    Change,
    FasterHost,
    Fuse,
    NoLoaderWait,
    OtherDevice,
    OverlapCommunication,
    Remove,
    RemoveSync,
    Scale,
    ShardOptimizer,
)
from tracekit.analyses.what_if.graphs import CudaGraph
from tracekit.analyses.what_if.pods import BucketInputs, PartitionSpace

__all__ = [
    "TABLES",
    "Bandwidth",
    "BucketInputs",
    "Change",
    "CudaGraph",
    "FasterHost",
    "Fuse",
    "NoLoaderWait",
    "OtherDevice",
    "OverlapCommunication",
    "PartitionSpace",
    "Remove",
    "RemoveSync",
    "Scale",
    "ShardOptimizer",
    "WhatIf",
    "predicted",
    "what_if",
]
