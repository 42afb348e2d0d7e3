"""The list of workloads is what a recount gives, and is printed without torch."""

import subprocess
import sys

import pytest

from tracekit.capture.catalogue import count, variants
from tracekit.capture.listing import catalogue, listing
from tracekit.cli.main import main

KNOWN = {
    "yolov5:s": (7_235_389, 16.43),
    "bert:base": (110_106_428, 121.2),
    "dlrm:kaggle": (540_677_217, None),
    "resnet50:50": (25_557_032, 8.178),
    "ssd300:91": (35_641_826, 69.7),
    "transformer:big": (214_249_472, 56.0),
    "deepspeech2:lstm1024": (86_618_400, None),
    "gpt2:small": (124_439_808, 291.6),
    "llama:7b": (6_738_415_616, 29_262),
    "vit:l16": (304_326_632, 123.1),
    "hf:whisper": (37_760_640, None),
    "hf:wav2vec2": (94_396_320, 148),
}
"""Parameters, and GFLOP as far as they are published for the default size."""


def test_every_variant_is_listed_once() -> None:
    names = [entry.name for entry in catalogue()]
    assert names == [f"{name}:{variant}" if variant else name for name, variant in variants()]
    assert len(set(names)) == len(names)
    assert len([name for name in names if name.startswith("hf:")]) >= 65


@pytest.mark.parametrize("name", KNOWN)
def test_known_figures(name: str) -> None:
    (entry,) = (entry for entry in catalogue() if entry.name == name)
    parameters, gflop = KNOWN[name]
    assert entry.parameters == parameters
    if gflop is not None:
        assert entry.forward_flops is not None
        assert entry.forward_flops / 1e9 == pytest.approx(gflop, rel=0.02)


@pytest.mark.parametrize(
    "name", ["yolov5:n", "dlrm:kaggle", "resnet50:18", "bert:base", "hf:segformer", "cnn"]
)
def test_a_recount_gives_the_same(name: str) -> None:
    base, _, variant = name.partition(":")
    (entry,) = (entry for entry in catalogue() if entry.name == name)
    assert count(base, variant) == entry


def test_the_list_tells_what_its_flops_are() -> None:
    text = listing()
    assert max(map(len, text.splitlines())) <= 102
    text = " ".join(text.split())
    assert "2 × the multiply-adds" in text
    assert "forward pass of one sample" in text


@pytest.mark.parametrize("width", [80, 90, 120])
def test_a_listing_fits_the_terminal(width: int) -> None:
    lines = listing(width).splitlines()
    assert max(map(len, lines)) <= width
    names = [line.split()[0] for line in listing().splitlines() if line]
    cut = [line.split()[0] for line in lines if line]
    assert cut[: len(catalogue())] == names[: len(catalogue())], "a name is what must be typed"
    assert any(" 25.6 M " in line for line in lines)


def test_a_pipe_gets_whole_columns_and_a_terminal_what_fits(monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for is_terminal in (False, True):
        monkeypatch.setattr("sys.stdout.isatty", lambda is_terminal=is_terminal: is_terminal, raising=False)
        with pytest.raises(SystemExit):
            main(["capture", "--list"])
        text = capsys.readouterr().out
        assert ("offline reinforcement learning" in text) is not is_terminal
        assert (max(map(len, text.splitlines())) <= 80) is is_terminal


def test_listing_needs_no_torch() -> None:
    code = (
        "import sys\nfrom tracekit.cli.main import main\n"
        "try: main(['capture', '--list'])\n"
        "finally: assert not {'torch', 'polars', 'transformers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "yolov5:s" in done.stdout
