"""`tracekit predict`: the time of a run that was not measured, from those that were, or from one trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

from tracekit.cli import options as flags
from tracekit.cli import output as out
from tracekit.cli.options import Reading, with_flags
from tracekit.cli.plain import PlainCommand
from tracekit.errors import MissingDependencyError, UsageError, nearest
from tracekit.facts.distribution import how_to_install
from tracekit.files import keep_inputs
from tracekit.report import formats
from tracekit.report.formats import Can

if TYPE_CHECKING:
    from tracekit.predict import Predictor, Runs

__all__ = ["predict"]

_OF_TRACE: Final = "trace"


class _OrTrace(TyperGroup):
    """Commands; a first word that is none of them, and no flag of the program, is a trace."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The words, with the command for traces before those of a trace."""
        mistyped = bool(args) and bool(nearest(args[0], self.commands)) and not Path(args[0]).exists()
        if args and args[0] not in (*self.commands, "-h", "--help") and not mistyped:
            args = [_OF_TRACE, *args]
        return super().parse_args(ctx, args)


predict = typer.Typer(
    name="predict",
    cls=_OrTrace,
    help="Predict the time of a run that was not measured.",
    epilog="tracekit predict TRACE is short for tracekit predict trace TRACE.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
Data = Annotated[
    Path, typer.Argument(metavar="DATA", help="A table of runs that were measured, CSV or Parquet.")
]
Describe = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="A TOML file that says what the columns mean. Without one, their names tell."
    ),
]
ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="A file of tracekit predict fit.")]


@with_flags
def fit(
    data: Data,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Write the model to this file, as JSON.")
    ],
    describe: Describe = None,
    model: Annotated[
        str, typer.Option(metavar="NAME", help="Fit this model; auto chooses by runs left out.")
    ] = "auto",
) -> None:
    """Fit a model to runs that were measured."""
    from tracekit.predict import fit, save

    runs = _measured(data, describe)
    fitted = fit(runs, model)
    save(fitted, output)
    out.say(f"{output}: {fitted.summary()}")
    for line in fitted.lacked():
        out.say(f"tracekit: {line}")


def _measured(data: Path, describe: Path | None) -> Runs:
    """The rows of a table with times. Raises MissingDependencyError where models cannot be fitted."""
    from importlib.util import find_spec

    from tracekit.predict import columns_of, read_description, read_runs, recognised

    if find_spec("sklearn") is None or find_spec("scipy") is None:
        raise MissingDependencyError("fitting needs scikit-learn and SciPy", remedy=how_to_install("predict"))
    keep_inputs([data, *([describe] if describe else [])])
    if describe is None:
        description = recognised(columns_of(data), data)
        columns = description.columns.items()
        told = ", ".join(role if role == column else f"{column} as {role}" for role, column in columns)
        out.say(f"tracekit: {description.target} is the time in {description.unit}; columns used: {told}")
    else:
        description = read_description(describe)
    runs = read_runs(data, description)
    for line in runs.left_out:
        out.say(f"tracekit: left out: {line}")
    return runs


@with_flags
def run(
    model: ModelFile,
    table: Annotated[
        Path | None,
        typer.Option(
            "--table", metavar="FILE", help="Predict the rows of this table, with the same columns."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE,…", help="Predict every combination of these values; repeatable."
        ),
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option("--from", metavar="RUN", help="What is not set is as in this captured run."),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="What an hour of one device costs: money, or energy. The cheapest comes first."
        ),
    ] = None,
    format_: flags.ReportFormat = None,
    output: flags.Output = None,
    figures: flags.Figures = None,
    figure_format: flags.FigureFormat = "svg",
) -> None:
    """Predict the times of other runs.

    Each comes with the range in which it lies in 90 % of cases. Rows too far from what was measured get no time.
    """
    from tracekit.predict import load, priced
    from tracekit.report.predict import answers_section

    keep_inputs([model, *([table] if table else [])])
    if price is not None and not 0 <= price < float("inf"):
        raise UsageError(f"--price is {price:g}", remedy="give what an hour of a device costs, 0 or more")
    fitted = load(model)
    asked = _asked(fitted, table, settings or [], {} if like is None else _row_of(like))
    chosen = formats.choose_format(Can.REPORT, format_, output, command="predict run")
    answers = fitted.predict(asked)
    if price is not None:
        asked, answers = priced(fitted.description, asked, answers, price)
    if Can.FILES not in chosen.can:
        section = answers_section(fitted, asked, answers)
        out.emit_section(section, chosen, output, figures=figures, figure_format=figure_format)
        return
    if figures is not None:
        out.emit_figures(answers_section(fitted, asked, answers), figures, figure_format)
    if table is None:
        answers = asked.frame.drop("id", "configuration", "work", strict=False).hstack(answers.drop("id"))
    out.emit_frame(answers, chosen, output, piped=True)


