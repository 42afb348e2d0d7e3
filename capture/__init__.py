"""Recording: from a training loop to a trace whose device time can be given to layers.

`tracekit.capture.run.run` records a workload of the registry, `tracekit.capture.session.session` records a
loop of your own. This is the only part of tracekit that uses torch, and importing this package does not
import it.
"""

from __future__ import annotations

__all__: list[str] = []
