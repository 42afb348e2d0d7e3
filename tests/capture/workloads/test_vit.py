"""`vit`: its size and work, its images, and that it learns."""

from pathlib import Path

import pytest
import torch
from torch.utils.data import default_collate
from torch.utils.flop_counter import FlopCounterMode

from tracekit.capture.recipe import Recipe
from tracekit.capture.workloads import WorkloadOptions, vit
from tracekit.capture.workloads.data.images import Normalise
from tracekit.errors import UsageError

CPU = torch.device("cpu")


def build(**options: object) -> Recipe:
    torch.manual_seed(0)
    return vit.build(WorkloadOptions(device=CPU, **{"tiny": True, **options}))


@pytest.mark.parametrize(
    ("variant", "parameters", "gflop"), [("b16", 86_567_656, 35.1), ("l16", 304_326_632, 123.1)]
)
def test_size_and_work_are_those_of_vit(variant: str, parameters: int, gflop: float) -> None:
    with torch.device("meta"):
        model = vit.build_model(variant)
        batch = vit.example_batch(variant)
        with FlopCounterMode(display=False) as counter:
            assert model(pixel_values=Normalise()(batch[0]), labels=batch[1]).loss.shape == ()
    assert sum(each.numel() for each in model.parameters()) == parameters
    assert counter.get_total_flops() / 1e9 == pytest.approx(gflop, rel=0.005)


def test_the_loss_falls_on_one_batch_and_is_the_one_transformers_computes() -> None:
    recipe = build(batch=4)
    batch = default_collate([recipe.dataset[index] for index in range(recipe.batch)])
    optimizer = recipe.optimizer(recipe.model)
    losses = []
    for step in range(20):
        optimizer.zero_grad()
        loss = recipe.loss(recipe.forward(recipe.model, batch), batch)
        if step == 0:
            theirs = recipe.model(pixel_values=Normalise()(batch[0]), labels=batch[1]).loss
            torch.testing.assert_close(loss, theirs)
        loss.backward()
        optimizer.step()
        assert recipe.after_update is not None
        recipe.after_update(recipe.model, step + 1)
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="vit has no variant 'h14'; choose one of: b16, l16"):
        build(variant="h14")
    with pytest.raises(UsageError, match="100 pixels a side; the side must be a multiple of 16"):
        build(size=100)
    with pytest.raises(UsageError, match="vit reads no real data"):
        build(data=tmp_path)
