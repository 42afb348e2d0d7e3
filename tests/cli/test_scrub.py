"""`tracekit scrub`: nothing private is left in the bytes of the copy, and nothing that an analysis needs is lost."""

from __future__ import annotations

import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paths import PUBLIC_NSYS
from polars.testing import assert_frame_equal
from private_nsys import (
    FOLDER,
    HOME,
    HOST,
    LEFT_OUT,
    LOOKED_FOR,
    USER,
    Export,
    add_oddities,
    export,
)
from same_frames import assert_same_frames
from synthetic.nsys_export import write_sqlite
from synthetic.nsys_layered import Style, shape_of, training
from synthetic.nsys_schema import VERSIONS

import tracekit
from tracekit.cli.main import main
from tracekit.errors import TracekitError, UnreadableTraceError, UsageError
from tracekit.scrub import Scrubbed, scrub
from tracekit.scrub import copy as scrub_copy
from tracekit.scrub.private_names import MARKER


def standing_in(path: Path, values: tuple[str, ...]) -> list[str]:
    data = path.read_bytes().lower()
    return [value for value in values if value.lower().encode() in data]


def ask(path: Path, sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as file:
        return file.execute(sql).fetchall()


@pytest.fixture
def private(tmp_path: Path) -> Path:
    made = export()
    add_oddities(made)
    return made.write(tmp_path / "in.sqlite")


def test_nothing_private_is_left_in_the_bytes(private: Path, tmp_path: Path) -> None:
    everything = (*LOOKED_FOR, *LEFT_OUT)
    assert standing_in(private, everything) == list(everything)
    before = private.read_bytes()
    scrub(private, tmp_path / "out.sqlite")
    assert standing_in(tmp_path / "out.sqlite", everything) == []
    assert private.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"in.sqlite", "out.sqlite"}


def test_frames_are_the_same(tmp_path: Path) -> None:
    before = export().write(tmp_path / "in.sqlite")
    scrub(before, tmp_path / "out.sqlite")
    assert_same_frames(before, tmp_path / "out.sqlite")
    trace = tracekit.read(tmp_path / "out.sqlite")
    assert trace.device.height == 6
    for frame in (trace.samples, trace.os_calls, trace.counters):
        assert frame is not None
        assert frame.height > 0


@pytest.mark.parametrize("path", PUBLIC_NSYS, ids=lambda path: path.stem)
def test_frames_and_sums_of_public_exports_are_the_same(path: Path, tmp_path: Path) -> None:
    after = tmp_path / "out.sqlite"
    scrub(path, after)
    assert_same_frames(path, after)
    sums = (
        "SELECT s.value, count(*), sum(k.end - k.start) FROM CUPTI_ACTIVITY_KIND_KERNEL k "
        "JOIN StringIds s ON s.id = k.demangledName GROUP BY 1 ORDER BY 1",
        "SELECT s.value, count(*), sum(r.end - r.start) FROM CUPTI_ACTIVITY_KIND_RUNTIME r "
        "JOIN StringIds s ON s.id = r.nameId GROUP BY 1 ORDER BY 1",
        "SELECT coalesce(n.text, s.value), count(*), sum(n.end - n.start) FROM NVTX_EVENTS n "
        "LEFT JOIN StringIds s ON s.id = n.textId GROUP BY 1 ORDER BY 1",
    )
    for sql in sums:
        found = ask(after, sql)
        assert found
        assert found == ask(path, sql)
    environment = ask(path, "SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'DeviceEnvironment'")
    pieces = [piece for (text,) in environment for piece in str(text).split(";") if len(piece) > 20]
    assert pieces
    assert standing_in(after, tuple(pieces)) == []
    assert ask(after, "SELECT value FROM StringIds WHERE value LIKE '%/lib/%'") == []


def test_rows_of_events_are_counted_and_ordered_as_before(private: Path, tmp_path: Path) -> None:
    scrub(private, tmp_path / "out.sqlite")
    for table in (
        "NVTX_EVENTS",
        "CUPTI_ACTIVITY_KIND_KERNEL",
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        "COMPOSITE_EVENTS",
    ):
        sql = f"SELECT rowid, start FROM {table} ORDER BY rowid"
        assert ask(tmp_path / "out.sqlite", sql) == ask(private, sql)


