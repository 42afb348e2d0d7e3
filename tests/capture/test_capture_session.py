"""Recording a loop of one's own: it changes no number, leaves no hook, and writes whole files or none."""

import gzip
import os
import warnings
from collections import OrderedDict
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.autograd.profiler_util import EventList
from torch.profiler import profile
from torch.utils.checkpoint import checkpoint

from tracekit.capture import output
from tracekit.capture.marks.names import no_phase
from tracekit.capture.recipe import Recipe
from tracekit.capture.recorder import train_step
from tracekit.capture.sessions import session
from tracekit.capture.training import Training
from tracekit.capture.workloads import WorkloadOptions, find
from tracekit.errors import UsageError
from tracekit.facts.capture_names import LAYER_METADATA_KEY, LAYER_PREFIX
from tracekit.manifest import CaptureOptions, Settings, read_manifest

ONE_STEP = CaptureOptions(steps=1, profile_memory=False)


def tiny() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))


def train(model: nn.Module, live, *, steps: int = 2) -> None:
    for _ in range(steps):
        model(torch.ones(2, 3)).sum().backward()
        live.step()


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def layer_ranges(document) -> list[dict]:
    return [e for e in document["traceEvents"] if str(e.get("name")).startswith(LAYER_PREFIX)]


def test_one_cycle_is_recorded_without_a_warning_that_another_would_forget_it(
    tmp_path: Path, monkeypatch, load_trace
) -> None:
    """torch 2.11 warns at every start, so a user saw it with every capture."""
    prepare = profile.prepare_trace

    def as_in_2_11(profiler: profile) -> None:
        prepare(profiler)
        if not profiler.acc_events:
            warnings.warn("Profiler clears events at the end of each cycle.", stacklevel=2)

    monkeypatch.setattr(profile, "prepare_trace", as_in_2_11)
    monkeypatch.setattr(
        EventList, "_build_tree", None
    )  # the events of torch's own tables: seconds, for nothing
    model = tiny()
    with session(tmp_path, model=model, options=ONE_STEP) as live:
        train(model, live)
    assert layer_ranges(load_trace(tmp_path / "trace.json.gz"))
    with pytest.warns(UserWarning, match="clears events"), profile():
        pass


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["cnn", "encoder"])
def test_losses_and_gradients_are_bit_identical_with_and_without_recording(name: str, tmp_path: Path) -> None:
    def trained(folder: Path | None) -> list[torch.Tensor]:
        torch.manual_seed(7)
        recipe = find(name)[0].load()(WorkloadOptions(torch.device("cpu"), batch=2, size=16, seed=7))
        assert isinstance(recipe, Recipe)
        workload = Training(recipe, Settings(batch=2, size=16), torch.device("cpu"))
        batches = workload.batches()
        if folder is None:
            losses = [train_step(workload, batches, no_phase) for _ in range(4)]
        else:
            losses = []
            with session(folder, model=workload.model, options=CaptureOptions(steps=3)) as live:
                while not live.done:
                    losses.append(train_step(workload, batches, live.phase))
                    live.step()
        parameters = list(workload.model.parameters())
        gradients = [p.grad for p in parameters if p.grad is not None]
        assert len(gradients) == len(parameters)
        return losses + gradients + parameters

    plain, recorded = trained(None), trained(tmp_path)
    assert len(plain) == len(recorded)
    assert all(torch.equal(a, b) for a, b in zip(plain, recorded, strict=True))


def test_hooks_are_there_during_the_session_and_gone_after_it(tmp_path: Path) -> None:
    model = tiny()
    with session(tmp_path, model=model, options=ONE_STEP) as live:
        assert hooks(model) == 2 * 4
        train(model, live)
    assert hooks(model) == 0


