"""Tables of measured latencies: CSV or Parquet, with columns that are recognised by their names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Final

import polars as pl
from polars import selectors

from tracekit.compare.measured import FIGURES, IDENTITY, OPTION, Measured
from tracekit.errors import UnreadableTraceError, UsageError, nearest, reason_of
from tracekit.facts.units import NS_PER_MS, NS_PER_S, NS_PER_US, count_of
from tracekit.limits import LARGEST_NUMBER
from tracekit.names import clean, clean_frame
from tracekit.panics import panics_as_errors

__all__ = ["ROLES", "is_table", "read_table"]

ROLES: Final = {
    "model": "model network workload architecture",
    "device": "device device_name gpu accelerator hardware",
    "precision": "precision dtype data_type",
    "latency": "latency e2e_latency e2e step_time time duration runtime",
    "batch": "batch batch_size batchsize bs",
    "flops": "flops flop flops_per_step",
    "size": "parameters params num_parameters size model_size",
    "accuracy": "accuracy acc top1 top_1",
}
"""What is read of a table, and the names that its column may have; of several columns the one with the earlier name counts."""
_NEEDED: Final = ("model", "device", "latency")
_NUMBERS: Final = ("latency", "batch", "flops", "size", "accuracy")
_SCALES: Final = {
    **dict.fromkeys(("s", "sec", "seconds"), NS_PER_S),
    **{"ms": NS_PER_MS, "us": NS_PER_US, "µs": NS_PER_US, "ns": 1},
    **{"mflop": 1e6, "gflop": 1e9, "tflop": 1e12},
}
"""Of a unit of time in ns, of one of work in FLOP."""
_COUNTS: Final = {
    **dict.fromkeys(("k", "thousands"), 1e3), **dict.fromkeys(("m", "millions"), 1e6), **dict.fromkeys(("b", "g", "billions"), 1e9), "": 1.0,
}  # fmt: skip
"""Of a unit of parameters."""
_BYTES: Final = {
    "bytes": 1.0, **{f"{unit}b": 1e3**power for power, unit in enumerate("kmgt", 1)}, **{f"{unit}ib": 1024.0**power for power, unit in enumerate("kmgt", 1)},
}  # fmt: skip
_AROUND: Final = {
    "latency": r"{}(?:_(?P<unit>ns|us|µs|ms|s|sec|seconds))?",
    "flops": r"(?P<unit>[mgt]?){}",
    "size": r"{}(?:_(?P<unit>[kmbg]|thousands|millions|billions|bytes|[kmgt]i?b))?",
    "accuracy": r"{}(?:_(?P<unit>percent|pct))?",
}
_MEASURED: Final = re.compile(r".*_(?:ns|[uµm]?s|sec|seconds|[kmg]?hz|bytes|[kmgt]i?b|gbps|w|m?j|percent|pct|t?flops)")  # fmt: skip
"""Names with a unit: a column of numbers that is called so is a figure, no option."""
_MOST_BYTES: Final = 256 << 20
_MOST_ROWS: Final = 100_000
_MOST_NAMED: Final = 12


def is_table(path: Path) -> bool:
    """Whether the path is one of a table, by its suffix; a folder is none.

    >>> is_table(Path("latencies.csv")), is_table(Path("trace.json"))
    (True, False)
    """
    return path.suffix.lower() in (".csv", ".tsv", ".parquet") and not path.is_dir()


def read_table(
    path: Path, *, columns: Mapping[str, str] | None = None, ignored: Collection[str] = ()
) -> Measured:
    """The measurements of a table.

    `columns` names the column for a role (`ROLES`, for a latency with the unit: `{"latency_ms": "Median"}`); others are recognised.
    Every other column of texts or whole numbers is an option of the case, unless it is `ignored` or its name ends in a unit. Rows
    without a model, a device or a latency above 0 are left out. Raises UnreadableTraceError for a file that is no table, has no rows
    or lacks a column, and UsageError for a column that it does not have or a role that there is not.
    """
    frame = _read(path)
    for name in (*(columns or {}).values(), *ignored):
        if name not in frame.columns:
            remedy = nearest(name, frame.columns, f"its columns are {_some(frame.columns)}")
            raise UsageError(f"there is no column {name!r}", path=path, remedy=remedy)
    frame = frame.drop(ignored)
    found = _roles(frame.columns, columns or {}, path)
    scale, size_name = _size(found.get("size"))
    read = {
        role: _number(column)
        * (
            scale
            if role == "size"
            else _SCALES.get(unit if role != "flops" or not unit else f"{unit}flop", 1)
        )
        for role, (column, unit) in found.items()
        if role in _NUMBERS
    }
    texts = {role: pl.col(column) for role, (column, _) in found.items()}
    latency, nothing = read["latency"], pl.lit(None, pl.Float64)
    kept = (latency > 0) & texts["model"].is_not_null() & texts["device"].is_not_null()
    options, unused = _options(frame, [column for column, _ in found.values()])
    if "batch" in found:
        options = {"batch": _as_option(found["batch"][0]), **options}
    texts["precision"] = _precision(texts.get("precision", pl.lit(None, pl.String)))
    rows = frame.select(
        *(texts[role].fill_null("").alias(role) for role in IDENTITY),
        latency.alias("latency_ns"),
        read.get("batch", nothing).alias("samples"),
        *(read.get(role, nothing).alias(role) for role in FIGURES[2:]),
        *(value.alias(f"{OPTION}{name}") for name, value in options.items()),
        kept.fill_null(value=False).alias("kept"),
    )
    return Measured(
        rows=clean_frame(rows.filter("kept").drop("kept")),
        size_name=size_name,
        left_out=tuple(f"{clean(str(path))}: {fault}" for fault in (*_faults(frame, texts, read), *unused)),
    )


def _read(path: Path) -> pl.DataFrame:
    """The table with every column as text, blanks as null."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UnreadableTraceError("the table is larger than 256 MiB", path=path, remedy="keep what is to be compared")  # fmt: skip
        data = path.read_bytes()
        if path.suffix.lower() == ".parquet":
            nested = selectors.nested() | selectors.binary() | selectors.object()
            with panics_as_errors():
                frame = pl.read_parquet(BytesIO(data), n_rows=_MOST_ROWS + 1).select(
                    (~nested).cast(pl.String)
                )
        else:
            head = data.partition(b"\n")[0]
            separator = max(",", ";", "\t", key=lambda one: head.count(one.encode()))
            frame = pl.read_csv(BytesIO(data), infer_schema=False, encoding="utf8-lossy", separator=separator, n_rows=_MOST_ROWS + 1)  # fmt: skip
    except FileNotFoundError:
        raise UnreadableTraceError("no such file", path=path, remedy="check the path") from None
    except pl.exceptions.NoDataError:
        raise UnreadableTraceError("the table is empty", path=path) from None
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = " ".join(reason_of(error).split())[:120]
        raise UnreadableTraceError(f"not a readable table ({reason})", path=path) from error
    if not frame.height:
        raise UnreadableTraceError("the table has no rows", path=path)
    if frame.height > _MOST_ROWS:
        raise UnreadableTraceError(f"the table has more than {_MOST_ROWS:,} rows", path=path, remedy="keep what is to be compared")  # fmt: skip
    names = [clean(name) for name in frame.columns]
    if len({*names}) < len(names):
        raise UnreadableTraceError("two of its columns have one name", path=path, remedy="rename one of them")
    text = pl.all().str.strip_chars()
    return frame.rename(dict(zip(frame.columns, names, strict=True))).with_columns(
        pl.when(text != "").then(text)
    )


