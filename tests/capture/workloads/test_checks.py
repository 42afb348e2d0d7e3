"""What every workload refuses: choices it does not know, models larger than the memory, missing packages."""

import os
import sys
from pathlib import Path

import pytest
import torch

from tracekit.capture.workloads import WorkloadOptions, checks, dlrm, find
from tracekit.errors import MissingDependencyError, UsageError

CPU = torch.device("cpu")


def build(name: str, **options: object) -> object:
    factory, variant = find(name)
    return factory.load()(WorkloadOptions(device=CPU, tiny=True, **{"variant": variant, **options}))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("bert", {"variant": "bse"}, "bert has no variant 'bse'; did you mean base?"),
        ("bert", {"size": 5}, "a sequence of 5 tokens; choose a size of at least 16"),
        ("gpt2", {"variant": "b"}, "gpt2 has no variant 'b'; choose one of: small, medium, xl"),
        ("gpt2", {"size": 1}, "a sequence of 1 token; choose a size of at least 2"),
        ("llama", {"variant": "x"}, "llama has no variant 'x'; choose one of: 1b, 7b"),
        ("vit", {"variant": "h14"}, "vit has no variant 'h14'; choose one of: b16, l16"),
        ("vit", {"size": 100}, "an image of 100 pixels a side; the side must be a multiple of 16"),
        ("vit", {"data": "set"}, "set: vit reads no real data; leave out --data"),
        ("hf:bert", {"data": "set"}, "set: hf:bert reads no real data; leave out --data"),
        ("dlrm", {"variant": "kagle"}, "dlrm has no variant 'kagle'; did you mean kaggle?"),
        ("dlrm", {"size": 224}, "dlrm takes 39 features, not 224; leave out --size, or set it to 39"),
        ("dlrm", {"max_rows": 0}, "max_rows is 0; it must be at least 1"),
        ("deepspeech2", {"variant": "lstm"}, "deepspeech2 has no variant 'lstm'; did you mean lstm1024?"),
        ("deepspeech2", {"max_rows": 3}, "deepspeech2 has no embedding tables to cap; leave out --max-rows"),
        ("lstm", {"variant": "gnmt8"}, "lstm_translation has no variant 'gnmt8'; did you mean gnmt?"),
        ("lstm", {"data": "wmt"}, "wmt: lstm_translation reads no real data; leave out --data"),
        ("lstm", {"max_rows": 3}, "lstm_translation has no embedding tables to cap; leave out --max-rows"),
        ("resnet50", {"variant": "51"}, "resnet50 has no variant '51'; choose one of: 50, 18, 34, 101, 152"),
        ("resnet50", {"variant": "1011"}, "resnet50 has no variant '1011'; did you mean 101?"),
        ("resnet50", {"max_rows": 3}, "resnet50 has no embedding tables to cap; leave out --max-rows"),
        ("ssd300", {"variant": "90"}, "ssd300 has no variant '90'; choose one of: 91, 81, 21"),
        ("ssd300", {"size": 512}, "ssd300 takes 300 pixels a side, not 512; leave out --size, or set it to 300"),
        ("ssd300", {"data": "coco"}, "coco: ssd300 reads no real data; leave out --data"),
        ("ssd300", {"max_rows": 3}, "ssd300 has no embedding tables to cap; leave out --max-rows"),
        ("transformer", {"variant": "bigmlperf"}, "transformer has no variant 'bigmlperf'; did you mean big-mlperf?"),
        ("transformer", {"data": "wmt"}, "wmt: transformer reads no real data; leave out --data"),
        ("transformer", {"max_rows": 3}, "transformer has no embedding tables to cap; leave out --max-rows"),
    ],
)  # fmt: skip
def test_a_wrong_choice_is_one_line(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        build(name, **options)
    assert str(caught.value) == message


@pytest.mark.parametrize("name", ["timm:resnet50", "torchvision:resnet50"])
def test_an_unknown_workload_is_answered_with_a_file_of_one_s_own(name: str) -> None:
    with pytest.raises(UsageError, match=f"unknown workload '{name}'; .*, name FILE.py:FUNCTION$"):
        find(name)


def test_a_longer_sequence_gets_a_model_with_more_positions() -> None:
    assert build("bert", size=100).model.config.max_position_embeddings == 100
    assert build("gpt2", size=100).model.config.n_positions == 100


@pytest.mark.parametrize(
    ("missing", "name"),
    [
        ("transformers", "bert"),
        ("transformers", "hf:bert"),
        ("scipy", "hf:detr"),
        ("scipy", "hf:mask2former"),
    ],
)
def test_a_missing_package_is_named_with_the_remedy(missing: str, name: str, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingDependencyError, match=rf"needs {missing}.*pip install 'tracekit-torch\[hf\]'"):
        build(name)
    if missing == "scipy":
        assert build("hf:bert").batch == 2


def test_tables_that_do_not_fit_are_refused_before_they_are_allocated(monkeypatch) -> None:
    monkeypatch.setattr(checks, "free_bytes", lambda _device: 2 * 10**9)
    with pytest.raises(UsageError, match=r"kaggle take 2\.2 GB, and cpu has 2\.0 GB free; .*--max-rows"):
        dlrm.build(WorkloadOptions(device=CPU))
    with pytest.raises(UsageError, match=r"terabyte take 96\.1 GB"):
        dlrm.build(WorkloadOptions(device=CPU, variant="terabyte"))
    assert dlrm.build(WorkloadOptions(device=CPU, max_rows=5)).model is not None


def test_free_memory_is_what_the_system_says(monkeypatch, tmp_path: Path) -> None:
    free = checks.free_bytes(CPU)
    assert free is None or 0 < free <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:      7 kB\n")
    monkeypatch.setattr(checks, "MEMINFO", meminfo)
    monkeypatch.setattr(checks, "CONTROL_GROUP", tmp_path)
    assert checks.free_bytes(CPU) == 7 * 1024
    (tmp_path / "memory.current").write_text("4000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert checks.free_bytes(CPU) == 7 * 1024
    (tmp_path / "memory.max").write_text("5000\n")
    assert checks.free_bytes(CPU) == 1000
