"""Opening a trace file as a stream of plain bytes: plain, gzip, zstd or a zip archive, with bounded growth and one-line errors."""

from __future__ import annotations

import io
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Final, cast
from zipfile import BadZipFile, ZipFile

import zstandard
from isal import igzip_lib, isal_zlib

from tracekit.errors import UnreadableTraceError, reason_of
from tracekit.facts.capture_names import MANIFEST_FILE
from tracekit.files import roomy_place
from tracekit.limits import Limits

__all__ = ["BLOCK_BYTES", "Source"]

BLOCK_BYTES: Final = 8 << 20
"""How much plain JSON is decoded at once: large enough to be fast, small enough to stay in the processor's cache."""
_INFLATED_BYTES: Final = 2 * BLOCK_BYTES
"""How much is decompressed at once. Larger plain blocks take more memory, since several wait for their turn, and gain little."""

_PIECE_BYTES: Final = 64 << 10
"""So much of a packed file is unpacked at once, since of what holds damage nothing comes out."""

_GZIP_MAGIC: Final = b"\x1f\x8b"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZIP_MAGIC: Final = b"PK\x03\x04"
_PACKED_ERRORS: Final = (
    BadZipFile,
    zstandard.ZstdError,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
)
"""A RuntimeError of zipfile is a member that needs a password."""

_TAR_MAGIC: Final = b"ustar"
_TAR_AT: Final = 257
_SQLITE_MAGIC: Final = b"SQLite format 3"
_NCU: Final = (b'"ID","Process ID"', b"==PROF==")
"""How the output of `ncu --csv` begins, alone and with its log."""
_FOREIGN: Final = (
    (b"\x89PNG", "it is a PNG image"),
    (b"\xfd7zXZ", "it is compressed with xz; decompress it first (xz -d)"),
    (b"BZh", "it is compressed with bzip2; decompress it first (bzip2 -d)"),
    (b"PK\x05\x06", "the zip archive is empty"),
    (_SQLITE_MAGIC, "it is an SQLite database"),
    (b"%PDF", "it is a PDF document"),
    (b"\x7fELF", "it is a program"),
    *((signature, "it is an Nsight Compute table, not a trace") for signature in _NCU),
)
_BESIDE: Final = re.compile(r"^__MACOSX/|(^|/)\.[^/]*$")
"""What a file manager puts into an archive."""
_RESCUE_STEP: Final = 256
_INFLATE_ERROR: Final = cast("type[Exception]", isal_zlib.error)  # the stubs declare it as an instance
_REMEDY: Final = "give a PyTorch-profiler trace (.json or .json.gz)"


