"""A real training of four processes with gloo on this machine, in which one rank takes longer in one layer; started with torchrun's variables."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, schedule

SLOW_RANK, SLOW_BLOCK, TIMES = 2, 1, 150


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


def main(folder: str) -> None:
    """Train a few steps and write `rank-N.json`."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    slow = [TIMES if rank == SLOW_RANK and number == SLOW_BLOCK else 0 for number in range(4)]
    net = nn.parallel.DistributedDataParallel(nn.Sequential(*map(Block, slow)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x = torch.randn(176, 176)
    plan = schedule(wait=1, warmup=1, active=3)
    with profile(
        activities=[ProfilerActivity.CPU], schedule=plan, with_modules=True, with_stack=True
    ) as made:
        for _ in range(5):
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()
            made.step()
    made.export_chrome_trace(str(Path(folder) / f"rank-{rank}.json"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
