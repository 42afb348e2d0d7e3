"""A pytest plugin, installed with tracekit: a test that fails when a run is slower than an earlier one.

It imports nothing but pytest until it is used, so that it costs other tests nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import pytest

if TYPE_CHECKING:
    from tracekit.diff.gate import Judgement
    from tracekit.digest import Digest
    from tracekit.trace import Trace

__all__ = ["assert_no_regression"]

Run: TypeAlias = "str | os.PathLike[str] | Trace | Digest"
Outcome = Literal["skip", "fail", "pass"]


def assert_no_regression(
    trace: Run | Sequence[Run],
    baseline: Run | Sequence[Run],
    gate: str | Sequence[str] = "3%",
    *,
    paired: bool = False,
    inconclusive: Outcome = "skip",
) -> list[Judgement]:
    """Assert that the steps of a run are not slower than those of another, as `tracekit diff --gate` would judge.

    Both are a path, the name of a saved baseline, a `tracekit.Trace`, a `tracekit.digest.Digest`, or a list of them, one for each run.
    With `paired` the runs of both lists belong together in their order. Returns what became of each gate.

    Raises AssertionError with the sentences of the gates that failed. If none failed but some are inconclusive, the test is
    skipped by default: it found no regression, and did not show that there is none either.

    Raises UsageError for another word as `inconclusive`: a mistyped one would let inconclusive gates pass.
    """
    __tracebackhide__ = True
    from tracekit.diff.gate import judge_runs, parse_gate  # noqa: PLC0415 - see above
    from tracekit.errors import UsageError  # noqa: PLC0415

    if inconclusive not in get_args(Outcome):
        raise UsageError(f"inconclusive is {inconclusive!r}", remedy="choose skip, fail or pass")

    gates = [parse_gate(text) for text in ([gate] if isinstance(gate, str) else gate)]
    found = judge_runs(gates, _runs(baseline), _runs(trace), paired=paired)
    failed = [each for each in found if each.outcome == "failed"]
    unclear = [each for each in found if each.outcome == "inconclusive"]
    if failed or (unclear and inconclusive == "fail"):
        raise AssertionError(_told([*failed, *(unclear if inconclusive == "fail" else ())]))
    if unclear and inconclusive == "skip":
        pytest.skip(_told(unclear))
    return found


@pytest.fixture(name="assert_no_regression", scope="session")
def _fixture() -> Callable[..., list[Judgement]]:
    """`assert_no_regression(trace, baseline, gate="3%")`: assert that a run is not slower than another."""
    return assert_no_regression


def _told(judgements: Sequence[Judgement]) -> str:
    """Each gate with its sentence, and the notes on the steps, which gates share."""
    lines = [f"{each.gate} {each.outcome}: {each.reason}" for each in judgements]
    return "\n".join([*lines, *dict.fromkeys(note for each in judgements for note in each.change.notes)])


def _runs(side: Run | Sequence[Run]) -> list[Sequence[Digest]]:
    """The digests of each run of a side."""
    from tracekit.diff.baselines import load, names  # noqa: PLC0415
    from tracekit.diff.sides import read_sides  # noqa: PLC0415
    from tracekit.digest import Digest, digest_of  # noqa: PLC0415

    runs: list[Sequence[Digest]] = []
    for one in [side] if isinstance(side, str) or not isinstance(side, Sequence) else side:
        if not isinstance(one, str | os.PathLike):
            runs.append([one if isinstance(one, Digest) else digest_of(one)])
            continue
        text = os.fspath(one)
        read = load(text) if isinstance(one, str) and _is_name(text, names()) else read_sides([[text]])[0]
        if read.left_out:
            raise read.left_out[0]
        runs += [run.digests for run in read.runs]
    return runs


def _is_name(text: str, saved: Sequence[str]) -> bool:
    """Whether a text that is no path of a file is meant for the name of a baseline: it is one, or does not end as files do."""
    if os.path.lexists(text) or set(text) & set("/\\:*?["):
        return False
    return text in saved or not os.path.splitext(text)[1][1:2].isalpha()  # noqa: PTH122 - pathlib is not loaded otherwise
