"""What a capture refuses before anything runs, and that a plan survives the way to another process."""

import msgspec
import pytest

from tracekit.capture.plan import Plan
from tracekit.errors import UsageError
from tracekit.manifest import CaptureOptions, Settings


def test_the_defaults_are_in_order_and_a_plan_reads_back() -> None:
    plan = Plan(workload="cnn", settings=Settings(batch=3, precision="bf16"), levels=("ML",), data="/x")
    plan.check()
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan


@pytest.mark.parametrize(
    "name",
    ["batch", "size", "accumulate", "max_rows", "threads", "ranks", "workers", "steps", "warmup", "wait"],
)
def test_each_number_has_a_least_value(name: str) -> None:
    least = 0 if name in ("workers", "wait") else 1
    part, kind = (
        ("options", CaptureOptions) if name in ("steps", "warmup", "wait") else ("settings", Settings)
    )
    Plan(workload="cnn", **{part: kind(**{name: least})}).check()
    with pytest.raises(UsageError, match=f"{name} is {least - 1}; it must be at least {least}"):
        Plan(workload="cnn", **{part: kind(**{name: least - 1})}).check()


@pytest.mark.parametrize("levels", [(), ("M", "M"), ("X",), ("M", "mlg")])
def test_levels_that_are_none_or_come_twice(levels: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="are not a selection from M,ML,MLG,metrics"):
        Plan(workload="cnn", levels=levels).check()
