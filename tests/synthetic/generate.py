"""The workload: a training loop on the simulated machine, with everything that real traces hold."""

from __future__ import annotations

import random
from contextlib import nullcontext
from typing import Any

from . import names
from .events import build_events, build_header
from .machine import Stream, Thread
from .model import Collective, Config, Planted, Step
from .operators import COMM_STREAM, COPY_STREAM, PID, SIDE_STREAM, Operators
from .truth import finish


def generate(seed: int | random.Random = 0, config: Config | None = None, **changes: Any) -> Planted:
    """A trace with its truth; the same seed and config give the same trace.

    `changes` are fields of `Config` to set: `generate(3, steps=0, devices=2)`.
    """
    rng = seed if isinstance(seed, random.Random) else random.Random(seed)
    settings = config or Config()
    if changes:
        settings = Config(**{**settings.__dict__, **changes})
    run = Workload(rng, settings)
    run.run()
    return run.planted()


class Workload(Operators):
    """Forward on the main thread, backward on the autograd thread, optimizer, and planted trouble."""

    # -- the run -----------------------------------------------------------------------------------

    def run(self) -> None:
        config = self.config
        self._orphans()
        for _ in range(config.warmup_ops):
            self._forward_op(self.main, self.rng.choice(names.LAYERS), self._stream(0))
        for number in range(config.first_step, config.first_step + max(config.steps, 1)):
            if config.steps == 0:
                self._iteration()
                continue
            self.step_number = number
            name = f"ProfilerStep#{number}"
            with self.m.span(self.main, "step", name, cat="user_annotation") as opened:
                self._iteration()
            self.steps.append(Step(number, opened.index, opened.start_ns, opened.dur_ns))
            self.main.advance(self.m.ns(500, 4_000))
        self.step_number = None
        self.m.synchronise(self.main, None)
        for worker in range(config.workers):
            self._worker(Thread(PID + 100 + worker, PID, config.origin_ns + 1_000_000))

    def _worker(self, thread: Thread) -> None:
        """A DataLoader process: operators only, on a thread id that the main thread has as well."""
        while thread.clock < self.main.clock:
            thread.advance(self.m.ns(5_000, 50_000))
            with self._op(thread, "aten::stack"):
                self._dispatch(thread)
                with self._op(thread, "aten::cat"):
                    thread.advance(self.m.ns(20_000, 200_000))

    def _iteration(self) -> None:
        python = (
            self.m.span(self.main, "python", "train.py(42): train_step", cat="python_function")
            if self.config.python_stacks
            else nullcontext()
        )
        with python:
            self._train_step()

    def _train_step(self) -> None:
        config, m, main = self.config, self.m, self.main
        for cause in ("data_loading", "python", "profiler_overhead", "compilation"):
            if cause in config.incidents:
                self._incident(main, cause)
        self._copy_in()
        works = [self.rng.choice(names.LAYERS) for _ in range(config.layers)]
        sequences = []
        with m.span(main, "annotation", "forward", cat="user_annotation"):
            for layer, work in enumerate(works):
                sequences.append(self._layer(layer, work))
            if config.triton:
                self._triton()
            if config.graph:
                self._graph()
        for cause in ("operator_dispatch", "allocation", "unexplained", "dependency", "synchronisation"):
            if cause in config.incidents:
                self._incident(main, cause)
        if config.backward:
            self._backward(works, sequences)
        elif config.communication:
            self._collective(main, self._stream(0))
        if config.optimizer:
            self._optimizer()
        self._item()

    # -- the parts of an iteration -----------------------------------------------------------------

    def _orphans(self) -> None:
        """Work that was launched before the profiler started: it runs first, and has no launch record."""
        for _ in range(self.config.orphans):
            work = self.rng.choice(names.LAYERS)
            self.m.launch_all(
                Thread(0, 0, self.config.origin_ns),
                [(work.category, work.kernel, self._stream(0), work.weight)],
                call=work.call,
                recorded=False,
            )

    def _copy_in(self) -> None:
        m, main = self.m, self.main
        target = self._stream(0)
        pinned = self.rng.random() < 0.5
        size = self.rng.randint(1, 2_000) * 1024
        source = "Host" if m.amd else "Pinned" if pinned else "Pageable"

        def copy() -> None:
            stream = self._stream(0, COPY_STREAM) if pinned else target
            made = m.launch_all(
                main,
                [("memcpy", f"Memcpy HtoD ({source} -> Device)", stream, 0.5)],
                call="cudaMemcpyAsync",
                blocking=not pinned,
                kind="memcpy",
                bytes=size,
            )
            self._landed(made[0].index)
            if pinned:
                m.wait_event(main, target, stream)

        self._nest(main, ("aten::to", "aten::_to_copy", "aten::copy_"), copy, None)

        def fill() -> None:
            made = m.launch_all(
                main,
                [("memset", "Memset (Device)", target, 0.1)],
                call="cudaMemsetAsync",
                kind="memset",
                bytes=self.rng.randint(1, 512) * 4,
            )
            self._landed(made[0].index)

        with m.span(main, "annotation", "Optimizer.zero_grad#AdamW.zero_grad", cat="user_annotation"):
            self._nest(main, ("aten::zero_",), fill, None)

    def _layer(self, layer: int, work: names.Work) -> int:
        m, main, device = self.m, self.main, self._device_of(layer)
        stream = self._stream(device)
        if device != self._device_of(layer - 1) and layer:
            self._move(self._stream(device - 1), stream)
        self.sequence += 1
        python = (
            m.span(main, "module", f"nn.Module: {work.category.title()}_{layer}", cat="python_function")
            if self.config.python_stacks
            else nullcontext()
        )
        with m.span(main, "annotation", f"layers.{layer} ({work.category})", cat="user_annotation"), python:
            self._forward_op(main, work, stream, self.sequence)
            if self.config.side_stream and self.rng.random() < 0.6:
                side = self._stream(device, SIDE_STREAM)
                m.wait_event(main, side, stream)
                self._forward_op(main, self.rng.choice(names.LAYERS), side)
                # More work on the first stream, so that the two overlap, and then the join.
                self._forward_op(main, self.rng.choice(names.LAYERS), stream)
                m.wait_event(main, stream, side)
        return self.sequence

    def _move(self, source: Stream, target: Stream) -> None:
        """Activations go to the next device, whose first kernel waits for them."""
        m, main = self.m, self.main

        def copy() -> None:
            m.launch_all(
                main,
                [("memcpy", "Memcpy DtoD (Device -> Device)", source, 0.5)],
                call="cudaMemcpyAsync",
                kind="memcpy",
                bytes=1 << 20,
            )

        self._nest(main, ("aten::to", "aten::_to_copy", "aten::copy_"), copy, None)
        m.wait_event(main, target, source)

    def _triton(self) -> None:
        """Triton's operator rows carry a `stream` argument although they are host spans."""
        m, main, stream = self.m, self.main, self._stream(0)
        with m.span(main, "annotation", "## Call CompiledFxGraph fal4xpiah2v6 ##", cat="user_annotation"):
            for name in names.TRITON:
                args = {"stream": stream.number, "kernel_backend": "triton", "num_warps": 8}
                with self._op(main, name, args=args):
                    self._dispatch(main)
                    work = names.Work("fused", name, (), weight=0.3, call="cuLaunchKernel")
                    self._launch(main, work, stream)

    def _graph(self) -> None:
        """One call, many kernels on two streams, one correlation id."""
        first, second = self._stream(0), self._stream(0, SIDE_STREAM)
        work = [
            (category, kernel, second if self.config.side_stream and i % 3 == 2 else first, 0.3)
            for i, (category, kernel) in enumerate(names.GRAPH_KERNELS * 2)
        ]
        made = self.m.launch_all(self.main, work, call="cudaGraphLaunch")
        self._landed(made[0].index)

    def _backward(self, works: list[names.Work], sequences: list[int]) -> None:
        m, main, autograd = self.m, self.main, self.autograd
        with m.span(main, "annotation", "backward", cat="user_annotation"):
            main.advance(m.ns(2_000, 8_000))
            autograd.wait_until(main.clock)
            for layer in reversed(range(len(works))):
                self._node(works[layer], sequences[layer], self._stream(self._device_of(layer)))
            if self.config.communication:
                for device in range(self.config.devices):
                    self._collective(autograd, self._stream(device))
            main.wait_until(autograd.clock + m.ns(2_000, 6_000))

    def _node(self, work: names.Work, sequence: int, stream: Stream) -> None:
        m, thread = self.m, self.autograd
        if not work.backward:
            return
        node, *ops = work.backward
        extra: dict[str, Any] = {"sequence": sequence, "forward_thread": 1}
        with self._op(thread, f"autograd::engine::evaluate_function: {node}", **extra):
            self._dispatch(thread)
            with self._op(thread, node, **extra):
                self._dispatch(thread)
                self._nest(
                    thread, tuple(ops), lambda: self._launch(thread, work, stream, work.backward_kernel), None
                )
        with self._op(thread, "torch::autograd::AccumulateGrad"):
            thread.advance(m.ns(1_000, 4_000))

    def _collective(self, thread: Thread, after: Stream) -> None:
        """Starts after the compute so far and overlaps what comes next, until the optimizer waits for it."""
        m = self.m
        name, kernel, label = self.rng.choice(names.NCCL)
        if self.config.custom_communication:
            kernel = self.rng.choice(names.CUSTOM_COMMUNICATION)
        stream = m.stream(after.device, COMM_STREAM)
        self.collective_sequence += 1
        count = self.rng.randint(1, 500) * 1024
        record = {
            "Collective name": name,
            "In msg nelems": count,
            "Out msg nelems": count,
            "Group size": self.config.world_size,
            "dtype": "Float",
            "Seq": self.collective_sequence,
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": str(list(range(self.config.world_size))),
        }
        with self._op(thread, "record_param_comms", "collective_bookkeeping", args=dict(record)) as op:
            thread.advance(m.ns(2_000, 9_000))
            with m.span(thread, "annotation", label, "collective_bookkeeping", cat="user_annotation"):
                m.wait_event(thread, stream, after)
                made = m.launch(
                    thread,
                    "communication",
                    kernel,
                    stream,
                    call="cudaLaunchKernelExC",
                    weight=3.0,
                    args=record,
                )
                self._landed(made.index)
        self.collectives.append(
            Collective(
                name, op.index, made.index, count, "Float", self.config.world_size, self.collective_sequence
            )
        )

    def _optimizer(self) -> None:
        m, main = self.m, self.main
        with m.span(main, "annotation", "Optimizer.step#AdamW.step", cat="user_annotation"):
            main.advance(m.ns(2_000, 9_000))
            for device in range(self.config.devices):
                # Some optimizer work runs while communication is still going on, the rest after it.
                self._forward_op(main, names.OPTIMIZER, self._stream(device))
                if self.config.communication:
                    here = self._stream(device)
                    m.wait_event(main, here, m.stream(here.device, COMM_STREAM))
                self._forward_op(main, names.OPTIMIZER, self._stream(device))

    def _item(self) -> None:
        """`loss.item()`: a small copy to the host, and a wait for it."""
        m, main, stream = self.m, self.main, self._stream(0)
        target = "Host" if m.amd else "Pageable"
        with self._op(main, "aten::item", "synchronisation"):
            self._dispatch(main)
            with self._op(main, "aten::_local_scalar_dense", "synchronisation"):
                made = m.launch_all(
                    main,
                    [("memcpy", f"Memcpy DtoH (Device -> {target})", stream, 0.05)],
                    call="cudaMemcpyAsync",
                    kind="memcpy",
                    bytes=4,
                )
                self._landed(made[0].index)
                m.synchronise(main, stream)

    # -- planted trouble ---------------------------------------------------------------------------

    def _incident(self, thread: Thread, cause: str) -> None:
        """Lets the devices drain, then holds the next launch up for one known reason."""
        m = self.m
        stream = self._stream(0)
        if cause == "unexplained":
            m.synchronise(thread, None)  # other streams must not cover the gap
            self.watched = (cause, thread.clock, thread.clock)
            self._delayed(thread, stream)
            return
        if cause == "dependency":
            self._cross_stream(thread, stream)
            return
        m.synchronise(thread, None, (30_000, 90_000) if cause == "synchronisation" else (800, 3_000))
        start = thread.clock
        long = m.ns(60_000, 400_000)
        if cause == "data_loading":
            name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
            with m.span(thread, "annotation", name, cause, cat="user_annotation"):
                thread.advance(long)
        elif cause == "python":
            thread.advance(long)
        elif cause == "operator_dispatch":
            with self._op(thread, "aten::nonzero"):
                thread.advance(long)
        elif cause == "allocation":
            with self._op(thread, "aten::empty"):
                self._dispatch(thread)
                with m.runtime(thread, "cudaMalloc", cause, 100_000, 300_000):
                    pass
                self._allocate(thread, stream.device, 1 << 21)
        elif cause == "compilation":
            with m.span(thread, "op", "TorchDynamo Cache Lookup", cause):
                thread.advance(long)
        elif cause == "profiler_overhead":
            with m.span(thread, "overhead", "Activity Buffer Request", cause, cat="overhead"):
                thread.advance(long)
        self.watched = (cause, start, thread.clock)
        self._forward_op(thread, self.rng.choice(names.LAYERS), stream)

    def _delayed(self, thread: Thread, stream: Stream) -> None:
        """A long kernel, and behind it one that starts late although it was launched in time."""
        with self._op(thread, "aten::stack"):
            work = [("copy", names.LAYERS[11].kernel, stream, 1.0)]
            self.m.launch_all(thread, work, call="cudaLaunchKernel", length=self.m.ns(150_000, 300_000))
            made = self.m.launch_all(thread, work, call="cudaLaunchKernel", delay=self.m.ns(20_000, 60_000))
        self._landed(made[0].index)

    def _cross_stream(self, thread: Thread, stream: Stream) -> None:
        """Everything waits for one long kernel on another stream, so the gap after it is a dependency's."""
        side = self._stream(0, SIDE_STREAM)
        self.m.synchronise(thread, None)
        with self._op(thread, "aten::sort"):
            work = [("sort", names.LAYERS[13].kernel, side, 1.0)]
            self.m.launch_all(thread, work, call="cudaLaunchKernel", length=self.m.ns(200_000, 400_000))
        start = thread.clock
        self.m.wait_event(thread, stream, side)
        self.watched = ("dependency", start, thread.clock)
        self._forward_op(thread, names.LAYERS[3], stream)

    # -- the result --------------------------------------------------------------------------------

    def planted(self) -> Planted:
        m = self.m
        truth = finish(m, (self.main, self.autograd), self.steps)
        return build_events(
            Planted(
                config=self.config,
                events=[],
                header=build_header(self.config, m),
                spans=truth.spans,
                activities=truth.activities,
                steps=truth.steps,
                gaps=truth.gaps,
                incidents=self.incidents,
                collectives=truth.renumber(self.collectives),
                memory=self.memory if self.config.memory_events else [],
                counters=self.counters if self.config.counters else [],
                main_thread=self.main.key,
                backward_thread=self.autograd.key,
            ),
            m.sync_rows if self.config.sync_rows else [],
        )