def _roles(names: Collection[str], chosen: Mapping[str, str], path: Path) -> dict[str, tuple[str, str]]:
    """The column of each role that the table has, with the unit in its name."""
    found: dict[str, tuple[str, str]] = {}
    for key, name in chosen.items():
        role, _, unit = _role(key) or ("", 0, "")
        if not role:
            raise UsageError(f"there is no role {key!r} of a column", remedy=nearest(key, ROLES, f"the roles are {', '.join(ROLES)}"))  # fmt: skip
        own = _role(name) or ("", 0, "")
        ending = _MEASURED.fullmatch(_plain(name)) and _plain(name).rpartition("_")[2]
        found[role] = name, unit or (own[2] if own[0] == role else ending) or ""
    known = sorted(((match, name) for name in names if (match := _role(name))), key=lambda one: one[0][1])
    for (role, _, unit), name in known:
        if name not in [column for column, _ in found.values()]:
            found.setdefault(role, (name, unit))
    for role in _NEEDED:
        if role not in found:
            remedy = f"name it: --columns {role}{'_ms' * (role == 'latency')}=COLUMN; the columns are {_some(names)}"
            raise UnreadableTraceError(f"the table has no column of the {role}", path=path, remedy=remedy)
    name, unit = found["latency"]
    if unit not in _SCALES:
        raise UnreadableTraceError(f"the unit of its column {name!r} is not known", path=path, remedy=f"name it: --columns latency_ms={name}")  # fmt: skip
    return found


