"""The list of workloads is what a recount gives, and is printed without torch."""

import subprocess
import sys

import pytest

from tracekit.capture.catalogue import count, variants
from tracekit.capture.entries import Entry, catalogue
from tracekit.capture.listing import listing
from tracekit.cli.main import main

"""Parameters, and GFLOP as far as they are published for the default size."""


PUBLISHED = {
    "yolov5:n": (1_872_157, 4.468),
    "yolov5:s": (7_235_389, 16.434),
    "yolov5:m": (21_190_557, 48.872),
    "yolov5:l": (46_563_709, 108.994),
    "yolov5:x": (86_749_405, 205.448),
    "bert:base": (110_106_428, 121.2),
    "bert:large": (336_226_108, 368.1),
    "dlrm:kaggle": (540_677_217, None),
    "dlrm:terabyte": (24_036_595_969, None),
    "resnet50:50": (25_557_032, 8.178),
    "resnet50:18": (11_689_512, 3.63),
    "resnet50:34": (21_797_672, 7.33),
    "resnet50:101": (44_549_160, 15.60),
    "resnet50:152": (60_192_808, 23.03),
    "ssd300:91": (35_641_826, 69.7),
    "ssd300:81": (34_305_206, 68.7),
    "ssd300:21": (26_285_486, 62.7),
    "transformer:base": (63_084_544, 16.7),
    "transformer:big": (214_249_472, 56.0),
    "transformer:big-mlperf": (210_878_464, 55.1),
    "deepspeech2:lstm1024": (86_618_400, None),
    "deepspeech2:gru800": (41_187_968, None),
    "lstm_translation:gnmt": (160_670_272, None),
    "gpt2:small": (124_439_808, 291.6),
    "gpt2:medium": (354_823_168, 827.0),
    "gpt2:xl": (1_557_611_200, 3506.7),
    "llama:1b": (1_235_814_400, 5611),
    "llama:7b": (6_738_415_616, 29_262),
    "vit:b16": (86_567_656, 35.1),
    "vit:l16": (304_326_632, 123.1),
    "hf:albert": (11_813_810, 100.8),
    "hf:bart": (139_420_416, None),
    "hf:convnext": (28_589_128, 8.91),
    "hf:detr": (41_524_768, None),
    "hf:distilbert": (66_985_530, 72.9),
    "hf:efficientnet": (5_288_548, 0.772),
    "hf:gpt2": (124_439_808, 291.6),
    "hf:mixtral": (46_702_792_704, None),
    "hf:mobilenet-v2": (3_504_872, 0.602),
    "hf:regnet": (20_646_656, 7.95),
    "hf:resnet": (25_557_032, 8.178),
    "hf:roberta": (124_697_433, 136.8),
    "hf:rt-detr": (42_891_372, None),
    "hf:segformer": (3_752_694, 16.8),
    "hf:swin": (28_288_354, 8.98),
    "hf:t5": (60_506_624, 36.6),
    "hf:wav2vec2": (94_396_320, 148),
    "hf:whisper": (37_760_640, None),
}
"""Parameters, and GFLOP as far as they are published for the default size; counted apart from this code."""

QUICK = {"yolov5:n", "dlrm:kaggle", "resnet50:18", "bert:base", "hf:segformer", "cnn", "encoder"}


RECOUNTED = QUICK | {
    *("ssd300:81", "hf:dab-detr", "hf:falcon", "hf:mobilebert", "hf:patchtst", "hf:rt-detr-v2", "hf:upernet"),
    # These forecast a distribution, whose parameters torch looks at unless it has compiled something before.
    *("hf:autoformer", "hf:informer", "hf:time-series-transformer"),
}
"""One of every kind; that each of the others can be built and trained is tested elsewhere."""


def test_every_variant_is_listed_once() -> None:
    names = [entry.name for entry in catalogue()]
    assert names == [f"{name}:{variant}" if variant else name for name, variant in variants()]
    assert len(set(names)) == len(names)
    assert len([name for name in names if name.startswith("hf:")]) >= 65


@pytest.mark.parametrize("name", PUBLISHED)
def test_figures_are_the_published_ones(name: str) -> None:
    (entry,) = (entry for entry in catalogue() if entry.name == name)
    parameters, gflop = PUBLISHED[name]
    assert entry.parameters == parameters
    if gflop is not None:
        assert entry.forward_flops is not None
        assert entry.forward_flops / 1e9 == pytest.approx(gflop, rel=0.006)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(entry, id=entry.name, marks=[] if entry.name in QUICK else pytest.mark.slow)
        for entry in catalogue()
        if entry.name in RECOUNTED
    ],
)
@pytest.mark.sampled(4)
def test_a_recount_gives_the_same(entry: Entry) -> None:
    base, _, variant = entry.name.partition(":")
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


@pytest.mark.slow
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
