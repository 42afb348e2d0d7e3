"""XSP's tables by brute force from planted truth: plain Python, nothing shared with the analyses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from xsp_planted import Call, Kernel, Recorded

PEAK = {"bf16": 989.4, "fp32": 66.9}
BANDWIDTH = 3350.0
Row = dict[str, Any]


def middle(values: Iterable[float]) -> float | None:
    """The mean without a fifth at each end."""
    data = sorted(values)
    if len(data) == 3:
        return data[1]
    cut = len(data) // 5
    kept = data[cut : len(data) - cut]
    return sum(kept) / len(kept) if kept else None


def steps_of(rows: Iterable[Any]) -> list[int]:
    return sorted({row.step for row in rows})


def union(intervals: list[tuple[int, int]]) -> int:
    cuts = sorted({t for pair in intervals for t in pair})
    return sum(
        high - low for low, high in pairwise(cuts) if any(a <= low and high <= b for a, b in intervals)
    )


def known(values: Iterable[float | None]) -> float | None:
    found = [v for v in values if v is not None]
    return sum(found) if found else None


def layers(recorded: Recorded) -> list[Row]:
    """A2, A3: in the order of execution."""
    names = list(dict.fromkeys(c.layer for c in sorted(recorded.calls, key=lambda c: c.start)))
    rows = []
    for index, name in enumerate(names, 1):
        own = [c for c in recorded.calls if c.layer == name]
        steps = [[c for c in own if c.step == s] for s in steps_of(own)]
        rows.append(
            {
                "index": index,
                "layer": name,
                "type": own[0].type,
                "leaf": all(c.leaf for c in own),
                "calls": len(own) / len(steps),
                "latency_ns": middle(sum(c.end - c.start for c in step) for step in steps),
                "self_ns": middle(sum(_own(c) for c in step) for step in steps),
            }
        )
    return with_share(rows, "self_ns")


def _own(call: Call) -> int:
    return call.end - call.start - call.inside


def with_share(rows: list[Row], column: str) -> list[Row]:
    total = sum(row[column] or 0 for row in rows)
    return [{**row, "share": row[column] / total if total else None} for row in rows]


def memory(recorded: Recorded) -> dict[str, tuple[float, float]]:
    found = {}
    for name in {layer for layer, *_ in recorded.allocations}:
        own = [a for a in recorded.allocations if a[0] == name]
        steps = [[a for a in own if a[1] == s] for s in sorted({a[1] for a in own})]
        whole = middle(sum(size for _, _, size, _ in step) for step in steps)
        forward = middle(sum(size for _, _, size, inside in step if inside) for step in steps)
        found[name] = (whole, forward)
    return found


def allocation(of_layers: list[Row], recorded: Recorded) -> list[Row]:
    """A4: layers in their order, then what is allocated in none, by size."""
    sizes = memory(recorded)
    names = [row["layer"] for row in of_layers]
    rest = sorted((name for name in sizes if name not in names), key=lambda name: (-sizes[name][0], name))
    rows = [
        {
            "layer": name,
            "allocated_bytes": sizes.get(name, (0, 0))[0],
            "forward_bytes": sizes.get(name, (0, 0))[1],
        }
        for name in [*names, *rest]
    ]
    return with_share(rows, "allocated_bytes")


def by_type(of_layers: list[Row], column: str, others: Callable[[Row], Row] = lambda row: row) -> list[Row]:
    """A5, A6, A7: rows by type, the largest first."""
    rows = []
    for name in {row["type"] for row in of_layers}:
        own = [others(row) for row in of_layers if row["type"] == name]
        row: Row = {"type": name, "layers": len(own), "leaves": sum(r["leaf"] for r in own)}
        for key in ("calls", "self_ns", "allocated_bytes", "forward_bytes"):
            row[key] = sum(r.get(key) or 0 for r in own)
        rows.append(row)
    return sorted(with_share(rows, column), key=lambda row: (-row[column], row["type"]))


def work(own: list[Kernel], precision_of_run: str, time: float | None) -> Row:
    """The means over steps of some kernels' work, with their place below the roof."""
    steps = [[k for k in own if k.step == s] for s in steps_of(own)]
    row: Row = {
        "kernels": middle(len(step) for step in steps),
        "sum_ns": middle(sum(k.duration for k in step) for step in steps),
        "gpu_ns": middle(union([(k.start, k.start + k.duration) for k in step]) for step in steps),
        "flops": middle(f for step in steps if (f := known(k.flops for k in step)) is not None),
        "dram_read_bytes": middle(whole(step, "reads") for step in steps if whole(step, "reads") is not None),
        "dram_write_bytes": middle(
            whole(step, "writes") for step in steps if whole(step, "writes") is not None
        ),
        "occupancy": middle(o for step in steps if (o := weighted(step)) is not None),
    }
    for key in ("flops_source", "occupancy_source"):
        told = sorted({getattr(k, key) for k in own if getattr(k, key) is not None})
        row[key] = "+".join(told) if told else None
    largest = max((k for k in own if k.counted is not None), key=lambda k: k.flops or 0, default=None)
    row["precision"] = precision_of_run if largest is None else "bf16"
    return roof(row, row["gpu_ns"] if time is None else time)


