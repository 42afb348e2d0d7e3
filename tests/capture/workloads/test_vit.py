"""`vit`: its size and work, its images, and that it learns."""

from pathlib import Path

import pytest
import torch
from torch.utils.data import default_collate
from torch.utils.flop_counter import FlopCounterMode

from tracekit.capture.recipe import Recipe
from tracekit.capture.workloads import WorkloadOptions, vit
from tracekit.capture.workloads.hf import training as _hf_training
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
            assert vit.loss(vit.forward(model, batch), batch).shape == ()
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
            theirs = recipe.model(
                pixel_values=_hf_training.normalise(batch["image"]), labels=batch["label"]
            ).loss
            torch.testing.assert_close(loss, theirs)
        loss.backward()
        optimizer.step()
        assert recipe.after_update is not None
        recipe.after_update(recipe.model, step + 1)
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_images_are_bytes_of_the_size_and_depend_on_seed_and_index_alone() -> None:
    dataset = build(size=96).dataset
    sample = dataset[3]
    assert (sample["image"].shape, sample["image"].dtype) == ((3, 96, 96), torch.uint8)
    assert sample["image"].is_contiguous()
    assert 0 <= int(sample["label"]) < 1000
    again, other = build(size=96).dataset[3], build(size=96, seed=5).dataset[3]
    assert torch.equal(sample["image"], again["image"])
    assert not torch.equal(sample["image"], other["image"])
    assert len({int(dataset[index]["label"]) for index in range(50)}) > 40


def test_normalisation_has_imagenet_s_mean_and_deviation() -> None:
    images = torch.randint(256, (2, 3, 5, 7), dtype=torch.uint8)
    mean, deviation = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    done = _hf_training.normalise(images)
    for image, channel, row, column in ((0, 0, 0, 0), (1, 1, 4, 6), (1, 2, 2, 3)):
        expected = (images[image, channel, row, column].item() / 255 - mean[channel]) / deviation[channel]
        assert done[image, channel, row, column].item() == pytest.approx(expected, abs=1e-5)


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown variant of vit 'h14'; choose one of: b16, l16"):
        build(variant="h14")
    with pytest.raises(UsageError, match="100 pixels a side; the side must be a multiple of 16"):
        build(size=100)
    with pytest.raises(UsageError, match="vit has no reader for real data"):
        build(data=tmp_path)
