"""What a file format must be able to do, and what happens to records it cannot read."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import BinaryIO, Literal

from headrace.connectors.files.split import FileSplit, Fingerprint
from headrace.connectors.metrics import CHANGED_FILES_READ, FILES_SKIPPED, RECORDS_SKIPPED, Metrics, Tally
from headrace.connectors.source import SourceBatch
from headrace.errors import ConfigurationError, RecordError
from headrace.types.information import TypeInformation

log = logging.getLogger(__name__)

OnError = Literal["fail", "skip"]
OnChange = Literal["fail", "read"]

_SHOWN_CHARACTERS = 200


class Problem(Enum):
    """What can be wrong with a part of the input; the value is the name of its counter."""

    RECORD = RECORDS_SKIPPED
    FILE = FILES_SKIPPED
    CHANGED = CHANGED_FILES_READ


_LOGGED_AS = {
    Problem.RECORD: "Record skipped",
    Problem.FILE: "File skipped",
    Problem.CHANGED: "Changed file read on",
}


class Problems:
    """Decides by the source's settings whether a problem ends the job, and counts those that do not."""

    def __init__(self, on_error: OnError, on_change: OnChange, metrics: Metrics) -> None:
        self._on_error = on_error
        self._on_change = on_change
        self._tallies = {
            problem: Tally(_LOGGED_AS[problem], metrics.counter(problem.value), log) for problem in Problem
        }

    def bad_record(self, path: str, line: int, text: bytes | str, reason: str) -> None:
        """A record that cannot be read: raise, or count it as skipped."""
        shown = text.decode("utf-8", errors="backslashreplace") if isinstance(text, bytes) else text
        if len(shown) > _SHOWN_CHARACTERS:
            shown = f"{shown[:_SHOWN_CHARACTERS]}… ({len(shown)} characters)"
        self._met(Problem.RECORD, f"{path}, line {line}: {reason}. The line is {shown!r}.")

    def bad_file(self, path: str, reason: str) -> None:
        """A file that is gone or cannot be read at all: raise, or count it as skipped."""
        self._met(Problem.FILE, f"{path}: {reason}.")

    def changed_file(self, path: str, found: Fingerprint, now: Fingerprint) -> None:
        """A file that is no longer what was found: raise, or read it from where we are and count it."""
        text = f"{path} changed after it was found ({found}; now {now})."
        if self._on_change == "fail":
            raise RecordError(
                f"{text} Positions in it mean nothing any more. Write new rows into new files; "
                'to read it on from the saved position all the same, set on_change="read".'
            )
        self._tallies[Problem.CHANGED].add(text)

    def close(self) -> None:
        """Called at the end: what was counted without a line of its own is logged as a sum."""
        for tally in self._tallies.values():
            tally.tell()

    def _met(self, problem: Problem, text: str) -> None:
        if self._on_error == "fail":
            raise RecordError(
                f'{text} Repair the input, or set on_error="skip" to leave such parts out and count them.'
            )
        self._tallies[problem].add(text)


class FileCursor(ABC):
    """One open file. Keeps the position in its split behind the last record it gave."""

    @abstractmethod
    def read(self, limit: int) -> SourceBatch | None:
        """The next records, at most about `limit`; an empty batch where all were skipped, None at the end."""

    @abstractmethod
    def close(self) -> None:
        """Called once."""


class FileFormat(ABC):
    """How files are read. Travels to the tasks, so it holds settings and opens nothing."""

    name: str
    """One or two words for `explain`."""

    def produced_type(self, paths: Sequence[str]) -> TypeInformation | None:
        """Type of the records; may look into the files. Called in the driver when the source is built."""
        return None

    @abstractmethod
    def open(self, split: FileSplit, problems: Problems) -> FileCursor | None:
        """Open the split's file at its position; None if the file was found bad and is to be skipped."""


def open_unchanged(split: FileSplit, problems: Problems) -> BinaryIO | None:
    """Open the file of a split and see to it that it is the one that was found."""
    try:
        file = open(split.path, "rb", buffering=0)  # noqa: SIM115 - the cursor closes it
    except FileNotFoundError:
        problems.bad_file(split.path, "it was deleted before it was read to its end")
        return None
    except OSError as error:
        problems.bad_file(split.path, f"it cannot be opened: {error.strerror}")
        return None
    now = Fingerprint.of(os.fstat(file.fileno()))
    if now != split.fingerprint:
        try:
            problems.changed_file(split.path, split.fingerprint, now)
        except RecordError:
            file.close()
            raise
    return file


def check_policy(setting: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ConfigurationError(f"FileSource has {setting}={value!r}. Give one of {', '.join(map(repr, allowed))}.")