def roof(row: Row, time: float) -> Row:
    moved = None
    if row["dram_read_bytes"] is not None and row["dram_write_bytes"] is not None:
        moved = row["dram_read_bytes"] + row["dram_write_bytes"]
    intensity = row["flops"] / moved if moved and row["flops"] is not None else None
    peak = PEAK[row["precision"]]
    return {
        **row,
        "dram_bytes": moved,
        "intensity": intensity,
        "tflops": row["flops"] / time / 1000 if row["flops"] is not None else None,
        "attainable_tflops": None if intensity is None else min(peak, intensity * BANDWIDTH / 1000),
        "memory_bound": None if intensity is None else intensity < peak * 1000 / BANDWIDTH,
    }


def whole(step: list[Kernel], what: str) -> int | None:
    values = [getattr(k, what) for k in step]
    return None if None in values else sum(values)


def weighted(step: list[Kernel]) -> float | None:
    told = [(k.occupancy, k.duration) for k in step if k.occupancy is not None]
    return sum(o * d for o, d in told) / sum(d for _, d in told) if told else None


def each_call(recorded: Recorded) -> list[Row]:
    """A8: a call of one step is that of another when it is the k-th of its name in its layer and phase."""
    order = sorted(recorded.kernels, key=lambda k: (k.step, k.launched, k.start))
    groups: dict[tuple[Any, ...], list[Kernel]] = {}
    places: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for step in steps_of(order):
        own = [k for k in order if k.step == step]
        for place, kernel in enumerate(own):
            key = (kernel.layer, kernel.phase, kernel.name)
            turn = sum((k.layer, k.phase, k.name) == key for k in own[:place])
            groups.setdefault((*key, turn), []).append(kernel)
            places.setdefault((*key, turn), (place, step, kernel.name, kernel.layer))
    rows = []
    for index, key in enumerate(sorted(groups, key=lambda k: places[k]), 1):
        own = groups[key]
        row: Row = {"index": index, "layer": key[0], "phase": key[1], "name": key[2], "steps": len(own)}
        row["operator"] = own[0].operator
        row["duration_ns"] = middle(k.duration for k in own)
        for column, field in (
            ("flops", "flops"),
            ("dram_read_bytes", "reads"),
            ("dram_write_bytes", "writes"),
        ):
            row[column] = middle(v for k in own if (v := getattr(k, field)) is not None)
        row["occupancy"] = middle(k.occupancy for k in own if k.occupancy is not None)
        row["precision"] = "bf16" if own[0].counted is not None else "fp32"
        rows.append(roof(row, row["duration_ns"]))
    return rows


def by_name(recorded: Recorded) -> list[Row]:
    """A10."""
    names = {k.name for k in recorded.kernels}
    rows = [
        {"name": name, **work([k for k in recorded.kernels if k.name == name], "fp32", None)}
        for name in names
    ]
    return sorted(with_share(rows, "sum_ns"), key=lambda row: (-row["sum_ns"], -row["kernels"], row["name"]))


def by_layer(recorded: Recorded) -> list[Row]:
    """A11, A12, A14: in the order in which the first kernel of a layer is launched in any step."""
    places: dict[str, int] = {}
    for step in steps_of(recorded.kernels):
        own = sorted((k for k in recorded.kernels if k.step == step), key=lambda k: (k.launched, k.start))
        for place, kernel in enumerate(own):
            places[kernel.layer] = min(place, places.get(kernel.layer, place))
    rows = []
    for index, name in enumerate(sorted(places, key=lambda name: (places[name], name)), 1):
        own = [k for k in recorded.kernels if k.layer == name]
        rows.append({"index": index, "layer": name, "type": own[0].type, **work(own, "fp32", None)})
    return with_share(rows, "sum_ns")


def device_part(of_layers: list[Row], recorded: Recorded) -> list[Row]:
    """A13."""
    rows = []
    for row in of_layers:
        own = [k for k in recorded.kernels if k.layer == row["layer"] and k.forward]
        steps = [[(k.start, k.start + k.duration) for k in own if k.step == s] for s in steps_of(own)]
        gpu = middle(union(step) for step in steps) or 0
        rest = row["self_ns"] - gpu
        rows.append(
            {
                "layer": row["layer"],
                "self_ns": row["self_ns"],
                "gpu_ns": gpu,
                "non_gpu_ns": rest if rest >= 0 else None,
                "gpu_share": gpu / row["self_ns"],
            }
        )
    return rows