def test_the_copy_is_made_of_plain_tables(private: Path, tmp_path: Path) -> None:
    scrub(private, tmp_path / "out.sqlite")
    listed = ask(tmp_path / "out.sqlite", "SELECT type, name, sql FROM sqlite_master")
    assert {kind for kind, name, _ in listed if not str(name).startswith("sqlite_autoindex")} == {"table"}
    assert "notes" not in {name for _, name, _ in listed}
    assert ask(tmp_path / "out.sqlite", "PRAGMA freelist_count") == [(0,)]
    assert ask(tmp_path / "out.sqlite", "PRAGMA integrity_check") == [("ok",)]
    assert ask(tmp_path / "out.sqlite", "SELECT count(*) FROM NVTX_EVENTS") == [(4,)]


def test_versions_are_kept_and_the_rest_of_the_metadata_is_marked(private: Path, tmp_path: Path) -> None:
    scrub(private, tmp_path / "out.sqlite")
    kept = dict(ask(tmp_path / "out.sqlite", "SELECT name, value FROM META_DATA_EXPORT"))
    assert kept == {
        "EXPORT_PRODUCT_NAME": "NVIDIA Nsight Systems",
        "EXPORT_PRODUCT_VERSION": "2025.3.1.90",
        "EXPORT_SCHEMA_VERSION": "3.20.2",
        "EXPORT_SCHEMA_VERSION_MAJOR": "3",
        "EXPORT_PLATFORM": MARKER,
        "EXPORT_HOST": MARKER,
        "EXPORT_USER": MARKER,
        "EXPORT_PARAM_INPUT_PATH_ABS": MARKER,
    }
    environment = ask(tmp_path / "out.sqlite", "SELECT devStateName, name, value FROM TARGET_INFO_SYSTEM_ENV")
    assert environment == [("", "NvDriverVersion", "550.54.15"), ("", "CpuCores", "64")]
    capture = ask(tmp_path / "out.sqlite", "SELECT name, value FROM META_DATA_CAPTURE")
    assert capture == [("CAPTURE_EVENT_TYPE", "Cuda"), ("PROCESS_0:COLLECT_NVTX_TRACE", "true")]
    gpu = ask(
        tmp_path / "out.sqlite",
        "SELECT name, chipName, smCount, uuid, busLocation, luid FROM TARGET_INFO_GPU",
    )
    assert gpu == [("NVIDIA A100-SXM4-40GB", "GA100", 108, None, None, None)]


def test_everything_that_was_lost_is_named(private: Path, tmp_path: Path) -> None:
    done = scrub(private, tmp_path / "out.sqlite")
    told = {(one.table, one.column): (one.rows, one.what) for one in done.removed}
    assert told["notes", None] == (1, "table left out")
    assert told["lookalike", None] == (0, "view left out")
    assert told["spoil", None] == (0, "trigger left out")
    assert told["ProcessStreams", None] == (1, "rows left out")
    assert told["PROCESSES", "name"] == (1, "emptied")
    assert told["CUPTI_ACTIVITY_KIND_KERNEL", "remark"] == (6, "emptied")
    assert told["NVTX_EVENTS", "binaryData"] == (3, "emptied")
    assert told["StringIds", "value"] == (1, "paths cut to the name of the file")
    assert told["META_DATA_EXPORT", "value"] == (4, f"replaced by {MARKER}")
    assert done.bytes_after == (tmp_path / "out.sqlite").stat().st_size


def test_values_in_names_are_replaced_and_nothing_else_of_them(tmp_path: Path) -> None:
    names = [
        f"load {HOME}/a.pt",
        f"epoch of {USER.upper()} on {HOST}",
        f"{FOLDER}/train.py:30",
        "plain name",
        "x" * 9_000 + USER,
        f"{USER} 12.8.0 false",
    ]
    before = export(names=names).write(tmp_path / "in.sqlite")
    done = scrub(before, tmp_path / "out.sqlite")
    trace = tracekit.read(tmp_path / "out.sqlite")
    shown = set(trace.host["name"].cast(pl.String))
    assert shown >= {
        f"load {MARKER}/a.pt",
        f"epoch of {MARKER} on {MARKER}",
        f"{MARKER}/train.py:30",
        "plain name",
        "x" * 9_000 + MARKER,
        f"{MARKER} 12.8.0 false",
    }
    assert standing_in(tmp_path / "out.sqlite", LOOKED_FOR) == []
    assert sum(one.rows for one in done.removed if one.what == "values in names replaced") == 5
    old = tracekit.read(before)
    assert_frame_equal(old.host.drop("name"), trace.host.drop("name"), categorical_as_str=True)


