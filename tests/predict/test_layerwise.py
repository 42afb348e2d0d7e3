"""Networks as the sum of their layers: planted rates are found, a network that was left out is foretold, and captures tell the work."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from paths import SAMPLES

import tracekit
from tracekit.analyses.layers import layers
from tracekit.analyses.scope import select
from tracekit.errors import InconclusiveError
from tracekit.predict import fit, grid_of, recognised, runs_from, store
from tracekit.predict.dataset import dataset
from tracekit.predict.models.layerwise import MODEL, LayerwiseFit
from tracekit.predict.table import Runs
from tracekit.predict.trace_work import placed_pieces
from tracekit.predict.work import dumped_work, work_of

RATES = {
    ("Conv2d", "forward"): (2e3, 20e3, 300e3),
    ("Conv2d", "backward"): (1.5e3, 25e3, 350e3),
    ("Linear", "forward"): (2e3, 8e3, 100e3),
    ("Linear", "backward"): (1.5e3, 9e3, 150e3),
    ("<optimizer>", "optimizer"): (1e3, 0.0, 90e3),
}
"""ns for each operator, each MFLOP and each MB."""
FOLDERS = {path.parent.name: path.parent for path in SAMPLES}


def layers_of(network: int, batch: float, noise: float = 0.0) -> list[list[Any]]:
    """Layers of a network whose make-up is its own; recording doubles what operators take."""
    random = np.random.default_rng(network)
    found: list[list[Any]] = []
    for (kind, name), rates in RATES.items():
        for _ in range(1 if name == "optimizer" else int(random.integers(2, 8))):
            grows = 1.0 if name == "optimizer" else batch
            mflops = random.uniform(0.05, 3) * grows * (rates[1] > 0)
            terms = np.array([random.integers(10, 60), mflops, random.uniform(0.01, 0.4) * grows])
            ns = float(terms @ (np.array(rates) * [2, 1, 1])) * np.exp(noise * random.standard_normal())
            found.append([kind, name, float(terms[0]), terms[1] * 1e6, terms[2] * 1e6, ns, 0.0])
    return found


def step_of(cells: list[list[Any]]) -> float:
    """The step without recording, ns."""
    return sum(
        float(np.array([operators, flops / 1e6, moved / 1e6]) @ RATES[kind, name])
        for kind, name, operators, flops, moved, *_ in cells
    )


def runs_of(rows: list[tuple[str, float, list[list[Any]] | None]], times: list[float] | None = None) -> Runs:
    """A row for each network at a batch, with its work; measured if there are times."""
    table = [
        (name, str(batch), str(time), json.dumps(cells) if cells else None)
        for (name, batch, cells), time in zip(rows, times or [1.0] * len(rows), strict=True)
    ]
    frame = pl.DataFrame(table, ["network", "batch", "step_time_ns", "work"], orient="row")
    described = recognised(frame.columns, Path("r.csv"))
    return runs_from(frame, described, Path("r.csv"), measured=times is not None)


def planted(networks: range, noise: float = 0.03) -> Runs:
    rows = [(f"n{each}", batch, layers_of(each, batch, noise)) for each in networks for batch in (2.0, 8.0)]
    return runs_of([*rows], [step_of(cells) for _, _, cells in rows])


@pytest.fixture(scope="module")
def fitted() -> LayerwiseFit:
    return MODEL.fit(planted(range(6)))


def test_planted_rates_are_found(fitted: LayerwiseFit) -> None:
    for (kind, name), (operator, flops, moved) in RATES.items():
        found = fitted.kinds[kind, name]
        assert found[0] == pytest.approx(2 * operator, rel=0.2)  # as they were recorded
        assert found[1:] == pytest.approx((flops, moved), rel=0.1)
    assert (fitted.starts, fitted.works) == pytest.approx((0.5, 1.0), rel=0.15)


def test_networks_that_were_left_out_are_the_sum_of_their_layers(fitted: LayerwiseFit) -> None:
    asked = planted(range(6, 12))
    said = fitted.predict(asked)
    assert np.abs(said / asked.target - 1).mean() < 0.02
    parts = fitted.parts(asked)
    assert set(parts) == {"forward", "backward", "optimizer"}
    assert sum(parts.values()) == pytest.approx(said)


def test_a_type_that_was_never_seen_takes_what_all_take_in_that_pass(fitted: LayerwiseFit) -> None:
    known, strange = (
        runs_of([("x", 1.0, [[kind, "forward", 10, 5e6, 1e6, None, 0]])]) for kind in ("Conv2d", "Strange")
    )
    low = runs_of([("x", 1.0, [["Linear", "forward", 10, 5e6, 1e6, None, 0]])])
    each = [float(fitted.predict(runs)[0]) for runs in (low, strange, known)]
    assert each == sorted(each)


def test_another_batch_of_a_network_needs_no_work(fitted: LayerwiseFit) -> None:
    asked = runs_of([("n3", 4.0, None), ("n3", 16.0, None)])
    truth = [step_of(layers_of(3, batch)) for batch in (4.0, 16.0)]
    assert fitted.predict(asked) == pytest.approx(truth, rel=0.03)


def test_a_network_without_work_has_no_answer_and_the_rest_of_the_table_has() -> None:
    predictor = fit(planted(range(4)), "layerwise")
    answer = predictor.predict(runs_of([("n1", 4.0, None), ("new", 4.0, None)]))
    assert answer["predicted"].is_null().to_list() == [False, True]
    assert "the work of its layers is not known" in answer["note"][1]


def test_it_is_kept_as_json_and_a_hostile_state_is_refused(fitted: LayerwiseFit) -> None:
    said = json.loads(json.dumps(fitted.state(), allow_nan=False))
    asked = planted(range(6, 8))
    assert MODEL.restore(said).predict(asked).tolist() == fitted.predict(asked).tolist()
    wrong: list[tuple[str, Any]] = [
        ("starts", -1), ("works", 1e9), ("seconds", 0), ("rest", [1, 2]), ("rest", [1, 2, True]),
        ("kinds", [["Conv2d", "forward", 1, -2, 3]]), ("kinds", [[1, "forward", 1, 2, 3]]), ("kinds", "x"),
        ("passes", {"forward": [1, 2, "3"]}), ("networks", {"n": [["a", "b", 1, 2, 3, 4]]}), ("networks", []),
        ("unknown", {"n1": -0.1}), ("unknown", {"n1": 2}), ("unknown", [1]),
    ]  # fmt: skip
    for key, value in wrong:
        state = copy.deepcopy(said) | {key: value}
        with pytest.raises((ValueError, KeyError, TypeError)):
            MODEL.restore(state)


@pytest.mark.parametrize(
    "cell",
    [
        "no JSON",
        "{}",
        "[[1]]",
        '[["a","forward",1,2,3,4]]',
        '[["a","forward",1,2,3,-4,0]]',
        '[["a","forward",1,true,3,4,0]]',
        '[["a","b",1,1e999,3,4,0]]',
        '[["a","b",1,2,3,4,null]]',
    ],
)
def test_a_damaged_cell_is_one_line(cell: str) -> None:
    runs = planted(range(3))
    frame = runs.frame.with_columns(work=pl.lit(cell))
    with pytest.raises(InconclusiveError, match="work"):
        work_of(Runs(frame, runs.description))


def lacking(runs: Runs, share: float) -> Runs:
    """The rows, of whose operators' time this share has no FLOPs or bytes."""
    cells = [json.dumps([[*each[:6], share] for each in json.loads(cell)]) for cell in runs.names("work")]
    return Runs(runs.frame.with_columns(pl.Series("work", cells)), runs.description)


