"""The program, called in this process."""

from __future__ import annotations

import pytest

from tracekit.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of a command."""
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    out = capsys.readouterr()
    return int(left.value.code or 0), out.out, out.err


def ok(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The stdout of a command that ends well and has nothing to say on stderr."""
    code, out, err = run(capsys, *arguments)
    assert (code, err) == (0, "")
    return out
