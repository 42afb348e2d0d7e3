"""The synthetic exports themselves: true to the schemas of real files, and to the plan that they were made of."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from paths import PUBLIC_NSYS
from synthetic import generate, nsys_oracle, nsys_schema
from synthetic.nsys_export import global_id, tables_of, write_parquetdir, write_sqlite
from synthetic.nsys_hostile import hostile_markers, scribbled, truncated
from synthetic.nsys_layered import MARKS, Style, both, convert, shape_of, training
from synthetic.nsys_odd import ODD, READABLE, small
from synthetic.nsys_schema import NEWEST, OLDEST, VERSIONS

REAL = {"saxpy_mpi_a100": "2.9.1", "power_iteration_t4": "3.20.2", "fsdp_2gpu": "3.25.0"}


@pytest.mark.parametrize("path", [path for path in PUBLIC_NSYS if path.stem in REAL], ids=lambda p: p.stem)
def test_columns_are_those_of_real_files(path: Path) -> None:
    compared = 0
    for table, columns in nsys_schema.schema(REAL[path.stem]).items():
        real = {
            row[1]: (row[2], bool(row[3])) for row in nsys_oracle.query(path, f'PRAGMA table_info("{table}")')
        }
        for column in columns if real else []:
            assert column.name in real, (table, column.name)
            kind, not_null = real[column.name]
            assert column.type == kind
            # The export of 2022 says so of one column of the environment, which later ones do not.
            assert column.not_null == not_null or column.key or table == "TARGET_INFO_SYSTEM_ENV"
            compared += 1
    assert compared > 100


def test_ids_of_threads_are_made_as_documented() -> None:
    assert global_id(144, 145) == 281_477_392_629_760 + 145  # as in a public file
    assert global_id(144, 145) >> 24 & 0xFFFFFF == 144
    assert global_id(1, 1, hardware=255) < 0


@pytest.mark.quick(3)
@pytest.mark.parametrize("version", VERSIONS)
def test_files_hold_what_the_program_says(version: str, tmp_path: Path) -> None:
    program = training(1, shape_of("capture"), Style(marks="capture")).program
    path = write_sqlite(program, tmp_path / "t.sqlite", version)
    folder = write_parquetdir(program, tmp_path / "t", version)
    tables = tables_of(program, version)
    assert nsys_oracle.query(path, "PRAGMA integrity_check") == [("ok",)]
    assert {file.stem for file in folder.iterdir()} == set(tables)
    for table, (columns, rows) in tables.items():
        assert nsys_oracle.query(path, f'SELECT * FROM "{table}"') == [tuple(row) for row in rows]
        frame = pl.read_parquet(folder / f"{table}.parquet")
        assert frame.columns == [column.name for column in columns]
        assert frame.rows() == [tuple(row) for row in rows]


def test_versions_differ_as_real_ones_do(tmp_path: Path) -> None:
    program = small()
    program.mark("here", 5, tid=7)
    tables = {version: tables_of(program, version) for version in VERSIONS}
    metadata = {v: sorted(t for t in made if "META" in t) for v, made in tables.items()}
    assert list(metadata.values()) == [
        [],
        ["EXPORT_META_DATA"],
        ["META_DATA_CAPTURE", "META_DATA_EXPORT"],
        ["META_DATA_CAPTURE", "META_DATA_EXPORT"],
    ]
    assert [any(t.startswith("ENUM") for t in made) for made in tables.values()] == [False, False, True, True]
    columns, rows = tables[OLDEST]["NVTX_EVENTS"]
    assert all(column.not_null for column in columns)
    assert not any(None in row for row in rows)
    assert {row[6] for row in rows} > {"ProfilerStep#0", "here"}
    names = [column.name for column in tables[OLDEST]["CUPTI_ACTIVITY_KIND_KERNEL"][0]]
    assert "mangledName" not in names


@pytest.mark.quick(12)
@pytest.mark.parametrize("marks", MARKS)
@pytest.mark.parametrize("version", VERSIONS)
def test_the_planted_operators_are_the_innermost_ranges(marks: str, version: str, tmp_path: Path) -> None:
    """By comparing everything with everything in the file as it was written."""
    style = Style(marks=marks, backtraces=True)
    export = training(2, shape_of(marks), style)
    path = write_sqlite(export.program, tmp_path / "t.sqlite", version)
    found = {
        (pid, stream, start): (name, known) for pid, stream, start, name, known in nsys_oracle.innermost(path)
    }
    assert len(found) == len(export.expected)
    checked = 0
    for row in export.expected:
        name, launched = found[row.key]
        # Version 1 has no class of events, so that the calls there are twice in the file.
        assert launched == row.launched
        if row.operator is not None:
            assert name is not None
            assert nsys_oracle.plain(name) == row.operator
            checked += 1
    assert checked > 50


@pytest.mark.slow
def test_correlation_ids_of_two_processes_collide(tmp_path: Path) -> None:
    plan = shape_of("range")
    export = both(training(1, plan, Style(nested_calls=0)), training(1, plan, Style(pid=777, nested_calls=0)))
    path = write_sqlite(export.program, tmp_path / "t.sqlite")
    join = "FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN CUPTI_ACTIVITY_KIND_RUNTIME r USING (correlationId)"
    ((joined,),) = nsys_oracle.query(path, f"SELECT count(*) {join}")
    launched = [row for row in export.expected if row.launched and not row.name.startswith("Memcpy")]
    assert joined == 2 * len(launched)


def test_graphs_as_a_whole_take_the_place_of_their_kernels(tmp_path: Path) -> None:
    plan = shape_of("range")
    nodes, whole = (training(1, plan, Style(whole_graphs=as_one)) for as_one in (False, True))
    graphs = [row for row in whole.expected if row.name.startswith("CUDA graph")]
    assert len(graphs) == plan.steps
    assert len(nodes.expected) == len(whole.expected) + 2 * len(graphs)
    assert len(whole.program.tables["CUPTI_ACTIVITY_KIND_GRAPH_TRACE"]) == len(graphs)


def test_the_other_workload_converts_as_well(tmp_path: Path) -> None:
    planted = generate(3, devices=2, steps=2)
    export = convert(planted, [], Style())
    path = write_sqlite(export.program, tmp_path / "t.sqlite")
    counts = Counter(row.name.split(" ")[0] for row in export.expected)
    kinds = {
        kind: nsys_oracle.totals(path, f"CUPTI_ACTIVITY_KIND_{kind}")[0] for kind in nsys_oracle.ACTIVITIES
    }
    assert kinds["MEMCPY"] == counts["Memcpy"] > 0
    assert kinds["MEMSET"] == counts["Memset"] > 0
    assert sum(kinds.values()) == len(planted.activities)


@pytest.mark.quick(18)
@pytest.mark.parametrize("name", ODD)
def test_odd_files_are_made(name: str, tmp_path: Path) -> None:
    assert ODD[name](tmp_path).exists()
    assert set(ODD) >= READABLE


def all_rows(path: Path) -> int:
    tables = [name for (name,) in nsys_oracle.query(path, "SELECT name FROM sqlite_master")]
    return sum(len(nsys_oracle.query(path, f'SELECT * FROM "{table}"')) for table in tables)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("damage", [truncated, scribbled])
def test_damage_is_damage(damage: Callable[[Path, float], Path], share: float, tmp_path: Path) -> None:
    path = damage(tmp_path, share)
    with pytest.raises(sqlite3.DatabaseError):
        all_rows(path)


def test_a_hot_journal_is_hot(tmp_path: Path) -> None:
    path = ODD["hot_journal"](tmp_path)
    sql = "SELECT sum(start) FROM NVTX_EVENTS"
    changed = nsys_oracle.query(path, sql)
    base = sqlite3.connect(path)
    restored = base.execute(sql).fetchall()
    base.close()
    assert restored != changed


def test_rows_in_the_log_are_missing_from_the_file(tmp_path: Path) -> None:
    path = ODD["write_ahead_log"](tmp_path)
    sql = 'SELECT sum("end") FROM CUPTI_ACTIVITY_KIND_KERNEL'
    alone = nsys_oracle.query(path, sql)
    base = sqlite3.connect(path)
    together = base.execute(sql).fetchall()
    base.close()
    assert together[0][0] == alone[0][0] + 4


def test_hostile_markers_enclose_every_launch(tmp_path: Path) -> None:
    path = hostile_markers(tmp_path, tmp_path / "proof")
    names = {name for *_, name, _ in nsys_oracle.innermost(path)}
    assert "ProfilerStep#" in names
    assert nsys_oracle.query(path, "SELECT max(length(value)) FROM StringIds")[0][0] >= 10_000
    assert VERSIONS[-1] == NEWEST
