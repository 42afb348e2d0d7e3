from __future__ import annotations

from dataclasses import replace

import pytest
from planted import A100, MS, US, Planted, finding

from tracekit.findings import Finding

ENGINE = 2
GB = 1_000_000_000


class Loop(Planted):
    """Operators one after the other; each takes 10 µs of the host, and its kernel as long as it says."""

    clock: int = 0
    free: int = 0

    def op(self, name: str, ns: int = 0, thread: int = 1, **columns: int) -> None:
        if ns:
            self.free = max(self.free, self.clock + 4 * US)
            self.activity(f"kernel of {name}", self.free, ns, launch=self.clock + US, call_ns=US)
            self.host[-1]["thread_id"] = thread
            self.free += ns
        self.span("op", name, self.clock, self.clock + 10 * US, thread, **columns)
        self.clock += 10 * US

    def node(
        self, name: str, sequence: int, *inside: tuple[str, int, int | None], forward_thread: int = 1
    ) -> None:
        """A backward node with operators (name, time, number of a forward operator or None) inside."""
        start = self.clock
        for operator, ns, number in inside:
            numbers = {} if number is None else {"sequence": number, "forward_thread": 0}
            self.op(operator, ns, ENGINE, **numbers)
        numbers = {"sequence": sequence, "forward_thread": forward_thread}
        engine = f"autograd::engine::evaluate_function: {name}"
        self.span("op", engine, start, self.clock + 2, ENGINE, **numbers)
        self.span("op", name, start, self.clock + 1, ENGINE, **numbers)
        self.clock += 10


def loop() -> Loop:
    made = Loop()
    for number in range(3):
        made.op("aten::linear", 2 * MS, sequence=number, forward_thread=0)
    return made


def checkpointed(node: str = "MmBackward0") -> Loop:
    """8 ms of 24 ms run again: two operators in one node of three."""
    made = loop()
    made.node(node, 2, ("aten::linear", 6 * MS, 10), ("aten::gelu", 2 * MS, 11), ("aten::mm", 6 * MS, None))
    made.node("MmBackward0", 1, ("aten::mm", 2 * MS, None))
    made.node("MmBackward0", 0, ("aten::mm", 2 * MS, None))
    return made


def found(made: Planted) -> Finding | None:
    return finding(made.trace(), "layers", "recomputation")


@pytest.mark.parametrize("node", ["MmBackward0", "CheckpointFunctionBackward"])
def test_fires_on_forward_operators_in_a_backward_node(node: str) -> None:
    one = found(checkpointed(node))
    assert one is not None
    assert one.ns_at_stake == 8 * MS
    assert one.severity == "warning"
    assert one.title == "Recomputation takes 33.3 % of the time"
    assert "8.00 ms of 24.0 ms" in one.evidence
    assert "If memory allows, checkpoint fewer layers" in one.advice
    assert "profile_memory=True" in one.advice


@pytest.mark.parametrize(
    ("used", "severity", "says"), [(10 * GB, "critical", "free memory"), (39 * GB, "info", "nearly full")]
)
def test_the_memory_in_use_decides_what_to_do(used: int, severity: str, says: str) -> None:
    made = checkpointed()
    made.memory = [
        {"start": 0, "device_id": 0, "address": 1, "bytes": used, "allocated": used, "reserved": used}
    ]
    one = found(made)
    assert one is not None
    assert one.severity == severity
    assert says in one.advice
    assert "of 40.0 GB" in one.evidence
    full = finding(made.trace(), "memory", "memory_near_limit")
    assert full is None or "checkpointing" not in full.advice  # the run does it already
    assert (full is not None) == (used == 39 * GB)


def test_without_a_device_operators_count() -> None:
    made = checkpointed()
    made.device.clear()
    made.host = [row for row in made.host if row["kind"] == "op"]
    one = finding(replace(made.trace(devices=()), memory=None), "layers", "recomputation")
    assert one is not None
    assert one.ns_at_stake == 20 * US
    assert one.title == "Recomputation takes 25.0 % of the time"
    assert "profile_memory" not in one.advice


def test_silent_on_an_ordinary_backward_pass() -> None:
    made = loop()
    for number in (2, 1, 0):
        made.node("MmBackward0", number, ("aten::mm", 2 * MS, None), ("aten::sum", MS, None))
    assert found(made) is None


def test_silent_on_gradients_of_gradients() -> None:
    made = checkpointed()
    made.node("GeluBackward0", 11, ("aten::gelu_backward", MS, None), forward_thread=ENGINE)
    made.node("MmBackward0", 10, ("aten::mm", MS, None), forward_thread=ENGINE)
    assert found(made) is None
    every = loop()
    for number in (2, 1, 0):
        every.node("MmBackward0", number, ("aten::mm", 2 * MS, 20 + number))
    assert found(every) is None


def test_silent_on_a_range_of_the_users_in_a_node() -> None:
    """A hook that compresses gradients may have a range of its own."""
    made = loop()
    start = made.clock
    made.node("MmBackward0", 2, ("aten::mul", 6 * MS, None), ("aten::mm", 2 * MS, None))
    made.span("annotation", "compress", start + US, start + 15 * US, ENGINE)
    assert found(made) is None


def test_silent_below_a_twentieth() -> None:
    made = checkpointed()
    made.op("aten::mm", 200 * MS)
    assert found(made) is None
    assert A100.memory_bytes == 40 * GB
