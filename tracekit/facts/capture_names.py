"""The names by which tracekit marks a trace: what its capture and its export write, and what its readers look for.

* A phase of a training step is a range named `PHASE_PREFIX` + phase, such as `tracekit.phase/forward`.
* A call of a module is a range named `LAYER_PREFIX` + qualified name, such as
  `tracekit.layer/stages.0.conv1`; the root module, whose qualified name is empty, is `tracekit.layer/<root>`.
  Characters that the profiler cannot write are replaced in the range name. Where the profile recorded shapes,
  the range's arguments also hold `layer_id`, the layer's `id` in the table below.
* The layer table stands at the top level of the trace file, under `LAYER_METADATA_KEY`.
* The number of ranks in a file of `tracekit merge --to chrome` stands at the top level, under `MERGED_KEY`.
* Tracks that `tracekit export --to chrome` adds to a trace are of the category `ENRICHED_CATEGORY`.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "ENRICHED_CATEGORY",
    "INDEX_FILE",
    "LAYER_METADATA_KEY",
    "LAYER_PREFIX",
    "MANIFEST_FILE",
    "MERGED_KEY",
    "PHASE_PREFIX",
]

PHASE_PREFIX = "tracekit.phase/"
LAYER_PREFIX = "tracekit.layer/"
LAYER_METADATA_KEY = "tracekit_layers"
MERGED_KEY: Final = "tracekit_ranks"
ENRICHED_CATEGORY: Final = "tracekit"
MANIFEST_FILE: Final = "manifest.json"
INDEX_FILE: Final = "index.parquet"
"""Of a sweep: its runs, with their settings and times."""
