from __future__ import annotations

from pathlib import Path

import planted_ncu as ncu
import pytest
from planted import Planted, finding
from planted_ncu import Launch, counted

from tracekit.analyses.counters.ncu import with_ncu
from tracekit.readers.ncu import read_ncu
from tracekit.trace import Trace


@pytest.fixture
def joined(tmp_path: Path):
    def made(*launches: Launch) -> Trace:
        planted = Planted()
        for at in range(3):
            planted.activity("k", 100 * at + 50, 9, launch=100 * at, grid="[1, 1, 1]", block="[32, 1, 1]")
        file = tmp_path / "x.csv"
        file.write_text(ncu.raw(launches))
        return with_ncu(planted.trace(), read_ncu(file))

    return made


def test_a_table_of_another_program_is_a_warning(joined) -> None:
    found = finding(joined(Launch("other", counted(1))), "counters", "ncu_coverage")
    assert found is not None
    assert found.severity == "warning"
    assert found.title == "Nsight Compute measured 1 launch that matches no kernel of the trace"
    assert "such as other" in found.evidence
    assert "0 of 3 kernels of the trace have metrics" in found.evidence
    assert found.ns_at_stake is None


def test_a_part_that_does_not_fit_is_a_remark(joined) -> None:
    whole = [Launch("k", counted(n)) for n in (1, 2, 3)]
    found = finding(
        joined(*whole, Launch("other", counted(1)), Launch("other", counted(1))), "counters", "ncu_coverage"
    )
    assert found is not None
    assert found.severity == "info"
    assert found.title == "Nsight Compute measured 2 launches that match no kernel of the trace"
    assert "3 of 3 kernels" in found.evidence


def test_launches_that_cannot_be_told_apart(joined) -> None:
    found = finding(joined(Launch("k", counted(1)), Launch("k", counted(9))), "counters", "ncu_coverage")
    assert found is not None
    assert "2 belong to kernels whose launches differ in their work" in found.evidence


def test_silent_where_all_fits_and_without_any(joined) -> None:
    assert finding(joined(*(Launch("k", counted(n)) for n in (1, 2, 3))), "counters", "ncu_coverage") is None
    assert finding(joined(Launch("k", counted(1))), "counters", "ncu_coverage") is None
    assert finding(Planted().trace(), "counters", "ncu_coverage") is None
