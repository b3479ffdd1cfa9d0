"""Every error Headrace raises, as one tree. A star marks what another attempt cannot heal: the job ends at once.

HeadraceError
├── JobDefinitionError *        the program is wrong: fix it before it can start
│   ├── DuplicateUidError *
│   ├── StateConflictError *    one state name, two shapes
│   ├── KeyedStateError *       state or timers used where there is no key
│   ├── MalformedPatternError * a pattern that cannot be matched as written
│   ├── ReadOnlyStateError *    broadcast state changed where it may only be read
│   └── TypeMismatchError *     a value that its declared type cannot hold
├── ConfigurationError *        a setting is wrong: the message names it and the wanted value
│   └── MissingDependencyError *
├── RecordError                 a record that cannot be handled
│   ├── DataLossError *         input that was still to be read is gone: the job stops
│   ├── InvalidKeyError
│   └── UserFunctionError       the user's own code raised
│       └── PoisonRecordError * the same record failed in several attempts in a row
├── CheckpointError             one checkpoint did not complete; the job goes on
├── SavepointError              a savepoint that was asked for did not complete
├── StorageError                checkpoint storage refused or failed
├── RestoreError *              a checkpoint cannot be restored as asked
│   ├── CheckpointLostError *   the checkpoint that was published last is gone
│   ├── CommittedOutputError *  a sink has shown output from behind it already
│   ├── DamagedCheckpointError *
│   └── UnsupportedFormatError *
├── JobFailedError *            the job ended and will not restart
│   └── JobCanceledError *      it was cancelled, or stopped from outside
├── JobControlError *           no running job could be found or asked
├── JobOwnedError *             another live driver owns the job directory
├── FencedError *               this driver or task belongs to an older attempt
├── CommitFailedError           nothing happened: retry freely
├── CommitOutcomeUnknownError   it may have landed: keep every file, ask the sink on recovery
├── OutputLostError *           what a completed checkpoint had prepared is gone: the job stops
└── SparkLostError *            Spark died, and it was the program that had started it: the job stops

Every class declares `recovery`: whether another attempt can help, and why. The restart decision reads
`error.retryable` and nothing else; subclasses outside Headrace inherit it or declare their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial


@dataclass(frozen=True, slots=True)
class Recovery:
    """Whether another attempt of the job can succeed after an error, and why. Made by `retry` and `permanent`."""

    retryable: bool
    reason: str


def retry(reason: str) -> Recovery:
    """Another attempt may succeed: the restart strategy decides."""
    return Recovery(True, reason)


def permanent(reason: str) -> Recovery:
    """Every attempt would fail in the same way, or must not be made: the job ends, whatever its restart strategy."""
    return Recovery(False, reason)


class HeadraceError(Exception):
    """Base of everything Headrace raises on purpose."""

    recovery: Recovery = retry("nothing is known that would keep the next attempt from succeeding")
    """Declared by every class. An instance has its own where more is known, as for an error that a task reported."""

    @property
    def retryable(self) -> bool:
        """Whether another attempt can help."""
        return self.recovery.retryable


class JobDefinitionError(HeadraceError, ValueError):
    """The program cannot run as written. Change the program; nothing was started or written."""

    recovery = permanent("each attempt runs the same program")


class DuplicateUidError(JobDefinitionError):
    """Two operators carry one uid, so their state could not be told apart. Rename one."""

    recovery = permanent("each attempt runs the same program")


class StateConflictError(JobDefinitionError):
    """One state name stands for two shapes in one operator, or for another shape than was saved."""

    recovery = permanent("neither the program nor the saved state changes between attempts")


class KeyedStateError(JobDefinitionError):
    """Keyed state or timers were used where no key is set. Call `key_by` before the operator."""

    recovery = permanent("each attempt runs the same program")


class ReadOnlyStateError(JobDefinitionError):
    """Broadcast state was changed on the side that may only read it. Change it in `process_broadcast_element`."""

    recovery = permanent("each attempt runs the same program")


class MalformedPatternError(JobDefinitionError):
    """A pattern cannot be matched as written; the message names the pattern and the way out."""

    recovery = permanent("each attempt runs the same program")


class TypeMismatchError(JobDefinitionError, TypeError):
    """A value does not fit the type the program declared for it."""

    recovery = permanent("each attempt has the same declared types and meets the same value")


class ConfigurationError(HeadraceError, ValueError):
    """A setting has a value that cannot work; the message names the setting and the wanted value."""

    recovery = permanent("each attempt has the same settings")


class MissingDependencyError(ConfigurationError, ImportError):
    """An optional part needs a package that is not installed; the message says how to install it."""

    recovery = permanent("nobody installs a package between two attempts")


class RecordError(HeadraceError):
    """A single record could not be handled."""

    recovery = retry("what the record needs may be different; a record that keeps failing is a `PoisonRecordError`")


class DataLossError(RecordError):
    """Input that a source had still to read is gone. The job stops and does not restart: every attempt would find the
    same gap. The message names what is gone and the way out.

    Connectors subclass it, with an `__init__` that takes the message and named facts and hands both on. Facts are texts
    and whole numbers: the class and they are what goes from the task to the program.
    """

    recovery = permanent("every attempt would find the same gap")

    def __init__(self, message: str, /, **facts: str | int) -> None:
        super().__init__(message)
        self.facts = facts

    def __reduce__(self) -> tuple[object, ...]:
        # Named arguments do not survive the default way of pickling an exception.
        return partial(type(self), **self.facts), (str(self),)


class InvalidKeyError(RecordError, ValueError):
    """A key selector returned something that cannot be a key (None, unhashable, of no known encoding)."""

    recovery = retry("a key selector may use more than the record; one that keeps failing is a `PoisonRecordError`")


class UserFunctionError(RecordError):
    """The user's own function raised. Carries where: operator, uid, the record and the user's line."""

    recovery = retry("user code may depend on more than the record; one that keeps failing is a `PoisonRecordError`")

    def __init__(
        self,
        message: str,
        *,
        operator: str,
        uid: str,
        record: str,
        location: str,
        cause: str,
        exception: str = "",
        blames_record: bool = False,
    ) -> None:
        super().__init__(message)
        self.operator = operator
        self.uid = uid
        self.record = record
        self.location = location
        self.cause = cause
        """The traceback as text."""
        self.exception = exception
        """The name of the exception's class."""
        self.blames_record = blames_record
        """Whether the record may be the reason: there is one, and the exception is none of the environment's
        (`OSError` and what derives from it, or an error of Headrace that another attempt can heal)."""