def test_text_that_is_no_utf8_is_kept_and_searched(tmp_path: Path) -> None:
    made = export(names=["replace me", "a", "b", "replace me too"])
    broken = b"caf\xe9 of " + USER.encode()
    made.odd.append(
        f"UPDATE NVTX_EVENTS SET text = CAST(x'{broken.hex()}' AS TEXT) WHERE text = 'replace me'"
    )
    made.odd.append(
        f"UPDATE StringIds SET value = CAST(x'{broken.hex()}' AS TEXT) WHERE value = 'replace me too'"
    )
    before = made.write(tmp_path / "in.sqlite")
    scrub(before, tmp_path / "out.sqlite")
    data = (tmp_path / "out.sqlite").read_bytes()
    assert data.count(b"caf\xe9 of " + MARKER.encode()) == before.read_bytes().count(b"caf\xe9") >= 1
    assert USER.encode() not in data


def test_a_home_folder_in_a_name_is_replaced_even_of_a_user_that_is_told_nowhere(tmp_path: Path) -> None:
    before = export(names=["open /home/somebody/x", "/Users/someone/y", r"C:\Users\anyone\z", "a"]).write(
        tmp_path / "in.sqlite"
    )
    scrub(before, tmp_path / "out.sqlite")
    assert standing_in(tmp_path / "out.sqlite", ("somebody", "someone", "anyone")) == []


def test_letters_of_any_language_are_found(tmp_path: Path) -> None:
    made = export(names=["a", "Läufe von Özgür", "b", "ÖZGÜR, Özgür"])
    made.add("META_DATA_EXPORT", name="EXPORT_USER", value="Özgür")
    before = made.write(tmp_path / "in.sqlite")
    scrub(before, tmp_path / "out.sqlite")
    names = set(tracekit.read(tmp_path / "out.sqlite").host["name"].cast(pl.String))
    assert f"Läufe von {MARKER}" in names
    assert "Özgür".encode() not in (tmp_path / "out.sqlite").read_bytes()


@pytest.mark.parametrize("host", ["192.168.10.12", "nid00001.cluster.example.org", "NID00001"])
def test_a_host_is_found_by_address_with_and_without_its_domain(tmp_path: Path, host: str) -> None:
    label = host if host[0].isdigit() else "nid00001"
    made = export(names=["a", f"rank 3 on {label}"])
    made.add("META_DATA_EXPORT", name="EXPORT_HOST", value=host)
    scrub(made.write(tmp_path / "in.sqlite"), tmp_path / "out.sqlite")
    assert f"rank 3 on {MARKER}" in set(tracekit.read(tmp_path / "out.sqlite").host["name"].cast(pl.String))


def test_common_words_are_not_torn_from_names(tmp_path: Path) -> None:
    made = export(names=["model.forward", "root", "train step 3"])
    for table, name, value in (
        ("META_DATA_EXPORT", "EXPORT_USER", "root"),
        ("META_DATA_EXPORT", "EXPORT_HOST", "model"),
        ("META_DATA_CAPTURE", "PROCESS_0:WORKING_DIR", "/usr"),
        ("META_DATA_CAPTURE", "PROCESS_0:USER_NAME", "abc"),
    ):
        made.add(table, name=name, value=value)
    before = made.write(tmp_path / "in.sqlite")
    done = scrub(before, tmp_path / "out.sqlite")
    assert_same_frames(before, tmp_path / "out.sqlite")
    assert done.common == {"user": 2, "host": 1}


def test_further_texts_are_replaced_and_others_kept(tmp_path: Path) -> None:
    before = export(names=["Moonbase alpha", f"by {USER}"]).write(tmp_path / "in.sqlite")
    scrub(before, tmp_path / "out.sqlite", replace=["moonbase"], keep=[USER])
    names = set(tracekit.read(tmp_path / "out.sqlite").host["name"].cast(pl.String))
    assert {f"{MARKER} alpha", f"by {USER}"} <= names


