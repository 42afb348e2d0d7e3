"""Damaged and hostile files: what is readable is read and counted, the rest is one clear line."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import polars as pl
import pytest
from paths import PUBLIC, SAMPLES
from synthetic import Planted, damage, dump, dump_with_ends, generate

import tracekit
from tracekit.errors import TracekitError, UnreadableTraceError
from tracekit.limits import Limits
from tracekit.trace import Trace

STYLES = ("kineto", "compact")


@pytest.fixture(scope="module")
def truth() -> Planted:
    return generate(seed=11, steps=2, layers=2)


def kinds(trace: Trace) -> dict[str, int]:
    return dict(trace.health.select("kind", "count").iter_rows())


def read_bytes(tmp_path: Path, data: bytes, name: str = "t.json") -> Trace:
    path = tmp_path / name
    path.write_bytes(data)
    return tracekit.read(path)


@pytest.mark.quick(4)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("share", [0.5, 0.2, 0.9, 0.999])
def test_a_truncated_file_keeps_every_event_that_is_whole(
    style: str, share: float, truth: Planted, tmp_path: Path
) -> None:
    data, ends = dump_with_ends(truth, style)
    at = int(len(data) * share)
    whole = sum(end <= at for end in ends)
    trace = read_bytes(tmp_path, damage.truncate(data, at))
    assert trace.meta.event_count == whole
    assert kinds(trace)["truncated_file"] == 1


def test_an_event_of_several_kb_was_lost_where_a_look_ended_inside_a_number(tmp_path: Path) -> None:
    # The lone half of a pair makes the decoder refuse the text, so it is looked at in pieces of 4 kB, 8 kB and so on.
    for shift in range(9):
        event = '{"ph":"X","name":"a\\ud83d","ts":1,"dur":2,"args":{"pad":"{}","number":-1.25E+16}}'
        at = event.index("-1.25")
        trace = read_bytes(tmp_path, f"[{event.replace('{}', 'x' * (4096 - at + 2 - shift))}]".encode())
        assert (trace.meta.event_count, "malformed_event" in kinds(trace)) == (1, False)


@pytest.mark.slow
def test_every_cut_of_a_small_file(tmp_path: Path) -> None:
    small = generate(
        seed=1, steps=1, layers=0, warmup_ops=0, orphans=0, incidents=(), optimizer=False, graph=False
    )
    data, ends = dump_with_ends(small, "kineto")
    first = data.index(b'"traceEvents"')
    for at in range(0, len(data), max(1, len(data) // 40)):
        path = tmp_path / "t.json"
        path.write_bytes(data[:at])
        if at < first + 20:
            with pytest.raises(UnreadableTraceError):
                tracekit.read(path)
        else:
            assert tracekit.read(path).meta.event_count == sum(end <= at for end in ends)


def test_a_truncated_gz_keeps_what_was_written(truth: Planted, tmp_path: Path) -> None:
    trace = read_bytes(tmp_path, damage.truncate_gz(dump(truth), 0.6), "t.json.gz")
    assert 0 < trace.meta.event_count < len(truth.events)
    assert "truncated_file" in kinds(trace)


def test_a_wrong_checksum_loses_nothing(truth: Planted, tmp_path: Path) -> None:
    trace = read_bytes(tmp_path, damage.corrupt_gz(dump(truth)), "t.json.gz")
    assert trace.meta.event_count == len(truth.events)
    assert kinds(trace)["damaged_gzip"] == 1


@pytest.mark.quick(3)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", ["unescaped_quote", "control_characters", "not_utf8"])
def test_names_that_break_the_json_are_repaired(
    name: str, style: str, truth: Planted, tmp_path: Path
) -> None:
    broken = getattr(damage, name)(dump(truth, style), "aten::mm")
    trace = read_bytes(tmp_path, broken)
    kind = {
        "unescaped_quote": "unescaped_quote",
        "control_characters": "control_character",
        "not_utf8": "invalid_utf8",
    }
    assert trace.meta.event_count == len(truth.events)
    count = sum(span.name == "aten::mm" for span in truth.spans)
    assert kinds(trace)[kind[name]] == count
    names = trace.host["name"].cast(pl.String)
    assert int(names.str.starts_with("aten::mm").sum()) >= count


@pytest.mark.quick(3)
@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity", "N/A", "nan", "inf"])
def test_bare_values_are_missing_values(token: str, truth: Planted, tmp_path: Path) -> None:
    data, count = damage.bare_value(dump(truth), token)
    trace = read_bytes(tmp_path, data)
    assert trace.meta.event_count == len(truth.events)
    assert kinds(trace)["bare_value"] == count


@pytest.mark.quick(4)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("kind", damage.MALFORMED)
@pytest.mark.sampled(8)
def test_one_malformed_event_costs_no_other(kind: str, style: str, truth: Planted, tmp_path: Path) -> None:
    """A 42 between two events once cost a neighbour, and deep nesting once ended in a RecursionError."""
    data, ends = dump_with_ends(truth, style)
    trace = read_bytes(tmp_path, damage.malformed(data, ends, kind))
    assert trace.device.height == len(truth.activities)
    assert len(truth.events) <= trace.meta.event_count <= len(truth.events) + 1
    if kind in damage.BREAKS_JSON:
        assert kinds(trace).get("malformed_event", 0) >= 1


def test_hostile_names_are_only_names(truth: Planted, tmp_path: Path) -> None:
    trace = read_bytes(tmp_path, dump(damage.hostile(truth)))
    assert trace.host.height == len(truth.spans)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "empty"),
        (b"\x89PNG\r\n\x1a\n....", "PNG"),
        (b"PK\x03\x04....", "the archive is damaged"),
        (b"hello", "not a JSON trace"),
        (b"{}", "no traceEvents"),
        (b'{"a": 1', "truncated or damaged"),
        (b'{"traceEvents": 5}', "no traceEvents"),
        (b"   \n ", "empty"),
        (b"\x1f\x8b\x08\x00", "gzip"),
        (gzip.compress(b"", mtime=0), "empty"),
        (b"SQLite format 3\x00", "SQLite"),
        (b"(\xb5/\xfd0000", "the archive holds no data"),
    ],
)
def test_what_is_no_trace_gives_one_clear_line(data: bytes, fault: str, tmp_path: Path) -> None:
    with pytest.raises(UnreadableTraceError, match=fault) as caught:
        read_bytes(tmp_path, data)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3


_NOBODY = 65534


def test_missing_directory_and_forbidden(tmp_path: Path) -> None:
    with pytest.raises(UnreadableTraceError, match="no such file"):
        tracekit.read(tmp_path / "nope.json")
    with pytest.raises(UnreadableTraceError, match="directory"):
        tracekit.read(tmp_path)
    with tempfile.TemporaryDirectory() as folder:  # one that others may enter, unlike pytest's
        Path(folder).chmod(0o755)
        secret = Path(folder) / "secret.json"
        secret.write_text("{}")
        secret.chmod(0)
        before = os.geteuid()
        if before == 0:  # to root nothing is forbidden
            os.seteuid(_NOBODY)
        try:
            with pytest.raises(UnreadableTraceError, match="permission"):
                tracekit.read(secret)
        finally:
            os.seteuid(before)


def test_an_empty_event_list_is_a_trace(tmp_path: Path) -> None:
    for text in (b'{"traceEvents": []}', b"[]", b'{"traceEvents": [], "x": 1}', b'{"traceEvents":[\n]\n}'):
        trace = read_bytes(tmp_path, text)
        assert trace.host.height == trace.device.height == 0
        assert "truncated_file" not in kinds(trace)


@pytest.mark.slow
def test_a_gzip_bomb_is_refused_and_the_flag_overrides(tmp_path: Path) -> None:
    bomb = damage.gzip_bomb(tmp_path / "bomb.json.gz", 40 << 20)
    with pytest.raises(UnreadableTraceError, match="--no-size-limit"):
        tracekit.read(bomb, limits=Limits(free_bytes=16 << 20))
    endless = damage.gzip_bomb(tmp_path / "endless.json.gz", 100 << 20, valid=False)
    with pytest.raises(UnreadableTraceError, match="longer than 64 MB"):
        tracekit.read(endless)
    small = damage.gzip_bomb(tmp_path / "small.json.gz", 4 << 20)
    limits = Limits(max_ratio=10, free_bytes=1 << 20)
    with pytest.raises(UnreadableTraceError, match="grows"):
        tracekit.read(small, limits=limits)
    assert (
        tracekit.read(small, limits=Limits(max_ratio=10, free_bytes=1 << 20, enforced=False)).meta.event_count
        > 9
    )


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
@pytest.mark.slow
def test_an_endless_string_does_not_fill_the_memory(tmp_path: Path) -> None:
    """A name of 256 MB once took 1.1 GB."""
    path = tmp_path / "t.json"
    with path.open("wb") as file:
        file.write(b'{"traceEvents": [{"ph": "X", "ts": 1, "dur": 1, "name": "ok"}, {"ph": "X", "name": "')
        for _ in range(256):
            file.write(b"A" * (1 << 20))
    # VmHWM, unlike ru_maxrss, does not count what the forked test process held.
    code = (
        "import sys, tracekit; t = tracekit.read(sys.argv[1]);"
        "print(next(l for l in open('/proc/self/status') if l.startswith('VmHWM')).split()[1], *t.health['kind'])"
    )
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    peak, *defects = done.stdout.split()
    assert "oversized_event" in defects
    assert int(peak) < 600 * 1024


def test_odd_arguments_of_single_events(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1.5, "dur": 2, "args": args}
        for args in (
            {"device": 0, "stream": 7, "correlation": {"a": 1}, "grid": None},
            [1, 2],
            None,
            "text",
            {"device": "0", "stream": "0x10", "correlation": "12", "grid": "1x1", "bytes": 1e300},
            {"stream": [7]},
            {"device": 10**40, "stream": 7},
        )
    ]
    events += [{"ph": "C", "name": "c", "ts": 1, "pid": 0, "args": {"v": 10**400, "w": True, "x": 2}}]
    events += [
        {"ph": "X", "cat": "cpu_op", "name": None},
        {"ph": "X"},
        {},
        {"ph": "M", "name": "thread_name", "args": 3},
    ]
    trace = read_bytes(tmp_path, json.dumps({"traceEvents": events}).encode())
    assert trace.device.height == 7
    assert trace.counters is not None
    assert trace.counters.height == 1
    assert kinds(trace)["event_without_time"] >= 2


@pytest.mark.slow
@pytest.mark.parametrize("path", [*SAMPLES[::3], *PUBLIC[:9:2]], ids=lambda p: f"{p.parent.name}-{p.name}")
@pytest.mark.sampled(4)
def test_mutated_real_traces_never_crash(path: Path, tmp_path: Path) -> None:
    """Bytes flipped, cut out, doubled and inserted: a report or one clear error, nothing else."""
    original = gzip.decompress(path.read_bytes())
    rng = random.Random(path.name)
    target = tmp_path / "t.json"
    # The structure is at both ends and in any part of the middle, so a slice of the events is enough.
    body = original[:60_000] + original[-3_000:]
    for _ in range(6):
        data = bytearray(body)
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(len(data))
            match rng.randrange(4):
                case 0:
                    data[at] = rng.randrange(256)
                case 1:
                    del data[at : at + rng.randint(1, 300)]
                case 2:
                    data[at:at] = data[at : at + rng.randint(1, 300)]
                case _:
                    data[at:at] = rng.choice(
                        [b'"', b"{", b"}", b"[", b"]", b",", b"\\", b"\x00", b"1e999", b"null", b"\xff"]
                    )
        target.write_bytes(bytes(data))
        with suppress(TracekitError):
            trace = tracekit.read(target)
            assert not (trace.host["duration"] < 0).any()
            assert not (trace.device["duration"] < 0).any()
