from __future__ import annotations

import polars as pl
import pytest
from planted import MS, Planted, finding

from tracekit.analyses.idle.causes import IdleCauses
from tracekit.analyses.rules import idle
from tracekit.facts.stack_names import BUFFER_LAYER


@pytest.mark.parametrize(("ns", "fires"), [(2 * MS, True), (100_000, False)])
def test_fires_on_idle_time_before_the_forward_pass(
    ns: int, fires: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which time is the synchronisation's is tested with attribution (test_traffic)."""
    planted = Planted()
    planted.activity("k", 0, MS, launch=0)
    planted.activity("k", 9 * MS, MS, launch=8 * MS)
    real = idle.idle_causes

    def with_buffers(scope: object) -> IdleCauses:
        rows = pl.DataFrame({"layer": [BUFFER_LAYER, None], "total_ns": [ns, MS]})
        causes = real(scope)  # type: ignore[arg-type]
        object.__setattr__(causes, "by_layer", rows)
        return causes

    monkeypatch.setattr(idle, "idle_causes", with_buffers)
    found = finding(planted.trace(), "idle", "buffer_synchronisation")
    assert (found is not None) == fires
    if found:
        assert found.ns_at_stake == ns
        assert "broadcast_buffers=False" in found.advice
