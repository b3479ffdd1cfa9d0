"""What the exit code of `headrace` says. Scripts rely on these numbers: they never change."""

from __future__ import annotations

from enum import IntEnum

from headrace.errors import (
    FencedError,
    HeadraceError,
    JobCanceledError,
    JobControlError,
    JobFailedError,
    JobOwnedError,
    UserFunctionError,
)


class ExitCode(IntEnum):
    """Each with the sentence that `headrace run --help` prints."""

    FINISHED = 0, "the job came to its end"
    FAILED = 1, "the job, or the program around it, failed"
    USAGE = 2, "the command line is wrong"
    REFUSED = 3, "refused to start: a setting, the program or what it restores from is wrong; no record was processed"
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
    """The code for an error that ended a program. `ever_ran`: a record may have been processed.

    Before that, an error which another attempt cannot heal refuses the start, and so does storage that fails. Later
    the same error is a failure: a supervisor that starts the job again is then refused, with code 3.
    """
    if isinstance(error, JobCanceledError):
        return ExitCode.CANCELED
    if isinstance(error, JobControlError):
        return ExitCode.NO_SUCH_JOB
    if isinstance(error, JobOwnedError | FencedError):
        return ExitCode.OWNED
    if ever_ran or isinstance(error, JobFailedError | UserFunctionError):
        return ExitCode.FAILED
    return ExitCode.REFUSED if not error.retryable or isinstance(error, OSError) else ExitCode.FAILED
