"""How much memory there is for a model, asked before it is allocated."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from tracekit.errors import OutOfMemoryError

__all__ = ["free_bytes", "require_bytes"]

_MEMINFO = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")


def free_bytes(device: torch.device) -> int | None:
    """Return the bytes that could be allocated on `device` now, None when the system does not tell.

    Of a CPU it is what Linux calls available (free, or cache that it would give back), at most what is left of the
    container's limit; elsewhere the free pages, or failing these all pages, of the machine.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    known = [value for value in (_host_bytes(), _group_bytes()) if value is not None]
    return min(known) if known else None


def require_bytes(needed: int, device: torch.device, *, what: str, remedy: str) -> None:
    """Raise `OutOfMemoryError` when `device` is known to have less than `needed` bytes free for `what`."""
    if device.type == "meta":
        return  # nothing is allocated there
    free = free_bytes(device)
    if free is not None and needed > free:
        raise OutOfMemoryError(
            f"{what} take {needed / 1e9:.1f} GB, and {device} has {free / 1e9:.1f} GB free", remedy=remedy
        )


def _host_bytes() -> int | None:
    if _MEMINFO.is_file():
        for line in _MEMINFO.read_text(encoding="ascii", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key == "MemAvailable":
                return int(value.split()[0]) * 1024
    known = getattr(os, "sysconf_names", {})  # no such thing on Windows
    for pages in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"):
        if pages in known and "SC_PAGE_SIZE" in known:
            return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
    return None


def _group_bytes() -> int | None:
    limit, used = _GROUP / "memory.max", _GROUP / "memory.current"
    if not (limit.is_file() and used.is_file()):
        return None
    text = limit.read_text(encoding="ascii").strip()
    return int(text) - int(used.read_text(encoding="ascii")) if text.isdigit() else None
