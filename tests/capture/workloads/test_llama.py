"""`llama`: its size and work, and that it learns."""

import pytest
import torch
from losses import losses_on
from torch.utils.data import default_collate
from torch.utils.flop_counter import FlopCounterMode

from tracekit.capture.workloads import WorkloadOptions, causal, llama
from tracekit.errors import UsageError


@pytest.mark.parametrize(
    ("variant", "parameters", "gflop"), [("1b", 1_235_814_400, 5611), ("7b", 6_738_415_616, 29_262)]
)
def test_size_and_work_are_those_of_llama(variant: str, parameters: int, gflop: float) -> None:
    with torch.device("meta"):
        model = llama.build_model(variant)
        batch = llama.example_batch(variant)
        with FlopCounterMode(display=False) as counter:
            causal.loss(causal.forward(model, batch), batch)
    assert sum(each.numel() for each in model.parameters()) == parameters
    assert counter.get_total_flops() / 1e9 == pytest.approx(gflop, rel=0.005)


def test_the_loss_falls_on_one_batch() -> None:
    torch.manual_seed(0)
    recipe = llama.build(WorkloadOptions(device=torch.device("cpu"), tiny=True))
    assert (recipe.batch, recipe.size, recipe.task) == (2, 32, "language modelling")
    batch = default_collate([recipe.dataset[index] for index in range(recipe.batch)])
    losses = losses_on(recipe, batch, 20)
    assert losses[-1] < losses[0] / 2


def test_a_token_does_not_see_those_after_it() -> None:
    model = llama.build_model("1b", tiny=True).eval()
    tokens = torch.randint(512, (1, 16))
    changed = tokens.clone()
    changed[0, 10] = (changed[0, 10] + 1) % 512
    with torch.no_grad():
        before, after = (causal.forward(model, {"input_ids": each}).logits for each in (tokens, changed))
    torch.testing.assert_close(before[:, :10], after[:, :10])
    assert not torch.allclose(before[:, 10:], after[:, 10:])


def test_an_unknown_variant_is_refused() -> None:
    with pytest.raises(UsageError, match="llama has no variant '8b'; choose one of: 1b, 7b"):
        llama.build_model("8b")
