"""Kernels on devices: the law that was planted, bounds, and NeuSight's kernels with a device left out."""

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
from tracekit.predict.boards import Board, board_of, boards_of
from tracekit.predict.describe import description_of
from tracekit.predict.models.forest import forest_of, grow
from tracekit.predict.models.kernel_work import works_of
from tracekit.predict.models.kernels import MODEL, KernelsFit
from tracekit.predict.table import Runs, runs_from

ROLES = {
    "op": "op", "device": "device", "batch": "B", "rows": "M", "inner": "N", "columns": "K", "hidden": "H",
    "in_channels": "Input_Channel", "out_channels": "Output_Channel", "window": "Kernel_Szie", "image": "Input_Size",
    "stride": "Stride", "padding": "Padding",
}  # fmt: skip
KNOWN = ["Tesla P100-PCIE-16GB", "Tesla V100-PCIE-32GB", "NVIDIA A100-PCIE-40GB"]


def runs_of(frame: pl.DataFrame) -> Runs:
    columns = {role: column for role, column in ROLES.items() if column in frame.columns}
    said = {"target": {"column": "latency_ms", "unit": "ms"}, "columns": columns}
    return runs_from(frame.cast(pl.String), description_of(said, Path("t")), Path("t"))


def seconds_of(board: Board, op: str, sizes: dict[str, int]) -> float:
    """The law that is planted: a launch, then four fifths of the bandwidth, or of the peak."""
    if op == "relu":
        return max(30e-6, 15e-6 + 8 * sizes["B"] * sizes["H"] / (0.8e9 * board.streamed))
    flops = 2 * sizes["B"] * sizes["M"] * sizes["N"] * sizes["K"]
    return max(40e-6, 20e-6 + flops / (0.8e9 * board.sustained))


def planted(devices: list[str], count: int = 150, noise: float = 0.03, seed: int = 5) -> Runs:
    rng = np.random.default_rng(seed)

    def rows() -> Iterator[dict[str, Any]]:
        for device in devices:
            board = board_of(device, {})
            for _ in range(count):
                shape = {"B": int(2 ** rng.uniform(4, 17)), "H": int(2 ** rng.uniform(5, 12))}
                product = dict(zip("BMNK", (1, *(128 * rng.integers(24, 48, 3)).tolist()), strict=True))
                for op, sizes in (("relu", shape), ("linear", product)):
                    time = seconds_of(board, op, sizes) * float(np.exp(rng.normal(0, noise)))
                    none = dict.fromkeys("BHMNK", None)
                    yield {**none, "op": op, "device": device, **sizes, "latency_ms": 1e3 * time}

    return runs_of(pl.DataFrame(list(rows()), infer_schema_length=None))


@pytest.fixture(scope="module")
def fitted() -> KernelsFit:
    return MODEL.fit(planted(KNOWN))


def test_a_device_that_was_never_seen_is_predicted_where_the_figures_rule(fitted: KernelsFit) -> None:
    asked = planted(["NVIDIA A100 80GB PCIe"], noise=0.0, seed=6)
    error = np.abs(fitted.predict(asked) / asked.target - 1)
    for op in ("relu", "linear"):
        assert error[np.array(asked.names("op")) == op].mean() < 0.09


def test_parts_sum_to_the_time_and_a_fit_survives_json(fitted: KernelsFit) -> None:
    asked = planted(["Tesla T4"], count=20)
    again = MODEL.restore(json.loads(json.dumps(fitted.state())))
    np.testing.assert_allclose(again.predict(asked), fitted.predict(asked), rtol=1e-5)
    np.testing.assert_allclose(sum(fitted.parts(asked).values()), fitted.predict(asked))
    assert any(term.name == "launch relu" and 25 < term.value < 35 for term in fitted.explain())


def test_utilisation_is_bounded_far_outside_of_what_was_measured(fitted: KernelsFit) -> None:
    sizes = [(1, 1), (7, 3), (2**22, 2**14), (2**30, 2**12)]
    asked = runs_of(
        pl.DataFrame(
            {
                "op": "relu",
                "device": "NVIDIA L4",
                "B": [b for b, _ in sizes],
                "H": [h for _, h in sizes],
                "latency_ms": 1.0,
            }
        )
    )
    predicted = fitted.predict(asked)
    assert np.all(np.isfinite(predicted))
    assert np.all(predicted > 0)
    least = np.array([8 * b * h for b, h in sizes]) / (300e9 * 7) * 1e3 * np.exp(-6)
    assert np.all(predicted >= least)


def test_a_kind_of_kernel_that_was_not_measured_stands_on_the_roofline(fitted: KernelsFit) -> None:
    sizes = {"Input_Channel": 64, "Output_Channel": 64, "Kernel_Szie": 3, "Input_Size": 112, "Padding": 1}
    asked = runs_of(pl.DataFrame({"op": ["conv"], "device": KNOWN[2], "B": 32, **sizes, "latency_ms": 1.0}))
    least = 2 * 32 * 112**2 * 64 * 64 * 9 / 19.5e12 * 1e3
    assert 0.5 * least < fitted.predict(asked)[0] < 5 * least


