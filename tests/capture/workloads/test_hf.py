"""`hf`: each architecture trains a step when tiny; the full ones have the sizes that are published."""

import re
import socket
from typing import Any

import pytest
import torch
from losses import losses_on

from tracekit.capture.recipe import Recipe
from tracekit.capture.workloads import WorkloadOptions, hf
from tracekit.capture.workloads.data.samples import GeneratedSamples
from tracekit.capture.workloads.hf import inputs, scenes
from tracekit.capture.workloads.hf.architectures import ARCHITECTURES, find, names
from tracekit.capture.workloads.hf.workload import build_config
from tracekit.errors import UsageError

CPU = torch.device("cpu")

# Counted apart from this code, for a tiny configuration of the same numbers.
TINY_PARAMETERS = {
    "bert": 25_730,
    "roberta": 24_608,
    "xlm-roberta": 24_608,
    "camembert": 24_608,
    "albert": 14_034,
    "distilbert": 24_544,
    "electra": 21_857,
    "mpnet": 24_608,
    "megatron-bert": 25_730,
    "roformer": 23_584,
    "convbert": 24_434,
    "fnet": 18_402,
    "longformer": 30_944,
    "big-bird": 25_730,
    "funnel": 34_337,
    "xlnet": 23_456,
    "nystromformer": 24_932,
    "modernbert": 25_920,
    "rembert": 23_504,
    "ernie": 25_730,
    "luke": 39_888,
    "canine": 52_450,
    "nomic-bert": 26_208,
    "eurobert": 26_784,
    "esm": 19_366,
    "gpt2": 31_616,
    "gpt-neo": 31_424,
    "gpt-j": 33_408,
    "gpt-neox": 25_344,
    "opt": 23_360,
    "bloom": 29_632,
    "llama": 26_784,
    "mistral": 26_784,
    "mixtral": 63_904,
    "qwen2": 26_912,
    "qwen3": 26_848,
    "qwen3-moe": 39_392,
    "gemma": 22_688,
    "gemma3": 22_880,
    "phi": 25_344,
    "phi3": 26_784,
    "falcon": 26_816,
    "stablelm": 28_992,
    "mpt": 28_832,
    "olmo": 26_624,
    "olmo2": 26_880,
    "gpt-oss": 65_388,
    "mamba": 20_960,
    "rwkv": 35_648,
    "gpt-bigcode": 29_504,
    "ctrl": 21_376,
    "t5": 45_568,
    "mt5": 53_760,
    "bart": 51_200,
    "mbart": 51_328,
    "pegasus": 51_072,
    "marian": 50_944,
    "blenderbot": 51_072,
    "fsmt": 59_264,
    "m2m-100": 46_976,
    "led": 57_408,
    "switch-transformers": 70_400,
    "vit": 42_402,
    "deit": 42_466,
    "beit": 41_922,
    "dinov2": 50_946,
    "efficientnet": 124_254,
    "mobilenet-v1": 213_586,
    "mobilenet-v2": 240_674,
    "pvt-v2": 54_698,
    "poolformer": 29_146,
    "focalnet": 20_856,
    "cvt": 38_850,
    "hiera": 249_714,
    "swiftformer": 41_564,
    "vit-msn": 42_402,
    "ijepa": 42_338,
    "videomae": 66_338,
    "timesformer": 53_154,
    "vivit": 67_490,
    "vit-mae": 77_920,
    "glpn": 72_487,
    "moonshine": 51_808,
    "ast": 25_954,
    "layoutlm": 155_554,
    "patchtst": 17_768,
}


@pytest.fixture(autouse=True)
def _no_network(monkeypatch) -> None:
    def connect(*_: object) -> None:
        raise AssertionError("a workload reached for the network")

    monkeypatch.setattr(socket.socket, "connect", connect)


def build(name: str, **options: Any) -> Recipe:
    torch.manual_seed(0)
    return hf.build(WorkloadOptions(device=CPU, variant=name, **{"tiny": True, **options}))


def batch_of(recipe: Recipe, first: int = 0) -> Any:
    assert recipe.collate is not None
    return recipe.collate([recipe.dataset[first + index] for index in range(recipe.batch)])


def train(recipe: Recipe, steps: int) -> list[float]:
    """The losses of steps on one batch."""
    return losses_on(recipe, batch_of(recipe), steps)


def parameters(model: torch.nn.Module) -> int:
    return sum(each.numel() for each in model.parameters())


