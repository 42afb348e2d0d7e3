"""Whatever two sides are, every dimension sums to their step times, and changes and rest to the difference, to the last fraction of a ns."""

from __future__ import annotations

from fractions import Fraction

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tracekit
from tests.digest.made import digest_from
from tracekit.diff import Diff, diff_of
from tracekit.diff.compared import compared
from tracekit.diff.model import DIMENSIONS
from tracekit.digest import Digest, digest_of
from tracekit.report.diff import diff_section
from tracekit.report.formats import Format, Page, render_alone

_LAYERS = ("net", "net.0", "net.0.a", "net.1", "module.net.0", "module.net", "<optimizer>")

_leaf = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["compute", "communication", "memory", "idle", "call"]),
        "category": st.sampled_from(["gemm", "memcpy", "python", "synchronisation"]),
        "name": st.sampled_from([None, "k1", "k2", "cudaStreamSynchronize"]),
        "operator": st.sampled_from([None, "aten::mm", "aten::add"]),
        "shapes": st.sampled_from([None, "[[2, 3]]", "[[4, 3]]", "no JSON"]),
        "dtypes": st.sampled_from([None, '["float"]', '["c10::Half"]', '["float", "float"]']),
        "layer": st.sampled_from([None, *_LAYERS]),
        "type": st.sampled_from([None, "Linear"]),
        "phase": st.sampled_from(["forward", "backward", "other"]),
    }
)


@st.composite
def digests(draw: st.DrawFn) -> Digest:
    leaves = draw(st.lists(_leaf, min_size=1, max_size=12, unique_by=lambda leaf: tuple(leaf.values())))
    steps = draw(st.integers(1, 4))
    amounts = st.lists(
        st.tuples(st.integers(0, 10**9), st.integers(0, 5)), min_size=len(leaves), max_size=len(leaves)
    )
    return digest_from(
        leaves,
        draw(st.lists(amounts, min_size=steps, max_size=steps)),
        devices=draw(st.integers(1, 3)),
        marked=draw(st.booleans()),
        on_cpu=draw(st.booleans()),
        device=draw(st.sampled_from(["", "A", "B"])),
    )


_sides = st.lists(digests(), min_size=1, max_size=3)


def _check(found: Diff) -> None:
    both = {"base": found.base, "new": found.new}
    for name in set(DIMENSIONS) - {"communication", "idle"}:
        for which, side in both.items():
            assert Fraction(int(found.by[name][f"{which}_sum"].sum()), side.denominator) == side.mean, name
    for name, kind in (("communication", "communication"), ("idle", "idle")):
        of_kind = found.by["category"].filter(pl.col("kind") == kind)
        for which in both:
            assert found.by[name][f"{which}_sum"].sum() == of_kind[f"{which}_sum"].sum()
    layers = found.by["layer"]
    roots = layers.filter(pl.col("parent_layer_id").is_null())
    for which, side in both.items():
        assert abs(roots[f"tree_{which}_ns"].sum() - side.mean_ns) <= 1e-9 * (1 + side.mean_ns)
    assert (
        sum((change.delta for change in found.changes), found.rest)
        == found.change
        == found.new.mean - found.base.mean
    )
    for change in found.changes:
        assert change.title
        assert "None" not in change.title


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(_sides, _sides)
def test_every_dimension_sums_to_the_change(base: list[Digest], new: list[Digest]) -> None:
    found, back = diff_of(base, new), diff_of(new, base)
    _check(found)
    _check(back)
    assert found.change == -back.change


def test_a_call_without_a_name_ended_the_comparison() -> None:
    nothing = dict.fromkeys(("name", "operator", "shapes", "dtypes", "layer", "type")) | {"phase": "forward"}
    leaves = [
        {"kind": "compute", "category": "gemm", **nothing},
        {"kind": "idle", "category": "synchronisation", **nothing},
        {"kind": "idle", "category": "python", **nothing},
        {"kind": "call", "category": "synchronisation", **nothing},
    ]
    base, new = (
        [digest_from(leaves, [[(5_000, 1), (each, 0), (each, 0), (3 * each, each // 1000)]] * 3)]
        for each in (1_000, 9_000)
    )
    _check(diff_of(base, new))


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(_sides)
def test_a_side_does_not_differ_from_itself(side: list[Digest]) -> None:
    found = diff_of(side, side)
    _check(found)
    assert found.changes == ()
    assert found.change == found.rest == 0


@pytest.mark.slow
def test_a_comparison_gives_the_same_digits_each_time() -> None:
    """Sums of floats depend on their order, and the order of groups on threads."""
    bert, cnn = (
        digest_of(tracekit.read(f"sample_traces/{name}_cpu/trace.json.gz")) for name in ("bert", "cnn")
    )
    texts = {render_alone(Format.json, diff_section(compared([[bert]], [[cnn]])), Page()) for _ in range(4)}
    assert len(texts) == 1
