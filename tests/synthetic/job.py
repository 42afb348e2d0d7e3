"""A training job of many ranks, simulated on one clock and written as one file of PyTorch's profiler for each rank.

Every rank launches ahead of its device. A step has a forward pass of layers, each with an all-reduce in the rank's row of the
grid and an uneven all-to-all in it, and a backward pass with an all-reduce over the rank's column. No rank leaves a
collective before the last one of its group has come; it takes `LATENCY` from there.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

__all__ = ["Call", "Fault", "Job", "simulate", "write_job"]

US: Final = 1_000
LATENCY: Final = {"all_reduce": 40 * US, "all_to_all": 60 * US}
LAYERS: Final = 4
BASE_NS: Final = 1_735_632_360_000_000_000
_RECORDED: Final = {"all_reduce": "allreduce", "all_to_all": "all_to_allv"}
_KERNEL: Final = {
    "all_reduce": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "all_to_all": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
}


@dataclass(frozen=True)
class Fault:
    """What makes a rank late in each step: `compute` (a layer takes longer on the device), `data` (its loader is slow), `host` (Python
    before a layer holds the launches up)."""

    rank: int
    kind: str
    ns: int
    layer: int = 1


@dataclass(frozen=True)
class Call:
    """The truth of a collective on one rank, on the clock of the job."""

    group: str
    sequence: int
    name: str
    step: int
    rank: int
    start: int
    end: int
    ready: int  # when the last rank came
    elements: int
    splits: tuple[int, ...] = ()


@dataclass
class Job:
    """What was simulated."""

    ranks: int
    columns: int
    offsets: list[int]  # ns by which each rank's clock is ahead
    calls: list[Call] = field(default_factory=list)
    events: list[list[dict[str, Any]]] = field(default_factory=list)
    origins: list[int] = field(default_factory=list)  # of each file, on the clock of the job


class _Rank:
    """The host and the device of one rank; times are those of the job."""

    def __init__(self, rank: int) -> None:
        self.rank, self.host, self.device = rank, 1_000 * US, 1_000 * US
        self.events: list[dict[str, Any]] = []
        self.correlation = 0

    def span(self, category: str, name: str, start: int, end: int, **args: Any) -> None:
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 100 + self.rank, "tid": 7, "ts": start, "dur": end - start, "args": args}
        )  # fmt: skip

    def launch(
        self, name: str, duration: int, *, at: int | None = None, stream: int = 7, **op: Any
    ) -> tuple[int, int]:
        """A kernel and the operator that launches it; start and end on the device."""
        self.correlation += 1
        begin = self.host
        self.host += 10 * US
        operator = op.pop("operator", "aten::mm")
        self.span("cpu_op", operator, begin, self.host, **op)
        self.span(
            "cuda_runtime", "cudaLaunchKernel", begin + 2 * US, begin + 6 * US, correlation=self.correlation
        )
        start = max(self.device, begin + 8 * US) if at is None else at
        self.kernel(name, start, start + duration, stream)
        return start, start + duration

    def kernel(self, name: str, start: int, end: int, stream: int) -> None:
        self.device = end
        self.events.append(
            {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": start, "dur": end - start,
             "args": {"device": 0, "stream": stream, "correlation": self.correlation}}
        )  # fmt: skip


def simulate(
    seed: int = 0,
    ranks: int = 16,
    columns: int = 4,
    steps: int = 4,
    faults: tuple[Fault, ...] = (),
    skew_ns: int = 3_000_000,
    in_row: tuple[str, ...] = ("all_reduce", "all_to_all"),
) -> Job:
    """A job on a grid of `ranks` / `columns` rows, with these collectives in each layer; clocks differ by up to `skew_ns`."""
    rng = random.Random(seed)
    job = Job(ranks, columns, [rng.randrange(-skew_ns, skew_ns + 1) for _ in range(ranks)])
    members = [_Rank(rank) for rank in range(ranks)]
    sequence: dict[str, int] = {}
    for step in range(5, 5 + steps):
        begins = [one.host for one in members]
        for one in members:
            mine = {fault.kind: fault for fault in faults if fault.rank == one.rank}
            wait = 20 * US + (mine["data"].ns if "data" in mine else 0)
            one.span(
                "user_annotation",
                "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
                one.host,
                one.host + wait,
            )
            one.host += wait
        for layer in range(LAYERS):
            _layer(members, faults, layer, rng)
            for row in range(ranks // columns):
                group = list(range(row * columns, (row + 1) * columns))
                for name in in_row:
                    size = 4_096 * (layer + 1) if name == "all_reduce" else 0
                    _collective(job, members, f"row{row}", group, name, size, step, sequence, rng)
        for column in range(columns):
            group = list(range(column, ranks, columns))
            _collective(job, members, f"column{column}", group, "all_reduce", 1 << 20, step, sequence, rng)
        for one, begin in zip(members, begins, strict=True):
            read = max(one.host, one.device)  # the loss
            one.span("cuda_runtime", "cudaStreamSynchronize", one.host, read)
            one.host = read
            one.span("user_annotation", f"ProfilerStep#{step}", begin, one.host)
            one.host += 5 * US
    job.events = [one.events for one in members]
    job.origins = [min(event["ts"] for event in one.events) for one in members]
    return job


def _layer(members: list[_Rank], faults: tuple[Fault, ...], layer: int, rng: random.Random) -> None:
    for one in members:
        mine = {fault.kind: fault for fault in faults if fault.rank == one.rank and fault.layer == layer}
        begin = one.host
        if "host" in mine:
            one.host += mine["host"].ns
        duration = 150 * US + rng.randrange(5 * US) + (mine["compute"].ns if "compute" in mine else 0)
        one.launch("ampere_sgemm_128x64_tn", duration)
        one.span(
            "user_annotation",
            f"tracekit.layer/block.{layer}",
            begin,
            one.host,
            layer=f"block.{layer}",
            module="Block",
        )


def _collective(
    job: Job, members: list[_Rank], group: str, ranks: list[int], name: str, elements: int, step: int,
    sequence: dict[str, int], rng: random.Random,
) -> None:  # fmt: skip
    number = sequence[group] = sequence.get(group, 0) + 1
    starts = {
        rank: max(members[rank].device, members[rank].host + 8 * US) + rng.randrange(2 * US) for rank in ranks
    }
    ready = max(starts.values())
    sent = (
        {rank: [rng.randrange(100, 5_000) for _ in ranks] for rank in ranks} if name == "all_to_all" else {}
    )
    for place, rank in enumerate(ranks):
        own = sent.get(rank, [])
        out = [sent[other][place] for other in ranks] if sent else []
        count = sum(own) if sent else elements
        start, end = starts[rank], ready + LATENCY[name]
        members[rank].launch(
            _KERNEL[name], end - start, at=start, stream=20, operator="record_param_comms",
            **{"Collective name": _RECORDED[name], "In msg nelems": count, "Out msg nelems": sum(out) if sent else count,
               "dtype": "Float", "Group size": len(ranks), "Process Group Name": group, "Process Group Ranks": str(ranks),
               "Seq": number, "In split size": str(own), "Out split size": str(out)},
        )  # fmt: skip
        job.calls.append(Call(group, number, name, step, rank, start, end, ready, count, tuple(own)))


def write_job(job: Job, folder: Path, *, utc: bool = True, sequence: bool = True) -> list[Path]:
    """A file for each rank, `rank-N.json`; without `utc` no file says when its clock began, without `sequence` no call has a number."""
    paths = []
    for rank, events in enumerate(job.events):
        written = []
        for event in events:
            args = {key: value for key, value in event["args"].items() if sequence or key != "Seq"}
            at = event["ts"] + job.offsets[rank]
            written.append({**event, "args": args, "ts": at / 1_000, "dur": event["dur"] / 1_000})
        tree: dict[str, Any] = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "numSms": 108}],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": job.ranks},
            "traceEvents": written,
        }
        if utc:
            tree["baseTimeNanoseconds"] = BASE_NS
        path = folder / f"rank-{rank}.json"
        path.write_text(json.dumps(tree))
        paths.append(path)
    return paths
