"""A rank's trace as a part of a merged one: its file, its name, and where its clock stands."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from tracekit.classes import dataclass
from tracekit.errors import UsageError
from tracekit.job import Job
from tracekit.readers import format_of

__all__ = ["Part", "parts_of"]


@dataclass(frozen=True, slots=True)
class Part:
    """A file to be merged."""

    path: Path
    at: int
    """The place of the rank in the job."""
    label: str
    """The rank, or the file's name if the rank is unknown; no two parts have the same."""
    offset_ns: int
    """What to add to a time in the file to get that of the merged trace: 0 for one part, the reference, and not less for the others, so that
    no time falls below 0.
    """
    zero_ns: int
    """The time of the job's zero in the merged trace."""


def parts_of(job: Job, ranks: Collection[int] | None = None) -> list[Part]:
    """The traces of a job, or of these ranks of it, in the order of their ranks. Raises UsageError for one that is no Chrome trace, or no file."""
    clocks = job.aligned.clocks.sort("at")["shift_ns"].to_list()
    chosen = [
        (at, member) for at, member in enumerate(job.ranks.members) if ranks is None or member.rank in ranks
    ]
    # A time in a file plus this is the time of the job.
    to_job = {at: clocks[at] - member.summary.facts.origin_ns for at, member in chosen}
    first = min(to_job.values())
    parts: list[Part] = []
    labels: set[str] = set()
    for at, member in chosen:
        path = Path(member.path)
        format_ = format_of(path)
        if not format_.is_chrome:
            raise UsageError(
                f"Perfetto does not read files of {format_.title}",
                path=path,
                remedy="merge traces of the PyTorch profiler; Nsight Systems opens its own reports together",
            )
        if not path.is_file():
            raise UsageError("it cannot be read twice", path=path, remedy="give a file")
        label = member.summary.facts.name if member.rank is None else f"rank {member.rank}"
        label = label if label not in labels else f"{label} ({len(parts)})"
        labels.add(label)
        parts.append(Part(path, at, label, to_job[at] - first, -first))
    return parts
