"""Which names say what about a wait: one planted gap of 100 µs for each."""

from __future__ import annotations

import pytest
from planted import MS, US, Planted

from tracekit.analyses.idle import idle
from tracekit.analyses.idle.causes import idle_causes
from tracekit.analyses.rules.idle_time import blocked
from tracekit.analyses.scope import select
from tracekit.report.build import build_report

BLOCKED_LOCK = "<built-in method acquire of _thread.lock object at 0x7f01>"
LOADER = ("annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")
MARKS = ("python", "tracekit/capture/marks/instrument.py(195): _enter")
CASES: list[tuple[str, list[tuple[str, str]]]] = [
    ("host_code", []),
    ("python", [("python", "train.py(3): step")]),
    ("python", [("annotation", "my range")]),
    ("operator_dispatch", [("op", "aten::nonzero")]),
    ("operator_dispatch", [("op", "MyFunction"), ("python", "ops.py(9): forward")]),
    ("operator_dispatch", [("op", "aten::mm"), ("runtime", "cudaEventRecord")]),
    ("python", [("op", "DistributedDataParallel.forward"), ("python", "ddp.py(9): forward")]),
    ("synchronisation", [("op", "aten::item")]),
    ("synchronisation", [("op", "aten::item"), ("op", "aten::_local_scalar_dense")]),
    ("synchronisation", [("op", "aten::nonzero"), ("runtime", "cudaStreamSynchronize")]),
    ("synchronisation", [("runtime", "hipDeviceSynchronize")]),
    ("data_loading", [LOADER]),
    ("data_loading", [LOADER, ("python", "data.py(5): __getitem__")]),
    ("data_loading", [LOADER, ("op", "aten::stack"), ("op", "aten::item")]),
    ("data_loading", [("annotation", "tracekit.phase/h2d"), ("op", "aten::to")]),
    ("data_loading", [("python", "torch/utils/data/dataloader.py(600): __next__"), ("op", "aten::stack")]),
    ("data_loading", [("op", "aten::pin_memory"), ("op", "aten::empty")]),
    ("synchronisation", [LOADER, ("runtime", "cudaStreamSynchronize")]),
    ("allocation", [("op", "aten::empty"), ("runtime", "cudaMalloc")]),
    ("allocation", [("runtime", "cudaMalloc"), ("op", "pool")]),
    ("allocation", [("python", "torch/cuda/memory.py(150): empty_cache")]),
    ("launch_api", [("op", "aten::mm"), ("runtime", "cudaLaunchKernel")]),
    ("compilation", [("op", "TorchDynamo Cache Lookup")]),
    ("compilation", [("python", "torch/_dynamo/convert_frame.py(9): compile"), ("op", "aten::empty")]),
    ("module_loading", [("op", "aten::mm"), ("runtime", "cuModuleLoadData")]),
    (
        "module_loading",
        [("op", "aten::mm"), ("runtime", "cudaLaunchKernel"), ("overhead", "Lazy Function Loading")],
    ),
    ("compilation", [("annotation", "executor_utils::Nvrtc::CompileProgram")]),
    ("launch_api", [("runtime", "cudaLaunchKernel"), ("overhead", "Command Buffer Full")]),
    ("module_loading", [("overhead", "Lazy Function Loading")]),
    ("profiler_overhead", [("op", "aten::mm"), ("overhead", "Activity Buffer Request")]),
    ("profiler_overhead", [MARKS, ("python", "<built-in function isinstance>")]),
    ("python", [("python", "tracekit/capture/watch.py(162): _in_phase"), ("python", "me.py(3): f")]),
    ("collective_bookkeeping", [("op", "c10d::allreduce_"), ("op", "record_param_comms")]),
    ("collective_bookkeeping", [("annotation", "nccl:all_reduce")]),
]


def waiting(spans: list[tuple[str, str]]) -> Planted:
    """Idle from 100 to 210 µs; until the launch at 200 µs these spans are open, each in the one before."""
    made = Planted()
    made.activity("a", 10 * US, 90 * US, launch=0)
    for depth, (kind, name) in enumerate(spans):
        made.span(kind, name, 50 * US + depth, 200 * US - depth if depth else 200 * US)
    made.activity("b", 210 * US, 90 * US, launch=200 * US)
    return made


@pytest.mark.quick(6)
@pytest.mark.parametrize(
    ("cause", "spans"),
    CASES,
    ids=lambda value: value if isinstance(value, str) else "-".join(n for _, n in value)[:60] or "nothing",
)
def test_the_innermost_span_and_what_surrounds_it_tell_the_cause(
    cause: str, spans: list[tuple[str, str]]
) -> None:
    pieces = idle_causes(waiting(spans).trace()).pieces
    innermost = 100 * US - max(len(spans) - 1, 0)
    first = pieces.row(0, named=True)
    assert (first["cause"], first["start"] - pieces["start"].min(), first["duration_ns"]) == (
        cause,
        0,
        innermost,
    )
    last = pieces.row(-1, named=True)
    assert (last["cause"], last["duration_ns"]) == ("launch_latency", 10 * US)


def test_the_frame_is_the_users_own() -> None:
    made = waiting(
        [
            ("python", "train.py(3): step"),
            ("python", "/opt/venv/lib/python3.11/site-packages/helper/core.py(5): call"),
            ("python", "torch/nn/modules/module.py(1): __getattr__"),
            ("python", "contextlib.py(81): inner"),
            ("python", "<built-in function len>"),
        ]
    )
    pieces = idle_causes(made.trace()).pieces
    assert set(pieces["frame"][:-1]) == {"train.py(3): step"}


