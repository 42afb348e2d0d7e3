"""Synthetic traces with planted truth, and brute-force oracles; nothing in here uses tracekit.

planted = generate(seed=1, steps=3, devices=2)       # the truth: .activities, .spans, .steps, .gaps, …
path = write(planted, tmp_path / "trace.json.gz", "kineto")
expected = oracle.breakdown(planted.activities, planted.window, device=0)
"""

from __future__ import annotations

from . import damage, oracle
from .derive import derive, parse
from .generate import generate
from .layered import SOURCES, Layered, Place, Shape, layered
from .model import INCIDENTS, Activity, Config, Gap, HostSpan, Planted, Step
from .names import HOSTILE
from .shapes import random_activities, random_spans
from .write import STYLES, Style, dump, dump_with_ends, file_events, rename, write

__all__ = [
    "HOSTILE",
    "INCIDENTS",
    "SOURCES",
    "STYLES",
    "Activity",
    "Config",
    "Gap",
    "HostSpan",
    "Layered",
    "Place",
    "Planted",
    "Shape",
    "Step",
    "Style",
    "damage",
    "derive",
    "dump",
    "dump_with_ends",
    "file_events",
    "generate",
    "layered",
    "oracle",
    "parse",
    "random_activities",
    "random_spans",
    "rename",
    "write",
]
