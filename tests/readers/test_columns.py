"""Typed columns from untyped JSON: exact times, tolerant numbers."""

from __future__ import annotations

from decimal import Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.readers.kineto import columns


def text_of(ns: int) -> str:
    sign = "-" if ns < 0 else ""
    return f"{sign}{abs(ns) // 1000}.{abs(ns) % 1000:03d}"


@given(st.lists(st.integers(0, 2**43 * 1000 - 1), min_size=1, max_size=30))
def test_a_double_below_two_to_the_43_keeps_every_ns(times: list[int]) -> None:
    """Kineto's times since its base: a factor of 1000 and a rounding must not move a single ns."""
    values = [float(text_of(ns)) for ns in times]
    assert columns.nanoseconds(values).to_list() == times
    assert [columns._exact(value) for value in values] == times


@pytest.mark.slow
@given(st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=30))
def test_text_keeps_every_ns_of_any_time(times: list[int]) -> None:
    raws = [msgspec.Raw(text_of(ns).encode()) for ns in times]
    assert columns.nanoseconds(raws).to_list() == times


@given(st.lists(st.integers(-(10**15), 10**15), min_size=1, max_size=30))
def test_whole_and_quoted_microseconds(times: list[int]) -> None:
    assert columns.nanoseconds(times).to_list() == [t * 1000 for t in times]
    assert columns.nanoseconds([str(t) for t in times]).to_list() == [t * 1000 for t in times]


def test_odd_texts() -> None:
    raws = [
        msgspec.Raw(t) for t in (b"1.5e3", b'"12.345"', b"null", b"", b"1e400", b"7", b"0.0000", b'"N/A"')
    ]
    expected = [1_500_000, 12_345, None, None, None, 7000, 0, None]
    assert columns.nanoseconds(raws).to_list() == expected


def test_mixed_types_in_one_column() -> None:
    assert columns.nanoseconds([1, 2.5, "3.25", None, True]).to_list() == [1000, 2500, 3250, None, None]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (7, 7),
        ("7", 7),
        ("stream 7", 7),
        ("0x1f", 31),
        ("0x", None),
        ("N/A", None),
        ("", None),
        (None, None),
        (True, None),
        (2.0, 2),
        (float("inf"), None),
        (2**64 - 1, -1),
        (2**70, None),
        ("-3", -3),
        ("12.0", 12),
    ],
)
def test_integers(value: object, expected: int | None) -> None:
    assert columns.integers([value, "pad"]).to_list() == [expected, None]


@pytest.mark.parametrize("others", [[], ["text"], [7, None]])
def test_a_number_is_the_same_thread_whatever_the_others_are(others: list[object]) -> None:
    """Beyond 64 bits it is like a text; alone it was none."""
    for value in (5, -1, 2**63, 2**64 - 1, 2**70, "7", "Spans", ""):
        assert columns.identities([value, *others])[0] == columns.identity(value)


def test_integers_alone_use_the_fast_path() -> None:
    assert columns.integers([1, None, -5]).to_list() == [1, None, -5]


def test_addresses_of_64_bits_stay_distinct() -> None:
    got = columns.integers([2**63, 2**63 + 1, 2**64 - 1]).to_list()
    assert len(set(got)) == 3
    assert None not in got


def test_raw_texts_tell_absent_from_empty() -> None:
    raws = [msgspec.Raw(b"[]"), msgspec.Raw(), msgspec.Raw(b'""'), msgspec.Raw(b"[\n  [2,\n 3]\n]")]
    assert columns.raw_texts(raws).cast(str).to_list()[:3] == ["[]", None, '""']
    assert msgspec.json.decode(columns.raw_texts(raws)[3]) == [[2, 3]]


def test_floats() -> None:
    assert columns.floats([1, 2.5, None]).to_list() == [1.0, 2.5, None]
    assert columns.floats(["3.5", "N/A", 1]).to_list() == [3.5, None, 1.0]


def test_decimal_reference() -> None:
    """The example that a double cannot hold: an absolute epoch in µs with ns."""
    text = "1695835542514261.123"
    assert columns.nanoseconds([msgspec.Raw(text.encode())]).to_list() == [int(Decimal(text) * 1000)]
    assert columns.nanoseconds([float(text)]).to_list() != [int(Decimal(text) * 1000)]


def test_times_beyond_64_bits_are_unreadable_not_wrapped() -> None:
    """10¹⁷ µs times 1000 wraps around in 64 bits and would become a plausible negative time."""
    assert columns.nanoseconds([10**17, 1]).to_list() == [None, 1000]
    assert columns.nanoseconds([10**30, None]).to_list() == [None, None]
    assert columns.nanoseconds([1e17, 2.5]).to_list() == [None, 2500]
    assert columns.nanoseconds([float("inf"), 2.5]).to_list() == [None, 2500]
    assert columns.nanoseconds([float("nan"), 2.5]).to_list()[1] == 2500
