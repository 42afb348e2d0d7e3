"""The model against the published counts, and the workload as a whole."""

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.flop_counter import FlopCounterMode

from tracekit.capture.recipe import Recipe
from tracekit.capture.workloads import WorkloadOptions
from tracekit.capture.workloads.yolov5 import VARIANTS, build, build_model, example_batch
from tracekit.capture.workloads.yolov5.model import YoloV5
from tracekit.errors import UsageError

CPU = torch.device("cpu")
PARAMETERS = {"n": 1_872_157, "s": 7_235_389, "m": 21_190_557, "l": 46_563_709, "x": 86_749_405}
CONVOLUTIONS = {"n": 60, "s": 60, "m": 82, "l": 104, "x": 126}
CONVOLUTION_GFLOPS = {"n": 4.468, "s": 16.434, "m": 48.872, "l": 108.994, "x": 205.448}
PUBLISHED_GFLOPS = {"n": 4.5, "s": 16.5, "m": 49.0, "l": 109.1, "x": 205.7}
S_LAYERS = [3520, 18560, 18816, 73984, 115712, 295424, 625152, 1180672, 1182720, 656896]
S_LAYERS += [131584, 0, 0, 361984, 33024, 0, 0, 90880, 147712, 0, 296448, 590336, 0, 1182720, 229245]


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def tiny_options(**changed: Any) -> WorkloadOptions:
    return dataclasses.replace(WorkloadOptions(device=CPU, tiny=True), **changed)


def test_s_is_the_default() -> None:
    assert VARIANTS[0] == "s"
    assert set(VARIANTS) == set(PARAMETERS)
    with torch.device("meta"):
        assert parameters(build_model("")) == PARAMETERS["s"]


@pytest.mark.parametrize("variant", ["s", *(pytest.param(n, marks=pytest.mark.slow) for n in "nmlx")])
def test_counts_are_the_published_ones(variant: str) -> None:
    normalised = 0

    def count(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        nonlocal normalised
        normalised += output.numel()

    with torch.device("meta"):
        model = build_model(variant)
        images, targets = example_batch(variant)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.register_forward_hook(count)
        with FlopCounterMode(display=False) as counter:
            levels = model(images.float() / 255)
    assert parameters(model) == PARAMETERS[variant]
    assert sum(isinstance(module, nn.Conv2d) for module in model.modules()) == CONVOLUTIONS[variant]
    assert counter.get_total_flops() / 1e9 == pytest.approx(CONVOLUTION_GFLOPS[variant], rel=1e-4)
    assert round((counter.get_total_flops() + 2 * normalised) / 1e9, 1) == PUBLISHED_GFLOPS[variant]
    assert [tuple(level.shape) for level in levels] == [(1, 3, side, side, 85) for side in (80, 40, 20)]
    assert images.dtype == torch.uint8
    assert targets.shape == (1, 6)


def test_parameters_of_each_layer_of_s() -> None:
    with torch.device("meta"):
        model = build_model("s")
    assert [parameters(layer) for layer in model.layers] == S_LAYERS


@pytest.mark.parametrize(
    ("width", "classes", "expected"),
    [(0.25, 1, 1_765_270), (0.25, 20, 1_790_977), (0.5, 1, 7_022_326), (0.5, 20, 7_073_569)],
)
def test_parameters_at_other_numbers_of_classes(width: float, classes: int, expected: int) -> None:
    with torch.device("meta"):
        assert parameters(YoloV5(0.33, width, classes)) == expected


def test_first_scores_expect_few_objects() -> None:
    torch.manual_seed(0)
    detect = YoloV5(0.33, 0.125).detect
    for conv, cells in zip(detect.m, (80, 40, 20), strict=True):
        bias = conv.get_parameter("bias").detach().view(3, 85)
        # The first biases are uniform within 1 / sqrt(inputs) of 0, before the priors are added.
        spread = conv.get_parameter("weight").shape[1] ** -0.5
        assert (bias[:, 4] - torch.tensor(8 / cells**2).log()).abs().max() <= spread
        assert (bias[:, 5:] - torch.tensor(0.6 / (80 - 0.99999)).log()).abs().max() <= spread
        assert bias[:, :4].abs().max() <= spread


def test_decode_puts_boxes_into_pixels() -> None:
    detect = YoloV5(0.33, 0.125, classes=2).detect
    levels = [torch.zeros(1, 3, side, side + 1, 7) for side in (4, 2, 1)]
    levels[1][0, 2, 1, 0] = torch.tensor([1.0, -1.0, 0.5, -0.5, 2.0, 3.0, -3.0])
    decoded = detect.decode(levels)
    assert decoded.shape == (1, 3 * (4 * 5 + 2 * 3 + 1 * 2), 7)
    # Zeros: the middle of the cell, the anchor's own size, even scores.
    torch.testing.assert_close(decoded[0, 0], torch.tensor([4.0, 4.0, 10.0, 13.0, 0.5, 0.5, 0.5]))
    torch.testing.assert_close(decoded[0, 5 + 1, :2], torch.tensor([12.0, 12.0]))
    share = torch.tensor([1.0, -1.0, 0.5, -0.5, 2.0, 3.0, -3.0], dtype=torch.float64).sigmoid()
    expected = [
        (2 * share[0] - 0.5 + 0) * 16,
        (2 * share[1] - 0.5 + 1) * 16,
        (2 * share[2]) ** 2 * 59,
        (2 * share[3]) ** 2 * 119,
        *share[4:],
    ]
    row = 3 * 20 + 2 * 6 + 1 * 3 + 0
    torch.testing.assert_close(decoded[0, row], torch.tensor([float(value) for value in expected]))


def train(recipe: Recipe, batch: Any, first_update: int) -> list[float]:
    optimizer = recipe.optimizer(recipe.model)
    recipe.after_update(recipe.model, first_update)
    losses = []
    for update in range(first_update + 1, first_update + 21):
        optimizer.zero_grad()
        loss = recipe.loss(recipe.forward(recipe.model, batch), batch)
        loss.backward()
        assert recipe.clip_norm is not None
        nn.utils.clip_grad_norm_(recipe.model.parameters(), recipe.clip_norm)
        optimizer.step()
        recipe.after_update(recipe.model, update)
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["s", "x"])
@pytest.mark.parametrize("first_update", [0, 1_000_000])  # the warm-up trains little more than the biases
def test_tiny_training_lowers_the_loss(variant: str, first_update: int) -> None:
    torch.manual_seed(0)
    recipe = build(tiny_options(variant=variant))
    assert parameters(recipe.model) < PARAMETERS["n"] / 2
    batch = next(iter(DataLoader(recipe.dataset, batch_size=recipe.batch, collate_fn=recipe.collate)))
    assert batch[0].shape == (2, 3, 64, 64)
    losses = train(recipe, batch, first_update)
    assert torch.tensor(losses).isfinite().all()
    assert sum(losses[-3:]) < 0.97 * sum(losses[:3])


