"""What is seen of code that trains by itself: whose turn ends a step, and the models that it calls, by name."""

from __future__ import annotations

import sys
import weakref
from types import FrameType

from torch import nn

from tracekit.capture.marks.instrument import describe_layers
from tracekit.errors import UsageError

__all__ = ["Models", "Turns", "has_parameters"]


class Turns:
    """Objects that take turns, as the optimizers of two networks do: the last one of a round ends a step."""

    def __init__(self) -> None:
        self._last: weakref.ref[object] | None = None
        self._round: weakref.WeakSet[object] = weakref.WeakSet()
        self._since: weakref.WeakSet[object] = weakref.WeakSet()
        self._settled = False

    def ends(self, one: object) -> bool:
        """Count a turn of `one`; True if it ends a step.

        >>> turns, (first, second) = Turns(), (nn.ReLU(), nn.ReLU())
        >>> [turns.ends(one) for one in (first, second, first, second, first, second)]
        [True, False, False, True, False, True]
        """
        last = None if self._last is None else self._last()
        self._settled |= one in self._round
        if (
            last is None or one is last or one in self._since
        ):  # in the last case the old one takes part no more
            self._lead(one)
            return True
        if self._settled:
            self._since.add(one)
        else:
            self._lead(one)
        return False

    def _lead(self, one: object) -> None:
        self._last = weakref.ref(one)
        self._round.add(one)
        self._since.clear()


class Models:
    """The modules that code calls itself, not from within another module: its models, losses and transforms."""

    def __init__(self) -> None:
        self._names: dict[nn.Module, str] = {}

    def add(self, module: nn.Module) -> bool:
        """Note a call from the code that called tracekit's caller; True if it is not the first of this module."""
        if module in self._names:
            return True
        self._names[module] = _name_in_code(module)
        return False

    def clear(self) -> None:
        """Forget them all."""
        self._names.clear()

    def named(self) -> dict[str, nn.Module]:
        """The outermost of the modules by name, those with parameters first.

        If only one has parameters, its name is empty, so that its layers have their own names alone. Those
        that were compiled in place are left out: they cannot be marked.
        """
        inner = {part for module in self._names for part in module.modules() if part is not module}
        outer = [module for module in self._names if module not in inner and _can_be_marked(module)]
        outer.sort(key=lambda module: not has_parameters(module))
        alone = sum(map(has_parameters, outer)) == 1
        named: dict[str, nn.Module] = {}
        for position, module in enumerate(outer):
            name = base = "" if alone and not position else self._names[module]
            number = 1
            while name in named:
                number += 1
                name = f"{base}_{number}"
            named[name] = module
        return named


def has_parameters(module: nn.Module) -> bool:
    """True if it is a model and not only a function, as losses and transforms are."""
    return next(module.parameters(), None) is not None


def _can_be_marked(module: nn.Module) -> bool:
    try:
        describe_layers(module)
    except UsageError:
        return False
    return True


def _name_in_code(module: nn.Module) -> str:
    """The variable or attribute by which the code that calls a module knows it; else the name of its class."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(("torch.", "tracekit.")):
        frame = frame.f_back
    if frame is not None:
        own = frame.f_locals.get("self")
        places = [frame.f_locals, getattr(own, "__dict__", {}), getattr(own, "_modules", {}), frame.f_globals]
        for place in places:
            for name, value in list(place.items()):
                if value is module and name != "self":
                    return str(name)
    return type(module).__name__
