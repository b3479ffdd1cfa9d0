"""The tutorial on operating a job is true: its commands run as they stand on the page, in their order."""

from __future__ import annotations

import json
import re
import shlex
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pages import DOCS, blocks_of

from headrace.cli.main import main
from headrace.cli.options import overrides_from
from headrace.cli.program import Program
from headrace.cli.run import run
from headrace.errors import JobCanceledError
from headrace.runtime.job.running_jobs import running_jobs

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

PAGE = DOCS / "guides" / "operate-a-job.md"
_KEPT = re.compile(r"(\w+)=\$\((.*)\)")


class Terminal:
    """Types the page's lines: a job runs in the first terminal, everything else in the second."""

    def __init__(self) -> None:
        self.variables: dict[str, str] = {}
        self.outputs: dict[str, str] = {}
        self.job: threading.Thread | None = None
        self.endings: list[BaseException | None] = []

    def type(self, line: str) -> None:
        kept = _KEPT.fullmatch(line)
        words = shlex.split(kept[2] if kept else line)
        words = [self.variables.get(word[1:], word) if word.startswith("$") else word for word in words]
        assert words[0] == "headrace"
        if words[1] == "run":
            self._start(words[2:])
            return
        result = CliRunner().invoke(main, words[1:])
        assert result.exit_code == 0, f"{line}: {result.output}"
        self.outputs[" ".join(words[1:3])] = result.stdout
        if kept:
            self.variables[kept[1]] = result.stdout.strip()
        if words[1] in ("stop", "cancel"):
            assert self.job is not None
            self.job.join(60)
            assert not self.job.is_alive()

    def _start(self, words: list[str]) -> None:
        given = run.make_context("run", list(words)).params

        def work() -> None:
            try:
                Program(given["job"], given["args"]).run(overrides_from(given))
                self.endings.append(None)
            except BaseException as error:
                self.endings.append(error)

        self.job = threading.Thread(target=work, daemon=True)
        self.job.start()
        deadline = time.monotonic() + 120
        while not any(job.report.get("checkpoints_completed", 0) >= 2 for job in running_jobs()):
            assert self.job.is_alive(), self.endings
            assert time.monotonic() < deadline, [job.report for job in running_jobs()]
            time.sleep(0.05)


def test_the_commands_of_the_page_do_what_it_says(
    tmp_path: Path, spark_slots: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_STATE_DIR", str(tmp_path / "state"))
    (program,) = blocks_of(PAGE, "python")
    (tmp_path / "jumps.py").write_text(program.text)
    terminal = Terminal()
    lines = [line for block in blocks_of(PAGE, "sh") for line in block.text.splitlines()]
    for line in lines:
        terminal.type(line)

    assert "jumps" in terminal.outputs["list"]
    assert "RUNNING" in terminal.outputs["status jumps"]
    saved = sorted((tmp_path / "savepoints").iterdir())
    # The first was kept, the second was disposed of.
    assert [path.as_uri() for path in saved] == [terminal.outputs["savepoint jumps"].strip()]
    stopped, cancelled = terminal.endings
    assert stopped is None
    assert isinstance(cancelled, JobCanceledError)
    alerts = [line for file in tmp_path.glob("alerts/*.jsonl") for line in file.read_text().splitlines()]
    assert alerts
    assert len({(alert["id"], alert["at"]) for alert in map(json.loads, alerts)}) == len(alerts)
