"""Cases on other devices: the law that was planted, and NeuSight's models with each device left out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from paths import NEUSIGHT

from tracekit.errors import InconclusiveError
from tracekit.predict.boards import board_of
from tracekit.predict.describe import description_of
from tracekit.predict.models.devices import MODEL
from tracekit.predict.table import Runs, runs_from

COLUMNS = {
    "network": "model",
    "mode": "mode",
    "sequence": "seqlen",
    "batch": "batch",
    "option": "option",
    "device": "device",
}


def runs_of(frame: pl.DataFrame) -> Runs:
    said = {"target": {"column": "e2e_ms", "unit": "ms"}, "columns": COLUMNS}
    return runs_from(frame.cast(pl.String), description_of(said, Path("t")), Path("t"))


def planted(devices: list[str], noise: float = 0.03) -> Runs:
    """Compute and memory time of three networks, as the peaks and bandwidths say."""
    rng = np.random.default_rng(7)

    def rows() -> Iterator[dict[str, Any]]:
        for network, (work, moved) in {"a": (4e3, 600.0), "b": (1e3, 200.0), "c": (9e3, 1500.0)}.items():
            for batch in (1, 2, 8):
                for device in devices:
                    board = board_of(device, {})
                    time = batch * (work / board.sustained * 1e3 + moved / board.streamed * 1e2)
                    noisy = time * float(np.exp(rng.normal(0, noise)))
                    told = {"model": network, "mode": "inf", "seqlen": 512, "batch": batch, "option": ""}
                    yield {**told, "device": device, "e2e_ms": noisy}

    return runs_of(pl.DataFrame(list(rows())))


def test_a_device_that_gave_no_measurement_is_predicted_where_the_figures_rule() -> None:
    known = planted(["Tesla P100-PCIE-16GB", "Tesla V100-PCIE-32GB", "NVIDIA A100-PCIE-40GB"])
    asked = planted(["Tesla T4", "NVIDIA H100 80GB HBM3"], noise=0.0)
    error = np.abs(MODEL.fit(known).predict(asked) / asked.target - 1)
    assert error.mean() < 0.06


def test_parts_sum_to_the_time_and_a_fit_survives_json() -> None:
    runs = planted(["Tesla T4", "Tesla P4", "NVIDIA A100-PCIE-40GB"])
    fitted = MODEL.fit(runs)
    again = MODEL.restore(json.loads(json.dumps(fitted.state())))
    np.testing.assert_allclose(again.predict(runs), fitted.predict(runs))
    np.testing.assert_allclose(sum(fitted.parts(runs).values()), fitted.predict(runs))
    assert fitted.explain()[0].name == "memory"


def test_work_that_several_devices_share_takes_its_share_of_the_time() -> None:
    runs = planted(["Tesla T4", "Tesla P4", "NVIDIA A100-PCIE-40GB"])
    fitted = MODEL.fit(runs)
    for option, share in (("dp4", 0.25), ("tp2", 0.5), ("pp4_1", 1.0), ("pp4_4", 7 / 16)):
        shared = runs_of(
            pl.DataFrame(
                {"model": ["a"], "mode": ["inf"], "seqlen": [512], "batch": [8], "option": [option],
                 "device": ["Tesla T4"], "e2e_ms": [1.0]}
            )
        )  # fmt: skip
        alone = Runs(shared.frame.with_columns(option=pl.lit("")), shared.description)
        assert fitted.predict(shared)[0] == pytest.approx(share * fitted.predict(alone)[0], rel=0.2)


def test_a_device_of_which_nothing_is_known_is_named() -> None:
    with pytest.raises(InconclusiveError, match="Voodoo 2"):
        board_of("Voodoo 2", {})
    assert board_of("Voodoo 2", {"Voodoo 2": {"peak_gflops": 1.5, "bandwidth_gb_s": 2}}).peak == 1.5


def test_a_table_of_one_device_per_case_is_refused() -> None:
    assert MODEL.lacks(planted(["Tesla T4"])) == "no case ran on two devices"
    assert MODEL.lacks(planted(["Tesla T4", "Tesla P4"])) is None


@pytest.mark.parametrize(
    "broken",
    [
        {"mean": float("nan")},
        {"memory": "0"},
        {"slopes": {"colour": 1.0}},
        {"levels": {"network": {"a": 1e9}}},
        {"levels": {"sky": {}}},
        {"levels": [1]},
        {"slopes": {"batch": 10**400}},
    ],
)
def test_a_state_that_is_none_is_refused(broken: dict[str, Any]) -> None:
    state = MODEL.fit(planted(["Tesla T4", "Tesla P4"])).state()
    with pytest.raises((ValueError, TypeError)):
        MODEL.restore({**state, **broken})


needs_data = pytest.mark.skipif(not NEUSIGHT.exists(), reason="needs the shared data")


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize(
    ("device", "most"),
    [
        ("NVIDIA_A100-PCIE-40GB", 7.5),
        ("NVIDIA_A100-SXM4-40GB", 10.0),
        ("Tesla_V100-PCIE-32GB", 8.5),
        ("Tesla_P100-PCIE-16GB", 5.0),
        ("Tesla_T4", 18.0),
        ("AMD_Instinct_MI100", 6.0),
        ("AMD_Instinct_MI210", 9.0),
        ("AMD_Instinct_MI250", 9.0),
    ],
)
def test_models_on_a_device_that_was_left_out(device: str, most: float) -> None:
    runs = runs_of(pl.read_csv(NEUSIGHT))
    asked = np.array(runs.names("device")) == device
    predicted = MODEL.fit(runs.where(~asked)).predict(runs.where(asked))
    assert 100 * np.abs(predicted / runs.where(asked).target - 1).mean() < most
