"""Whether two exports are read alike."""

from __future__ import annotations

from pathlib import Path

from polars.testing import assert_frame_equal

import tracekit
from tracekit.trace import FRAMES


def assert_same_frames(before: Path, after: Path) -> None:
    """Two files give the same traces, but for what their names tell."""
    old, new = tracekit.read_all(before), tracekit.read_all(after)
    assert len(old) == len(new)
    for one, other in zip(old, new, strict=True):
        for name in FRAMES:
            left, right = getattr(one, name), getattr(other, name)
            if name == "health":  # it says which file tells no rank
                left, right = (frame.filter(frame["kind"] != "unknown_rank") for frame in (left, right))
            assert (left is None) == (right is None), name
            if left is not None:
                assert_frame_equal(left, right, categorical_as_str=True)
        for key in ("producer", "devices", "origin_utc_ns", "captured", "process_ids", "format_version"):
            assert getattr(one.meta, key) == getattr(other.meta, key), key
