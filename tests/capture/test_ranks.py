"""Several ranks on one machine: the same training as one rank on all their samples, and errors that end them all."""

from pathlib import Path

import psutil
import pytest
import torch

import tracekit
from tracekit.capture.run import CaptureResult, run
from tracekit.cli.main import main
from tracekit.errors import TracekitError, WorkloadError
from tracekit.manifest import CaptureOptions, Parallel, Settings, read_manifest

pytestmark = pytest.mark.slow

OURS = Path(__file__).with_name("recipes_of_ours.py")
ONE_STEP = CaptureOptions(steps=1, profile_memory=False)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_ranks_leave_a_trace_each_and_one_manifest(tmp_path: Path, parallel: Parallel) -> None:
    lines: list[str] = []
    result = run(
        "encoder",
        tmp_path,
        settings=Settings(ranks=2, parallel=parallel, batch=2, size=8, tiny=True, threads=1),
        options=ONE_STEP,
        levels=("M", "ML", "MLG"),
        progress=lines.append,
    )
    assert [path.name for path in result.traces] == [
        "trace-ML-rank0.json.gz",
        "trace-ML-rank1.json.gz",
        "trace-rank0.json.gz",
        "trace-rank1.json.gz",
    ]
    assert {path.name for path in tmp_path.iterdir()} == {
        "manifest.json",
        *(path.name for path in result.traces),
    }
    manifest = read_manifest(result.manifest_path)
    assert [(one.level, one.rank) for one in manifest.runs] == [
        (level, rank) for level in ("M", "ML", "MLG") for rank in (0, 1)
    ]
    assert manifest.stopped is None
    assert manifest.samples_per_step == 4
    assert lines[0] == "building encoder"
    assert "recording 1 step" in lines
    own_samples = [one.losses for one in manifest.runs if one.level == "MLG"]
    assert own_samples[0] != own_samples[1]
    _check_traces(result, parallel)


def _check_traces(result: CaptureResult, parallel: Parallel) -> None:
    single = run("encoder", result.folder / "one", settings=Settings(batch=2, size=8), options=ONE_STEP)
    assert result.manifest.parameters == single.manifest.parameters
    types = tracekit.read(single.trace).host["module_type"].cast(str).drop_nulls().to_list()
    for rank in (0, 1):
        trace = tracekit.read(result.folder / f"trace-rank{rank}.json.gz")
        assert (trace.meta.rank, trace.meta.world_size, trace.meta.backend) == (rank, 2, "gloo")
        assert trace.host["module_type"].cast(str).drop_nulls().to_list() == types
        names = set(trace.host["name"].cast(str).to_list())
        wanted = "gloo:all_reduce" if parallel == "ddp" else "gloo:all_gather"
        assert wanted in names


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_ranks_train_as_one_on_all_their_samples(tmp_path: Path, monkeypatch, parallel: Parallel) -> None:
    def trained(name: str, settings: Settings) -> dict[str, torch.Tensor]:
        monkeypatch.setenv("TRACEKIT_TEST_PARAMETERS", str(tmp_path / name))
        run(
            f"{OURS}:leaves_its_parameters",
            tmp_path / f"out-{name}",
            settings=settings,
            options=ONE_STEP,
            levels=("M",),
        )
        loaded: dict[str, torch.Tensor] = torch.load(tmp_path / f"{name}-3.pt")
        return loaded

    two = trained("two", Settings(ranks=2, batch=4, accumulate=2, parallel=parallel, threads=1))
    one = trained("one", Settings(batch=8, accumulate=2))
    assert two.keys() == one.keys()
    for name, parameter in one.items():
        torch.testing.assert_close(two[name], parameter, rtol=1e-5, atol=1e-6)
    before = trained("untrained", Settings(batch=8))
    assert any(not torch.equal(before[name], one[name]) for name in one)  # the comparison could have failed


def test_a_rank_that_raises_ends_the_others_and_finished_levels_stay(tmp_path: Path, capfd) -> None:
    words = ["capture", f"{OURS}:raises_on_the_second_rank", "-o", str(tmp_path), "--steps", "1"]
    with pytest.raises(SystemExit) as left:
        main([*words, "--ranks", "2", "--threads", "1"])
    text = capfd.readouterr().err
    assert left.value.code == 1
    lines = text.splitlines()
    assert lines[-1].startswith(
        f"tracekit: error: rank 1: {OURS}:raises_on_the_second_rank raised ValueError"
    )
    assert f'{OURS}", line ' in text
    manifest = read_manifest(tmp_path / "manifest.json")
    assert [(one.level, one.rank) for one in manifest.runs] == [("M", 0), ("M", 1)]
    assert manifest.stopped is not None
    assert manifest.stopped.startswith(
        "rank 1: recipes_of_ours.py:raises_on_the_second_rank raised ValueError"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_a_rank_that_dies_is_named(tmp_path: Path) -> None:
    before = set(psutil.Process().children())  # of tests that ran before
    with pytest.raises(TracekitError, match="rank 1: it ended with exit code 3 and no word"):
        run(f"{OURS}:is_killed_on_the_second_rank", tmp_path, settings=Settings(ranks=2, threads=1))
    assert list(tmp_path.iterdir()) == []
    assert set(psutil.Process().children()) <= before


def test_a_crash_while_python_ends_fails_no_rank_that_has_finished(tmp_path: Path, monkeypatch) -> None:
    """It happened: "terminate called without an active exception", by a thread of gloo that freed a tensor."""
    monkeypatch.setenv("TRACEKIT_TEST_ENDED", str(tmp_path / "ended"))
    result = run(
        f"{OURS}:aborts_when_python_ends",
        tmp_path / "out",
        settings=Settings(ranks=2, threads=1),
        options=ONE_STEP,
        levels=("M",),
    )
    assert len(result.manifest.runs) == 2
    assert {path.name for path in tmp_path.glob("ended*")} == {"ended-0", "ended-1"}


def test_an_error_before_the_first_step_is_of_the_same_kind(tmp_path: Path) -> None:
    with pytest.raises(
        WorkloadError, match=r"rank [01]: .*raised ZeroDivisionError: in the factory"
    ) as caught:
        run(f"{OURS}:raises_in_the_factory", tmp_path, settings=Settings(ranks=2, threads=1))
    assert "in the factory" in str(caught.value.__cause__)
