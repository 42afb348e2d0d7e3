"""Each quantity comes from the run in which its level is the deepest, on planted and on real recordings."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import msgspec
import polars as pl
import pytest
from planted import Planted
from xsp_planted import H100, model

import tracekit
from tracekit.analyses.arithmetic import arithmetic
from tracekit.analyses.xsp.analysis import find_runs, xsp
from tracekit.analyses.xsp.answers import answer_of
from tracekit.analyses.xsp.catalogue import CATALOGUE, COLUMNS
from tracekit.analyses.xsp.runs import XspRun, run_of
from tracekit.analyses.xsp.series import best_run, model_information
from tracekit.analyses.xsp.views import tables_of
from tracekit.capture.run import run as capture
from tracekit.cli.main import main
from tracekit.errors import UnreadableTraceError, UsageError
from tracekit.manifest import CaptureOptions, Manifest, Run, Settings
from tracekit.statistics import trimmed_mean
from tracekit.sweep_index import INDEX_FILE, index_of
from tracekit.trace import Trace

LEVELS = ("M", "ML", "MLG", "metrics")


def manifest(**times: int) -> Manifest:
    base = model(0).manifest
    runs = [Run(level=level, step_times_ns=[times[level]]) for level in LEVELS if level in times]
    return msgspec.structs.replace(base, runs=runs)


def one_layer(layer_ns: int, kernel_ns: int | None) -> Trace:
    """A step with one layer of this length and, at MLG, a kernel of that length in it."""
    made = Planted()
    made.step(1, 0, layer_ns + 100)
    made.span("module", "tracekit.layer/a", 10, 10 + layer_ns, layer="a", module_type="Linear")
    if kernel_ns is not None:
        made.span("op", "aten::mm", 20, 60)
        made.activity("gemm", 40, kernel_ns, launch=25, call_ns=5)
    return made.trace(devices=(H100,) if kernel_ns is not None else ())


def ranged(duration: int) -> Trace:
    """A run for counters: its kernel and its layer have times of their own, which are those of replays."""
    trace = one_layer(77_000, duration)
    made = Planted()
    for name, value in (("dram__bytes_read.sum", 600.0), ("dram__bytes_write.sum", 400.0)):
        made.counters.append({"name": "gemm", "series": name, "start": 0, "duration": 5, "value": value})
    made.span("op", "aten::empty", 0, 5)
    return dataclasses.replace(trace, counters=made.trace().counters)


def test_every_quantity_is_that_of_its_own_level() -> None:
    run = run_of(
        "planted",
        one_layer(2_000, None),
        one_layer(5_000, 300),
        manifest=manifest(M=1_000, ML=3_000, MLG=9_000, metrics=50_000),
        counters=ranged(44_000),
    )
    assert model_information([run]).frame["latency_ns"].to_list() == [1_000]
    tables = tables_of(run)
    assert tables["A3"].frame["latency_ns"].to_list() == [2_000]
    assert tables["A2"].frame["latency_ns"].to_list() == [2_000]
    assert tables["A6"].frame["self_ns"].to_list() == [2_000]
    for key in ("A10", "A11", "A12"):
        assert tables[key].frame["gpu_ns"].to_list() == [300], key
    assert tables["A8"].frame["duration_ns"].to_list() == [300]
    # The counters came from another run, whose times are nowhere.
    assert tables["A8"].frame["dram_read_bytes"].to_list() == [600]
    part = tables["A13"].frame.row(0, named=True)
    assert (part["self_ns"], part["gpu_ns"], part["non_gpu_ns"]) == (2_000, 300, 1_700)
    whole = tables["A15"].frame.row(0, named=True)
    assert (whole["latency_ns"], whole["gpu_ns"], whole["gpu_share"]) == (1_000, 300, 0.3)
    rows = tables["overhead"].frame.select("quantity", "level", "latency_ns", "added_ns", "ratio").rows()
    assert rows == [
        ("model latency", "M", 1_000, None, 1),
        ("model latency", "ML", 3_000, 2_000, 3),
        ("model latency", "MLG", 9_000, 6_000, 9),
        ("layer latency", "ML", 2_000, None, 1),
        ("layer latency", "MLG", 5_000, 3_000, 2.5),
    ]


def test_a_run_for_counters_gives_no_times() -> None:
    run = run_of("counters", ranged(44_000))
    assert run.kernels is None
    tables = tables_of(run)
    assert tables["A8"].frame["dram_read_bytes"].to_list() == [600]
    assert tables["A8"].frame["duration_ns"].to_list() == [None]
    for key in ("A10", "A11"):
        assert tables[key].frame.select("sum_ns", "gpu_ns", "tflops").rows() == [(None, None, None)], key
    assert "--levels MLG" in str(tables["A10"].not_captured)
    assert "--levels ML" in str(tables["A3"].not_captured)


def test_a_deeper_level_does_not_stand_in_for_a_missing_one() -> None:
    run = run_of("deep", one_layer(5_000, 300), manifest=manifest(MLG=9_000))
    assert "--levels M" in str(model_information([run]).not_captured)
    assert not model_information([run]).frame.height
    tables = tables_of(run)
    for key in ("A3", "A6", "A13"):
        assert not tables[key].frame.height
        assert "--levels ML" in str(tables[key].not_captured)
    assert tables["A2"].frame.select("layer", "latency_ns", "self_ns").rows() == [("a", None, None)]
    assert tables["A5"].frame["type"].to_list() == ["Linear"]
    assert tables["A15"].frame["gpu_share"].to_list() == [None]
    shallow = tables_of(run_of("shallow", one_layer(2_000, None)))
    assert shallow["A3"].frame["latency_ns"].to_list() == [2_000]
    for key in ("A4", "A8", "A9", "A10", "A11", "A12", "A14", "A15"):
        assert not shallow[key].frame.height
        assert "--levels MLG" in str(shallow[key].not_captured)


@pytest.mark.slow
def test_a_device_that_works_on_after_the_call_leaves_no_difference() -> None:
    run = run_of("late", one_layer(2_000, None), one_layer(5_000, 7_000))
    part = tables_of(run)["A13"].frame.row(0, named=True)
    assert (part["gpu_ns"], part["non_gpu_ns"], part["gpu_share"]) == (7_000, None, 3.5)


def test_the_same_lengths_over_steps_are_trimmed() -> None:
    times = [100, 1, 9, 10, 11]
    base = msgspec.structs.replace(manifest(M=1), runs=[Run(level="M", step_times_ns=times)])
    assert XspRun("r", base).latency_ns == 10 == trimmed_mean(times)


def test_a_trace_without_layers_says_how_to_record_them() -> None:
    made = Planted()
    made.step(1, 0, 1_000)
    made.span("op", "aten::mm", 20, 60)
    made.activity("gemm", 40, 30, launch=25, call_ns=5)
    run = run_of("bare", made.trace(devices=(H100,)))
    tables = tables_of(run)
    assert tables["A10"].frame["name"].to_list() == ["gemm"]
    for table in (tables["A2"], tables["A5"], tables["A11"], tables["A12"]):
        assert not table.frame.height
        assert "with_stack=True" in str(table.not_captured), table.key


def test_a_script_is_not_sent_to_levels_that_it_cannot_have() -> None:
    script = msgspec.structs.replace(manifest(MLG=500), settings=None)
    run = run_of("train.py", one_layer(300, 40), manifest=script)
    for table in (tables_of(run)["A3"], model_information([run])):
        assert "docs/extending.md" in str(table.not_captured)
        assert "--levels" not in str(table.not_captured)
    workload = run_of("cnn", one_layer(300, 40), manifest=manifest(MLG=500))
    assert "--levels ML" in str(tables_of(workload)["A3"].not_captured)


# -- batches -----------------------------------------------------------------------------------------


def at_batch(batch: int, latency: float) -> XspRun:
    base = manifest(M=round(latency))
    settings = Settings(batch=batch)
    return XspRun(f"b{batch}", msgspec.structs.replace(base, settings=settings, samples_per_step=batch))


@pytest.mark.parametrize(
    ("times", "best", "says"),
    [
        ({1: 1000, 2: 1500, 4: 2900, 8: 5800}, 2, "optimal batch is 2:"),
        ({8: 5800, 2: 1500, 1: 1000, 4: 2900}, 2, "optimal batch is 2:"),
        ({1: 1000, 2: 1100}, 2, "larger batch may gain more"),
        ({1: 2100, 2: 4000}, 1, "optimal batch is 1:"),  # exactly 5 % is no gain
    ],
)
def test_the_optimal_batch_of_made_up_curves(times: dict[int, int], best: int, says: str) -> None:
    runs = [at_batch(batch, latency) for batch, latency in times.items()]
    table = model_information(runs)
    assert table.frame["batch"].to_list() == sorted(times)
    assert table.frame.filter("optimal")["batch"].to_list() == [best]
    assert says in table.answer
    assert runs[best_run(runs)].batch == best
    rates = dict(table.frame.select("batch", "throughput_per_s").rows())
    assert rates == {batch: pytest.approx(batch / latency * 1e9) for batch, latency in times.items()}


# -- real recordings ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cnn")
    settings = Settings(batch=2, size=16, threads=1)
    capture("cnn", folder, settings=settings, options=CaptureOptions(steps=3, warmup=1), levels=LEVELS)
    return folder


@pytest.mark.slow
def test_a_real_capture_gives_each_table_from_its_level(recorded: Path) -> None:
    tables = xsp([recorded])
    (run,) = find_runs([recorded])
    assert run.manifest is not None
    assert tables["A1"].frame["latency_ns"][0] == trimmed_mean(run.manifest.step_times_ns("M"))
    layers = tables["A3"].frame
    root = layers.row(0, named=True)
    assert root["layer"] == "<root>"
    # Own times are parts of the root's call, and the root's call is a part of the step.
    assert layers["self_ns"].sum() <= 1.2 * root["latency_ns"]
    assert root["latency_ns"] < max(run.manifest.step_times_ns("ML"))
    alone = xsp([recorded / "trace-ML.json.gz"], analyses=["A3", "A10"])
    assert alone["A3"].frame.equals(layers)
    assert not alone["A10"].frame.height
    deep = xsp([recorded / "trace.json.gz"], analyses=["A3", "A10"])
    assert not deep["A3"].frame.height
    assert deep["A10"].frame.equals(tables["A10"].frame)
    added = tables["overhead"].frame.filter(pl.col("quantity") == "model latency")
    assert added["level"].to_list() == ["M", "ML", "MLG"]
    for level, latency in added.select("level", "latency_ns").rows():
        assert latency == trimmed_mean(run.manifest.step_times_ns(level))


def test_analytic_flops_of_a_real_models_products_are_those_that_torch_counts(recorded: Path) -> None:
    """All but the bias of the one linear layer (2 samples × 10 classes), which torch's counter leaves out."""
    row = xsp([recorded], analyses=["A15"])["A15"].frame.row(0, named=True)
    found = arithmetic(tracekit.read(recorded / "trace.json.gz"))
    assert found.matrix_flops is not None
    assert found.matrix_flops * found.flops_per_step / found.flops == row["counted_flops"] + 2 * 10
    assert row["flops"] == found.flops_per_step > row["counted_flops"]
    assert row["flops_source"] == "analytic"


