"""`timm` and `torchvision`, with stand-ins for these packages, and without them."""

import sys
from collections import namedtuple
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from losses import losses_on
from torch import nn
from torch.nn import functional
from torch.utils.data import default_collate

from tracekit.capture.workloads import WorkloadOptions, timm, torchvision
from tracekit.capture.workloads import adapters as _adapters
from tracekit.errors import MissingDependencyError, UsageError

CPU = torch.device("cpu")
WORKLOADS = {"timm": timm, "torchvision": torchvision}


class Net(nn.Module):
    """A classifier that remembers how it was asked for."""

    def __init__(self, classes: int, **how: Any) -> None:
        super().__init__()
        self.how = how
        self.conv = nn.Conv2d(3, 8, 3, stride=4)
        self.head = nn.Linear(8, classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        assert image.dtype == torch.float32
        return self.head(functional.relu(self.conv(image)).mean((2, 3)))


class FixedNet(Net):
    default_cfg = {"input_size": (3, 96, 96), "fixed_input_size": True}  # noqa: RUF012 - as in timm
    image_size = 96


@pytest.fixture(params=["timm", "torchvision"])
def package(request: pytest.FixtureRequest, monkeypatch) -> str:
    """A stand-in for the package, with three models."""
    classes = {"resnet50": Net, "resnet18": Net, "vit_b_16": FixedNet}
    module = ModuleType(request.param)
    if request.param == "timm":
        module.list_models = lambda: list(classes)
        module.create_model = lambda name, *, pretrained, num_classes: classes[name](
            num_classes, name=name, trained=pretrained
        )
    else:
        models = ModuleType("torchvision.models")
        models.list_models = lambda *, module: list(classes) if module is models else ["for another task"]
        models.get_model = lambda name, *, weights, num_classes: classes[name](
            num_classes, name=name, trained=weights is not None
        )
        module.models = models
    monkeypatch.setitem(sys.modules, request.param, module)
    return request.param


def test_a_model_of_the_package_learns(package: str) -> None:
    torch.manual_seed(0)
    recipe = WORKLOADS[package].build(WorkloadOptions(device=CPU, variant="resnet18", tiny=True))
    assert recipe.model.how == {"name": "resnet18", "trained": False}
    assert (recipe.task, recipe.size, recipe.batch, recipe.synthetic) == ("image classification", 64, 2, True)
    batch = default_collate([recipe.dataset[index] for index in range(2)])
    losses = losses_on(recipe, batch, 20)
    assert losses[-1] < 0.9 * losses[0]


def test_sizes_follow_the_model_and_the_options(package: str) -> None:
    workload = WORKLOADS[package]

    def size(variant: str, **options: Any) -> int:
        return workload.build(WorkloadOptions(device=CPU, variant=variant, **options)).size

    assert size("") == 224
    assert size("", tiny=True) == 64
    assert size("vit_b_16") == size("vit_b_16", tiny=True) == 96
    assert size("resnet18", size=128) == 128
    assert workload.example_batch("vit_b_16")["image"].shape == (1, 3, 96, 96)
    with torch.device("meta"):
        model, batch = workload.build_model("resnet50"), workload.example_batch("resnet50", tiny=True)
        assert _adapters.loss(_adapters.forward(model, batch), batch).is_meta
        assert batch["image"].shape == (1, 3, 64, 64)


def test_auxiliary_classifiers_count_with_0_3() -> None:
    scores, low, high = (torch.randn(4, 10) for _ in range(3))
    batch = {"label": torch.tensor([1, 2, 3, 4])}
    parts = [functional.cross_entropy(each, batch["label"]).item() for each in (scores, low, high)]
    output = namedtuple("Output", "logits aux_logits2 aux_logits1")(scores, low, high)
    assert _adapters.loss(scores, batch).item() == pytest.approx(parts[0])
    assert _adapters.loss(output, batch).item() == pytest.approx(parts[0] + 0.3 * (parts[1] + parts[2]))
    assert _adapters.loss((scores, None), batch).item() == pytest.approx(parts[0])


def test_wrong_options_are_refused(package: str, tmp_path: Path) -> None:
    build = WORKLOADS[package].build
    with pytest.raises(UsageError, match=f"unknown model of {package} 'resnet5O'; choose one of: .*resnet50"):
        build(WorkloadOptions(device=CPU, variant="resnet5O"))
    with pytest.raises(UsageError, match=f"{package}:resnet18 has no reader for real data"):
        build(WorkloadOptions(device=CPU, variant="resnet18", data=tmp_path))


@pytest.mark.parametrize("name", ["timm", "torchvision"])
def test_a_package_that_cannot_be_imported_is_named_with_the_reason(
    name: str, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependencyError, match=f"^{name} cannot be imported: .*{name}"):
        WORKLOADS[name].build_model("resnet50")
    monkeypatch.delitem(sys.modules, name)
    (tmp_path / f"{name}.py").write_text("raise RuntimeError('operator nms\\n   does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingDependencyError) as caught:
        WORKLOADS[name].build_model("resnet50")
    assert str(caught.value) == (
        f"{name} cannot be imported: operator nms does not exist; install a {name} that fits your torch"
    )
    assert import_module(f"tracekit.capture.workloads.{name}").VARIANTS == ("resnet50",)