def _row_of(run: Path) -> dict[str, str]:
    """What `tracekit dataset` tells of a captured run, by column."""
    from tracekit.cli.sources import local, read_one
    from tracekit.predict.dataset import dataset

    made = dataset([local(run)], lambda path: read_one(path, None, Reading()))
    if made.table.height > 1:
        raise UsageError(f"it holds {made.table.height} runs", path=run, remedy="name one of them")
    row = made.table.row(0, named=True)
    return {name: str(value) for name, value in row.items() if value is not None}


def _asked(fitted: Predictor, table: Path | None, settings: Sequence[str], like: Mapping[str, str]) -> Runs:
    """The rows to predict. Raises UsageError unless they are given in one way."""
    from tracekit.predict import grid_of, read_runs, settings_of

    if table is None and not settings and not like:
        raise UsageError("predict run needs rows", remedy="give --table FILE or --set NAME=VALUE")
    if table is not None and (settings or like):
        raise UsageError(
            "--table has rows of its own, which --set and --from do not change",
            remedy="write the values into the table",
        )
    if table is None:
        return grid_of(settings_of(settings), fitted.description, {**fitted.known(), **like}, fitted.support)
    return read_runs(table, fitted.description, measured=False)


@with_flags
def evaluate(
    data: Data,
    describe: Describe = None,
    split: Annotated[
        str,
        typer.Option(
            metavar="RULE",
            help="The rows to predict from the others: gpus>2, p75(batch), device=NAME, kfold (configurations in five parts), …",
        ),
    ] = "kfold",
    group: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Also show the errors for each value of this column.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Evaluate this model; repeatable. [default: auto]"),
    ] = None,
    format_: flags.ReportFormat = None,
    output: flags.Output = None,
    figures: flags.Figures = None,
    figure_format: flags.FigureFormat = "svg",
) -> None:
    """Show how well models predict runs that they have not seen."""
    from tracekit.predict import evaluate
    from tracekit.report.predict import evaluation_section

    chosen = formats.choose_format(Can.REPORT, format_, output, command="predict evaluate", several=True)
    found = evaluate(_measured(data, describe), split, group or "", model or ["auto"])
    out.emit_section(evaluation_section(found), chosen, output, figures=figures, figure_format=figure_format)


@with_flags
def explain(
    model: ModelFile,
    format_: flags.ReportFormat = None,
    output: flags.Output = None,
) -> None:
    """Show what a model consists of, and how sure it is."""
    from tracekit.predict import load
    from tracekit.report.predict import model_section

    keep_inputs([model])
    chosen = formats.choose_format(Can.REPORT, format_, output, command="predict explain", several=True)
    out.emit_section(model_section(load(model)), chosen, output, figures=None, figure_format="svg")


@with_flags
def trace(
    trace: flags.TraceFile,
    batch: Annotated[
        str | None,
        typer.Option(metavar="2x", help="With this many times the samples of a step on each device."),
    ] = None,
    gpus: Annotated[
        int | None, flags.flag("On this many devices, each with that batch and a copy of the model.", min=1)
    ] = None,
    device: Annotated[str | None, typer.Option(metavar="NAME", help="On this device, such as H100.")] = None,
    format_: flags.ReportFormat = None,
    output: flags.Output = None,
    figures: flags.Figures = None,
    figure_format: flags.FigureFormat = "svg",
    *,
    selection: flags.Selection,
    reading: Reading,
) -> None:
    """Predict a step of a traced run with another batch, on more devices or on another device.

    Nothing is fitted: work keeps the distance from its roof that the trace shows, and the roof moves.
    """
    from tracekit.analyses.scope import select
    from tracekit.cli.sources import Sources, expanded
    from tracekit.predict import predict_from_trace
    from tracekit.report.predict import trace_section

    if batch is None and gpus is None and device is None:
        raise UsageError("nothing is to change", remedy="give --batch, --gpus or --device")
    chosen = formats.choose_format(Can.REPORT, format_, output, command="predict trace", several=True)
    traces, _ = Sources(expanded([trace]), selection, reading).read()
    if len(traces) > 1:
        raise UsageError(
            f"it holds {len(traces)} traces", path=trace, remedy="choose one with --rank or --process"
        )
    scope = select(traces[0], window=selection.window.value, step=selection.step)
    found = predict_from_trace(scope, batch=_factor(batch), gpus=gpus, device=device)
    out.emit_section(trace_section(found), chosen, output, figures=figures, figure_format=figure_format)


def _factor(text: str | None) -> float:
    """How many times the batch. Raises UsageError for a text that does not say it."""
    if text is None:
        return 1.0
    try:
        return float(text.removesuffix("x"))
    except ValueError:
        raise UsageError(
            f"--batch is {text!r}", remedy="write how many times the batch, such as 2x"
        ) from None


for command in (fit, run, evaluate, explain, trace):
    predict.command(command.__name__, cls=PlainCommand)(command)
