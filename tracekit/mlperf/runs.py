"""Runs of MLPerf training from the events of their logs: phases, batch, epochs, evaluations and what is wrong with them.

Only what stands in the log before `run_stop` belongs to a run, since evaluations may run beside training and be logged later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace
from typing import Any, Final

from tracekit.classes import dataclass
from tracekit.mlperf.blocks import AT_ONCE_NS, Blocks, trained_in
from tracekit.mlperf.jumps import Gap, gaps_of
from tracekit.mlperf.log import Event, Log, number_of, point_of
from tracekit.names import clean

__all__ = ["LoggedRun", "runs_in"]

_NS: Final = 1e9
_JUMP_NS: Final = 2_000_000_000
"""Clocks of several hosts differ by less; further back a clock was set."""
_FIRST: Final = ("init_start", "run_start", "submission_benchmark")
_TRAINS: Final = ("block_", "epoch_", "eval_")
"""How the keys begin that training and evaluation log over and over."""
_IN_TOKENS: Final = ("gpt3",)
"""Benchmarks that count tokens as epochs."""
_ONE_NAME: Final = (
    "bert",
    "dlrm",
    "gnmt",
    "gpt3",
    "minigo",
    "ncf",
    "resnet",
    "rnnt",
    "ssd",
    "transformer",
    "unet3d",
)
_BENCHMARKS: Final = {**{name: name for name in _ONE_NAME}, "mask": "mask", "gnn": "gnn", "rgat": "gnn", "llama2": "llama2", "llama3": "llama3"}  # fmt: skip
"""How names of benchmarks of MLPerf's begin, in lower case, and what they are."""
_HYPER: Final = ("opt_", "lars_", "lamb_", "sgd_", "max_sequence", "model_bn", "num_image", "weight_decay")
_SIZES: Final = ("train_samples", "num_train_examples", "preproc_num_train_examples")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    """One run. Times are seconds; what the log does not tell is None or empty."""

    name: str
    organisation: str = ""
    system: str = ""
    benchmark: str = ""
    division: str = ""
    round: str = ""
    """Of MLPerf, as the folder of its results is called: `v0.7`."""
    accelerators: int | None = None
    batch: int | None = None
    """Samples of a step (tokens in some translation models), on all chips together."""
    samples: int | None = None
    """Of an epoch."""
    status: str = ""
    """`success`, `aborted`, or `cut` where the log ends before the run does."""
    init_s: float | None = None
    """From the first `init_start` to `run_start`, which the score leaves out."""
    run_s: float | None = None
    """From `run_start` to `run_stop`; None of a cut log, or one by whose clock no time passes, or that has no time for one of them."""
    epochs: float | None = None
    evaluations: int = 0
    last_epoch: float | None = None
    """The number that the last evaluation carries."""
    accuracy: float | tuple[float, ...] | None = None
    blocks: Blocks = ()
    """Begin and end of each block of training, or of each epoch where no blocks are logged, in seconds from `run_start`, and its epochs, or samples or tokens where the log counts these: its end
    is where the next one begins, or its evaluation does."""
    evaluation_s: tuple[tuple[float, float], ...] = ()
    """Begin and end of each evaluation, likewise."""
    hyper_parameters: dict[str, Any] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
    """The longest two between events from `run_start` on, the longest first."""
    problems: tuple[str, ...] = ()
    """What is wrong with the log, a phrase each."""

    @property
    def succeeded(self) -> bool:
        """Whether it reached its target."""
        return self.status == "success" and self.run_s is not None


def runs_in(log: Log, name: str, **known: Any) -> list[LoggedRun]:
    """The runs of a log, mostly one; `known` are fields that its folder tells and the log may not.

    A log without `run_start` has none.
    """
    parts = list(_parts(log.events))
    found = []
    for number, events in enumerate(parts, 1):
        run = _run(events, name if len(parts) == 1 else f"{name} ({number} of {len(parts)})", known)
        if run is not None:
            found.append(run)
    defects = tuple(
        f"{kind} in line {line}" if count == 1 else f"{kind} in {count} lines, the first is line {line}"
        for kind, (count, line) in log.defects.items()
    )
    several = (f"{len(parts)} runs in one file",) if len(parts) > 1 else ()
    return [replace(run, problems=(*run.problems, *several, *defects)) for run in found]


