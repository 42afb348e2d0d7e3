"""Small random inputs for property tests: spans and activities with ties, overlaps and zero lengths."""

from __future__ import annotations

import random

from .model import COMMUNICATION, COMPUTE, MEMORY, Activity, HostSpan


def random_spans(rng: random.Random, count: int, *, threads: int = 2, horizon: int = 40) -> list[HostSpan]:
    """Spans without any order to them: nested, equal, partly overlapping, of no length, in two processes."""
    spans = []
    for index in range(count):
        start = rng.randrange(horizon)
        # Two processes share their thread ids, so that only the pair tells threads apart.
        process, thread = 1 + rng.randrange(2), 1 + rng.randrange(threads)
        kind = rng.choice(("op", "annotation", "runtime"))
        spans.append(
            HostSpan(index, process, thread, kind, f"span {index}", start, rng.randrange(horizon // 2))
        )
    return spans


def random_activities(
    rng: random.Random, count: int, *, devices: int = 2, streams: int = 3, horizon: int = 200
) -> list[Activity]:
    """Activities that overlap at will, also on one stream; three in four have a launch."""
    rows = []
    for index in range(count):
        start = rng.randrange(horizon)
        cls = rng.choice((COMPUTE, COMPUTE, COMMUNICATION, MEMORY))
        kind = rng.choice(("memcpy", "memset")) if cls == MEMORY else "kernel"
        name = {
            COMPUTE: "kernel_" + rng.choice("abc"),
            COMMUNICATION: "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            MEMORY: "Memset (Device)" if kind == "memset" else "Memcpy HtoD (Pinned -> Device)",
        }[cls]
        activity = Activity(
            index=index,
            kind=kind,
            cls=cls,
            category=kind if cls == MEMORY else cls if cls == COMMUNICATION else "other",
            name=name,
            device=rng.randrange(devices),
            stream=rng.choice((0, 7, 20, 24)[:streams]),
            start_ns=start,
            dur_ns=rng.randrange(30),
            correlation=index + 1,
            bytes=rng.randrange(1, 1 << 20) if cls == MEMORY else None,
        )
        if rng.random() < 0.75:
            activity.launch_start_ns = start - rng.randrange(1, 20)
            activity.launch_end_ns = activity.launch_start_ns + rng.randrange(1, 15)
            activity.launch_thread = (1, 1)
            activity.step = rng.choice((None, 0, 1))
        rows.append(activity)
    return rows
