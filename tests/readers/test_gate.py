"""Times, durations and amounts that no recording can hold are left out and counted, and nothing else is."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.health import HealthLog
from tracekit.readers.common.gate import LONGEST_NS, leave_out_absurd

UTC = 1_700_000_000_000_000_000


def gated(**columns: list[int | None]) -> tuple[pl.DataFrame, dict[str, int]]:
    raw: dict[str, pl.DataFrame | None] = {"host": pl.DataFrame(columns), "device": None}
    health = HealthLog()
    leave_out_absurd(raw, health)
    host = raw["host"]
    assert host is not None
    return host, dict(health.frame().select("kind", "count").iter_rows())


@pytest.mark.parametrize("odd", [0, -(2**62), 2**63 - 1, -(2**63), UTC + 2 * LONGEST_NS])
def test_a_time_far_from_the_others(odd: int) -> None:
    frame, lost = gated(start=[UTC, odd, UTC + LONGEST_NS // 2, None], duration=[1, 1, 1, 1])
    assert frame["start"].to_list() == [UTC, UTC + LONGEST_NS // 2, None]
    assert lost == {"absurd_time": 1}


def test_what_is_long_but_possible_stays() -> None:
    starts, durations = [UTC, UTC + LONGEST_NS, UTC], [LONGEST_NS, -5, None]
    frame, lost = gated(start=starts, duration=durations)
    assert (frame["start"].to_list(), frame["duration"].to_list(), lost) == (starts, durations, {})


def test_durations_whose_sum_would_overflow() -> None:
    many = 2**17
    frame, lost = gated(start=[UTC] * (many + 1), duration=[LONGEST_NS] * many + [2**40])
    assert (frame["duration"].to_list(), lost) == ([2**40], {"absurd_time": many})


def test_amounts_that_no_machine_has() -> None:
    frame, lost = gated(start=[UTC] * 4, duration=[1] * 4, bytes=[4096, 2**60, -(2**62), None])
    assert frame["bytes"].to_list() == [4096, None, None, None]
    assert lost == {"absurd_amount": 2}
