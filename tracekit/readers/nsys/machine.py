"""The machine and the recording of an Nsight Systems export; never who recorded it, where and how."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from tracekit.classes import dataclass
from tracekit.readers.nsys import vocabulary as words
from tracekit.readers.nsys.ids import process_of
from tracekit.readers.nsys.pages import ColumnKind
from tracekit.readers.nsys.tables import Tables, whole
from tracekit.trace import DeviceInfo

__all__ = ["Machine", "machine_of"]

_FEW: Final = 1 << 16
_MOST_WARPS: Final = 1 << 16
"""Of a multiprocessor, and threads of a warp: far more than any has, and few enough to multiply."""

_GPU_NUMBERS: Final = (
    *("id", "totalMemory", "memoryBandwidth", "clockRate", "smCount", "cuDevice"),
    *("maxWarpsPerSm", "threadsPerWarp", "computeMajor", "computeMinor"),
)
_PRODUCER: Final[Mapping[str, str]] = {
    "EXPORT_PRODUCT_NAME": "product",
    "EXPORT_PRODUCT_VERSION": "version",
    "EXPORT_SCHEMA_VERSION": "schema_version",
}
_METADATA: Final[Mapping[str, ColumnKind]] = {"name": "text", "value": "text"}
_VERSION_TEXT: Final = re.compile(r"[\w .+-]{1,64}")


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """The machine and the recording, as an export describes them."""

    producer: dict[str, str]  # versions of the program that wrote the file
    began_utc_ns: int | None  # the UTC of time 0; None if unknown, 0 if the times are UTC already
    gpus: dict[int, DeviceInfo]  # by their number
    ordinals: dict[tuple[int, int], int]  # (process, CUDA device) → number of the GPU
    ranks: dict[int, int]  # of MPI, by process

    @property
    def version(self) -> str:
        """The version of the schema; empty in old exports, which do not name it."""
        return self.producer.get("schema_version", "")


def machine_of(tables: Tables, named: dict[int, int]) -> Machine:
    """The machine as the tables describe it; `named` are ranks from the names of threads."""
    gpus, by_ordinal = _gpus(tables)
    used = whole(tables, "TARGET_INFO_CUDA_DEVICE", dict.fromkeys(("pid", "cudaId", "gpuId"), "int"), _FEW)
    ordinals = {(pid, cuda): gpu for pid, cuda, gpu in used.drop_nulls().rows()}
    if not ordinals:  # older exports number GPUs as CUDA does
        ordinals = {}
        gpus = {by_ordinal.get(number, number): info for number, info in gpus.items()}
    return Machine(
        producer=_producer(tables),
        began_utc_ns=_began(tables),
        gpus=gpus,
        ordinals=ordinals,
        ranks={**named, **_ranks(tables)},
    )


def _producer(tables: Tables) -> dict[str, str]:
    producer: dict[str, str] = {}
    for table in words.METADATA_TABLES:
        for name, value in whole(tables, table, _METADATA, _FEW).rows():
            if name in _PRODUCER and isinstance(value, str) and _VERSION_TEXT.fullmatch(value):
                producer[_PRODUCER[name]] = value
    return producer


def _began(tables: Tables) -> int | None:
    """The start of the recording, the origin of all times, unless the export converted them to UNIX times."""
    for table in words.METADATA_TABLES:
        if (words.NORMALISED_TIMES, "true") in whole(tables, table, _METADATA, _FEW).rows():
            return 0
    started = whole(tables, "TARGET_INFO_SESSION_START_TIME", {"utcEpochNs": "int"}, 1)
    value = started["utcEpochNs"][0] if started.height else None
    return value if isinstance(value, int) and 0 < value < 2**62 else None


def _gpus(tables: Tables) -> tuple[dict[int, DeviceInfo], dict[int, int]]:
    """GPUs by their number, and the CUDA ordinal of each if the file has it."""
    wanted: dict[str, ColumnKind] = {"name": "text", **dict.fromkeys(_GPU_NUMBERS, "int")}
    infos: dict[int, DeviceInfo] = {}
    ordinal: dict[int, int] = {}
    for row in whole(tables, "TARGET_INFO_GPU", wanted, _FEW).rows(named=True):
        if row["id"] is None:
            continue
        infos[row["id"]] = _info(row)
        if row["cuDevice"] is not None:
            ordinal[row["id"]] = row["cuDevice"]
    if len(set(ordinal.values())) < len(ordinal):
        ordinal = {}
    return infos, ordinal


def _info(row: dict[str, Any]) -> DeviceInfo:
    major, minor = row["computeMajor"], row["computeMinor"]
    warps, width = (_positive(row[name], _MOST_WARPS) for name in ("maxWarpsPerSm", "threadsPerWarp"))
    return DeviceInfo(
        device_id=row["id"],
        name=row["name"] or "",
        compute_capability=None if major is None or minor is None else (major, minor),
        sm_count=_positive(row["smCount"]),
        memory_bytes=_positive(row["totalMemory"]),
        max_threads_per_sm=None if warps is None or width is None else warps * width,
        warp_size=width,
        memory_bandwidth=_positive(row["memoryBandwidth"]),
        clock_hz=_positive(row["clockRate"]),
    )


def _positive(value: Any, most: int = 1 << 53) -> int | None:
    return value if isinstance(value, int) and 0 < value <= most else None


def _ranks(tables: Tables) -> dict[int, int]:
    """The MPI rank of each process; the table has it by thread."""
    listed = whole(tables, "MPI_RANKS", {"globalTid": "int", "rank": "int"}, _FEW)
    return dict(listed.select(process_of("globalTid"), "rank").drop_nulls().rows())
