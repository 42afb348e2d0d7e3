"""Two changes that training on many devices made common: inputs sorted by length, and samples that several devices share."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from tracekit.analyses.flops import json_list
from tracekit.analyses.scope import Scope, step_at
from tracekit.analyses.what_if.draft import Draft, FloatArray
from tracekit.classes import dataclass
from tracekit.errors import UsageError
from tracekit.facts.collectives import ELEMENT_BYTES
from tracekit.facts.device_peaks import peak_link_gbps
from tracekit.facts.units import NS_PER_US
from tracekit.groups import groups, none_to_null
from tracekit.names import clean
from tracekit.spans import BoolArray, Int64Array, take

__all__ = ["BucketInputs", "PartitionSpace"]

_LINK: Final = (1.0, 0.8, 0.5)
"""The part of a link's peak that an exchange of borders reaches, in the best, the likeliest and the worst case."""
_EXCHANGE_NS: Final = (2 * NS_PER_US, 5 * NS_PER_US, 10 * NS_PER_US)
"""What an exchange takes however little it sends."""
_LEAST_ROWS: Final = 2
"""Of a picture, for each device; weights with fewer are no pictures."""
_PASSES: Final = ("forward", "backward")


@dataclass(frozen=True, slots=True)
class BucketInputs:
    """In each step all ranks have inputs of one length."""

    label: str = "--bucket-inputs"

    def apply(self, draft: Draft) -> None:
        """Each collective takes as long as the shortest of its place in the steps."""
        scope, rows = draft.made.scope, draft.made.lines.rows
        talks = (rows["class"] == "communication").to_numpy() & rows["step"].is_not_null().to_numpy()
        at = np.flatnonzero(talks)
        steps = rows["step"].to_numpy()[at].astype(np.int64)
        if np.unique(steps).size < 2:
            raise UsageError(
                "fewer than two steps have communication on a device, so the trace does not show waits for other ranks",
                remedy=f"leave {self.label} out",
            )
        varied = _shapes_vary(scope)
        if varied is False:
            raise UsageError(
                "the inputs have the same shapes in all steps, so there is nothing to sort",
                remedy=f"leave {self.label} out",
            )
        if varied is None:
            draft.assume("The lengths of inputs vary; the trace has no shapes that would show it.")
        names = rows["name"].to_physical().to_numpy()[at].astype(np.int64)
        kept = _in_all_steps(names, steps)
        at, names, steps = at[kept], names[kept], steps[kept]
        place = groups(names, _numbers_within(names, steps))
        took = rows["duration"].to_numpy()[at]
        factors = np.ones(rows.height)
        if draft.spread <= 0:
            factors[at] = place.least(took)[place.of] / np.maximum(took, 1)
        draft.scale_rows(factors < 1, factors)
        draft.assume(
            "The first, second, … collective of a name sends as much in every step. What it takes beyond the shortest of them is waiting for ranks with "
            "longer inputs, which then have inputs as long; in the worst case it is waiting for something else. Padding stays as it is."
        )


def _in_all_steps(names: Int64Array, steps: Int64Array) -> BoolArray:
    """Which collectives are as many in each step as others of their name."""
    each = groups(names, steps)
    of_name = groups(each.keys[0])
    same = (of_name.least(each.counts) == of_name.greatest(each.counts)) & (
        of_name.counts == np.unique(steps).size
    )
    kept: BoolArray = same[of_name.of][each.of]
    return kept


def _numbers_within(names: Int64Array, steps: Int64Array) -> Int64Array:
    """The number of each row among those of its name and step, in their order."""
    each = groups(names, steps)
    order = np.argsort(each.of, kind="stable")
    numbers = np.empty(order.size, dtype=np.int64)
    numbers[order] = np.arange(order.size) - np.repeat(np.cumsum(each.counts) - each.counts, each.counts)
    return numbers


def _shapes_vary(scope: Scope) -> bool | None:
    """Whether the operators of some step have other shapes than those of another; None where shapes were not recorded."""
    host = scope.trace.host
    told = host.select("start", "name", "shapes", operator=pl.col("kind") == "op")
    told = told.filter("operator", pl.col("shapes").is_not_null())
    told = told.with_columns(step_at(scope.steps, told["start"].to_numpy()).alias("step")).filter(
        pl.col("step").is_not_null()
    )
    if not told.height:
        return None
    distinct = told[["step", "name", "shapes"]].unique()
    return bool((distinct.group_by("name", "shapes").len()["len"] < distinct["step"].n_unique()).any())