def test_work_that_is_not_known_is_counted_widens_and_refuses() -> None:
    runs = lacking(planted(range(6)), 0.1)
    predictor = fit(runs, "layerwise")
    asked = planted(range(6, 8))
    words = "the FLOPs or bytes of operators that took {} % of the time are not known"
    assert predictor.lacked() == [f"T{words[1:].format('10.0')}: these count by their number only."]
    half = {}
    for share in (0.0, 0.1, 0.4):
        answer = predictor.predict(lacking(asked, share))
        half[share] = np.log(answer["high"] / answer["predicted"])[0]
        said = words.format(round(100 * share, 1)) if share else ""
        assert answer["note"][0].endswith(said)
    assert half[0.0] == half[0.1]
    assert half[0.4] == pytest.approx(np.hypot(half[0.1], -np.log(1 - 0.3)))
    mixed = lacking(asked, 0.1)
    cells = [mixed.names("work")[0], *lacking(asked, 0.6).names("work")[1:]]
    answer = predictor.predict(Runs(mixed.frame.with_columns(pl.Series("work", cells)), mixed.description))
    assert answer["predicted"].is_null().to_list() == [False, True, True, True]
    assert words.format("60.0") in answer["note"][1]
    with pytest.raises(InconclusiveError, match=r"60\.0 % of the time are not known"):
        predictor.predict(lacking(asked, 0.6))
    assert "of 6 more, most of the work is not known" in str(MODEL.lacks(lacking(planted(range(3)), 0.6)))
    known = predictor.predict(runs_of([("n1", 4.0, None)]))  # of a network of the table as of its captures
    assert words.format("10.0") in known["note"][0]
    again = store.restored(json.loads(store.dumped(predictor)), Path("m.json"))
    assert again.predict(lacking(asked, 0.4)).equals(predictor.predict(lacking(asked, 0.4)))
    assert again.lacked() == predictor.lacked()


