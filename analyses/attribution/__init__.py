"""From every device activity to its launch, operators, layer and phase (DEFINITIONS §5)."""

from tracekit.analyses.attribution.attribute import (
    METHODS,
    UNATTRIBUTED,
    Attribution,
    attributed,
    attribution,
)

__all__ = ["METHODS", "UNATTRIBUTED", "Attribution", "attributed", "attribution"]