def test_tiles_round_up_and_a_part_of_a_wave_costs_nearly_a_wave() -> None:
    def arithmetic(rows: int) -> float:
        frame = pl.DataFrame(
            {
                "op": "bmm",
                "device": KNOWN[2],
                "B": 1,
                "M": [rows],
                "N": 4096,
                "K": 128 * 108,
                "latency_ms": 1.0,
            }
        )
        runs = runs_of(frame)
        return float(works_of(runs, boards_of(runs))["product"].tilings["128x128"].arithmetic[0])

    assert arithmetic(1) == arithmetic(128)
    assert arithmetic(129) == arithmetic(256) > 1.9 * arithmetic(128)


def test_a_kernel_without_its_sizes_is_named() -> None:
    runs = runs_of(
        pl.DataFrame(
            {
                "op": ["bmm"],
                "device": [KNOWN[0]],
                "B": [1],
                "M": [None],
                "N": [3],
                "K": [4],
                "latency_ms": [1.0],
            }
        )
    )
    with pytest.raises(InconclusiveError, match="bmm"):
        works_of(runs, boards_of(runs))
    assert "bmm" in str(
        MODEL.lacks(
            runs_of(pl.DataFrame({"op": ["bmm"] * 60, "device": KNOWN[0], "N": 3, "latency_ms": 1.0}))
        )
    )


def test_the_cache_holds_what_is_small_against_it() -> None:
    def memory(elements: int) -> float:
        runs = runs_of(
            pl.DataFrame({"op": "relu", "device": ["NVIDIA L4"], "B": 1, "H": elements, "latency_ms": 1.0})
        )
        return float(works_of(runs, boards_of(runs))["shape"].memory[0])

    small, large = memory(2**20), memory(2**26)
    assert large > 3 * 64 * small
    assert large == pytest.approx(8 * 2**26 / (board_of("NVIDIA L4", {}).streamed * 1e9), rel=1e-3)


def test_a_forest_says_what_the_library_says() -> None:
    rng = np.random.default_rng(1)
    matrix = rng.normal(size=(400, 3))
    forest = grow(matrix, np.where(matrix[:, 0] > 0, 1.0, -1.0) + 0.1 * matrix[:, 1], 30, 0.2)
    sums = forest.sums(matrix)
    assert np.abs(sums - np.where(matrix[:, 0] > 0, 1.0, -1.0)).mean() < 0.15
    np.testing.assert_allclose(
        forest_of(json.loads(json.dumps(forest.state())), 3).sums(matrix), sums, atol=1e-4
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("left", [0] * 5),
        ("value", [float("inf")]),
        ("depth", 10**9),
        ("feature", [99]),
        ("roots", [-1]),
        ("width", 2),
        ("start", "x"),
        ("right", [10**30]),
        ("left", {"a": 1}),
    ],
)
def test_a_forest_that_is_none_is_refused(name: str, value: Any) -> None:
    matrix = np.random.default_rng(1).normal(size=(100, 3))
    state = grow(matrix, matrix[:, 0], 3, 0.2).state()
    with pytest.raises((ValueError, TypeError)):
        forest_of({**state, name: value}, 3)


def test_a_state_that_is_none_is_refused(fitted: KernelsFit) -> None:
    broken: dict[str, Any]
    for broken in (
        {"seconds": -1.0},
        {"launches": {"relu": {"x": float("nan")}}},
        {"launches": {"relu": {"x": -1.0}}},
        {"likes": {"sky": {}}},
        {"likes": [1]},
        {"launches": 3},
    ):
        with pytest.raises((ValueError, KeyError, TypeError)):
            MODEL.restore({**fitted.state(), **broken})


def test_what_is_no_table_of_kernels_is_refused() -> None:
    runs = planted(["Tesla T4"], count=10)
    assert str(MODEL.lacks(runs)).startswith("it needs 50 kernels")
    assert "operator" in str(MODEL.lacks(runs_of(pl.DataFrame({"B": [1], "latency_ms": [2.0]}))))


needs_data = pytest.mark.skipif(not NEUSIGHT.exists(), reason="needs the shared data")


def kernels_of(ops: tuple[str, ...], each: int) -> Runs:
    """As many rows of each operator and device."""
    frames = []
    for op in ops:
        frame = pl.read_csv(NEUSIGHT.parent / "kernels" / f"{op}.csv.gz").with_columns(op=pl.lit(op))
        kept = [column for column in ("op", "device", *"BMNKH", "latency_ms") if column in frame.columns]
        frames += [
            found.sample(each, seed=4)
            for (_,), found in frame.select(kept).group_by("device", maintain_order=True)
        ]
    return runs_of(pl.concat(frames, how="diagonal"))


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "ops", "most"),
    [
        ("NVIDIA_A100-PCIE-40GB", ("add", "gelu", "softmax"), 7.0),
        ("Tesla_T4", ("add", "gelu", "softmax"), 9.0),
        ("Tesla_T4", ("bmm",), 22.0),
        ("Tesla_P4", ("bmm",), 18.0),
        ("Tesla_P100-PCIE-16GB", ("bmm",), 16.0),
    ],
)
def test_kernels_on_a_device_that_was_left_out(device: str, ops: tuple[str, ...], most: float) -> None:
    runs = kernels_of(ops, 900)
    asked = np.array(runs.names("device")) == device
    predicted = MODEL.fit(runs.where(~asked)).predict(runs.where(asked))
    assert 100 * np.abs(predicted / runs.where(asked).target - 1).mean() < most
