"""Valid but odd JSON, generated: every event is found or counted, and every time is exact, however the file is cut."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tracekit
from tracekit.errors import UnreadableTraceError
from tracekit.readers.kineto import reader, source
from tracekit.readers.kineto import vocabulary as words
from tracekit.readers.kineto.pool import decode_block
from tracekit.trace import Trace

TRICKY = (
    "},{",
    '"',
    "\\",
    "},\n{",
    '"traceEvents": [',
    "]}",
    "{",
    "\\ud83d",
    "\ud83d",
    "é漢😀",
    "NaN",
    "\x7f",
    "\u2028",
    "N/A",
)
CATEGORIES = (
    "cpu_op",
    "Operator",
    "user_annotation",
    "cuda_runtime",
    "kernel",
    "gpu_memcpy",
    "cuda_sync",
    "python_function",
)
ODD_CATEGORIES = ("Trace", "gpu_user_annotation", "never heard of", "", None)

texts = st.lists(st.sampled_from(TRICKY) | st.text(max_size=4), max_size=4).map("".join)
numbers = (
    st.integers(-5, 10**6) | st.integers(2**62, 2**70) | st.floats(allow_nan=False, allow_infinity=False)
)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
many_objects = st.integers(1, 90).map(lambda n: [{"name": "},{", "ph": i} for i in range(n)])
argument_keys = st.sampled_from(
    ["correlation", "External id", "device", "stream", "Input Dims", "grid", "layer", "bytes", "odd"]
)
arguments = st.dictionaries(argument_keys, values | many_objects, max_size=4) | values


def written_time(ns: int) -> st.SearchStrategy[str]:
    """The ways in which one time may be written: plain, quoted, with zeros behind, with an exponent."""
    sign, digits = "-" if ns < 0 else "", f"{abs(ns) // 1000}.{abs(ns) % 1000:03d}"
    plain = sign + digits
    forms = [plain, f"{plain}000", f'"{plain}"', f"{ns}e-3", f"{Decimal(ns) / 1000:E}"]
    return st.sampled_from(forms + ([str(ns // 1000)] * 3 if ns % 1000 == 0 else []))


times = (st.integers(0, 10**12) | st.integers(-(10**6), 10**6) | st.integers(0, 2**61)).flatmap(written_time)
unreadable = st.sampled_from(
    ["null", "true", '"N/A"', '""', "[1]", '"1e999999"', "99999999999999999999", "1e300"]
)
whitespace = st.sampled_from(["", "", " ", "\n  ", "\r\n", "\t\t"])


@st.composite
def events(draw: st.DrawFn) -> str:
    fields: dict[str, str] = {
        "ph": json.dumps(draw(st.sampled_from("XXXXXXXXMCiRsbz"))),
        "cat": json.dumps(draw(st.sampled_from(CATEGORIES) | st.sampled_from(ODD_CATEGORIES))),
        "name": json.dumps(draw(texts | numbers | st.none()), ensure_ascii=draw(st.booleans())),
        "pid": json.dumps(draw(st.integers(-1, 9) | texts)),
        "tid": json.dumps(draw(st.integers(0, 2**70) | st.just("616") | texts)),
        "ts": draw(times | times | times | unreadable),
        "dur": draw(times | unreadable),
        "args": json.dumps(draw(arguments)),
    }
    extra = draw(st.dictionaries(texts.map(lambda t: f"x{t}"), values, max_size=2))
    fields |= {key: json.dumps(value) for key, value in extra.items()}
    left_out = draw(st.sets(st.sampled_from(["cat", "name", "pid", "tid", "dur", "args"]), max_size=2))
    pairs = [(key, value) for key, value in fields.items() if key not in left_out]
    if draw(st.booleans()):
        pairs = draw(st.permutations(pairs))
    if draw(st.booleans()):
        pairs += pairs[:1]  # a key that is there twice, with the same value
    gap = draw(whitespace)
    inner = f"{gap},{gap}".join(f"{json.dumps(key)}{gap}:{gap}{value}" for key, value in pairs)
    return "{" + gap + inner + gap + "}"


@st.composite
def files(draw: st.DrawFn) -> str:
    gap = draw(whitespace)
    array = f"[{gap}" + f"{gap},{gap}".join(draw(st.lists(events(), min_size=1, max_size=12))) + f"{gap}]"
    mark = draw(st.sampled_from(["", "", "\ufeff", "\n"]))
    if draw(st.integers(0, 4)) == 0:
        return mark + array + gap
    keys = st.sampled_from(["schemaVersion", "traceName", "distributedInfo", "nested", 'a"traceEvents'])
    odd = values | st.just({"traceEvents": [{"ph": "X", "ts": 1}]}) | st.just([{"traceEvents": []}] * 9)
    before, after = draw(st.dictionaries(keys, odd)), draw(st.dictionaries(keys, odd))
    pairs = [(k, json.dumps(v)) for k, v in before.items()]
    pairs += [("traceEvents", array)] + [(k, json.dumps(v)) for k, v in after.items()]
    return (
        mark + "{" + gap + f"{gap},{gap}".join(f"{json.dumps(k)}{gap}:{gap}{v}" for k, v in pairs) + gap + "}"
    )


def expected_ns(time: object) -> int | None:
    if isinstance(time, bool) or not isinstance(time, int | Decimal | str):
        return None
    try:
        value = Decimal(time)
    except ArithmeticError:
        return None
    return int(value * 1000) if value.is_finite() and abs(value) <= 3 * 10**15 else None


class InThisProcess:
    """A pool of helpers that decodes here, so that hundreds of files take seconds."""

    depth = 2

    def submit(self, text: bytes, end: int) -> Future[bytes]:
        answer: Future[bytes] = Future()
        answer.set_result(decode_block(text[:end]))
        return answer


@contextmanager
def fake_pool(_plain_bytes: int) -> Iterator[InThisProcess]:
    yield InThisProcess()


def rows_of(trace: Trace) -> Counter[int]:
    """The absolute start of every X event that was read, but those of unknown places."""
    frames = [trace.host, trace.device, *([trace.syncs] if trace.syncs is not None else [])]
    return Counter(start + trace.meta.origin_ns for frame in frames for start in frame["start"].to_list())


BLOCKS = st.sampled_from([64, 200, 1000, 5000, 8 << 20])


@pytest.mark.slow
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=files(), block_bytes=BLOCKS, pool=st.booleans())
def test_every_event_of_a_valid_file_is_read_or_counted(
    pool: bool, text: str, block_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    read_and_check(text, block_bytes, tmp_path_factory, pool=pool)


@pytest.mark.slow
@pytest.mark.parametrize("pool", [False, True])
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=files(), block_bytes=BLOCKS)
def test_every_event_of_many_valid_files_is_read_or_counted(
    pool: bool, text: str, block_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    read_and_check(text, block_bytes, tmp_path_factory, pool=pool)


def read_and_check(
    text: str, block_bytes: int, tmp_path_factory: pytest.TempPathFactory, *, pool: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "BLOCK_BYTES", block_bytes)
        if pool:
            patch.setattr(reader, "decoder_pool", fake_pool)
        path = tmp_path_factory.mktemp("t") / "t.json"
        # A half of a surrogate pair is legal only as an escape.
        path.write_bytes(text.encode("utf-8", "replace"))
        check(path, text)


def check(path: Path, text: str) -> None:
    parsed: Any = json.loads(path.read_bytes().decode("utf-8-sig"), parse_float=Decimal)
    all_events = parsed if isinstance(parsed, list) else parsed["traceEvents"]
    complete = [e for e in all_events if e["ph"] == "X"]
    if all(isinstance(event.get("dur"), bool | list) for event in all_events):
        with pytest.raises(
            UnreadableTraceError, match=r"no event can be read .*; give a PyTorch-profiler trace"
        ):
            tracekit.read(path)
        return
    trace = tracekit.read(path)
    found = dict(trace.health.select("kind", "count").iter_rows())
    kept = [e for e in complete if e.get("cat") not in words.DROPPED_CATEGORIES]
    starts = Counter(ns for e in kept if (ns := expected_ns(e["ts"])) is not None)
    assert "truncated_file" not in found, text
    lost = starts - rows_of(trace)
    assert rows_of(trace) <= starts
    assert lost.total() <= found.get("malformed_event", 0) + found.get("absurd_time", 0), (lost, found)
    assert trace.meta.event_count + found.get("malformed_event", 0) == len(all_events), (
        found,
        trace.meta.event_count,
        len(all_events),
    )
    for frame in (trace.host, trace.device):
        assert not frame.filter(pl.col("duration") < 0).height
