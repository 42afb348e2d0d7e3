"""The environment of a capture: the device, the libraries, the state of the code; no name of the machine or its user."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import tracekit
from tracekit.capture.device import device_name

__all__ = ["GIT_SECONDS", "describe_machine", "git_revision"]

_LIBRARIES = ("transformers", "timm", "torchvision", "nvtx", "numpy")
GIT_SECONDS = 5
_DRIVER = Path("/proc/driver/nvidia/version"), Path("/sys/module/nvidia/version")
_RELEASE = re.compile(r"\b\d{3}\.\d+(\.\d+)*\b")


def describe_machine(device: torch.device) -> dict[str, Any]:
    """The fields of a manifest about the environment, by name."""
    return {
        "tracekit_version": tracekit.__version__,
        "device": device.type,
        "device_name": device_name(device),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu_threads": torch.get_num_threads(),
        "versions": _versions(device),
        "git_revision": git_revision(),
    }


def _versions(device: torch.device) -> dict[str, str]:
    versions = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for name in _LIBRARIES:
        if name in sys.modules:
            with suppress(metadata.PackageNotFoundError):
                versions[name] = metadata.version(name)
    built_for = {"cuda": torch.version.cuda, "rocm": torch.version.hip}
    versions.update({name: version for name, version in built_for.items() if version})
    if device.type == "cuda" and torch.version.cuda:
        versions["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
        if (driver := _driver()) is not None:
            versions["nvidia driver"] = driver
    return versions


def _driver() -> str | None:
    """The release of NVIDIA's driver, such as 580.95.05, as its kernel module tells it; None if it does not."""
    for file in _DRIVER:
        with suppress(OSError):
            if release := _RELEASE.search(file.read_text(encoding="utf-8", errors="replace")):
                return release[0]
    return None


def git_revision() -> str | None:
    """The commit of the current folder, followed by `+` if files differ; None outside git."""
    revision = _git("rev-parse", "HEAD")
    if not revision:
        return None
    return revision + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *words], capture_output=True, text=True, check=False, timeout=GIT_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return None  # no git, or a repository on a disk that does not answer
    return done.stdout.strip() if done.returncode == 0 else None
