"""Laws of steps over the sizes of a series, what techniques gain by them, and where efficiency goes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tracekit.mlperf import Cell, LoggedRun, efficiency_parts, laws_table, techniques_table
from tracekit.mlperf.forecast import Question, enough_chips, forecast
from tracekit.scaling import HOPS

SIZES = ((8, 512), (16, 512), (32, 1024), (64, 1024), (128, 2048), (256, 2048), (512, 4096))
COMPUTE, FIXED, ALPHA = 1e-3, 8e-3, 2e-5


def planted(law: str, noise: float = 0.0, evaluation_s: float = 0.0) -> list[Cell]:
    """Cells of 4 epochs of 65,536 samples, whose steps take compute · batch + fixed, and messages by this law."""
    rng = np.random.default_rng(1)
    cells = []
    for chips, batch in SIZES:
        messages = ALPHA * 2 * HOPS[law](chips) if law in HOPS else 0.0
        step = (COMPUTE * batch / chips + FIXED + messages) * np.exp(rng.normal(0, noise))
        trained = 4 * 65_536 / batch * step
        run = LoggedRun(
            name="", status="success", run_s=trained + evaluation_s, epochs=4.0, batch=batch,
            blocks=((0.0, trained, 4.0),), evaluation_s=((trained, trained + evaluation_s),) if evaluation_s else (),
        )  # fmt: skip
        cells.append(Cell("we", f"pod-{chips}", "net", chips, batch, (run,)))
    return cells


@pytest.mark.parametrize("law", ["amdahl", "ring", "tree", "torus"])
def test_a_planted_law_is_named_and_its_parts_are_exact(law: str) -> None:
    best = laws_table(planted(law)).row(0, named=True)
    assert best["law"] == law
    assert best["best"]
    messages = ALPHA * 2 * HOPS[law](512) if law in HOPS else 0.0
    whole = COMPUTE * 8 + FIXED + messages
    assert best["compute_share"] == pytest.approx(COMPUTE * 8 / whole, rel=1e-6)
    assert best["messages_share"] == pytest.approx(messages / whole, rel=1e-6, abs=1e-9)


def test_a_ring_is_found_below_noise() -> None:
    best = laws_table(planted("ring", noise=0.03)).row(0, named=True)
    assert best["law"] in ("ring", "torus")
    assert best["messages_share"] > 0.3


@pytest.mark.parametrize("law", ["amdahl", "ring", "tree", "torus"])
def test_a_law_that_the_sizes_follow_foretells_more_chips_and_where_doubling_ends(law: str) -> None:
    """Forecasts followed a power of the batch of a chip whatever law was named: 60 % too short at 8 times the chips, and no end of doubling."""

    def seconds(chips: int, batch: int = 4096) -> float:
        messages = 100 * ALPHA * 2 * HOPS[law](chips) if law in HOPS else 0.0
        return 4 * 65_536 / batch * (COMPUTE * batch / chips + 10 * FIXED + messages)

    runs = {
        chips: LoggedRun(name="", status="success", run_s=seconds(chips, batch), epochs=4.0, batch=batch)
        for chips, batch in SIZES[:6]
    }
    cells = [Cell("we", f"pod-{chips}", "net", chips, run.batch, (run,)) for chips, run in runs.items()]
    for chips in (512, 1024, 2048):
        found = forecast(cells, Question("net", chips, 4096, 4.0))
        assert found is not None
        assert found.seconds == pytest.approx(seconds(chips), rel=0.03)
    end = 256
    while seconds(end) >= 1.1 * seconds(2 * end):
        end *= 2
    fewest, most = enough_chips(cells, Question("net", 256, 4096, 4.0)) or (0, 0)
    assert fewest <= end <= most <= 2 * end


def test_summing_along_a_grid_gains_what_the_hops_say() -> None:
    rows = techniques_table(planted("ring")).rows(named=True)
    row = next(row for row in rows if row["technique"] == "2-D gradient summation")
    ring, torus = (ALPHA * 2 * HOPS[law](512) for law in ("ring", "torus"))
    step = COMPUTE * 8 + FIXED + ring
    assert row["gain"] == pytest.approx((ring - torus) / step, rel=1e-6)
    assert not row["at_most"]


def test_evaluation_beside_training_leaves_the_last_one() -> None:
    (cell,) = planted("amdahl", evaluation_s=5.0)[-1:]
    twice = LoggedRun(
        name="", status="success", run_s=30.0, epochs=4.0, batch=4096,
        blocks=((0.0, 10.0, 2.0), (15.0, 25.0, 2.0)), evaluation_s=((10.0, 15.0), (25.0, 30.0)),
    )  # fmt: skip
    least = planted("amdahl")[0]
    found = techniques_table([least, Cell("we", "pod-512", "net", 512, 4096, (twice,))]).row(0, named=True)
    assert found["predicted_min"] * 60 == pytest.approx(25.0)
    assert techniques_table([least, cell]).row(0, named=True)["gain"] == pytest.approx(0.0, abs=1e-12)


def test_efficiency_and_its_losses_sum_to_one() -> None:
    for chips, parts in efficiency_parts(planted("tree", evaluation_s=2.0)):
        assert sum(parts.values()) == pytest.approx(1.0), chips
        assert all(value >= 0 for value in parts.values())


def test_epochs_that_are_not_known_are_no_loss_of_their_own() -> None:
    cells = [
        replace(cell, runs=tuple(replace(run, epochs=None) for run in cell.runs)) for cell in planted("tree", evaluation_s=2.0)
    ]  # fmt: skip
    for chips, parts in efficiency_parts(cells):
        assert sum(parts.values()) == pytest.approx(1.0), chips
        assert "more epochs" not in parts


def test_two_sizes_tell_no_law() -> None:
    assert not laws_table(planted("ring")[:2]).height
