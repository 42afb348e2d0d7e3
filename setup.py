"""The native parts, which pyproject.toml cannot describe; all else stands there."""

from __future__ import annotations

import sys
import sysconfig

from setuptools import Extension, setup

# One build serves every Python from 3.10 on; interpreters without the stable interface do without.
STABLE = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")

setup(
    ext_modules=[
        Extension(
            "tracekit._native.decoder",
            ["tracekit/_native/decoder.c"],
            depends=[f"tracekit/_native/{name}.h" for name in ("column", "events", "scan")],
            py_limited_api=True,
            optional=True,  # without a compiler the package is installed without it
        ),
        Extension(
            "tracekit._native.nesting",
            ["tracekit/_native/nesting.c"],
            py_limited_api=True,
            optional=True,
        ),
    ]
    if STABLE
    else [],
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if STABLE else {},
)
