"""The models: each fits a table of runs, predicts the times of others, explains itself, and is kept as JSON."""

from __future__ import annotations

__all__: list[str] = []
