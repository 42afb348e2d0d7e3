"""`tracekit view`: the trace in Perfetto, or its report, in a browser."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tracekit.cli import options as flags
from tracekit.cli.options import NamedRanges, Reading, with_flags
from tracekit.cli.output import say
from tracekit.cli.sources import one_file, read_one
from tracekit.errors import UsageError

if TYPE_CHECKING:
    from tracekit.cli.serve import Document, Server
    from tracekit.trace import Trace

__all__ = ["PATIENCE_S", "view"]

PERFETTO_PORT: Final = 9001
"""The only one that the Perfetto UI may load from."""

PATIENCE_S: Final = 600.0
"""After which time a file that nobody fetched is served no more."""


@with_flags
def view(
    trace: flags.TraceFile,
    html: Annotated[
        bool, typer.Option("--html", help="Open tracekit's own report with its timeline instead.")
    ] = False,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open a browser, or only print the address.")
    ] = True,
    once: Annotated[
        bool,
        typer.Option(
            "--once/--stay",
            help="End once the browser has fetched the file, or after 10 minutes; or serve it until Ctrl-C.",
        ),
    ] = True,
    port: Annotated[
        int,
        flags.flag(
            "Serve on this port. Perfetto can load from port 9001 only; with --html, 0 picks a free port.",
            min=0,
            max=65535,
        ),
    ] = PERFETTO_PORT,
    process: flags.Process = None,
    step: flags.Step = None,
    window: flags.WindowFlag = flags.WindowKind.steps,
    *,
    ranges: NamedRanges,
    reading: Reading,
) -> None:
    """Open a trace in Perfetto, or its report in a browser.

    The page ui.perfetto.dev gets the trace from this machine, once; it is sent nowhere else.
    """
    from tracekit.cli.serve import Document, Server

    file = one_file(trace)
    layers = ranges.filter
    if html:
        document = _report(read_one(file, process, reading, layers), step, window)
    else:
        _for_perfetto(file)
        document = Document.of_trace(file)
    _serve(Server(document, port), browser=browser, once=once)


def _serve(server: Server, *, browser: bool, once: bool) -> None:
    import webbrowser

    server.start()
    try:
        typer.echo(server.link)
        if browser and not webbrowser.open(server.link):
            say("no browser could be opened; open the address yourself")
        if not once:
            say("serving it until Ctrl-C")
        _wait(server, once=once)
    finally:
        server.stop()


def _for_perfetto(path: Path) -> None:
    """Raise UsageError for a file that Perfetto cannot load, before the server starts."""
    from tracekit.readers import format_of

    wrote = format_of(path)
    if not wrote.is_chrome:
        raise UsageError(
            f"Perfetto cannot read files of {wrote.title}", path=path, remedy="see its report with --html"
        )


def _wait(server: Server, *, once: bool) -> None:
    """Serve until Ctrl-C, or with `once` until the document was sent. Raises UsageError if nobody fetches it."""
    try:
        # A wait without an end cannot be interrupted on every system.
        while not (server.served.wait(0.2) and once):
            if once and time.monotonic() - server.active_at > PATIENCE_S:
                fault = f"no browser has fetched it in {PATIENCE_S / 60:g} minutes"
                raise UsageError(fault, remedy="open the address sooner, or use --stay")
    except KeyboardInterrupt:
        say("")


def _report(read: Trace, step: str | None, window: flags.WindowKind) -> Document:
    from tracekit.report import html
    from tracekit.report.build import build_report

    page = html.render(build_report(read, window=window.value, step=step), read)
    from tracekit.cli.serve import Document

    return Document.of_page("report.html", page)
