"""Put the help of every command into `docs/cli.md`. With `--check`, say whether it is up to date.

    python scripts/generate_cli_help.py [--check]

A block stands behind a marker, `<!-- help: run -->`; the text around it is written by hand.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from click.testing import CliRunner

from headrace.cli.main import main as headrace

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"
WIDTH = "80"

_BLOCK = re.compile(r"(<!-- help: ?([\w -]*) -->\n```text\n).*?(^```$)", re.MULTILINE | re.DOTALL)


def help_of(command: str) -> str:
    """What `headrace COMMAND --help` prints on a terminal of 80 columns."""
    arguments = [*command.split(), "--help"]
    result = CliRunner().invoke(headrace, arguments, prog_name="headrace", env={"COLUMNS": WIDTH})
    if result.exit_code != 0:
        raise SystemExit(f"headrace {' '.join(arguments)} ended with {result.exit_code}: {result.output}")
    return "\n".join(line.rstrip() for line in result.output.splitlines()) + "\n"


def with_help(text: str) -> str:
    """The page with every block as the commands are now."""
    return _BLOCK.sub(lambda match: match[1] + help_of(match[2]) + match[3], text)


def commands_shown(text: str) -> list[str]:
    return [match[2] for match in _BLOCK.finditer(text) if match[2]]


def main() -> int:
    text = PAGE.read_text()
    wanted = with_help(text)
    if "--check" in sys.argv[1:]:
        if text == wanted:
            return 0
        print(f"{PAGE} is not what the commands say. Run python scripts/generate_cli_help.py.")
        return 1
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
