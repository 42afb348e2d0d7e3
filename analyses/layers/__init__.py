"""Which layer of the model takes the time: device time along the tree of layers (DEFINITIONS §5)."""

from tracekit.analyses.layers.analysis import CLASSES, TABLES, Layers, has_layers, layers, most_own_time

__all__ = ["CLASSES", "TABLES", "Layers", "has_layers", "layers", "most_own_time"]