@dataclass(frozen=True, slots=True)
class PartitionSpace:
    """`devices` devices share each sample, each with a part of its rows."""

    devices: int

    def __post_init__(self) -> None:
        if self.devices < 2:
            raise UsageError(
                f"--partition-space {self.devices}: fewer than two devices share nothing",
                remedy="use a number from 2 on",
            )

    @property
    def label(self) -> str:
        """`--partition-space 4`."""
        return f"--partition-space {self.devices}"

    def apply(self, draft: Draft) -> None:
        """Divide the work on pictures, and add what convolutions exchange at the borders of their parts."""
        took, op = draft.made.lines.rows["duration"].to_numpy(), _operators(draft)
        found = self._parts(draft, op)
        if all(one is None for one in found):
            raise UsageError(
                "no kernel of the forward or backward pass works on images whose shapes were recorded",
                remedy=f"record shapes, or leave {self.label} out",
            )
        device = next((one.name for one in draft.made.scope.trace.meta.devices), "")
        link = peak_link_gbps(device)
        if link is None:
            raise UsageError(
                f"the link of {clean(device)!r} is not known, and so is not what borders cost",
                remedy=f"leave {self.label} out",
            )
        factors = _factors(found, op, took, link, draft.spread)
        draft.scale_rows(factors != 1, factors)
        draft.assume(
            f"{self.devices} devices share each sample, each with some of its rows. Work on images, which are what a convolution reads, divides by the "
            "rows of the largest part; other work and the host take as long as before, gradients are summed as before, and batch normalisation uses the statistics of a part."
        )
        draft.assume(
            f"A convolution waits for the borders (halos) that its neighbours send: half of its window on two sides, at {100 * _LINK[1]:.0f} % of {link:g} GB/s "
            f"({100 * _LINK[2]:.0f} to {100 * _LINK[0]:.0f}), and {_EXCHANGE_NS[1] // NS_PER_US} µs ({_EXCHANGE_NS[0] // NS_PER_US} to {_EXCHANGE_NS[2] // NS_PER_US}) for each exchange."
        )

    def _parts(self, draft: Draft, op: Int64Array) -> list[tuple[float, float] | None]:
        """Of each activity the part of the rows that a device has, and the bytes that it sends to its neighbours; None if it is not divided."""
        host, known = draft.made.stack.frame, none_to_null(op)
        calls = pl.DataFrame(
            [host[name].gather(known).cast(pl.String).alias(name) for name in ("name", "shapes", "dtypes")]
        )
        passes = draft.rows["phase"].cast(pl.String).is_in(_PASSES).fill_null(value=False)
        distinct = calls.unique().rows()
        sizes = {
            tuple(one[2:])
            for name, shapes, _ in distinct
            if "conv" in (name or "")
            for one in _pictures(shapes)[:-1]
        }
        parts = {
            (name, shapes, types): self._part(name, shapes, types, sizes) for name, shapes, types in distinct
        }
        return [parts[key] if divided else None for key, divided in zip(calls.rows(), passes, strict=True)]

    def _part(
        self, name: str | None, shapes: str | None, dtypes: str | None, sizes: set[tuple[int, ...]]
    ) -> tuple[float, float] | None:
        pictures = _pictures(shapes)
        if not pictures or tuple(pictures[0][2:]) not in sizes or pictures[0][2] < _LEAST_ROWS * self.devices:
            return None
        (samples, channels, height, width), window = pictures[0], pictures[-1][2]
        part = -(-height // self.devices) / height
        if "conv" not in (name or ""):
            return part, 0.0
        types = json_list(dtypes)
        size = ELEMENT_BYTES.get(str(types[0]) if types else "", 4)
        return part, 2.0 * (window // 2) * samples * channels * width * size


def _operators(draft: Draft) -> Int64Array:
    """The innermost operator around the launch of each activity; −1 for none."""
    stack = draft.made.stack
    return take(stack.nesting.nearest_ancestor(stack.of_kind("op")), draft.rows["anchor"].to_numpy())


def _pictures(shapes: str | None) -> list[list[int]]:
    """The inputs with four sizes: samples, channels, rows, columns; of a convolution the weights are the last of them."""
    found = [one for one in json_list(shapes) if isinstance(one, list) and len(one) == 4]
    return [one for one in found if all(isinstance(size, int) and size > 0 for size in one)]


def _factors(
    found: list[tuple[float, float] | None], op: Int64Array, took: Int64Array, link: float, spread: int
) -> FloatArray:
    """How many times as long each activity takes; of a call with several, the longest waits for the borders."""
    part, sent = np.array([one or (1.0, 0.0) for one in found]).T
    order = np.lexsort((-took, op))
    longest = np.zeros(took.size, dtype=bool)
    longest[order[np.append(True, np.diff(op[order]) > 0)]] = True
    wait = sent / (link * _LINK[spread + 1]) + _EXCHANGE_NS[spread + 1]  # a GB/s is a byte in a ns
    factors: FloatArray = part + np.where((sent > 0) & longest, wait, 0.0) / np.maximum(took, 1)
    return factors
