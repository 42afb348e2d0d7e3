"""The section of a diff: its words, sums that can be seen, the same figures in every format, names that try to escape."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import planted_sides
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.diff.compared import compared
from tracekit.diff.noise import compare_times
from tracekit.digest.model import NO_STEP
from tracekit.facts.units import format_change, format_ns
from tracekit.report import formats
from tracekit.report.diff import _test, diff_section
from tracekit.report.diff_tables import SCHEMAS
from tracekit.report.format import first_rows, format_value
from tracekit.report.formats import Format, Page
from tracekit.report.json.schema import diff_schema
from tracekit.report.model import Section, Table

SNAPSHOTS = Path(__file__).parent / "snapshots"
EVERYWHERE = ("phase", "layer", "operator", "category", "name", "type")
"""Dimensions that hold all of the step time."""


def _slower() -> Section:
    return planted_sides.section(
        planted_sides.digest(name="before"),
        planted_sides.digest({"encoder.0.attention": 1.2}, seed=1, name="after"),
    )


def _render(section: Section, chosen: Format, top: int | None = None) -> str:
    return formats.render_alone(chosen, section, Page(80, top=top))


def _table(section: Section, name: str) -> Table:
    table = section.table(name)
    assert table is not None
    return table


@pytest.mark.parametrize(
    ("scale", "verdict", "words"),
    [
        ({}, "same", "A step takes as long as before"),
        ({"encoder.0.attention": 1.2}, "slower", "A step takes 8.1 % longer: 7.80 ms instead of 7.21 ms"),
        ({"encoder.1": 5, "idle": 6, "head": 3}, "slower", "A step takes 3.01 times as long: 21.7 ms"),
        ({"head": 0.9, "idle": 0.2}, "faster", "A step takes 10.0 % less time: 6.49 ms instead"),
        (
            dict.fromkeys(("encoder.0.attention", "encoder.1", "head"), 0.1),
            "faster",
            "% of the time: 1.35 ms",
        ),
    ],
)
def test_the_verdict_comes_first(scale: dict[str, float], verdict: str, words: str) -> None:
    section = planted_sides.section(planted_sides.digest(), planted_sides.digest(scale, seed=1))
    assert section.tag == verdict
    assert words in section.answer
    assert _render(section, Format.table).splitlines()[1].startswith(f"{verdict.upper()}  ")
    assert _render(section, Format.md).splitlines()[2].startswith(f"**{verdict.capitalize()}.** ")


def test_a_small_change_of_every_step_is_told_of_the_median() -> None:
    """`As long as before. The mean, though, is 0.8 % longer` was said where every step took as much longer."""
    section = planted_sides.section(planted_sides.digest(noise=0.001), planted_sides.digest({"head": 1.03}, noise=0.001, seed=1))  # fmt: skip
    assert section.tag == "same"
    assert "A step takes 0.6 % longer, within the 1 % that counts as the same: " in section.answer
    assert "The mean" not in section.answer


def test_the_mean_is_told_where_only_some_steps_changed() -> None:
    base = planted_sides.digest(noise=0.001, steps=60)
    ns = (
        pl.when((pl.col("step") % 4 == 0) & (pl.col("leaf") == 0))
        .then(pl.col("ns") * 11 // 10)
        .otherwise("ns")
    )
    values = planted_sides.digest(noise=0.001, steps=60, seed=1).values.with_columns(ns.alias("ns"))
    times = values.group_by("step").agg(pl.col("ns").sum().alias("time_ns"))
    new = replace(base, values=values, steps=base.steps.drop("time_ns").join(times, on="step"))
    assert ". The mean, though, is 1.0 % longer (ratio 1.01" in planted_sides.section(base, new).answer


def test_few_steps_are_not_clear() -> None:
    section = planted_sides.section(planted_sides.digest(steps=2), planted_sides.digest({"head": 2}, steps=2))
    assert section.tag == "inconclusive"
    assert section.answer.endswith(
        "at the median, but fewer than 5 steps on a side prove nothing: record more."
    )
    assert dict(section.points)["test"].endswith(
        "without an interval; 2 steps of the new side against 2 steps of the base."
    )


def test_whole_windows_are_called_windows_everywhere() -> None:
    """The base has no steps: nothing may speak of steps, and ten steps of the new side are one window, for a gate too."""
    one = planted_sides.digest(steps=1, name="base")
    none = pl.lit(NO_STEP, pl.Int64).alias("step")
    base = replace(one, steps=one.steps.with_columns(none), values=one.values.with_columns(none))
    new = planted_sides.digest({"head": 2}, steps=10, name="new")
    section = planted_sides.section(base, new, "3%", "layer:head:3%")
    text = _render(section, Format.table)
    assert "The window takes" in section.answer
    assert "per step" not in text
    assert "step time" not in text
    assert " ratio 10." not in text
    gates = _table(section, "gates").frame
    assert gates["ratio"].to_list() == pytest.approx([11.4, 20], rel=0.1)
    assert all("1 window against 1 window" in reason for reason in gates["reason"])


def test_the_page_is_called_by_both_sides() -> None:
    page = _render(_slower(), Format.html)
    assert "<title>before → after · tracekit report</title>" in page
    assert "<h1>before → after</h1>" in page


def test_a_run_against_itself_has_no_change() -> None:
    run = planted_sides.digest()
    section = planted_sides.section(run, run)
    assert section.tag == "same"
    assert section.answer.startswith("Nothing changed: a step takes 7.21 ms")
    assert not {"mean", "change", "rest", "test"} & {label for label, _ in section.points}
    assert _table(section, "changes").total_rows == 0
    assert "By layer" not in _render(section, Format.table)
    for dimension in EVERYWHERE:
        assert (_table(section, dimension).frame["delta_ns"] == 0).all()


@pytest.mark.slow
@settings(max_examples=12)
@given(
    st.dictionaries(st.sampled_from(["encoder.0.attention", "encoder.1", "head", "idle"]), st.floats(0.1, 4)),
    st.integers(1, 4),
)
def test_what_a_page_shows_sums_to_the_change(scale: dict[str, float], rows: int) -> None:
    section = planted_sides.section(
        planted_sides.digest(steps=6), planted_sides.digest(scale, steps=6, seed=1)
    )
    means = _table(section, "steps").frame["mean_ns"].to_list()
    for dimension in EVERYWHERE:
        table = _table(section, dimension)
        shown = first_rows(table, rows)
        assert shown["delta_ns"].sum() == pytest.approx(means[1] - means[0], abs=1)
        assert shown["new_ns"].sum() == pytest.approx(means[1], abs=1)
        assert shown.height == min(table.frame.height, rows + 1)
        sizes = table.frame["delta_ns"].abs().to_list()
        assert sizes == sorted(sizes, reverse=True)


def test_the_same_figures_in_every_format() -> None:
    section = _slower()
    data = json.loads(_render(section, Format.json))["diff"]
    texts = {each: _render(section, each, top=3).replace("\xa0", " ") for each in (Format.table, Format.md)}
    texts[Format.html] = re.sub(r"<[^>]*>", " ", _render(section, Format.html).replace("\xa0", " "))
    for chosen, text in texts.items():
        flat = " ".join(text.split())
        for name in ("steps", "ratios", *EVERYWHERE):
            table = _table(section, name)
            rows = data["tables"][name]
            assert len(rows) == table.total_rows
            for row in [] if table.detail and chosen is not Format.html else rows[:3]:
                for column in [table.column(key) for key in table.short[:5]]:
                    assert column is not None
                    if column.unit != "text":
                        assert format_value(row[column.name], column) in flat, (chosen, name, column)
    mean = [row["mean_ns"] for row in data["tables"]["steps"]]
    for text in texts.values():
        told = " ".join(text.split())
        assert (
            f"from {format_ns(mean[0])} to {format_ns(mean[1])} ({format_change(mean[1] - mean[0])})" in told
        )


@pytest.mark.slow
def test_json_follows_its_schema() -> None:
    import jsonschema  # takes a second, and every process of a parallel run imports this file

    run = planted_sides.digest()
    for section in (_slower(), planted_sides.section(run, run)):
        document = json.loads(_render(section, Format.json))
        jsonschema.validate(document, diff_schema())
        assert document["diff"]["verdict"] == section.tag
        assert {name: list(table.frame.columns) for name in SCHEMAS if (table := section.table(name))} == {
            name: list(columns) for name, columns in SCHEMAS.items()
        }


def test_the_changed_layer_is_told_and_marked() -> None:
    section = _slower()
    changes = [text for label, text in section.points if label == "change"]
    assert len(changes) == 1
    assert "encoder.0.attention" in changes[0]
    figure = section.figure("layers")
    assert figure is not None
    kinds = {node["label"]: node["kind"] for node in figure.data["nodes"]}
    assert kinds == {
        "encoder": "a little slower", "0": "slower", "attention": "slower", "1": "in both", "head": "in both", "unattributed": "in both",
    }  # fmt: skip
    assert figure.data["total"] == sum(node["value"] for node in figure.data["nodes"] if node["depth"] == 0)


def test_html_shows_layers_of_both_sides() -> None:
    page = _render(_slower(), Format.html)
    rows = re.findall(
        r'class="layer-name" title="[^"]*">([^<]*)</span>.*?(?=class="layer-name"|</section>)',
        page,
        re.DOTALL,
    )
    assert rows == ["encoder", "0", "attention", "1", "2 more, which changed less", "head", "unattributed"]
    assert 'class="k-slower' in page
    assert "slower by more than 15 %" in page
    assert re.search(r'<details class="fold drawing" open>\s*<summary>Times of the steps in order', page)
    assert not re.search(r'(?:src|href)="(?!#)', page)


def test_names_are_escaped() -> None:
    section = _slower()
    assert "void relu&lt;float&gt;(int\\*, @&#8203;someone\\|x)" in _render(section, Format.md)
    page = _render(section, Format.html)
    assert "relu<float>" not in page
    assert "relu&lt;float&gt;" in page


def test_markdown_is_short_until_it_is_opened() -> None:
    text = _render(_slower(), Format.md, top=5)
    seen = re.sub(r"<details>.*?</details>\n*", "", text, flags=re.DOTALL)
    assert len(seen.splitlines()) < 25
    assert seen.count("|:--|") == 1
    assert text.count("<details>") == text.count("</details>") > 5


def _compare(text: str, name: str) -> None:
    path = SNAPSHOTS / name
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(("chosen", "name"), [(Format.table, "diff.txt"), (Format.md, "diff.md")])
def test_snapshot(chosen: Format, name: str) -> None:
    _compare(_render(_slower(), chosen, top=3), name)


def test_a_row_more_takes_no_more_room_than_the_sum() -> None:
    frame = pl.DataFrame({"name": ["a", "b"], "delta_ns": [2.0, 1.0]})
    table = Table("t", "T", frame, (), 2, summed=True)
    assert first_rows(table, 1).equals(frame)


def test_trifles_do_not_stand_above_what_changed() -> None:
    """Five sentences on microseconds stood above the 23.9 ms that one step had waited for Python code."""
    base = planted_sides.digest(noise=0.0002)
    found = compared(
        [[base]], [[planted_sides.digest({"encoder.1": 20, "head": 1.05}, noise=0.0002, seed=1)]]
    )
    assert len(found.diff.changes) == 2
    told = [text for label, text in diff_section(found).points if label == "change"]
    assert [text.partition(" takes")[0] for text in told] == ["layer encoder.1 (Linear)"]


def test_rows_of_calls_are_told_apart_by_their_layers() -> None:
    """Six rows read alike: `cudaStreamSynchronize aten::_local_scalar_dense 1 0`."""
    found = compared([[planted_sides.digest()]], [[planted_sides.digest(seed=1)]])
    calls = pl.concat([found.diff.calls.with_columns(pl.lit(path).alias("layer")) for path in ("a", "b")])
    table = _table(diff_section(replace(found, diff=replace(found.diff, calls=calls))), "calls")
    assert table.short[:3] == ("category", "name", "layer")


def test_steps_without_the_profiler_are_told_where_they_change_otherwise() -> None:
    """Two captures read as 0.71 times as long that take 0.49 times without the profiler, as their manifests tell."""
    base, new = planted_sides.digest(), planted_sides.digest({"head": 0.5}, seed=1)
    note = "Without the profiler a step takes 2.00 ms instead of 4.00 ms at the median, 0.50 times as long."
    for times, told in (((4, 2), True), ((7.2, 6.9), False), ((4, None), False)):
        facts = [
            msgspec.structs.replace(one.facts, undisturbed_ns=(round(ms * 1e6),) if ms else ())
            for one, ms in zip((base, new), times, strict=True)
        ]
        points = planted_sides.section(
            *(replace(one, facts=own) for one, own in zip((base, new), facts, strict=True))
        ).points
        assert any(note in text for _, text in points) == told


def test_calls_that_take_next_to_nothing_do_not_take_100_percent_less() -> None:
    """`100 % less time` stood where they took 0.02 % of it."""
    found = planted_sides.section(planted_sides.digest(), planted_sides.digest({"encoder.1": 0.002}, seed=1))
    assert any("takes 0.2 % of the time for the same calls (−" in text for _, text in found.points)


def test_a_rank_test_that_so_few_steps_cannot_pass_is_said_to_tell_little() -> None:
    """`FASTER` stood above `p = 0.112 for faster` without a word on why both hold."""

    def side(*times: int) -> Sequence[Sequence[int]]:
        return [[1_000 * each for each in times]]

    rising = compare_times(side(100, 101, 102, 103, 104), side(60, 61, 62, 63, 64))
    assert (rising.verdict, rising.median.p < 0.95) == ("faster", True)
    assert (
        "(the rank test of Mann and Whitney, corrected for steps that are alike, which means little with so few steps)"
        in _test(rising, "step")
    )


def test_work_that_others_hide_is_not_said_to_take_less_time() -> None:
    """`91 % less time for the same calls` stood where all-reduces took as long as before, beside the backward pass."""
    base, new = planted_sides.digest(), planted_sides.digest({"encoder.1": 0.1}, seed=1)
    leaf = new.leaves.filter(pl.col("layer") == "encoder.1")["leaf"]
    whole = pl.when(pl.col("leaf").is_in(leaf.implode())).then(pl.col("ns") * 10).otherwise("duration_ns")
    hidden = planted_sides.section(
        base, replace(new, values=new.values.with_columns(whole.alias("duration_ns")))
    )
    told = next(text for label, text in hidden.points if label == "change")
    assert told == (
        "layer encoder.1 (Linear) is exposed for 1.81 ms less: it takes 2.00 ms in all, of which other work hides 1.80 ms, instead of "
        "2.01 ms, of which it hides 0 ns"
    )
