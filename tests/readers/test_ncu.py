"""Nsight Compute's CSV: both pages, units, names, what stands around the table, damage."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import planted_ncu as ncu
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from paths import ROOT

from tracekit.analyses.counters.kernel_spelling import base_of, signature_of
from tracekit.counted_work import WORK_SCHEMA
from tracekit.errors import UnreadableTraceError
from tracekit.readers.ncu import KERNEL_SCHEMA, METRIC_SCHEMA, NcuReport, read_ncu
from tracekit.readers.ncu.csv_table import numbers
from tracekit.readers.ncu.units import base_unit

PUBLIC = ROOT.parent / "shared" / "traces" / "ncu" / "copy_blocked_t4.csv"


def read(tmp_path: Path, text: str | bytes) -> NcuReport:
    file = tmp_path / "metrics.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_ncu(file)


def refused(tmp_path: Path, text: str | bytes) -> str:
    with pytest.raises(UnreadableTraceError) as error:
        read(tmp_path, text)
    assert error.value.exit_code == 3
    line = str(error.value)
    assert ncu.PROGRAM not in line
    assert ncu.MACHINE not in line
    return line


def counts(report: NcuReport) -> dict[str, int]:
    return dict(report.health.select("kind", "count").rows())


# -- the two pages ---------------------------------------------------------------------------------


LAUNCHES = [
    ncu.Launch("void f<4, (T)2>(int, float*)", ncu.counted(10, 3_000, 24, 37.5, ffma=7, hmul=2), (80, 2, 1)),
    ncu.Launch("g", ncu.counted(1_234_567, 0, 5, 100.0), (7, 1, 1), (128, 2, 1), device=1),
]


@pytest.mark.parametrize("page", ["raw", "details"])
def test_both_pages_tell_the_same(tmp_path: Path, page: str) -> None:
    report = read(tmp_path, getattr(ncu, page)(LAUNCHES))
    assert report.page == page
    assert dict(report.kernels.schema) == KERNEL_SCHEMA
    assert dict(report.metrics.schema) == METRIC_SCHEMA
    columns = ["name", "grid", "block", "device_id", "stream_id", "process_id", "compute_capability"]
    assert report.kernels.select(columns).rows() == [
        ("void f<4, (T)2>(int, float*)", "[80, 2, 1]", "[32, 1, 1]", 0, 7, 4321, "8.0"),
        ("g", "[7, 1, 1]", "[128, 2, 1]", 1, 7, 4321, "8.0"),
    ]
    work = ["flops", "dram_read_bytes", "dram_write_bytes", "dram_bytes", "dram_source", "occupancy"]
    assert report.kernels.select(work).rows() == [
        (10 + 2 * 7 + 2, 3_000, 24, 3_024, "counter", 0.375),
        (1_234_567, 0, 5, 5, "counter", 1.0),
    ]
    assert report.metrics.height == sum(len(one.metrics) for one in LAUNCHES)
    assert not report.health.height


def test_labels_of_the_details_page_are_known(tmp_path: Path) -> None:
    metrics = {
        "Duration": ("us", "2,500.5"),
        "Memory Throughput": ("Gbyte/s", "2"),
        "Achieved Occupancy": ("%", "25"),
        "Registers Per Thread": ("register/thread", "96"),
        "Function Cache Configuration": ("", "CachePreferNone"),
    }
    (row,) = read(tmp_path, ncu.details([ncu.Launch("k", metrics)])).kernels.to_dicts()
    assert (row["duration_ns"], row["registers"], row["occupancy"]) == (2_500_500, 96, 0.25)
    # 2 GB/s for 2.5005 ms
    assert (row["dram_bytes"], row["dram_source"], row["flops"]) == (5_001_000, "derived", None)


def test_one_label_with_two_units_is_two_metrics(tmp_path: Path) -> None:
    head, *rest = ncu.details([ncu.Launch("k", {"Memory Throughput": ("%", "61.84")})]).splitlines()
    again = rest[0].replace('"%"', '"byte/s"').replace("61.84", "1,000")
    report = read(tmp_path, "\n".join([head, *rest, again]) + "\n")
    told = dict(report.metrics.select("unit", "value").rows())
    assert told == {"byte/s": 1000.0, "fraction": pytest.approx(0.6184)}


def test_a_sum_or_a_rate_stands_for_bytes_that_were_not_split(tmp_path: Path) -> None:
    both = {"dram__bytes.sum": ("Mbyte", "1.5"), "dram__bytes.sum.per_second": ("Gbyte/second", "1")}
    rate = {"dram__bytes.sum.per_second": ("Gbyte/second", "1"), "gpu__time_duration.sum": ("usecond", "3")}
    launches = [ncu.Launch("a", both), ncu.Launch("b", rate), ncu.Launch("c", {**both, **rate})]
    report = read(tmp_path, ncu.raw(launches))
    assert report.kernels.select("dram_bytes", "dram_source").rows() == [
        (1_500_000, "counter"),
        (3_000, "derived"),
        (1_500_000, "counter"),
    ]
    assert report.kernels["dram_read_bytes"].null_count() == 3


# -- FLOPs -----------------------------------------------------------------------------------------


def flops(tmp_path: Path, metrics: dict[str, tuple[str, str]], name: str = "k") -> int | None:
    return read(tmp_path, ncu.raw([ncu.Launch(name, metrics)])).kernels["flops"][0]


def test_columns_about_the_machine_are_no_metrics(tmp_path: Path) -> None:
    """Nsight Compute 2025.3 on an H100 adds 201 such columns, whatever --metrics says."""
    of_machine = ("device__attribute_architecture", "nvlink__max_count", "profiler__replayer_passes")
    metrics = {"dram__bytes_read.sum": ("byte", 7.0), **dict.fromkeys(of_machine, ("", 384.0))}
    found = read(tmp_path, ncu.raw([ncu.Launch("k", metrics)])).metrics
    assert found["metric"].to_list() == ["dram__bytes_read.sum"]


def test_flops_need_all_instructions(tmp_path: Path) -> None:
    whole = ncu.counted(5)
    assert flops(tmp_path, whole) == 5
    for kind in ncu.KINDS:
        assert flops(tmp_path, {n: v for n, v in whole.items() if n != ncu.instruction(kind)}) is None
    per_sm = {name.replace("smsp__", "sm__"): value for name, value in whole.items()}
    assert flops(tmp_path, per_sm) == 5
    assert flops(tmp_path, {**whole, **per_sm}) == 5


def test_flops_of_tensor_cores_are_added(tmp_path: Path) -> None:
    whole = ncu.counted(5)
    of = "sm__ops_path_tensor_src_bf16_dst_fp32"
    assert flops(tmp_path, {**whole, f"{of}.sum": ("", "1,000")}, "ampere_bf16_s16816gemm") == 1005
    parts = {f"{of}_sparsity_off.sum": ("", "700"), f"{of}_sparsity_on.sum": ("", "300")}
    assert flops(tmp_path, {**whole, **parts}) == 1005
    assert flops(tmp_path, {**whole, **parts, f"{of}.sum": ("", "1,000")}) == 1005
    more = {f"{of}.sum": ("", "1,000"), "sm__ops_path_tensor_src_tf32_dst_fp32.sum": ("", "4")}
    assert flops(tmp_path, {**whole, **more}) == 1009


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("ampere_bf16_s16816gemm", {}),
        ("k", {"sm__inst_executed_pipe_tensor.sum": ("inst", "3")}),
        ("k", {"sm__ops_path_tensor_src_int8.sum": ("", "8")}),
        ("ampere_bf16_s16816gemm", {"sm__ops_path_tensor_src_fp16_dst_fp16.sum": ("", "0")}),
    ],
)
def test_flops_of_tensor_cores_that_were_not_counted_are_not_captured(
    tmp_path: Path, name: str, more: dict[str, tuple[str, str]]
) -> None:
    assert flops(tmp_path, {**ncu.counted(5), **more}, name) is None


# -- numbers and units -----------------------------------------------------------------------------


def value_of(text: str) -> float | None:
    return pl.DataFrame({"v": [text]}).select(numbers(pl.col("v"))).item()


@settings(deadline=None)
@given(st.integers(-(10**15), 10**15), st.integers(0, 6), st.booleans())
def test_numbers_are_read_as_they_are_printed(whole: int, digits: int, thousands: bool) -> None:
    text = f"{whole / 10**digits:{',' if thousands else ''}.{digits}f}"
    assert value_of(text) == float(text.replace(",", ""))
    assert value_of(f"{text} (1; 2; 3)") == float(text.replace(",", ""))


@pytest.mark.slow
@settings(deadline=None)
@given(st.text(max_size=12))
def test_what_is_no_number_is_null(text: str) -> None:
    got = value_of(text)
    if got is not None:
        assert math.isfinite(got)
        assert float(text.strip().split(" (")[0].replace(",", "")) == got


@pytest.mark.parametrize(
    "text", ["", "n/a", "nan", "inf", "1e999", "12,34", "1,23,456", "0x10", "1_000", "٣"]
)
def test_what_looks_like_a_number_is_none(text: str) -> None:
    assert value_of(text) is None


@pytest.mark.parametrize(
    ("unit", "base", "factor"),
    [
        ("byte", "byte", 1),
        ("Kbyte", "byte", 1e3),
        ("Gbyte/second", "byte/s", 1e9),
        ("Tbyte/s", "byte/s", 1e12),
        ("byte/nsecond", "byte/s", 1e9),
        ("Kbyte/block", "byte/block", 1e3),
        ("usecond", "ns", 1e3),
        ("ms", "ns", 1e6),
        ("second", "ns", 1e9),
        ("ns", "ns", 1),
        ("%", "fraction", 0.01),
        ("Ghz", "hz", 1e9),
        ("cycle/nsecond", "cycle/s", 1e9),
        ("inst", "inst", 1),
        ("Kinst", "inst", 1e3),
        ("register/thread", "register/thread", 1),
        ("inst/cycle", "inst/cycle", 1),
        ("", "", 1),
        ("widgets", "widgets", 1),
    ],
)
def test_units_have_a_base(unit: str, base: str, factor: float) -> None:
    got, by = base_unit(unit)
    assert got == base
    assert by == pytest.approx(factor, rel=1e-12)


@settings(deadline=None)
@given(
    st.sampled_from(
        [
            ("byte", {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}),
            ("second", {"": 1e9, "m": 1e6, "u": 1e3, "n": 1}),
        ]
    ),
    st.randoms(),
)
def test_a_prefix_is_a_power_of_ten(kind: tuple[str, dict[str, float]], rng: random.Random) -> None:
    name, prefixes = kind
    prefix = rng.choice(list(prefixes))
    assert base_unit(prefix + name)[1] == pytest.approx(prefixes[prefix], rel=1e-12)
    per = rng.choice(["s", "second", "block", "thread"])
    assert base_unit(f"{prefix}{name}/{per}")[1] == pytest.approx(prefixes[prefix], rel=1e-12)


@pytest.mark.parametrize("value", ["1.234,5", "12,5", "1.234.567,25", "1 234,5", "1234,56"])
@pytest.mark.parametrize("page", ["raw", "details"])
def test_decimal_commas_are_refused_not_misread(tmp_path: Path, page: str, value: str) -> None:
    text = getattr(ncu, page)([ncu.Launch("k", {"dram__bytes.sum": ("byte", value)})])
    line = refused(tmp_path, text)
    assert "decimal commas" in line
    assert "LC_ALL=C" in line


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["raw", "details"])
@pytest.mark.parametrize(
    "name", ["a,b", 'say "x"', "two\nlines", "é🙂", "==PROF== k", "<b>&amp;</b>", "k\t(int)"]
)
def test_any_name_survives(tmp_path: Path, page: str, name: str) -> None:
    launches = [ncu.Launch(name, ncu.counted(3)), ncu.Launch("k", ncu.counted(4))]
    report = read(tmp_path, getattr(ncu, page)(launches))
    assert report.kernels["name"].to_list() == [name, "k"]
    assert report.kernels["flops"].to_list() == [3, 4]
    assert not report.health.height


SPELLINGS = [
    (
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)",
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<float>, std::array<char *, (unsigned long)1>>(int, T2, T3)",
        "vectorized_elementwise_kernel",
    ),
    ("void a::(anonymous namespace)::f<true, -1>(int)", "a::<unnamed>::f<(bool)1, (int)-1>(T1)", "f"),
    ("triton_poi_fused_add_0", "triton_poi_fused_add_0", "triton_poi_fused_add_0"),
    ("std::enable_if<(1>0), void>::type ns::g<x>(int)", "ns::g<x>(T1)", "g"),
    ("copy[v1,cw5](Array<long long, 1, C>, long long)", "copy[v1, cw5](Array<long long,1,C>)", "copy"),
]


@pytest.mark.parametrize(("one", "other", "base"), SPELLINGS)
def test_spellings_of_one_kernel_meet(one: str, other: str, base: str) -> None:
    assert signature_of(one) == signature_of(other)
    assert base_of(one) == base_of(other) == base


def test_kernels_that_differ_keep_apart() -> None:
    different = [
        "f<4>(int)",
        "f<5>(int)",
        "f<float>(int)",
        "n::f<4>(int)",
        "g<4>(int)",
        "f<4, 4>(int)",
        "f(int)",
    ]
    assert len({signature_of(name) for name in different}) == len(different)
    assert len({base_of(name) for name in different}) == 2


@pytest.mark.parametrize(
    ("name", "base"),
    [
        (
            "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEEEEvi",
            "vectorized_elementwise_kernel",
        ),
        ("_Z4gemmPfS_", "gemm"),
        ("_ZN12_GLOBAL__N_13fooEv", "foo"),
        ("_Z", "_Z"),
        ("_ZN99999short", "short"),
    ],
)
def test_the_base_of_a_mangled_name(name: str, base: str) -> None:
    assert base_of(name) == base


@settings(deadline=None)
@given(st.text(alphabet="<>()[]{}: ab~_ZN19\"'\n", max_size=60))
def test_no_name_breaks_the_spelling(name: str) -> None:
    assert isinstance(base_of(name), str)
    assert signature_of(signature_of(name)) is not None


# -- what stands around the table ------------------------------------------------------------------


@pytest.mark.parametrize("page", ["raw", "details"])
def test_lines_around_the_table_are_counted(tmp_path: Path, page: str) -> None:
    head, *rows = getattr(ncu, page)(
        [ncu.Launch("a", ncu.counted(3)), ncu.Launch("b", ncu.counted(4))]
    ).splitlines()
    text = "\n".join(
        [
            "==PROF== Connected to process 1",
            'loss 0.5, 5" wide',
            head,
            *rows[:2],
            'epoch "1',
            "==WARNING== x",
            *rows[2:],
            "bye",
        ]
    )
    report = read(tmp_path, text + "\n")
    assert report.kernels["flops"].to_list() == [3, 4]
    assert counts(report) == {"ncu_other_lines": 5}


def test_a_byte_order_mark_and_windows_lines(tmp_path: Path) -> None:
    text = ncu.raw(LAUNCHES)
    plain = read(tmp_path, text)
    for other in (b"\xef\xbb\xbf" + text.encode(), text.replace("\n", "\r\n").encode()):
        report = read(tmp_path, other)
        assert report.kernels.equals(plain.kernels)
        assert report.metrics.equals(plain.metrics)


def test_several_tables_stay_apart(tmp_path: Path) -> None:
    one, two = (
        [ncu.Launch("a", ncu.counted(1))],
        [ncu.Launch("b", ncu.counted(2)), ncu.Launch("a", ncu.counted(3))],
    )
    report = read(tmp_path, ncu.raw(one) + "==PROF== again\n" + ncu.details(two))
    assert report.kernels.select("profile_id", "table", "id", "name", "flops").rows() == [
        (0, 0, 0, "a", 1),
        (1, 1, 0, "b", 2),
        (2, 1, 1, "a", 3),
    ]


def test_processes_that_count_alike_stay_apart(tmp_path: Path) -> None:
    launches = [ncu.Launch("a", ncu.counted(n), process=n, id=0) for n in (11, 12)]
    assert read(tmp_path, ncu.details(launches)).kernels["flops"].to_list() == [11, 12]


def test_names_of_programs_and_machines_are_nowhere(tmp_path: Path) -> None:
    for page in (ncu.raw, ncu.details):
        text = page(LAUNCHES)
        for cut in (len(text), len(text) - 30):
            report = read(tmp_path, text[:cut])
            told = json.dumps([f.to_dicts() for f in (report.kernels, report.metrics, report.health)])
            assert ncu.PROGRAM not in told
            assert ncu.MACHINE not in told


# -- damage ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("page", ["raw", "details"])
def test_a_file_that_ends_early_gives_what_it_has(tmp_path: Path, page: str) -> None:
    text = getattr(ncu, page)([ncu.Launch(f"k{n}", ncu.counted(n + 1, 5, 6)) for n in range(6)])
    whole = read(tmp_path, text)
    for cut in range(len(text) * 2 // 3, len(text) - 1, 7 if page == "raw" else 61):
        report = read(tmp_path, text[:cut])
        told = report.kernels.drop(set(WORK_SCHEMA) - {"occupancy"})
        assert told.equals(whole.kernels.select(told.columns).head(told.height))
        known = report.metrics.join(whole.metrics, on=["profile_id", "metric"], how="left", nulls_equal=True)
        cut_short = known.filter(pl.col("value") != pl.col("value_right"))
        assert cut_short.height == 0
        assert set(counts(report)) <= {"truncated_file"}
        if page == "raw" and not text[:cut].endswith(('"', "\n")):
            assert counts(report) == {"truncated_file": 1}


def test_rows_that_name_no_kernel_are_counted(tmp_path: Path) -> None:
    text = ncu.raw([ncu.Launch("a", ncu.counted(3)), ncu.Launch("b", ncu.counted(4))])
    lines = text.splitlines()
    report = read(tmp_path, "\n".join([*lines[:3], '"7","8"', *lines[3:]]) + "\n")
    assert report.kernels["flops"].to_list() == [3, 4]
    assert counts(report) == {"ncu_damaged_row": 1}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the file is empty"),
        (b"hello\n", "it holds no Nsight Compute table"),
        (b'{"traceEvents": []}', "it holds no Nsight Compute table"),
        (b"a,b\n1,2\n", "ncu --csv --page raw"),
        (b"==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM\n", "it holds no Nsight Compute table"),
        (b"\x1f\x8b\x08\0", "it is compressed"),
        (b"\xff\xfeI\0D\0", "it is UTF-16"),
        (b"SQLite format 3\0", "it is not a text file"),
        (b"NVR\0\1\2", "ncu --import"),
        (ncu.raw([]).encode(), "holds no kernel"),
        (ncu.details([]).encode(), "holds no kernel"),
        (b'"ID","Kernel Name",' + b'"m",' * 20_001 + b"\n", "20,00"),
    ],
)
def test_what_is_no_such_file_is_one_clear_line(tmp_path: Path, content: bytes, says: str) -> None:
    line = refused(tmp_path, content)
    assert says in line
    assert "\n" not in line


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UnreadableTraceError, match="no such file"):
        read_ncu(tmp_path / "none.csv")
    with pytest.raises(UnreadableTraceError, match="directory"):
        read_ncu(tmp_path)


@pytest.mark.slow
@settings(deadline=None)
@example(60507)  # a carriage return in the header
@given(st.integers(0, 10**9))
def test_no_damage_is_a_traceback(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    rng = random.Random(seed)
    data = bytearray(rng.choice([ncu.raw, ncu.details])(LAUNCHES).encode())
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(data))
        if rng.random() < 0.5:
            data[at] = rng.choice(b'",\n\r\x00(9=\xff')
        else:
            del data[at : at + rng.randint(1, 40)]
    file = tmp_path_factory.mktemp("ncu") / "x.csv"
    file.write_bytes(data)
    try:
        report = read_ncu(file)
    except UnreadableTraceError:
        return
    assert report.kernels["name"].null_count() == 0
    assert report.metrics["value"].is_finite().all()


# -- a public file ---------------------------------------------------------------------------------


@pytest.mark.skipif(not PUBLIC.exists(), reason="the public files are not here")
def test_a_public_file() -> None:
    report = read_ncu(PUBLIC)
    (row,) = report.kernels.to_dicts()
    assert row["name"].startswith("copy_blocked[v1,")
    assert (row["grid"], row["block"], row["registers"]) == ("[1024, 1, 1]", "[256, 1, 1]", 32)
    assert row["duration_ns"] == 21_058_944
    assert row["dram_bytes"] == round(196_456_177_859.63 * 0.021058944)
    assert (row["dram_source"], row["flops"]) == ("derived", None)
    assert row["occupancy"] == pytest.approx(0.9626)
    assert report.metrics.height == 71
    assert not report.health.height
