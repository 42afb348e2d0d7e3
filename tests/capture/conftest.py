"""One small recording of each workload, shared by the tests, and a way to read a trace back."""

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tracekit.capture.run import CaptureResult, run
from tracekit.manifest import CaptureOptions, Settings

LoadTrace = Callable[[Path], dict[str, Any]]


@pytest.fixture(scope="session", autouse=True)
def _few_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def load_trace() -> LoadTrace:
    def load(path: Path) -> dict[str, Any]:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            document: dict[str, Any] = json.load(file)
        return document

    return load


@pytest.fixture(scope="session", params=["cnn", "encoder"])
def captured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CaptureResult:
    return run(
        request.param,
        tmp_path_factory.mktemp(request.param),
        settings=Settings(batch=2, size=16),
        options=CaptureOptions(steps=2, warmup=1),
    )
