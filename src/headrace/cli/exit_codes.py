"""What the exit code of `headrace` says. Scripts rely on these numbers: they never change."""

from __future__ import annotations

from enum import IntEnum

from headrace.errors import (
    ConfigurationError,
    FencedError,
    HeadraceError,
    JobCanceledError,
    JobControlError,
    JobDefinitionError,
    JobOwnedError,
    RestoreError,
)


class ExitCode(IntEnum):
    """Each with the sentence that `headrace run --help` prints."""

    FINISHED = 0, "the job came to its end"
    FAILED = 1, "the job, or the program around it, failed"
    USAGE = 2, "the command line is wrong"
    REFUSED = 3, "refused to start: a setting, the program or what it restores from is wrong; nothing was changed"
    OWNED = 4, "another process owns the job's checkpoint directory, or has taken it over"
    NO_SUCH_JOB = 5, "no running job was found to ask, or it gave no answer"
    CANCELED = 6, "the job was cancelled (headrace cancel)"
    SUSPENDED = 130, "stopped by Ctrl-C or headrace stop; the same command resumes"

    meaning: str

    def __new__(cls, value: int, meaning: str) -> ExitCode:
        member = int.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member


def exit_code_of(error: HeadraceError, *, ever_ran: bool) -> ExitCode:
    """The code for an error that ended a program. Storage that fails before the first record refuses the start."""
    if isinstance(error, JobCanceledError):
        return ExitCode.CANCELED
    if isinstance(error, JobControlError):
        return ExitCode.NO_SUCH_JOB
    if isinstance(error, JobOwnedError | FencedError):
        return ExitCode.OWNED
    if isinstance(error, ConfigurationError | JobDefinitionError | RestoreError):
        return ExitCode.REFUSED
    if isinstance(error, OSError) and not ever_ran:
        return ExitCode.REFUSED
    return ExitCode.FAILED
