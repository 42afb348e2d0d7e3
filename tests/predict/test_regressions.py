"""The regression and the trees against independent truths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from planted_tables import as_runs, planted

from tracekit.predict.features import one_each
from tracekit.predict.models import boosting, lattuada
from tracekit.predict.table import Floats, Runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return as_runs(planted(repetitions=1), tmp_path_factory.mktemp("planted"))


def brute_force(design: Floats, aim: Floats, folds: list[Floats], steps: int) -> list[int]:
    """Forward selection as it is written in books: every candidate fitted anew."""
    chosen = [0]
    for _ in range(steps):
        errors = {}
        for candidate in range(design.shape[1]):
            if candidate in chosen:
                continue
            found = []
            for fold in folds:
                rest = np.setdiff1d(np.arange(aim.size), fold)
                terms = design[:, [*chosen, candidate]]
                weights = np.linalg.lstsq(terms[rest], aim[rest], rcond=None)[0]
                found.append(np.minimum(np.abs(aim[fold] - terms[fold] @ weights), 1).mean())
            errors[candidate] = np.mean(found)
        chosen.append(min(errors, key=lambda each: errors[each]))
    return chosen


def test_forward_selection_is_that_of_brute_force() -> None:
    random = np.random.default_rng(0)
    design = np.column_stack([np.ones(60), random.normal(size=(60, 12))])
    aim = design[:, [3, 7, 9]] @ [0.3, 0.2, 0.1] + random.normal(0, 0.05, 60)
    folds = [np.arange(each, 60, 3) for each in range(3)]
    selected = lattuada._forward(design, aim, folds).tolist()
    assert selected[:4] == [0, 3, 7, 9]
    assert selected == brute_force(design, aim, folds, len(selected) - 1)


def test_stepwise_selection_finds_the_planted_terms() -> None:
    random = np.random.default_rng(1)
    design = np.column_stack([np.ones(80), random.normal(size=(80, 15))])
    aim = design[:, [2, 5, 11]] @ [1.0, -0.5, 0.4] + random.normal(0, 0.05, 80)
    assert {2, 5, 11} <= set(lattuada._stepwise(design, aim, []).tolist())


def test_a_planted_sum_of_products_is_recovered(runs: Runs) -> None:
    fitted = lattuada.MODEL.fit(runs)
    assert np.abs(fitted.predict(runs) / runs.target - 1).mean() < 0.05
    again = lattuada.MODEL.restore(fitted.state())
    assert np.array_equal(again.predict(runs), fitted.predict(runs))
    assert {term.name for term in fitted.explain()}


def test_the_trees_say_what_scikit_learn_says(runs: Runs) -> None:
    ensemble = pytest.importorskip("sklearn.ensemble")
    trees = boosting.MODEL.fit(runs)
    each = one_each(runs)
    given = boosting._design(each, trees.numbers, trees.names)
    booster = ensemble.GradientBoostingRegressor(
        n_estimators=250, max_depth=4, learning_rate=0.08, min_samples_leaf=2, subsample=0.7, random_state=0
    ).fit(given, np.log(each.target))
    assert np.allclose(trees.logarithms(each), booster.predict(given), atol=1e-9)
    again = boosting.MODEL.restore(trees.state())
    assert np.allclose(again.predict(runs), trees.predict(runs), rtol=1e-3)


def test_what_they_lack(tmp_path: Path) -> None:
    few = as_runs(planted(repetitions=3)[:9], tmp_path)
    assert lattuada.MODEL.lacks(few) == "there are fewer than 6 configurations"
    assert boosting.MODEL.lacks(few) == "there are fewer than 20 configurations"
