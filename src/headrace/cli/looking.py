"""What commands that look at checkpoints share: how a refusal ends them, and how JSON and tables are written."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace.cli.exit_codes import exit_code_of
from headrace.errors import HeadraceError

_WIDTH_OF_A_FILE = 200
"""Where the output is no terminal, tables are not squeezed into 80 columns."""


@contextmanager
def refusals() -> Iterator[None]:
    """Show an error of ours as one sentence and end the command with its exit code."""
    try:
        yield
    except HeadraceError as error:
        console = Console(stderr=True, highlight=False)
        console.print(f"[bold red]headrace:[/] {escape(str(error))}", soft_wrap=True)
        sys.exit(exit_code_of(error, ever_ran=False))


def console() -> Console:
    """Standard output as it is now."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=_WIDTH_OF_A_FILE)


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """An empty table in the style of every command; `right` names the columns of numbers."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def echo_json(value: Any) -> None:
    """The value for programs: one document, indented, with stable names."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def moment(milliseconds: int) -> str:
    """A point in time in the reader's own zone."""
    if not milliseconds:
        return "–"
    return datetime.fromtimestamp(milliseconds / 1_000).astimezone().strftime("%Y-%m-%d %H:%M:%S")
