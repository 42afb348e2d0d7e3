"""The JSON contract, the schema that describes it, and the directories of tables and figures."""

from __future__ import annotations

import json
import math
import sys
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import small_traces
from paths import PUBLIC, SAMPLES
from real_traces import report_of, traces

from tracekit.errors import UsageError
from tracekit.report import figures, tables
from tracekit.report.build import build_report
from tracekit.report.json import render as json_
from tracekit.report.json.schema import report_schema


@cache
def validator() -> Any:
    import jsonschema  # takes a second, and every process of a parallel run imports this file

    return jsonschema.Draft202012Validator(report_schema())


@pytest.mark.slow
def test_schema_is_one() -> None:
    validator().check_schema(report_schema())


@pytest.mark.quick(3)
@pytest.mark.parametrize("path", traces(*SAMPLES, *PUBLIC))
@pytest.mark.sampled(4)
def test_json_follows_the_schema(path: Path) -> None:
    text = json_.render(report_of(path))
    validator().validate(json.loads(text, parse_constant=_refuse))


@pytest.mark.parametrize("make", [small_traces.nothing, small_traces.cpu, small_traces.hostile])
def test_odd_traces_follow_the_schema(tmp_path: Path, make: Any) -> None:
    validator().validate(json.loads(json_.render(build_report(make(tmp_path))), parse_constant=_refuse))


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "break_it",
    [
        lambda data: data.pop("verdict"),
        lambda data: data.update(more=1),
        lambda data: data["verdict"].update(bound="something else"),
        lambda data: data["analyses"]["breakdown"]["tables"]["devices"][0].pop("idle_ns"),
        lambda data: data["analyses"]["breakdown"]["tables"]["devices"][0].update(idle_ns="much"),
    ],
)
def test_schema_refuses_what_is_wrong(tmp_path: Path, break_it: Any) -> None:
    data = json.loads(json_.render(build_report(small_traces.host_bound(tmp_path))))
    break_it(data)
    assert not validator().is_valid(data)


def test_contract(tmp_path: Path) -> None:
    data = json.loads(json_.render(build_report(small_traces.host_bound(tmp_path))))
    assert list(data) == ["schema_version", "trace", "window", "health", "verdict", "analyses"]
    assert data["schema_version"] == "1.0"
    assert data["trace"]["path"] == "small.json"
    assert data["window"]["steps"] == [
        {"step": 3, "name": "ProfilerStep#3", "start_ns": 0, "end_ns": 1010000}
    ]
    row = data["analyses"]["breakdown"]["tables"]["devices"][0]
    parts = ("compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns")
    assert sum(row[part] for part in parts) == row["window_ns"] == data["window"]["duration_ns"]
    findings = [finding for one in data["analyses"].values() for finding in one["findings"]]
    for finding in findings:
        stake = finding["ns_at_stake"]
        assert finding["seconds_at_stake"] == (None if stake is None else pytest.approx(stake / 1e9))


def test_top_limits_rows(tmp_path: Path) -> None:
    report = build_report(small_traces.compute_bound(tmp_path))
    full, short = (json.loads(json_.render(report, top=top)) for top in (None, 1))
    assert len(full["analyses"]["kernels"]["tables"]["by_name"]) == 3
    assert len(short["analyses"]["kernels"]["tables"]["by_name"]) == 1


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_tables_come_with_a_manifest(tmp_path: Path, form: Any) -> None:
    report = build_report(small_traces.compute_bound(tmp_path))
    written = tables.write(report, tmp_path / "out" / "deep", form)
    manifest = json.loads((tmp_path / "out" / "deep" / "manifest.json").read_text())
    assert [path.name for path in written] == [*(one["file"] for one in manifest["tables"]), "manifest.json"]
    entry = next(one for one in manifest["tables"] if one["file"] == f"kernels.by_name.{form}")
    path = tmp_path / "out" / "deep" / entry["file"]
    frame = pl.read_csv(path) if form == "csv" else pl.read_parquet(path)
    assert frame.columns == [column["name"] for column in entry["columns"]]
    assert frame.height == entry["rows"] == 3
    assert manifest["verdict"]["bound"] == "compute-bound"


def test_frames_of_a_trace(tmp_path: Path) -> None:
    trace = small_traces.compute_bound(tmp_path)
    written = tables.write_trace(trace, tmp_path / "frames")
    assert (tmp_path / "frames" / "device.parquet") in written
    assert pl.read_parquet(tmp_path / "frames" / "device.parquet").height == trace.device.height


@pytest.mark.slow
@pytest.mark.parametrize(("form", "begin"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_figures(tmp_path: Path, form: Any, begin: bytes) -> None:
    report = build_report(small_traces.hostile(tmp_path))
    written = figures.write(report, tmp_path / "figures", form)
    assert {path.name for path in written} >= {f"breakdown.breakdown.{form}", f"kernels.categories.{form}"}
    assert all(path.read_bytes().startswith(begin) for path in written)
    again = figures.encode(report.sections[0].figures[0], form)
    assert again == written[0].read_bytes()
    assert "matplotlib.pyplot" not in sys.modules


@pytest.mark.parametrize("writer", [tables.write, tables.write_trace, figures.write])
def test_unknown_formats_are_usage_errors(tmp_path: Path, writer: Any) -> None:
    trace = small_traces.cpu(tmp_path)
    with pytest.raises(UsageError, match="unknown"):
        writer(trace if writer is tables.write_trace else build_report(trace), tmp_path / "out", "docx")


def test_numbers_are_finite_or_null(tmp_path: Path) -> None:
    def walk(value: Any) -> None:
        if isinstance(value, dict | list):
            for item in value.values() if isinstance(value, dict) else value:
                walk(item)
        elif isinstance(value, float):
            assert math.isfinite(value)

    walk(json.loads(json_.render(build_report(small_traces.nothing(tmp_path)))))
