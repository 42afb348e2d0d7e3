"""Work that moves data about as fast as the memory can."""

from __future__ import annotations

import json
from typing import Any

import pytest
from planted import US, Planted, finding

from tracekit.findings import Finding
from tracekit.trace import DeviceInfo

A100 = DeviceInfo(0, "NVIDIA A100-SXM4-40GB", (8, 0), 108, 42_000_000_000, 2048, 32)
ELEMENTS = 1 << 26
LEAST = round(3 * 2 * ELEMENTS / 1555e9 * 1e9)  # two reads and a write of two bytes: 259 µs


def additions(
    ns: int,
    *,
    other: int = 0,
    elements: int = ELEMENTS,
    operator: str = "aten::add",
    device: DeviceInfo = A100,
) -> Finding | None:
    made, clock = Planted(), 0
    for _ in range(3):
        made.activity("vectorized_elementwise_kernel", clock + 10 * US, ns, launch=clock + US)
        inputs = {
            "shapes": json.dumps([[elements], [elements], []]),
            "dtypes": json.dumps(["c10::BFloat16"] * 2 + ["Scalar"]),
        }
        made.span("op", operator, clock, clock + 9 * US, **inputs, concrete_inputs='["", "", "1"]')
        clock += ns + 20 * US
    if other:
        made.activity("secret", clock + 10 * US, other, launch=clock + US)
    return finding(made.trace(devices=(device,)), "roofline", "memory_traffic")


def test_it_tells_how_near_the_bandwidth_is() -> None:
    found = additions(300 * US)
    assert found is not None
    assert (found.severity, found.ns_at_stake) == ("info", None)
    assert found.title.endswith(f"at {100 * LEAST / 300_000:.1f} % of the memory bandwidth")
    assert "It goes to 3 operator calls: aten::add 900 µs." in found.evidence


def test_what_other_kernels_could_save_is_told_and_not_that_it_is_hardly_anything() -> None:
    """At 62 % of the bandwidth other kernels were said to be hardly faster, beside 38 % of the time that was wasted."""
    found = additions(420 * US)
    assert found is not None
    saved = 3 * (420_000 - LEAST) / 1000
    assert f"Other kernels could save {saved:.0f} µs at most" in found.evidence


@pytest.mark.parametrize(
    "how",
    [
        {"ns": 600 * US},  # 43 % of the bandwidth: another kernel may be faster
        {"ns": 200 * US},  # above it: a cache serves the bytes
        {"ns": 300 * US, "other": 20_000 * US},
        {"ns": 10 * US, "elements": 1 << 21},
        {"ns": 300 * US, "operator": "mylib::add"},
    ],
)
def test_it_does_not_fire(how: dict[str, Any]) -> None:
    assert additions(**how) is None


def test_a_device_without_bf16_is_not_told_to_use_it() -> None:
    v100 = DeviceInfo(0, "Tesla V100-SXM2-16GB", (7, 0), 80, 16_000_000_000, 2048, 32)
    for device, word, other in ((A100, "bf16", "fp16"), (v100, "fp16", "bf16")):
        found = additions(600 * US if device is v100 else 300 * US, device=device)
        assert found is not None
        assert f"Use {word}" in found.advice
        assert other not in found.advice