def test_what_is_asked_for_may_be_the_name_of_a_column(tmp_path: Path) -> None:
    before = export(names=["a", "streamId of globalTid", "b", "gemm"]).write(tmp_path / "in.sqlite")
    scrub(before, tmp_path / "out.sqlite", replace=["globalTid", "gemm", "eam", "export"])
    trace = tracekit.read(tmp_path / "out.sqlite")
    assert trace.device.height == 6
    assert f"str{MARKER}Id of {MARKER}" in set(trace.host["name"].cast(pl.String))
    assert f"void {MARKER}<0>(float*)" in set(trace.device["name"].cast(pl.String))
    assert trace.meta.producer == tracekit.read(before).meta.producer
    for text in ("", "ab", "scrub", "BED]"):
        with pytest.raises(UsageError, match="cannot be replaced"):
            scrub(before, tmp_path / "out.sqlite", replace=[text])


def test_a_host_that_is_called_as_a_platform_is(tmp_path: Path) -> None:
    made = export(names=["a", "on linux-desktop"])
    for name in ("EXPORT_PLATFORM", "EXPORT_HOST"):
        made.add("META_DATA_EXPORT", name=name, value="linux-desktop")
    before = made.write(tmp_path / "in.sqlite")
    assert scrub(before, tmp_path / "out.sqlite").common == {"host": 1}
    assert_same_frames(before, tmp_path / "out.sqlite")


@pytest.mark.parametrize("checked", ["bytes", "texts"])
def test_a_short_value_that_slipped_through_is_told_from_chance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: str
) -> None:
    made = export(names=["a", "by Tamsin"])
    made.add("META_DATA_EXPORT", name="EXPORT_USER", value="Tamsin")
    before, real = made.write(tmp_path / "in.sqlite"), scrub_copy.occurring
    asked: list[set[str]] = []

    def forgetful(texts: Iterator[pl.Series], values: Iterable[str]) -> set[str]:
        found = real(texts, values)
        asked.append(found)
        return found if checked == "texts" and set(values) == {"Tamsin"} else found - {"Tamsin"}

    monkeypatch.setattr(scrub_copy, "occurring", forgetful)
    if checked == "bytes":
        scrub(before, tmp_path / "out.sqlite")  # as if the bytes stood in numbers
    else:
        with pytest.raises(TracekitError, match="1 values that were removed still stand"):
            scrub(before, tmp_path / "out.sqlite")
    assert asked[-1] <= {"Tamsin"}


def test_a_table_or_column_that_is_named_after_someone_is_left_out(tmp_path: Path) -> None:
    made = export()
    made.odd += [
        f"CREATE TABLE CUDA_{USER.upper()}_EVENTS (start INTEGER)",
        f"ALTER TABLE OSRT_API ADD COLUMN {USER}Id INTEGER",
    ]
    before = made.write(tmp_path / "in.sqlite")
    done = scrub(before, tmp_path / "out.sqlite")
    assert standing_in(tmp_path / "out.sqlite", (USER,)) == []
    told = {one.what for one in done.removed if MARKER in (one.table, one.column)}
    assert told == {"table left out", "column left out"}


