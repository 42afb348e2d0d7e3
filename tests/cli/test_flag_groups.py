"""Commands that take whole groups of flags."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
import typer

from tracekit.cli import main
from tracekit.cli.options import with_flags


@dataclass(frozen=True)
class Inner:
    depth: Annotated[int, typer.Option()] = 3
    sort: Annotated[str, typer.Option()] = "of the group"


@dataclass(frozen=True)
class Outer:
    first: Annotated[int, typer.Option()] = 1
    inner: Inner = field(default_factory=Inner)
    last: Annotated[int, typer.Option()] = 9


def called(*words: str) -> dict[str, Any]:
    """What a command with both groups is given for these words."""
    given: dict[str, Any] = {}

    @with_flags
    def command(name: str, *, outer: Outer, sort: Annotated[str, typer.Option("--by")] = "its own") -> None:
        """Say."""
        given.update(name=name, outer=outer, sort=sort)

    app = typer.Typer()
    app.command()(command)
    made: Any = typer.main.get_command(app)
    given["flags"] = [parameter.name for parameter in made.params]
    made.main(args=list(words), standalone_mode=False)
    return given


def test_flags_of_groups_stand_in_the_place_of_the_group() -> None:
    assert called("x")["flags"][:5] == ["name", "first", "depth", "last", "sort"]


def test_values_reach_the_group_that_declares_them() -> None:
    given = called("x", "--depth", "5", "--last", "7")
    assert (given["name"], given["outer"]) == ("x", Outer(inner=Inner(depth=5), last=7))


def test_a_flag_of_the_command_replaces_that_of_a_group() -> None:
    given = called("x", "--by", "y")
    assert given["sort"] == "y"
    assert given["outer"].inner.sort == "of the group"
    with pytest.raises(Exception, match="No such option"):
        called("x", "--sort", "y")


@pytest.mark.parametrize("command", ["report", "idle", "view", "export", "xsp"])
def test_commands_that_read_layers_take_the_same_choice_of_ranges(command: str) -> None:
    flags = {option for parameter in main.declared(command).params for option in parameter.opts}
    assert {"--nvtx-depth", "--nvtx-include", "--nvtx-exclude", "--nvtx-domain"} <= flags
