"""Intervals of forecasts against sizes that were run and left out, and against planted epochs."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import log

import pytest

from tests.mlperf.test_results import DATA, cells, needs_data
from tracekit.mlperf import LoggedRun, Results, cells_of, forecast, question_of, read_results, series_of
from tracekit.mlperf.forecast import Question, without
from tracekit.report.mlperf import mlperf_section


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize("given", [True, False])
def test_left_out_sizes_of_round_0_6_lie_within_their_intervals(*, given: bool) -> None:
    """Of 30, 25 did with their epochs given, and 18 without."""
    known = cells_of(read_results([DATA]).runs)
    held = []
    for group in series_of(known).values():
        for cell in group if len(group) > 1 else ():
            asked = question_of(cell)
            found = forecast(without(known, group, cell), asked if given else replace(asked, epochs=None))
            assert found is not None
            held.append(found.low <= (cell.score_s or 0) <= found.high)
    assert len(held) == 30
    assert sum(held) >= 0.95 * len(held)


def test_epochs_that_are_not_given_widen_the_interval_the_more_the_further_the_batch() -> None:
    known = cells(0.7, [(8, 512, 4), (16, 1024, 5), (32, 2048, 6)])
    widths = []
    for batch in (2048, 4096, 8192, 16384):
        given, open_ = (
            forecast(known, Question("net", batch // 64, batch, epochs)) for epochs in (6.0, None)
        )
        assert given is not None
        assert open_ is not None
        assert (given.seconds, open_.epochs) == (open_.seconds, 6)
        widths.append(log(open_.high / open_.low) - log(given.high / given.low))
    assert all(0 < less < more for less, more in pairwise(widths))
    grown = forecast(known, Question("net", 128, 8192))
    (truth,) = cells(0.7, [(128, 8192, 9)])  # as by the powers between the others, 0.29
    assert grown is not None
    assert grown.low < (truth.score_s or 0) < grown.high


def test_a_batch_of_a_chip_beyond_all_that_were_run_is_less_certain() -> None:
    known = cells(0.7, [(16, 1024, 4), (32, 1024, 4), (64, 1024, 4)])
    fewer, more = (forecast(known, Question("net", chips, 1024, 4.0)) for chips in (8, 128))
    assert fewer is not None
    assert more is not None
    assert fewer.high / fewer.low > more.high / more.low


def test_doubling_ends_where_the_sizes_that_were_run_show_it() -> None:
    """It was looked for from the largest size on: 1,024 chips were enough, which take longer than 512."""

    def seconds(chips: int) -> float:
        return 20_000 / chips + 0.04 * chips

    runs = [
        LoggedRun(name=f"{chips}", status="success", run_s=seconds(chips), epochs=4.0, batch=16_384, organisation="we", system=f"{chips}xBox",
                  benchmark="net", accelerators=chips)
        for chips in (8, 16, 32, 64, 128, 256, 512, 1024)
    ]  # fmt: skip
    end = next(chips for chips in (8, 16, 32, 64, 128, 256, 512) if seconds(chips) < 1.1 * seconds(2 * chips))
    section = mlperf_section(Results(tuple(runs)))
    (table,) = (table for table in section.tables if table.name == "forecasts")
    assert table.frame["enough_chips"].to_list() == [end] * 2
    assert "enough_chips" in table.short
