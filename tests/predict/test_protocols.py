"""Splits: what they leave out, and that no configuration stands on both sides."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from planted_tables import as_runs, planted

from tracekit.errors import InconclusiveError, UsageError
from tracekit.predict.protocols import folds_of
from tracekit.predict.support import support_of
from tracekit.predict.table import Runs

SPLITS = (
    "kfold",
    "grouped:4",
    "interpolation",
    "gpus>2",
    "gpus >= 4",
    "p75(batch)",
    "batch>p50",
    "threads=4",
    "device=fast",
    "gpus",
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return as_runs(planted(repetitions=3), tmp_path_factory.mktemp("planted"))


@pytest.mark.parametrize("split", SPLITS)
def test_no_configuration_stands_on_both_sides(runs: Runs, split: str) -> None:
    numbers = runs.frame["configuration"].to_numpy()
    for fold in folds_of(runs, split):
        assert fold.train.any()
        assert fold.test.any()
        assert not set(numbers[fold.train]) & set(numbers[fold.test])


def test_a_repetition_beyond_the_limit_takes_the_others_with_it(runs: Runs) -> None:
    # Of a configuration's repetitions only some took long; a split by the time itself would tear them apart.
    frame = runs.frame.with_columns(peak_gflops=runs.frame["target"])
    torn = Runs(frame, runs.description)
    (fold,) = folds_of(torn, "peak_gflops>p75")
    numbers = runs.frame["configuration"].to_numpy()
    beyond = runs.target > np.quantile(runs.target, 0.75)
    assert fold.test.sum() > beyond.sum()
    assert set(numbers[fold.test]) == set(numbers[beyond])


def test_what_the_words_leave_out(runs: Runs) -> None:
    (fold,) = folds_of(runs, "gpus>2")
    assert set(runs.numbers("gpus")[fold.test]) == {4.0}
    (fold,) = folds_of(runs, "p75(batch)")
    assert set(runs.numbers("batch")[fold.test]) == {128.0}
    (fold,) = folds_of(runs, "device=fast")
    assert set(runs.numbers("peak_gflops")[fold.test]) == {16000.0}
    assert [fold.name for fold in folds_of(runs, "device")] == ["device=slow", "device=middle", "device=fast"]
    tests = np.array([fold.test for fold in folds_of(runs, "kfold")])
    assert (tests.sum(axis=0) == 1).all()


def test_interpolation_asks_for_nothing_beyond_the_rest(runs: Runs) -> None:
    for fold in folds_of(runs, "interpolation"):
        places = support_of(runs.where(fold.train)).places(runs.where(fold.test))
        assert (places.distance == 0).all()


@pytest.mark.parametrize(
    ("split", "fault"),
    [
        ("cards>2", "there is no split 'cards'"),
        ("gpus>many", "'many' is neither a number nor a percentile"),
        ("device=H100", "no row has device 'H100'"),
        ("device>fast", "device holds names"),
        ("kfold:1", "there cannot be 1 folds"),
        ("__import__('os')", "there is no split"),
        ("", "there is no split"),
    ],
)
def test_words_that_are_no_split(runs: Runs, split: str, fault: str) -> None:
    with pytest.raises(UsageError) as caught:
        folds_of(runs, split)
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_split_with_an_empty_side(runs: Runs, tmp_path: Path) -> None:
    with pytest.raises(InconclusiveError, match="no row on one of its sides"):
        folds_of(runs, "gpus>100")
    with pytest.raises(InconclusiveError, match="no row on one of its sides"):
        folds_of(as_runs(planted()[:2], tmp_path), "kfold")