def ends_early(folder: Path, *, steps: int, error: type[BaseException] | None = None):
    """A loop that ends after so many of one warm-up and three recorded steps, in the middle of the next one."""
    model = tiny()
    with session(folder, model=model, options=CaptureOptions(steps=3)) as live:
        train(model, live, steps=steps)
        model(torch.ones(2, 3))
        if error is not None:
            raise error
    return live.manifest


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_exception_in_the_loop_passes_through_and_what_was_recorded_is_kept(
    tmp_path: Path, error: type[BaseException]
) -> None:
    with pytest.raises(error):
        ends_early(tmp_path, steps=1, error=error)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(error):
        ends_early(tmp_path, steps=3, error=error)
    manifest = read_manifest(tmp_path / "manifest.json")
    assert len(manifest.step_times_ns("MLG")) == 2
    assert (
        manifest.stopped == {ZeroDivisionError: "ZeroDivisionError", KeyboardInterrupt: "interrupted"}[error]
    )


def test_a_loop_that_ends_early_keeps_its_whole_steps_and_says_how_many(tmp_path: Path) -> None:
    import tracekit

    with pytest.warns(UserWarning, match="^2 of 3 steps were recorded before the end; they are in"):
        manifest = ends_early(tmp_path, steps=3)
    assert manifest is not None
    assert manifest.stopped == "2 of 3 steps were recorded before the end"
    trace = tracekit.read(tmp_path)
    steps = trace.host.filter(trace.host["kind"] == "step")["name"].cast(str).to_list()
    assert steps == ["ProfilerStep#1", "ProfilerStep#2"]  # not the third one, which the end cut


def test_a_loop_that_ends_before_its_first_recorded_step_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="after 1 step, and the first recorded one is number 2, so nothing"):
        ends_early(tmp_path, steps=1)
    assert list(tmp_path.iterdir()) == []


def test_steps_after_the_last_recorded_one_are_not_recorded(tmp_path: Path, load_trace) -> None:
    model = tiny()
    with session(tmp_path, model=model, options=ONE_STEP) as live:
        train(model, live, steps=5)
    document = load_trace(tmp_path / "trace.json.gz")
    assert len(layer_ranges(document)) == len(document[LAYER_METADATA_KEY]["calls"]["layer"]) == 4
    assert live.manifest is not None
    assert len(live.manifest.step_times_ns("MLG")) == 1


@pytest.mark.parametrize("failing", ["pack", "manifest"])
def test_a_failure_while_writing_keeps_the_older_capture(tmp_path: Path, monkeypatch, failing: str) -> None:
    model = tiny()
    with session(tmp_path, model=model, options=ONE_STEP) as live:
        train(model, live)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full_disk(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    if failing == "pack":
        monkeypatch.setattr(output, "copy_part", full_disk)
    else:
        monkeypatch.setattr(output.Manifest, "to_json", full_disk)
    with (
        pytest.raises(OSError, match="No space left"),
        session(tmp_path, model=model, options=ONE_STEP) as live,
    ):
        train(model, live)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_kill_between_the_files_leaves_no_older_manifest_beside_the_trace(
    tmp_path: Path, monkeypatch
) -> None:
    model = tiny()
    with session(tmp_path, model=model, options=ONE_STEP) as live:
        train(model, live)
    move = Path.replace

    def killed_behind_the_trace(source: Path, target: Path) -> Path:
        if target == tmp_path / "manifest.json":
            raise SystemExit
        return move(source, target)

    monkeypatch.setattr(Path, "replace", killed_behind_the_trace)
    with pytest.raises(SystemExit), session(tmp_path, model=model, options=ONE_STEP) as live:
        train(model, live)
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json.gz"]


def test_two_captures_at_once_do_not_share_a_folder(tmp_path: Path) -> None:
    model = tiny()
    with session(tmp_path, model=model, options=ONE_STEP) as live:
        with (
            pytest.raises(UsageError, match="another capture is being written there; wait for its end, or"),
            session(tmp_path, model=tiny()),
        ):
            pass
        train(model, live)
    with session(tmp_path, model=model, options=ONE_STEP) as live:
        train(model, live)


def test_an_output_folder_that_was_removed_is_made_again(tmp_path: Path) -> None:
    model = tiny()
    with session(tmp_path / "out", model=model, options=ONE_STEP) as live:
        train(model, live)
        (tmp_path / "out").rmdir()
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"trace.json.gz", "manifest.json"}


