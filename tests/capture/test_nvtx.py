"""Ranges for NVTX tools: nested as the steps, phases and layers are, and nothing at all when no tool listens."""

import sys
import timeit
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

from tracekit.capture.marks.layer_table import Layer
from tracekit.capture.marks.names import PHASES
from tracekit.capture.marks.nvtx_domain import DOMAIN, NvtxDomain
from tracekit.capture.marks.ranges import NoMarks, ProfilerMarks, WithNvtx
from tracekit.capture.run import run
from tracekit.capture.sessions import recording
from tracekit.manifest import CaptureOptions, Level, Settings

ROOT = Layer(id=0, parent=None, name="", range_name="tracekit.layer/<root>", type="Net", parameters=0)
ONE_STEP = CaptureOptions(steps=1, profile_memory=False)


class RecordingDomain:
    """What the package gives while a tool listens: events, in order, as ("push", category, message) and ("pop",)."""

    def __init__(self) -> None:
        self.events: list[tuple[str, ...]] = []
        self.made = 0

    def get_event_attributes(self, message: str, category: str) -> SimpleNamespace:
        self.made += 1
        return SimpleNamespace(message=message, category=category)

    def push_range(self, attributes: SimpleNamespace) -> None:
        self.events.append(("push", attributes.category, attributes.message))

    def pop_range(self) -> None:
        self.events.append(("pop",))

    def depths(self) -> list[tuple[int, str, str]]:
        """Each range with how many were open around it; every pop must have its push, and the other way round."""
        depth, found = 0, []
        for event in self.events:
            if event[0] == "push":
                found.append((depth, event[1], event[2]))
                depth += 1
            else:
                depth -= 1
                assert depth >= 0
        assert depth == 0
        return found


class DummyDomain:
    """What the package gives when no tool listens."""


def package(monkeypatch: pytest.MonkeyPatch, domain: object) -> list[str]:
    asked: list[str] = []
    module = ModuleType("nvtx")

    def get_domain(name: str) -> object:
        asked.append(name)
        return domain

    module.get_domain = get_domain  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nvtx", module)
    return asked


@pytest.fixture
def domain(monkeypatch: pytest.MonkeyPatch) -> RecordingDomain:
    made = RecordingDomain()
    package(monkeypatch, made)
    return made


def test_ranges_go_into_a_domain_of_our_own_with_one_description_a_name(monkeypatch) -> None:
    made = RecordingDomain()
    assert package(monkeypatch, made) == []
    asked = package(monkeypatch, made)
    ours = NvtxDomain()
    assert asked == [DOMAIN] == ["tracekit"]
    assert ours.active
    for _ in range(3):
        with ours.range("a", "step"), ours.range("a", "layer"):
            pass
    assert made.depths() == 3 * [(0, "step", "a"), (1, "layer", "a")]
    assert made.made == 2


@pytest.mark.parametrize("missing", [False, True])
def test_nothing_is_active_without_a_tool_or_the_package(monkeypatch, missing: bool) -> None:
    if missing:
        monkeypatch.setitem(sys.modules, "nvtx", None)
    else:
        package(monkeypatch, DummyDomain())
    ours = NvtxDomain()
    assert not ours.active
    with ours.range("a", "step"):
        pass
    plain = NoMarks()
    assert WithNvtx.if_attached(plain) is plain


def test_an_exception_closes_the_ranges(domain: RecordingDomain) -> None:
    marks = WithNvtx.if_attached(NoMarks())

    def fail() -> None:
        with marks.step(3), marks.phase("forward"), marks.layer(ROOT):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert domain.depths() == [
        (0, "step", "ProfilerStep#3"),
        (1, "phase", "tracekit.phase/forward"),
        (2, "layer", "tracekit.layer/<root>"),
    ]


def test_the_other_marks_are_made_as_well(domain: RecordingDomain) -> None:
    del domain
    for plain in (NoMarks(), ProfilerMarks()):
        assert WithNvtx.if_attached(plain).kind == plain.kind


class Failing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError


@pytest.mark.parametrize("level", ["ML", "MLG"])
def test_a_module_that_raises_leaves_no_range_open(domain: RecordingDomain, level: Level) -> None:
    model = nn.Sequential(nn.Linear(2, 2), Failing())
    with recording(level, model, torch.device("cpu"), ONE_STEP) as live:
        while not live.done:
            with pytest.raises(ValueError), live.phase("forward"):  # noqa: PT011 - it has no message
                model(torch.ones(1, 2))
            live.step()
    each = [(2, "layer", "<root>"), (3, "layer", "0"), (3, "layer", "1")]
    found = [
        (depth, kind, name.partition("/")[2]) for depth, kind, name in domain.depths() if kind == "layer"
    ]
    assert found == 2 * each


@pytest.mark.parametrize("level", ["M", "ML", "MLG"])
def test_a_capture_opens_them_at_every_level(domain: RecordingDomain, tmp_path: Path, level: Level) -> None:
    result = run("cnn", tmp_path, settings=Settings(batch=1, size=8), options=ONE_STEP, levels=(level,))
    found = domain.depths()
    steps = [name for depth, kind, name in found if kind == "step" and depth == 0]
    assert steps == ["ProfilerStep#0", "ProfilerStep#1"]  # the warm-up, and the recorded one
    phases = [name.partition("/")[2] for depth, kind, name in found if kind == "phase" and depth == 1]
    assert sorted(phases) == sorted(2 * PHASES)
    layers = [(depth, name) for depth, kind, name in found if kind == "layer"]
    if level == "M":
        assert layers == []
    else:
        assert len({name for _, name in layers}) == result.manifest.layers
        assert layers[0] == (2, "tracekit.layer/<root>")
        assert (3, "tracekit.layer/stem") in layers
        assert (4, "tracekit.layer/stem.0") in layers


def cost(statement: str, **names: object) -> float:
    """Nanoseconds of a statement: the least of many short tries, which other work on the machine disturbs least."""
    return min(timeit.repeat(statement, globals=names, number=2_000, repeat=60)) / 2_000 * 1e9


def test_the_package_that_is_installed_costs_almost_nothing_without_a_tool() -> None:
    pytest.importorskip("nvtx")
    domain = NvtxDomain()
    assert not domain.active  # no tool runs the tests
    empty = cost("with nullcontext():\n    pass", nullcontext=nullcontext)
    used = cost("with domain.range('tracekit.layer/x', 'layer'):\n    pass", domain=domain)
    # An empty context takes about 150 ns; a machine on which this fails is slower, not busier.
    assert used < max(1_000, 8 * empty)
    assert used < 8 * empty


def test_the_installed_package_takes_what_we_give_it() -> None:
    """Whoever listens: a real domain is made by name, and its events by message and category."""
    nvtx = pytest.importorskip("nvtx")
    domain = nvtx.get_domain(DOMAIN)
    attributes = domain.get_event_attributes(message="x", category="step")
    domain.push_range(attributes)
    domain.pop_range()
    assert type(domain).__name__ == "DummyDomain"
