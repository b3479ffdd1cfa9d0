"""What the first screen promises."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.cli.exit_codes import ExitCode
from headrace.cli.main import main

README = (Path(__file__).parents[3] / "README.md").read_text()


def test_the_program_is_twenty_lines_and_exactly_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert found is not None
    program = found[1]
    assert len([line for line in program.splitlines() if line.strip()]) <= 20
    monkeypatch.chdir(tmp_path)
    (tmp_path / "alerts.py").write_text(program)
    result = CliRunner().invoke(main, ["explain", "alerts.py"])
    assert result.exit_code == 0, result.output
    assert "exactly-once end to end" in result.output


def test_every_exit_code_is_listed() -> None:
    listed = re.search(r"Exit codes of `headrace run`: (.*?)\n\n", README, re.DOTALL)
    assert listed is not None
    assert [int(n) for n in re.findall(r"\b(\d+) ", listed[1])] == [code.value for code in ExitCode]


@pytest.mark.parametrize("command", ["run", "explain", "doctor", "demo"])
def test_every_command_is_listed(command: str) -> None:
    assert f"| `headrace {command}" in README
