"""The command `headrace`. Each command lives in the file of its name and is loaded when it is asked for."""

from __future__ import annotations

from importlib import import_module, metadata

import click

_COMMANDS = {
    "run": "Run the job of a program.",
    "explain": "Explain a job without running it.",
    "list": "List your jobs that run on this machine.",
    "status": "Show what a job is doing.",
    "savepoint": "Take a savepoint of a running job, or dispose of one.",
    "stop": "Stop a running job, with a savepoint or without.",
    "cancel": "End a running job for good.",
    "checkpoints": "Look at checkpoints: list, inspect, verify, gc.",
    "state": "Read the state of a checkpoint or savepoint.",
    "sinks": "Look after what sinks have left on servers.",
    "doctor": "Check this machine: Java, PySpark, Python worker, Spark settings, slots, storage.",
    "demo": "Kill a running job twice, and count what arrived.",
}

_MODULES = {"list": "list_jobs"}
"""Where the file of a command cannot have its name."""


class _Commands(click.Group):
    """Loads a command's module only for that command: `doctor` must work where others could not be imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = _MODULES.get(cmd_name, cmd_name)
        command = getattr(import_module(f"headrace.cli.{module}"), module)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(metadata.version("headrace"), prog_name="headrace")
def main() -> None:
    """Stateful streaming on Spark that comes through crashes exactly-once."""
