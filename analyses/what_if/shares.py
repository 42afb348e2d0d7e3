"""What the critical path consists of, in a few figures: how much of the window each resource determines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.analyses.graph.joint import joint_graph
from tracekit.analyses.graph.parts import stretches
from tracekit.analyses.scope import Scope
from tracekit.analyses.what_if.changes import Change
from tracekit.analyses.what_if.replay import replay
from tracekit.classify import ACTIVITY_CLASSES

__all__ = ["PathShares", "path_shares"]


@dataclass(frozen=True, slots=True)
class PathShares:
    """The critical path in ns: the work of devices on it by class, code of the host, and waits for neither."""

    compute_ns: int
    communication_ns: int
    memory_ns: int
    host_ns: int
    wait_ns: int

    @property
    def length_ns(self) -> int:
        """The length of the path."""
        return self.compute_ns + self.communication_ns + self.memory_ns + self.host_ns + self.wait_ns


def path_shares(scope: Scope, changes: Sequence[Change] = ()) -> PathShares:
    """What the critical path of a scope with a device consists of, after these changes; of a capture that measured its steps without
    recording, as long as they take then.

    >>> import tracekit
    >>> from tracekit.analyses.scope import select
    >>> shares = path_shares(select(tracekit.read("sample_traces/resnet50_gpu_fp32/trace.json.gz")))
    >>> shares.compute_ns > shares.host_ns
    True
    """
    joint = joint_graph([scope])
    played = replay(joint, changes)
    path = stretches(joint, played.lengths, played.times, int(played.times[-1]) - played.window)
    took, ran = path.end - path.start, path.activity >= 0
    classes = played.drafts[0].rows["class"].to_physical().to_numpy()[path.activity[ran]]
    by_class = np.bincount(classes, weights=took[ran], minlength=len(ACTIVITY_CLASSES))
    named = dict(zip(ACTIVITY_CLASSES, by_class.astype(np.int64).tolist(), strict=True))
    host = int(took[path.thread >= 0].sum())
    return PathShares(
        compute_ns=named["compute"],
        communication_ns=named["communication"],
        memory_ns=named["memory"],
        host_ns=host,
        wait_ns=int(took.sum()) - host - int(took[ran].sum()),
    )
