"""The file with the ceilings of a machine: found by the device, and read strictly."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tracekit.errors import UnreadableTraceError, UsageError
from tracekit.machine_file import Machine, Memory, Product, Rates, machine_path, read_machine, stored_ceilings


def made(**changes: Any) -> Machine:
    one = Rates(
        threads=1,
        products=[Product(precision="fp32", unit="vector", size=512, best=1e11, median=9e10)],
        memory=[Memory(level="DRAM", set_bytes=1 << 27, best=2e10, median=1.9e10)],
    )
    two = msgspec.structs.replace(
        one, threads=2, products=[msgspec.structs.replace(one.products[0], best=1.9e11)]
    )
    kept: dict[str, Any] = {
        "tracekit_version": "0",
        "measured_on": "2026-11-23",
        "device": "cpu",
        "device_name": "Some CPU",
        "versions": {},
        "rates": [one, two],
    }
    return msgspec.convert(msgspec.to_builtins(kept | changes), Machine)


def test_what_is_kept_is_found_again_by_device_and_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path))
    assert stored_ceilings("Some CPU") is None
    path = machine_path("Some CPU")
    path.parent.mkdir()
    path.write_bytes(made().to_json())
    assert read_machine(path) == made()
    two = stored_ceilings("Some CPU")
    assert two is not None
    assert (two.threads, two.peak("fp32"), two.source) == (
        2,
        1.9e11,
        "measured on 2026-11-23, 2 threads; the rates varied",
    )
    one = stored_ceilings("Some CPU", 1)
    assert one is not None
    assert (one.peak("fp32"), one.bandwidth, one.source) == (
        1e11,
        {"DRAM": 2e10},
        "measured on 2026-11-23, 1 thread",
    )
    assert one.ridge("fp32") == 5.0
    assert one.peak("fp16") is one.attainable(1.0, "fp32", level="L2") is None
    assert stored_ceilings("Some CPU", 3) is None
    assert stored_ceilings("some cpu") is None
    path.write_bytes(made(device_name="Other").to_json())
    assert stored_ceilings("Some CPU") is None, "the name in the file counts"


@pytest.mark.parametrize("name", ["Some CPU", "SOME-CPU", "../../etc/passwd", "", "a" * 5000, "\ud800"])
def test_no_name_of_a_device_leads_out_of_the_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEKIT_CACHE_DIR", str(tmp_path))
    path = machine_path(name)
    assert path.parent == tmp_path / "machines"
    assert len(path.name) < 100


def broken() -> Iterator[tuple[str, bytes]]:
    good = json.loads(made().to_json())
    yield "empty", b""
    yield "no JSON", b"{"
    yield "not UTF-8", b"\xff\xfe"
    yield "a list", b"[]"
    yield "nested", b"[" * 100_000
    yield "large", b" " * (2 << 20)
    fields: list[tuple[str, Any]] = [
        ("schema_version", 99),
        ("schema_version", 0),
        ("host", "mine"),
        ("measured_on", "yesterday"),
        ("device", "tpu"),
        ("rates", {}),
    ]
    for field, value in fields:
        yield f"{field}={value}", json.dumps(good | {field: value}).encode()
    for rate in (0, -1, 1e300, "1", None):
        bad = json.loads(made().to_json())
        bad["rates"][0]["memory"][0]["best"] = rate
        yield f"best={rate}", json.dumps(bad).encode()
    yield "NaN", made().to_json().replace(b"20000000000.0", b"NaN")


@pytest.mark.parametrize(
    ("what", "content"), list(broken()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_file_that_is_no_measurement_is_refused(what: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    path.write_bytes(content)
    with pytest.raises(UnreadableTraceError) as caught:
        read_machine(path)
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)
    assert "tracekit" in str(caught.value)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnreadableTraceError):
        read_machine(tmp_path / "pipe")


def test_without_a_home_folder_nothing_is_kept_and_a_file_can_be_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("TRACEKIT_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    assert stored_ceilings("Some CPU") is None
    with pytest.raises(UsageError, match="home folder"):
        machine_path("Some CPU")