class Source:
    """One input file, open from the beginning; iterate over `blocks()` once.

    `size` is the size of the file in bytes, `plain_bytes` the number of bytes unpacked so far. `compressed` is true for
    compressed data; `truncated` and `damaged` say how these data ended, once they have ended.
    """

    def __init__(self, path: str | os.PathLike[str], limits: Limits | None = None) -> None:
        """Open the file. Raises UnreadableTraceError if it is missing, unreadable, empty or not a trace."""
        self.path = Path(path)
        self.limits = limits or Limits()
        self.plain_bytes = 0
        self.truncated = self.damaged = self._packed = False
        try:
            if self.path.is_dir():
                raise UnreadableTraceError(
                    "it is a directory", path=self.path, remedy="give one trace file, or several"
                )
            self._file = self._outer = self.path.open("rb")
            self.size = os.fstat(self._file.fileno()).st_size
            magic = self._unpack(self._file.peek(16)[:16])  # a pipe can be read only once
        except FileNotFoundError as error:
            raise UnreadableTraceError("no such file", path=self.path, remedy="check the path") from error
        except PermissionError as error:
            raise UnreadableTraceError(
                "no permission to read it", path=self.path, remedy="chmod +r it"
            ) from error
        except (OSError, ValueError) as error:
            raise UnreadableTraceError(f"it cannot be opened ({reason_of(error)})", path=self.path) from error
        self._gzipped = magic.startswith(_GZIP_MAGIC)
        self.compressed = self._gzipped or self._packed
        try:
            if not magic:
                fault = "the archive holds no data" if self._packed else "the file is empty"
                raise UnreadableTraceError(fault, path=self.path, remedy="copy or capture it again")
            self.refuse_foreign(magic)
        except UnreadableTraceError:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        self._outer.close()

    def _unpack(self, magic: bytes) -> bytes:
        """Put what the file contains in its place if it is packed, and return the first bytes of that."""
        self._packed = magic.startswith((_ZSTD_MAGIC, _ZIP_MAGIC))
        if not self._packed:
            return magic
        if (
            magic.startswith(_ZIP_MAGIC) and not self._outer.seekable()
        ):  # the list of its files stands at the end
            self._keep_on_disk()
        packed = self._outer
        try:
            if magic.startswith(_ZSTD_MAGIC):
                plain: object = zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True)
            else:
                plain = self._only_member(ZipFile(packed))
            self._file = io.BufferedReader(cast("io.RawIOBase", plain))
            return self._file.peek(16)[:16]
        except _PACKED_ERRORS as error:
            packed.close()
            fault = f"the archive is damaged or cut short ({error})"
            raise UnreadableTraceError(fault, path=self.path, remedy="copy it again, or unpack it") from error

    def _keep_on_disk(self) -> None:
        """Put a temporary file with the same bytes in the place of a pipe."""
        with self._outer as pipe:
            self._file = self._outer = cast("io.BufferedReader", tempfile.TemporaryFile(dir=roomy_place()))  # noqa: SIM115
            shutil.copyfileobj(pipe, self._outer, BLOCK_BYTES)
        self.size = self._outer.tell()

    def _only_member(self, archive: ZipFile) -> IO[bytes]:
        files = [one for one in archive.infolist() if not one.is_dir() and not _BESIDE.search(one.filename)]
        members = [one for one in files if PurePosixPath(one.filename).name != MANIFEST_FILE] or files
        if len(members) != 1:
            self._outer.close()
            fault = f"it is a zip archive of {len(members)} files"
            raise UnreadableTraceError(fault, path=self.path, remedy="unpack it first")
        return archive.open(members[0])

    def refuse_foreign(self, head: bytes) -> None:
        """Raise UnreadableTraceError for the first bytes of a file of another known kind."""
        if head[_TAR_AT:].startswith(_TAR_MAGIC):
            raise UnreadableTraceError("it is a tar archive", path=self.path, remedy="unpack it first")
        for signature, fault in _FOREIGN:
            if head.startswith(signature):
                raise UnreadableTraceError(fault, path=self.path, remedy=self._remedy(signature))

    def _remedy(self, signature: bytes) -> str:
        if signature in _NCU:
            return "give a trace of the program, and this table with --ncu"
        if signature != _SQLITE_MAGIC:
            return _REMEDY
        # A database is read here and there, not from its beginning to its end.
        return "unpack it first" if self._packed or self._gzipped else "save it to a file, and give that"

    def blocks(self) -> Iterator[bytes]:
        """The plain bytes in blocks of about `BLOCK_BYTES`; a pipe, or a gzip of many members, gives small pieces.

        Raises UnreadableTraceError for a file that grows beyond the limits.
        """
        crumbs: list[bytes] = []
        size = 0
        for block in (
            self._inflate() if self._gzipped else self._read(_PIECE_BYTES if self._packed else BLOCK_BYTES)
        ):
            crumbs.append(block)
            size += len(block)
            if not self._gzipped:
                self.plain_bytes += len(block)
            if self._packed:
                self._guard(self.size)
            if size >= BLOCK_BYTES // 4:
                yield b"".join(crumbs) if len(crumbs) > 1 else block
                crumbs, size = [], 0
        if crumbs:
            yield b"".join(crumbs)

    def behind(self, rest: bytes, blocks: Iterator[bytes], spare: list[bytearray]) -> tuple[bytearray, int]:
        """What is left of a block and the next of `blocks` behind it, which is empty at the end, in one of the spare texts; and
        how many bytes they are together.

        Memory that is used again costs far less than fresh memory, whose every page the system has to clear. A plain file is
        read into its place. Raises UnreadableTraceError.
        """
        plain = not self._gzipped and not self._packed
        block = b"" if plain else next(blocks, b"")
        most = len(rest) + (BLOCK_BYTES if plain else len(block))
        text = spare.pop() if spare else bytearray()
        if len(text) < most:
            text = bytearray(most + BLOCK_BYTES // 8)
        text[: len(rest)] = rest
        with memoryview(text)[len(rest) : most] as place:
            if not plain:
                place[:] = block
                return text, most
            read = self._read_into(place)
        self.plain_bytes += read
        return text, len(rest) + read

    def _read_into(self, place: memoryview) -> int:
        try:
            return self._file.readinto(place)
        except OSError as error:
            raise UnreadableTraceError(f"reading failed ({reason_of(error)})", path=self.path) from error

    def _read(self, size: int) -> Iterator[bytes]:
        while True:
            try:
                block = self._file.read(size)
            except OSError as error:
                raise UnreadableTraceError(f"reading failed ({reason_of(error)})", path=self.path) from error
            except _PACKED_ERRORS as error:
                self.damaged = True
                if self.plain_bytes == 0:
                    fault = f"the compressed data are damaged ({error})"
                    raise UnreadableTraceError(fault, path=self.path, remedy="copy it again") from error
                return
            if not block:
                return
            yield block

    def _inflate(self) -> Iterator[bytes]:
        """Decompressed blocks; several gzip members in a row are one stream."""
        inflater = _inflater()
        read = 0
        fresh = True
        for raw in self._read(_INFLATED_BYTES // 16):
            read += len(raw)
            data = raw
            while data or not (inflater.needs_input or inflater.eof):
                try:
                    plain = inflater.decompress(data, _INFLATED_BYTES)
                except (_INFLATE_ERROR, EOFError, ValueError) as error:
                    self.damaged = True
                    rescued = _rescue(data) if self.plain_bytes == 0 else b""
                    self.plain_bytes += len(rescued)
                    if self.plain_bytes == 0:
                        raise UnreadableTraceError(
                            f"the gzip data are damaged ({error})", path=self.path, remedy="copy it again"
                        ) from error
                    yield rescued
                    return
                fresh = False
                if plain:
                    self.plain_bytes += len(plain)
                    self._guard(read)
                    yield plain
                data = b""
                if inflater.eof:
                    data = inflater.unused_data.lstrip(b"\0")
                    inflater = _inflater()
                    fresh = True
                    if data and not data.startswith(_GZIP_MAGIC[: len(data)]):
                        return  # padding or a signature after the last member
        self.truncated = not fresh
        if self.plain_bytes == 0:
            fault = "the gzip data end before the first byte" if self.truncated else "the file is empty"
            raise UnreadableTraceError(fault, path=self.path, remedy="copy or capture it again")

    def _guard(self, read: int) -> None:
        limits = self.limits
        if not limits.enforced:
            return
        ratio = self.plain_bytes / max(read, 1)
        too_dense = self.plain_bytes > limits.free_bytes and ratio > limits.max_ratio
        if too_dense or self.plain_bytes > limits.max_bytes:
            raise UnreadableTraceError(
                f"it grows {ratio:,.0f} times when decompressed ({self.plain_bytes / 1e9:.1f} GB so far)",
                path=self.path,
                remedy="if you trust it, pass --no-size-limit",
            )


def _rescue(data: bytes) -> bytes:
    """The plain bytes before the damage in a damaged gzip stream; a wrong checksum loses nothing."""
    inflater = zlib.decompressobj(wbits=31)
    parts = []
    for at in range(0, len(data), _RESCUE_STEP):
        step, before = data[at : at + _RESCUE_STEP], inflater.copy()
        try:
            parts.append(inflater.decompress(step))
        except zlib.error:
            parts.append(_byte_by_byte(before, step))
            break
    return b"".join(parts)


def _byte_by_byte(inflater: zlib._Decompress, step: bytes) -> bytes:
    parts = []
    for position in range(len(step)):
        try:
            parts.append(inflater.decompress(step[position : position + 1]))
        except zlib.error:  # noqa: PERF203 - at most 256 bytes
            break  # the damage begins here; the bytes before it are kept
    return b"".join(parts)


def _inflater() -> igzip_lib.IgzipDecompressor:
    return igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
