"""What of two sides is compared with what, when they have little in common or differ in precision; and what of a small change is told."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import msgspec
import planted_sides
import polars as pl
import pytest

import tracekit
from tests.diff.programs import mapped, trace_of, training_loop
from tracekit.diff import diff_of
from tracekit.digest import Digest, digest_of


def _without_layers(digest: Digest, mark: str = "", **facts: str) -> Digest:
    """The digest without layers; with a mark its operators and kernels are others."""
    marked = [pl.col(name) + mark for name in ("operator", "name")] if mark else []
    nowhere = [pl.lit(None, pl.String).alias(name) for name in ("layer", "type")]
    return replace(
        digest,
        facts=msgspec.structs.replace(digest.facts, **facts),
        leaves=digest.leaves.with_columns(*marked, *nowhere),
        layers=digest.layers.clear(),
    )


@pytest.mark.slow
def test_unlike_programs_are_called_so() -> None:
    def notes(base: Digest, new: Digest) -> str:
        return " ".join(diff_of([base], [new]).notes)

    bert, cnn = (
        digest_of(tracekit.read(f"sample_traces/{name}_cpu/trace.json.gz")) for name in ("bert", "cnn")
    )
    assert "These look like different models: the layers" in notes(bert, cnn)
    base = _without_layers(planted_sides.digest())
    assert "look like different" not in notes(base, _without_layers(planted_sides.digest({"head": 5})))
    assert "These look like different programs: no work of either has a counterpart" in notes(
        base, _without_layers(base, "_2")
    )
    same = [_without_layers(base, mark, workload="bert") for mark in ("", "_2")]
    assert "look like different" not in notes(*same)


def test_inferred_steps_are_said_to_be_so() -> None:
    """39 steps stood beside 40, and nothing told that no step of the new side is marked."""

    def notes(*sources: str | None) -> list[str]:
        sides = [planted_sides.digest(seed=seed) for seed in (0, 1)]
        told = (replace(one, facts=msgspec.structs.replace(one.facts, steps_inferred_from=each)) for one, each in zip(sides, sources, strict=True))  # fmt: skip
        return [note for note in diff_of(*([one] for one in told)).notes if "inferred" in note]

    period = "period of 78 launches in the launch sequence"
    elsewhere = ", so they may begin elsewhere in the loop than those of the other side."
    assert notes(None, None) == []
    assert notes(None, period) == [
        f"Steps of the new side are not marked but inferred from a {period}{elsewhere}"
    ]
    assert notes("train_step", None) == [f"Steps of the base are not marked but inferred from the range train_step{elsewhere}"]  # fmt: skip
    assert notes(period, period) == [f"Steps of the base and the new side are not marked but inferred from a {period}."]  # fmt: skip


def test_kernels_of_two_devices_without_operators_are_compared_by_category() -> None:
    """No operator and another kernel: nothing tells that these are the same calls."""
    base, new = (
        _without_layers(planted_sides.digest({"head": scale}), mark) for scale, mark in ((1, ""), (2, "_2"))
    )
    bare = pl.lit(None, pl.String).alias("operator")
    base, new = (replace(one, leaves=one.leaves.with_columns(bare)) for one in (base, new))
    found = diff_of([base], [replace(new, facts=msgspec.structs.replace(new.facts, device="Another GPU"))])
    assert any(note.endswith("they are compared by category.") for note in found.notes)
    assert {change.kind for change in found.changes} == {"kernel"}
    assert found.changes[0].title.startswith("other kernels do the work of matrix multiplication (+1.")
    assert not any("same calls" in change.title for change in found.changes)


def test_one_change_of_precision_is_one_change() -> None:
    """The types of the inputs differ from operator to operator; what stands for what does not."""
    base = planted_sides.digest()
    types = pl.Series(['["float"]', '["float", "int"]', '["float", "float"]', '["int", "float"]'])
    old, new = (
        replace(
            base,
            leaves=base.leaves.with_columns(
                pl.concat([types.str.replace_all("float", name), base.leaves["dtypes"][4:]]).alias("dtypes")
            ),
        )
        for name in ("float", "c10::Half")
    )
    (change,) = [change for change in diff_of([old], [new]).changes if change.kind == "dtype"]
    assert (change.before, change.after, change.layers) == ("fp32", "fp16", 3)


def test_a_small_change_of_few_steps_is_split_by_category() -> None:
    """What the noise of six steps hides is told as perhaps so; hardly anything stays unnamed."""
    base = planted_sides.digest(steps=6, noise=0.05)
    new = planted_sides.digest({"head": 1.05, "encoder.1": 1.04, "idle": 1.1}, steps=6, seed=1, noise=0.05)
    found = diff_of([base], [new])
    assert found.rest + sum(change.delta for change in found.changes) == found.change
    assert abs(found.rest) <= abs(found.change) / 4


def test_a_device_is_named_so_only_where_it_is_known_to_be_another() -> None:
    """Without its name nothing says that a side ran on another device; on processors operators are what runs."""

    def note(device: str, *, on_cpu: bool) -> str:
        one, other = (_without_layers(planted_sides.digest(), mark) for mark in ("", "_2"))
        base = replace(one, facts=msgspec.structs.replace(one.facts, on_cpu=on_cpu))
        new = replace(other, facts=msgspec.structs.replace(other.facts, on_cpu=on_cpu, device=device))
        return next(note for note in diff_of([base], [new]).notes if note.startswith("Most "))

    assert note("Another GPU", on_cpu=False).startswith("Most kernels have other names on the other device,")
    assert note("", on_cpu=False).startswith("Most kernels have other names on the other side,")
    assert note("Another", on_cpu=True).startswith("Most operators have other names on the other processor,")


def test_equal_steps_with_other_kernels_are_not_tested() -> None:
    base = planted_sides.digest()
    names = base.leaves.with_columns(pl.col("name").replace({"sgemm": "other_gemm"}))
    told = dict(planted_sides.section(base, replace(base, leaves=names)).points)
    assert (
        told["test"]
        == "Each step takes as long on both sides; 20 steps of the new side against 20 steps of the base."
    )


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    whole = Path("sample_traces/cnn_cpu/trace.json.gz")
    text = gzip.decompress(whole.read_bytes())
    cut = tmp_path / "cut.json"
    cut.write_bytes(text[: 3 * len(text) // 4])
    base, new = (digest_of(tracekit.read(path)) for path in (whole, cut))
    again = Digest.unpacked(new.packed())
    for side in (new, again):
        assert (
            diff_of([base], [side])
            .notes[0]
            .startswith("Figures of the new side may be wrong: the file is trunc")
        )
    assert not any("may be wrong" in note for note in diff_of([base], [base]).notes)


@pytest.mark.parametrize(("before", "after", "said"), [(9, 3, True), (9, 9, False), (0, 3, False)])
def test_what_steps_take_without_the_profiler_is_told_where_it_differs(
    before: int, after: int, *, said: bool
) -> None:
    """A capture that says 0 ns divides nothing."""
    sides = [
        replace(
            planted_sides.digest(),
            facts=msgspec.structs.replace(planted_sides.digest().facts, undisturbed_ns=(ns * 10**6,)),
        )
        for ns in (before, after)
    ]
    assert (
        any(
            note.startswith("Without the profiler a step takes 3.00 ms")
            for note in diff_of(*([side] for side in sides)).notes
        )
        == said
    )


def test_of_a_side_without_work_nothing_else_is_said(tmp_path: Path) -> None:
    empty = tmp_path / "empty.json"
    empty.write_text("[]")
    base, new = (
        digest_of(tracekit.read(path)) for path in ("sample_traces/cnn_cpu/trace.json.gz", str(empty))
    )
    assert diff_of([base], [new]).notes == (
        "Figures of the new side may be wrong: the file holds no span of a host and no activity of a device.",
        "The new side has no work, so nothing else can be compared.",
    )


@pytest.mark.slow
def test_what_some_steps_take_longer_in_one_place_is_told_of_that_place() -> None:
    """So few steps prove little, but all of the change is in one operator of one layer."""
    program = training_loop()
    wanted = program[-1 - next(at for at, work in enumerate(reversed(program)) if work.phase == "forward")]
    slow = mapped(program, lambda work: work is wanted, lambda work: replace(work, ns=4 * work.ns))
    base, often, seldom = (
        digest_of(trace_of(each, seed, on_cpu=True, steps=30))
        for each, seed in ((program, 3), (program, 4), (slow, 4))
    )
    assert often.leaves.equals(seldom.leaves)
    every = pl.col("step") % 6 == 0
    values = pl.concat([often.values.filter(~every), seldom.values.filter(every)])
    sums = values.group_by("step").agg(pl.col("ns").sum().alias("time_ns"))
    steps = often.steps.drop("time_ns").join(sums, on="step").select(often.steps.columns)
    first = diff_of([base], [replace(often, values=values, steps=steps)]).changes[0]
    assert not first.sure
    assert (first.place["layer"], first.place["operator"]) == (wanted.layer, wanted.operator)
