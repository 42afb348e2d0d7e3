"""The warm-up of AdamW, and what it lets decay."""

import pytest
from torch import nn

from tracekit.capture.workloads import bert
from tracekit.capture.workloads.optimizers import AdamWWithWarmUp, linear_warmup


def test_the_rate_rises_to_its_height_and_biases_and_norms_do_not_decay() -> None:
    training = AdamWWithWarmUp(1e-4, decay=0.01, tiny=True)
    model = bert.build_model("tiny")
    training.after_update(model, 1)  # before there is an optimizer, nothing is to be done
    optimizer = training.optimizer(model)
    rates = [optimizer.param_groups[0]["lr"]]
    for updates in range(1, 7):
        training.after_update(model, updates)
        rates.append(optimizer.param_groups[1]["lr"])
    assert rates == pytest.approx([2.5e-3, 5e-3, 7.5e-3, 1e-2, 1e-2, 1e-2, 1e-2])
    fixed = {
        parameter
        for module in model.modules()
        for name, parameter in module.named_parameters(recurse=False)
        if isinstance(module, nn.LayerNorm) or name == "bias"
    }
    decays = {each: group["weight_decay"] for group in optimizer.param_groups for each in group["params"]}
    assert set(decays) == set(model.parameters())
    assert all(decay == (0.0 if each in fixed else 0.01) for each, decay in decays.items())


def test_a_linear_warm_up_ends_at_its_rate() -> None:
    rate = linear_warmup(3e-4, 300)
    assert [rate(update) for update in (1, 150, 300, 900)] == pytest.approx([1e-6, 1.5e-4, 3e-4, 3e-4])
