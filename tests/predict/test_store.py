"""Files of predictors: what is damaged or hostile is refused in one line, and nothing in a file is run."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted_tables import as_runs, planted

from tracekit.errors import TracekitError, UnreadableTraceError
from tracekit.predict import store
from tracekit.predict.auto import fit
from tracekit.predict.table import Runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return as_runs(planted(repetitions=1), tmp_path_factory.mktemp("planted"))


@pytest.fixture(scope="module")
def kept(runs: Runs) -> dict[str, Any]:
    """A predictor of two members as JSON: a regression, and trees that correct it."""
    said: dict[str, Any] = json.loads(store.dumped(fit(runs, "lattuada")))
    trees = json.loads(store.dumped(fit(runs, "boosting")))
    said["members"]["lattuada+boosting"] = {
        "model": "lattuada",
        "base": said["members"]["lattuada"],
        "trees": trees["members"]["boosting"],
        "support": said["support"],
    }
    said["weights"]["inside"] = {"lattuada": 0.5, "lattuada+boosting": 0.5}
    return said


def loaded(said: object, folder: Path) -> Any:
    path = folder / "model.json"
    path.write_text(json.dumps(said))
    return store.load(path)


def test_the_file_is_one_before_it_is_damaged(kept: dict[str, Any], runs: Runs, tmp_path: Path) -> None:
    assert loaded(kept, tmp_path).predict(runs)["predicted"].is_finite().all()


def places_in(said: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys = (
        list(said)
        if isinstance(said, dict)
        else list(range(min(len(said), 3)))
        if isinstance(said, list)
        else []
    )
    return [path] * bool(path) + [each for key in keys for each in places_in(said[key], (*path, key))]


@pytest.mark.slow
@pytest.mark.quick(4)
@pytest.mark.parametrize("value", [None, "os.system", -1, 1e308, 10**30, [], {}, [[]], True, "\x1b[31m"])
@pytest.mark.sampled(4)
def test_any_part_replaced_is_refused_in_a_line_or_answers(
    value: object, kept: dict[str, Any], runs: Runs, tmp_path: Path
) -> None:
    few = runs.where(np.arange(runs.height) < 2)
    random = np.random.default_rng(0)
    places = places_in(kept)
    for at in random.permutation(len(places))[:12]:
        said = copy.deepcopy(kept)
        part = said
        for key in places[at][:-1]:
            part = part[key]
        part[places[at][-1]] = value
        try:
            loaded(said, tmp_path).predict(few)
        except TracekitError as error:
            assert "\n" not in str(error)  # noqa: PT017 - either is right
            assert "\x1b" not in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[1]", "it is not a fitted model"),
        ('{"format": "tracekit prediction", "version": 99}', "it is of version '99'"),
        ('{"format": "tracekit prediction", "version": 2}', "damaged (KeyError"),
        ('{"format": "tracekit prediction", "version": 2, "rows": NaN}', "it is not JSON"),
        ('{"format": "tracekit prediction", "version": 2, "rows": 1e999}', "it is not JSON"),
        ("\x80\x04\x95", "it is not JSON"),
    ],
)
def test_what_is_no_predictor(text: str, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(UnreadableTraceError) as caught:
        store.load(path)
    assert fault in str(caught.value)


def test_a_member_cannot_name_a_module(kept: dict[str, Any], tmp_path: Path) -> None:
    for name in ("os", "../../evil", "structural_fit", "boosting.sys"):
        said = copy.deepcopy(kept)
        said["members"][name] = said["members"]["lattuada"]
        with pytest.raises(UnreadableTraceError, match="there is no model"):
            loaded(said, tmp_path)


def test_trees_that_lead_in_a_circle_are_refused(kept: dict[str, Any], tmp_path: Path) -> None:
    said = copy.deepcopy(kept)
    trees = said["members"]["lattuada+boosting"]["trees"]["forest"]
    trees["left"] = trees["right"] = [(node + 1) % len(trees["left"]) for node in range(len(trees["left"]))]
    with pytest.raises(UnreadableTraceError, match="the trees are none"):
        loaded(said, tmp_path)


@pytest.mark.parametrize("rows", [1e300, -1, 0, True, 10**400, "1"])
def test_rows_are_a_number_of_rows(rows: Any, kept: dict[str, Any]) -> None:
    with pytest.raises(UnreadableTraceError, match="damaged"):
        store.restored(kept | {"rows": rows}, Path("model.json"))


def test_weights_have_to_sum_to_one(kept: dict[str, Any], tmp_path: Path) -> None:
    for weights in ({"lattuada": 2.0, "lattuada+boosting": -1.0}, {"lattuada": 0.2}, {"other": 1.0}, {}):
        said = copy.deepcopy(kept)
        said["weights"]["inside"] = weights
        with pytest.raises(UnreadableTraceError, match="damaged"):
            loaded(said, tmp_path)


def test_a_file_that_is_not_there_or_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnreadableTraceError, match="no such file"):
        store.load(tmp_path / "none.json")
    monkeypatch.setattr(store, "_MOST_BYTES", 10)
    (tmp_path / "large.json").write_text("[1, 2, 3, 4, 5, 6]")
    with pytest.raises(UnreadableTraceError, match="larger than"):
        store.load(tmp_path / "large.json")
