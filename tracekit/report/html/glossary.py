"""The words of the report in a sentence each; the documentation has the exact definitions."""

from __future__ import annotations

from typing import Final

__all__ = ["GLOSSARY"]

_TEXTS: Final = """
activity: A kernel, a copy or a fill on a device. Without a device, the self time of an operator.
window: The analysed time: from the first to the last activity of the selected steps, or of the trace.
utilisation: The part of the window in which the device ran kernels, copies or fills.
kernel utilisation: The part of the time of all steps in which a kernel ran; copies and fills do not count. TensorBoard's profiler calls it GPU utilization.
exposed: Communication or copies that ran while the device computed nothing, so they cost time.
overlap: The part of the communication that ran at the same time as computation, which hides it.
host wait: A gap before an activity that the host launched only after the stream had run dry: the host was late.
kernel wait: A gap below 30 µs before an activity that was already queued: the time to start a kernel.
other wait: A longer gap before an activity that was already queued. The usual cause is an event of another stream.
queue: The activities that the host has launched on a stream and that have not started. If it is empty, the stream waits.
launch-bound: An activity is launch-bound if it is shorter than its launch call. The host then cannot stay ahead of the device.
layer: A module of the model, or a range around part of it. Names in angle brackets stand for work in no layer: the loss, the optimizer, the data.
own: The time of a layer without the layers below it, or of an operator without the operators inside it.
up to: The most time in the window that the advice could save.
"""

GLOSSARY: Final = [line.split(": ", 1) for line in _TEXTS.strip().splitlines()]
"""Word and meaning, related words together."""
