"""The samples in the repository are what their manifests say, are small, and name no machine."""

import gzip
import re
from pathlib import Path

import pytest

from tracekit.facts.capture_names import LAYER_METADATA_KEY, LAYER_PREFIX, PHASE_PREFIX
from tracekit.manifest import read_manifest

SAMPLES = sorted(path.parent for path in Path(__file__).parents[2].glob("sample_traces/*/manifest.json"))


def test_there_are_samples() -> None:
    assert {"cnn_cpu", "encoder_cpu"} <= {sample.name for sample in SAMPLES}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_a_sample_holds_what_its_manifest_says(sample: Path, load_trace) -> None:
    manifest = read_manifest(sample / "manifest.json")
    (run,) = (run for run in manifest.runs if run.level == "MLG")
    assert run.trace_defect is None
    assert manifest.stopped is None
    document = load_trace(sample / str(run.trace))
    table = document[LAYER_METADATA_KEY]
    assert len(table["layers"]) == manifest.layers
    spans = [e for e in document["traceEvents"] if e["ph"] == "X"]
    steps = {e["name"] for e in spans if e["name"].startswith("ProfilerStep#")}
    assert len(steps) == manifest.options.steps == 3
    host_ranges = [e for e in spans if e["cat"] == "user_annotation"]
    assert len([e for e in host_ranges if e["name"].startswith(LAYER_PREFIX)]) == len(table["calls"]["layer"])
    assert len({e["name"] for e in host_ranges if e["name"].startswith(PHASE_PREFIX)}) == 8
    assert any(e["name"] == "[memory]" for e in document["traceEvents"])
    assert any(e["cat"] == "kernel" for e in spans) == (manifest.device == "cuda")


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_a_sample_is_small_and_names_no_machine(sample: Path) -> None:
    packed = (sample / "trace.json.gz").read_bytes()
    assert len(packed) < 1_000_000
    assert packed[3:8] == bytes(5)  # the gzip header holds no file name and no time
    text = gzip.decompress(packed).decode() + (sample / "manifest.json").read_text(encoding="utf-8")
    assert not re.search(r'host_name|traceName|"(/|[A-Za-z]:[/\\])|/(home|root|tmp|usr|Users)/', text)
