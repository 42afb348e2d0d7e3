"""Inputs that were made to hang, crash or mislead the reader, each named after what it once did."""

from __future__ import annotations

import contextlib
import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import tracekit
from tracekit.errors import TracekitError
from tracekit.readers import cache
from tracekit.readers.kineto import columns, salvage, source
from tracekit.readers.kineto.records import ExactEvent
from tracekit.trace import Trace

EVENT = '{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":%d,"dur":1}'
HEAD = '{"traceEvents":['
TIMES = 100
"""An attack may cost so many times the processor time of an ordinary file of its size; before, each took minutes."""


def read_text(tmp_path: Path, text: str) -> Trace:
    path = tmp_path / "t.json"
    path.write_text(text)
    return tracekit.read(path)


def found(trace: Trace) -> dict[str, int]:
    return dict(trace.health.select("kind", "count").iter_rows())


def kernel(**fields: object) -> str:
    event = {"ph": "X", "cat": "kernel", "name": "k", "ts": 2, "dur": 5, "args": {"device": 0, "stream": 7}}
    return json.dumps(event | fields)


SLOW: dict[str, Callable[[int], str]] = {
    "an_open_string_of_escaped_quotes": lambda n: HEAD + EVENT % 1 + ',{"ph":"X","name":"' + '\\"' * (10 * n),
    "names_that_never_end": lambda n: HEAD + EVENT % 1 + ',{"ph":"X",' + '"name":"' * n + "}]}",
    "numbers_between_events": lambda n: HEAD + ",1,".join(EVENT % i for i in range(n)) + "]}",
    "broken_events_without_a_cut": lambda n: HEAD + ",".join(['{"ph":"X","ts":1]'] * n) + "]}",
    "lists_that_stay_open": lambda n: HEAD + ",".join(['{"ph":"X","a":[{"b":1},{"c":2}'] * (n // 8)) + "]}",
    "braces_that_stay_open": lambda n: HEAD + ",".join(['{"a":{"b":{"name":"x"}'] * (n // 8)) + "]}",
    "event_arrays_in_the_header": lambda n: (
        "{" + ",".join(f'"x{i}":{{"traceEvents":[]}}' for i in range(n)) + f',"traceEvents":[{EVENT % 1}]}}'
    ),
    "a_category_for_every_event": lambda n: (
        HEAD + ",".join((EVENT % i).replace("cpu_op", f"c{i}") for i in range(n)) + "]}"
    ),
    "labels_that_grow": lambda n: (
        HEAD
        + ",".join(
            f'{{"ph":"M","name":"process_labels","pid":1,"args":{{"labels":"label {i}"}}}}' for i in range(n)
        )
        + "]}"
    ),
    "exponents_written_out": lambda n: (
        HEAD + ",".join(['{"ph":"X","cat":"cpu_op","ts":"1e999990"}'] * (n // 100)) + "]}"
    ),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("attack", SLOW)
def test_time_grows_no_faster_than_the_file(attack: str, tmp_path: Path) -> None:
    text = SLOW[attack](20_000)
    ordinary = HEAD + ",".join(EVENT % i for i in range(len(text) // len(EVENT) + 1)) + "]}"
    usual = max(cost(tmp_path, ordinary), 0.05)
    assert cost(tmp_path, text) < TIMES * usual


def cost(tmp_path: Path, text: str) -> float:
    """Seconds of the processor."""
    began = time.process_time()
    with contextlib.suppress(TracekitError):  # that it is unreadable is an answer
        read_text(tmp_path, text)
    return time.process_time() - began


@pytest.mark.slow
def test_gzip_members_of_one_byte_are_read_together(tmp_path: Path) -> None:
    text = HEAD + ",".join(EVENT % i for i in range(300)) + "]}"
    path = tmp_path / "t.json.gz"
    path.write_bytes(b"".join(gzip.compress(text[i : i + 1].encode()) for i in range(len(text))))
    with contextlib.closing(source.Source(path)) as opened:
        assert len(list(opened.blocks())) == 1
    assert tracekit.read(path).host.height == 300


@pytest.mark.parametrize("ts", ['"9e999999999"', '"1e400"', '"NaN"', '"\u0661\u0662"', "1e300", "null"])
def test_a_time_that_is_none_costs_its_event_alone(ts: str, tmp_path: Path) -> None:
    odd = f'{{"ph":"X","cat":"cpu_op","name":"odd","pid":1,"tid":1,"ts":{ts},"dur":1}}'
    exact = EVENT.replace("%d", "1700000000000000.125")
    trace = read_text(tmp_path, f"{HEAD}{exact},{odd}]}}")
    assert "a" in trace.host["name"].to_list()
    lost = found(trace).get("event_without_time", 0) + found(trace).get("absurd_time", 0)
    assert trace.host.height + lost == 2


def test_sixteen_digits_of_microseconds_do_not_wrap_around() -> None:
    import msgspec

    raws = [
        msgspec.Raw(text) for text in (b"9999999999999999", b"-9999999999999999", b"1700000000000000.125")
    ]
    assert columns.nanoseconds(raws).to_list() == [None, None, 1_700_000_000_000_000_125]
    assert columns.times(raws).to_list() == [None, None, 1_700_000_000_000_000_125]


def test_times_that_no_clock_shows_do_not_overflow(tmp_path: Path) -> None:
    trace = read_text(
        tmp_path, f"{HEAD}{EVENT % 9_000_000_000_000_000},{EVENT % -9_000_000_000_000_000},{EVENT % 1}]}}"
    )
    assert trace.host["start"].to_list() == [0]
    assert found(trace)["event_without_time"] == 2


@pytest.mark.quick(12)
@pytest.mark.parametrize("value", ["9" * 5000, 10**30, -(10**30), 1e300, [], {"a": 1}, True, "", "\x00"])
@pytest.mark.parametrize(
    "key",
    ["pid", "tid", "correlation", "device", "stream", "External id", "registers per thread"],
)
def test_numbers_of_any_size_and_type(key: str, value: object, tmp_path: Path) -> None:
    if key in ("pid", "tid"):
        text = kernel(**{key: value})
    else:
        text = kernel(args={"device": 0, "stream": 7} | {key: value})
    trace = read_text(tmp_path, f"{HEAD}{EVENT % 1},{text}]}}")
    assert trace.device.height + found(trace).get("malformed_event", 0) == 1


def test_an_event_without_a_name_has_one_that_says_so(tmp_path: Path) -> None:
    assert read_text(tmp_path, f"{HEAD}{kernel(name=None)}]}}").device["name"].to_list() == ["(no name)"]


def test_sizes_of_a_device_that_was_not_asked_are_unknown_not_zero(tmp_path: Path) -> None:
    device = '{"id":0,"name":"x","numSms":0,"warpSize":-1,"totalGlobalMem":1' + "0" * 400 + "}"
    trace = read_text(tmp_path, f'{{"deviceProperties":[{device}],"traceEvents":[{kernel()}]}}')
    (info,) = trace.meta.devices
    assert (info.sm_count, info.warp_size, info.memory_bytes) == (None, None, None)


@pytest.mark.quick(8)
@pytest.mark.parametrize(
    "key", ["schemaVersion", "layers", "distributedInfo", "deviceProperties", "a version"]
)
@pytest.mark.parametrize("depth", [500, 900, 960, 5000])
def test_headers_nested_to_any_depth(key: str, depth: int, tmp_path: Path) -> None:
    text = f'{{"{key}":{"[" * depth}{"]" * depth},"traceEvents":[{EVENT % 1}]}}'
    try:
        assert read_text(tmp_path, text).host.height == 1
    except TracekitError as error:
        assert "before the first event" in str(error)  # noqa: PT017 - either answer is right


@pytest.mark.quick(5)
@pytest.mark.parametrize("block_bytes", [64, 200, 1000])
@pytest.mark.parametrize("objects", [4, 200])
def test_objects_in_arguments_at_the_end_of_a_block(
    objects: int, block_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event was cut in pieces, and each piece counted as an event of its own."""
    monkeypatch.setattr(source, "BLOCK_BYTES", block_bytes)
    inner = ",".join(f'{{"name":"x","ph":"X","ts":{i}}}' for i in range(objects))
    events = [(EVENT % i)[:-1] + f',"args":{{"a":[{inner}]}}}}' for i in range(5)]
    trace = read_text(tmp_path, HEAD + ",\n".join(events) + "]}")
    assert (trace.meta.event_count, trace.host.height) == (5, 5)
    assert set(found(trace)) == {"unknown_rank"}


def test_half_of_a_surrogate_pair_costs_no_event(tmp_path: Path) -> None:
    """Python writes it for a file name that is no UTF-8: valid JSON, which the decoder refuses."""
    inner = ",".join(f'{{"name":"{i}"}}' for i in range(9))
    events = [
        (EVENT % i).replace('"a"', '"\\udc80 \\ud83d\\ude00"')[:-1] + f',"args":{{"a":[{inner}]}}}}'
        for i in range(3)
    ]
    trace = read_text(tmp_path, HEAD + ",".join(events) + "]}")
    assert trace.host["name"].to_list() == ["\ufffd 😀"] * 3
    assert found(trace)["invalid_utf8"] == 3


def test_a_well_formed_event_of_odd_types_is_left_out_not_repaired(tmp_path: Path) -> None:
    """The repair of names swallowed the fields behind a name in the arguments, the odd one among them."""
    odd = '{"ts":7,"x":{"name":"b","y":1},"dur":true,"z":"","cat":"cpu_op","ph":"X"}'
    trace = read_text(tmp_path, f"{HEAD}{EVENT % 1},{odd}]}}")
    assert found(trace) == {"malformed_event": 1, "unknown_rank": 1}


def test_a_broken_last_event_is_no_truncation(tmp_path: Path) -> None:
    trace = read_text(tmp_path, f'{HEAD}{EVENT % 1},{{"ph":1,"x":"\\udc80"}}],"schemaVersion":1}}')
    assert set(found(trace)) == {"malformed_event", "invalid_utf8", "unknown_rank"}
    assert trace.meta.format_version == "1"


def test_a_second_event_array_is_told(tmp_path: Path) -> None:
    trace = read_text(tmp_path, f'{HEAD}{EVENT % 1}],"traceEvents":[{EVENT % 2}]}}')
    assert found(trace)["unreadable_tail"] == 1


def test_a_key_that_ends_like_the_event_array_is_none(tmp_path: Path) -> None:
    assert read_text(tmp_path, f'{{"my\\"traceEvents":[],"traceEvents":[{EVENT % 1}]}}').host.height == 1


def test_salvage_finds_the_end_of_what_is_no_event() -> None:
    text = b'{"ph":"X","name":[{"a":1},{"ph":"X"}]}, null, [{"ph":"X"},{"ph":"X"}], "}", {"ph":"C"} ]tail'
    defects = salvage.Defects()
    records, used, ended = salvage.salvage(text, defects, ExactEvent, final=True)
    assert ([record.ph for record in records], text[used:], ended) == (["C"], b"]tail", True)
    assert defects.counts == {"malformed_event": 4}


# -- the cache ---------------------------------------------------------------------------------------------


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "t.json"
    path.write_text(f"{HEAD}{EVENT % 1},{kernel()}]}}")
    tracekit.read(path, cache=True)
    (made,) = (tmp_path / "cache").iterdir()
    return made


@pytest.mark.slow
def test_a_cache_with_any_damaged_file_is_not_used(entry: Path) -> None:
    """Parquet gives other numbers for a flipped bit, and a frame that is gone was taken for one not captured."""
    assert cache.load(entry.name, "t.json") is not None
    for file in entry.iterdir():
        whole = file.read_bytes()
        for at in range(0, len(whole), max(1, len(whole) // 40)):
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
            assert cache.load(entry.name, "t.json") is None, (file.name, at)
        for foreign in (b"", b"{}", b"[]", b"[" * 100_000, whole[:-1]):
            file.write_bytes(foreign)
            assert cache.load(entry.name, "t.json") is None, (file.name, foreign[:10])
        file.unlink()
        assert cache.load(entry.name, "t.json") is None, file.name
        file.write_bytes(whole)
    assert cache.load(entry.name, "t.json") is not None


def test_an_entry_that_was_renamed_is_not_used(entry: Path) -> None:
    """It gave the report of another trace."""
    other = entry.rename(entry.with_name("0" * 64))
    assert cache.load(other.name, "t.json") is None
    assert cache.load(other.rename(entry).name, "t.json") is not None


def test_what_another_version_read_is_not_used(entry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer reader may find more in the same file: after an upgrade, the records of kernels were missing until the cache was cleared."""
    file = entry.parent.parent / "t.json"
    tracekit.read(file, cache=True)
    assert list(entry.parent.iterdir()) == [entry]
    monkeypatch.setattr(tracekit, "__version__", "99.0")
    tracekit.read(file, cache=True)
    assert len(list(entry.parent.iterdir())) == 2


@pytest.mark.parametrize("linked", ["", "host.parquet", "meta.json", "sums.json"])
def test_links_in_the_cache_are_not_followed(linked: str, entry: Path) -> None:
    """Reading /dev/zero had no end."""
    trace = cache.load(entry.name, "t.json")
    assert trace is not None
    outside = entry.parent.parent / "outside"
    (entry / linked).rename(outside)
    (entry / linked).symlink_to(outside)
    before = sorted(outside.rglob("*"))
    assert cache.load(entry.name, "t.json") is None
    if linked:
        (entry / linked).unlink()
        (entry / linked).symlink_to("/dev/zero")
        assert cache.load(entry.name, "t.json") is None
    assert cache.store(entry.name, trace)
    assert not entry.is_symlink()
    assert cache.load(entry.name, "t.json") is not None
    assert sorted(outside.rglob("*")) == before
    assert [path.name for path in entry.parent.iterdir()] == [entry.name]


def test_what_a_user_keeps_beside_the_cache_is_never_removed(
    entry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache folder may be any folder of his; pruning once removed the oldest of whatever lay there."""
    mine = entry.parent / "thesis"
    mine.mkdir()
    (mine / "data.bin").write_bytes(b"x" * 1000)
    monkeypatch.setattr(cache, "_LIMIT_BYTES", 1)
    trace = cache.load(entry.name, "t.json")
    assert trace is not None
    assert cache.store("0" * 64, trace)
    assert not entry.exists()
    cache.clear()
    assert [path.name for path in entry.parent.iterdir()] == ["thesis"]


def test_a_user_without_a_home_has_no_cache(entry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = cache.load(entry.name, "t.json")
    assert trace is not None

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("TRACEKIT_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert cache.load(entry.name, "t.json") is None
    assert not cache.store(entry.name, trace)
