"""Placeholder while the package is laid out."""
