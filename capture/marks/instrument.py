"""Profiler ranges and sequence-number intervals for every call of every module of a model.

Only forward hooks are used: backward hooks change the autograd graph and fail on in-place operations. The
hooks return nothing, so losses and gradients stay bit-identical.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType

import msgspec
import torch
from torch import nn
from torch._C._autograd import _get_sequence_nr
from torch.utils.hooks import RemovableHandle

from tracekit.capture.marks.layer_table import Layer, LayerCalls, LayerTable
from tracekit.capture.marks.names import layer_range_name
from tracekit.capture.marks.ranges import Marks
from tracekit.errors import UsageError

__all__ = ["Instrumentation", "describe_layers"]


def describe_layers(model: nn.Module | Mapping[str, nn.Module]) -> list[tuple[Layer, nn.Module]]:
    """Return every module once, parents before children; a layer's `id` is its position in that order.

    `model` is one model, or several by name: theirs are the first parts of the names of their layers.

    A block compiled by `torch.compile(block)` is one layer, and its submodules are not layers: hooks there would break its
    graph at every layer, so that the trace would show another program. Raises `UsageError` if a module was
    compiled in place, because its own hooks would then be inside the graph.
    """
    layers: list[tuple[Layer, nn.Module]] = []
    seen: set[nn.Module] = set()
    for name, one in (("", model),) if isinstance(model, nn.Module) else model.items():
        _describe(one, name, None, layers, seen)
    return layers


def _describe(
    module: nn.Module,
    name: str,
    parent: int | None,
    layers: list[tuple[Layer, nn.Module]],
    seen: set[nn.Module],
) -> None:
    if module in seen:
        return
    seen.add(module)
    if getattr(module, "_compiled_call_impl", None) is not None:
        raise UsageError(
            f"the module {name or '<root>'!r} is compiled in place, so its calls cannot be marked",
            remedy="use torch.compile(module), or capture it before it is compiled",
        )
    compiled = (
        "_orig_mod" in module._modules
    )  # what torch.compile(module) returns; its class takes 1.5 s to import
    original = module.get_submodule("_orig_mod") if compiled else module
    layer = Layer(
        id=len(layers),
        parent=parent,
        name=name,
        range_name=layer_range_name(name),
        type=_type_name(original),
        parameters=sum(p.numel() for p in original.parameters(recurse=compiled)),
    )
    layers.append((layer, module))
    if compiled:
        return
    for child_name, child in module.named_children():
        _describe(child, f"{name}.{child_name}" if name else child_name, layer.id, layers, seen)


def _type_name(module: nn.Module) -> str:
    """The name of the module's class, not of the class that sharding (FSDP2) derives from it."""
    bases = {base.__name__: base for base in type(module).__bases__}
    if bases.pop("FSDPModule", None) is not None and bases:
        return next(iter(bases))
    return type(module).__name__


def _shapes(value: object, most: int = 8) -> list[list[int]]:
    """The shapes of the tensors in nested tuples, lists and dicts, up to a maximum number."""
    if isinstance(value, torch.Tensor):
        return [list(value.shape)]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
    shapes: list[list[int]] = []
    for part in parts:
        shapes += _shapes(part, most - len(shapes))
        if len(shapes) >= most:
            break
    return shapes[:most]


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
    """Marks every module call of `model`, one or several by name, while it is entered as a context manager.

    Set `step` to the number of the step being recorded, or to None while nothing is recorded: ranges are
    opened in both cases, but calls are kept only for recorded steps. Raises `UsageError` if a module is compiled in
    place.
    """

    def __init__(self, model: nn.Module | Mapping[str, nn.Module], marks: Marks) -> None:
        self.step: int | None = None
        pairs = describe_layers(model)
        self.layers = [layer for layer, _ in pairs]
        self.range_kind = marks.kind
        self._open_range = marks.layer
        self._modules = [module for _, module in pairs]
        self._inputs: dict[int, list[list[int]]] = {}
        self._outputs: dict[int, list[list[int]]] = {}
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
        layers = [
            msgspec.structs.replace(
                layer, input_shapes=self._inputs.get(layer.id), output_shapes=self._outputs.get(layer.id)
            )
            for layer in self.layers
        ]
        return LayerTable(layers=layers, calls=calls)

    def _hook(self, layer: Layer, module: nn.Module) -> tuple[RemovableHandle, RemovableHandle]:
        # While torch.compile reads the module, the hooks do nothing: a range would break the graph at every layer.
        def enter(_module: nn.Module, inputs: object, named: object) -> None:
            if torch.compiler.is_compiling():
                return
            if self.step is not None and layer.id not in self._inputs:
                self._inputs[layer.id] = _shapes((inputs, named))
            self._enter(layer)

        def leave(_module: nn.Module, _inputs: object, output: object) -> None:
            if torch.compiler.is_compiling():
                return
            self._leave(layer)
            if self.step is not None and layer.id not in self._outputs:
                self._outputs[layer.id] = _shapes(output)

        # First in and last out, so that the user's own hooks count as part of the layer; and always called,
        # because checkpointing ends a recomputation early by raising.
        return (
            module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True),
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
        # A global pre-hook that raises skips `enter` but not `leave`: then there is no call of ours to close.
        # The first test is for speed: nearly always the call on top ends.
        if not (stack and stack[-1].layer is layer) and not any(call.layer is layer for call in stack):
            return
        while stack:
            call = stack.pop()
            call.range.__exit__(None, None, None)
            call.end_sequence = _get_sequence_nr()
            if call.layer is layer:
                return
