"""`gpt2` and `llama`: their loss, what a token sees, and text of any length."""

from pathlib import Path

import pytest
import torch
from torch.utils.data import default_collate

from tracekit.capture.recipe import Recipe
from tracekit.capture.workloads import WorkloadOptions, causal, gpt2, llama
from tracekit.errors import UsageError

CPU = torch.device("cpu")


def build(**options: object) -> Recipe:
    torch.manual_seed(0)
    return gpt2.build(WorkloadOptions(device=CPU, **{"tiny": True, **options}))


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


def test_a_token_does_not_see_those_after_it() -> None:
    model = llama.build_model("1b", tiny=True).eval()
    tokens = torch.randint(512, (1, 16))
    changed = tokens.clone()
    changed[0, 10] = (changed[0, 10] + 1) % 512
    with torch.no_grad():
        before, after = (causal.forward(model, {"input_ids": each}).logits for each in (tokens, changed))
    torch.testing.assert_close(before[:, :10], after[:, :10])
    assert not torch.allclose(before[:, 10:], after[:, 10:])


def test_a_file_without_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff\n")
    with pytest.raises(UsageError, match="there is no text in it"):
        build(data=tmp_path)
