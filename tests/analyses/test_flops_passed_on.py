"""Calls that torch records again where it passes them on: the inner one does the work, as large as torch's own counter or a hand says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from counted_profiles import of, products, profiled, total
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import tracekit
from tracekit.analyses.flops import counted

# -- torch.func -------------------------------------------------------------------------------------

ROWS, WEIGHT = torch.randn(6, 16), torch.randn(16, 4)
ONE, OTHER = torch.randn(5, 8, 16), torch.randn(5, 16, 4)
IMAGES, KERNELS = torch.randn(5, 2, 4, 10, 10), torch.randn(5, 8, 4, 3, 3)
NET = torch.nn.Sequential(
    torch.nn.Linear(16, 32, bias=False), torch.nn.ReLU(), torch.nn.Linear(32, 4, bias=False)
)
PARAMETERS = {name: each.detach() for name, each in NET.named_parameters()}
SAMPLES, LABELS = torch.randn(64, 16), torch.randint(0, 4, (64,))


def _loss(parameters: dict[str, torch.Tensor], sample: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(
        functional_call(NET, parameters, (sample.unsqueeze(0),)), label.unsqueeze(0)
    )


FUNCTIONS: dict[str, Callable[[], object]] = {
    "products of a batch": lambda: vmap(torch.mm)(ONE, OTHER),
    "one weight": lambda: vmap(torch.mm, in_dims=(0, None))(ONE, WEIGHT),
    "two levels": lambda: vmap(vmap(torch.mv, in_dims=(None, 0)), in_dims=(0, None))(ONE, ONE[0]),
    "convolutions": lambda: vmap(functional.conv2d)(IMAGES, KERNELS),
    "gradients of samples": lambda: vmap(grad(_loss), in_dims=(None, 0, 0))(PARAMETERS, SAMPLES, LABELS),
    "jacobian": lambda: jacrev(lambda rows: (rows @ WEIGHT).sum(1))(ROWS),
    "hessian": lambda: hessian(lambda rows: (rows @ WEIGHT).pow(2).sum())(ROWS[:2]),
    "forward mode": lambda: jvp(lambda rows: rows @ WEIGHT, (ROWS,), (ROWS,)),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_under_torch_func_products_are_those_of_all_samples(name: str, tmp_path: Path) -> None:
    """The outer records have the sizes of one sample, so 64 gradients of samples counted as one."""
    with FlopCounterMode(display=False) as counter:
        FUNCTIONS[name]()
    work = profiled(FUNCTIONS[name], tmp_path / "trace.json")[1]
    found = products(work)
    if name == "two levels":  # torch's counter has no formula for `mv`
        found, truth = total(work.flops), 2 * 5 * 8 * 8 * 16
    else:
        truth = counter.get_total_flops()
    assert found == truth


def test_under_torch_func_the_rest_is_that_of_all_samples(tmp_path: Path) -> None:
    """Before its own inputs torch records those of the caller; a loss is computed by operators that are not the loss's."""
    ran = profiled(FUNCTIONS["gradients of samples"], tmp_path / "trace.json")
    elements, bytes_ = 64 * 4, 64 * 4 * 4
    assert of(ran, "aten::_log_softmax") == [(4 * elements, bytes_, bytes_)]
    assert of(ran, "aten::relu") == [(0, 64 * 32 * 4, 64 * 32 * 4)]
    assert not of(ran, "aten::nll_loss_forward")
    assert of(ran, "aten::neg") == [(64, 64 * 4, 64 * 4)]


# -- tensor subclasses ------------------------------------------------------------------------------

LENGTHS, WIDTH = (3, 5, 9), 16
ALL = sum(LENGTHS) * WIDTH


def _jagged() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.randn(n, WIDTH) for n in LENGTHS], layout=torch.jagged)


def test_a_jagged_nested_tensor_counts_all_its_elements(tmp_path: Path) -> None:
    """It is recorded without sizes and a type, which counted as one element."""
    rows, weight = _jagged(), torch.ones(WIDTH)
    ran = profiled(
        lambda: ((rows * rows).softmax(-1), functional.layer_norm(rows, (WIDTH,), weight, weight)),
        tmp_path / "trace.json",
    )
    assert of(ran, "aten::mul") == [(ALL, 2 * 4 * ALL, 4 * ALL)]
    assert of(ran, "aten::_softmax") == [(4 * ALL, 4 * ALL, 4 * ALL)]
    (norm,) = of(ran, "aten::native_layer_norm")
    assert norm == (8 * ALL, 4 * (ALL + 2 * WIDTH), 4 * (ALL + 2 * sum(LENGTHS)))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_whose_sizes_stand_nowhere_is_not_guessed(tmp_path: Path) -> None:
    rows = torch.nested.nested_tensor([torch.randn(n, WIDTH) for n in LENGTHS])
    weight = torch.ones(WIDTH)
    ran = profiled(
        lambda: (rows + 1.0, functional.layer_norm(rows, (WIDTH,), weight, weight)), tmp_path / "trace.json"
    )
    assert of(ran, "aten::add") == [(ALL, 4 * ALL + 8, 4 * ALL)]
    assert "aten::native_layer_norm" in ran[0].host["name"].cast(str).to_list()
    assert not of(ran, "aten::native_layer_norm")


