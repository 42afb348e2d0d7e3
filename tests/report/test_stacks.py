"""Stacks for flame graphs: what the lines add up to, what names may hold, and speedscope's schema."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import small_traces
from paths import PUBLIC, SAMPLES
from real_traces import trace_of, traces

import tracekit
from tracekit.analyses.layers import layers
from tracekit.analyses.layers.stacks import layer_stacks
from tracekit.analyses.scope import select
from tracekit.errors import UsageError
from tracekit.facts.stack_names import PHASES
from tracekit.report.stacks import collapsed, speedscope
from tracekit.trace import Trace

NUMBER = {"type": "number"}
SPEEDSCOPE = {
    "type": "object",
    "required": ["$schema", "shared", "profiles"],
    "additionalProperties": False,
    "properties": {
        "$schema": {"const": "https://www.speedscope.app/file-format-schema.json"},
        "name": {"type": "string"},
        "activeProfileIndex": NUMBER,
        "exporter": {"type": "string"},
        "shared": {
            "type": "object",
            "required": ["frames"],
            "properties": {
                "frames": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {"name": {"type": "string"}, "file": {"type": "string"}},
                    },
                }
            },
        },
        "profiles": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["type", "name", "unit", "startValue", "endValue", "samples", "weights"],
                "additionalProperties": False,
                "properties": {
                    "type": {"const": "sampled"},
                    "name": {"type": "string"},
                    "unit": {"enum": ["none", "nanoseconds", "microseconds", "milliseconds", "seconds", "bytes"]},
                    "startValue": NUMBER,
                    "endValue": NUMBER,
                    "samples": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
                    "weights": {"type": "array", "items": NUMBER},
                },
            },
        },
    },
}  # fmt: skip
"""What speedscope documents of a file with sampled profiles (src/lib/file-format-spec.ts of its repository)."""


def valid(data: Any) -> None:
    import jsonschema  # takes a second, and every process of a parallel run imports this file

    jsonschema.validate(data, SPEEDSCOPE)


def parsed(text: str) -> dict[tuple[str, ...], int]:
    """Collapsed stacks as flamegraph.pl reads them: the last blank parts the value from the stack."""
    found: dict[tuple[str, ...], int] = defaultdict(int)
    for line in text.splitlines():
        stack, _, value = line.rpartition(" ")
        found[tuple(stack.split(";"))] += int(value)
    return found


@pytest.mark.parametrize("path", traces(*SAMPLES, *PUBLIC))
def test_both_formats_hold_the_device_time(path: Path) -> None:
    trace = trace_of(path)
    scope = select(trace)
    rows = layer_stacks(scope)
    total = int(scope.activities["duration"].sum())
    assert sum(parsed(collapsed(rows)).values()) == total
    data = json.loads(speedscope(rows, "a name"))
    valid(data)
    assert sum(profile["endValue"] for profile in data["profiles"]) == total
    frames = [frame["name"] for frame in data["shared"]["frames"]]
    assert len(frames) == len(set(frames))
    told: dict[tuple[str, ...], int] = defaultdict(int)
    for profile in data["profiles"]:
        assert len(profile["samples"]) == len(profile["weights"])
        assert sum(profile["weights"]) == profile["endValue"]
        for sample, weight in zip(profile["samples"], profile["weights"], strict=True):
            told[tuple(frames[index].replace(";", ":") for index in sample)] += weight
    assert told == parsed(collapsed(rows))
    devices, phases = scope.activities["device_id"].n_unique(), rows["phase"].n_unique()
    assert phases <= len(data["profiles"]) <= devices * phases


@pytest.mark.slow
def test_stacks_agree_with_the_tree() -> None:
    """Of every layer the stacks through it sum to its inclusive time."""
    trace = tracekit.read(next(path for path in SAMPLES if path.parent.name == "bert_cpu"))
    tree = layers(trace).tree
    times = parsed(collapsed(layer_stacks(trace)))
    for path, time in tree.filter(pl.col("source") == "capture")["path", "device_ns"].rows():
        parts = ["<root>"] if path == "<root>" else ["<root>", *path.split(".")]
        below = sum(value for stack, value in times.items() if list(stack[: len(parts)]) == parts)
        assert below == time, path


@pytest.mark.slow
def test_one_phase() -> None:
    trace = tracekit.read(SAMPLES[0])
    phases = {phase: layer_stacks(trace, phase=phase) for phase in PHASES}
    whole = layer_stacks(trace)
    assert sum(int(rows["value_ns"].sum()) for rows in phases.values()) == int(whole["value_ns"].sum())
    assert phases["backward"]["phase"].unique().to_list() == ["backward"]
    with pytest.raises(UsageError, match="no phase 'sideways'"):
        layer_stacks(trace, phase="sideways")


def _hostile(folder: Path) -> Trace:
    script = small_traces.Script()
    names = ["a;b", "line\nbreak", "ends in 12 34", "", "\x1b[31mred", "tab\there;", *small_traces.HOSTILE]
    for index, name in enumerate(names):
        at = 100.0 * index
        script.host(name, at, 90, "user_annotation")
        script.work(name, at + 5, at + 10, 1 + index, operator=name)
    return script.read(folder)


@pytest.mark.slow
def test_hostile_names_stay_in_their_frame(tmp_path: Path) -> None:
    trace = _hostile(tmp_path)
    rows = layer_stacks(trace)
    lines = collapsed(rows).splitlines()
    assert len(lines) == rows.height == trace.device.height
    assert [line.count(";") for line in lines] == [2] * len(lines)
    assert not any(ord(letter) < 32 for line in lines for letter in line)
    assert parsed("\n".join(lines))["a:b", "a:b", "a:b"] == 1_000
    assert parsed("\n".join(lines))["ends in 12 34", "ends in 12 34", "ends in 12 34"] == 3_000
    assert parsed("\n".join(lines))["(no name)", "(no name)", "(no name)"] == 4_000
    valid(json.loads(speedscope(rows, "</script>")))


def test_nothing_ran(tmp_path: Path) -> None:
    rows = layer_stacks(small_traces.nothing(tmp_path))
    assert collapsed(rows) == ""
    valid(json.loads(speedscope(rows, "nothing")))