def _parts(events: Sequence[Event]) -> Iterator[list[Event]]:
    """The events of each run: another one begins with the first `init_start` or `run_start` after a run that was stopped, or that is started
    again.
    """
    part: list[Event] = []
    stopped = False
    start: Event | None = None
    trained = 0
    went_on = False
    for event in events:
        again = event.key == "run_start" and start is not None and event.time_ns - start.time_ns > _JUMP_NS
        if again and went_on:  # else it is another rank, whose clock is fast
            begun = next((at for at in range(trained, len(part)) if part[at].key in _FIRST), len(part))
            yield part[:begun]  # it was cut
            part, start, went_on = part[begun:], None, False
        if stopped and event.key in _FIRST:
            yield part
            part, stopped, start, went_on = [], False, None, False
        stopped |= event.key == "run_stop"
        went_on |= (
            start is not None and event.key != "run_start" and event.key.startswith((*_FIRST, *_TRAINS))
        )
        start = event if event.key == "run_start" and start is None else start
        part.append(event)
        if start is None or event.key.startswith(_TRAINS):
            trained = len(part)
    if part:
        yield part


def _once(events: Sequence[Event]) -> list[Event]:
    """The events, those that several ranks log at once only once: of one key and metric, at one point of the training.

    Where several log `run_start`, so many log all else too, and their clocks may differ by more; then it has one value, and as many copies at most,
    so that two evaluations close to each other stay two.
    """
    kept: list[Event] = []
    latest: dict[tuple[str, float | None, str], tuple[Event, int]] = {}
    ranks = sum(event.key == "run_start" for event in events)
    for event in events:
        point = event.key, point_of(event), str(event.metadata.get("metric"))
        if event.key.startswith(_TRAINS) and event.time_ns:
            first, copies = latest.get(point, (None, 0))
            if first is not None:
                apart = abs(event.time_ns - first.time_ns)
                alike = apart <= _JUMP_NS and copies < ranks and event.value == first.value
                if alike or apart <= AT_ONCE_NS:
                    latest[point] = first, copies + 1
                    continue
            latest[point] = event, 1
        kept.append(event)
    return kept


def _run(events: Sequence[Event], name: str, known: dict[str, Any]) -> LoggedRun | None:
    start = _first(events, "run_start")
    if start is None:
        return None
    stop = _first(events, "run_stop")
    until = _once(events if stop is None else events[: events.index(stop) + 1])
    timed = [event for event in until if event.time_ns]
    begun = [event.time_ns for event in timed if event.key == "init_start"]
    evaluations = _accuracies(until)
    last = evaluations[-1] if evaluations else None
    told = {
        "organisation": _text(events, "submission_org"),
        "system": _text(events, "submission_platform"),
        "benchmark": _text(events, "submission_benchmark"),
        "division": _text(events, "submission_division"),
    }
    fields = {**told, **{key: value for key, value in known.items() if value is not None}}
    other = _other_benchmark(told["benchmark"], fields["benchmark"])
    if other:  # a log in a wrong folder is no run of what the folder is called by
        fields["benchmark"] = told["benchmark"]
    batch = _whole(_last_value(until, "global_batch_size"))
    samples = next((size for key in _SIZES if (size := _whole(_last_value(until, key)))), None)
    # A folder may be called as the benchmark is, or as a variant of it.
    in_tokens = any(each["benchmark"].lower() in _IN_TOKENS for each in (told, fields))
    of_sample = _whole(_last_value(until, "max_sequence_length")) if in_tokens else 1
    size = samples * of_sample if samples and of_sample else None
    blocks, epochs = trained_in(until, start, [each[0] for each in evaluations], samples, batch, size)
    status = "" if stop is None else str(stop.metadata.get("status") or stop.value or "unknown").lower()
    return LoggedRun(
        name=name,
        **fields,
        batch=batch,
        samples=samples,
        status="cut" if stop is None else clean(status),
        init_s=(start.time_ns - min(begun)) / _NS if begun and min(begun) <= start.time_ns else None,
        run_s=None
        if stop is None or not 0 < start.time_ns < stop.time_ns
        else (stop.time_ns - start.time_ns) / _NS,
        epochs=epochs,
        evaluations=len(evaluations),
        last_epoch=None if last is None else number_of(last[0].metadata.get("epoch_num")),
        accuracy=None
        if last is None
        else _accuracy(last[0].value if len(last) == 1 else [each.value for each in last]),
        blocks=blocks,
        evaluation_s=_evaluations(until, start, evaluations),
        hyper_parameters={event.key: event.value for event in until if event.key.startswith(_HYPER)},
        gaps=gaps_of([event for event in timed if event.line >= start.line]) if start.time_ns else (),
        problems=(*_problems(until, start, stop), *other),
    )


