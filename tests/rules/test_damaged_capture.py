from __future__ import annotations

from planted import MS, US, Planted, finding


def planted() -> Planted:
    made = Planted()
    for number in range(50):
        made.activity("k", number * MS + 10 * US, 100 * US, launch=number * MS)
    return made


def test_a_truncated_file_is_a_warning() -> None:
    made = planted()
    made.log.count("truncated_file", 1, "at byte 100")
    found = finding(made.trace(), "breakdown", "damaged_capture")
    assert found is not None
    assert found.title == "The trace has 1 kind of damage that may make times wrong"
    assert found.evidence == "1 × the file is truncated; everything before its end was read."
    assert (found.severity, found.ns_at_stake) == ("warning", None)


def test_clocks_that_disagree_are_a_warning() -> None:
    made = planted()
    made.activity("early", 60 * MS, 100 * US, launch=61 * MS)
    found = finding(made.trace(), "breakdown", "damaged_capture")
    assert found is not None
    assert "(2.0 % of the activities)" in found.evidence
    assert found.severity == "warning"


def test_mended_times_are_an_info() -> None:
    made = planted()
    made.activity("odd", 60 * MS, -5, launch=59 * MS)
    found = finding(made.trace(), "breakdown", "damaged_capture")
    assert found is not None
    assert found.severity == "info"


def test_silent_on_a_sound_file_and_on_what_changes_no_time() -> None:
    made = planted()
    made.log.count("unknown_rank", 1)
    made.log.count("unread_phase", 3)
    assert finding(made.trace(), "breakdown", "damaged_capture") is None


def test_a_trace_without_events_needs_no_synchronised_clocks() -> None:
    """A file with `[]` was told to keep the clocks of host and device synchronised."""
    made = Planted()
    made.log.count("no_event", 1)
    assert finding(made.trace(captured=frozenset()), "breakdown", "damaged_capture") is None
