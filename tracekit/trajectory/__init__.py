"""How performance and arithmetic intensity move along a setting, what each move means, and which configuration is best."""

from tracekit.trajectory.labels import ABOVE, ASSUMED_SPREAD, KEYS, Point, Segment, segment_of
from tracekit.trajectory.recommend import Prediction, Recommendation, Trial, recommend
from tracekit.trajectory.runs import Run, Swept, read_runs
from tracekit.trajectory.trajectories import Trajectories, described, trajectories_of, varied_keys

__all__ = [
    "ABOVE",
    "ASSUMED_SPREAD",
    "KEYS",
    "Point",
    "Prediction",
    "Recommendation",
    "Run",
    "Segment",
    "Swept",
    "Trajectories",
    "Trial",
    "described",
    "read_runs",
    "recommend",
    "segment_of",
    "trajectories_of",
    "varied_keys",
]
