"""The damage functions break files in the way they say."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from . import HOSTILE, Planted, damage, dump, dump_with_ends, generate, parse


@pytest.fixture(scope="module")
def small() -> Planted:
    return generate(1, steps=1)


def test_truncation_leaves_a_known_number_of_events(small: Planted) -> None:
    data, ends = dump_with_ends(small, "kineto")
    cut = damage.truncate(data, ends[9] + 5)
    with pytest.raises(json.JSONDecodeError):
        json.loads(cut)
    whole = sum(end <= len(cut) for end in ends)
    assert whole == 10
    assert len(json.loads(cut[: ends[whole - 1]] + b"]}")["traceEvents"]) == 10


def test_cut_and_corrupt_gz(small: Planted) -> None:
    data = dump(small)
    cut = damage.truncate_gz(data)
    with pytest.raises(EOFError):
        gzip.decompress(cut)
    assert data.startswith(zlib.decompressobj(31).decompress(cut))
    with pytest.raises(gzip.BadGzipFile):
        gzip.decompress(damage.corrupt_gz(data))


@pytest.mark.parametrize("harm", [damage.unescaped_quote, damage.control_characters])
@pytest.mark.parametrize("style", ["kineto", "compact"])
def test_names_that_break_json(small: Planted, harm: Any, style: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        json.loads(harm(dump(small, style), "forward"))


def test_names_that_break_utf8(small: Planted) -> None:
    broken = damage.not_utf8(dump(small), "forward")
    with pytest.raises(UnicodeDecodeError):
        json.loads(broken)
    assert len(json.loads(broken.decode("utf-8", "replace"))["traceEvents"]) == len(small.events)
    with pytest.raises(ValueError, match="no event is named"):
        damage.not_utf8(dump(small), "no such name")


@pytest.mark.parametrize("token", damage.BARE_VALUES)
def test_bare_values(small: Planted, token: str) -> None:
    broken, count = damage.bare_value(dump(small), token)
    assert count == sum("memory bandwidth (GB/s)" in event.get("args", {}) for event in small.events) > 0

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    with pytest.raises(ValueError, match=r".+"):
        json.loads(broken, parse_constant=refuse)


@pytest.mark.parametrize("kind", damage.MALFORMED)
def test_malformed_events(small: Planted, kind: str) -> None:
    data, ends = dump_with_ends(small)
    broken = damage.malformed(data, ends, kind)
    if kind in damage.BREAKS_JSON:
        with pytest.raises(json.JSONDecodeError):
            json.loads(broken)
    elif kind != "deep":  # whose depth some decoders refuse
        assert len(json.loads(broken)["traceEvents"]) == len(small.events) + 1


@pytest.mark.slow
@pytest.mark.parametrize("valid", [True, False])
def test_a_gzip_bomb_is_small_on_disk(tmp_path: Path, valid: bool) -> None:
    path = damage.gzip_bomb(tmp_path / "bomb.json.gz", 1 << 25, valid=valid)
    assert path.stat().st_size < (1 << 25) / 200
    with gzip.open(path) as file:
        text = file.read()
    assert 1 << 24 < len(text) < 1 << 26
    assert len(json.loads(text)["traceEvents"]) > (500_000 if valid else 0)


def test_hostile_names_reach_events_and_truth(small: Planted) -> None:
    bad = damage.hostile(small)
    names = {event["name"] for event in parse(dump(bad))[0]}
    assert all(any(name.startswith(wicked) for name in names) for wicked in HOSTILE)
    assert {a.name for a in bad.activities} <= names
    assert [a.dur_ns for a in bad.activities] == [a.dur_ns for a in small.activities]
