"""torch's profiler, as captures use it: for one cycle of a schedule."""

from __future__ import annotations

from torch.profiler import profile

__all__ = ["OneCycle"]


class OneCycle(profile):
    """torch's profiler for a schedule that is not repeated.

    Some versions (2.10, 2.11) warn at each start that a further cycle would forget the events of the one before, unless
    `acc_events` is set. Here is no further cycle. If it stayed set, all events would become Python objects at the end.
    """

    def prepare_trace(self) -> None:
        """Make the profiler ready, as torch does, without the warning."""
        self.acc_events = True
        super().prepare_trace()
        if self.profiler is not None:
            self.profiler.acc_events = False