SECRET = st.text("abcdefghijkmnpqrstuvwxyz0123456789-_.", min_size=6, max_size=24).map(
    lambda text: f"zQ{text}jX"
)
PRIVATE_PLACES = (
    *("ANALYSIS_FILE.filename", "ANALYSIS_FILE.content", "PROCESSES.name", "DIAGNOSTIC_EVENT.text"),
    *("TARGET_INFO_SYSTEM_ENV.devStateName", "TARGET_INFO_SYSTEM_ENV.name", "TARGET_INFO_SYSTEM_ENV.value"),
    *("TARGET_INFO_SESSION_START_TIME.utcTime", "TARGET_INFO_SESSION_START_TIME.localTime"),
    *("TARGET_INFO_NIC_INFO.name", "TARGET_INFO_GPU.busLocation", "TARGET_INFO_GPU.uuid"),
    *("TARGET_INFO_GPU.ctxswDevPath", "META_DATA_CAPTURE.name", "META_DATA_CAPTURE.value"),
    *("META_DATA_EXPORT.name", "META_DATA_EXPORT.value", "NVTX_EVENTS.binaryData", "GENERIC_EVENTS.data"),
    *("NVTX_EVENTS.rangeId", "CUPTI_ACTIVITY_KIND_KERNEL.registersPerThread", "TARGET_INFO_GPU.luid"),
)
FORMS = (
    "{}",
    "/home/{}/x",
    "USER={}",
    "A=1;TOKEN={};B=2",
    "https://{}.example/",
    "C:\\Users\\{}\\x",
    "{}\nmore",
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(SECRET, st.sampled_from(PRIVATE_PLACES), st.sampled_from(FORMS)),
        min_size=1,
        max_size=6,
    ),
    st.lists(st.tuples(SECRET, st.sampled_from(("EXPORT_HOST", "EXPORT_USER"))), max_size=2),
    st.integers(0, 2**32),
)
def test_random_secrets_in_random_places_are_not_in_the_copy(
    tmp_path: Path, plants: list[tuple[str, str, str]], told: list[tuple[str, str]], seed: int
) -> None:
    chance = random.Random(seed)
    made = export(names=[f"work of {secret}" for secret, _ in told])
    for secret, place, form in plants:
        table, column = place.split(".")
        made.odd.append(
            f"UPDATE {table} SET {column} = '{form.format(secret)}' "
            f"WHERE rowid = (SELECT rowid FROM {table} ORDER BY rowid LIMIT 1 OFFSET {chance.randrange(3)}) "
            f"OR rowid = (SELECT min(rowid) FROM {table})"
        )
        made.text(f"{form.format(secret)} in a string of its own")
    for secret, name in told:
        made.add("META_DATA_EXPORT", name=name, value=secret)
    before, after = made.write(tmp_path / "in.sqlite"), tmp_path / "out.sqlite"
    scrub(before, after)
    secrets = tuple(secret for secret, *_ in (*plants, *told))
    assert set(standing_in(before, secrets)) == set(secrets)
    assert standing_in(after, secrets) == []
    if not told and not any(place.startswith(("META", "CUPTI")) for _, place, _ in plants):
        assert_same_frames(before, after)


def test_the_source_is_never_written_over(private: Path, tmp_path: Path) -> None:
    (tmp_path / "link.sqlite").symlink_to(private)
    os.link(private, tmp_path / "hard.sqlite")
    before = private.read_bytes()
    for target in (private, tmp_path / "link.sqlite", tmp_path / "hard.sqlite"):
        with pytest.raises(UsageError, match="would replace its source"):
            scrub(private, target)
    assert private.read_bytes() == before


def test_a_file_that_is_there_is_replaced_and_keeps_its_mode(private: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.sqlite"
    target.write_bytes(b"old")
    target.chmod(0o600)
    scrub(private, target)
    assert tracekit.read(target).device.height == 6
    assert target.stat().st_mode & 0o777 == 0o600


def test_a_source_that_may_only_be_read_and_lies_where_nothing_can_be_written(
    private: Path, tmp_path: Path
) -> None:
    shut = tmp_path / "shut"
    shut.mkdir()
    moved = private.rename(shut / "a b#?%.sqlite")
    moved.chmod(0o400)
    shut.chmod(0o500)
    try:
        scrub(moved, tmp_path / "out.sqlite")
    finally:
        shut.chmod(0o700)
    assert [path.name for path in shut.iterdir()] == [moved.name]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "no SQLite database"),
        (b"{}", "no SQLite database"),
        (b"SQLite format 3\0" + b"\xff" * 5000, "cannot read it"),
    ],
)
def test_what_is_no_database_is_one_error_and_no_file(tmp_path: Path, content: bytes, fault: str) -> None:
    (tmp_path / "in.sqlite").write_bytes(content)
    with pytest.raises(UnreadableTraceError, match=fault):
        scrub(tmp_path / "in.sqlite", tmp_path / "out.sqlite")
    assert [path.name for path in tmp_path.iterdir()] == ["in.sqlite"]


