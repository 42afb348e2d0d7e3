"""Descriptions of columns that are wrong are one line, that names the file and what to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracekit.errors import UsageError
from tracekit.predict.describe import description_of, read_description
from tracekit.predict.recognise import recognised


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('[target]\ncolumn = "t"\nunit = ["s"]\n[columns]\nbatch = "b"', "unit is not text"),
        ('[target]\ncolumn = "t"\n[columns]\nbatch = ["b"]', "batch is not text; write it in quotes"),
        ('[target]\ncolumn = "t"\n', "names no column but the target"),
        ('[target]\ncolumn = "t"\n[columns]\nbatch = "t"', "'t' is the target, which cannot foretell itself"),
        ('[target]\ncolumn = "t"\n[rows]\nfeatures = ["t"]', "'t' is the target, which cannot foretell itself"),
        ('[target]\ncolumn = "t"\n[columns]\nbatch = "b"\n[rows]\ngroup = "b"', "group is not a list"),
        ('[target]\ncolumn = "t"\n[columns]\nbatch = "b"\n[rows]\ngruop = ["b"]', "did you mean group?"),
        ('[target]\ncolumn = "t"\n[columns]\nbatch = "b"\n[devices.x]\ndies = 0', "dies is not a number above 0"),
        ('[target]\ncolumn = "t"\n[columns]\nbatch = "b"\n[devices.x]\npeak_gflops = "9"', "not a number above 0"),
        ('[target]\ncolumn = "t"\n[columns]\nbatch = "b"\n[devices.x]\nname = 3', "name is not text"),
        ('[target]\ncolumn = "t"\n[columns]\nbatch = "b"\n[devices.x]\npeak = 3', "no [devices] key 'peak'; choose one of name, dies"),
    ],
)  # fmt: skip
def test_what_a_description_cannot_say(text: str, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "columns.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"columns\.toml: .*") as caught:
        read_description(path)
    assert fault in str(caught.value)


def test_what_it_says_is_kept() -> None:
    said = {
        "target": {"column": "t", "unit": "ms"},
        "columns": {"batch": "b"},
        "rows": {"id": "n", "group": ["b"], "features": ["x"]},
        "devices": {"5591": {"name": "Tesla K80", "dies": 2, "bandwidth_gb_s": 240.0}},
    }
    assert description_of(said, Path("columns.toml")).as_json() == said


def test_names_with_blanks_and_brackets_speak_for_themselves_too() -> None:
    found = recognised(["Run ID", "Batch Size", "Num GPUs", "Card", "Step-Time (ms)"], Path("runs.csv"))
    assert (found.target, found.unit, found.id) == ("Step-Time (ms)", "ms", "Run ID")
    assert found.columns == {"gpus": "Num GPUs", "batch": "Batch Size", "device": "Card"}
