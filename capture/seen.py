"""What is seen of code that trains by itself: whose turn ends a step, and the models that it calls, by name."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Final

from torch import nn

from tracekit.capture.marks.instrument import describe_layers
from tracekit.errors import UsageError

__all__ = ["Models", "Turns", "has_parameters"]

LONGEST_ROW: Final = 5
"""Of one that has more turns in a row each is a step: a critic usually has five between two updates of its generator. What comes
more seldom, or never, is not waited for."""


class Turns:
    """Objects that take turns, as the optimizers of two networks do: a step ends where their order repeats.

    The first round is over when the one that began it comes again behind another. It shows which one comes last in a round,
    and how often. What a round has of the others does not matter. Until then, and of one alone, each turn is a step.
    """

    def __init__(self) -> None:
        self.known = False
        self._first: Callable[[], object] = _nothing
        self._last, self._before = self._first, self._first
        self._times, self._row = 1, 0
        self._round: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()

    def ends(self, one: object) -> bool:
        """Count a turn of `one`; True if it ends a step. `known` is then whether there was a whole round.

        >>> turns, critic, generator = Turns(), nn.ReLU(), nn.ReLU()
        >>> [turns.ends(one) for one in 3 * (critic, critic, generator)]
        [True, True, False, False, False, True, False, False, True]
        """
        before = self._before()
        self._row = self._row + 1 if one is before else 1
        if before is not None and one is not before and one is self._first() and one in self._round:
            self._settle(before, self._round.get(before, 1))
        elif self._row > LONGEST_ROW:
            self._settle(one, 1)
        if not self._round:
            self._first = weakref.ref(one)
        self._before = weakref.ref(one)
        self._round[one] = self._round.get(one, 0) + 1
        if not self.known:
            return len(self._round) == 1
        if one is not self._last() or self._round[one] < self._times:
            return False
        self._round.clear()
        return True

    def _settle(self, last: object, times: int) -> None:
        """A round ends with the turn of this number of `last`; the next one begins now."""
        self.known, self._times = True, times
        self._last = weakref.ref(last)
        self._round.clear()


def _nothing() -> object:
    """Stands for an object that is not there, as what is left of one that is gone does."""
    return None


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
