"""ResNet: published sizes, torchvision's names, random crops, folders of images with damaged ones among them."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from tracekit.capture.recipe import Recipe
from tracekit.capture.workloads import WorkloadOptions, resnet50
from tracekit.capture.workloads.data import images as image_data
from tracekit.errors import UsageError


def tiny(**options) -> Recipe:
    torch.manual_seed(0)
    return resnet50.build(WorkloadOptions(device=torch.device("cpu"), tiny=True, **options))


def batch_of(recipe: Recipe, count: int):
    return next(iter(DataLoader(recipe.dataset, count, collate_fn=recipe.collate)))


def test_names_are_torchvisions():
    with torch.device("meta"):
        names = list(resnet50.build_model("").state_dict())
    assert len(names) == 320
    assert names[0] == "conv1.weight"
    assert {"layer1.0.downsample.1.running_var", "layer4.2.bn3.bias", "fc.bias"} <= set(names)
    assert not [name for name in names if name.startswith("normalise")]


def test_the_middle_convolution_halves_the_image():
    with torch.device("meta"):
        block = resnet50.build_model("50").get_submodule("layer2.0")
    assert (block.conv1.stride, block.conv2.stride, block.conv3.stride) == ((1, 1), (2, 2), (1, 1))


def test_normalisation():
    image = torch.tensor([0, 128, 255], dtype=torch.uint8).view(1, 3, 1, 1)
    expected = torch.tensor([(0 - 0.485) / 0.229, (128 / 255 - 0.456) / 0.224, (1 - 0.406) / 0.225])
    torch.testing.assert_close(image_data.Normalise()(image).flatten(), expected)


def test_the_loss_is_smoothed():
    scores, label = torch.tensor([[2.0, 0.0, -1.0, 0.5]]), torch.tensor([0])
    shares = torch.tensor([0.9 + 0.1 / 4, 0.1 / 4, 0.1 / 4, 0.1 / 4])
    expected = -(shares * torch.log(torch.exp(scores[0]) / torch.exp(scores[0]).sum())).sum()
    torch.testing.assert_close(tiny(variant="18").loss(scores, (None, label)), expected)


def test_synthetic_images():
    recipe = tiny()
    assert (recipe.batch, recipe.size, recipe.synthetic, recipe.skipped()) == (8, 64, True, 0)
    images, labels = batch_of(recipe, 8)
    assert (images.shape, images.dtype, labels.dtype) == ((8, 3, 64, 64), torch.uint8, torch.int64)
    assert torch.equal(tiny().dataset[3][0], images[3])
    assert not torch.equal(tiny(seed=1).dataset[3][0], images[3])


def test_a_synthetic_crop_is_a_part_of_the_stored_image(monkeypatch):
    stored = np.arange(3 * 64, dtype=np.uint8).reshape(3, 8, 8)  # no two pixels of a channel are equal
    monkeypatch.setattr(image_data, "noise_image", lambda _random, side: stored[:, :side, :side])
    parts = {}
    for top in range(2):
        for left in range(2):
            part = stored[:, top : top + 7, left : left + 7]
            parts[part.tobytes()] = (top, left, False)
            parts[part[:, :, ::-1].tobytes()] = (top, left, True)
    data = image_data.SyntheticImages(7, 10, seed=0)
    assert {parts[data[index][0].numpy().tobytes()] for index in range(100)} == set(parts.values())


@pytest.mark.parametrize(("width", "height"), [(640, 480), (50, 2000), (2000, 50), (1, 1)])
def test_random_parts_lie_within_the_image(width, height):
    random = np.random.default_rng(0)
    areas = []
    for _ in range(200):
        left, top, right, bottom = image_data.resized_crop_box(random, width, height)
        assert 0 <= left < right <= width + 1e-9
        assert 0 <= top < bottom <= height + 1e-9
        assert 3 / 4 - 1e-9 <= (right - left) / (bottom - top) <= 4 / 3 + 1e-9
        areas.append((right - left) * (bottom - top) / (width * height))
    if (width, height) == (640, 480):
        assert 0.08 <= min(areas) < 0.15
        assert max(areas) > 0.8


@pytest.fixture
def folder(tmp_path):
    for label, name in enumerate(("ant", "bee")):
        (tmp_path / name).mkdir()
        for number in range(3):
            colour = (100 * label, 50 * number, 200)
            Image.new("RGB", (40, 30), colour).save(tmp_path / name / f"{number}.png")
    (tmp_path / "bee" / "notes.txt").write_text("not an image")
    (tmp_path / "stray.png").touch()
    return tmp_path


def test_real_images(folder):
    recipe = tiny(data=folder, size=16)
    images, labels = batch_of(recipe, 6)
    assert (recipe.synthetic, recipe.size, labels.tolist()) == (False, 16, [0, 0, 0, 1, 1, 1])
    for index, image in enumerate(images):
        expected = torch.tensor([100 * (index // 3), 50 * (index % 3), 200], dtype=torch.uint8)
        assert torch.equal(image, expected.view(3, 1, 1).expand(3, 16, 16))
    assert torch.equal(recipe.dataset[-1][0], images[5])
    with pytest.raises(IndexError):
        recipe.dataset[6]


def test_the_part_of_a_real_image_depends_on_seed_and_index(folder):
    noise = np.random.default_rng(0).integers(256, size=(60, 60, 3), dtype=np.uint8)
    for name in ("0.png", "1.png"):
        Image.fromarray(noise).save(folder / "ant" / name)
    first, second = (tiny(data=folder).dataset[index][0] for index in (0, 1))
    assert torch.equal(first, tiny(data=folder).dataset[0][0])
    assert not torch.equal(first, second)
    assert not torch.equal(first, tiny(data=folder, seed=1).dataset[0][0])


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_damaged_images_are_replaced_by_the_next_and_counted(folder):
    whole = (folder / "ant" / "1.png").read_bytes()
    (folder / "ant" / "1.png").write_bytes(whole[: len(whole) // 2])
    (folder / "ant" / "2.png").write_bytes(b"")
    (folder / "bee" / "2.png").write_bytes(b"\xff\xd8\xff nonsense")
    data = tiny(data=folder).dataset
    assert [data[index][1] for index in range(6)] == [0, 1, 1, 1, 1, 0]
    assert data.skipped() == 3
    recipe = tiny(data=folder)
    loader = DataLoader(recipe.dataset, 1, num_workers=2, multiprocessing_context="fork")
    assert (len(list(loader)), recipe.skipped()) == (6, 3)
    for path in folder.glob("*/*.png"):
        path.write_bytes(b"")
    with pytest.raises(UsageError, match=r"no image can be decoded from 'ant/1.png' on; check that"):
        data[1]


def test_unusable_folders(folder, monkeypatch):
    def message(path) -> str:
        with pytest.raises(UsageError) as caught:
            tiny(data=path)
        return str(caught.value).removeprefix(f"{path}: ")

    assert (
        message(folder / "x")
        == "cannot be read: No such file or directory; name a folder with one folder per class"
    )
    assert message(folder / "stray.png").startswith("cannot be read: Not a directory; ")
    assert message(folder / "bee") == "no images in folders; lay them out as CLASS/IMAGE.jpg"
    monkeypatch.setattr(resnet50, "CLASSES", 1)
    assert message(folder) == "2 folders, but the model has 1 classes; keep at most 1 folders"
