"""The shared training loop against trainings written out, and against itself with a setting changed."""

import math
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from recipes_of_ours import smooth
from torch import nn

from tracekit.capture.marks.names import no_phase
from tracekit.capture.recipe import Recipe
from tracekit.capture.run import run
from tracekit.capture.sessions import recording
from tracekit.capture.training import Training, moved
from tracekit.capture.workloads import WorkloadOptions, cnn, encoder, resnet50
from tracekit.errors import UsageError
from tracekit.manifest import CaptureOptions, Precision, Settings

CPU = torch.device("cpu")
ONE_STEP = CaptureOptions(steps=1, profile_memory=False)


def smooth_recipe(batch: int, **more: object) -> Recipe:
    torch.manual_seed(3)
    return smooth(WorkloadOptions(CPU, batch=batch), **more)


def encoder_recipe() -> Recipe:
    torch.manual_seed(3)
    return encoder.build(WorkloadOptions(CPU, batch=4, size=16))


def stepped(recipe: Recipe, settings: Settings, steps: int = 1) -> tuple[list[float], list[torch.Tensor]]:
    """The losses of the steps and the parameters after them."""
    training = Training(recipe, settings, CPU)
    batches = training.batches()
    torch.manual_seed(4)
    losses = [float(training.step(next(batches), no_phase)) for _ in range(steps)]
    return losses, [p.detach().clone() for p in training.model.parameters()]


def gradients(model: nn.Module) -> list[torch.Tensor]:
    found = [p.grad for p in model.parameters()]
    assert all(gradient is not None for gradient in found)
    return [gradient.clone() for gradient in found if gradient is not None]


def test_a_step_is_that_of_a_loop_written_out() -> None:
    recipe, twin = smooth_recipe(4), smooth_recipe(4).model
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    losses = []
    for step in range(3):
        points = [recipe.dataset[4 * step + place] for place in range(4)]
        inputs, wanted = (torch.stack(column) for column in zip(*points, strict=True))
        loss = ((twin(inputs) - wanted) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    found, parameters = stepped(recipe, Settings(), steps=3)
    assert found == pytest.approx(losses, rel=1e-6)
    for one, other in zip(parameters, twin.parameters(), strict=True):
        torch.testing.assert_close(one, other.detach())


def test_two_batches_a_step_train_as_one_of_twice_the_size() -> None:
    losses, twice = stepped(smooth_recipe(4), Settings(accumulate=2), steps=2)
    expected, whole = stepped(smooth_recipe(8), Settings(), steps=2)
    assert losses == pytest.approx(expected, rel=1e-5)
    for one, other in zip(twice, whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
    _, once = stepped(smooth_recipe(4), Settings(), steps=2)
    assert any(not torch.allclose(one, other) for one, other in zip(twice, once, strict=True))
    assert Training(smooth_recipe(4), Settings(accumulate=2), CPU).samples_per_step == 8


@pytest.mark.parametrize("limit", [1e-3, 1e6])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_gradients_are_clipped_after_the_scaler_and_no_further(limit: float, precision: Precision) -> None:
    recipe = smooth_recipe(4, clip_norm=limit)
    training = Training(recipe, Settings(precision=precision), CPU)
    training.step(next(training.batches()), no_phase)
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients(recipe.model)))
    free = Training(smooth_recipe(4), Settings(), CPU)
    free.step(next(free.batches()), no_phase)
    own = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients(free.model)))
    assert own > 1e-3
    assert norm == pytest.approx(min(own, limit), rel=0.02 if precision == "fp16" else 1e-4)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_lower_precisions_run_and_stay_close(precision: Precision) -> None:
    seen: set[torch.dtype] = set()
    recipe = encoder_recipe()
    layer = next(m for m in recipe.model.modules() if isinstance(m, nn.Linear))
    layer.register_forward_hook(lambda _module, _inputs, output: seen.add(output.dtype))
    losses, parameters = stepped(recipe, Settings(precision=precision), steps=3)
    assert seen == {torch.bfloat16 if precision == "bf16" else torch.float16}
    assert {p.dtype for p in parameters} == {torch.float32}
    expected, _ = stepped(encoder_recipe(), Settings(), steps=3)
    assert losses == pytest.approx(expected, rel=0.02)
    assert losses != expected


