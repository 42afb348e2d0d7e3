"""`tracekit kernels`: which kernels take the time."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from tracekit.cli import options as flags
from tracekit.cli.commands.analysis import Part, run_analysis
from tracekit.cli.options import Request, with_flags

__all__ = ["kernels"]


class KernelsBy(str, Enum):
    """What a row of `tracekit kernels` is."""

    name = "name"
    category = "category"
    operator = "operator"
    layer = "layer"
    shape = "shape"


@with_flags
def kernels(
    request: Request,
    by: Annotated[
        KernelsBy | None, typer.Option(help="Show only this table. The default is all tables.")
    ] = None,
    ncu: flags.Ncu = None,
) -> None:
    """Run `kernels`; the registry has its help."""
    needs = {KernelsBy.layer: "layers", KernelsBy.shape: "shapes"}
    part = None if by is None else Part((f"by_{by.value}",), needs.get(by))
    run_analysis("kernels", request, part, ncu=ncu)
