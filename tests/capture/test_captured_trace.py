"""What a recording holds: steps, phases, layers, and sequence numbers that lead back to the right layer."""

import getpass
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from tracekit.capture.run import CaptureResult
from tracekit.facts.capture_names import LAYER_METADATA_KEY, LAYER_PREFIX

Event = dict[str, Any]


@pytest.fixture
def document(captured: CaptureResult, load_trace) -> dict[str, Any]:
    return load_trace(captured.trace)


@pytest.fixture
def spans(document) -> list[Event]:
    return sorted((e for e in document["traceEvents"] if e["ph"] == "X"), key=lambda e: (e["ts"], -e["dur"]))


def named(spans: list[Event], name: str) -> list[Event]:
    return [span for span in spans if span["name"] == name]


def covers(outer: Event, inner: Event) -> bool:
    return (
        outer["tid"] == inner["tid"]
        and outer["ts"] <= inner["ts"]
        and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]
    )


def step_of(span: Event, spans: list[Event]) -> int:
    (step,) = (s for s in spans if s["name"].startswith("ProfilerStep#") and covers(s, span))
    return int(step["name"].partition("#")[2])


def test_the_ranges_are_the_calls_of_the_layer_table(document, spans) -> None:
    table = document[LAYER_METADATA_KEY]
    ranges = [s for s in spans if s["name"].startswith(LAYER_PREFIX)]
    in_trace = [(step_of(span, spans), span["args"]["layer_id"], span["tid"]) for span in ranges]
    calls = table["calls"]
    assert in_trace == list(zip(calls["step"], calls["layer"], calls["thread"], strict=True))
    by_id = {layer["id"]: layer for layer in table["layers"]}
    for span in ranges:
        layer = by_id[span["args"]["layer_id"]]
        assert (span["name"], span["args"]["module"]) == (layer["range_name"], layer["type"])
        assert LAYER_PREFIX + span["args"]["layer"] == span["name"]


def test_every_module_is_called_in_every_step(document) -> None:
    table = document[LAYER_METADATA_KEY]
    calls = Counter(zip(table["calls"]["step"], table["calls"]["layer"], strict=True))
    for step in (1, 2):
        assert {layer["id"] for layer in table["layers"]} == {n for s, n in calls if s == step}


def innermost_layer_by_number(table: Any, number: int) -> int | None:
    calls = table["calls"]
    rows = zip(calls["layer"], calls["first_sequence"], calls["end_sequence"], strict=True)
    holding = [layer for layer, first, end in rows if first <= number < end]
    return holding[-1] if holding else None


def innermost_layer_by_time(ranges: list[Event], span: Event) -> int | None:
    holding = [r["args"]["layer_id"] for r in ranges if covers(r, span)]
    return holding[-1] if holding else None


def test_sequence_intervals_lead_backward_nodes_to_the_layer_of_their_forward(document, spans) -> None:
    table = document[LAYER_METADATA_KEY]
    ranges = [s for s in spans if s["name"].startswith(LAYER_PREFIX)]
    numbered = [s for s in spans if s["cat"] == "cpu_op" and "Sequence number" in s["args"]]
    forward: dict[int, Event] = {}
    backward: set[int] = set()
    for span in numbered:
        number = span["args"]["Sequence number"]
        if span["args"]["Fwd thread id"]:
            backward.add(number)
        elif number not in backward:
            forward[number] = span  # sorted by start: the last one stays, which is the innermost
    matched = [n for n in sorted(backward) if n in forward]
    assert len(matched) == len(backward) > 50
    layers = {n: innermost_layer_by_number(table, n) for n in matched}
    assert layers == {n: innermost_layer_by_time(ranges, forward[n]) for n in matched}
    assert sum(layer is not None for layer in layers.values()) > 0.8 * len(layers)


@pytest.mark.quick(1)
def test_shapes_and_memory_are_recorded(document) -> None:
    events = document["traceEvents"]
    assert any(e["name"] == "[memory]" and e["args"]["Bytes"] > 0 for e in events)
    assert any(e.get("cat") == "cpu_op" and e["args"].get("Input Dims") for e in events)


@pytest.mark.quick(1)
def test_nothing_names_the_machine_the_user_or_a_path(captured, document) -> None:
    assert not {"host_name", "traceName"} & set(document)
    text = json.dumps(document) + captured.manifest_path.read_text(encoding="utf-8")
    for secret in (str(Path.home()), str(Path.cwd()), str(captured.trace.parent), f"/{getpass.getuser()}/"):
        assert secret not in text


def test_the_manifest_tells_what_was_run(captured) -> None:
    manifest = captured.manifest
    assert manifest.config["batch"] == 2
    assert (manifest.device, manifest.seed, manifest.layer_ranges) == ("cpu", 0, "structured")
    assert [run.level for run in manifest.runs] == ["M", "MLG"]
    plain, profiled = manifest.step_times_ns("M"), manifest.step_times_ns("MLG")
    assert len(plain) == len(profiled) == manifest.options.steps == 2
    assert min(plain + profiled) > 0
    overhead = manifest.overhead()
    assert overhead is not None
    assert overhead > 0
    assert manifest.overhead("ML") is None
    assert manifest.samples_per_step == 2
    assert manifest.stopped is None
    assert manifest.versions["torch"] == torch.__version__