def test_names_that_the_profiler_would_damage_still_give_valid_json(tmp_path: Path, load_trace) -> None:
    names = ['quo"ted', "back\\slash", "tab\there", "new\nline", "snowman ☃", "{}'<b>"]
    model = nn.Sequential(OrderedDict((name, nn.Linear(3, 3)) for name in names))
    with session(tmp_path, model=model, options=ONE_STEP) as live:
        train(model, live)
    document = load_trace(tmp_path / "trace.json.gz")
    table = document[LAYER_METADATA_KEY]
    assert [layer["name"] for layer in table["layers"]] == ["", *names]
    by_id = {layer["id"]: layer["range_name"] for layer in table["layers"]}
    ranges = layer_ranges(document)
    assert [r["args"]["layer_id"] for r in ranges] == list(range(len(names) + 1))
    assert all(r["name"] == by_id[r["args"]["layer_id"]] for r in ranges)


def test_a_quote_in_the_users_own_range_loses_no_recording_and_is_told(tmp_path: Path) -> None:
    model = tiny()
    with session(tmp_path, model=model, options=ONE_STEP) as live:
        train(model, live, steps=1)
        with torch.profiler.record_function('my "range"'):
            model(torch.ones(2, 3)).sum().backward()
        live.step()
    content = gzip.decompress((tmp_path / "trace.json.gz").read_bytes())
    assert b'my "range"' in content
    assert content.count(b'"tracekit.layer/<root>"') == 2  # in the layer table, and in the one recorded step
    assert b'"host_name"' not in content
    defect = read_manifest(tmp_path / "manifest.json").runs[0].trace_defect
    assert defect is not None
    assert "malformed" in defect


def test_without_the_fast_range_plain_ones_carry_the_name(tmp_path: Path, monkeypatch, load_trace) -> None:
    monkeypatch.delattr(torch._C._profiler, "_RecordFunctionFast")
    model = tiny()
    with session(tmp_path, model=model, options=ONE_STEP) as live:
        train(model, live)
    assert read_manifest(tmp_path / "manifest.json").layer_ranges == "plain"
    names = [e["name"] for e in layer_ranges(load_trace(tmp_path / "trace.json.gz"))]
    assert names == [LAYER_PREFIX + name for name in ("<root>", "0", "1", "2")]


def test_without_shapes_the_ranges_are_annotations_all_the_same(tmp_path: Path, load_trace) -> None:
    model = tiny()
    options = CaptureOptions(steps=1, record_shapes=False, profile_memory=False)
    with session(tmp_path, model=model, options=options) as live:
        train(model, live)
    ranges = layer_ranges(load_trace(tmp_path / "trace.json.gz"))
    assert [r["name"] for r in ranges] == [LAYER_PREFIX + name for name in ("<root>", "0", "1", "2")]
    assert {r["cat"] for r in ranges} == {"user_annotation"}


@pytest.mark.slow
@pytest.mark.parametrize("given", ["copy", "original"])
def test_a_compiled_copy_is_one_layer_or_its_original_has_none(
    given: str, tmp_path: Path, load_trace
) -> None:
    model, graphs = tiny(), []

    def backend(graph: torch.fx.GraphModule, _inputs: list[torch.Tensor]):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, backend=backend)
    called = (
        pytest.warns(UserWarning, match="called no module.*give session")
        if given == "original"
        else nullcontext()
    )
    with called, session(tmp_path, model=compiled if given == "copy" else model, options=ONE_STEP) as live:
        train(compiled, live)
    assert len(graphs) == 1  # no hook breaks it
    assert len(layer_ranges(load_trace(tmp_path / "trace.json.gz"))) == (given == "copy")


