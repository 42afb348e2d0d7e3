"""Collectives and point-to-point communication: names, sizes of elements, and the bytes that each call moves.

The factors from algorithm to bus bandwidth are those of nccl-tests (its document `PERFORMANCE`): with them, the figure of every
collective compares with the rate of the links.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from tracekit.facts.units import NS_PER_US

__all__ = [
    "CLOCKS_NS",
    "ELEMENT_BYTES",
    "MESSAGES",
    "MPI_CALL",
    "PEER_RANGE",
    "SHARDED_RANGE",
    "SYNCHRONISING",
    "algorithm_of",
    "bus_factor",
    "collective_name",
    "protocol_of",
]

ELEMENT_BYTES: Final = {
    **dict.fromkeys(("Double", "Long", "float64", "int64", "double", "long", "long int", "ComplexFloat"), 8),
    **dict.fromkeys(("Float", "Int", "float32", "int32", "float", "int"), 4),
    **dict.fromkeys(("Half", "BFloat16", "Short", "float16", "bfloat16", "int16", "c10::Half", "c10::BFloat16", "short"), 2),
    **dict.fromkeys(("Byte", "Char", "Bool", "byte", "uint8", "int8", "bool", "signed char", "unsigned char"), 1),
    **dict.fromkeys(("Float8_e4m3fn", "Float8_e5m2", "c10::Float8_e4m3fn", "c10::Float8_e5m2"), 1),
}  # fmt: skip
"""Bytes of one element, by the type as PyTorch and NCCL write it."""

_NAMES: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), name)
    for pattern, name in (
        (r"barrier", "barrier"),
        (r"all_?reduce|cross_device_reduce", "all_reduce"),
        (r"reduce_?scatter", "reduce_scatter"),
        (r"all_?gather", "all_gather"),
        (r"all_?(to|2)_?all", "all_to_all"),
        (r"broadcast|bcast", "broadcast"),
        (r"send_?recv", "send_recv"),
        (r"send", "send"),
        (r"recv", "recv"),
        (r"gather", "gather"),
        (r"scatter", "scatter"),
        (r"reduce(?!r)", "reduce"),
    )
)

SYNCHRONISING: Final = frozenset({"barrier", "all_reduce", "reduce_scatter", "all_gather", "all_to_all"})
"""No rank leaves one of these before every rank has come; a sender, a root or a leaf of the others may."""

CLOCKS_NS: Final = 100 * NS_PER_US
"""A rank may seem to leave a call so long before the last one has come; by more the clocks or the match are wrong."""

MESSAGES: Final = ("send", "recv")
"""The two calls of a message from one rank to another."""

MPI_CALL: Final = r"(?i)^P?MPI_I?((all)?reduce(_scatter(_block)?)?|(all)?gatherv?|scatterv?|alltoall[vw]?|bcast|barrier|[bsr]?send|recv|mrecv|sendrecv(_replace)?)$"
"""Calls of MPI that move data, or wait for all; not those that only prepare one (`MPI_Send_init`)."""

PEER_RANGE: Final = re.compile(r"^nccl:(send|recv) (\d{1,9})(?:->|<-)(\d{1,9})$")
"""Ranges of PyTorch around a send or a receive: the own number in the group, and that of the other rank."""

SHARDED_RANGE: Final = re.compile(r"^FSDP::(all_gather|post_backward_reduce) \((.+)\)$")
"""Ranges of FSDP around the collectives of one module, with its name."""

_ALGORITHM: Final = re.compile(r"_(RING|TREE|COLLNET(?:_DIRECT|_CHAIN)?|NVLS(?:_TREE)?|PAT)(?=_|\()")
_PROTOCOL: Final = re.compile(r"_(LL128|LL|SIMPLE)(?=_|\(|$)")


@cache
def collective_name(text: str) -> str | None:
    """Which collective a kernel, an operator, a range or a record names; None if it names none.

    >>> collective_name("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"), collective_name("_allgather_base")
    ('all_reduce', 'all_gather')
    >>> collective_name("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"), collective_name("c10d::alltoall_base_")
    ('send_recv', 'all_to_all')
    """
    return next((name for pattern, name in _NAMES if pattern.search(text)), None)


def algorithm_of(kernel: str) -> str | None:
    """NCCL's algorithm in the name of a kernel, in small letters.

    >>> algorithm_of("ncclKernel_AllReduce_TREE_LL128_Sum_float(ncclDevComm*)"), protocol_of("ncclKernel_AllReduce_TREE_LL128_Sum_float(ncclDevComm*)")
    ('tree', 'll128')
    """
    found = _ALGORITHM.search(kernel)
    return found[1].lower() if found else None


def protocol_of(kernel: str) -> str | None:
    """NCCL's protocol in the name of a kernel, in small letters."""
    found = _PROTOCOL.search(kernel)
    return found[1].lower() if found else None


def bus_factor(name: str, ranks: int) -> float | None:
    """What a link carries of each byte of a collective among so many ranks; None for one that moves no bytes.

    >>> bus_factor("all_reduce", 4), bus_factor("all_gather", 4), bus_factor("broadcast", 4)
    (1.5, 0.75, 1.0)
    """
    if name == "barrier" or ranks < 1:
        return None
    if name == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if name in _OWN_PART_STAYS else 1.0


_OWN_PART_STAYS: Final = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})
