"""`yolov5`: the detector YOLOv5 n, s, m, l or x, trained on COCO; `size` is the image's side in pixels."""

from tracekit.capture.workloads.yolov5.workload import VARIANTS, build, build_model, example_batch

__all__ = ["VARIANTS", "build", "build_model", "example_batch"]