def test_python_frames_do_not_tell_where_the_code_lay(tmp_path: Path, load_trace) -> None:
    code = compile(
        "def forward(model, x):\n    return model(x)\n", "/nowhere/secret/person/net/model.py", "exec"
    )
    namespace: dict = {}
    exec(code, namespace)  # noqa: S102 - the only way to give a frame a path of our choice
    model = tiny()
    options = CaptureOptions(steps=1, with_stack=True)
    with session(tmp_path, model=model, options=options) as live:
        for _ in range(2):
            namespace["forward"](model, torch.ones(2, 3)).sum().backward()
            live.step()
    names = {e["name"] for e in load_trace(tmp_path / "trace.json.gz")["traceEvents"]}
    assert "net/model.py(1): forward" in names
    own = {name for name in names if "marks/instrument.py(" in name}
    assert own
    assert all(name.startswith("tracekit/capture/") for name in own)
    assert not [name for name in names if name.startswith("/")]


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = tiny()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)


def test_recomputed_calls_are_marked(tmp_path: Path, load_trace) -> None:
    model = Checkpointed()
    with session(tmp_path, model=model, options=ONE_STEP) as live:
        train(model, live)
    calls = load_trace(tmp_path / "trace.json.gz")[LAYER_METADATA_KEY]["calls"]
    recomputed = [n for n, again in zip(calls["layer"], calls["in_backward"], strict=True) if again]
    assert calls["layer"][:5] == [0, 1, 2, 3, 4]
    assert recomputed == calls["layer"][5:]
    assert recomputed[:2] == [1, 2]


class Failing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError


def test_a_module_that_raises_does_not_upset_the_nesting(tmp_path: Path, load_trace) -> None:
    model = nn.ModuleDict({"bad": Failing(), "good": nn.Linear(3, 1)})
    with session(tmp_path, model=model, options=ONE_STEP) as live:
        for _ in range(2):
            with pytest.raises(ValueError):  # noqa: PT011 - it is raised without a message above
                model["bad"](torch.ones(1, 3))
            model["good"](torch.ones(1, 3)).sum().backward()
            live.step()
    bad, good = layer_ranges(load_trace(tmp_path / "trace.json.gz"))
    assert bad["args"]["layer"] == "bad"
    assert bad["ts"] + bad["dur"] <= good["ts"]


@pytest.mark.slow
def test_a_compiled_module_is_refused(tmp_path: Path) -> None:
    inner = nn.Linear(3, 1)
    inner.compile(backend="eager")
    with (
        pytest.raises(UsageError, match="'0' is compiled"),
        session(tmp_path, model=nn.Sequential(inner)),
    ):
        pass


@pytest.mark.parametrize("options", [{"steps": 0}, {"warmup": 0}, {"wait": -1}])
def test_options_out_of_range_are_refused(tmp_path: Path, options: dict[str, int]) -> None:
    with (
        pytest.raises(UsageError, match="it must be at least"),
        session(tmp_path, model=tiny(), options=CaptureOptions(**options)),
    ):
        pass


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("in the way")
    with pytest.raises(UsageError, match="cannot write there"), session(tmp_path / "out", model=tiny()):
        pass


def test_the_files_are_readable_by_whom_the_umask_lets(tmp_path: Path) -> None:
    model = tiny()
    before = os.umask(0o022)
    try:
        with session(tmp_path, model=model, options=ONE_STEP) as live:
            train(model, live)
    finally:
        os.umask(before)
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in tmp_path.iterdir()} == {
        "trace.json.gz": "0o644",
        "manifest.json": "0o644",
    }


def test_the_package_offers_the_session_itself_and_phases_may_be_left_out(tmp_path: Path) -> None:
    import tracekit
    import tracekit.capture

    model = tiny()
    with tracekit.capture.session(str(tmp_path / "mine"), model=model, samples_per_step=2) as s:
        for _ in range(8):  # more than are recorded
            model(torch.ones(2, 3)).sum().backward()
            s.step()
    trace = tracekit.read(tmp_path / "mine")
    assert trace.manifest is not None
    assert trace.manifest.samples_per_step == 2
    assert trace.host.filter(trace.host["kind"] == "step").height == 3
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tracekit.capture.nothing  # noqa: B018
