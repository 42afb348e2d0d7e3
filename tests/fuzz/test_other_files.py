"""Files that are no traces, mutated: tables of runs, models, reports, baselines, measurements, changes, logs of MLPerf."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path
from typing import Any, Final

import polars as pl
import pytest
from commands import ok, run
from laws import Answer, broken_laws
from paths import ROOT

from tests.mlperf.test_results import logged
from tests.predict.planted_tables import planted

CASES: Final = 30
PARTS: Final = 1

QUESTIONS: Final = (
    ("runs.csv", "predict fit runs.csv -o out.json --model lattuada"),
    ("runs.csv", "predict evaluate runs.csv --model lattuada -f json"),
    ("runs.csv", "predict run structural.json --table runs.csv"),
    ("some.parquet", "predict run lattuada.json --table some.parquet -f json"),
    ("lattuada.json", "predict run lattuada.json --table some.parquet -f json"),
    ("structural.json", "predict explain structural.json"),
    ("report.json", "diff report.json t.json.gz -f json"),
    ("report.json", "trend report.json t.json.gz"),
    (".tracekit/baselines/base.runs", "diff --against base t.json.gz"),
    ("changes.toml", "what-if t.json.gz --changes changes.toml"),
    ("devices.csv", "compare devices.csv"),
    ("devices.csv", "compare devices.csv -f json"),
    ("asked.csv", "scaling --fit logs --forecast asked.csv"),
    ("logs/8/result_0.txt", "scaling logs -f json"),
)
"""A file, and what is asked about it."""

ODD: Final[tuple[Any, ...]] = (
    *(None, True, "", [], {}, [[]] * 50, "x" * 3000, "nan", "\u202e\x1b[2J", "../../etc/passwd", "1e999"),
    *(-1, 0, 1e308, -1e308, 1e-320, 2**63, 2**70),
)
NUMBER: Final = re.compile(r"-?\d+(\.\d+)?")


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("healthy")
    shutil.copy(ROOT / "sample_traces" / "cnn_cpu" / "trace.json.gz", folder / "t.json.gz")
    planted(repetitions=2).write_csv(folder / "runs.csv")
    planted(repetitions=1)[:4].write_parquet(folder / "some.parquet")
    (folder / "changes.toml").write_text('scale = ["category:convolution=0.5"]\nfaster-host = "2x"\n')
    (folder / "asked.csv").write_text("benchmark,accelerators,batch,epochs\nnet,64,512,4\nnet,128,512,\n")
    rows = [
        f"m{i},{device},{batch},{i * batch * times},fp32,{i}e9"
        for i in range(1, 6)
        for device, times in (("A100", 1), ("V100", 2.1))
        for batch in (1, 8)
    ]
    (folder / "devices.csv").write_text(
        "\n".join(["model,device,batch,latency_ms,precision,flops", *rows]) + "\n"
    )
    for chips in (8, 16, 32):
        (folder / "logs" / str(chips)).mkdir(parents=True)
        text = "".join(logged(64, second=80 / chips))
        (folder / "logs" / str(chips) / "result_0.txt").write_text(text)
    return folder


def mutated(data: bytes, name: str, rng: random.Random) -> bytes:
    """The file with other values, or other bytes."""
    kind = Path(name).suffix
    if kind == ".parquet" or rng.random() < 0.3:
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 10)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        return bytes(damaged[: rng.randrange(len(damaged)) if rng.random() < 0.2 else None])
    if kind in (".json", ".runs"):  # of saved runs the first line says what follows it
        head, _, rest = data.partition(b"\n") if kind == ".runs" else (data, b"", b"")
        document = json.loads(head)
        for _ in range(rng.randint(1, 3)):
            _put(document, rng)
        return json.dumps(document).encode() + (b"\n" + rest if rest else b"")
    lines = data.decode().splitlines()
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(lines))
        if kind == ".csv":
            cells = lines[at].split(",")
            cells[rng.randrange(len(cells))] = str(rng.choice(ODD)).replace(",", ";")
            lines[at] = ",".join(cells)
        elif numbers := list(NUMBER.finditer(lines[at])):
            one = rng.choice(numbers)
            lines[at] = lines[at][: one.start()] + str(rng.choice(ODD)) + lines[at][one.end() :]
    return "\n".join(lines).encode()


def _put(tree: Any, rng: random.Random) -> None:
    """Another value, or none, in one place of a document."""
    while True:
        keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
        if not keys:
            return
        key = rng.choice(keys)
        if not isinstance(tree[key], dict | list) or not tree[key] or rng.random() < 0.2:
            break
        tree = tree[key]
    if isinstance(tree, dict) and rng.random() < 0.2:
        del tree[key]
    else:
        tree[key] = rng.choice(ODD)


@pytest.mark.slow
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("part", range(PARTS))
def test_mutated_files_break_no_law(
    part: int, healthy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(healthy)
    for name in ("lattuada", "structural"):
        run(capsys, "predict", "fit", "runs.csv", "-o", f"{name}.json", "--model", name)
    Path("report.json").write_text(ok(capsys, "report", "t.json.gz", "-f", "json"))
    run(capsys, "baseline", "save", "base", "t.json.gz")
    for seed in range(part * CASES, (part + 1) * CASES):
        rng = random.Random(seed)
        name, words = rng.choice(QUESTIONS)
        whole = Path(name).read_bytes()
        Path(name).write_bytes(mutated(whole, name, rng))
        code, out, err = run(capsys, *words.split())
        # What was left out stands before an error.
        told = "".join(line for line in err.splitlines(keepends=True) if line.startswith("tracekit: error"))
        answer = Answer(tuple(words.split()), code, out.encode(), (told if code in (2, 3) else err).encode())
        assert not [*broken_laws(answer)], (seed, name, words, err)
        Path(name).write_bytes(whole)


# -- what it found ---------------------------------------------------------------------------------


def test_a_row_whose_batch_is_no_number_ended_a_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], healthy: Path
) -> None:
    text = (healthy / "devices.csv").read_text().replace("m3,A100,8,", "m3,A100,[],")
    (tmp_path / "d.csv").write_text(text)
    code, _, err = run(capsys, "compare", tmp_path / "d.csv")
    assert code == 0
    assert "1 row whose batch is not a number" in err


@pytest.mark.slow
@pytest.mark.parametrize("value", ["1e308", "1e-320", "-1e308"])
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_absurd_numbers_of_a_table_are_none(
    value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], healthy: Path
) -> None:
    for name, column in (("runs.csv", "batch"), ("devices.csv", "latency_ms")):
        frame = pl.read_csv(healthy / name, infer_schema=False)
        first = pl.int_range(pl.len()) == 3
        frame = frame.with_columns(pl.when(first).then(pl.lit(value)).otherwise(column).alias(column))
        frame.write_csv(tmp_path / name)
    code, _, err = run(
        capsys, "predict", "fit", tmp_path / "runs.csv", "-o", tmp_path / "m.json", "--model", "lattuada"
    )
    assert code == 0
    assert "left out: runs.csv: 1 row without a positive batch" in err
    code, out, err = run(capsys, "compare", tmp_path / "devices.csv", "-f", "json")
    assert (code, "1 row whose latency is no" in err or "not above 0" in err) == (0, True)
    assert "Infinity" not in out


def test_absurd_numbers_of_a_log_and_a_question(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], healthy: Path
) -> None:
    folder = shutil.copytree(healthy / "logs", tmp_path / "logs")
    asked = tmp_path / "asked.csv"
    asked.write_text("benchmark,accelerators,batch,epochs\nnet,64,1e308,4\n")
    code, _, err = run(capsys, "scaling", "--fit", folder, "--forecast", asked)
    assert (code, err) == (
        2,
        f"tracekit: error: {asked}: row 1 below the titles has batch beyond 1,000,000,000,000; correct it, or leave the row out\n",
    )
    log = folder / "8" / "result_0.txt"
    log.write_text(log.read_text().replace('"first_epoch_num": 1', '"first_epoch_num": [[]]'))
    assert run(capsys, "scaling", folder)[0] == 0
