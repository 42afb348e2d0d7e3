"""Workloads named FILE.py:FUNCTION: what goes wrong in them is shown as theirs, and what was finished stays."""

import re
import runpy
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch import nn

from tracekit.capture.plan import Plan
from tracekit.capture.run import run
from tracekit.capture.tracebacks import own_part
from tracekit.cli.main import main
from tracekit.errors import UsageError, WorkloadError
from tracekit.manifest import CaptureOptions, Settings, read_manifest

OURS = Path(__file__).with_name("recipes_of_ours.py")
SHORT = ("--steps", "1", "--levels", "M,MLG")


def capture(function: str, folder: Path, *more: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["capture", f"{OURS}:{function}", "-o", str(folder), *SHORT, *more])
    return int(left.value.code or 0)


@pytest.mark.parametrize("function", ["smooth", "without_options"])
def test_a_function_in_a_file_is_a_workload(tmp_path: Path, capsys, function: str) -> None:
    assert capture(function, tmp_path) == 0
    assert str(tmp_path / "trace.json.gz") in capsys.readouterr().out
    manifest = read_manifest(tmp_path / "manifest.json")
    assert manifest.workload == f"{OURS.name}:{function}"  # without the folder, which is nobody's business
    assert [one.level for one in manifest.runs] == ["M", "MLG"]


def test_the_documented_file_trains_a_model_of_timm(tmp_path: Path, monkeypatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "capture.md").read_text("utf-8")
    (code,) = re.findall(r'^```python title="my_timm.py"\n(.*?)^```$', page, re.MULTILINE | re.DOTALL)
    (tmp_path / "my_timm.py").write_text(code)
    names: list[str] = []

    def create_model(name: str) -> nn.Module:
        names.append(name)
        return nn.Sequential(nn.Conv2d(3, 4, 3, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 1000))

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model))
    small = Settings(batch=2, size=32)
    done = run(
        f"{tmp_path}/my_timm.py:build", tmp_path / "out", settings=small, options=CaptureOptions(steps=1)
    )
    assert names == ["convnext_tiny"]
    assert [one.level for one in done.manifest.runs] == ["M", "MLG"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.py:build", "there is no such file"),
        (str(OURS), "no function is named"),
        (f"{OURS}:no such", "no function is named"),
        (f"{OURS}:absent", "it has no function absent"),
        (f"{OURS}:smoth", f"it has no function smoth; did you mean {OURS}:smooth"),
        (f"{OURS}:SIDE", "it has no function SIDE"),
    ],
)
def test_a_name_that_leads_nowhere_is_a_usage_error(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run(name, tmp_path)


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        ("raises_in_the_factory", "ZeroDivisionError: in the factory"),
        ("reads_a_missing_file", "FileNotFoundError: "),
        ("exits", "SystemExit: 0"),
        ("raises_in_a_step", 'ValueError: step "four" is one too many'),
    ],
)
def test_an_error_of_theirs_is_a_traceback_and_one_line(
    tmp_path: Path, capsys, function: str, kind: str
) -> None:
    assert capture(function, tmp_path) == 1
    text = capsys.readouterr().err
    files = re.findall(r'^  File "(.*)", line ', text, re.MULTILINE)
    assert files[0] == str(OURS), "no frame above the user's own"
    assert not [file for file in files if file.endswith(("recorder.py", "training.py"))]
    last = text.splitlines()[-1]
    assert last.startswith(f"tracekit: error: {OURS}:{function} raised {kind}")
    assert not (tmp_path / "manifest.json").exists()


@pytest.mark.parametrize(
    "more", [(), pytest.param(("--ranks", "2", "--threads", "1"), marks=pytest.mark.slow), ("--workers", "1")]
)
def test_frames_begin_in_the_users_file_wherever_it_ran(tmp_path: Path, capfd, more: tuple[str, ...]) -> None:
    assert capture("raises_in_its_data", tmp_path, *more) == 1
    lines = capfd.readouterr().err.splitlines()
    begin = lines.index("Traceback (most recent call last):")
    assert lines[begin + 1].startswith(f'  File "{OURS}", line ')
    assert lines[-1].startswith("tracekit: error: ")
    assert "raised LookupError: no such point" in lines[-1]
    assert sum(line.startswith("Traceback") for line in lines) == 1


@pytest.mark.slow
def test_debug_shows_all_frames(tmp_path: Path) -> None:
    words = ["capture", f"{OURS}:raises_in_its_data", "-o", str(tmp_path), *SHORT, "--debug"]
    with pytest.raises(WorkloadError) as caught:
        main(words)
    text = "".join(traceback.format_exception(caught.value))
    assert "recorder.py" in text
    assert f'{OURS}", line ' in text


def test_each_error_of_a_chain_is_cut(tmp_path: Path) -> None:
    net = tmp_path / "net.py"
    net.write_text("""
def inner(): raise ValueError("bad")
def outer():
    try: inner()
    except ValueError as error: raise KeyError("worse") from error
""")
    there = runpy.run_path(str(net))
    with pytest.raises(KeyError) as caught:
        there["outer"]()
    cut = own_part(caught.value, net)
    assert [line for line in cut.splitlines() if "File" in line] == [
        f'  File "{net}", line 4, in outer',
        f'  File "{net}", line 2, in inner',
        f'  File "{net}", line 5, in outer',
    ]
    assert Path(__file__).name in own_part(
        caught.value, None
    )  # it begins at the first frame that is not tracekit's


def test_what_only_tracekit_saw_has_no_traceback() -> None:
    with pytest.raises(UsageError) as caught:
        Plan(workload="cnn", levels=()).check()
    caught.value.__traceback__ = caught.tb.tb_next
    assert own_part(caught.value, None) == ""


@pytest.mark.quick(1)
@pytest.mark.parametrize("content", ["1 / 0\n", "def build(:\n", "raise SystemExit(0)\n"])
def test_a_file_that_cannot_be_imported(tmp_path: Path, capsys, content: str) -> None:
    path = tmp_path / "net.py"
    path.write_text(content)
    with pytest.raises(SystemExit) as left:
        main(["capture", f"{path}:build", "-o", str(tmp_path / "out")])
    assert left.value.code == 1
    text = capsys.readouterr().err
    assert "net.py" in text
    assert text.splitlines()[-1].startswith(f"tracekit: error: {path}:build raised ")


@pytest.mark.slow
def test_levels_that_were_finished_before_an_error_stay(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="one too many") as caught:
        run(f"{OURS}:raises_while_profiled", tmp_path, options=CaptureOptions(steps=1))
    assert isinstance(caught.value.__cause__, ValueError)
    manifest = read_manifest(tmp_path / "manifest.json")
    assert [one.level for one in manifest.runs] == ["M"]
    assert manifest.stopped == 'ValueError: step "four" is one too many'
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


@pytest.mark.slow
def test_an_older_manifest_is_not_taken_for_what_was_finished(tmp_path: Path, monkeypatch, capsys) -> None:
    (tmp_path / "manifest.json").write_text('{"schema_version": 1}')

    def interrupt(*_args: object, **_named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tracekit.capture.run.run", interrupt)
    assert capture("smooth", tmp_path) == 130
    assert capsys.readouterr().err == "tracekit: error: interrupted\n"
