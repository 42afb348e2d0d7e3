"""What a reader counts while it reads."""

from __future__ import annotations

import pytest

from tracekit.health import HealthLog


@pytest.mark.parametrize("example", ["short", "x" * 160, "x" * 161, "x" * 5000, "caf\udce9"])
def test_a_long_example_is_cut_and_shows_it(example: str) -> None:
    log = HealthLog()
    log.count("unread_table", 2, example)
    log.count("unread_table", 3, "another")
    row = log.frame().row(0, named=True)
    assert row["count"] == 5
    cut = example.encode("utf-8", "replace").decode()
    assert row["example"] == (cut if len(cut) <= 160 else "x" * 159 + "…")