def _role(name: str) -> tuple[str, int, str] | None:
    """The role of a column of this name, how good a name for it that is (less is better), and the unit in it."""
    for role, words in ROLES.items():
        pattern = _AROUND.get(role, "{}").format(f"(?:{'|'.join(words.split())})")
        if match := re.fullmatch(pattern, _plain(name)):
            unit = match.groupdict().get("unit") or ""
            core = re.sub(r"^[mgt](?=flop)", "", _plain(name)).removesuffix(f"_{unit}" if unit else "")
            place = words.split().index(core)
            return role, place + (role == "latency" and not unit) * len(words), unit
    return None


def _size(found: tuple[str, str] | None) -> tuple[float, str]:
    """What a column of sizes is multiplied by, and what they are then: parameters, bytes, or what the column is called."""
    column, unit = found or ("parameters", "")
    if unit in _BYTES:
        return _BYTES[unit], "bytes"
    if re.search(r"param", _plain(column)):
        return _COUNTS.get(unit, 1.0), "parameters"
    return 1.0, column.replace("_", " ")


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9µ]+", "_", name.lower()).strip("_")


def _some(names: Collection[str]) -> str:
    listed = [*names][:_MOST_NAMED]
    return ", ".join(listed) + ", …" * (len(names) > len(listed))


def _number(column: str) -> pl.Expr:
    """A column of texts as numbers; null for what is none."""
    value = pl.col(column).cast(pl.Float64, strict=False)
    return pl.when((value == 0) | value.abs().is_between(1 / LARGEST_NUMBER, LARGEST_NUMBER)).then(value)


def _precision(text: pl.Expr) -> pl.Expr:
    """Precisions under the names that tracekit has for them: `torch.float32` is `fp32`."""
    for pattern, name in ((r"^torch\.", ""), ("^bfloat", "bf"), ("^float", "fp"), ("^half$", "fp16")):
        text = text.str.to_lowercase().str.replace(pattern, name)
    return text


def _options(frame: pl.DataFrame, used: Collection[str]) -> tuple[dict[str, pl.Expr], list[str]]:
    """The columns that are options of a case, and a line about those that are not used: numbers that are not whole, or have a unit."""
    options: dict[str, pl.Expr] = {}
    unused = []
    for name in frame.columns:
        if name in used:
            continue
        value, text = _number(name), pl.col(name)
        of_numbers = not frame.filter(text.is_not_null() & value.is_null()).height
        whole = not frame.filter(value != value.round()).height
        if of_numbers and (not whole or _MEASURED.fullmatch(_plain(name))):
            unused.append(name)
        else:
            options[name] = _as_option(name)
    told = f"the figures in its column{'s' * (len(unused) > 1)} {_some(unused)}"
    return options, [told] if unused else []


def _as_option(name: str) -> pl.Expr:
    """The texts of a column, whole numbers and yes and no alike however they are written."""
    value, text = _number(name), pl.col(name)
    flag = text.str.to_lowercase().replace({"yes": "true", "no": "false"})
    whole = value.cast(pl.Int64, strict=False).cast(pl.String)
    return (
        pl.when(value == value.round())
        .then(whole)
        .when(flag.is_in(["true", "false"]))
        .then(flag)
        .otherwise(text)
    )


def _faults(frame: pl.DataFrame, texts: Mapping[str, pl.Expr], read: Mapping[str, pl.Expr]) -> Iterator[str]:
    """What is wrong with rows, a line for each kind of fault."""
    checks = [(role, texts[role].is_null(), f"without a {role}") for role in _NEEDED]
    checks += [(role, texts[role].is_not_null() & value.is_null(), f"whose {role} is not a number") for role, value in read.items()]  # fmt: skip
    checks += [("latency", read["latency"] <= 0, "whose latency is not above 0")]
    number = pl.int_range(1, pl.len() + 1)
    for role, wrong, words in checks:
        rows = frame.select(number.alias("row"), texts[role].alias("value"), wrong.alias("wrong")).filter(
            "wrong"
        )
        if rows.height:
            row, value, _ = rows.row(0)
            first = "" if value is None else f": {clean(value[:40])!r}"
            effect = "" if role in _NEEDED else "; it counts as not known"
            yield f"{count_of(rows.height, 'row')} {words} (the first is row {row}{first}){effect}"