def test_a_truncated_export_is_an_error_and_leaves_the_old_copy(private: Path, tmp_path: Path) -> None:
    private.write_bytes(private.read_bytes()[:30_000])
    (tmp_path / "out.sqlite").write_bytes(b"old")
    with pytest.raises(UnreadableTraceError):
        scrub(private, tmp_path / "out.sqlite")
    assert (tmp_path / "out.sqlite").read_bytes() == b"old"
    assert {path.name for path in tmp_path.iterdir()} == {"in.sqlite", "out.sqlite"}


def test_other_inputs_are_refused(private: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as file:
        file.execute("CREATE TABLE a (b)")
    with pytest.raises(UnreadableTraceError, match="no export of Nsight Systems"):
        scrub(tmp_path / "other.sqlite", tmp_path / "out.sqlite")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnreadableTraceError, match="no file"):
        scrub(tmp_path / "pipe", tmp_path / "out.sqlite")
    with pytest.raises(UsageError, match="folder"):
        scrub(tmp_path, tmp_path / "out.sqlite")
    with pytest.raises(UnreadableTraceError, match="cannot be opened"):
        scrub(tmp_path / "missing.sqlite", tmp_path / "out.sqlite")
    with pytest.raises(UsageError, match="cannot write"):
        scrub(private, tmp_path / "no" / "out.sqlite")
    private.with_name("in.sqlite-wal").write_bytes(b"x")
    with pytest.raises(UnreadableTraceError, match="being written"):
        scrub(private, tmp_path / "out.sqlite")
    assert not (tmp_path / "out.sqlite").exists()


def test_a_value_that_still_stands_in_the_copy_is_an_error(
    private: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = export(names=["a", f"by {USER} on {HOST}"]).write(tmp_path / "in.sqlite")
    monkeypatch.setattr(scrub_copy, "occurring", lambda _texts, _values: set())
    with pytest.raises(TracekitError, match="still stand in the copy"):
        scrub(made, tmp_path / "out.sqlite")
    assert {path.name for path in tmp_path.iterdir()} == {"in.sqlite"}


def big(path: Path, rows: int) -> Path:
    made = export()
    made.odd.append(
        f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) "
        f"INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid) SELECT i, i + 1, 59, 'x' || i, 1 FROM n"
    )
    return made.write(path)