def test_without_times_the_share_is_that_of_operators() -> None:
    rows = [["a", "forward", 30, 1e6, 1e6, None, 1.0], ["b", "forward", 10, 1e6, 1e6, 5.0, 0.0]]
    work, _ = work_of(runs_of([("x", 1.0, rows), ("y", 1.0, rows[1:])]))
    assert work.unknown_of(2).tolist() == [0.75, 0.0]


def test_what_it_cannot_be_fitted_to() -> None:
    runs = planted(range(3))
    assert MODEL.lacks(runs) is None
    several = Runs(runs.frame.with_columns(device=pl.col("network")), runs.description)
    assert MODEL.lacks(several) == "it has no term for device"
    assert "it needs the work of each layer" in str(
        MODEL.lacks(Runs(runs.frame.drop("work"), runs.description))
    )
    assert "there are 2" in str(MODEL.lacks(Runs(runs.frame[:2], runs.description)))


def test_a_capture_tells_the_work_of_its_layers() -> None:
    trace = tracekit.read(FOLDERS["cnn_cpu"] / "trace.json.gz")
    scope = select(trace)
    told = dumped_work(scope)
    assert told is not None
    cells = json.loads(told)
    # The medians of three steps, of what the tree of layers adds up.
    total = int(layers(scope).tree["device_own_ns"].sum()) / scope.steps.height
    assert 0.7 * total < sum(cell[5] for cell in cells) <= 1.02 * total
    convolutions = [cell for cell in cells if cell[:2] == ["Conv2d", "forward"]]
    assert len(convolutions) == 15
    # What the tree of layers calls launched by operators without a model is what takes part in no roof.
    unknown = sum(cell[5] * cell[6] for cell in cells) / sum(cell[5] for cell in cells)
    work = placed_pieces(scope).drop_nulls("piece_ns")
    lost = work.filter(pl.col("flops").is_null() | pl.col("bytes").is_null())["piece_ns"].sum()
    assert 0.02 < unknown == pytest.approx(lost / work["piece_ns"].sum(), rel=0.1)
    assert sum(cell[3] for cell in convolutions) == pytest.approx(trace.manifest.flops_per_step / 3, rel=0.05)  # type: ignore[union-attr, operator]


@pytest.mark.slow
def test_networks_of_the_samples_are_foretold_from_the_others() -> None:
    folders = [FOLDERS[f"{name}_cpu"] for name in ("bert", "cnn", "dlrm", "encoder", "resnet50", "yolov5")]
    table = dataset(folders, tracekit.read).table
    runs = runs_from(table.cast(pl.String), recognised(table.columns, Path("r.parquet")), Path("r.parquet"))
    names = np.array(runs.names("network"))
    off = []
    for name in names:
        said = MODEL.fit(runs.where(names != name)).predict(runs.where(names == name))
        off.append(abs(float(said[0]) / float(runs.target[names == name][0]) - 1))
    assert np.median(off) < 0.1
    assert sorted(off)[3] < 0.1  # four of six; the others have what no other network has


def test_a_network_of_the_table_needs_its_name_and_a_batch_only() -> None:
    """Not its FLOPs, in which the measured runs differ: its layers are known."""
    runs = planted(range(4))
    frame = runs.frame.with_columns(flops=pl.Series(np.arange(8.0) + 1))
    described = replace(runs.description, columns={**runs.description.columns, "flops": "flops"})
    predictor = fit(Runs(frame, described), "layerwise")
    asked = grid_of({"network": ["n1"], "batch": ["8"]}, described, predictor.known(), predictor.support)
    assert predictor.predict(asked)["predicted"][0] == pytest.approx(step_of(layers_of(1, 8.0)), rel=0.05)
    asked = grid_of({"network": ["n"], "batch": ["8"]}, described, predictor.known(), predictor.support)
    with pytest.raises(InconclusiveError, match="did you mean n"):
        predictor.predict(asked)


def test_a_grid_does_not_take_the_work_of_another_batch() -> None:
    predictor = fit(planted(range(4)), "layerwise")
    known = {"work": json.dumps(layers_of(1, 2.0)), "network": "n1", "batch": "2"}
    here = predictor.predict(grid_of({}, predictor.description, known, predictor.support))
    there = predictor.predict(grid_of({"batch": ["8"]}, predictor.description, known, predictor.support))
    truth = [step_of(layers_of(1, batch)) for batch in (2.0, 8.0)]
    assert [here["predicted"][0], there["predicted"][0]] == pytest.approx(truth, rel=0.05)


def test_networks_that_ran_once_each_are_a_table() -> None:
    rows = [(f"n{each}", 2.0, layers_of(each, 2.0)) for each in range(5)]
    runs = runs_of([*rows], [step_of(cells) for _, _, cells in rows])
    predictor = fit(runs, "layerwise")  # whatever is left out is of a network that is nowhere else
    assert np.abs(predictor.predict(runs)["predicted"].to_numpy() / runs.target - 1).mean() < 0.02
