"""The digest of a run: what a comparison needs of it, and no events."""

from typing import TYPE_CHECKING, Any

from tracekit.digest.model import NO_STEP, VERSION, Digest, Facts

if TYPE_CHECKING:
    from tracekit.digest.make import digest_of

__all__ = ["NO_STEP", "VERSION", "Digest", "Facts", "digest_of"]


def __getattr__(name: str) -> Any:
    """Import on first use what makes digests, with all its analyses: a report that was kept holds one."""
    if name == "digest_of":
        from tracekit.digest.make import digest_of  # noqa: PLC0415 - the point of this function

        return digest_of
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