# Forward and backward of every one of them: tests/analyses/test_flops_architectures.py.
@pytest.mark.slow
@pytest.mark.parametrize("name", list(ARCHITECTURES)[::3])
@pytest.mark.sampled(8)
def test_a_tiny_model_trains_a_step(name: str) -> None:
    recipe = build(name)
    before = {key: value.detach().clone() for key, value in recipe.model.named_parameters()}
    assert parameters(recipe.model) == TINY_PARAMETERS.get(name, parameters(recipe.model))
    assert parameters(recipe.model) < 1_000_000
    assert recipe.model.training
    assert 0 < train(recipe, 1)[0] < 1e4
    after = dict(recipe.model.named_parameters())
    changed = sum(not torch.equal(value, after[key]) for key, value in before.items())
    assert changed > 0.45 * len(before)
    assert all(value.isfinite().all() for value in after.values())


def test_the_table_is_whole() -> None:
    entries = ARCHITECTURES.values()
    assert len(entries) == 144
    assert len({entry.model for entry in entries}) == 144
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in names())
    assert {entry.inputs for entry in entries} == set(inputs.KINDS)
    assert names() == sorted(ARCHITECTURES) == sorted(hf.VARIANTS)
    assert set(TINY_PARAMETERS) <= set(names())
    for entry in entries:
        assert entry.tiny_size % entry.step == entry.size % entry.step == 0
    wanted = {"image classification", "object detection", "semantic segmentation", "language modelling"}
    wanted |= {"speech recognition", "image-text matching", "time series forecasting"}
    assert wanted <= {entry.task for entry in entries}


def test_an_architecture_is_found_by_its_name_and_its_class() -> None:
    entry = find("detr")
    assert entry is find("DETR") is find("DetrForObjectDetection") is find("detrforobjectdetection")
    with pytest.raises(UsageError, match="unknown architecture 'robreta'; did you mean hf:roberta"):
        find("robreta")
    with pytest.raises(UsageError, match="did you mean hf:whisper"):
        find("WhisperForConditionalGeneratoin")
    with pytest.raises(UsageError, match=r"did you mean hf:bert\?"):
        find("bert-base-uncased")
    with pytest.raises(UsageError, match=r"see tracekit capture --list"):
        find("0")


@pytest.mark.slow
def test_the_name_comes_from_the_variant() -> None:
    assert build("squeezebert").config["variant"] == "squeezebert"
    assert build("").config["variant"] == "bert"
    assert type(hf.build_model("t5", tiny=True)).__name__ == "T5ForConditionalGeneration"


