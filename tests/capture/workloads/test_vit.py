"""`vit`: its loss."""

import pytest
import torch
from torch.utils.data import default_collate

from tracekit.capture.recipe import Recipe
from tracekit.capture.workloads import WorkloadOptions, vit
from tracekit.capture.workloads.data.images import Normalise

CPU = torch.device("cpu")


def build(**options: object) -> Recipe:
    torch.manual_seed(0)
    return vit.build(WorkloadOptions(device=CPU, **{"tiny": True, **options}))


@pytest.mark.slow
def test_the_loss_is_the_one_transformers_computes() -> None:
    recipe = build(batch=4)
    batch = default_collate([recipe.dataset[index] for index in range(recipe.batch)])
    with torch.no_grad():
        ours = recipe.loss(recipe.forward(recipe.model, batch), batch)
        theirs = recipe.model(pixel_values=Normalise()(batch[0]), labels=batch[1]).loss
    torch.testing.assert_close(ours, theirs)
