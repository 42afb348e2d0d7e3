"""Where traces lie."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = sorted((ROOT / "sample_traces").glob("*_cpu*/trace*.json.gz"))
GPU_SAMPLES = sorted((ROOT / "sample_traces").glob("*_gpu_*/trace*.json.gz"))
"""Ten times as large."""
PUBLIC = sorted((ROOT.parent / "shared" / "traces" / "kineto").glob("*.json.gz"))
"""Public traces beside the checkout; tests that use them skip when they are absent."""
PUBLIC_NSYS = sorted((ROOT.parent / "shared" / "traces" / "nsys").glob("*.sqlite"))
"""The same for exports of Nsight Systems."""
NEUSIGHT = ROOT.parent / "shared" / "data" / "neusight" / "e2e.csv"
"""Measured latencies of models on GPUs; the same."""
VTRAIN = ROOT.parent / "shared" / "data" / "vtrain" / "single_node.csv"
"""Measured iterations of transformers under tensor, data and pipeline parallelism; the same."""
LATTUADA = ROOT.parent / "shared" / "data" / "lattuada"
"""Training runs of networks on one to eight GPUs; the same."""