@pytest.mark.parametrize("kind", sorted(inputs.KINDS))
def test_samples_depend_on_seed_and_index_alone(kind: str) -> None:
    entry = next(entry for entry in ARCHITECTURES.values() if entry.inputs == kind)
    maker = inputs.SampleMaker(kind, build_config(entry, tiny=True), entry.tiny_size)
    first, again, other = (
        inputs.collate([GeneratedSamples(maker, seed)[index] for index in (3, 4)]) for seed in (1, 1, 2)
    )

    def flat(nest: Any) -> list[torch.Tensor]:
        if isinstance(nest, torch.Tensor):
            return [nest]
        return [leaf for value in (nest.values() if isinstance(nest, dict) else nest) for leaf in flat(value)]

    assert all(torch.equal(a, b) for a, b in zip(flat(first), flat(again), strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(flat(first), flat(other), strict=False))


LEARNERS = ["roberta", "llama", "t5", "resnet", "detr", "segformer", "wav2vec2", "decision-transformer"]


@pytest.mark.parametrize(
    "name", [LEARNERS[0], *(pytest.param(n, marks=pytest.mark.slow) for n in LEARNERS[1:])]
)
def test_the_loss_falls_on_one_batch(name: str) -> None:
    losses = train(build(name), 20)
    assert losses[-1] < 0.9 * losses[0]


def test_the_loss_is_the_model_s_own_or_that_of_the_actions() -> None:
    recipe = build("roberta")
    batch = batch_of(recipe)
    output = recipe.forward(recipe.model, batch)
    assert torch.equal(recipe.loss(output, batch), output.loss)
    recipe = build("decision-transformer")
    batch = batch_of(recipe)
    output = recipe.forward(recipe.model, batch)
    error = [
        (a - b) ** 2
        for a, b in zip(
            output.action_preds.flatten().tolist(), batch["actions"].flatten().tolist(), strict=True
        )
    ]
    assert recipe.loss(output, batch).item() == pytest.approx(sum(error) / len(error), rel=1e-5)


def test_detr_trains_its_backbone_but_for_the_first_stage() -> None:
    with torch.device("meta"):
        model = hf.build_model("detr")
    trained: dict[str, set[bool]] = {}
    for name, parameter in model.named_parameters():
        found = re.search(r"embedder\.embedder|stages\.\d", name)
        trained.setdefault(found[0] if found else "rest", set()).add(parameter.requires_grad)
    assert trained == {
        "embedder.embedder": {False},
        "stages.0": {False},
        "stages.1": {True},
        "stages.2": {True},
        "stages.3": {True},
        "rest": {True},
    }


@pytest.mark.slow
def test_no_layer_is_dropped_and_no_cache_kept() -> None:
    with torch.device("meta"):
        wave, text, both = (hf.build_model(name).config for name in ("wav2vec2", "m2m-100", "blip"))
    assert wave.layerdrop == text.encoder_layerdrop == text.decoder_layerdrop == 0
    assert text.use_cache is both.text_config.use_cache is False


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deberta", "big-bird", "roberta"])
def test_mixed_precision(name: str) -> None:
    recipe = build(name)
    batch = batch_of(recipe)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = recipe.loss(recipe.forward(recipe.model, batch), batch)
    value.backward()
    assert value.isfinite()
    assert recipe.config["autocast"] == (name == "roberta")


def test_the_size_reaches_the_model_and_the_data() -> None:
    vit = build("vit", size=96, batch=1)
    assert vit.model.config.image_size == 96
    assert batch_of(vit)["pixel_values"].shape == (1, 3, 96, 96)
    assert train(vit, 1)[0] > 0
    whisper = build("whisper", size=60, batch=1)
    assert whisper.model.config.max_source_positions == 30
    assert train(whisper, 1)[0] > 0
    clip = build("clip", size=32)
    assert clip.model.config.vision_config.image_size == 32
    assert batch_of(build("xlnet", size=100))["input_ids"].shape == (2, 100)  # it has no limit
    series = build("patchtst", size=64)
    assert series.model.config.context_length == 64
    assert (series.size, train(series, 1)[0] > 0) == (64, True)


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("vit", 100, "hf:vit takes no size of 100; choose a multiple of 16 pixels"),
        ("rt-detr", 16, "choose a multiple of 32 pixels"),
        ("bert", 64, "hf:bert takes no size of 64; choose at most 62 tokens"),
        ("gpt2", 500, "choose at most 62 tokens"),
    ],
)
def test_a_size_the_model_cannot_take_is_refused(name: str, size: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build(name, size=size)


@pytest.mark.slow
@pytest.mark.parametrize("tiny", [True, False])
def test_default_sizes_are_within_the_model_s_limits(tiny: bool) -> None:
    limits = 0
    for entry in ARCHITECTURES.values():
        config = build_config(entry, tiny=tiny)
        limit = getattr(config, "max_position_embeddings", getattr(config, "n_positions", None))
        if entry.unit == "tokens" and limit is not None and limit != -1:
            assert (entry.tiny_size if tiny else entry.size) <= limit, entry.name
            limits += 1
    assert limits > 50


def test_boxes_are_within_the_image_and_about_as_many_as_in_coco() -> None:
    random = torch.Generator().manual_seed(0)
    found = [scenes.boxes(93, random) for _ in range(2000)]
    all_boxes = torch.cat(found)
    assert (all_boxes[:, :2] - all_boxes[:, 2:] / 2 >= -1e-6).all()
    assert (all_boxes[:, :2] + all_boxes[:, 2:] / 2 <= 1 + 1e-6).all()
    assert (all_boxes[:, 2:] > 0).all()
    counts = torch.tensor([len(each) for each in found], dtype=torch.float32)
    assert counts.mean().item() == pytest.approx(6.9, abs=0.6)
    assert counts.median().item() == 4
    assert len(scenes.boxes(1, random)) == 1
    area = all_boxes[:, 2:].prod(dim=1) * 640 * 480
    shares = [(area < 32**2), (area >= 32**2) & (area < 96**2), (area >= 96**2)]
    assert [each.float().mean().item() for each in shares] == pytest.approx([0.41, 0.34, 0.25], abs=0.03)


def test_a_mask_covers_the_pixels_whose_middle_is_in_its_box() -> None:
    size = 24
    config = type("Config", (), {"num_labels": 3})
    sample = scenes.KINDS["image and masks"](config, size, torch.Generator().manual_seed(5))
    random = torch.Generator().manual_seed(5)
    found = scenes.boxes(20, random).tolist()
    assert len(sample["mask_labels"]) == len(sample["class_labels"]) == len(found)
    for mask, (x, y, width, height) in zip(sample["mask_labels"], found, strict=True):
        for row in range(size):
            for column in range(size):
                inside = (
                    abs((column + 0.5) / size - x) <= width / 2 and abs((row + 0.5) / size - y) <= height / 2
                )
                assert bool(mask[row, column]) == inside


def test_labels_of_text_are_the_masked_words_and_padding_is_masked() -> None:
    recipe = build("roberta", size=48)
    padded = 0
    for index in range(100):
        sample = recipe.dataset[index]
        real = int(sample["attention_mask"].sum())
        padded += real < 48
        assert (sample["input_ids"][real:] == recipe.model.config.pad_token_id).all()
        assert (sample["labels"][real:] == -100).all()
        guessed = int((sample["labels"] != -100).sum())
        assert guessed == max(1, round(0.15 * real))
    assert 2 <= padded <= 25
