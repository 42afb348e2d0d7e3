"""The digest of a run: what a comparison needs of it, and no events."""

from tracekit.digest.make import digest_of
from tracekit.digest.model import NO_STEP, VERSION, Digest, Facts

__all__ = ["NO_STEP", "VERSION", "Digest", "Facts", "digest_of"]
