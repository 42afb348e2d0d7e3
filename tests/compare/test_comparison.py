"""What is compared, against the same in plain Python: pivots, geometric means, ranks, Pareto sets, layer types."""

from __future__ import annotations

import csv
from collections import defaultdict
from itertools import combinations, product
from math import exp, isclose, log
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import NEUSIGHT

from tracekit.compare import Comparison, Measured, compare, kendall_taus, pareto_sets, read_table
from tracekit.compare.measured import FIGURES, TYPES
from tracekit.errors import UsageError

MADE = """model,device,precision,batch,latency_ms,flops,parameters,accuracy
small,A,fp32,1,2.0,1e9,3e6,70
small,B,fp32,1,3.0,1e9,3e6,70
small,A,fp16,1,1.5,1e9,3e6,69
middle,A,fp32,1,9.0,2e9,9e6,72
middle,B,fp32,1,12.0,2e9,9e6,72
middle,B,fp32,1,14.0,2e9,9e6,72
middle,A,fp16,1,4.0,2e9,9e6,71
large,A,fp32,1,5.0,8e9,5e6,71
large,B,fp32,1,5.0,8e9,5e6,71
large,A,fp32,8,30.0,64e9,5e6,71
large,C,fp32,64,30.0,512e9,5e6,71
"""
numbers = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=2, max_size=25)


@pytest.fixture
def made(tmp_path: Path) -> Comparison:
    (tmp_path / "made.csv").write_text(MADE)
    return compare(read_table(tmp_path / "made.csv"))


