"""Inferred steps: a repeated range, or a period in the sequence of launches (DEFINITIONS §1)."""