class PoisonRecordError(UserFunctionError):
    """The same record failed in as many attempts in a row as the restart strategy allows. The job stops and does not
    restart. Correct the function, or set the record aside: see the guide on bad records."""

    recovery = permanent("the record fails whenever it is read again")

    way_out = (
        "Correct the function, or set such records aside in a side output, and start the job again: it goes on from "
        "its last checkpoint. The limit is same_record_limit of the restart strategy; None retries without end."
    )
    attempts: int = 0
    """How many in a row failed on the record."""

    @classmethod
    def after(cls, attempts: int, error: UserFunctionError, job_name: str) -> PoisonRecordError:
        """The end of a job whose last `attempts` attempts failed with `error`."""
        in_a_row = "1 attempt" if attempts == 1 else f"{attempts} attempts in a row"
        poison = cls(
            f'Job "{job_name}" failed on the same record in {in_a_row} and is not restarted: {error} {cls.way_out}',
            operator=error.operator,
            uid=error.uid,
            record=error.record,
            location=error.location,
            cause=error.cause,
            exception=error.exception,
            blames_record=True,
        )
        poison.attempts = attempts
        return poison


class CheckpointFailure(Enum):
    """Why a checkpoint did not complete. Tolerance counters and pages use the member, never the text."""

    TIMED_OUT = "timed out"
    DECLINED = "declined by a task"
    TASK_FAILED = "a task failed"
    STORAGE = "storage failed"
    STATE_TOO_LARGE = "state larger than the storage allows"
    SUPERSEDED = "a newer checkpoint completed first"
    FENCED = "a newer attempt owns the job"
    JOB_STOPPING = "the job is stopping"