def rows_of(path: Path, latency: str) -> dict[tuple[Any, ...], dict[str, float]]:
    """Medians by device, of each case: the model and what else is an option."""
    found: dict[tuple[Any, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    options = ("precision", "mode", "seqlen", "batch", "option")
    with path.open() as file:
        for row in csv.DictReader(file):
            case = (row["model"], *(row.get(name) for name in options))
            found[case][row["device"]].append(float(row[latency]))
    return {case: {device: median(all_) for device, all_ in of.items()} for case, of in found.items()}


def check(found: Comparison, truth: dict[tuple[Any, ...], dict[str, float]]) -> None:
    """The cases, the speed-ups and who is fastest, each way round."""
    assert found.cases.height == sum(map(len, truth.values()))
    assert sorted(found.cases["latency_ns"]) == pytest.approx(sorted(1e6 * ms for of in truth.values() for ms in of.values()))  # fmt: skip
    devices = sorted({device for of in truth.values() for device in of})
    pairs = {row[:2]: row[2:] for row in found.speedups.select("device", "over", "cases", "speedup", "least", "most").rows()}  # fmt: skip
    for one, other in combinations(devices, 2):
        ratios = [of[other] / of[one] for of in truth.values() if one in of and other in of]
        assert ((one, other) in pairs or (other, one) in pairs) == bool(ratios)
        if not ratios:
            continue
        mean = exp(sum(map(log, ratios)) / len(ratios))
        expected = (len(ratios), mean, min(ratios), max(ratios))
        if (one, other) not in pairs:
            one, other = other, one  # noqa: PLW2901
            expected = (len(ratios), 1 / mean, 1 / max(ratios), 1 / min(ratios))
        assert pairs[one, other] == pytest.approx(expected)
    several = {case: of for case, of in truth.items() if len(of) > 1}
    wins = {device: sum(of.get(device) == min(of.values()) for of in several.values()) for device in devices}
    assert dict(found.devices.select("device", "fastest").rows()) == wins
    assert dict(found.devices.select("device", "compared").rows()) == {device: sum(device in of for of in several.values()) for device in devices}  # fmt: skip


@pytest.mark.skipif(not NEUSIGHT.is_file(), reason="the public measurements are not beside the checkout")
def test_neusight_as_plain_python_has_it() -> None:
    check(compare(read_table(NEUSIGHT)), rows_of(NEUSIGHT, "e2e_ms"))


def test_a_made_table_as_plain_python_has_it(made: Comparison, tmp_path: Path) -> None:
    check(made, rows_of(tmp_path / "made.csv", "latency_ms"))
    assert made.repeated == 1
    assert made.cases.filter(device="B", model="middle")["latency_ns"].to_list() == [13e6]
    assert made.devices["device"].to_list() == ["A", "B", "C"], "C has no case in common and comes last"


def test_batches_are_never_mixed(made: Comparison) -> None:
    assert "C" not in {*made.speedups["device"], *made.speedups["over"]}
    assert made.options == ("batch",)
    assert made.cases.filter(device="C")["setting"].to_list() == ["batch 64"]
    assert made.cases.filter(device="C")["throughput_per_s"].to_list() == pytest.approx([64 / 0.03])


def test_precisions_compare_on_one_device(made: Comparison) -> None:
    (row,) = made.precisions.rows(named=True)
    assert (row["device"], row["precision"], row["over"], row["cases"]) == ("A", "fp16", "fp32", 2)
    assert row["speedup"] == pytest.approx((2 / 1.5 * 9 / 4) ** 0.5)


def test_flops_mislead_about_the_slow_model(made: Comparison) -> None:
    of_a = made.correlation.filter(device="A", precision="fp32", setting="batch 1").row(0, named=True)
    assert (of_a["models"], of_a["tau"]) == (3, pytest.approx(1 / 3))
    worst = made.misleading.filter(device="A", precision="fp32").rows(named=True)
    assert [(row["model"], row["flops_rank"], row["latency_rank"], row["disagreement"]) for row in worst] == [("large", 3, 2, -1), ("middle", 2, 3, 1)]  # fmt: skip


def test_pareto_sets_of_size_and_accuracy(made: Comparison) -> None:
    def inside(against: str) -> list[str]:
        own = made.pareto.filter(device="A", precision="fp32", setting="batch 1", against=against)
        return own.filter("in_set")["model"].to_list()

    assert inside("size") == ["small"]
    assert inside("accuracy") == ["small", "large", "middle"]


def test_settings_of_the_model_itself_do_not_keep_models_apart(tmp_path: Path) -> None:
    text = "case,model,device,latency_ms,seqlen,flops,batch\na-8,a,X,1,512,1,8\na-16,a,X,2,512,2,16\nb-8,b,X,3,1024,3,8\nb-16,b,X,4,1024,4,16\n"
    (tmp_path / "t.csv").write_text(text)
    found = compare(read_table(tmp_path / "t.csv"))
    assert found.options == ("batch",)
    assert found.correlation.select("setting", "models", "tau").rows() == [("batch 8", 2, 1.0), ("batch 16", 2, 1.0)]  # fmt: skip


def test_options_with_the_same_values_stay_apart(tmp_path: Path) -> None:
    """A text stands alone in a setting, unless another option has it too: else two cases would be one."""
    (tmp_path / "t.csv").write_text("model,device,latency_ms,forward,backward\nm,X,1,fast,\nm,Y,2,,fast\nm,X,3,fast,fast\nm,X,4,,\n")  # fmt: skip
    found = compare(read_table(tmp_path / "t.csv"))
    assert not found.speedups.height
    assert found.cases["setting"].to_list() == [
        "",
        "backward fast",
        "forward fast",
        "forward fast, backward fast",
    ]


def test_layer_types_sum_to_the_difference() -> None:
    times = {
        ("A", "conv"): 4.0,
        ("A", "norm"): 2.0,
        ("B", "conv"): 10.0,
        ("B", "norm"): 1.0,
        ("B", "copy"): 1.0,
    }
    rows = pl.DataFrame(
        [
            ("m", device, "fp32", latency, 1.0, None, None, None)
            for device, latency in (("A", 7.0), ("B", 13.0))
        ],
        schema=dict.fromkeys(("model", "device", "precision"), pl.String)
        | dict.fromkeys(FIGURES, pl.Float64),
        orient="row",
    )
    types = pl.DataFrame(
        [("AB".index(device), name, ns) for (device, name), ns in times.items()], schema=TYPES, orient="row"
    )
    found = compare(Measured(rows=rows, types=types)).layer_types.rows(named=True)
    assert [(row["type"], row["one"], row["difference_ns"], round(row["share"], 3)) for row in found] == [
        ("conv", "A", 6.0, 1.0), ("copy", "A", 1.0, 0.167), ("norm", "A", -1.0, -0.167),
    ]  # fmt: skip
    assert [row["one_ns"] for row in found] == [4.0, 0.0, 2.0], (
        "a type that a device did not run took no time there"
    )


def test_too_many_devices() -> None:
    rows = pl.DataFrame({"model": "m", "device": [str(n) for n in range(65)], "precision": ""}).with_columns(
        [pl.lit(1.0).alias(name) for name in FIGURES]
    )
    with pytest.raises(UsageError, match="65 devices"):
        compare(Measured(rows=rows))


@given(numbers)
def test_tau_is_that_of_scipy_and_of_all_pairs(points: list[tuple[int, int]]) -> None:
    one, other = ([point[axis] for point in points] for axis in (0, 1))
    sign = [((a > c) - (a < c), (b > d) - (b < d)) for (a, b), (c, d) in combinations(points, 2)]
    ties = [sum(each[axis] != 0 for each in sign) for axis in (0, 1)]
    (found,) = kendall_taus(np.array(one), np.array(other), np.zeros(len(one), int))
    if not all(ties):
        assert found is None
        return
    assert found is not None
    assert isclose(found, sum(a * b for a, b in sign) / (ties[0] * ties[1]) ** 0.5, abs_tol=1e-12)
    statistics = pytest.importorskip("scipy.stats")
    assert isclose(found, float(statistics.kendalltau(one, other).statistic), abs_tol=1e-12)


@given(numbers)
def test_the_pareto_set_is_what_nothing_dominates(points: list[tuple[int, int]]) -> None:
    def dominated(point: tuple[int, int]) -> bool:
        return any(
            all(a <= b for a, b in zip(other, point, strict=True)) and other != point for other in points
        )

    one, other = map(np.array, zip(*points, strict=True))
    found = pareto_sets(one, other, np.zeros(len(points), int))
    assert found.tolist() == [not dominated(point) for point in points]


@pytest.mark.slow
@given(st.lists(numbers, min_size=1, max_size=5), st.randoms())
def test_groups_do_not_touch_each_other(groups: list[list[tuple[int, int]]], random: Random) -> None:
    """Many at once, in any order of their members, are what each is alone."""
    rows = [(at, *point) for at, points in enumerate(groups) for point in points]
    random.shuffle(rows)
    group, one, other = map(np.array, zip(*rows, strict=True))
    alone = [(one[group == at], other[group == at], group[group == at] * 0) for at in range(len(groups))]
    assert kendall_taus(one, other, group) == [kendall_taus(*each)[0] for each in alone]
    found = pareto_sets(one, other, group)
    for at, each in enumerate(alone):
        assert found[group == at].tolist() == pareto_sets(*each).tolist()


@pytest.mark.slow
@settings(max_examples=40)
@given(
    st.dictionaries(
        st.tuples(st.sampled_from("abcd"), st.sampled_from("XYZ"), st.sampled_from(["fp32", "bf16"]), st.sampled_from([1, 8])),
        st.floats(0.1, 100),
        min_size=1,
    )
)  # fmt: skip
def test_speedups_of_any_table(measured: dict[tuple[str, str, str, int], float]) -> None:
    """With whatever is missing: each pair over the cases of both, and the two ways round are inverse."""
    rows = [(model, device, precision, ns, None, None, None, None, str(batch)) for (model, device, precision, batch), ns in measured.items()]  # fmt: skip
    schema = dict.fromkeys(("model", "device", "precision"), pl.String) | dict.fromkeys(FIGURES, pl.Float64) | {"option batch": pl.String}  # fmt: skip
    found = compare(Measured(rows=pl.DataFrame(rows, schema=schema, orient="row")))
    truth: dict[tuple[Any, ...], dict[str, float]] = defaultdict(dict)
    for (model, device, precision, batch), ns in measured.items():
        truth[model, precision, batch][device] = ns / 1e6
    check(found, truth)
    for one, other in product("XYZ", repeat=2):
        assert found.speedups.filter(device=one, over=other).height + found.speedups.filter(device=other, over=one).height <= 1  # fmt: skip


def test_the_least_and_most_cases_have_their_precision_where_several_are_pooled(tmp_path: Path) -> None:
    """`from 0.94 times for m00 (batch 32)` did not say in which of two precisions."""
    text = "model,device,precision,batch,latency_ms\n" + "".join(
        f"m{n},{device},{precision},{batch},{ns}\n"
        for n, precision, batch, times in [
            (0, "fp32", 1, (10, 12)),
            (0, "fp16", 1, (5, 15)),
            (1, "fp32", 8, (8, 7)),
        ]
        for device, ns in zip("AB", times, strict=True)
    )
    (tmp_path / "t.csv").write_text(text)
    row = compare(read_table(tmp_path / "t.csv")).speedups.row(0, named=True)
    assert (row["device"], row["least_case"], row["most_case"]) == (
        "A",
        "m1 (fp32)",
        "m0 (fp16)",
    )
    (tmp_path / "t.csv").write_text(text.replace("fp16", "fp32").replace("m0,A,fp32,1,5", "m2,A,fp32,1,5").replace("m0,B,fp32,1,15", "m2,B,fp32,1,15"))  # fmt: skip
    row = compare(read_table(tmp_path / "t.csv")).speedups.row(0, named=True)
    assert (row["least_case"], row["most_case"]) == ("m1", "m2")
