"""What a change is about, in words: a layer, the work that has something in common."""

from __future__ import annotations

from typing import Final

from tracekit.diff.inputs import shapes_told, types_of
from tracekit.diff.model import Contribution
from tracekit.diff.phrases import LONGEST
from tracekit.facts.stack_names import NO_LAYERS
from tracekit.names import category_name, shorten_name

__all__ = ["PHASES_NAMED", "layer_named", "work_named"]

PHASES_NAMED: Final = {
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimizer",
    "communication": "the reduction of gradients",
    "data": "loading and copying of data",
    "set_up": "the set-up",
    "other": "the rest of the step",
}
_KINDS: Final = {"optimizer": "the optimizer", "other": "work of no known category"}
"""Categories whose name does not read as a subject."""


def layer_named(place: dict[str, str]) -> str:
    """The layer of a place."""
    path = place["layer"]
    if path in NO_LAYERS:
        return NO_LAYERS[path]
    return f"layer {path}" + (f" ({place['type']})" if "type" in place else "")


def work_named(by: set[str], one: Contribution) -> str:
    """The work that has these columns in common; empty if there are none."""
    place = one.place
    during = f" in {PHASES_NAMED[place['phase']]}" if "phase" in by else ""
    if during and "category" in by and place["category"] == place["phase"]:
        during = ""
    if by & {"operator", "name"}:
        head = place["operator"] if "operator" in by else shorten_name(place["name"], LONGEST)
        head += f" with {shapes_told(place['shapes'])}" if "shapes" in by else ""
        head += f" of {types_of(place['dtypes'])}" if "dtypes" in by and types_of(place["dtypes"]) else ""
    elif "category" in by:
        head = _KINDS.get(place["category"]) or category_name(place["category"])
        if place["category"] == "optimizer" != place.get("phase"):  # clipping of gradients, too
            head = "work on many tensors at once"
    elif "layer" in by:
        return layer_named(place) + during
    elif "type" in by:
        return f"layers of type {place['type']}{during}"
    else:
        return during.removeprefix(" in ")
    if "layer" in place:
        layer = f" in {layer_named(place)}"
        head += layer if layer not in (f" in {head}", during) else ""
    elif "type" in by:
        head += f" in layers of type {place['type']}"
    elif one.layers > 1:
        head += f" in {one.layers} layers"
    return head + during
