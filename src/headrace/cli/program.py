"""Runs the user's program inside the command's own process, as `python JOB.py` would."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from headrace.datastream.overrides import Overrides, overriding
from headrace.plan.graph import JobPlan
from headrace.plan.settings import JobSettings

_HEADRACE = Path(__file__).resolve().parent.parent
_DEMO = _HEADRACE / "demo"
_INSTALLED = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")}
"""Python's own modules and other people's packages."""


class Program:
    """A Python file that builds and executes a job."""

    def __init__(self, path: str, args: tuple[str, ...] = ()) -> None:
        self.path = os.path.abspath(path)
        self.shown = path
        self.args = args

    def run(self, overrides: Overrides) -> None:
        """From its first line to its last. Raises whatever it raises, SystemExit included."""
        with self._as_python_would(), overriding(overrides):
            runpy.run_path(self.path, run_name="__main__")

    def plan(self, overrides: Overrides) -> tuple[JobPlan, JobSettings] | None:
        """The first job it executes, without running it; the program ends there. None if it executes none.

        What the program prints on the way goes to standard error: standard output belongs to the command.
        """

        def intercept(plan: JobPlan, settings: JobSettings) -> None:
            raise _Intercepted(plan, settings)

        try:
            with contextlib.redirect_stdout(sys.stderr):
                self.run(replace(overrides, on_execute=intercept))
        except _Intercepted as caught:
            return caught.plan, caught.settings
        return None

    def own_traceback(self, error: BaseException) -> str:
        """The traceback from the program's first frame on: what is above it is this command, not the program."""
        shown = traceback.TracebackException(type(error), error, _from_frame_of(self.path, error.__traceback__))
        return "".join(shown.format())

    def own_line(self, error: BaseException) -> str | None:
        """The innermost line of the user's own code, as `file:line`."""
        for frame in reversed(traceback.extract_tb(_from_frame_of(self.path, error.__traceback__))):
            if _is_users(Path(frame.filename).resolve()):
                return f"{_short(frame.filename)}:{frame.lineno}"
        return None

    @contextlib.contextmanager
    def _as_python_would(self) -> Iterator[None]:
        argv, path = sys.argv, list(sys.path)
        sys.argv = [self.shown, *self.args]
        sys.path.insert(0, os.path.dirname(self.path))
        try:
            yield
        finally:
            sys.argv, sys.path[:] = argv, path


class _Intercepted(BaseException):
    """Carries a job out of its program. No Exception: the program's own `except` must not catch it."""

    def __init__(self, plan: JobPlan, settings: JobSettings) -> None:
        super().__init__("intercepted")
        self.plan = plan
        self.settings = settings


def _from_frame_of(path: str, trace: TracebackType | None) -> TracebackType | None:
    found = trace
    while found is not None and found.tb_frame.f_code.co_filename != path:
        found = found.tb_next
    return trace if found is None else found


def _is_users(file: Path) -> bool:
    if file.is_relative_to(_DEMO):
        return True
    return not any(file.is_relative_to(folder) for folder in (_HEADRACE, *_INSTALLED))


def _short(filename: str) -> str:
    relative = os.path.relpath(filename)
    return filename if relative.startswith("..") else relative