class CheckpointError(HeadraceError):
    """One checkpoint was abandoned; the job goes on unless too many fail in a row."""

    recovery = retry("the next checkpoint may complete")

    def __init__(self, failure: CheckpointFailure, checkpoint_id: int, detail: str = "") -> None:
        text = f"Checkpoint {checkpoint_id} {failure.value}"
        super().__init__(f"{text}: {detail}" if detail else f"{text}.")
        self.failure = failure
        self.checkpoint_id = checkpoint_id
        self.detail = detail

    def __reduce__(self) -> tuple[object, ...]:
        # The default would hand the finished text to __init__ when the error crosses a process boundary.
        return type(self), (self.failure, self.checkpoint_id, self.detail)


class SavepointError(HeadraceError):
    """A savepoint did not complete; the message says whether the job goes on. Ask for it again."""

    recovery = retry("it can be requested again; the job goes on")


class StorageError(HeadraceError, OSError):
    """Checkpoint storage could not be read or written; names the path and the reason."""

    recovery = retry("storage may answer again")


class RestoreError(HeadraceError):
    """A checkpoint cannot be restored into this program as asked; nothing was read from any source."""

    recovery = permanent("neither the checkpoint nor the program changes between attempts")


class CheckpointLostError(RestoreError):
    """The checkpoint that was published last is gone, so a start would go back to older state than was committed.
    Put it back, choose a checkpoint with --from, or begin with nothing with --fresh."""

    recovery = permanent("a file that is gone does not come back by itself; a person can choose another checkpoint")


class CommittedOutputError(RestoreError):
    """A sink has committed newer output than the checkpoint that is to be restored: it would be written a second time.
    Start without --from to go on from the newest checkpoint, or allow it with --allow-duplicates."""

    recovery = permanent("what a sink has committed stays committed")


class DamagedCheckpointError(RestoreError):
    """A file of the checkpoint is missing, short or has another hash than was recorded."""

    recovery = permanent("no attempt mends a file; a person can choose another checkpoint")

    found_size: int | None = None
    """Bytes that were found where another number was recorded; None for any other damage."""


class UnsupportedFormatError(RestoreError):
    """The checkpoint was written in a format this version does not read."""

    recovery = permanent("each attempt runs the same release")


class JobFailedError(HeadraceError):
    """The job failed and its restart strategy gives it no further attempt."""

    recovery = permanent("the restart strategy has decided already")


class JobCanceledError(JobFailedError):
    """Somebody cancelled or suspended the job; nothing is wrong with it."""

    recovery = permanent("a person wants the job to end")


class JobControlError(HeadraceError):
    """A command found no running job of that name, found several, or got no answer."""

    recovery = permanent("a command raises it, never an attempt")


class JobOwnedError(HeadraceError):
    """Another live process owns this job's directory. Stop it, or start with --take-over."""

    recovery = permanent("two drivers of one job would undo each other's work")


class FencedError(HeadraceError):
    """A newer attempt of the job exists; this one must not publish, commit or delete anything."""

    recovery = permanent("a newer attempt owns the job, and another one here would fence it off")


class CommitFailedError(HeadraceError):
    """A sink's commit did not happen. It may be retried freely."""

    recovery = retry("the sink may answer again, and a commit can be repeated")


class CommitOutcomeUnknownError(HeadraceError):
    """A sink's commit may or may not have landed. Nothing is dropped; recovery asks the sink."""

    recovery = retry("the sink may answer again, and recovery asks it")


class OutputLostError(HeadraceError):
    """Output that a completed checkpoint had prepared is gone and was never shown. The job stops and does not restart:
    to go on would leave a gap that nobody notices. The message names the checkpoint and the way out."""

    recovery = permanent("what is gone does not come back, and to go on would leave a gap")


class SparkLostError(HeadraceError):
    """Spark's JVM died, or its application was stopped, and Headrace cannot replace it: the program brought its own
    SparkSession, or DataFrames of it. The job stops. Run the same command again: it continues from its last checkpoint.
    """

    recovery = permanent("DataFrames and sessions of the program belong to the Spark that died")
