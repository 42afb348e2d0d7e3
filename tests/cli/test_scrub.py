"""`tracekit scrub`: nothing private is left in the bytes of the copy, and nothing that an analysis needs is lost."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paths import PUBLIC_NSYS
from private_nsys import FOLDER, HOME, HOST, PLANTED, SHOWN, TOKEN, USER, WORDS, private_export
from same_frames import assert_same_frames
from synthetic import nsys_odd
from synthetic.nsys_export import PID, write_sqlite
from synthetic.nsys_layered import Style, both, shape_of, training
from synthetic.nsys_odd import MAIN, small
from synthetic.nsys_schema import VERSIONS

import tracekit
from tracekit.cli.main import main
from tracekit.errors import TracekitError, UnreadableTraceError, UsageError
from tracekit.scrub import scrub
from tracekit.scrub.words import MARKER
from tracekit.scrub.write import SqliteWriter


def ask(path: Path, sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as file:
        return file.execute(sql).fetchall()


def names_in(path: Path) -> set[str]:
    (trace,) = tracekit.read_all(path)
    return set(trace.host["name"].cast(pl.String))


def standing_in(data: bytes) -> list[str]:
    """What of the words, and of what was planted, stands in these bytes, in any case of letters."""
    lower = data.lower()
    found = [word for word in WORDS if word.encode() in lower]
    return found + sorted({match.decode() for match in re.findall(rf"{PLANTED}(?:\d{{3}})?".encode(), lower)})


@pytest.fixture
def private(tmp_path: Path) -> Path:
    private_export(tmp_path / "in.sqlite")
    return tmp_path / "in.sqlite"


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return write_sqlite(small(launches=40), tmp_path / "in.sqlite")


# -- what is left out --------------------------------------------------------------------------------


def test_nothing_private_is_left_in_the_bytes(tmp_path: Path) -> None:
    """A word of its own stands in every column of every table, in the schema and in free pages."""
    before, after = tmp_path / "in.sqlite", tmp_path / "out.sqlite"
    planted = private_export(before)
    data = before.read_bytes()
    assert set(standing_in(data)) >= {*WORDS, *planted.values(), PLANTED}
    scrub(before, after)
    shown = {word for place, word in planted.items() if re.match(SHOWN, place)}
    assert set(standing_in(after.read_bytes())) <= shown
    assert len(shown) == 6
    assert before.read_bytes() == data
    assert {path.name for path in tmp_path.iterdir()} == {"in.sqlite", "out.sqlite"}
    assert_same_frames(before, after)


def test_the_copy_is_made_of_plain_tables(private: Path, tmp_path: Path) -> None:
    scrub(private, tmp_path / "out.sqlite")
    assert {kind for (kind,) in ask(tmp_path / "out.sqlite", "SELECT type FROM sqlite_master")} == {"table"}
    assert ask(tmp_path / "out.sqlite", "PRAGMA freelist_count") == [(0,)]
    assert ask(tmp_path / "out.sqlite", "PRAGMA integrity_check") == [("ok",)]


def test_names_that_no_runtime_gave_a_thread(tmp_path: Path) -> None:
    program, other = small(), PID + 5
    for number, name in enumerate((f"{USER}-loader", "pt_autograd_3", "kworker/0:1-own", "python3.11")):
        program.thread(name, tid=number)
        program.nvtx(
            39, f"nvtx {USER}" if number else "MPI Rank 7", 0, None, tid=100 + number, registered=number < 3
        )
        program.thread(name, tid=number, pid=other)
    scrub(write_sqlite(program, tmp_path / "in.sqlite"), tmp_path / "out.sqlite")
    (trace,) = tracekit.read_all(tmp_path / "out.sqlite")
    assert trace.threads["name"].cast(pl.String).to_list() == [
        *("MPI Rank 7", "thread", "thread", "thread", "thread", "pt_autograd_3", "thread", "python3.11"),
    ]
    assert trace.meta.rank == 7
    assert ask(tmp_path / "out.sqlite", "SELECT count(*) FROM ThreadNames") == [(4,)]
    assert not any(
        USER.encode() in data or b"kworker" in data for data in [(tmp_path / "out.sqlite").read_bytes()]
    )


@pytest.mark.slow
def test_rows_of_programs_without_device_work_are_left_out(tmp_path: Path) -> None:
    program, other = small(), PID + 5
    program.push_pop("zqprivate range", 5, 9, tid=1, pid=other)
    program.os_call("zqprivate_call", 5, 9, tid=1, pid=other)
    program.sample(["zqprivate_function", "main"], 5, tid=1, pid=other)
    program.sample(["run", "main"], 6, tid=MAIN)
    before = write_sqlite(program, tmp_path / "in.sqlite")
    scrub(before, tmp_path / "out.sqlite")
    assert standing_in((tmp_path / "out.sqlite").read_bytes()) == []
    assert_same_frames(before, tmp_path / "out.sqlite")


@pytest.mark.slow
def test_private_words_and_home_folders_in_names_are_replaced_and_nothing_else_of_them(
    tmp_path: Path,
) -> None:
    names = {
        f"load {HOME}/a.pt": "load ~/a.pt",
        f"epoch of {USER.upper()} on {HOST}": f"epoch of {MARKER} on {MARKER}",
        f"{FOLDER}/train.py:30": f"{MARKER}/train.py:30",
        f"key {TOKEN}, 4 tokens": f"key {MARKER}, 4 tokens",
        "open /home/somebody/x": "open ~/x",
        "/Users/someone/y": "~/y",
        r"C:\Users\anyone\z": r"~\z",
        '{"a": "C:\\\\Users\\\\anyone\\\\z"}': '{"a": "~\\\\z"}',
        "Läufe von Özgür": "Läufe von Özgür",
        "x" * 9_000 + USER: "x" * 9_000 + MARKER,
        "the users/home page": "the users/home page",
    }
    before, after = tmp_path / "in.sqlite", tmp_path / "out.sqlite"
    private_export(before, list(names))
    scrub(before, after)
    assert names_in(after) >= set(names.values())
    assert not set(standing_in(after.read_bytes())) & set(WORDS)
    assert b"some" not in after.read_bytes().replace(b"something", b"")
    old, new = tracekit.read(before), tracekit.read(after)
    assert old.host.drop("name").equals(new.host.drop("name"))


@pytest.mark.slow
def test_common_names_of_users_are_not_torn_from_names(tmp_path: Path) -> None:
    rows = "".join(
        f"INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_{key}', '{value}');"
        for key, value in (
            ("USER", "root"),
            ("HOST", "model"),
            ("USER", "abc"),
            ("HOST", "1234"),
            ("USER", ""),
        )
    )
    before, after = tmp_path / "in.sqlite", tmp_path / "out.sqlite"
    private_export(before, ["model.forward", "root", "abc 1234"], script=rows)
    scrub(before, after)
    assert_same_frames(before, after)


@pytest.mark.slow
def test_a_host_that_is_called_as_its_device_is(tmp_path: Path) -> None:
    before, after = tmp_path / "in.sqlite", tmp_path / "out.sqlite"
    row = "INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_HOST', 'a100')"
    private_export(before, ["on A100"], script=row)
    scrub(before, after)
    assert tracekit.read(after).meta.devices == tracekit.read(before).meta.devices
    assert f"on {MARKER}" in names_in(after)
    scrub(before, after, replace=["SXM4"])
    assert tracekit.read(after).meta.devices[0].name == f"NVIDIA A100-{MARKER}-40GB"


@pytest.mark.quick(1)
@pytest.mark.parametrize("host", ["192.168.10.12", "nid00001.cluster.example.org", "NID00001", "Özgür"])
def test_a_host_by_address_in_any_language_with_and_without_its_domain(tmp_path: Path, host: str) -> None:
    row = f"INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_HOST', '{host}')"
    before, after = tmp_path / "in.sqlite", tmp_path / "out.sqlite"
    label = host.lower() if host[0].isdigit() else host.lower().split(".")[0]
    private_export(before, [f"rank 3 on {label}"], script=row)
    scrub(before, after)
    assert f"rank 3 on {MARKER}" in names_in(after)


@pytest.mark.slow
def test_further_words_are_replaced_and_others_kept(tmp_path: Path) -> None:
    before, after = tmp_path / "in.sqlite", tmp_path / "out.sqlite"
    private_export(before, ["Moonbase alpha", f"by {USER}", "streamId of globalTid (a|b)"])
    scrub(before, after, replace=["moonbase", "globalTid", "gemm", "export", "(a|b)"], keep=[USER])
    assert {f"{MARKER} alpha", f"by {USER}", f"streamId of {MARKER} {MARKER}"} <= names_in(after)
    trace = tracekit.read(after)
    assert f"{MARKER}<float>" in set(trace.device["name"].cast(pl.String))
    assert trace.meta.producer == tracekit.read(before).meta.producer
    for text in ("", "ab", "scrub", "BED]"):
        with pytest.raises(UsageError, match="cannot be replaced"):
            scrub(before, after, replace=[text])


SECRET = st.text("abcdefghijkmnpqrstuvwxyz0123456789-_.", min_size=6, max_size=24).map(
    lambda text: f"{PLANTED}{text}"
)
FORMS = ("{}", "/home/{}/x", "USER={}", "A=1;TOKEN={};B=2", "C:\\Users\\{}\\x", "{}\nmore")


@pytest.mark.slow
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(SECRET, st.sampled_from(FORMS), st.integers(0, 10**6)), min_size=1, max_size=8))
def test_random_secrets_in_random_cells_are_not_in_the_copy(
    private: Path, tmp_path: Path, plants: list[tuple[str, str, int]]
) -> None:
    """In any cell of what is not a name, numbers included."""
    named = r"^(NVTX_EVENTS\.(text|jsonText)|StringIds\.\w+|ThreadNames\.nameId|MPI_RANKS|notes\.id)$"
    changed, after = tmp_path / "changed.sqlite", tmp_path / "out.sqlite"
    changed.write_bytes(private.read_bytes())
    with closing(sqlite3.connect(changed)) as base:
        cells = [
            (table, column)
            for (table,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            for _, column, *_, key in base.execute(f"PRAGMA table_info({table})").fetchall()
            if not key
            and not table.startswith("sqlite_")
            and not re.match(f"{SHOWN}|{named}", f"{table}.{column}")
        ]
        for secret, form, at in plants:
            table, column = cells[at % len(cells)]
            base.execute(f"UPDATE {table} SET {column} = ?", (form.format(secret),))
        base.commit()
    scrub(changed, after)
    assert not [secret for secret, *_ in plants if secret.encode() in after.read_bytes()]


# -- what is kept ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("path", PUBLIC_NSYS, ids=lambda path: path.stem)
@pytest.mark.sampled(4)
def test_frames_and_sums_of_public_exports_are_the_same(path: Path, tmp_path: Path) -> None:
    after = tmp_path / "out.sqlite"
    scrub(path, after)
    assert_same_frames(path, after, threads=False)
    kernels = (
        "SELECT s.value, count(*), sum(k.end - k.start) FROM CUPTI_ACTIVITY_KIND_KERNEL k "
        "JOIN StringIds s ON s.id = k.demangledName GROUP BY 1 ORDER BY 1"
    )
    assert ask(after, kernels)
    assert ask(after, kernels) == ask(path, kernels)
    environment = ask(path, "SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'DeviceEnvironment'")
    pieces = [piece for (text,) in environment for piece in re.split("[;\0]", str(text)) if len(piece) > 20]
    data = after.read_bytes()
    assert pieces
    assert not [piece for piece in pieces if piece.encode() in data]
    processes = {name for (name,) in ask(path, "SELECT name FROM PROCESSES") if len(str(name)) > 9}
    assert not [name for name in processes - {"nsys-launcher"} if str(name).encode() in data]


@pytest.mark.slow
@pytest.mark.parametrize("path", PUBLIC_NSYS, ids=lambda path: path.stem)
@pytest.mark.sampled(4)
def test_reports_of_public_exports_are_the_same(path: Path, tmp_path: Path) -> None:
    (tmp_path / "scrubbed").mkdir()
    scrub(path, tmp_path / "scrubbed" / path.name)
    told = []
    for source in (path, tmp_path / "scrubbed" / path.name):
        assert run("report", str(source), "-o", str(tmp_path / "report.json")) == 0
        whole = json.loads((tmp_path / "report.json").read_text("utf-8"))
        for report in whole.get("reports", [whole]):
            del report["trace"]["size_bytes"], report["health"]
        told.append(whole)
    assert told[0] == told[1]


@pytest.mark.quick(1)
@pytest.mark.parametrize("version", VERSIONS)
def test_frames_of_every_version_of_the_schema_are_the_same(version: str, tmp_path: Path) -> None:
    first = training(1, shape_of("capture"), Style(marks="capture"))
    second = training(
        2, shape_of("dict"), Style(marks="dict", whole_graphs=True, backtraces=True, pid=PID + 9)
    )
    before = write_sqlite(both(first, second).program, tmp_path / "in.sqlite", version)
    scrub(before, tmp_path / "out.sqlite")
    assert_same_frames(before, tmp_path / "out.sqlite")
    assert b"secret-" not in (tmp_path / "out.sqlite").read_bytes()


HOSTILE = (
    *(
        "a_view_without_end",
        "a_computed_column",
        "a_computed_name",
        "kernels_without_row_ids",
        "strings_twice",
    ),
    *("texts_where_numbers_belong", "parquet_of_other_types", "write_ahead_log"),
)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "name",
    [*HOSTILE, *(pytest.param(name, marks=pytest.mark.slow) for name in nsys_odd.ODD if name not in HOSTILE)],
)
@pytest.mark.sampled(4)
def test_odd_exports_are_read_alike_or_refused(name: str, tmp_path: Path) -> None:
    before = nsys_odd.ODD[name](tmp_path)
    try:
        scrub(before, tmp_path / "out")
    except TracekitError:
        assert not (tmp_path / "out").exists()
        with pytest.raises(TracekitError):
            tracekit.read_all(before)
    else:
        if name in nsys_odd.READABLE:
            assert_same_frames(before, tmp_path / "out")


@pytest.mark.slow
def test_payloads_in_binary_form_are_read_alike(tmp_path: Path) -> None:
    program, key = small(), {"domainId": 1, "schemaId": 9}
    program.domain(1, "NCCL", 0, tid=MAIN)
    program.add("NVTX_PAYLOAD_SCHEMAS", **key, type=1, numEntries=1, payloadSize=8)
    program.add(
        "NVTX_PAYLOAD_SCHEMA_ENTRIES", **key, idx=0, type=18, name="Message size [bytes]", offset=None
    )
    data = b"".join(number.to_bytes(8, "little") for number in (1, 9, 8, 32, 3 << 30))
    program.push_pop("ncclAllReduce", 500, 600, tid=MAIN, domain=1, binaryData=data)
    program.push_pop("ncclAllReduce", 700, 800, tid=MAIN, domain=1, binaryData=b"zqprivate" + data[9:])
    before = write_sqlite(program, tmp_path / "in.sqlite")
    scrub(before, tmp_path / "out.sqlite")
    assert_same_frames(before, tmp_path / "out.sqlite")
    collectives = tracekit.read(tmp_path / "out.sqlite").collectives
    assert collectives is not None
    assert collectives["elements_in"].to_list() == [3 << 30, None]
    assert standing_in((tmp_path / "out.sqlite").read_bytes()) == []


def test_a_second_time_changes_nothing(private: Path, tmp_path: Path) -> None:
    scrub(private, tmp_path / "once.sqlite")
    done = scrub(tmp_path / "once.sqlite", tmp_path / "twice.sqlite")
    dumps = []
    for name in ("once", "twice"):
        with closing(sqlite3.connect(tmp_path / f"{name}.sqlite")) as base:
            dumps.append(list(base.iterdump()))
    assert dumps[0] == dumps[1]
    assert (done.words, done.left_out) == (0, ())


# -- files -------------------------------------------------------------------------------------------


def test_the_source_is_never_written_over(plain: Path, tmp_path: Path) -> None:
    (tmp_path / "link.sqlite").symlink_to(plain)
    os.link(plain, tmp_path / "hard.sqlite")
    before = plain.read_bytes()
    for target in (plain, tmp_path / "link.sqlite", tmp_path / "hard.sqlite"):
        with pytest.raises(UsageError, match="would replace its source"):
            scrub(plain, target)
    assert plain.read_bytes() == before


def test_a_file_that_is_there_is_replaced_and_keeps_its_mode(plain: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.sqlite"
    target.write_bytes(b"old")
    target.chmod(0o600)
    scrub(plain, target)
    assert tracekit.read(target).device.height == 41
    assert target.stat().st_mode & 0o777 == 0o600


def test_a_source_that_may_only_be_read_and_lies_where_nothing_can_be_written(
    plain: Path, tmp_path: Path
) -> None:
    shut = tmp_path / "shut"
    shut.mkdir()
    moved = plain.rename(shut / "a b#?%.sqlite")
    moved.chmod(0o400)
    shut.chmod(0o500)
    try:
        scrub(moved, tmp_path / "out.sqlite")
    finally:
        shut.chmod(0o700)
    assert [path.name for path in shut.iterdir()] == [moved.name]


def test_other_inputs_are_refused(plain: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.sqlite"
    for content in (b"", b"{}", b"SQLite format 3\0" + b"\xff" * 5000, plain.read_bytes()[:30_000]):
        (tmp_path / "other.sqlite").write_bytes(content)
        with pytest.raises(UnreadableTraceError):
            scrub(tmp_path / "other.sqlite", out)
    (tmp_path / "other.sqlite").unlink()
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as file:
        file.execute("CREATE TABLE a (b)")
    with pytest.raises(UnreadableTraceError, match="not an Nsight Systems export"):
        scrub(tmp_path / "other.sqlite", out)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnreadableTraceError, match="not a file"):
        scrub(tmp_path / "pipe", out)
    with pytest.raises(UsageError, match="folder"):
        scrub(tmp_path, out)
    with pytest.raises(UnreadableTraceError, match="no such file"):
        scrub(tmp_path / "missing.sqlite", out)
    with pytest.raises(UsageError, match=r"cannot write the copy \(No such file or directory\)"):
        scrub(plain, tmp_path / "no" / "out.sqlite")
    plain.with_name("in.sqlite-wal").write_bytes(b"x")
    with pytest.raises(UnreadableTraceError, match="is writing it"):
        scrub(plain, out)
    assert not out.exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_disk_that_is_full_leaves_nothing(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out.sqlite").write_bytes(b"old")

    def full(_self: SqliteWriter) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SqliteWriter, "end", full)
    with pytest.raises(UsageError, match=r"cannot write the copy \(No space left on device\)"):
        scrub(plain, tmp_path / "out.sqlite")
    assert (tmp_path / "out.sqlite").read_bytes() == b"old"
    assert {path.name for path in tmp_path.iterdir()} == {"in.sqlite", "out.sqlite"}


@pytest.mark.parametrize("seed", range(6))
def test_damage_is_one_error_or_a_whole_copy(plain: Path, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    data = bytearray(plain.read_bytes())
    for _ in range(chance.randrange(1, 40)):
        at = chance.randrange(100, len(data))
        data[at : at + 8] = chance.randbytes(8)
    plain.write_bytes(data)
    (tmp_path / "out.sqlite").write_bytes(b"old")
    try:
        scrub(plain, tmp_path / "out.sqlite")
    except UnreadableTraceError:
        assert (tmp_path / "out.sqlite").read_bytes() == b"old"
    else:
        assert ask(tmp_path / "out.sqlite", "PRAGMA integrity_check") == [("ok",)]
    assert {path.name for path in tmp_path.iterdir()} == {"in.sqlite", "out.sqlite"}


def big(path: Path, rows: int) -> Path:
    script = (
        f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) INSERT INTO NVTX_EVENTS "
        f"(start, end, eventType, text, globalTid) SELECT i, i + 1, 59, 'x' || i, {PID << 24} FROM n"
    )
    private_export(path, script=script)
    return path


@pytest.mark.slow
def test_ctrl_c_ends_a_long_copy_and_leaves_nothing(tmp_path: Path) -> None:
    source = big(tmp_path / "in.sqlite", 300_000)

    def interrupt(table: str) -> None:
        if table == "NVTX_EVENTS":
            threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start()

    with pytest.raises(KeyboardInterrupt):
        scrub(source, tmp_path / "out.sqlite", progress=interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["in.sqlite"]


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    measured = []
    for rows in (150_000, 750_000):
        source = big(tmp_path / f"{rows}.sqlite", rows)
        script = (
            "import resource, sys; from tracekit.scrub import scrub; scrub(sys.argv[1], sys.argv[2]);"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
        )
        words = [sys.executable, "-c", script, str(source), str(tmp_path / "out.sqlite")]
        measured.append(int(subprocess.run(words, check=True, capture_output=True, text=True).stdout))
    assert measured[1] < measured[0] + 100_000  # kB; some pages of the reader's, not a million rows


# -- the command -------------------------------------------------------------------------------------


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(words)
    return int(left.value.code or 0)


def test_the_command_says_what_it_kept_and_left_out(
    private: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out.sqlite")
    assert run("scrub", str(private), out, "--replace", "ProfilerStep", "--keep", HOST) == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert re.search(r"^OSRT_API +1 of 2 +4 of 10$", told.out, re.MULTILINE)
    assert re.search(r"^StringIds +\d+ of \d+ +2 of 2 +1$", told.out, re.MULTILINE)
    assert re.search(r"^\d+ tables left out: .*PROCESSES.*, notes$", told.out, re.MULTILINE)
    assert standing_in(told.out.encode()) == []
    assert "ProfilerStep#0" not in names_in(tmp_path / "out.sqlite")
    assert run("scrub", str(private), str(private)) == 2
    assert run("scrub", str(tmp_path / "missing"), str(tmp_path / "x")) == 3
    assert run("scrub", str(private)) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("tracekit: error: ") for line in lines)
    assert "--dry-run" in lines[-1]
