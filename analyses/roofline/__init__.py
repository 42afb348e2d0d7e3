"""How close the work comes to what the device can do."""

from tracekit.analyses.roofline.analysis import TABLES, Roofline, roofline
from tracekit.analyses.roofline.levels import LEVEL_SCHEMA

__all__ = ["LEVEL_SCHEMA", "TABLES", "Roofline", "roofline"]
