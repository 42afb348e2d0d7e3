"""`ssd300`: the detector SSD on 300×300 images, with VGG-16 below it."""

from tracekit.capture.workloads.ssd300.workload import VARIANTS, Ssd300, build, build_model, example_batch

__all__ = ["VARIANTS", "Ssd300", "build", "build_model", "example_batch"]
