"""`run`, the registry of workloads and the manifest, apart from what the trace holds."""

import gzip
import json
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
import torch
from manifests import manifest

from tracekit.capture import output, recorder, workloads
from tracekit.capture.device import resolve_device
from tracekit.capture.output import pack_trace
from tracekit.capture.run import run
from tracekit.errors import MissingDependencyError, TracekitError, UnreadableTraceError, UsageError
from tracekit.manifest import CaptureOptions, Settings, read_manifest


def test_importing_the_package_and_listing_workloads_does_not_import_torch() -> None:
    code = (
        "import sys, tracekit.capture, tracekit.capture.run, tracekit.capture.workloads as w; "
        "assert w.names(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_workload_is_an_error_that_lists_the_names(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"unknown workload 'abacus'; choose one of: .*cnn"):
        run("abacus", tmp_path)


def test_an_installed_package_can_add_a_workload(tmp_path: Path, monkeypatch) -> None:
    added = EntryPoint("mine", "tracekit.capture.workloads.cnn:build", workloads.ENTRY_POINT_GROUP)

    def entry_points(**wanted: str) -> EntryPoints:
        return EntryPoints([added]).select(**wanted)

    monkeypatch.setattr(workloads, "entry_points", entry_points)
    assert {"cnn", "mine"} < set(workloads.names())
    lines: list[str] = []
    result = run(
        "mine",
        tmp_path / "new" / "folder",
        settings=Settings(batch=1, size=8),
        options=CaptureOptions(steps=1),
        progress=lines.append,
    )
    assert result.manifest.workload == "mine"
    assert lines == [
        "building mine",
        "timing 1 step without the profiler",
        "recording 1 step",
        "counting the FLOPs of a step",
    ]


def test_slow_steps_say_how_far_they_are(tmp_path: Path, monkeypatch) -> None:
    lines: list[str] = []
    for quiet in (1000, 0):
        monkeypatch.setattr(recorder, "QUIET_SECONDS", quiet)
        options = CaptureOptions(steps=2, warmup=1)
        lines.append("--")
        small = Settings(batch=1, size=8)
        run("cnn", tmp_path, settings=small, options=options, levels=("M",), progress=lines.append)
    assert lines == [
        *("--", "building cnn", "timing 2 steps without the profiler"),
        *("--", "building cnn", "timing 2 steps without the profiler"),
        *(f"{done} of 3 steps are done, 1 of them warm-up" for done in (1, 2)),
    ]


@pytest.mark.slow
def test_progress_is_plain_lines_where_stderr_is_no_terminal(tmp_path: Path) -> None:
    words = ["capture", "cnn", "-o", str(tmp_path / "out"), "--steps", "1", "--levels", "M", "--size", "8"]
    done = subprocess.run([sys.executable, "-m", "tracekit", *words], capture_output=True, check=True)
    assert done.stderr.splitlines() == [b"building cnn", b"timing 1 step without the profiler"]
    assert done.stdout.decode().splitlines() == [str(tmp_path / "out" / "manifest.json")]


def test_without_torch_the_error_says_what_to_install(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'tracekit-torch\[capture\]'"):
        run("cnn", tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="sees no GPU; use --device cpu"):
        run("cnn", tmp_path, settings=Settings(device="cuda"))


@pytest.mark.parametrize("name", ["abacus", "meta", "cpu:x"])
def test_other_devices_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="use cpu, cuda or cuda:N"):
        resolve_device(name)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["cnn", "encoder"])
def test_a_gpu_recording_holds_the_kernels_of_its_steps(tmp_path: Path, name: str) -> None:
    result = run(name, tmp_path, settings=Settings(device="cuda"), options=CaptureOptions(steps=2))
    events = json.loads(gzip.decompress(result.trace.read_bytes()))["traceEvents"]
    steps = [e for e in events if e.get("cat") == "user_annotation" and "ProfilerStep#" in e["name"]]
    kernels = [e for e in events if e.get("cat") == "kernel"]
    assert len(steps) == 2
    assert kernels
    assert max(k["ts"] + k["dur"] for k in kernels) <= max(s["ts"] + s["dur"] for s in steps)
    assert min(result.manifest.step_times_ns("MLG")) > 0


@pytest.mark.quick(1)
def test_a_manifest_reads_back_as_it_was_written(captured) -> None:
    assert read_manifest(captured.manifest_path) == captured.manifest


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"schema_version": 2}', b'{"schema_version": "1"}'])
def test_a_damaged_manifest_is_an_error_that_names_the_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "manifest.json"
    path.write_bytes(content)
    with pytest.raises(UnreadableTraceError, match=r"manifest\.json: not a "):
        read_manifest(path)


