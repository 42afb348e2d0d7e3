"""Scripts and functions that train by themselves: a few steps are recorded, and they run as they would alone."""

import gc
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch.utils.data import dataloader

from tracekit.capture.listing import completions
from tracekit.capture.seen import Turns
from tracekit.capture.watch import Watch
from tracekit.cli.main import main
from tracekit.errors import UsageError
from tracekit.facts.capture_names import LAYER_METADATA_KEY, LAYER_PREFIX, PHASE_PREFIX
from tracekit.manifest import CaptureOptions, read_manifest

HEAD = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
criterion = nn.MSELoss()
def step(x=torch.ones(2, 4)):
    loss = criterion(net(x), torch.zeros(2, 1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch, capsys):
    """Write a script and record it; returns the exit code, stdout and stderr. What it changes in Python is undone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])

    def run(code: str, *more: str, flags: tuple[str, ...] = ()) -> tuple[int, str, str]:
        (tmp_path / "train.py").write_text(code)
        gc.collect()  # the optimizers of other tests
        with pytest.raises(SystemExit) as left:
            main(["run", "-o", "out", *flags, "train.py", *more])
        return int(left.value.code or 0), *capsys.readouterr()

    return run


@pytest.fixture(autouse=True)
def _nothing_stays_in_torch():
    def state() -> list[object]:
        hooks = (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)
        return [
            torch.autograd.backward,
            torch.autograd.profiler.record_function.__exit__,
            dataloader._BaseDataLoaderIter.__next__,
            modules._has_any_global_hook,
            modules._has_any_global_hook(),
            *map(len, hooks),
        ]

    before = state()
    yield
    assert state() == before


def ranges(document, prefix: str) -> Counter[str]:
    names = (str(event.get("name")) for event in document["traceEvents"] if event.get("ph") == "X")
    return Counter(name.removeprefix(prefix) for name in names if name.startswith(prefix))


@pytest.mark.slow
def test_a_script_runs_as_python_runs_it(run, tmp_path: Path) -> None:
    code = HEAD + (
        "import os, json\n"
        "losses = [step() for _ in range(7)]\n"
        "where = [__name__, __file__, os.getcwd(), sys.argv, sys.path[0], sys.modules['__main__'].net is net]\n"
        "print(json.dumps([losses, where]))\n"
        "sys.exit(7)\n"
    )
    words = ("--debug", "--steps", "x", "-o", "y")
    status, out, err = run(code, *words)
    assert status == 7
    assert err == "tracekit: 3 steps were recorded; the code goes on; to see them: tracekit report out\n"
    alone = subprocess.run(
        [sys.executable, "train.py", *words],
        capture_output=True,
        text=True,
        check=False,
        env=dict(os.environ),
    )
    assert alone.returncode == 7
    assert json.loads(out) == json.loads(alone.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["trace.json.gz", "manifest.json"])
def test_a_file_of_no_capture_is_not_replaced(run, tmp_path: Path, name: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("mine")
    status, out, err = run(HEAD + "print([step() for _ in range(7)])\n")
    assert (status, out) == (2, "")
    assert err == (
        f"tracekit: error: out: it holds {name}, which is of no capture and would be replaced; "
        "choose another folder with -o\n"
    )
    assert (tmp_path / "out" / name).read_text() == "mine"


@pytest.mark.slow
def test_an_exit_at_once_keeps_what_was_recorded(run, tmp_path: Path) -> None:
    code = HEAD + (
        "import os\n"
        "child = os.fork()\n"
        "if child == 0: os._exit(5)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "[step() for _ in range(4)]\n"
        "os._exit(7)\n"
    )
    status, out, err = run(code)
    assert (status, out) == (7, "5\n")
    assert err == "tracekit: 2 of 3 steps were recorded before the end; to see them: tracekit report out\n"
    assert (tmp_path / "out" / "trace.json.gz").is_file()


@pytest.mark.slow
def test_handlers_threads_and_forked_processes_stay_the_script_s(tmp_path: Path) -> None:
    code = HEAD + (
        "import atexit, os, signal, threading, time\n"
        "on = lambda number, frame: print('handled', number, flush=True)\n"
        "for number in (2, 15): signal.signal(number, on)\n"
        "atexit.register(print, 'atexit', flush=True)\n"
        "step(); step()\n"
        "if not os.fork(): sys.exit(5)\n"
        "print('forked', os.waitstatus_to_exitcode(os.wait()[1]), flush=True)\n"
        "for number in (2, 15): os.kill(os.getpid(), number)\n"
        "for _ in range(4): step()\n"
        "def late():\n"
        "    time.sleep(1); os.kill(os.getpid(), 15); time.sleep(0.2); print('thread', flush=True)\n"
        "threading.Thread(target=late).start()\n"
        "sys.exit(7)\n"
    )
    (tmp_path / "train.py").write_text(code)
    words = [sys.executable, "-m", "tracekit", "run", "-o", "out", "train.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    said = "atexit\nforked 5\nhandled 2\nhandled 15\nhandled 15\nthread\natexit\n"
    assert (done.returncode, done.stdout) == (7, said)
    assert (
        done.stderr == "tracekit: 3 steps were recorded; the code goes on; to see them: tracekit report out\n"
    )
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"trace.json.gz", "manifest.json"}


@pytest.mark.slow
def test_steps_phases_and_layers_are_in_the_trace(run, tmp_path: Path, load_trace) -> None:
    code = HEAD + "for (x,) in DataLoader([(torch.ones(4),)] * 14, batch_size=2): step(x)\n"
    assert run(code, flags=("--steps", "2", "--warmup", "2"))[0] == 0
    document = load_trace(tmp_path / "out" / "trace.json.gz")
    assert set(ranges(document, "ProfilerStep#")) == {"2", "3"}
    assert ranges(document, PHASE_PREFIX) == dict.fromkeys(("data", "forward", "backward", "optimizer"), 2)
    assert ranges(document, LAYER_PREFIX) == dict.fromkeys(("<root>", "0", "1", "2", "criterion"), 2)
    updates = [e for e in document["traceEvents"] if e.get("name") == "Optimizer.step#SGD.step"]
    steps = [e for e in document["traceEvents"] if str(e.get("name")).startswith("ProfilerStep#")]
    assert all(
        any(step["ts"] <= e["ts"] and e["ts"] + e["dur"] <= step["ts"] + step["dur"] for step in steps)
        for e in updates
    )
    manifest = read_manifest(tmp_path / "out" / "manifest.json")
    assert (manifest.workload, manifest.stopped, len(manifest.step_times_ns("MLG"))) == ("train.py", None, 2)
    assert manifest.parameters == 19


TWO = HEAD + (
    "other, second = nn.Linear(1, 4), None\n"
    "second = torch.optim.SGD(other.parameters(), lr=0.1)\n"
    "for _ in range(6):\n"
    "    step(); net(other(torch.ones(2, 1))).sum().backward(); second.step()\n"
)
CRITIC = TWO.replace("    step();", "    [step() for _ in range(3)];")
SERVICE = HEAD + (
    "from concurrent.futures import ThreadPoolExecutor\n"
    "with ThreadPoolExecutor(1, 'worker') as pool:\n"
    "    for _ in range(20): pool.submit(net, torch.ones(1, 4)).result()\n"
)
SELDOM = HEAD + (
    "second = torch.optim.SGD(nn.Linear(1, 4).parameters(), lr=0.1)\n"
    "for i in range(25):\n"
    "    step()\n"
    "    if i % 10 == 9: second.step()\n"
)
ACCUMULATED = HEAD + (
    "for _ in range(5):\n    for _ in range(3): net(torch.ones(1, 4)).sum().backward()\n    optimizer.step()\n"
)
INFERRED = HEAD + "del optimizer\nfor _ in range(6): torch.sigmoid(net(torch.ones(1, 4)))\n"
IN_TURNS = HEAD + "del optimizer\nhead = nn.Linear(1, 2)\nfor _ in range(6): head(net(torch.ones(1, 4)))\n"
NEVER_UPDATED = HEAD + "for _ in range(106): net(torch.ones(1, 4))\n"
TESTED_FIRST = HEAD + "for _ in range(9): net(torch.ones(1, 4))\nfor _ in range(6): step()\n"


@pytest.mark.slow
@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("code", "calls"),
    [
        (ACCUMULATED, {"<root>": 9}),
        (INFERRED, {"<root>": 3}),
        (TWO, {"net": 6, "other": 3, "criterion": 3}),
        (CRITIC, {"net": 12, "other": 3, "criterion": 9}),
        (SELDOM, {"<root>": 3, "criterion": 3}),
        (IN_TURNS, {"net": 3, "head": 3}),
        (NEVER_UPDATED, {"<root>": 3}),
        (TESTED_FIRST, {"<root>": 3, "criterion": 3}),
    ],
)
@pytest.mark.sampled(4)
def test_a_step_is_an_update_or_without_an_optimizer_a_round_of_calls(
    run, tmp_path: Path, load_trace, code: str, calls: dict[str, int]
) -> None:
    assert run(code)[0] == 0
    document = load_trace(tmp_path / "out" / "trace.json.gz")
    assert set(ranges(document, "ProfilerStep#")) == {"1", "2", "3"}
    layers = ranges(document, LAYER_PREFIX)
    assert {name: layers[name] for name in calls} == calls
    assert len(document[LAYER_METADATA_KEY]["calls"]["layer"]) == sum(layers.values())


@pytest.mark.parametrize(
    ("turns", "ends"),
    [
        ("AAA", "xxx"),
        ("ABABAB", "x..x.x"),
        ("AAAAABAAAAABAAAAAB", "xxxxx......x.....x"),
        ("ABBABBABB", "x....x..x"),
        ("AAAAAAAAAABAAAAB", "xxxxxxxxxx.xxxx."),
        ("ABABABCABCABCABC", "x..x.x..x..x..x."),
        ("ABBABBABABAB", "x....x...x.x"),
        ("ABABAAAAAAAA", "x..x.....xxx"),
    ],
)
def test_a_step_ends_where_the_order_of_optimizers_repeats(turns: str, ends: str) -> None:
    """A step ended whenever one optimizer was updated twice in a row, so that a round with five critic updates was four steps."""
    seen, those = Turns(), {name: nn.ReLU() for name in "ABC"}
    assert "".join("x" if seen.ends(those[name]) else "." for name in turns) == ends


@pytest.mark.slow
@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("end", "status", "text"),
    [
        ("sys.exit('enough')", 1, "enough"),
        ("raise ValueError('diverged')", 1, "ValueError: diverged"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
        ("__import__('signal').raise_signal(15)", 143, "tracekit: error: ended by SIGTERM"),
        ("", 0, ""),
    ],
)
def test_what_was_recorded_before_an_early_end_is_kept(
    run, tmp_path: Path, end: str, status: int, text: str
) -> None:
    code, _, err = run(HEAD + f"for _ in range(4): step()\nnet(torch.ones(1, 4))\n{end}\n")
    assert code == status
    lines = err.splitlines()
    assert "tracekit: 2 of 3 steps were recorded before the end; to see them: tracekit report out" in lines
    assert text in (*lines, "")
    assert [line for line in lines if line.startswith("  File")] in (
        [],
        [f'  File "{tmp_path}/train.py", line 17, in <module>'],
    )
    assert len(read_manifest(tmp_path / "out" / "manifest.json").step_times_ns("MLG")) == 2
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL  # a caller's process goes on to hear it


@pytest.mark.slow
@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("code", "status", "line"),
    [
        ("print('hello')\n", 2, "tracekit: error: nothing was recorded: train.py called no optimizer"),
        (
            HEAD + "step(); step()\n",
            2,
            "train.py ended after 2 steps, and the first recorded one is number 3",
        ),
        (
            TWO.replace("range(6)", "range(2)"),
            2,
            "train.py ended after 2 steps, and the first recorded one is number 4",
        ),
        (CRITIC.replace("range(6)", "range(1)"), 2, "ended before the order of its optimizers had repeated"),
        (HEAD + "step(); sys.exit(5)\n", 5, "tracekit: nothing was recorded: train.py ended after 1 step"),
        ("x = (\n", 1, "tracekit: nothing was recorded: train.py ended before its first step"),
        (SERVICE, 2, "calls its model in the thread 'worker_0', and only the main thread is watched"),
    ],
)
@pytest.mark.sampled(4)
def test_nothing_recorded_is_one_line_and_no_folder(
    run, tmp_path: Path, code: str, status: int, line: str
) -> None:
    got, _, err = run(code)
    assert got == status
    assert line in err.splitlines()[-1]
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_script_that_profiles_itself_keeps_its_profile(run) -> None:
    code = HEAD + (
        "with torch.profiler.profile(schedule=torch.profiler.schedule(wait=2, warmup=1, active=2)) as p:\n"
        "    for _ in range(6): step(); p.step()\n"
        "print(len(p.events()) > 0)\n"
    )
    status, out, err = run(code)
    assert (status, out) == (2, "True\n")
    assert "runs torch's profiler itself" in err
    assert run(f"{code}for _ in range(6): step()\n")[0] == 0  # after its own profile


@pytest.mark.slow
def test_a_recording_that_fails_does_not_end_the_script(run, monkeypatch) -> None:
    def full(*_args: object, **_named: object) -> None:
        raise UsageError("there is no room")

    monkeypatch.setattr("tracekit.capture.watch.write_session", full)
    status, out, err = run(HEAD + "for _ in range(8): step()\nprint('end')\n")
    assert (status, out) == (2, "end\n")
    assert err.splitlines()[0].startswith("tracekit: the recording failed (there is no room); the code")
    assert err.splitlines()[-1] == "tracekit: error: there is no room"


@pytest.mark.slow
def test_stop_ends_the_script_after_the_recorded_steps(run) -> None:
    status, out, _ = run(HEAD + "for i in range(99): step(); print(i)\n", flags=("--stop",))
    assert status == 0
    assert out.split() == ["0", "1", "2", "3"]


@pytest.mark.slow
def test_a_module_runs_by_its_name(run, tmp_path: Path, monkeypatch, capsys) -> None:
    (tmp_path / "work.py").write_text(HEAD + "for i in range(12): step()\nprint(__name__, sys.argv[1:])\n")
    with pytest.raises(SystemExit) as left:
        main(["run", "-o", "out", "-m", "work", "-x"])
    assert left.value.code == 0
    assert capsys.readouterr().out == "__main__ ['-x']\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian.py"], "trian.py: there is no such script; did you mean train.py?"),
        (["python", "train.py"], "leave it out: tracekit run SCRIPT.py"),
        (["-m", "no_such_module"], "there is no module 'no_such_module'"),
    ],
)
def test_what_cannot_run_is_one_line(tmp_path: Path, monkeypatch, capsys, words, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("train.py").touch()
    with pytest.raises(SystemExit) as left:
        main(["run", *words])
    assert left.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_rank_of_several_has_its_own_folder(run, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run(HEAD + "for _ in range(6): step()\n")[0] == 0
    assert (tmp_path / "out" / "rank1" / "trace.json.gz").exists()


@pytest.mark.slow
def test_loaders_in_processes_are_left_alone(run, tmp_path: Path) -> None:
    code = HEAD + (
        "class Data(torch.utils.data.Dataset):\n"
        "    norm = nn.LayerNorm(4)\n"
        "    def __len__(self): return 16\n"
        "    def __getitem__(self, i): return self.norm(torch.ones(4)).detach()\n"
        "for x in DataLoader(Data(), batch_size=2, num_workers=1): step(x)\n"
    )
    assert run(code)[0] == 0
    assert read_manifest(tmp_path / "out" / "manifest.json").layers == 5  # the norm is called elsewhere


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        "model = torch.compile(net, backend=backend)",
        "net[0] = torch.compile(net[0], backend=backend); model = net",
    ],
)
def test_a_compiled_model_is_compiled_once_and_no_warning_appears(run, tmp_path: Path, how: str) -> None:
    code = HEAD + (
        "import warnings; warnings.simplefilter('error')\n"
        "class Net(nn.Sequential):\n    def forward(self, x): return super().forward(x) * 2\n"
        "net = Net(*net)\n"
        "graphs = []\n"
        "def backend(graph, inputs): graphs.append(graph); return graph.forward\n"
        f"{how}\n"
        "for _ in range(12): model(torch.ones(2, 4)).sum().backward(); optimizer.step()\n"
        "print(len(graphs))\n"
    )
    status, out, err = run(code)
    assert (status, out) == (0, "1\n"), err


@pytest.mark.slow
@pytest.mark.parametrize("function", ["train", "main"])
def test_a_function_that_trains_by_itself_is_recorded(tmp_path: Path, capsys, function: str) -> None:
    # Some more steps, since what other tests compiled holds their optimizers.
    (tmp_path / "mine.py").write_text(
        HEAD
        + "def train(epochs=12):\n    for _ in range(epochs): step()\ndef main():\n"
        + "    import argparse; argparse.ArgumentParser().parse_args()\n    train(); sys.exit(0)\n"
    )
    with pytest.raises(SystemExit) as left:
        main(["capture", f"{tmp_path}/mine.py:{function}", "-o", str(tmp_path / "out"), "--batch", "3"])
    assert left.value.code == 0
    out, err = capsys.readouterr()
    assert str(tmp_path / "out" / "trace.json.gz") in out
    assert "trains by itself, so these had no effect: --batch" in err
    manifest = read_manifest(tmp_path / "out" / "manifest.json")
    assert [(one.level, len(one.step_times_ns)) for one in manifest.runs] == [("MLG", 3)]
    assert manifest.workload == f"mine.py:{function}"


@pytest.mark.slow
def test_results_are_those_without_the_recording(tmp_path: Path) -> None:
    def train(*, watched: bool) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters())
        watch = Watch(tmp_path, CaptureOptions(), "mine", lambda _line: None)
        if watched:
            watch.__enter__()
        for _ in range(8):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).sum().backward()
            optimizer.step()
        if watched:
            watch.__exit__(None, None, None)
            assert watch.manifest is not None
        return [each.detach() for each in model.parameters()]

    assert all(map(torch.equal, train(watched=False), train(watched=True)))


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("yol", "yolov5"),
        ("hf:be", "hf:bert"),
        ("tr", "transformer"),
        ("tr", "train.py:main"),
        ("train.py:b", "train.py:build"),
        ("bert:l", "bert:large"),
    ],
)
def test_the_shell_completes_workloads(tmp_path: Path, monkeypatch, typed: str, offered: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("def main():\n    def inner(): pass\n\ndef build(options): ...\n")
    names = completions(typed)
    assert offered in names
    assert all(name.startswith(typed) for name in names)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("yolov5\n:", {"s", "n", "x"}),
        ("yolov5\n:\nx", {"x"}),
        ("yolov5:x", {"yolov5:x"}),
    ],
)
def test_bash_ends_a_word_at_a_colon(typed: str, offered: set[str]) -> None:
    words = f"tracekit\ncapture\n{typed}"
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(words.count("\n")), "_TRACEKIT_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [sys.executable, "-m", "tracekit"], capture_output=True, check=False, env={**os.environ, **asked}
    )
    assert offered <= set(done.stdout.decode().split())


@pytest.mark.slow
def test_completion_imports_no_torch() -> None:
    words = {"_TRACEKIT_COMPLETE": "complete_bash", "COMP_WORDS": "tracekit\ncapture\nyol", "COMP_CWORD": "2"}
    code = "import sys; sys.argv = ['tracekit']; from tracekit.cli.entry import main; main()"
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **words},
    )
    assert done.stdout.split()[0] == "yolov5"
    assert "| tracekit.capture.listing" in " ".join(done.stderr.split())
    assert "| torch\n" not in done.stderr
