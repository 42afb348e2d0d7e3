"""Real jobs of several processes with gloo on this machine, started with torchrun's variables: a training in which one rank takes longer in one layer
(with DistributedDataParallel, or with FSDP2), and a pipeline that passes messages, each of a size of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.profiler import ProfilerActivity, profile, schedule

SLOW_RANK, SLOW_BLOCK, TIMES = 2, 1, 300


class Block(nn.Module):
    """Two products; the slow one repeats the first."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times
        self.first, self.second = nn.Linear(176, 176), nn.Linear(176, 176)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of the input and what the layers make of it."""
        for _ in range(self.times):
            x = x + 0 * self.first(x)
        return x + self.second(torch.relu(self.first(x)))


def _blocks(rank: int) -> nn.Sequential:
    """The model, one of whose blocks is slow on one rank."""
    slow = [TIMES if rank == SLOW_RANK and number == SLOW_BLOCK else 0 for number in range(4)]
    return nn.Sequential(*map(Block, slow))


def _step_of(net: nn.Module) -> Callable[[int], None]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x = torch.randn(176, 176)

    def step(_number: int) -> None:
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()

    return step


def training(rank: int) -> Callable[[int], None]:
    """A step of the training."""
    net = nn.parallel.DistributedDataParallel(_blocks(rank))
    return _step_of(net)


def sharded(rank: int) -> Callable[[int], None]:
    """A step of the same training with FSDP2, whose ranks wait in operators of Python and in hooks."""
    net = _blocks(rank)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for part in (*net, net):
        fully_shard(part, mesh=mesh)
    return _step_of(net)


def pipeline(rank: int) -> Callable[[int], None]:
    """A step in which three parts pass all ranks, and a message returns to each from the next."""
    last = dist.get_world_size() - 1

    def step(number: int) -> None:
        sizes = [1_000 * number + 100 * part + 10 * rank for part in range(3)]
        for size in sizes:
            if rank:
                dist.recv(torch.empty(size - 10), rank - 1)
            torch.randn(176, 176) @ torch.randn(176, 176)
            if rank < last:
                dist.send(torch.ones(size), rank + 1)
        if rank < last:
            dist.recv(torch.empty(sizes[0] + 1), rank + 1)
        if rank:
            dist.send(torch.ones(sizes[0] - 9), rank - 1)

    return step


def main(folder: str, job: str) -> None:
    """Run a few steps and write `rank-N.json`."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    step = {"pipeline": pipeline, "training": training, "sharded": sharded}[job](rank)
    plan = schedule(wait=1, warmup=1, active=3)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=plan,
        with_modules=True,
        with_stack=True,
        record_shapes=True,
    ) as made:
        for number in range(5):
            step(number)
            made.step()
    made.export_chrome_trace(str(Path(folder) / f"rank-{rank}.json"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
