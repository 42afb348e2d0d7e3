"""Checks before a workload is built: valid choices, packages, memory. An error is one line."""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch

from tracekit.capture.workloads import WorkloadOptions
from tracekit.errors import MissingDependencyError, OutOfMemoryError, UsageError
from tracekit.facts.distribution import how_to_install

__all__ = [
    "CONTROL_GROUP",
    "MEMINFO",
    "free_bytes",
    "import_transformers",
    "refuse_data",
    "refuse_max_rows",
    "refuse_other_size",
    "require_bytes",
    "variant_or_default",
]

MEMINFO = Path("/proc/meminfo")
CONTROL_GROUP = Path("/sys/fs/cgroup")


def variant_or_default(workload: str, variant: str, variants: Sequence[str]) -> str:
    """Return `variant`, or the first of `variants` if it is empty.

    Raises `UsageError`, with similar variants or all of them, if there is no such variant.
    """
    if not variant:
        return variants[0]
    if variant in variants:
        return variant
    close = difflib.get_close_matches(variant, variants)
    remedy = f"did you mean {' or '.join(close)}?" if close else f"choose one of: {', '.join(variants)}"
    raise UsageError(f"{workload} has no variant {variant!r}", remedy=remedy)


def refuse_data(workload: str, options: WorkloadOptions) -> None:
    """Raise `UsageError` if real data are given to a workload that reads none."""
    if options.data is not None:
        raise UsageError(f"{workload} reads no real data", path=options.data, remedy="leave out --data")


def refuse_max_rows(workload: str, options: WorkloadOptions) -> None:
    """Raise `UsageError` if embedding rows are limited for a workload without tables."""
    if options.max_rows is not None:
        raise UsageError(f"{workload} has no embedding tables to cap", remedy="leave out --max-rows")


def refuse_other_size(workload: str, options: WorkloadOptions, size: int, unit: str) -> None:
    """Raise `UsageError` for a size other than the only size of the model."""
    if options.size not in (None, size):
        raise UsageError(
            f"{workload} takes {size} {unit}, not {options.size}",
            remedy=f"leave out --size, or set it to {size}",
        )


def import_transformers(*also: str) -> ModuleType:
    """Return the package transformers; `also` names further packages that the model needs.

    Raises `MissingDependencyError` if one of them cannot be imported.
    """
    # Models are made from their configuration alone; the library must not download anything else.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    for package in also:
        _import(package)
    return _import("transformers")


def _import(package: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingDependencyError(
            f"this workload needs {package}, which cannot be imported: {error}",
            remedy=how_to_install("hf"),
        ) from error


def free_bytes(device: torch.device) -> int | None:
    """Return the bytes that could be allocated on `device` now, None if the system does not report them.

    On a CPU this is the memory that Linux calls available (free, or reclaimable cache), at most the rest of the
    container's limit; on other systems the free pages, or else all pages, of the machine.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return min((value for value in (_host_bytes(), _group_bytes()) if value is not None), default=None)


def require_bytes(needed: int, device: torch.device, *, what: str, remedy: str) -> None:
    """Raise `OutOfMemoryError` if `device` is known to have less than `needed` bytes free for `what`."""
    if device.type == "meta":
        return  # nothing is allocated there
    free = free_bytes(device)
    if free is not None and needed > free:
        raise OutOfMemoryError(
            f"{what} take {needed / 1e9:.1f} GB, and {device} has {free / 1e9:.1f} GB free", remedy=remedy
        )


def _host_bytes() -> int | None:
    if MEMINFO.is_file():
        for line in MEMINFO.read_text(encoding="ascii", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key == "MemAvailable":
                return int(value.split()[0]) * 1024
    names = getattr(os, "sysconf_names", {})  # Windows has no such function
    for pages in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"):
        if pages in names and "SC_PAGE_SIZE" in names:
            return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
    return None


def _group_bytes() -> int | None:
    limit, used = CONTROL_GROUP / "memory.max", CONTROL_GROUP / "memory.current"
    if not (limit.is_file() and used.is_file()):
        return None
    text = limit.read_text(encoding="ascii").strip()
    return int(text) - int(used.read_text(encoding="ascii")) if text.isdigit() else None