class _Fp8Weight(torch.Tensor):
    """A weight that pretends to be bf16, and whose product is one of fp8."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> _Fp8Weight:
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=torch.bfloat16
        )
        made.held = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if func is torch.ops.aten.t.default:
            return cls(args[0].held.t())
        one = torch.ones(())
        narrow = args[0].to(torch.float8_e4m3fn)
        return torch._scaled_mm(narrow, args[1].held, one, one, out_dtype=torch.bfloat16)


def test_a_wrapped_weight_counts_as_the_product_that_is_computed(tmp_path: Path) -> None:
    """It counted as one of bf16, with the peak and the bytes of that."""
    weight = _Fp8Weight(torch.randn(32, 64).to(torch.float8_e4m3fn))
    rows = torch.randn(16, 64).bfloat16()
    trace, work = profiled(lambda: rows @ weight.t(), tmp_path / "trace.json")
    assert of((trace, work), "aten::_scaled_mm") == [(2 * 16 * 64 * 32, 16 * 64 + 64 * 32, 2 * 16 * 32)]
    assert products(work) == 2 * 16 * 64 * 32
    assert {work.names[work.precision[i]] for i in work.matrix.nonzero()[0]} == {"fp8"}


RANKS = 8


@pytest.fixture
def mesh() -> Iterator[Any]:
    """The first of eight ranks, of which the others do not exist."""
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    distributed = pytest.importorskip("torch.distributed")
    distributed.init_process_group("fake", rank=0, world_size=RANKS, store=fake.FakeStore())
    try:
        yield distributed.device_mesh.init_device_mesh("cpu", (RANKS,))
    finally:
        distributed.destroy_process_group()


def _parallel(mesh: Any) -> tuple[torch.nn.Module, torch.Tensor]:
    """Two layers whose weights are split over the ranks, and their input."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    layers = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 32))
    parallelize_module(layers, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return layers, torch.randn(16, 32)


LOCAL = 2 * 16 * 32 * 64 // RANKS


def test_tensor_parallel_layers_count_the_products_of_the_rank(mesh: Any, tmp_path: Path) -> None:
    """They counted the products of all ranks; and the first step asks for sizes on tensors without data."""
    layers, rows = _parallel(mesh)
    biases = 16 * 64 // RANKS + 16 * 32
    for _ in range(2):  # the first step, and one that finds all in caches
        trace, work = profiled(lambda: layers(rows).sum().backward(), tmp_path / "trace.json")
        assert products(work) == 5 * LOCAL + biases
        gelu = of((trace, work), "aten::gelu")
        assert gelu == [(5 * 16 * 64 // RANKS, 4 * 16 * 64 // RANKS, 4 * 16 * 64 // RANKS)]


def test_older_traces_name_no_subclass_and_count_the_same(mesh: Any, tmp_path: Path) -> None:
    layers, rows = _parallel(mesh)
    layers(rows).sum().backward()
    path = tmp_path / "trace.json"
    expected = products(profiled(lambda: layers(rows).sum().backward(), path)[1])
    whole = json.loads(path.read_text())
    events = whole["traceEvents"]
    whole["traceEvents"] = [event for event in events if event.get("name") != "PythonSubclass"]
    assert len(whole["traceEvents"]) < len(events)
    older = tmp_path / "older.json"
    older.write_text(json.dumps(whole))
    assert products(counted(tracekit.read(older))) == expected


@pytest.mark.parametrize("fused", [True, False])
def test_an_optimizer_of_split_parameters_counts_the_part_of_the_rank(
    fused: bool, mesh: Any, tmp_path: Path
) -> None:
    """FSDP2 keeps an eighth of each parameter; the update counted all of them."""
    from torch.distributed.fsdp import fully_shard

    layers = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Linear(64, 32))
    fully_shard(layers, mesh=mesh)
    optimizer = torch.optim.AdamW(layers.parameters(), fused=fused, foreach=False)
    for each in layers.parameters():
        each.grad = torch.zeros_like(each)
    optimizer.step()
    trace, work = profiled(optimizer.step, tmp_path / "trace.json")
    sizes = [each.to_local().numel() for each in layers.parameters()]  # type: ignore[attr-defined]
    assert sum(sizes) * RANKS == sum(map(prod, ((64, 32), (64,), (32, 64), (32,))))
    if fused:
        assert [flops for flops, _, _ in of((trace, work), "aten::_fused_adamw_")] == [14 * sum(sizes)]
    else:
        assert of((trace, work), "aten::lerp_") == [(3 * n, 8 * n, 4 * n) for n in sizes]
        assert of((trace, work), "aten::sqrt") == [(n, 4 * n, 4 * n) for n in sizes]


# -- autocast, and operators that call themselves ------------------------------------------------------


def test_autocast_counts_the_product_that_is_computed(tmp_path: Path) -> None:
    """`bmm` was counted as of fp32, against a peak that it does not have."""

    def run() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.bmm(ONE, OTHER)

    trace, work = profiled(run, tmp_path / "trace.json")
    read, written = 2 * (ONE.numel() + OTHER.numel()), 2 * 5 * 8 * 4
    assert of((trace, work), "aten::bmm") == [(2 * 5 * 8 * 16 * 4, read, written)]
    assert {work.names[work.precision[i]] for i in work.matrix.nonzero()[0]} == {"bf16"}
    # The conversions are work of their own.
    assert sorted(of((trace, work), "aten::_to_copy")) == sorted(
        (0, 4 * each.numel(), 2 * each.numel()) for each in (ONE, OTHER)
    )


def test_an_operator_that_calls_itself_with_a_result_to_fill_counts_as_before(tmp_path: Path) -> None:
    """`abs` calls itself with its input and an empty tensor: twice the inputs, but of no caller."""
    rows = torch.randn(3, 5)
    ran = profiled(lambda: (rows.abs(), rows.mean(), rows.nan_to_num()), tmp_path / "trace.json")
    assert of(ran, "aten::abs") == [(15, 60, 60)]
    assert of(ran, "aten::mean") == [(15, 60, 4)]
    assert of(ran, "aten::nan_to_num") == [(0, 60, 60)]
    assert not of(ran, "aten::sum")