def test_tf32_is_refused_on_a_cpu(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no tf32 on cpu"):
        run("encoder", tmp_path, settings=Settings(precision="tf32"))


@pytest.mark.parametrize("name", ["encoder", "cnn"])
def test_checkpointed_activations_give_the_same_gradients_to_the_last_bit(name: str) -> None:
    def trained(*, checkpointed: bool) -> tuple[list[torch.Tensor], int]:
        torch.manual_seed(3)
        build = {"encoder": encoder.build, "cnn": cnn.build}[name]
        recipe = build(WorkloadOptions(CPU, batch=2, size=16))
        training = Training(recipe, Settings(checkpoint_activations=checkpointed), CPU)
        batch = next(training.batches())
        calls = 0
        inner = next(m for _, m in recipe.model.named_modules() if isinstance(m, nn.ReLU | nn.GELU))

        def count(*_: object) -> None:
            nonlocal calls
            calls += 1

        # Not the stem's, which is no block: the last one is inside a block in both models.
        inner = [m for m in recipe.model.modules() if isinstance(m, nn.ReLU | nn.GELU)][-1]
        inner.register_forward_pre_hook(count)
        torch.manual_seed(5)
        training.step(batch, no_phase)
        return gradients(recipe.model), calls

    plain, once = trained(checkpointed=False)
    again, twice = trained(checkpointed=True)
    assert twice == 2 * once
    assert all(torch.equal(one, other) for one, other in zip(plain, again, strict=True))


@pytest.mark.parametrize("name", ["cnn", "resnet50"])
def test_channels_last_gives_the_same_loss(name: str) -> None:
    def build() -> Recipe:
        torch.manual_seed(3)
        if name == "cnn":
            return cnn.build(WorkloadOptions(CPU, batch=2, size=16))
        return resnet50.build(WorkloadOptions(CPU, tiny=True, variant="18"))

    recipe = build()
    formats: set[bool] = set()
    first = next(m for m in recipe.model.modules() if isinstance(m, nn.Conv2d))
    first.register_forward_pre_hook(
        lambda _module, inputs: formats.add(inputs[0].is_contiguous(memory_format=torch.channels_last))
    )
    (loss,), _ = stepped(recipe, Settings(channels_last=True))
    (expected,), _ = stepped(build(), Settings())
    assert formats == {True}
    assert loss == pytest.approx(expected, abs=1e-5)


def test_what_has_no_blocks_can_be_neither_checkpointed_nor_compiled() -> None:
    for settings in (Settings(checkpoint_activations=True), Settings(compile=True)):
        recipe = smooth_recipe(4)
        object.__setattr__(recipe, "model", nn.Linear(6, 1))
        with pytest.raises(UsageError, match="no repeated blocks"):
            Training(recipe, settings, CPU)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_compiled_blocks_are_the_finest_layers(tmp_path: Path) -> None:
    settings = Settings(compile=True)
    recipe = smooth_recipe(4)
    training = Training(recipe, settings, CPU)
    batches = training.batches()
    training.step(next(batches), no_phase)
    with recording("ML", training.model, CPU, ONE_STEP) as live:
        while not live.done:
            training.step(next(batches), live.phase)
            live.step()
    assert live.recorded is not None
    table = live.recorded.layers
    blocks = [layer for layer in table.layers if layer.type == "Block"]
    assert len(blocks) == 2
    assert not [layer for layer in table.layers if layer.parent in {block.id for block in blocks}]
    assert [table.calls.layer.count(block.id) for block in blocks] == [1, 1]
    plain = smooth_recipe(4)
    inner = dict(plain.model.named_modules())
    for block in blocks:
        assert block.parameters == sum(p.numel() for p in inner[block.name].parameters())
    own = sum(p.numel() for p in recipe.model.parameters())
    assert own == sum(p.numel() for p in plain.model.parameters())


def test_too_few_samples_for_a_batch_are_refused() -> None:
    training = Training(smooth_recipe(1_001), Settings(), CPU)
    with pytest.raises(UsageError, match="fewer than the 1001 samples of a batch; lower --batch"):
        next(training.batches())


def test_batches_begin_again_at_the_end_of_the_data() -> None:
    batches = Training(smooth_recipe(400), Settings(), CPU).batches()
    first, second, third = (next(batches)[0][0] for _ in range(3))
    assert torch.equal(first, third)
    assert not torch.equal(first, second)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_batches_of_worker_processes_are_the_same() -> None:
    alone, helped = (Training(smooth_recipe(4), Settings(workers=n), CPU).batches() for n in (0, 2))
    for _ in range(3):
        (one,), (other,) = next(alone), next(helped)
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


Named = namedtuple("Named", ["left", "right"])


def test_nests_keep_their_form_when_they_are_moved() -> None:
    one, two = torch.ones(2), torch.zeros(3)
    nest = {"a": Named(one, [two, "text"]), "b": (one, None, 3), "c": {"d": []}}
    there = moved(nest, torch.device("meta"))
    assert list(there) == ["a", "b", "c"]
    assert isinstance(there["a"], Named)
    assert type(there["a"].right) is list
    assert there["a"].right[1] == "text"
    assert type(there["b"]) is tuple
    assert there["b"][1:] == (None, 3)
    assert there["c"] == {"d": []}
    for tensor in (there["a"].left, there["a"].right[0], there["b"][0]):
        assert tensor.device.type == "meta"
    assert one.device.type == "cpu"  # what was given is as it was
    assert moved("text", CPU) == "text"


def test_only_images_change_their_memory_format() -> None:
    image, row = torch.rand(2, 3, 4, 4), torch.rand(2, 3)
    there = moved((image, row), CPU, channels_last=True)
    assert there[0].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(there[0], image)
    assert torch.equal(there[1], row)
