"""Predict times of runs from those that were measured: tables of runs, models fitted to them, and how well each foretells others."""

from __future__ import annotations

__all__: list[str] = []
