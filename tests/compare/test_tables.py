"""Tables of latencies: which columns are recognised, what is left out, and one clear line for each fault."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tracekit.compare import Measured, joined, read_table
from tracekit.errors import TracekitError, UsageError


def table(tmp_path: Path, text: str, **how: object) -> Measured:
    path = tmp_path / "t.csv"
    path.write_text(text, "utf-8")
    return read_table(path, **how)  # type: ignore[arg-type]


def faults(measured: Measured) -> list[str]:
    return [line.partition("t.csv: ")[2] for line in measured.left_out]


@pytest.mark.parametrize(
    ("name", "ns"),
    [("latency_s", 2e9), ("e2e_ms", 2e6), ("Latency (µs)", 2e3), ("Step-Time [ns]", 2.0), ("duration_us", 2e3), ("time_sec", 2e9)],
)  # fmt: skip
def test_units_of_a_latency(tmp_path: Path, name: str, ns: float) -> None:
    assert table(tmp_path, f"model,device,{name}\nm,d,2\n").rows["latency_ns"].to_list() == [ns]


def test_usual_names(tmp_path: Path) -> None:
    read = table(tmp_path, "Network;GPU;dtype;BS;Latency_ms;GFLOPs;Params_M;Top1\nm;d;torch.float16;8;2;3;4,5;70\nm;d;bfloat16;8;2;3;4.5;70\n")  # fmt: skip
    row = read.rows.row(1, named=True)
    assert (row["model"], row["device"], row["precision"], row["samples"], row["flops"], row["size"], row["accuracy"]) == ("m", "d", "bf16", 8, 3e9, 4.5e6, 70)  # fmt: skip
    assert (read.rows["precision"][0], read.rows["size"][0], read.size_name) == ("fp16", None, "parameters")
    assert faults(read) == [
        "1 row whose size is not a number (the first is row 1: '4,5'); it counts as not known"
    ]


def test_the_better_name_counts_and_figures_are_no_options(tmp_path: Path) -> None:
    read = table(tmp_path, "model,device,time_ms,latency_ms,fw_ms,noise,tries\nm,d,9,2,1,0.5,3\n")
    assert read.rows["latency_ns"].to_list() == [2e6]
    assert [name for name in read.rows.columns if name.startswith("option")] == ["option tries"]
    assert faults(read) == ["the figures in its columns time_ms, fw_ms, noise"]
    assert "option tries" not in table(tmp_path, "model,device,latency_ms,tries\nm,d,2,3\n", ignored=["tries"]).rows.columns  # fmt: skip


def test_chosen_columns(tmp_path: Path) -> None:
    text = "net,where,Median,p99_ms,latency_ms\nm,d,2,3,4\n"
    ways = [({"latency_ms": "Median"}, 2e6), ({"latency": "p99_ms"}, 3e6), ({}, 4e6)]
    for columns, ns in ways:
        chosen = {"model": "net", "device": "where", **columns}
        assert table(tmp_path, text, columns=chosen).rows["latency_ns"].to_list() == [ns]


@pytest.mark.parametrize(
    ("text", "how", "message"),
    [
        ("", {}, "the table is empty"),
        ("model,device,latency_ms\n", {}, "the table has no rows"),
        ("model,latency_ms\nm,1\n", {}, "no column of the device; name it: --columns device=COLUMN; the columns are model, latency_ms"),
        ("model,device,latency\nm,d,1\n", {}, "the unit of its column 'latency' is not known; name it: --columns latency_ms=latency"),
        ("model,device,latency_ms\nm,d,1\n", {"columns": {"model": "modle"}}, "no column 'modle'; did you mean model"),
        ("model,device,latency_ms\nm,d,1\n", {"columns": {"modle": "model"}}, "no role 'modle' of a column; did you mean model"),
        ("model,device,latency_ms\nm,d,1\n", {"ignored": ["x"]}, "no column 'x'"),
        ("model,device,latency_ms\nm,d,1,5,6\n", {}, "not a readable table"),
        ("model,device,latency_ms\u202e,latency_ms\u202d\nm,d,1,5\n", {}, "two of its columns have one name"),
    ],
)  # fmt: skip
def test_one_line_for_a_table_that_cannot_be_read(tmp_path: Path, text: str, how: dict[str, object], message: str) -> None:  # fmt: skip
    with pytest.raises(TracekitError) as error:
        table(tmp_path, text, **how)
    assert message in str(error.value)
    assert "t.csv" in str(error.value) or isinstance(error.value, UsageError)


def test_rows_that_cannot_count_are_left_out_and_told(tmp_path: Path) -> None:
    text = (
        "model,device,latency_ms,flops\nm,d,OOM,1\nm,d,-3,1\nm,d,0,1\nm,d,,1\n,d,1,1\nm,d,inf,1\nm,d,5,many\n"
    )
    read = table(tmp_path, text)
    assert read.rows.select("latency_ns", "flops").rows() == [(5e6, None)]
    assert faults(read) == [
        "1 row without a model (the first is row 5)",
        "1 row without a latency (the first is row 4)",
        "2 rows whose latency is not a number (the first is row 1: 'OOM')",
        "1 row whose flops is not a number (the first is row 7: 'many'); it counts as not known",
        "2 rows whose latency is not above 0 (the first is row 2: '-3')",
    ]


def test_parquet_as_csv(tmp_path: Path) -> None:
    frame = pl.DataFrame({"model": ["m", "n"], "device": ["d", None], "latency_ms": [1.5, 2.5], "batch": [8.0, 4.0], "fused": [True, False], "list": [[1], [2]]})  # fmt: skip
    frame.write_parquet(tmp_path / "t.parquet")
    read = read_table(tmp_path / "t.parquet")
    assert read.rows.select("model", "latency_ns", "samples", "option batch", "option fused").rows() == [("m", 1.5e6, 8.0, "8", "true")]  # fmt: skip
    (tmp_path / "t.parquet").write_bytes(b"no parquet")
    with pytest.raises(TracekitError, match="not a readable table"):
        read_table(tmp_path / "t.parquet")


def test_names_cannot_steer_a_terminal(tmp_path: Path) -> None:
    read = table(tmp_path, "model,device,latency_ms,op\x1b[2Jtion\n\x1b[31mm,d\u202e,1,x\n")
    text = f"{read.rows.rows()} {read.rows.columns}"
    assert "\\x1b" not in text
    assert "\\u202e" not in text


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("params_m", 3e6, "parameters"), ("Parameters (k)", 3e3, "parameters"), ("parameters_b", 3e9, "parameters"), ("params", 3.0, "parameters"),
        ("model_size_mb", 3e6, "bytes"), ("size_GiB", 3 * 2.0**30, "bytes"), ("params_mb", 3e6, "bytes"), ("model_size", 3.0, "model size"),
    ],
)  # fmt: skip
def test_sizes_are_told_in_one_unit(tmp_path: Path, column: str, value: float, told: str) -> None:
    """A model of 340 million parameters was smaller than one of 4,000,000: its column was `params_m`."""
    read = table(tmp_path, f"model,device,latency_ms,{column}\nm,d,2,3\n")
    assert (read.rows["size"].to_list(), read.size_name) == ([value], told)


def test_a_chosen_column_of_sizes_has_the_unit_in_its_name(tmp_path: Path) -> None:
    text = "model,device,latency_ms,weights_mb,Params (M)\nm,d,2,9,3\n"
    for column, value, told in (("weights_mb", 9e6, "bytes"), ("Params (M)", 3e6, "parameters")):
        read = table(tmp_path, text, columns={"size": column})
        assert (read.rows["size"].to_list(), read.size_name) == ([value], told)


def test_sizes_of_two_kinds_are_not_in_one_set(tmp_path: Path) -> None:
    texts = ("model,device,latency_ms,params_m\nbig,d,2,3\n", "model,device,latency_ms,params\nsmall,d,2,5\n", "model,device,latency_ms,size_mb\nother,d,2,12\n")  # fmt: skip
    both = joined(table(tmp_path, text) for text in texts)
    assert both.rows["size"].to_list() == [3e6, 5.0, None]
    assert both.size_name == "parameters"
    assert both.left_out == ("the sizes in bytes, since the first ones are in parameters",)