@pytest.mark.slow
def test_what_a_cpu_cannot_tell_is_null(recorded: Path) -> None:
    tables = xsp([recorded])
    assert "no device was captured" in tables["A8"].answer
    row = tables["A15"].frame.row(0, named=True)
    assert [row[c] for c in ("dram_read_bytes", "occupancy", "intensity", "memory_bound")] == [None] * 4
    for key in ("A9", "A14"):
        assert "dram__bytes_read.sum" in str(tables[key].not_captured)


@pytest.mark.slow
def test_every_table_has_the_columns_of_its_entry(recorded: Path) -> None:
    for key, table in xsp([recorded]).items():
        assert dict(table.frame.schema) == CATALOGUE[key].schema
        assert set(CATALOGUE[key].shown) <= set(table.frame.columns) <= set(COLUMNS)


# -- the command line --------------------------------------------------------------------------------


def call(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        main(["xsp", *map(str, arguments)])
    return int(left.value.code or 0)


@pytest.mark.slow
def test_all_formats(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(recorded) == 0
    text = capsys.readouterr().out
    assert all(f"A{number}: " in text for number in range(1, 16))
    assert call(recorded, "--format", "json", "--top", 2) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document["xsp"]) == list(CATALOGUE)
    assert len(document["xsp"]["A3"]["rows"]) == 2
    assert document["xsp"]["A9"]["rows"] == []
    assert call(recorded, "--analysis", "a6", "--format", "csv") == 0
    assert capsys.readouterr().out.startswith("type,layers,self_ns,share\n")
    assert call(recorded, "-o", tmp_path / "x.md", "--analysis", "A10") == 0
    assert "A10" in (tmp_path / "x.md").read_text("utf-8")
    assert call(recorded, "-o", tmp_path / "a3.parquet", "--analysis", "A3") == 0
    assert pl.read_parquet(tmp_path / "a3.parquet").equals(xsp([recorded], analyses=["A3"])["A3"].frame)
    assert call(recorded, "--format", "csv", "-o", tmp_path / "all") == 0
    assert {"A1.csv", "A8.csv", "overhead.csv"} <= {path.name for path in (tmp_path / "all").iterdir()}
    assert call(recorded, "--figures", tmp_path / "figures", "--figure-format", "png") == 0
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert drawn == {"A3.png", "A4.png", "A5.png", "A6.png", "A7.png", "A13.png"}


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--analysis", "A16"], 2, "there is no analysis 'A16'; did you mean A6 or A1"),
        (["--format", "html"], 2, "xsp writes table, json, md, csv or parquet, not html"),
        (["--format", "csv"], 2, "give --analysis, or -o FOLDER"),
        (["--analysis", "A9", "--format", "csv"], 4, "A9: not captured; bytes to and from"),
        (["--batch", "64"], 2, "no run has batch 64; the batches are 2"),
        (["--rank", "3"], 2, "rank 3 was not recorded"),
    ],
)
def test_wrong_usage_is_one_line(
    recorded: Path, arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(recorded, *arguments) == code
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_a_folder_without_a_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(tmp_path) == 3
    assert "neither manifest.json nor index.parquet" in capsys.readouterr().err
    with pytest.raises(UnreadableTraceError, match=r"tracekit capture or sweep"):
        find_runs([tmp_path])
    assert call(tmp_path / "nowhere") == 3


def test_a_capture_of_the_level_m_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "manifest.json").write_bytes(manifest(M=1_500).to_json())
    assert call(tmp_path) == 0
    text = capsys.readouterr().out
    assert "1.50 µs" in text
    for level in ("ML", "MLG"):
        assert f"--levels {level}" in text
    tables = xsp([tmp_path])
    for key, entry in CATALOGUE.items():
        if "M" not in entry.levels:
            assert not tables[key].frame.height
            assert tables[key].not_captured


