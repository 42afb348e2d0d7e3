"""Ranges for Nsight and other NVTX tools, in a domain of their own; nothing at all when no tool is attached."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
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
        if self._domain is None:
            return nullcontext()
        key = name, category
        if key not in self._attributes:
            self._attributes[key] = self._domain.get_event_attributes(message=name, category=category)
        return _Pushed(self._domain, self._attributes[key])


class _Pushed:
    __slots__ = ("_attributes", "_domain")

    def __init__(self, domain: Any, attributes: Any) -> None:
        self._domain, self._attributes = domain, attributes

    def __enter__(self) -> None:
        self._domain.push_range(self._attributes)

    def __exit__(self, *_: object) -> None:
        self._domain.pop_range()
