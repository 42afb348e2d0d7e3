"""What the columns of a table of runs mean, by their names, where no description says it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tracekit.errors import UsageError
from tracekit.predict.describe import CATEGORIES, NUMBERS, WORK, Description

__all__ = ["recognised"]

_TARGET: Final = re.compile(
    r"(?:e2e|total|step|iteration|elapsed|latency|time|duration|runtime)(?:_(?:time|latency|duration))?_(?P<unit>ns|us|ms|s|min|h)"
)
_ALSO: Final = {
    "gpus": "gpu num_gpus gpu_number accelerators chips devices",
    "batch": "batch_size global_batch bs",
    "micro_batch": "micro_batch_size mbs",
    "iterations": "steps num_iterations",
    "loader_threads": "cpu_threads threads num_workers loader_workers",
    "layers": "depth num_layers n_layer",
    "hidden": "hidden_size n_embd",
    "heads": "n_head num_heads",
    "sequence": "seq seqlen seq_len sequence_length input_len",
    "tensor_parallel": "tp",
    "data_parallel": "dp",
    "pipeline_parallel": "pp",
    "parameters": "params num_parameters",
    "peak_gflops": "gflops",
    "bandwidth_gb_s": "mem_bw bandwidth",
    "device": "gpu_type device_name gpu_name gpu_model card",
    "machine": "host disk_mb_s",
    "network": "model case",
    "precision": "dtype",
}
"""Names that columns have for a role, besides its own."""


def recognised(columns: Iterable[str], path: Path) -> Description:
    """The description of columns with these names; `path` is their file, for errors.

    >>> found = recognised(["id", "batch_size", "num_gpus", "time_s"], Path("runs.csv"))
    >>> found.target, found.unit, dict(found.columns), found.id
    ('time_s', 's', {'gpus': 'num_gpus', 'batch': 'batch_size'}, 'id')

    Raises UsageError if no column is a time with its unit, or several are.
    """
    names = list(columns)
    by_name = {_plain(name): name for name in reversed(names)}
    targets = [name for name in names if _TARGET.fullmatch(_plain(name))]
    if len(targets) != 1:
        what = (
            f"several columns could be the target: {', '.join(targets)}"
            if targets
            else "no column is a time with its unit, such as time_s"
        )
        raise UsageError(what, path=path, remedy="say what the columns mean with --describe FILE")
    found: dict[str, str] = {}
    for role in (*NUMBERS, *CATEGORIES, WORK):
        words = (role, *_ALSO.get(role, "").split())
        column = next((by_name[word] for word in words if word in by_name), None)
        if column is not None and column not in found.values():
            found[role] = column
    unit = _TARGET.fullmatch(_plain(targets[0]))
    return Description(
        target=targets[0],
        unit=unit["unit"] if unit else "s",
        columns=found,
        id=next((by_name[word] for word in ("id", "row", "run_id") if word in by_name), ""),
    )


def _plain(name: str) -> str:
    """A column's name in small letters, its words joined by underscores and its unit without brackets.

    >>> _plain("Batch Size"), _plain("Step-Time (ms)")
    ('batch_size', 'step_time_ms')
    """
    return re.sub(r"[\W_]+", "_", name.lower()).strip("_")