def test_a_manifest_with_amounts_that_cannot_be_is_none(tmp_path: Path) -> None:
    """One of −1 samples in a step made a negative throughput."""
    path = tmp_path / "manifest.json"
    path.write_bytes(manifest(samples_per_step=-1).to_json())
    with pytest.raises(UnreadableTraceError, match="not a valid manifest"):
        read_manifest(path)


def test_a_manifest_of_a_newer_version_asks_for_a_newer_tracekit(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_bytes(b'{"schema_version": 3, "something": "new"}')
    with pytest.raises(TracekitError, match="schema version is 3; use a newer tracekit"):
        read_manifest(path)
    path.write_bytes(b'{"schema_version": 1, "something": "old"}')
    with pytest.raises(TracekitError, match="schema version is 1; capture again"):
        read_manifest(path)


def test_packing_changes_top_level_keys_only_and_keeps_the_events_bytes(tmp_path: Path) -> None:
    events = b'[ {"name": "a]",  "ts": 1.500,\n "args": {"host_name": "kept", "traceName": "]"}} ]'
    header = b'{"host_name": "here", "note": "the \\"traceEvents\\": [", "x": {"y": [1]},\n "traceEvents": '
    source = tmp_path / "in.json"
    source.write_bytes(header + events + b',"traceName": "/runs[1]/p" }')
    assert pack_trace(source, tmp_path / "out.gz", {"added": b'{"quote": "\\""}'}) is None
    written = gzip.decompress((tmp_path / "out.gz").read_bytes())
    kept = b'{\n"note": "the \\"traceEvents\\": [",\n"x": {"y": [1]},\n"added": {"quote": "\\""},\n'
    assert written == kept + b'"traceEvents": ' + events + b"\n}\n"


@pytest.mark.parametrize("chunk", [1, 3, 7, 1 << 20])
def test_packing_copies_every_byte_whatever_the_chunk(tmp_path: Path, monkeypatch, chunk: int) -> None:
    monkeypatch.setattr(output, "CHUNK", chunk)
    source = tmp_path / "in.json"
    source.write_bytes(b'{"traceEvents": [{"name": "/a/b/c/d.py(3): f"}, {"name": "x /a/b.py(1): g"}]}')
    pack_trace(source, tmp_path / "out.gz", {})
    names = [
        e["name"] for e in json.loads(gzip.decompress((tmp_path / "out.gz").read_bytes()))["traceEvents"]
    ]
    assert names == ["c/d.py(3): f", "x /a/b.py(1): g"]


@pytest.mark.parametrize("content", [b"{}", b'{"traceEvents": 3}', b'{"x": "traceEvents"}', b"not json"])
def test_packing_a_file_without_events_is_an_error(tmp_path: Path, content: bytes) -> None:
    source = tmp_path / "in.json"
    source.write_bytes(content)
    with pytest.raises(TracekitError, match="without events"):
        pack_trace(source, tmp_path / "out.gz", {})


def test_packing_the_same_trace_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    source = tmp_path / "in.json"
    source.write_bytes(b'{"traceEvents": []}')
    for name in ("one", "two"):
        pack_trace(source, tmp_path / name, {})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert b"in.json" not in (tmp_path / "one").read_bytes()


def test_a_second_capture_replaces_the_first_with_all_its_traces(tmp_path: Path) -> None:
    few = CaptureOptions(steps=1)
    small = Settings(batch=1, size=8)
    run("cnn", tmp_path, settings=small, options=few, levels=("ML", "MLG"))
    (tmp_path / "trace-of-mine.json.gz").write_bytes(b"")
    run("cnn", tmp_path, settings=small, options=few, levels=("M", "ML"))
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {"manifest.json", "trace-ML.json.gz", "trace-of-mine.json.gz"}


def test_a_capture_that_fails_at_once_leaves_no_empty_folder(tmp_path: Path) -> None:
    for name, options in (("resnet50:19", None), ("cnn", CaptureOptions(steps=1))):
        settings = Settings(device="nowhere") if options else None
        with pytest.raises(UsageError):
            run(name, tmp_path / "new", settings=settings, options=options)
        assert not (tmp_path / "new").exists()


def test_what_is_no_workload_is_told_so(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("def build(options):\n    return None\n")
    with pytest.raises(UsageError, match="returned an object of type NoneType, which is not a workload"):
        run(f"{mine}:build", tmp_path / "out")
