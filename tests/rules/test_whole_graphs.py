from __future__ import annotations

from planted import MS, Planted, finding


def test_fires_and_is_no_unknown_category() -> None:
    made = Planted()
    made.activity("ampere_sgemm_128x64_nn", 0, 9 * MS)
    made.activity("CUDA graph 3", 9 * MS, MS, kind="graph")
    found = finding(made.trace(), "kernels", "whole_graphs")
    assert found is not None
    assert found.title == "CUDA graphs that were recorded as a whole take 10.0 % of the time"
    assert (
        found.evidence
        == "1 graph replay takes 1.00 ms of 10.0 ms, and the trace does not contain its kernels."
    )
    assert "--cuda-graph-trace=node" in found.advice
    assert finding(made.trace(), "kernels", "other_too_large") is None


def test_silent_where_kernels_are_recorded() -> None:
    made = Planted()
    made.activity("my_kernel", 0, 9 * MS)
    assert finding(made.trace(), "kernels", "whole_graphs") is None
    made.activity("CUDA graph 3", 9 * MS, MS // 10, kind="graph")
    assert finding(made.trace(), "kernels", "whole_graphs") is None
    assert finding(Planted().trace(), "kernels", "whole_graphs") is None
