"""The translation Transformer: published sizes, what it may look at, its learning rate, made-up sentence pairs."""

import numpy as np
import pytest
import torch

from tracekit.capture.recipe import Recipe
from tracekit.capture.workloads import WorkloadOptions, transformer
from tracekit.capture.workloads.data import samples as random_data
from tracekit.capture.workloads.data import translation as translation_data

CPU = torch.device("cpu")


def tiny(**options) -> Recipe:
    torch.manual_seed(0)
    return transformer.build(WorkloadOptions(device=CPU, tiny=True, **options))


def tiny_without_dropout() -> transformer.TranslationTransformer:
    torch.manual_seed(0)
    model = transformer.build_model("", tiny=True)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(module, torch.nn.MultiheadAttention):
            module.dropout = 0.0
    return model


def test_one_embedding_is_used_three_times():
    model = transformer.build_model("", tiny=True)
    assert model.head.weight is model.embedding.weight
    assert sum(parameter.numel() for parameter in model.parameters()) < 240_000


def test_a_score_depends_on_no_later_token():
    model = tiny_without_dropout()
    source, target = torch.randint(3, 1_000, (2, 9)), torch.randint(3, 1_000, (2, 8))
    changed = target.clone()
    changed[:, 5] = 7
    difference = (model(source, target) - model(source, changed)).abs().amax(dim=(0, 2))
    assert (difference[:5] < 1e-5).all()
    assert (difference[5:] > 1e-3).all()


def test_what_fills_up_is_not_heeded():
    model = tiny_without_dropout()
    source, target = torch.randint(3, 1_000, (2, 9)), torch.randint(3, 1_000, (2, 8))
    longer = torch.cat([source, torch.zeros(2, 4, dtype=torch.int64)], dim=1)
    wider = torch.cat([target, torch.zeros(2, 3, dtype=torch.int64)], dim=1)
    torch.testing.assert_close(model(longer, wider)[:, :8], model(source, target), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(model(longer + 1, target), model(source, target), atol=1e-3)


def test_positions_by_hand():
    added = transformer.SinusoidalPositions(6)(torch.zeros(1, 4, 6))[0]
    for place in range(4):
        angles = [place / 10_000 ** (2 * pair / 6) for pair in range(3)]
        torch.testing.assert_close(added[place], torch.tensor([*np.sin(angles), *np.cos(angles)]).float())


def test_the_learning_rate_follows_the_updates():
    recipe = tiny()
    recipe.after_update(recipe.model, 1)  # before there is an optimizer, nothing is to be done
    optimizer = recipe.optimizer(recipe.model)
    rates = [optimizer.param_groups[0]["lr"]]
    for update in range(1, 300):
        recipe.after_update(recipe.model, update)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates[0] == pytest.approx(64**-0.5 * 100**-1.5)
    assert rates[49] == pytest.approx(50 * rates[0])
    assert int(np.argmax(rates)) + 1 == 100
    assert rates[99] == pytest.approx(64**-0.5 / 10)
    assert rates[224] == pytest.approx(64**-0.5 / 15)
    assert transformer.inverse_square_root(4_000, 512, 4_000) == pytest.approx(6.99e-4, rel=1e-3)
    group = optimizer.param_groups[0]
    assert (group["betas"], group["eps"]) == ((0.9, 0.98), 1e-9)


def test_the_loss_by_hand():
    scores = torch.tensor([[[1.0, 0.0, 2.0, 0.5], [0.0, 3.0, 0.0, 0.0], [9.0, 9.0, 9.0, 8.0]]])
    target = torch.tensor([[1, 3, 2, 0]])
    expected = []
    for row, token in ((scores[0, 0], 3), (scores[0, 1], 2)):  # the third score is for filling
        shares = torch.full((4,), 0.1 / 4)
        shares[token] += 0.9
        expected.append(-(shares * torch.log(row.exp() / row.exp().sum())).sum())
    torch.testing.assert_close(
        translation_data.translation_loss(scores, (None, target)), torch.stack(expected).mean()
    )


def test_sentence_pairs():
    recipe = tiny()
    assert (recipe.batch, recipe.size, recipe.synthetic, recipe.skipped()) == (4, 16, True, 0)
    source, target = recipe.dataset[3]
    assert source[-1] == target[-1] == 2
    assert target[0] == 1
    assert all(torch.equal(a, b) for a, b in zip((source, target), tiny().dataset[3], strict=True))
    assert not torch.equal(tiny(seed=1).dataset[3][1], target)
    short = tiny(size=5).dataset
    for first, second in (short[index] for index in range(200)):
        assert 1 <= len(first) <= 5
        assert 2 <= len(second) <= 6


def test_lengths_and_tokens_are_distributed_as_stated():
    pairs = [translation_data.SentencePairs(37_000, 10**6, 0)[index] for index in range(4_000)]
    lengths = np.array([len(source) for source, _ in pairs])
    assert np.median(lengths) == pytest.approx(24, abs=1)
    assert np.log(lengths).std() == pytest.approx(0.6, abs=0.03)
    ratios = np.array([(len(target) - 1) / len(source) for source, target in pairs if len(source) > 40])
    assert np.log(ratios).std() == pytest.approx(0.15, abs=0.015)
    words = torch.cat([source[:-1] for source, _ in pairs])
    assert words.min() == 3
    assert words.max() < 37_000
    share = (1 - 2**-0.05) / (1 - 36_998**-0.05)  # of rank 1 among 36,997
    assert (words == 3).double().mean().item() == pytest.approx(share, rel=0.03)


def test_an_exponent_of_1_is_refused():
    with pytest.raises(ValueError, match="exponent 1"):
        random_data.bounded_zipf(np.array([0.5]), 10, 1)


def test_a_batch_is_filled_up_and_the_longest_source_comes_first():
    samples = [
        (torch.tensor([5, 2]), torch.tensor([1, 6, 7, 2])),
        (torch.tensor([8, 9, 2]), torch.tensor([1, 2])),
    ]
    source, target = translation_data.collate_pairs(samples)
    assert source.tolist() == [[8, 9, 2], [5, 2, 0]]
    assert target.tolist() == [[1, 2, 0, 0], [1, 6, 7, 2]]
