"""`gpt2`: its size and work, its loss, and text of any length."""

from pathlib import Path

import pytest
import torch
from losses import losses_on
from torch.utils.data import default_collate
from torch.utils.flop_counter import FlopCounterMode

from tracekit.capture.recipe import Recipe
from tracekit.capture.workloads import WorkloadOptions, causal, gpt2
from tracekit.errors import UsageError

CPU = torch.device("cpu")


def build(**options: object) -> Recipe:
    torch.manual_seed(0)
    return gpt2.build(WorkloadOptions(device=CPU, **{"tiny": True, **options}))


@pytest.mark.parametrize(
    ("variant", "parameters", "gflop"),
    [("small", 124_439_808, 291.6), ("medium", 354_823_168, 827.0), ("xl", 1_557_611_200, 3506.7)],
)
def test_size_and_work_are_those_of_gpt2(variant: str, parameters: int, gflop: float) -> None:
    with torch.device("meta"):
        model = gpt2.build_model(variant)
        batch = gpt2.example_batch(variant)
        with FlopCounterMode(display=False) as counter:
            assert causal.loss(causal.forward(model, batch), batch).shape == ()
    assert sum(each.numel() for each in model.parameters()) == parameters
    assert counter.get_total_flops() / 1e9 == pytest.approx(gflop, rel=0.005)


def test_the_mask_of_the_example_is_the_one_transformers_makes() -> None:
    model = gpt2.build_model("small", tiny=True).eval()
    batch = gpt2.example_batch("small", tiny=True)
    batch["input_ids"] = torch.randint(512, batch["input_ids"].shape)
    with torch.no_grad():
        given = model(**batch).logits
        made = model(input_ids=batch["input_ids"]).logits
    torch.testing.assert_close(given, made)


def test_the_loss_is_the_one_transformers_computes() -> None:
    recipe = build()
    batch = default_collate([recipe.dataset[index] for index in range(2)])
    model = recipe.model.eval()
    with torch.no_grad():
        ours = recipe.loss(recipe.forward(model, batch), batch)
        theirs = model(**batch, labels=batch["input_ids"]).loss
    torch.testing.assert_close(ours, theirs)


def test_the_loss_falls_on_one_batch() -> None:
    recipe = build()
    batch = default_collate([recipe.dataset[index] for index in range(recipe.batch)])
    losses = losses_on(recipe, batch, 20)
    assert losses[-1] < losses[0] / 2


def test_samples_depend_on_seed_and_index_alone() -> None:
    first, again, other = (build(seed=seed).dataset[5]["input_ids"] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert 3 <= int(first.min()) <= int(first.max()) < 512


def test_real_text_fills_each_sample_and_a_short_one_is_repeated(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("one two three\nfour five\n")
    recipe = build(data=file, size=12)
    assert (recipe.synthetic, len(recipe.dataset)) == (False, 1)
    words = ["one", "two", "three", "four", "five"]
    expected = [recipe.dataset.tokenizer.encode(word)[0] for word in words]
    assert recipe.dataset[0]["input_ids"].tolist() == (expected * 3)[:12]
    file.write_text("word\n" * 1000)
    assert len(build(data=file, size=12).dataset) == 5000 // 48


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="gpt2 has no variant 'big'; choose one of: small, medium, xl"):
        build(variant="big")
    with pytest.raises(UsageError, match="at least 2"):
        build(size=1)
    (tmp_path / "a.txt").write_bytes(b"\xff\n")
    with pytest.raises(UsageError, match="there is no text in it"):
        build(data=tmp_path)
    assert build(size=100).model.config.n_positions == 100
