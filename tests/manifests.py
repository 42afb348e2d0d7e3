"""Manifests as captures write them, of which a test says only what it is about."""

from __future__ import annotations

from tracekit.manifest import CaptureOptions, Manifest


def manifest(**known: object) -> Manifest:
    """A manifest of no run on a processor, with what is known of it."""
    fields: dict[str, object] = {
        "tracekit_version": "0",
        "workload": "mine",
        "options": CaptureOptions(),
        "config": {},
        "parameters": 1,
        "layers": 1,
        "device": "cpu",
        "device_name": "",
        "platform": "",
        "cpu_threads": 1,
        "versions": {},
        "layer_ranges": "plain",
        "runs": [],
    }
    return Manifest(**{**fields, **known})  # type: ignore[arg-type]
