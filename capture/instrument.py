"""Profiler ranges and sequence-number intervals for every call of every module of a model.

Only forward hooks are used: backward hooks change the autograd graph and fail on in-place operations. The
hooks return nothing, so losses and gradients stay bit for bit what they were.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Literal, TypeAlias

import torch
from torch import nn
from torch._C._autograd import _get_sequence_nr
from torch.utils.hooks import RemovableHandle

from tracekit.capture.layer_table import Layer, LayerCalls, LayerTable
from tracekit.capture.names import ROOT_LAYER, layer_range_name, printable
from tracekit.errors import UsageError

__all__ = ["Instrumentation", "RangeKind", "describe_layers"]

RangeKind = Literal["structured", "plain"]
_OpenRange: TypeAlias = Callable[[Layer], AbstractContextManager[object]]


def describe_layers(model: nn.Module) -> list[Layer]:
    """Return every module of `model` once, parents before children; `id` is its place in that order.

    Raises `UsageError` when a part of the model is compiled: hooks inside compiled code break its graph at
    every layer, so the trace would show another program.
    """
    ids: dict[str, int] = {}
    layers: list[Layer] = []
    for name, module in model.named_modules():
        if _is_compiled(module):
            raise UsageError(
                f"the module {name or '<root>'!r} is compiled, so its layers cannot be marked",
                remedy="capture the model before torch.compile",
            )
        ids[name] = len(layers)
        layers.append(
            Layer(
                id=ids[name],
                parent=ids[name.rpartition(".")[0]] if name else None,
                name=name,
                range_name=layer_range_name(name),
                type=type(module).__name__,
                parameters=sum(p.numel() for p in module.parameters(recurse=False)),
            )
        )
    return layers


def _is_compiled(module: nn.Module) -> bool:
    # torch.compile(module) wraps and keeps `_orig_mod`; module.compile() sets `_compiled_call_impl`.
    return "_orig_mod" in module._modules or getattr(module, "_compiled_call_impl", None) is not None


def _range_opener(*, shapes_recorded: bool) -> tuple[RangeKind, _OpenRange]:
    """Choose the cheapest kind of range that works with this torch and these options.

    `_RecordFunctionFast` costs a fifth of `record_function` and carries arguments into the trace, but it is
    not a public name: when it is missing or takes other arguments, plain ranges carry the layer's name alone.
    So they do when no shapes are recorded, because then the profiler reads no arguments, not even the scope,
    and would file the ranges among the operators.
    """
    fast: Any = getattr(torch._C._profiler, "_RecordFunctionFast", None) if shapes_recorded else None
    try:
        if fast is not None:
            fast("probe", [], {"scope": "user_scope"})
    except TypeError:
        fast = None
    if fast is None:
        return "plain", lambda layer: torch.profiler.record_function(layer.range_name)

    def open_structured(layer: Layer) -> AbstractContextManager[object]:
        arguments = {
            "scope": "user_scope",
            "layer": printable(layer.name or ROOT_LAYER),
            "layer_id": layer.id,
            "module": printable(layer.type),
        }
        opened: AbstractContextManager[object] = fast(layer.range_name, [], arguments)
        return opened

    return "structured", open_structured


class _Call:
    """One open or finished module call; slots, because there is one for each call of each recorded step."""

    __slots__ = ("end_sequence", "first_sequence", "in_backward", "layer", "range", "step", "thread")

    def __init__(self, layer: Layer, step: int | None, opened: AbstractContextManager[object]) -> None:
        self.layer = layer
        self.step = step
        self.range = opened
        self.thread = threading.get_native_id()
        self.in_backward = torch._C._current_graph_task_id() != -1
        self.first_sequence = _get_sequence_nr()
        self.end_sequence: int | None = None


class _OpenCalls(threading.local):
    def __init__(self) -> None:
        self.stack: list[_Call] = []


class Instrumentation:
    """Marks every module call of `model` while it is entered as a context manager.

    Set `step` to the number of the step being recorded, or to None while nothing is recorded: ranges are
    opened either way, but calls are kept only for recorded steps. `shapes_recorded` says whether the profiler
    records shapes. Raises `UsageError` when a module is compiled.
    """

    def __init__(self, model: nn.Module, *, shapes_recorded: bool = True) -> None:
        self.step: int | None = None
        self.layers = describe_layers(model)
        self.range_kind, self._open_range = _range_opener(shapes_recorded=shapes_recorded)
        self._modules = [module for _, module in model.named_modules()]
        self._calls: list[_Call] = []
        self._open = _OpenCalls()
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> Instrumentation:
        for layer, module in zip(self.layers, self._modules, strict=True):
            self._handles += self._hook(layer, module)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def table(self) -> LayerTable:
        """Return the layers, and the finished calls of the recorded steps in order of entry."""
        calls = LayerCalls()
        for call in self._calls:
            if call.end_sequence is None or call.step is None:
                continue
            calls.layer.append(call.layer.id)
            calls.step.append(call.step)
            calls.thread.append(call.thread)
            calls.first_sequence.append(call.first_sequence)
            calls.end_sequence.append(call.end_sequence)
            calls.in_backward.append(call.in_backward)
        return LayerTable(layers=self.layers, calls=calls)

    def _hook(self, layer: Layer, module: nn.Module) -> tuple[RemovableHandle, RemovableHandle]:
        def enter(_module: nn.Module, _inputs: object) -> None:
            self._enter(layer)

        def leave(_module: nn.Module, _inputs: object, _output: object) -> None:
            self._leave(layer)

        # First in and last out, so that the user's own hooks count as part of the layer; and always called,
        # because checkpointing ends a recomputation early by raising.
        return (
            module.register_forward_pre_hook(enter, prepend=True),
            module.register_forward_hook(leave, always_call=True),
        )

    def _enter(self, layer: Layer) -> None:
        call = _Call(layer, self.step, self._open_range(layer))
        call.range.__enter__()
        self._open.stack.append(call)
        if call.step is not None:
            self._calls.append(call)

    def _leave(self, layer: Layer) -> None:
        stack = self._open.stack
        # A global pre-hook that raises skips `enter` but not `leave`: then there is nothing of ours to close.
        if not any(call.layer is layer for call in stack):
            return
        while stack:
            call = stack.pop()
            call.range.__exit__(None, None, None)
            call.end_sequence = _get_sequence_nr()
            if call.layer is layer:
                return
