"""`headrace run`: a program's job, from the newest checkpoint to its end."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Any

import click
from rich.console import Console

from headrace.cli.exit_codes import ExitCode, exit_code_of
from headrace.cli.failures import show_failure
from headrace.cli.options import job_options, overrides_from
from headrace.cli.program import Program
from headrace.datastream.overrides import Overrides
from headrace.errors import HeadraceError, JobCanceledError
from headrace.plan.settings import JobSettings
from headrace.runtime.job.observers import Telling, telling
from headrace.runtime.job.status import JobStatus, StatusBoard
from headrace.runtime.job.status_text import resume_text

_EPILOG = "\b\nExit codes:\n" + "\n".join(f"  {code.value:>3}  {code.meaning}" for code in ExitCode)


@click.command(epilog=_EPILOG)
@job_options
@click.option("-v", "--verbose", is_flag=True, help="Show the whole traceback of an error, Headrace's frames too.")
def run(verbose: bool, **given: Any) -> None:
    """Run the job of JOB.py.

    The program is run as `python JOB.py ARGS` would run it; options given here win over what it sets itself.

    Started again, it goes on from the newest complete checkpoint of the job. Ctrl-C stops it and keeps everything; a
    second Ctrl-C does not wait for its tasks.
    """
    program = Program(given["job"], given["args"])
    sys.exit(run_program(program, overrides_from(given), verbose=verbose))


def run_program(program: Program, overrides: Overrides, *, verbose: bool = False) -> int:
    """Run it and say how it went; the exit code."""
    jobs = StartedJobs()
    # Asked to stop by a supervisor: the same clean way out as Ctrl-C.
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        with telling(Telling.ALWAYS, jobs.add):
            program.run(overrides)
    except KeyboardInterrupt:
        _console().print(jobs.suspended_text(), style="yellow", soft_wrap=True)
        return ExitCode.SUSPENDED
    except JobCanceledError as error:
        if jobs.suspended():
            _console().print(jobs.suspended_text(), style="yellow", soft_wrap=True)
            return ExitCode.SUSPENDED
        _console().print(f"headrace: {error}", style="yellow", soft_wrap=True)
        return ExitCode.CANCELED
    except HeadraceError as error:
        show_failure(error, program, _console(), verbose=verbose)
        return exit_code_of(error, ever_ran=jobs.ever_ran())
    except Exception as error:
        show_failure(error, program, _console(), verbose=verbose)
        return ExitCode.FAILED
    finally:
        signal.signal(signal.SIGTERM, before)
    return jobs.verdict(program, _console())


class StartedJobs:
    """The jobs that a program started."""

    def __init__(self) -> None:
        self._jobs: list[tuple[StatusBoard, JobSettings]] = []

    def add(self, board: StatusBoard, settings: JobSettings) -> None:
        self._jobs.append((board, settings))

    def ever_ran(self) -> bool:
        """Whether a record may have been processed."""
        return any(board.report.task_pids for board, _ in self._jobs)

    def suspended(self) -> bool:
        """Whether the last job was stopped so that it can go on."""
        return bool(self._jobs) and self._jobs[-1][0].report.status is JobStatus.SUSPENDED

    def suspended_text(self) -> str:
        if not self._jobs:
            return "headrace: stopped before a job was started."
        board, settings = self._jobs[-1]
        return f"headrace: suspended. {resume_text(board.report, settings)}"

    def verdict(self, program: Program, console: Console) -> int:
        """The exit code of a program that came to its own end."""
        if not self._jobs:
            console.print(
                f"[bold red]headrace:[/] {program.shown} ended without a job. "
                "Call env.execute() at the end of the program.",
                soft_wrap=True,
            )
            return ExitCode.REFUSED
        running = [s.name for board, s in self._jobs if not board.report.status.is_terminal]
        if running:
            console.print(
                f'[bold red]headrace:[/] {program.shown} ended while its job "{running[0]}" was running. '
                "Wait for it in the program: client.get_job_execution_result().result().",
                soft_wrap=True,
            )
            return ExitCode.FAILED
        return ExitCode.FINISHED


def _interrupt(signum: int, frame: FrameType | None) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def _console() -> Console:
    """Standard error as it is now: the live line puts a guard before it while a job runs."""
    return Console(stderr=True, highlight=False)