def test_ctrl_c_ends_a_long_copy_and_leaves_nothing(tmp_path: Path) -> None:
    source = big(tmp_path / "in.sqlite", 300_000)

    def interrupt(table: str) -> None:
        if table == "NVTX_EVENTS":
            threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start()

    with pytest.raises(KeyboardInterrupt):
        scrub(source, tmp_path / "out.sqlite", progress=interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["in.sqlite"]


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    measured = []
    for rows in (10_000, 400_000):
        source = big(tmp_path / f"{rows}.sqlite", rows)
        script = (
            "import resource, sys; from tracekit.scrub import scrub; scrub(sys.argv[1], sys.argv[2]);"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
        )
        words = [sys.executable, "-c", script, str(source), str(tmp_path / "out.sqlite")]
        measured.append(int(subprocess.run(words, check=True, capture_output=True, text=True).stdout))
    assert measured[1] < measured[0] + 60_000  # kB; a page of texts and SQLite's own cache, not 400,000 rows


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(words)
    return int(left.value.code or 0)


def test_the_command_says_what_it_left_out(
    private: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("scrub", str(private), str(tmp_path / "out.sqlite"), "--replace", "forward") == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert re.search(r"^notes +table left out \(1\)$", told.out, re.MULTILINE)
    assert re.search(r"^NVTX_EVENTS.binaryData +emptied \(3\)$", told.out, re.MULTILINE)
    assert not [value for value in (*LOOKED_FOR, *LEFT_OUT) if value in told.out]
    assert "forward" not in set(tracekit.read(tmp_path / "out.sqlite").host["name"].cast(pl.String))
    assert run("scrub", str(private), str(private)) == 2
    assert run("scrub", str(tmp_path / "missing"), str(tmp_path / "x")) == 3
    assert all(line.startswith("tracekit: error: ") for line in capsys.readouterr().err.splitlines())


def test_a_second_time_changes_nothing(private: Path, tmp_path: Path) -> None:
    scrub(private, tmp_path / "once.sqlite")
    done = scrub(tmp_path / "once.sqlite", tmp_path / "twice.sqlite")
    assert_same_frames(tmp_path / "once.sqlite", tmp_path / "twice.sqlite")
    assert isinstance(done, Scrubbed)
    assert done.values == 0
    assert {one.what for one in done.removed} <= {f"replaced by {MARKER}"}


def test_the_made_export_is_what_it_says() -> None:
    made = export()
    assert isinstance(made, Export)
    assert len(made.rows["CUPTI_ACTIVITY_KIND_KERNEL"]) == 6


def test_what_is_no_utf8_is_read_alike_before_and_after(tmp_path: Path) -> None:
    made = export(names=["a", "b"])
    made.odd.append("UPDATE NVTX_EVENTS SET text = CAST(x'636166e9' AS TEXT) WHERE text IS NOT NULL")
    before = made.write(tmp_path / "in.sqlite")
    scrub(before, tmp_path / "out.sqlite")
    assert_same_frames(before, tmp_path / "out.sqlite")
    trace = tracekit.read(before)
    assert "caf\ufffd" in set(trace.host["name"].cast(pl.String))
    assert "invalid_utf8" in set(trace.health["kind"])


def test_a_later_version_of_the_schema_loses_only_what_is_new(tmp_path: Path) -> None:
    made = export()
    made.odd += [
        "ALTER TABLE StringIds ADD COLUMN origin TEXT DEFAULT 'weird text'",
        "ALTER TABLE OSRT_API ADD COLUMN depth INTEGER DEFAULT 7",
        "CREATE TABLE CUDA_LATER_EVENTS (start INTEGER NOT NULL, nameId INTEGER, hint TEXT NOT NULL)",
        "INSERT INTO CUDA_LATER_EVENTS VALUES (5, 1, 'weird text')",
    ]
    before = made.write(tmp_path / "in.sqlite")
    scrub(before, tmp_path / "out.sqlite")
    assert_same_frames(before, tmp_path / "out.sqlite")
    assert ask(tmp_path / "out.sqlite", "SELECT start, nameId, hint FROM CUDA_LATER_EVENTS") == [(5, 1, "")]
    assert ask(tmp_path / "out.sqlite", "SELECT depth FROM OSRT_API") == [(7,)]
    assert standing_in(tmp_path / "out.sqlite", ("weird text",)) == []


def test_texts_where_numbers_belong_are_as_if_they_were_not_captured(tmp_path: Path) -> None:
    made = export()
    made.odd += [
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'soon' WHERE rowid = 1",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET demangledName = 'a name', streamId = x'00ff' WHERE rowid = 2",
        "UPDATE NVTX_EVENTS SET text = x'00ff00' WHERE rowid = 3",
    ]
    before = made.write(tmp_path / "in.sqlite")
    scrub(before, tmp_path / "out.sqlite")
    assert_same_frames(before, tmp_path / "out.sqlite")


def test_an_export_without_strings(tmp_path: Path) -> None:
    made = export()
    made.odd.append("DROP TABLE StringIds")
    before = made.write(tmp_path / "in.sqlite")
    scrub(before, tmp_path / "out.sqlite")
    assert_same_frames(before, tmp_path / "out.sqlite")


@pytest.mark.parametrize("seed", range(60))
def test_damage_is_one_error_or_a_whole_copy(private: Path, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    data = bytearray(private.read_bytes())
    for _ in range(chance.randrange(1, 40)):
        at = chance.randrange(100, len(data))
        data[at : at + 8] = chance.randbytes(8)
    private.write_bytes(data)
    try:
        scrub(private, tmp_path / "out.sqlite")
    except UnreadableTraceError:
        assert not (tmp_path / "out.sqlite").exists()
    else:
        assert ask(tmp_path / "out.sqlite", "PRAGMA integrity_check") == [("ok",)]
    assert {path.name for path in tmp_path.iterdir()} <= {"in.sqlite", "out.sqlite"}


@pytest.mark.parametrize("version", VERSIONS)
def test_frames_of_every_version_of_the_schema_are_the_same(version: str, tmp_path: Path) -> None:
    program = training(1, shape_of("capture"), Style(marks="capture")).program
    before = write_sqlite(program, tmp_path / "in.sqlite", version)
    scrub(before, tmp_path / "out.sqlite")
    assert_same_frames(before, tmp_path / "out.sqlite")
    assert b"secret-user" not in (tmp_path / "out.sqlite").read_bytes()