def _accuracies(events: Sequence[Event]) -> list[list[Event]]:
    """The accuracies of each evaluation: one, or several metrics of one point of the training. Either they have names, or no other evaluation starts
    between them.
    """
    found: list[list[Event]] = []
    named: dict[float, list[Event]] = {}
    starts = 0
    for event in events:
        starts += event.key == "eval_start"
        if event.key != "eval_accuracy":
            continue
        point, metric = point_of(event), event.metadata.get("metric")
        if metric is not None and point is not None:
            beside = named.get(point, [])
            alike = bool(beside) and all(other.metadata.get("metric") != metric for other in beside)
        else:
            beside = found[-1] if found else []
            alike = bool(beside) and 0 < starts <= len(found) and point_of(beside[0]) == point
        if alike:
            beside.append(event)
            continue
        found.append([event])
        if metric is not None and point is not None:
            named[point] = found[-1]
    return found


def _evaluations(
    events: Sequence[Event], start: Event, accuracies: Sequence[Sequence[Event]]
) -> tuple[tuple[float, float], ...]:
    """The evaluations, from each `eval_start` to the end or the last of its accuracies, whichever comes first."""
    more = {id(event) for each in accuracies for event in each[1:]}
    made: list[tuple[float, float]] = []
    open_, ended = None, False
    for event in events:
        if event.key == "eval_start":
            open_, ended = event.time_ns, False
        elif event.key in ("eval_accuracy", "eval_stop") and open_ is not None and event.time_ns >= open_:
            span = (open_ - start.time_ns) / _NS, (event.time_ns - start.time_ns) / _NS
            if not ended:
                made.append(span)
            elif id(event) in more:
                made[-1] = span
            ended = True
            open_ = None if event.key == "eval_stop" else open_
    return tuple(made)


def _problems(events: Sequence[Event], start: Event, stop: Event | None) -> Iterator[str]:
    if stop is None:
        yield "the log ends before the run does"
    elif not start.time_ns or not stop.time_ns:
        yield f"no time of {'run_stop' if start.time_ns else 'run_start'}"
    elif stop.time_ns <= start.time_ns:
        yield f"the run ends {'before' if stop.time_ns < start.time_ns else 'as'} it begins"
    latest = 0
    for event in events[events.index(start) :]:  # several hosts write what comes before
        if event.time_ns and latest - event.time_ns > _JUMP_NS:
            yield f"the clock jumps back by {(latest - event.time_ns) / _NS:.0f} s in line {event.line}"
            break
        latest = max(latest, event.time_ns)
    if _whole(_last_value(events, "global_batch_size")) is None:
        yield "no batch"
    if not any(event.key == "eval_accuracy" for event in events):
        yield "no evaluation"


def _other_benchmark(told: str, folder: str) -> list[str]:
    """What is wrong if a log is of another benchmark than its folder; a folder may be called as a variant, or in words of the submitter."""
    names = [_benchmark_in(name) for name in (told, folder)]
    if None in names or names[0] == names[1]:
        return []
    return [f"the log is of {told}, its folder of {folder}: it counts as {told}"]


def _benchmark_in(name: str) -> str | None:
    """The benchmark that a name begins with; None if it is not known."""
    plain = name.lower().replace("-", "_")
    found = [each for each in _BENCHMARKS if plain.startswith(each)]
    return None if not found else _BENCHMARKS[max(found, key=len)]


def _first(events: Iterable[Event], key: str) -> Event | None:
    return next((event for event in events if event.key == key), None)


def _last_value(events: Sequence[Event], key: str) -> Any:
    return next((event.value for event in reversed(events) if event.key == key), None)


def _text(events: Iterable[Event], key: str) -> str:
    event = _first(events, key)
    return clean(event.value) if event is not None and isinstance(event.value, str) else ""


def _whole(value: Any) -> int | None:
    number = number_of(float(value) if isinstance(value, str) and value.strip().isdecimal() else value)
    return None if number is None or number < 1 else int(number)


def _accuracy(value: Any) -> float | tuple[float, ...] | None:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return tuple(each for one in value if (each := number_of(one)) is not None)
    return number_of(value)
