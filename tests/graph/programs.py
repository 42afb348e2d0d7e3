"""Small programs of a host and a device, and of several ranks: what they would record, worked out by a clock for each thread and stream.

The simulation knows nothing of graphs. It runs a program again with other durations, which is what `what_if` has to predict.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

LAUNCH, GAP, CALL, WAIT = 7_000, 1_200, 3_000, 5_000
"""From a launch call to an idle stream; between activities; a launch call; a call that waits for nothing, and the return of one that
waits: all in ns."""
KERNELS = ("gemm_kernel", "elementwise_kernel", "softmax_kernel")
MAIN, ENGINE = 1, 2
COLLECTIVES = 30
MET = {
    "broadcast": "Broadcast",
    "scatter": "SendRecv",
    "reduce": "Reduce",
    "gather": "SendRecv",
    "send": "SendRecv",
}
"""The calls in which not every rank waits for all, and their kernels."""


@dataclass(frozen=True)
class Command:
    """What the host does next: `work` for some ns, `launch` a kernel of some ns into a stream, `record` an event there, let a
    stream `wait` for the event of another one, `sync` with a stream, go on on the other thread (`turn`), or `reduce` with all ranks."""

    what: str
    ns: int = 0
    stream: int = 7
    other: int = 7
    name: str = ""


@dataclass(frozen=True)
class Speeds:
    """How many times as long kernels of each name take, and the code of the host; `waits`: the host waits when it synchronises."""

    kernels: dict[str, float] = field(default_factory=dict)
    host: float = 1.0
    waits: bool = True


def random_program(seed: int, streams: int = 2) -> list[Command]:
    """Steps with launches, events between streams, and synchronisations; some on the thread of the backward pass."""
    rng = random.Random(seed)
    commands: list[Command] = []
    lanes = [7, 20, 21][:streams]
    for _ in range(rng.randint(2, 4)):
        commands.append(Command("step"))
        # Something launches into an idle stream, so that the usual latency is there to be seen.
        commands += [Command("sync", stream=lane) for lane in lanes]
        for lane in lanes:
            commands.append(Command("launch", 2 * rng.randint(20, 40) * 1000, lane, name=KERNELS[0]))
            commands.append(Command("launch", 2 * rng.randint(20, 40) * 1000, lane, name=KERNELS[0]))
        for _ in range(rng.randint(3, 14)):
            lane = rng.choice(lanes)
            kind = rng.choice(["work", "launch", "launch", "launch", "wait", "sync", "turn"])
            if kind == "wait" and streams > 1:
                other = rng.choice([one for one in lanes if one != lane])
                commands.append(Command("wait", stream=lane, other=other))
                commands.append(
                    Command("launch", 2 * rng.randint(1, 30) * 1000, lane, name=rng.choice(KERNELS))
                )
            elif kind in ("launch", "work", "sync", "turn"):
                ns = 2 * rng.randint(1, 40) * 1000
                commands.append(Command(kind, ns, lane, name=rng.choice(KERNELS)))
    return commands


@dataclass
class Run:
    """What a program recorded: events of a trace, and when it began and ended, in ns."""

    events: list[dict[str, Any]]
    steps: list[int]
    end: int

    @property
    def window(self) -> int:
        return self.end - self.steps[0]


def simulate(program: list[Command], speeds: Speeds = Speeds()) -> Run:
    """Run a program."""
    (run,) = simulate_job([program], [speeds])
    return run


def simulate_job(programs: list[list[Command]], speeds: list[Speeds]) -> list[Run]:
    """Run the program of each rank; all have equally many collectives, which move when those have come for whom a rank waits."""
    states = [_State(one, rank) for rank, one in enumerate(speeds)]
    ranks = [_run(program, state) for program, state in zip(programs, states, strict=True)]
    while came := [starts for starts in (next(rank, None) for rank in ranks) if starts is not None]:
        assert len(came) == len(ranks)
        for state in states:
            state.came = came
    return [state.finish() for state in states]


def _run(program: list[Command], state: _State) -> Iterator[int]:
    """When each collective of the program begins; the state then has to be told when it moves."""
    for number, command in enumerate(program):
        if command.what in ("reduce", "meet"):
            start = state.launched(command, number)
            yield start
            state.reduce(command, number, start)
        else:
            getattr(state, command.what)(command, number)


def of_two_ranks(program: list[Command], seed: int, *, rooted: bool = False) -> list[list[Command]]:
    """The program of each of two ranks: kernels of other lengths, and a collective on a stream of its own before each step ends, for
    which the stream of the kernels waits, and sometimes the host. `rooted`: collectives with a root, and messages, but for the first one."""
    rng = random.Random(seed)
    ranks: list[list[Command]] = [[], []]
    for number, one in enumerate([*program, Command("step")]):
        if one.what == "step" and number:
            ns, waits = 2 * rng.randint(5, 30) * 1000, rng.random() < 0.5
            meet = Command("reduce", ns, COLLECTIVES)
            if rooted:  # from the first one the clocks follow
                first = all(one.what != "meet" for one in ranks[0])
                name = "all_reduce" if first else rng.choice(sorted(MET))
                meet = Command("meet", ns, COLLECTIVES, rng.randint(0, 1), name)
            for rank in ranks:
                rank.extend([Command("wait", stream=COLLECTIVES, other=7), meet])
                rank.append(Command("wait", stream=7, other=COLLECTIVES))
                rank.append(Command("launch", 2 * rng.randint(2, 30) * 1000, 7, name=KERNELS[1]))
                rank.extend([Command("sync", stream=7)] * waits)
        if number < len(program):
            for rank in ranks:
                longer = rng.choice([1, 1, 3]) if one.what == "launch" else 1
                rank.append(replace(one, ns=one.ns * longer))
    return ranks


class _State:
    def __init__(self, speeds: Speeds, rank: int) -> None:
        self.speeds, self.rank, self.clock, self.thread = speeds, rank, 1_000_000, MAIN
        self.free: dict[int, int] = {}
        self.held: dict[int, int] = {}
        self.events: list[dict[str, Any]] = []
        self.steps: list[int] = []
        self.turned = 0
        self.came: list[int] = []

    def code(self, ns: int) -> int:
        return round(ns * self.speeds.host)

    def step(self, _: Command, number: int) -> None:
        self._to_main(number)
        self.steps.append(self.clock)

    def work(self, command: Command, number: int) -> None:
        start = self.clock
        self.clock += self.code(command.ns)
        self._host("cpu_op", f"aten::work_{number}", start, self.clock - start)

    def launch(self, command: Command, number: int) -> None:
        took = round(command.ns * self.speeds.kernels.get(command.name, 1.0))
        begin = self.launched(command, number)
        self._ran(command.name, command.stream, begin, begin + took, number)

    def launched(self, command: Command, number: int) -> int:
        """Call a launch; when what it launches begins."""
        start = self.clock
        self.clock += self.code(CALL)
        if command.what == "meet":
            self._recorded(command, start, number)
        self._host("cuda_runtime", "cudaLaunchKernel", start, self.clock - start, number)
        begin = start + LAUNCH
        if command.stream in self.free:
            begin = max(begin, self.free[command.stream] + GAP)
        return max(begin, self.held.pop(command.stream, 0))

    def reduce(self, command: Command, number: int, begin: int) -> None:
        kernel, moves = MET.get(command.name, "AllReduce"), max(self.came)
        if command.name in ("broadcast", "scatter", "send"):  # the others wait for the root
            moves = begin if command.other == self.rank else max(begin, self.came[command.other])
        elif command.name in ("reduce", "gather") and command.other != self.rank:
            moves = begin
        self._ran(f"ncclDevKernel_{kernel}(ncclDevComm*)", command.stream, begin, moves + command.ns, number)

    def _recorded(self, command: Command, start: int, number: int) -> None:
        """What PyTorch records around a call: the operator with its inputs, and the record of the backend."""
        name, sends = command.name, command.other == self.rank
        args: dict[str, Any] = {
            "Process Group Name": "0",
            "Process Group Ranks": "[0, 1]",
            "Group size": 2,
            "dtype": "Float",
        }
        args |= {"In msg nelems": 64, "Out msg nelems": 64, "Seq": number}
        inputs = (
            ["", "", str(command.other), "0"] if name == "broadcast" else ["", "", "", str(command.other)]
        )
        if name == "send":
            name = "send" if sends else "recv"
            args |= {"Dst Rank": 1 - self.rank} if sends else {"Src Rank": 1 - self.rank}
        self._event(
            "cpu_op", f"c10d::{name}_", 100, self.thread, start, self.code(CALL), {"Concrete Inputs": inputs}
        )
        args |= {"Collective name": name}
        self._event("cpu_op", "record_param_comms", 100, self.thread, start, self.code(CALL), args)

    def _ran(self, name: str, stream: int, begin: int, end: int, number: int) -> None:
        self.free[stream] = end
        self._event(
            "kernel",
            name,
            0,
            stream,
            begin,
            end - begin,
            {"device": 0, "stream": stream, "correlation": number},
        )

    def wait(self, command: Command, number: int) -> None:
        start = self.clock
        self._host("cuda_runtime", "cudaEventRecord", start, self.code(1000), 100_000 + number)
        self._host(
            "cuda_runtime", "cudaStreamWaitEvent", start + self.code(1000), self.code(1000), 200_000 + number
        )
        self.clock += self.code(2000)
        args = {"device": 0, "stream": command.stream, "correlation": 200_000 + number}
        args |= {"wait_on_stream": command.other, "wait_on_cuda_event_record_corr_id": 100_000 + number}
        self._event("cuda_sync", "Stream Wait Event", 0, command.stream, start + self.code(1000), 0, args)
        until = self.free[command.other] + GAP
        self.held[command.stream] = max(until, self.held.get(command.stream, 0))

    def sync(self, command: Command, number: int) -> None:
        start = self.clock
        done = self.free.get(command.stream, 0) + WAIT
        own = self.code(WAIT) if self.speeds.waits else 0
        self.clock = max(start + own, done) if self.speeds.waits else start
        self._host("cuda_runtime", "cudaStreamSynchronize", start, self.clock - start, number)
        args = {"device": 0, "stream": command.stream, "correlation": number}
        self._event("cuda_sync", "Stream Sync", 0, command.stream, start, self.clock - start, args)

    def turn(self, _: Command, number: int) -> None:
        if self.thread == ENGINE:
            self._to_main(number)
        else:
            self.thread, self.turned = ENGINE, self.clock

    def _to_main(self, number: int) -> None:
        if self.thread == ENGINE and self.clock > self.turned:
            name = "autograd::engine::evaluate_function: MulBackward0"
            self._host("cpu_op", name, self.turned, self.clock - self.turned, sequence=number)
        self.thread = MAIN

    def finish(self) -> Run:
        self._to_main(0)
        for number, (start, end) in enumerate(zip(self.steps, [*self.steps[1:], self.clock], strict=True)):
            self._host("user_annotation", f"ProfilerStep#{number}", start, end - start)
        return Run(self.events, self.steps, max([self.clock, *self.free.values()]))

    def _host(
        self,
        cat: str,
        name: str,
        start: int,
        ns: int,
        correlation: int | None = None,
        *,
        sequence: int | None = None,
    ) -> None:
        args: dict[str, Any] = {} if correlation is None else {"correlation": correlation}
        if sequence is not None:
            args |= {"Sequence number": sequence, "Fwd thread id": 1}
        self._event(cat, name, 100, self.thread, start, ns, args)

    def _event(
        self, cat: str, name: str, pid: int, tid: int, start: int, ns: int, args: dict[str, Any]
    ) -> None:
        event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "args": args}
        self.events.append(event | {"ts": start / 1000, "dur": ns / 1000})


def write(run: Run, path: Path, rank: int | None = None, ahead: int = 0) -> Path:
    """The trace of a run as a file; of a rank of two with a clock that is so many ns ahead."""
    job = {} if rank is None else {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2}}
    events = [event | {"ts": event["ts"] + ahead / 1000} for event in run.events]
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events} | job))
    return path


def halved(program: list[Command], name: str) -> list[Command]:
    """The program with kernels of a name half as long."""
    return [
        replace(one, ns=one.ns // 2) if one.name == name and one.what == "launch" else one for one in program
    ]
