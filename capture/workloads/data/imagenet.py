"""Facts of ImageNet that several workloads share."""

from __future__ import annotations

from typing import Final

__all__ = ["DEVIATION", "MEAN"]

MEAN: Final = (0.485, 0.456, 0.406)
DEVIATION: Final = (0.229, 0.224, 0.225)
"""Of the red, green and blue of its images, from 0 to 1."""