@pytest.mark.slow
def test_forward_and_loss_under_autocast() -> None:
    torch.manual_seed(0)
    recipe = build(tiny_options())
    batch = example_batch("s", tiny=True)
    plain = recipe.loss(recipe.forward(copy.deepcopy(recipe.model), batch), batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        levels = recipe.forward(recipe.model, batch)
        loss = recipe.loss(levels, batch)
    assert levels[0].dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    assert loss.shape == ()
    assert float(loss.detach()) == pytest.approx(float(plain.detach()), rel=0.02)
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in recipe.model.parameters())


def test_the_model_gets_values_from_0_to_1() -> None:
    recipe = build(tiny_options())
    images = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 3, 1, 1)
    got = recipe.forward(nn.Identity(), (images, torch.zeros(0, 6)))
    torch.testing.assert_close(got.flatten(), torch.tensor([0.0, 0.2, 1.0]))


def test_what_the_recipe_says() -> None:
    recipe = build(tiny_options(batch=3, size=96))
    assert (recipe.task, recipe.batch, recipe.size, recipe.synthetic) == ("object detection", 3, 96, True)
    assert recipe.clip_norm == 10.0
    assert recipe.skipped() == 0
    assert recipe.config["variant"] == "s"
    assert recipe.dataset[0][0].shape == (3, 96, 96)


def test_default_batch_and_size() -> None:
    recipe = build(WorkloadOptions(device=torch.device("meta"), variant="n"))
    assert (recipe.batch, recipe.size) == (16, 640)
    assert parameters(recipe.model) == PARAMETERS["n"]


@pytest.mark.parametrize(
    ("variant", "remedy"), [("S", "choose one of: s, n, m, l, x"), ("xx", "did you mean x?")]
)
def test_an_unknown_variant(variant: str, remedy: str) -> None:
    for call in (build_model, example_batch, lambda name: build(tiny_options(variant=name))):
        with pytest.raises(UsageError, match="no variant") as caught:
            call(variant)
        assert str(caught.value) == f"yolov5 has no variant {variant!r}; {remedy}"


@pytest.mark.parametrize("size", [1, 32, 100, 639])
def test_a_size_that_does_not_fit_the_strides(size: int) -> None:
    with pytest.raises(UsageError, match=f"size is {size}; it must be a multiple of 32, at least 64"):
        build(tiny_options(size=size))


@pytest.mark.parametrize(("low", "high"), [("n", "m"), ("s", "l"), ("n", "x")])
def test_the_larger_models_have_their_own_gains_and_rates(low: str, high: str) -> None:
    small, large = build(tiny_options(variant=low)), build(tiny_options(variant=high))
    levels = [torch.zeros(1, 3, side, side, 85) for side in (8, 4, 2)]
    surer = [torch.cat((level[..., :5], level[..., 5:] - 3), -1) for level in levels]
    images, targets = example_batch("s", tiny=True)

    def loss(recipe: Recipe, output: list[torch.Tensor], boxes: torch.Tensor) -> float:
        return float(recipe.loss(output, (images, boxes)))

    nothing = targets[:0]
    assert loss(large, levels, nothing) == pytest.approx(0.7 * loss(small, levels, nothing))
    gain = [loss(recipe, levels, targets) - loss(recipe, surer, targets) for recipe in (small, large)]
    assert gain[0] > 0
    assert gain[1] == pytest.approx(0.6 * gain[0], rel=1e-4)
    for recipe, rate in ((small, 0.0001), (large, 0.001)):
        optimizer = recipe.optimizer(recipe.model)
        assert recipe.after_update is not None
        recipe.after_update(recipe.model, 10**9)
        assert [group["lr"] for group in optimizer.param_groups] == [pytest.approx(rate)] * 3
