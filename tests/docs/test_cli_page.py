"""The command line page shows what the commands say of themselves."""

from __future__ import annotations

import subprocess
import sys

from pages import DOCS, ROOT

from headrace.cli.main import main

SCRIPT = ROOT / "scripts" / "generate_cli_help.py"


def test_the_help_on_the_page_is_that_of_the_commands() -> None:
    run = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_every_command_has_its_help_on_the_page() -> None:
    page = (DOCS / "cli.md").read_text()
    for command in main.list_commands(None):  # type: ignore[arg-type]  # the list does not depend on the context
        assert f"<!-- help: {command} -->" in page
        assert f"## `headrace {command}`" in page
