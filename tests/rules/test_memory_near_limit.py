from __future__ import annotations

from dataclasses import replace

import pytest
from planted import A100, MS, Planted, finding

GB = 10**9


def planted(allocated: int, reserved: int | None, device: int = 0) -> Planted:
    made = Planted()
    made.activity("k", 0, MS)
    row = {"start": 0, "process_id": 1, "thread_id": 1, "device_id": device, "address": 1, "bytes": allocated}
    made.memory = [{**row, "allocated": allocated, "reserved": reserved}]
    return made


def test_fires_on_reserved_memory() -> None:
    found = finding(planted(35 * GB, 38 * GB).trace(), "memory", "memory_near_limit")
    assert found is not None
    assert found.title == "The memory of device 0 was up to 95.0 % full"
    assert found.evidence == "Of 40.0 GB, at most 35.0 GB were in use and 38.0 GB reserved."
    assert "expandable_segments" not in found.advice
    assert (found.severity, found.ns_at_stake) == ("warning", None)


def test_time_is_at_stake_if_memory_is_given_back_meanwhile() -> None:
    made = planted(35 * GB, 38 * GB)
    made.call("cudaFree", MS, 2 * MS)
    made.call("cudaMalloc", 3 * MS, MS)
    made.activity("k", 4 * MS, MS, launch=4 * MS - 1000)
    found = finding(made.trace(), "memory", "memory_near_limit")
    assert found is not None
    assert found.ns_at_stake == 3 * MS - 1000
    assert found.severity == "critical"
    assert found.stretches == ((MS, 4 * MS - 1000),)
    assert "memory was given back to the driver once" in found.evidence


def test_a_training_run_without_checkpoints_may_use_them() -> None:
    made = planted(39 * GB, None)
    made.span("annotation", "Optimizer.step#AdamW.step", 0, MS)
    found = finding(made.trace(), "memory", "memory_near_limit")
    assert found is not None
    assert "checkpointing" in found.advice


def test_much_reserved_and_little_used_is_fragmentation() -> None:
    found = finding(planted(20 * GB, 38 * GB).trace(), "memory", "memory_near_limit")
    assert found is not None
    assert "expandable_segments:True" in found.advice


def test_old_files_without_reserved() -> None:
    found = finding(planted(39 * GB, None).trace(), "memory", "memory_near_limit")
    assert found is not None
    assert found.evidence == "Of 40.0 GB, at most 39.0 GB were in use."


@pytest.mark.slow
def test_silent_with_room_on_the_host_and_without_a_known_capacity() -> None:
    assert finding(planted(35 * GB, 35 * GB).trace(), "memory", "memory_near_limit") is None
    assert finding(planted(39 * GB, None, device=-1).trace(), "memory", "memory_near_limit") is None
    unknown = planted(39 * GB, None).trace(devices=(replace(A100, memory_bytes=None),))
    assert finding(unknown, "memory", "memory_near_limit") is None
    assert finding(Planted().trace(), "memory", "memory_near_limit") is None
