"""How steps, phases and layers are marked: as ranges of the profiler, by the host's clock, and for NVTX tools."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Protocol

import torch

from tracekit.capture.marks.layer_table import Layer
from tracekit.capture.marks.names import ROOT_LAYER, Phase, phase_range_name, printable, step_range_name
from tracekit.capture.marks.nvtx_domain import NvtxDomain

__all__ = ["Marks", "NoMarks", "ProfilerMarks", "Range", "RangeKind", "WithNvtx"]

RangeKind = Literal["structured", "plain", "timed", "none"]
Range = AbstractContextManager[object]


class Marks(Protocol):
    """A destination of ranges. `kind` says what the ranges of layers contain."""

    @property
    def kind(self) -> RangeKind:
        """`structured`: name and arguments; `plain`: the name; `timed`: times of the host's clock; `none`: no ranges."""

    def step(self, number: int) -> Range:
        """A range around a step."""

    def phase(self, phase: Phase) -> Range:
        """A range around a phase of a step."""

    def layer(self, layer: Layer) -> Range:
        """A range around a call of a module."""


class NoMarks:
    """Marks nothing."""

    kind: RangeKind = "none"

    def step(self, number: int) -> Range:  # noqa: ARG002 - as Marks has it
        """An empty context."""
        return nullcontext()

    def phase(self, phase: Phase) -> Range:  # noqa: ARG002
        """An empty context."""
        return nullcontext()

    def layer(self, layer: Layer) -> Range:  # noqa: ARG002
        """An empty context."""
        return nullcontext()


class ProfilerMarks:
    """Ranges of the PyTorch profiler, of the cheapest kind that works with this torch and these options.

    `_RecordFunctionFast` costs a fifth of `record_function` and carries arguments into the trace, but it is
    not a public name: if it is missing or takes other arguments, plain ranges carry only the layer's name.
    They do so too if no shapes are recorded, because then the profiler reads no arguments, not even the scope,
    and would list the ranges as operators.
    """

    def __init__(self, *, shapes_recorded: bool = True) -> None:
        self._fast = _fast_range() if shapes_recorded else None
        self.kind: RangeKind = "plain" if self._fast is None else "structured"

    def step(self, number: int) -> Range:  # noqa: ARG002
        """An empty context: the profiler marks its steps itself."""
        return nullcontext()

    def phase(self, phase: Phase) -> Range:
        """A range named after the phase."""
        return torch.profiler.record_function(phase_range_name(phase))

    def layer(self, layer: Layer) -> Range:
        """A range named after the layer."""
        if self._fast is None:
            return torch.profiler.record_function(layer.range_name)
        arguments = {
            "scope": "user_scope",
            "layer": printable(layer.name or ROOT_LAYER),
            "layer_id": layer.id,
            "module": printable(layer.type),
        }
        opened: Range = self._fast(layer.range_name, [], arguments)
        return opened


def _fast_range() -> Callable[..., Any] | None:
    fast: Any = getattr(torch._C._profiler, "_RecordFunctionFast", None)
    try:
        if fast is not None:
            fast("probe", [], {"scope": "user_scope"})
    except TypeError:
        return None
    return fast  # type: ignore[no-any-return]


class WithNvtx:
    """Marks of another kind, plus the same ranges for NVTX tools."""

    def __init__(self, marks: Marks, domain: NvtxDomain) -> None:
        self._marks, self._domain = marks, domain

    @classmethod
    def if_attached(cls, marks: Marks) -> Marks:
        """These marks, with NVTX ranges if a tool is attached."""
        domain = NvtxDomain()
        return cls(marks, domain) if domain.active else marks

    @property
    def kind(self) -> RangeKind:
        """The kind of the other marks."""
        return self._marks.kind

    def step(self, number: int) -> Range:
        """Both ranges."""
        return _Both(self._domain.range(step_range_name(number), "step"), self._marks.step(number))

    def phase(self, phase: Phase) -> Range:
        """Both ranges."""
        return _Both(self._domain.range(phase_range_name(phase), "phase"), self._marks.phase(phase))

    def layer(self, layer: Layer) -> Range:
        """Both ranges."""
        return _Both(self._domain.range(layer.range_name, "layer"), self._marks.layer(layer))


class _Both:
    __slots__ = ("_inner", "_outer")

    def __init__(self, outer: Range, inner: Range) -> None:
        self._outer, self._inner = outer, inner

    def __enter__(self) -> None:
        self._outer.__enter__()
        self._inner.__enter__()

    def __exit__(self, *error: Any) -> None:
        try:
            self._inner.__exit__(*error)
        finally:
            self._outer.__exit__(*error)
