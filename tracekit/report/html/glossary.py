"""The words of the report in a sentence each; the documentation has the exact definitions."""

from __future__ import annotations

from typing import Final

__all__ = ["GLOSSARY"]

GLOSSARY: Final = (
    (
        "activity",
        "One thing that a device did: a kernel, a copy or a fill. Without a device, the own time of an operator.",
    ),
    (
        "window",
        "The time that is analysed: from the first to the last activity of the selected steps, or of the trace.",
    ),
    ("utilisation", "The part of the window in which the device did anything: kernels, copies or fills."),
    (
        "kernel utilisation",
        "The part of the time of all steps in which a kernel ran; copies and fills do not count. "
        "TensorBoard's profiler calls it GPU utilization.",
    ),
    ("exposed", "Communication or copies during which the device computed nothing, so that they cost time."),
    ("overlap", "The part of the communication that ran beside computation, and so is hidden."),
    (
        "host wait",
        "A gap before an activity that the host launched only after the stream had run dry: the host was late.",
    ),
    (
        "kernel wait",
        "A gap below 30 µs before an activity that was queued already: the price of starting a kernel.",
    ),
    (
        "other wait",
        "A longer gap before an activity that was queued already; another stream's event is a usual reason.",
    ),
    (
        "queue",
        "What the host has launched on a stream and what has not started yet. An empty queue lets the device wait.",
    ),
    (
        "launch-bound",
        "An activity shorter than the call that launched it, so that the host cannot keep ahead.",
    ),
    (
        "layer",
        "A module of the model, or a range around part of it. Names in angle brackets stand for work in no layer: the "
        "loss, the optimizer, the data.",
    ),
    ("own", "Without the layers below, or the operators called inside."),
    ("up to", "The time that a remedy could save at most inside the window."),
)
"""Word and meaning, related words together."""
