"""Stacks of layers, operators and kernels in the formats of flame-graph viewers.

Collapsed stacks are lines `root;layer;operator;kernel ns`, which flamegraph.pl, inferno and speedscope read. The
speedscope file follows https://www.speedscope.app/file-format-schema.json: one sampled profile per device and phase,
whose weights are nanoseconds.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import polars as pl

import tracekit
from tracekit.facts.terminal_text import escaped
from tracekit.names import clean_frame

__all__ = ["collapsed", "render_stacks", "speedscope"]

_SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"
_NAMELESS: Final = "(no name)"


def render_stacks(format: str, stacks: pl.DataFrame, name: str) -> str:
    """The rows of `tracekit.analyses.layers.stacks.layer_stacks` of the trace of this name, in one of the two formats."""
    return collapsed(stacks) if format == "collapsed" else speedscope(stacks, name)


def collapsed(stacks: pl.DataFrame) -> str:
    """The rows of `tracekit.analyses.layers.stacks.layer_stacks` as collapsed stacks, one line each.

    The format cannot escape: a semicolon in a name becomes a colon, line breaks and control characters a space.
    """
    frames = _clean(stacks)
    names = frames.with_columns(pl.col("frames").str.replace_all(";", ":", literal=True))
    lines = names.group_by("row", maintain_order=True).agg("frames").select(pl.col("frames").list.join(";"))
    rows = pl.DataFrame({"stack": lines["frames"], "value": stacks["value_ns"]})
    text = rows.select(pl.format("{} {}\n", "stack", "value")).to_series().str.join("").item()
    return text or ""


def speedscope(stacks: pl.DataFrame, name: str) -> str:
    """The rows of `tracekit.analyses.layers.stacks.layer_stacks` as a speedscope file; `name` is what it shows."""
    frames = _clean(stacks)
    distinct = frames.select(pl.col("frames").unique(maintain_order=True)).with_row_index("index")
    samples = (
        frames.join(distinct, on="frames", how="left", maintain_order="left")
        .group_by("row", maintain_order=True)
        .agg("index")["index"]
    )
    rows = stacks[["device_id", "phase", "value_ns"]].with_columns(samples.alias("sample"))
    profiles = [
        _profile(_where(str(device), str(phase)), part)
        for (device, phase), part in rows.group_by("device_id", "phase", maintain_order=True)
    ]
    data = {
        "$schema": _SCHEMA,
        "exporter": f"tracekit@{tracekit.__version__}",
        "name": name,
        "activeProfileIndex": 0,
        "shared": {"frames": [{"name": one} for one in distinct["frames"].to_list()]},
        "profiles": profiles or [_profile("nothing ran", rows)],
    }
    return escaped(msgspec.json.encode(data).decode()) + "\n"


def _profile(name: str, rows: pl.DataFrame) -> dict[str, Any]:
    return {
        "type": "sampled",
        "name": name,
        "unit": "nanoseconds",
        "startValue": 0,
        "endValue": int(rows["value_ns"].sum()),
        "samples": rows["sample"].to_list(),
        "weights": rows["value_ns"].to_list(),
    }


def _where(device: str, phase: str) -> str:
    return f"{'host' if device.startswith('-') else f'device {device}'}, {phase}"


def _clean(stacks: pl.DataFrame) -> pl.DataFrame:
    """One row per frame of each stack, in order: `row`, the number of the stack, and `frames`, its name."""
    rows = stacks.select(pl.int_range(pl.len()).alias("row"), "frames").explode("frames")
    text = pl.col("frames").str.strip_chars()
    return clean_frame(rows).with_columns(
        pl.when(text == "").then(pl.lit(_NAMELESS)).otherwise(text).alias("frames")
    )
