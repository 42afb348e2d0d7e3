"""Parameter groups, rates and averaged weights."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from tracekit.capture.workloads.yolov5 import build_model
from tracekit.capture.workloads.yolov5.training import Training, WeightAverage, accumulated, parameter_groups


def training(batch: int = 16, epoch: int = 1000, final_share: float = 0.01) -> Training:
    return Training(batch=batch, batches_per_epoch=epoch, final_share=final_share)


@pytest.mark.parametrize(
    ("variant", "sizes"), [("n", (60, 60, 57)), ("s", (60, 60, 57)), ("m", (82, 82, 79))]
)
def test_three_groups(variant: str, sizes: tuple[int, int, int]) -> None:
    with torch.device("meta"):
        model = build_model(variant)
    groups = parameter_groups(model)
    assert tuple(len(group) for group in groups) == sizes
    names = {parameter: name for name, parameter in model.named_parameters()}
    biases, weights, norms = ([names[parameter] for parameter in group] for group in groups)
    assert all(name.endswith(".bias") for name in biases)
    assert all(name.endswith(".weight") and ".bn." not in name for name in weights)
    assert all(name.endswith(".bn.weight") for name in norms)
    assert sorted(biases + weights + norms) == sorted(names.values())


@pytest.mark.slow
def test_groups_of_a_compiled_model_hold_each_parameter_once() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    wrapped = torch.compile(model, backend="eager")
    assert [len(group) for group in parameter_groups(wrapped)] == [2, 1, 1]


@pytest.mark.parametrize(
    ("batch", "batches", "decay"),
    [(16, 4, 5e-4), (64, 1, 5e-4), (2, 32, 5e-4), (48, 1, 3.75e-4), (128, 1, 1e-3)],
)
def test_decay_goes_with_the_images_of_an_update(batch: int, batches: int, decay: float) -> None:
    assert accumulated(batch) == batches
    optimizer = training(batch).optimizer(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)))
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.0, pytest.approx(decay), 0.0]


def test_the_optimizer() -> None:
    optimizer = training().optimizer(nn.Conv2d(3, 4, 1))
    assert isinstance(optimizer, torch.optim.SGD)
    assert optimizer.defaults["lr"] == 0.01
    assert optimizer.defaults["momentum"] == 0.937
    assert all(group["nesterov"] and group["initial_lr"] == 0.01 for group in optimizer.param_groups)


def test_warm_up_and_fall_of_the_rates() -> None:
    plan = training(epoch=1000, final_share=0.1)
    assert plan.learning_rates(0) == (0.1, 0.0)
    assert plan.momentum(0) == pytest.approx(0.8)
    bias, rate = plan.learning_rates(1500)  # half of the warm-up; one whole epoch of 300 has gone by
    falling = 0.01 * (1 - 0.9 * 1 / 300)
    assert bias == pytest.approx((0.1 + falling) / 2)
    assert rate == pytest.approx(falling / 2)
    assert plan.momentum(1500) == pytest.approx((0.8 + 0.937) / 2)
    assert plan.learning_rates(3000) == (pytest.approx(0.01 * (1 - 0.9 * 3 / 300)),) * 2
    assert plan.momentum(3000) == plan.momentum(10**9) == pytest.approx(0.937)
    assert plan.learning_rates(150_000) == (pytest.approx(0.01 * 0.55),) * 2
    assert plan.learning_rates(300_000) == (pytest.approx(0.001),) * 2
    assert plan.learning_rates(10**9) == (pytest.approx(0.001),) * 2


def test_the_warm_up_takes_a_hundred_updates_at_least() -> None:
    plan = training(epoch=5)
    assert plan.learning_rates(99)[0] > 0.0101
    assert plan.learning_rates(100)[0] == pytest.approx(plan.learning_rates(100)[1])


def test_each_update_sets_the_rates_of_the_groups() -> None:
    plan = training(epoch=50)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    optimizer = plan.optimizer(model)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.0, 0.0]
    plan(model, 75)
    bias, rate = plan.learning_rates(75)
    assert [group["lr"] for group in optimizer.param_groups] == [bias, rate, rate]
    assert {group["momentum"] for group in optimizer.param_groups} == {plan.momentum(75)}


def test_an_update_before_there_is_an_optimizer() -> None:
    with pytest.raises(RuntimeError, match="before the optimizer exists"):
        training()(nn.Conv2d(3, 4, 1), 1)


def test_the_average_is_that_of_the_formula() -> None:
    model = nn.BatchNorm1d(1)
    average = WeightAverage()
    average.start(model)
    expected = {name: float(value) for name, value in model.state_dict().items() if value.is_floating_point()}
    assert set(expected) == {"weight", "bias", "running_mean", "running_var"}  # no count of batches
    for updates in range(1, 6):
        with torch.no_grad():
            for number, value in enumerate(model.state_dict().values()):
                value.fill_(updates * 10 + number)
        average.update(model, updates)
        decay = 0.9999 * (1 - math.exp(-updates / 2000))
        for name, before in expected.items():
            expected[name] = decay * before + (1 - decay) * float(model.state_dict()[name])
    assert {name: float(value) for name, value in average.state.items()} == pytest.approx(expected)
    assert not any(value.requires_grad for value in average.state.values())


def test_the_average_moves_slowly_after_many_updates() -> None:
    model = nn.Linear(1, 1, bias=False)
    average = WeightAverage()
    with torch.no_grad():
        model.weight.fill_(0.0)
    average.start(model)
    with torch.no_grad():
        model.weight.fill_(1.0)
    average.update(model, 10**6)
    assert float(average.state["weight"]) == pytest.approx(1e-4, rel=1e-2)


class Wrapper(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, images: Any) -> Any:
        return self.module(images)


@pytest.mark.slow
def test_the_average_looks_through_wrappers() -> None:
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1))
    inner = torch.compile(nn.Sequential(nn.Conv2d(1, 1, 1)), backend="eager")
    by_block = nn.Sequential(inner, nn.BatchNorm2d(1))
    expected = ["0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"]
    for wrapped in (model, Wrapper(model), torch.compile(model, backend="eager"), Wrapper(Wrapper(model))):
        average = WeightAverage()
        average.start(wrapped)
        assert list(average.state) == expected
        average.update(Wrapper(wrapped), 1)
    average = WeightAverage()
    average.start(by_block)
    assert list(average.state) == ["0.0.weight", "0.0.bias", *expected[2:]]