@pytest.mark.parametrize(
    ("inside", "said"),
    [
        ([("python", "matcher.py(5): match")], ("python", "matcher.py(5): match")),
        ([("op", "aten::cdist")], ("operator_dispatch", "train.py(3): step")),
        (
            [
                ("python", "torch/_tensor.py(570): backward"),
                ("python", "torch/autograd/graph.py(815): _engine_run_backward"),
            ],
            ("python", "train.py(3): step"),
        ),
    ],
)
def test_before_the_backward_pass_the_main_thread_tells_what_the_device_waits_for(
    inside: list[tuple[str, str]], said: tuple[str, str]
) -> None:
    """What ran between the forward and the backward pass was Python of no place, since the engine's thread had nothing to run."""
    made = Planted()
    made.step(1, 0, 1000 * US)
    made.span("python", "train.py(3): step", US, 990 * US)
    made.activity("gemm", 10 * US, 90 * US, launch=2 * US)
    for depth, (kind, name) in enumerate(inside):
        made.span(kind, name, 120 * US + depth, 820 * US - depth)
    made.span("op", "autograd::engine::evaluate_function: MmBackward0", 840 * US, 900 * US, 2, sequence=1)
    made.activity("gemm", 860 * US, 100 * US)
    made.call("cudaLaunchKernel", 850 * US, 5 * US, 2, correlation=2)
    pieces = idle_causes(made.trace()).pieces
    longest = pieces.sort("duration_ns").row(-1, named=True)
    assert (longest["cause"], longest["frame"]) == said
    assert longest["duration_ns"] == pytest.approx(700 * US, abs=10)
    assert int(pieces["duration_ns"].sum()) == 760 * US + 50 * US


def test_a_frame_open_before_the_recording_has_no_line() -> None:
    """Its line is where the recording began, and a report sent people there; frames that begin later have their function's line."""
    made = Planted()
    made.span("python", "train.py(10): <module>", 0, 100 * MS)
    made.span("python", "me/train.py(20): run", US, 100 * MS)
    made.span("python", "torch/profiler/profiler.py(821): step", 2 * US, 90 * US)
    for number in range(4):
        start = number * 25 * MS + 100 * US
        made.step(number, start, start + 24 * MS)
        made.span("op", "aten::mm", start + 10 * MS, start + 11 * MS)
        made.span("python", "train.py(5): log", start + 12 * MS, start + 14 * MS)
    result = idle_causes(made.trace())
    assert set(result.pieces["frame"].unique()) == {"me/train.py: run", "train.py(5): log"}
    assert result.by_frame is not None
    shares = dict(result.by_frame["frame", "open_share"].rows())
    assert (shares["me/train.py: run"], round(shares["train.py(5): log"], 2)) == (1.0, 0.08)


def test_an_event_of_another_stream_is_named() -> None:
    made = Planted()
    made.activity("first", 10 * US, 20 * US, launch=0, stream=7)
    made.activity("other", 10 * US, 190 * US, launch=5 * US, stream=20)
    made.activity("held", 202 * US, 50 * US, launch=100 * US, stream=7)
    made.activity("queued", 253 * US, 50 * US, launch=110 * US, stream=7)
    made.activity("late", 403 * US, 50 * US, launch=120 * US, stream=7)
    pieces = idle_causes(made.trace()).pieces
    assert pieces.select("cause", "dependency", "duration_ns").rows() == [
        ("dependency", "other (stream 20)", 2 * US),
        ("kernel_gap", None, US),
        ("unexplained", None, 100 * US),
    ]


def test_the_verdict_says_what_the_host_did_and_where() -> None:
    made = Planted()
    for number in range(5):
        start = number * MS
        made.step(number, start, start + MS)
        made.span("python", "loss.py(42): log", start, start + 900 * US)
        made.activity("gemm", start + 10 * US, 300 * US, launch=start)
        made.span("op", "aten::item", start + 50 * US, start + 900 * US)
        made.call("cudaStreamSynchronize", start + 60 * US, 830 * US)
    verdict = build_report(made.trace()).verdict
    assert verdict.bound == "host-bound"
    assert "for the device, mostly in loss.py(42): log (aten::item)" in verdict.headline


def test_of_a_trace_without_frames_there_is_no_table_of_frames() -> None:
    result = idle(waiting([("op", "aten::mm")]).trace())
    assert result.by_frame is None
    assert "by_frame" not in result.tables()
    assert result.by_operator is not None


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        (["server.py(20): next", "queue.py(154): get", BLOCKED_LOCK], "waits"),
        (["server.py(20): next", "threading.py(327): wait", BLOCKED_LOCK], "waits"),
        (["concurrent/futures/_base.py(428): result", "threading.py(327): wait", BLOCKED_LOCK], "waits"),
        (["/usr/lib/python3.12/selectors.py(451): select"], "waits"),
        (["selectors.py(451): select", "<built-in method poll of select.epoll object at 0x7f>"], "waits"),
        (["<built-in method recv_into of socket object at 0x7f>"], "waits"),
        (["multiprocessing/connection.py(390): _recv", "<built-in function read>"], "waits"),
        (["train.py(9): pace", "<built-in function sleep>"], "sleeps"),
        (["train.py(9): step", "<built-in method get of dict object at 0x7f>"], ""),
        (["train.py(9): step", "<built-in method join of str object at 0x7f>"], ""),
        (["train.py(9): step", "<built-in method select of Tensor object at 0x7f>"], ""),
        (["my_queue.py(9): get"], ""),
        (["torch/utils/data/dataloader.py(9): _get_data", "queue.py(154): get"], ""),
    ],
)
def test_frames_that_only_wait_are_no_work(frames: list[str], said: str) -> None:
    """A thread that waited in queue.get for the next request was told to do this work less often."""
    assert blocked(select(waiting([("python", frame) for frame in frames]).trace()), 0) == said
