from __future__ import annotations

import pytest
from planted import MS, US, Planted, finding


def planted(
    *, copies: int = 3, gap: int = 0, launched: int = 0, stream: int = 20, event: int | None = None
) -> Planted:
    """Three times a kernel of 1 ms on stream 7 after a copy of 0.5 ms on another, `gap` after its end."""
    made = Planted()
    for number in range(copies):
        start = number * 2 * MS
        made.copy(
            "HtoD (Pinned -> Device)", start, 500 * US, 5_000_000, stream=stream, launch=start - 50 * US
        )
        late = start + launched if launched else start - 30 * US
        made.activity("k", start + 500 * US + gap, MS, launch=late)
        if event is not None:
            row = {"name": "Stream Wait Event", "device_id": 0, "stream_id": 7, "wait_on_stream": event}
            made.syncs.append({**row, "start": start - 40 * US, "duration": 0})
    return made


@pytest.mark.parametrize(
    ("event", "shown"), [(None, "the times show this."), (20, "An event in the stream shows this.")]
)
def test_fires_on_kernels_that_start_when_a_copy_ends(event: int | None, shown: str) -> None:
    found = finding(planted(event=event).trace(), "memory", "waits_for_copies")
    assert found is not None
    assert found.title == "Computation waits for copies on another stream for 27.3 % of the time"
    assert found.ns_at_stake == 1_500 * US
    assert "3 kernels start only at the end of a copy on another stream" in found.evidence
    assert "Memcpy HtoD (Pinned -> Device) on stream 20 (3 times)" in found.evidence
    assert found.evidence.endswith(shown)
    assert "Start the copy earlier" in found.advice


def test_the_kernel_waits_from_its_launch_on() -> None:
    found = finding(planted(launched=200 * US).trace(), "memory", "waits_for_copies")
    assert found is not None
    assert found.ns_at_stake == 3 * 290 * US


@pytest.mark.parametrize(
    "made",
    [
        planted(launched=498 * US),  # launched when the copy ends
        planted(gap=3 * US),  # starts some time after it
        planted(stream=7),  # on the same stream: the order of one stream
        planted(event=13),  # the stream waits for another one
    ],
)
def test_silent_if_it_did_not_wait_for_the_copy(made: Planted) -> None:
    assert finding(made.trace(), "memory", "waits_for_copies") is None


def test_silent_if_other_work_runs_beside_the_copy() -> None:
    made = planted()
    for number in range(3):
        made.activity("beside", number * 2 * MS, 499 * US, stream=13)
    assert finding(made.trace(), "memory", "waits_for_copies") is None


def test_silent_without_a_device() -> None:
    assert finding(Planted().trace(), "memory", "waits_for_copies") is None
