"""Some steps of a recipe on one batch."""

from __future__ import annotations

from typing import Any

from tracekit.capture.recipe import Recipe


def losses_on(recipe: Recipe, batch: Any, steps: int) -> list[float]:
    """The losses of these steps."""
    optimizer = recipe.optimizer(recipe.model)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = recipe.loss(recipe.forward(recipe.model, batch), batch)
        assert loss.shape == ()
        loss.backward()
        optimizer.step()
        assert recipe.after_update is not None
        recipe.after_update(recipe.model, step + 1)
        losses.append(loss.item())
    return losses