def write_run(folder: Path, **changes: object) -> Path:
    folder.mkdir()
    made = manifest(M=1_000)
    (folder / "manifest.json").write_bytes(msgspec.structs.replace(made, **changes).to_json())
    return folder


def test_several_runs_must_differ_in_the_batch_alone(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", settings=Settings(batch=1))
    two = write_run(tmp_path / "two", settings=Settings(batch=2))
    assert xsp([one, two], analyses=["A1"])["A1"].frame["batch"].to_list() == [1, 2]
    with pytest.raises(UsageError, match="one and other differ in workload"):
        xsp([one, write_run(tmp_path / "other", workload="x", settings=Settings(batch=2))])
    with pytest.raises(UsageError, match="one and half differ in precision"):
        xsp([one, write_run(tmp_path / "half", settings=Settings(batch=2, precision="fp16"))])
    with pytest.raises(UsageError, match="one and again have the same batch"):
        xsp([one, write_run(tmp_path / "again", settings=Settings(batch=1))])


def test_a_sweep_is_a_series_of_its_runs(tmp_path: Path) -> None:
    rows = []
    for batch, status in ((1, "done"), (2, "done"), (4, "failed")):
        write_run(tmp_path / f"b{batch}", settings=Settings(batch=batch))
        rows.append({"status": status, "folder": f"b{batch}"})
    index_of(rows).write_parquet(tmp_path / INDEX_FILE)
    assert xsp([tmp_path], analyses=["A1"])["A1"].frame["batch"].to_list() == [1, 2]
    index_of(rows[2:]).write_parquet(tmp_path / INDEX_FILE)
    with pytest.raises(UnreadableTraceError, match="no run of this sweep is done"):
        xsp([tmp_path])


def test_an_answer_names_a_kernel_in_short() -> None:
    """The whole signature of a batch norm filled 39 lines of one sentence."""
    levels = one_layer(2_000, None), one_layer(5_000, 300)
    run = run_of("planted", *levels, manifest=manifest(M=1_000, ML=3_000, MLG=9_000))
    name = (
        f"void at::native::batch_norm<{', '.join(['at::GenericPackedTensorAccessor<float, 3ul>'] * 40)}>(int)"
    )
    answer = answer_of(CATALOGUE["A10"], pl.DataFrame({"name": [name], "share": [0.5]}), run)
    assert "batch_norm" in answer
    assert len(answer) < 150
