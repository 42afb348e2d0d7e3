"""The native decoder reads what the other one reads, or leaves it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from both_ways import differences, raw_differences, read
from hammer import hammer
from hypothesis import given, settings
from mutants import make_bases, mutate
from paths import PUBLIC, SAMPLES
from real_traces import traces
from synthetic import Shape, damage, dump, dump_with_ends, generate, layered
from test_properties import files

import tracekit
from tracekit.readers.kineto import native, pool

pytestmark = pytest.mark.skipif(native.decoder is None, reason="the native decoder is not built")

EVENT = (
    b'{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1.5,"dur":2,"args":{"device":0,"stream":7}}'
)


def decoded(text: bytes) -> native.Block | None:
    return native.decode(text, len(text))


@pytest.mark.quick(4)
@pytest.mark.parametrize("path", traces(*SAMPLES, *PUBLIC))
@pytest.mark.sampled(4)
def test_real_traces_are_equal_and_read_natively(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert differences(path) == []
    # What no longer is for it would be read slowly, and nobody would notice.
    taken, decode = [], native.decode
    monkeypatch.setattr(native, "decode", lambda text, end: taken.append(decode(text, end)) or taken[-1])
    tracekit.read(path)
    assert taken
    assert all(block is not None for block in taken)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "block_bytes"),
    [*((path, 30_000) for path in SAMPLES), *((path, 1 << 20) for path in PUBLIC)],
    ids=lambda value: f"{value.parent.name}-{value.name}" if isinstance(value, Path) else str(value),
)
@pytest.mark.sampled(4)
def test_real_traces_in_small_blocks(path: Path, block_bytes: int) -> None:
    if path.stat().st_size * 12 / block_bytes > 200:
        pytest.skip("hundreds of blocks")
    assert raw_differences(path, block_bytes) == []


@pytest.mark.quick(2)
@pytest.mark.parametrize("style", ["kineto", "compact"])
@pytest.mark.parametrize("block_bytes", [5_000, 8 << 20])
def test_planted_traces(style: str, block_bytes: int, tmp_path: Path) -> None:
    planted = layered(3, Shape(checkpoint="reentrant", reduction=True)).planted
    for number, truth in enumerate((planted, generate(seed=5, steps=2, layers=2, devices=2))):
        path = tmp_path / f"{number}.json"
        path.write_bytes(dump(truth, style))
        assert raw_differences(path, block_bytes) == []
    assert differences(path, block_bytes) == []


@pytest.mark.slow
@pytest.mark.quick(5)
@pytest.mark.parametrize("kind", damage.MALFORMED)
@pytest.mark.sampled(4)
def test_damage_is_found_where_the_other_one_finds_it(kind: str, tmp_path: Path) -> None:
    data, ends = dump_with_ends(generate(seed=11, steps=1, layers=1), "compact")
    path = tmp_path / "t.json"
    path.write_bytes(damage.malformed(data, ends, kind))
    assert differences(path, 5_000) == []


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mutants") / "bases"
    make_bases(folder)
    return folder


@pytest.mark.slow
def test_mutants(bases: Path, tmp_path: Path) -> None:
    for seed in range(40):
        kind, path, block_bytes = mutate(seed, bases, tmp_path / "case")
        assert raw_differences(path, block_bytes) == [], f"seed {seed} ({kind})"


@settings(max_examples=15)
@given(text=files())
def test_odd_but_valid_json(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("odd") / "t.json"
    path.write_text(text, "utf-8", "surrogatepass")
    assert raw_differences(path, 200) == []


def test_the_last_of_two_categories_does_not_move_an_event() -> None:
    """Its arguments were read as those of the first category, whose group then came before its own: a free stood before its allocation."""
    of_memory = (
        '{"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 5.0, "args": {"Bytes": %d}%s}'
    )
    text = b", ".join(of_memory.encode() % each for each in ((256, b', "cat": "kernel"'), (-256, b"")))
    block = native.decode(text, len(text))
    assert block is not None
    assert [key for key, _ in block.groups] == [("i", "kernel"), ("i", "cpu_instant_event")]


@pytest.mark.quick(100)
@pytest.mark.parametrize(
    "number",
    [
        *("0", "-0", "0.0", "1.5", "1.0005", "2.0015", "1.50000", "-3.25", "8796093022207.9996", "8796093022208", "8796093022208.5"),
        *("1682725898236567.123", "3000000000000000", "3000000000000001", "99999999999999999999", "1e3", "1e-9", "1e99", "1e308"),
        *("1e999", '"12.5"', '" 3 "', '"0x1f"', '"stream 7"', '"N/A"', '""', "null", "true", "[1]", "{}", "01", "1.", ".5", "-"),
        *("0." + "1" * 60, "9" * 30, "9" * 5_000, '"' + "9" * 30 + '"', "NaN", '"\\u0031"', '"7"', '"-07"', "23222828810576945152"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "key", ["ts", "dur", "pid", "tid", "id", "name", "stream", "est. achieved occupancy %", "grid"]
)
@pytest.mark.sampled(8)
def test_one_odd_number(key: str, number: str, tmp_path: Path) -> None:
    """Between others, and with a start beside it that only its text holds exactly."""
    event = json.loads(EVENT)
    event["args"] |= {"est. achieved occupancy %": 50, "grid": [1, 2]}
    (event if key in ("ts", "dur", "pid", "tid", "id", "name") else event["args"])[key] = "HERE"
    odd = json.dumps(event).replace('"HERE"', number).encode()
    for other in (EVENT, EVENT.replace(b"1.5", b"1682725898236567.123")):
        path = tmp_path / "t.json"
        path.write_bytes(b'{"traceEvents":[' + b",".join([other, odd, other]) + b"]}")
        assert raw_differences(path, 8 << 20) == []


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b" ", b"{", b"}", b",", EVENT[:-1], EVENT + b",", EVENT + EVENT, b"[" + EVENT, b"3," + EVENT, b'"' * 99),
        *(b'{"a":' * 70 + b"1" + b"}" * 70, b"[" * 70, b'{"a":[1,]}', b'{"a":{"b":1,}}', b'{"a" 1}', b'{"ph":"\xff"}', b'{"ph":"\\x"}'),
        *(b'{"ph":"\\ud800"}', b'{"ph":"\\udc00\\ud800"}', b'{"ph":"a\x00"}', b'{"ph":tru}', b'{"ph":"X","name":true}', b"{'a':1}"),
        *(b'{"ph":"X","cat":"kernel","args":[]}', b'{"ph":"X","cat":"kernel","args":{"device":[]}}', b'{"p\\u0068":"X"}', b"{}"),
    ],
)  # fmt: skip
def test_what_it_leaves(text: bytes) -> None:
    assert decoded(text) is None


@pytest.mark.quick(6)
@pytest.mark.parametrize("end", range(0, len(EVENT), 3))
def test_it_never_reads_behind_the_end(end: int) -> None:
    assert native.decode(EVENT, end) is None


def test_what_it_takes() -> None:
    block = decoded(EVENT + b" ,\n" + EVENT.replace(b'"k"', b'"\\u00e9\\ud83d\\ude00"') + b"] , 5")
    assert block is not None
    assert (len(block), block.ended, len(block.groups)) == (2, True, 1)
    (key, group) = block.groups[0]
    assert key == ("X", "kernel")
    assert group.names().to_list() == ["k", "é😀"]
    assert group.times("ts").to_list() == [1_500, 1_500]


def test_wrong_arguments_of_its_functions_are_errors() -> None:
    decoder = native.decoder
    plan, _ = native._plan(native.decoder)
    for wrong in ((), (plan, "text", 1), (plan, memoryview(b"{}"), 1), (object(), b"{}", 1)):
        with pytest.raises((TypeError, ValueError)):
            decoder.decode(*wrong)
    assert decoder.decode(plan, b"{}", -1) is None
    assert decoder.decode(plan, b"{}", 3) is None
    assert decoder.decode(plan, bytearray(b"{}"), 3) is None
    field = ((b"a", 2),)
    for tables, categories, instant in (
        ([field], (), (b"i", 0)),
        ((field,), ((b"c", 0),), [b"i", 0]),
        ((field,) * 9, (), (b"i", 0)),
        ((field * 33,), (), (b"i", 0)),
        ((((b"a", 6),),), (), (b"i", 0)),
        ((((b"a" * 49, 2),),), (), (b"i", 0)),
        ((((b"", 2),),), (), (b"i", 0)),
        ((field,), ((b"c", 1),), (b"i", 0)),
        ((field,), ((b"c", 0),), (b"i", -1)),
        ((field,), ((b"c", 0),) * 65, (b"i", 0)),
    ):
        with pytest.raises((TypeError, ValueError)):
            decoder.plan(tables, categories, instant, 1)


def test_texts_with_one_hash_do_not_take_forever() -> None:
    """The hash has a seed, so names cannot be chosen for it; many names are a matter of a moment all the same."""
    names = b",".join(EVENT.replace(b'"k"', b'"k%d"' % number) for number in range(30_000))
    block = decoded(names)
    assert block is not None
    assert block.groups[0][1].names().n_unique() == 30_000


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_sanitizers_find_nothing(tmp_path: Path) -> None:
    answer = hammer(tmp_path, seconds=1)
    if "cannot find" in answer.stderr:
        pytest.skip("the compiler has no sanitizers")
    assert (answer.returncode, answer.stderr) == (0, "")
    texts, whole, events = map(int, re.findall(r"\d+", answer.stdout))
    assert texts > whole > texts // 10
    assert events > whole


@pytest.mark.slow
@pytest.mark.parametrize("switch", ["0", "1"])
def test_the_variable_turns_it_off(switch: str) -> None:
    program = "from tracekit.readers.kineto import native; print(native.decoder is None)"
    environment = {**os.environ, "TRACEKIT_NATIVE": switch, "PYTHONPATH": os.pathsep.join(sys.path)}
    answer = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
    )
    assert answer.stdout.strip() == str(switch == "0")


@pytest.mark.quick(5)
@pytest.mark.parametrize("odd", [b'"name":3', b'"name":"a"b"', b'"name":"\xff"', b'"args":[]', b'"ts":[]'])
@pytest.mark.parametrize("at", [0, 350, 700])
def test_a_block_left_by_a_thread_changes_no_other(
    at: int, odd: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks are the same with and without threads, and so is the order of rows that nothing else orders."""
    events = [EVENT.replace(b'"k"', b'"k%d"' % (number % 7)) for number in range(701)]
    events[at] = EVENT.replace(b'"name":"k"', odd)
    path = tmp_path / "t.json"
    path.write_bytes(b'{"traceEvents":[' + b",".join(events) + b'],"tail":1}')
    monkeypatch.setattr(pool, "_THREADS_WORTH_BYTES", 1)
    monkeypatch.setattr(pool.pl, "thread_pool_size", lambda: 2)
    assert differences(path, 5_000) == []


def test_the_example_of_a_replaced_character_does_not_depend_on_blocks(tmp_path: Path) -> None:
    """One of 20,500 files had another example with the decoder than without it: it was cut where a block ended."""
    events = [
        f'{{"ph": "X", "cat": "cpu_op", "name": "a{number}", "pid": 1, "tid": 1, "ts": {number}, "dur": 1}}'
        for number in range(400)
    ]
    events[200] = events[200].replace("a200", r"\udcff")
    path = tmp_path / "t.json"
    path.write_text(f'{{"traceEvents": [{", ".join(events)}]}}')
    found = set()
    for natively in (True, False):
        for size in (500, 2_000, len(", ".join(events[:201])) + 20, 8 << 20):
            trace = read(path, natively=natively, block_bytes=size)
            assert not isinstance(trace, str)
            found |= set(trace.health.filter(kind="invalid_utf8").rows())
    assert len(found) == 1
