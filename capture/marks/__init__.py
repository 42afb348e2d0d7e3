"""Ranges for layers and phases, and times of steps."""
