from __future__ import annotations

import pytest
from planted import MS, US, Planted, finding

GEMM = "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n"
BROADCAST = "ncclDevKernel_Broadcast_RING_LL"


@pytest.mark.parametrize(("ns", "fires"), [(2 * MS, True), (100 * US, False)])
def test_fires_on_idle_time_before_the_forward_pass(ns: int, fires: bool) -> None:
    made = Planted()
    made.step(0, 0, 10 * MS + ns)
    made.activity(GEMM, 0, MS, launch=0)
    made.span("annotation", "DistributedDataParallel.forward", MS, 9 * MS + ns)
    made.span("op", "c10d::broadcast_", MS, MS + ns + 20 * US)
    made.activity(BROADCAST, MS + ns + 10 * US, 10 * US, launch=MS + ns, call_ns=5 * US)
    made.span("op", "aten::conv2d", MS + ns + 30 * US, MS + ns + 90 * US, sequence=1)
    made.activity(GEMM, MS + ns + 50 * US, 8 * MS, launch=MS + ns + 40 * US, call_ns=5 * US)
    made.span("op", "Conv2dBackward", 9 * MS + ns, 9 * MS + ns + 50 * US, 2, sequence=1, forward_thread=1)
    found = finding(made.trace(), "idle", "buffer_synchronisation")
    assert (found is not None) == fires
    if found:
        assert found.ns_at_stake == pytest.approx(ns, rel=0.05)
        assert "broadcast_buffers=False" in found.advice
