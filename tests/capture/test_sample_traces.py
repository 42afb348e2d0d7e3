"""The samples in the repository are what their manifests say, are small, and name no machine."""

import gzip
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tracekit.capture.marks.names import PHASES
from tracekit.facts.capture_names import LAYER_METADATA_KEY, LAYER_PREFIX, PHASE_PREFIX
from tracekit.manifest import Manifest, read_manifest

SAMPLES = sorted(path.parent for path in Path(__file__).parents[2].glob("sample_traces/*/manifest.json"))


def test_there_are_samples() -> None:
    expected = {
        "cnn_cpu",
        "encoder_cpu",
        "yolov5_cpu",
        "bert_cpu",
        "dlrm_cpu",
        "resnet50_cpu",
        "bert_cpu_ddp",
        *(
            f"{name}_gpu_{kind}"
            for name in ("yolov5", "bert", "dlrm", "resnet50")
            for kind in ("fp32", "bf16")
        ),
    }
    assert expected <= {sample.name for sample in SAMPLES}


def test_the_readme_names_each_sample_with_its_command() -> None:
    text = (SAMPLES[0].parent / "README.md").read_text("utf-8")
    for device in ("cpu", "cuda"):
        done = subprocess.run(
            [sys.executable, SAMPLES[0].parent / "make.py", "--commands", "--device", device],
            capture_output=True,
            text=True,
            check=True,
        )
        for line in done.stdout.splitlines():
            assert line in text
    for sample in SAMPLES:
        assert f"`{sample.name}`" in text


@pytest.mark.quick(1)
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
@pytest.mark.sampled(4)
def test_a_sample_holds_what_its_manifest_says(sample: Path, load_trace) -> None:
    manifest = read_manifest(sample / "manifest.json")
    runs = [run for run in manifest.runs if run.level == "MLG"]
    assert manifest.settings is not None
    assert [run.rank for run in runs] == list(range(manifest.settings.ranks))
    assert manifest.stopped is None
    assert manifest.flops_per_step
    for run in runs:
        assert run.trace_defect is None
        assert all(math.isfinite(loss) for loss in run.losses)
        check_trace(load_trace(sample / str(run.trace)), manifest)


def check_trace(document, manifest: Manifest) -> None:
    table = document[LAYER_METADATA_KEY]
    assert len(table["layers"]) == manifest.layers
    spans = [e for e in document["traceEvents"] if e["ph"] == "X"]
    steps = {e["name"] for e in spans if e["name"].startswith("ProfilerStep#")}
    assert len(steps) == manifest.options.steps
    host_ranges = [e for e in spans if e["cat"] == "user_annotation"]
    assert len([e for e in host_ranges if e["name"].startswith(LAYER_PREFIX)]) == len(table["calls"]["layer"])
    assert len({e["name"] for e in host_ranges if e["name"].startswith(PHASE_PREFIX)}) == len(PHASES)
    assert any(e["name"] == "[memory]" for e in document["traceEvents"])
    assert any(e["cat"] == "kernel" for e in spans) == (manifest.device == "cuda")


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_a_sample_is_small_and_names_no_machine(sample: Path) -> None:
    text = (sample / "manifest.json").read_text(encoding="utf-8")
    for trace in sample.glob("*.json.gz"):
        packed = trace.read_bytes()
        assert len(packed) < 2_000_000
        assert packed[3:8] == bytes(5)  # the gzip header holds no file name and no time
        text += gzip.decompress(packed).decode()
    assert not re.search(r'host_name|traceName|"(/|[A-Za-z]:[/\\])|/(home|root|tmp|usr|Users)/', text)
