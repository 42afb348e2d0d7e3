"""Ranges for Nsight and other NVTX tools, in a domain of their own; nothing at all when no tool is attached."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

__all__ = ["DOMAIN", "NvtxDomain"]

DOMAIN: Final = "tracekit"


class NvtxDomain:
    """The domain, with a category each for steps, phases and layers.

    The `nvtx` package gives a stand-in for the domain when no tool listens, or when NVTX_DISABLE is set: then, and
    without the package, `active` is false and every range is an empty context.
    """

    def __init__(self) -> None:
        self._domain: Any = None
        self._attributes: dict[tuple[str, str], Any] = {}
        try:
            import nvtx  # noqa: PLC0415 - 0.15 s, and an optional dependency
        except ImportError:
            return
        domain = nvtx.get_domain(DOMAIN)
        if type(domain).__name__ != "DummyDomain":
            self._domain = domain

    @property
    def active(self) -> bool:
        """Whether a tool listens."""
        return self._domain is not None

    def range(self, name: str, category: str) -> AbstractContextManager[object]:
        """A push/pop range on the calling thread; what describes it is made once a name."""
        return self._pushed(name, category) if self.active else nullcontext()

    @contextmanager
    def _pushed(self, name: str, category: str) -> Iterator[None]:
        key = name, category
        if key not in self._attributes:
            self._attributes[key] = self._domain.get_event_attributes(message=name, category=category)
        self._domain.push_range(self._attributes[key])
        try:
            yield
        finally:
            self._domain.pop_range()
