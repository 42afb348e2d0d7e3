"""The LSTM translator: its size written out, its attention and its two-way layer by plain loops."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from tracekit.capture.recipe import Recipe
from tracekit.capture.workloads import WorkloadOptions, lstm_translation, recurrent

WIDTH, VOCABULARY = 1_024, 32_320


def tiny(**options) -> Recipe:
    torch.manual_seed(0)
    return lstm_translation.build(WorkloadOptions(device=torch.device("cpu"), tiny=True, **options))


def lstm_weights(inputs: int) -> int:
    return 4 * WIDTH * (inputs + WIDTH)


def test_parameters_are_those_of_the_layers():
    with torch.device("meta"):
        model = lstm_translation.build_model("gnmt")
    # Two-way layer, one of doubled input, two plain; decoder: one plain, three with the context beside.
    inputs = [WIDTH, WIDTH, 2 * WIDTH, WIDTH, WIDTH, WIDTH, 2 * WIDTH, 2 * WIDTH, 2 * WIDTH]
    recurrent = sum(lstm_weights(width) + 2 * 4 * WIDTH for width in inputs)
    attention = 2 * WIDTH * WIDTH + WIDTH
    total = VOCABULARY * WIDTH + recurrent + attention + WIDTH * VOCABULARY + VOCABULARY
    assert sum(parameter.numel() for parameter in model.parameters()) == total == 160_670_272
    assert "160,670,272" in lstm_translation.__doc__
    assert "160,670,272" in lstm_translation.build_model.__doc__


def test_flops_are_those_of_the_weights_and_the_attention():
    """On the meta device torch takes an LSTM apart into products, so that they are counted."""
    length = 5
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model = lstm_translation.build_model("gnmt")
        model(torch.ones(1, length, dtype=torch.int64), torch.ones(1, length, dtype=torch.int64))
    inputs = [WIDTH, WIDTH, 2 * WIDTH, WIDTH, WIDTH, WIDTH, 2 * WIDTH, 2 * WIDTH, 2 * WIDTH]
    each_token = sum(map(lstm_weights, inputs)) + 2 * WIDTH * WIDTH + WIDTH * VOCABULARY
    each_pair = WIDTH + WIDTH  # the weight of a key, and its share in the mean
    assert counter.get_total_flops() == 2 * length * each_token + 2 * length**2 * each_pair


def test_attention_against_plain_loops():
    torch.manual_seed(0)
    attention = lstm_translation.AdditiveAttention(4)
    queries, keys = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    filling = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1]]).bool()
    answers = attention(queries, keys, filling)
    for row in range(2):
        real = [key for key, filled in zip(keys[row], filling[row], strict=True) if not filled]
        for place in range(3):
            scores = [
                attention.weigh.weight[0]
                @ torch.tanh(attention.query.weight @ queries[row, place] + attention.key.weight @ key)
                for key in real
            ]
            weights = torch.stack(scores).exp() / torch.stack(scores).exp().sum()
            mean = sum(weight * key for weight, key in zip(weights, real, strict=True))
            torch.testing.assert_close(answers[row, place], mean)


def test_what_fills_up_is_not_heeded():
    model = tiny().model.eval()
    source, target = torch.randint(3, 500, (2, 6)), torch.randint(3, 500, (2, 5))
    source[1, 4:] = 0
    longer = torch.cat([source, torch.zeros(2, 3, dtype=torch.int64)], dim=1)
    torch.testing.assert_close(model(longer, target), model(source, target))
    alone = model(source[1:, :4], target[1:])
    torch.testing.assert_close(model(source, target)[1:], alone)
    assert not torch.allclose(model(source.clamp(min=3), target)[1:], alone, atol=1e-6)


def test_a_score_depends_on_no_later_token():
    model = tiny().model.eval()
    source, target = torch.randint(3, 500, (2, 6)), torch.randint(3, 500, (2, 5))
    changed = target.clone()
    changed[:, 3] = (changed[:, 3] + 1).clamp(max=499)
    same = (model(source, target) == model(source, changed)).all(dim=2).all(dim=0)
    assert same.tolist() == [True, True, True, False, False]


def test_packing_leaves_out_what_lies_beyond_the_lengths():
    features = torch.arange(6.0).view(2, 3, 1)
    packed = recurrent.pack(features, torch.tensor([3, 1]))
    assert packed.data.flatten().tolist() == [0, 3, 1, 2]
    doubled = recurrent.with_data(packed, 2 * packed.data)
    assert doubled.batch_sizes.tolist() == [2, 1, 1]
    assert recurrent.pack(features.to("meta"), torch.ones(2, device="meta")).data.shape == (6, 1)


def test_what_a_recipe_says_of_itself():
    recipe = tiny(size=7)
    assert (recipe.batch, recipe.size, recipe.synthetic, recipe.clip_norm) == (4, 7, True, 5.0)
    assert max(len(recipe.dataset[index][0]) for index in range(50)) == 7
    source, target = lstm_translation.example_batch("gnmt")
    assert (source.shape, target.shape) == ((1, 50), (1, 51))
