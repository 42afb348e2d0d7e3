"""An operator whose kernels take far longer than its roof allows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from planted import US, Planted, finding

from tracekit.findings import Finding
from tracekit.trace import DeviceInfo

A100 = DeviceInfo(0, "NVIDIA A100-SXM4-40GB", (8, 0), 108, 42_000_000_000, 2048, 32)
RULE = "far_below_roof"


def product(
    ns: int, *, calls: int = 4, size: int = 4096, shapes: bool = True, other: int = 0, name: str = A100.name
) -> Finding | None:
    """Products of size³, 441 µs each at the peak for 4,096, and one kernel of `other` ns without figures."""
    made, clock = Planted(), 0
    for _ in range(calls):
        made.activity("gemm", clock + 10 * US, ns, launch=clock + US)
        inputs: dict[str, Any] = {
            "shapes": json.dumps([[size, size]] * 2),
            "dtypes": json.dumps(["c10::BFloat16"] * 2),
        }
        made.span("op", "aten::mm", clock, clock + 9 * US, **(inputs if shapes else {}))
        clock += ns + 20 * US
    if other:
        made.activity("secret", clock + 10 * US, other, launch=clock + US)
    device = DeviceInfo(0, name, (8, 0), 108, 42_000_000_000, 2048, 32)
    return finding(made.trace(devices=(device,)), "roofline", RULE)


def test_the_time_beyond_the_roof_is_at_stake() -> None:
    found = product(2_000 * US)
    least = 4 * round(2 * 4096**3 / 312e12 * 1e9)
    assert found is not None
    assert found.ns_at_stake == 8_000 * US - least
    assert found.severity == "critical"
    assert found.title.startswith("aten::mm loses 77.")
    assert (
        "take 8.00 ms and reach 22.0 % of what the arithmetic units allow: 1.76 ms would be enough."
        in found.evidence
    )


@pytest.mark.parametrize(
    "how",
    [
        {"ns": 1_000 * US},  # 44 % of the roof
        {"ns": 15 * US, "size": 64},  # too short to tell
        {"ns": 2_000 * US, "other": 150_000 * US},  # a small part of the time
        {"ns": 2_000 * US, "shapes": False},
        {"ns": 2_000 * US, "name": "GeForce 256"},
    ],
)
def test_it_does_not_fire(how: dict[str, Any]) -> None:
    assert product(**how) is None
