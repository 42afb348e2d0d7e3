"""What all tests share."""

from __future__ import annotations

import os
import signal
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A shell's background jobs ignore Ctrl-C, and those of nohup SIGHUP; the programs that the tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# In a parallel run every process has a core of its own, and threads of Polars and torch would wait for each other.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")


# A machine that does something else as well is no fault of what is tested.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test touches the user's cache."""
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`@pytest.mark.quick(n)`: all but the first n quick parameters of the test are slow. `@pytest.mark.sampled(n)`: n of the slow
    ones are tried, which their names choose; all with EVERY_CASE=1. Tests of one trace follow each other.
    """
    items.sort(key=lambda item: (item.get_closest_marker("early") is None, _trace(item)))
    seen: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("quick")
        if mark is not None and item.get_closest_marker("slow") is None:
            test = item.nodeid.partition("[")[0]
            seen[test] += 1
            if seen[test] > mark.args[0]:
                item.add_marker(pytest.mark.slow)
    if "EVERY_CASE" not in os.environ:
        left_out = _not_drawn(items)
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]


def _not_drawn(items: list[pytest.Item]) -> list[pytest.Item]:
    """What `sampled` leaves out."""
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") is not None and item.get_closest_marker("slow") is not None:
            cases[item.nodeid.partition("[")[0]].append(item)
    left_out = []
    for each in cases.values():
        mark = each[0].get_closest_marker("sampled")
        drawn = sorted(each, key=lambda item: zlib.crc32(item.nodeid.encode()))
        left_out += drawn[mark.args[0] if mark is not None else 0 :]
    return left_out


def _trace(item: pytest.Item) -> str:
    """The trace beside this checkout or in it that is the test's parameter, which stays read for the tests that follow."""
    callspec = getattr(item, "callspec", None)
    path = callspec.params.get("path") if callspec else None
    return str(path) if isinstance(path, Path) else ""


@pytest.fixture(scope="module", params=["native", "numpy"])
def both_passes(request: pytest.FixtureRequest) -> Iterator[None]:
    """All that is tested with it holds of both ways to pass over spans and intervals."""
    from tracekit import span_passes

    if request.param == "native" and span_passes.native is None:
        pytest.skip("the native passes are not built")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "numpy":
            patch.setattr(span_passes, "native", None)
        yield
