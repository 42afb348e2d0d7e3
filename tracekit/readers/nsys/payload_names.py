"""What NVTX ranges of an Nsight Systems export carry: where payloads stand, and how their bytes are to be read.

Sources: NVIDIA's public reference of the export schema (tables) and of NVTX's payload extension (types and flags). The
head of a payload in `binaryData` is not in the reference; it is as users of exports have described it, and a payload
whose head does not agree with its row and its schema is not read.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "COMMUNICATOR",
    "DATA_TABLE",
    "HEAD_BYTES",
    "MESSAGE_SIZE",
    "NAMES_TABLE",
    "NOT_IN_PLACE",
    "RANKS",
    "SCHEMA_ENTRIES",
    "SCHEMA_TABLE",
    "STATIC",
    "TYPES",
]

SCHEMA_TABLE: Final = "NVTX_PAYLOAD_SCHEMAS"
SCHEMA_ENTRIES: Final = "NVTX_PAYLOAD_SCHEMA_ENTRIES"

DATA_TABLE: Final = r"^DYNAMIC_NVTXPAYLOAD_DATATYPE_\d+_(\d+)_(\d+)$"
"""Tables of `nsys export --dynamic-tables=all`, one for each process, domain and schema, with a row per payload."""
NAMES_TABLE: Final = "NVTX_EXPORT_TRANSLATION"
"""`originalName` and `sanitizedName` of the columns of those tables."""

HEAD_BYTES: Final = 32
"""Domain, schema, size of the payload, and one more number; 8 bytes each, the least significant first."""

STATIC: Final = 1
"""The type of a schema whose entries lie at the same offsets in each payload."""

NOT_IN_PLACE: Final = 0b11_1110
"""Flags of an entry that is an array or lies elsewhere."""

TYPES: Final[dict[int, tuple[str, int]]] = {
    **{3: ("Int16", 2), 4: ("UInt16", 2), 5: ("Int32", 4), 6: ("UInt32", 4), 9: ("Int64", 8)},
    **{10: ("UInt64", 8), 11: ("Int8", 1), 12: ("UInt8", 1), 13: ("Int16", 2), 14: ("UInt16", 2)},
    **{15: ("Int32", 4), 16: ("UInt32", 4), 17: ("Int64", 8), 18: ("UInt64", 8), 19: ("Float32", 4)},
    **{20: ("Float64", 8), 22: ("UInt64", 8), 43: ("Float32", 4), 44: ("Float64", 8)},
}
"""Numbers by the code of their type, with their bytes: those that are as long on every platform, and `size_t` of 64 bits."""

COMMUNICATOR: Final = "NCCL communicator ID"
MESSAGE_SIZE: Final = "Message size [bytes]"
RANKS: Final = "No. of ranks"
"""The entries of NCCL's payloads."""
