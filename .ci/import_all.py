"""Import every module of the installed package, in an environment without torch.

Only `tracekit.capture` may need torch, and of it only what records; its registry, its manifest and the program's
command must import without.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path

import tracekit

WITHOUT_TORCH = {
    "tracekit.capture",
    "tracekit.manifest",
    "tracekit.capture.run",
    "tracekit.capture.workloads",
}


def main() -> None:
    """Import them; exit with the list of those that failed."""
    home = Path(tracekit.__file__).resolve().parent
    if "site-packages" not in home.parts:
        sys.exit(f"tracekit is imported from {home}, not from an installed wheel")
    imported, need_torch, failed = set(), [], []
    for module in pkgutil.walk_packages(tracekit.__path__, "tracekit.", onerror=lambda _name: None):
        try:
            importlib.import_module(module.name)
            imported.add(module.name)
        except ModuleNotFoundError as error:  # noqa: PERF203 - a hundred modules
            may = module.name.startswith("tracekit.capture.") and error.name == "torch"
            if (module.name, error.name) != ("tracekit.pytest_plugin", "pytest"):  # pytest itself imports it
                (need_torch if may else failed).append(f"{module.name} ({error})")
        except Exception as error:  # noqa: BLE001 - every failure is reported
            failed.append(f"{module.name} ({type(error).__name__}: {error})")
    failed += [f"{name} (needs torch)" for name in sorted(WITHOUT_TORCH - imported)]
    sys.stdout.write(f"{len(imported)} modules imported, {len(need_torch)} of tracekit.capture need torch\n")
    if failed or not imported:
        sys.exit("not imported: " + "; ".join(failed))


if __name__ == "__main__":
    main()
