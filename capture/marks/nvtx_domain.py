"""Ranges for Nsight and other NVTX tools, in their own domain; none if no tool is attached."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

__all__ = ["DOMAIN", "NvtxDomain"]

DOMAIN: Final = "tracekit"


class NvtxDomain:
    """The domain, with one category each for steps, phases and layers.

    The `nvtx` package returns a stand-in for the domain if no tool is attached or NVTX_DISABLE is set. Then, and
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
        """True if a tool is attached."""
        return self._domain is not None

    def range(self, name: str, category: str) -> AbstractContextManager[object]:
        """A push/pop range on the calling thread; its attributes are made once per name."""
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
