"""How a program scales: its runs on 1, 2, 4 … ranks, what their efficiency is lost to, and the laws that their times follow."""

from tracekit.scaling.efficiency import Scaling, scaling_of
from tracekit.scaling.laws import HOPS, Fit, fit_messages, fit_steps
from tracekit.scaling.runs import PARTS, Run, runs_of, same_program

__all__ = [
    "HOPS",
    "PARTS",
    "Fit",
    "Run",
    "Scaling",
    "fit_messages",
    "fit_steps",
    "runs_of",
    "same_program",
    "scaling_of",
]
