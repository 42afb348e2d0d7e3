"""Paths and helpers that all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = sorted((ROOT / "sample_traces").glob("*/trace.json.gz"))
PUBLIC = sorted((ROOT.parent / "shared" / "traces" / "kineto").glob("*.json.gz"))
"""Public traces beside the checkout; tests that use them skip when they are absent."""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test touches the user's cache."""
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
