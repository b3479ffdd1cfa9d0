"""Every error Headrace raises, as one tree.

HeadraceError
├── JobDefinitionError          the program is wrong: fix it before it can start
│   ├── DuplicateUidError
│   ├── StateConflictError      one state name, two shapes
│   ├── KeyedStateError         state or timers used where there is no key
│   ├── MalformedPatternError   a pattern that cannot be matched as written
│   ├── ReadOnlyStateError      broadcast state changed where it may only be read
│   └── TypeMismatchError       a value that its declared type cannot hold
├── ConfigurationError          a setting is wrong: the message names it and the wanted value
│   └── MissingDependencyError
├── RecordError                 a record that cannot be handled
│   ├── DataLossError           input that was still to be read is gone: the job stops
│   ├── InvalidKeyError
│   └── UserFunctionError       the user's own code raised
├── CheckpointError             one checkpoint did not complete; the job goes on
├── SavepointError              a savepoint that was asked for did not complete
├── StorageError                checkpoint storage refused or failed
├── RestoreError                a checkpoint cannot be restored as asked
│   ├── CommittedOutputError    a sink has shown output from behind it already
│   ├── DamagedCheckpointError
│   └── UnsupportedFormatError
├── JobFailedError              the job ended and will not restart
│   └── JobCanceledError        it was cancelled, or stopped from outside
├── JobControlError             no running job could be found or asked
├── JobOwnedError               another live driver owns the job directory
├── FencedError                 this driver or task belongs to an older attempt
├── CommitFailedError           nothing happened: retry freely
├── CommitOutcomeUnknownError   it may have landed: keep every file, ask the sink on recovery
└── OutputLostError             what a completed checkpoint had prepared is gone: the job stops
"""

from __future__ import annotations

from enum import Enum
from functools import partial


class HeadraceError(Exception):
    """Base of everything Headrace raises on purpose."""


class JobDefinitionError(HeadraceError, ValueError):
    """The program cannot run as written. Change the program; nothing was started or written."""


class DuplicateUidError(JobDefinitionError):
    """Two operators carry one uid, so their state could not be told apart. Rename one."""


class StateConflictError(JobDefinitionError):
    """One state name stands for two shapes in one operator, or for another shape than was saved."""


class KeyedStateError(JobDefinitionError):
    """Keyed state or timers were used where no key is set. Call `key_by` before the operator."""


class ReadOnlyStateError(JobDefinitionError):
    """Broadcast state was changed on the side that may only read it. Change it in `process_broadcast_element`."""


class MalformedPatternError(JobDefinitionError):
    """A pattern cannot be matched as written; the message names the pattern and the way out."""


class TypeMismatchError(JobDefinitionError, TypeError):
    """A value does not fit the type the program declared for it."""


class ConfigurationError(HeadraceError, ValueError):
    """A setting has a value that cannot work; the message names the setting and the wanted value."""


class MissingDependencyError(ConfigurationError, ImportError):
    """An optional part needs a package that is not installed; the message says how to install it."""


class RecordError(HeadraceError):
    """A single record could not be handled."""


class DataLossError(RecordError):
    """Input that a source had still to read is gone. The job stops and does not restart: every attempt would find the
    same gap. The message names what is gone and the way out.

    Connectors subclass it, with an `__init__` that takes the message and named facts and hands both on. Facts are texts
    and whole numbers: the class and they are what goes from the task to the program.
    """

    def __init__(self, message: str, /, **facts: str | int) -> None:
        super().__init__(message)
        self.facts = facts

    def __reduce__(self) -> tuple[object, ...]:
        # Named arguments do not survive the default way of pickling an exception.
        return partial(type(self), **self.facts), (str(self),)


class InvalidKeyError(RecordError, ValueError):
    """A key selector returned something that cannot be a key (None, unhashable, of no known encoding)."""


class UserFunctionError(RecordError):
    """The user's own function raised. Carries where: operator, uid, the record and the user's line."""

    def __init__(self, message: str, *, operator: str, uid: str, record: str, location: str, cause: str) -> None:
        super().__init__(message)
        self.operator = operator
        self.uid = uid
        self.record = record
        self.location = location
        self.cause = cause


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


class StorageError(HeadraceError, OSError):
    """Checkpoint storage could not be read or written; names the path and the reason."""


class RestoreError(HeadraceError):
    """A checkpoint cannot be restored into this program as asked; nothing was read from any source."""


class CommittedOutputError(RestoreError):
    """A sink has committed newer output than the checkpoint that is to be restored: it would be written a second time.
    Start without --from to go on from the newest checkpoint, or allow it with --allow-duplicates."""


class DamagedCheckpointError(RestoreError):
    """A file of the checkpoint is missing, short or has another hash than was recorded."""

    found_size: int | None = None
    """Bytes that were found where another number was recorded; None for any other damage."""


class UnsupportedFormatError(RestoreError):
    """The checkpoint was written in a format this version does not read."""


class JobFailedError(HeadraceError):
    """The job failed and its restart strategy gives it no further attempt."""


class JobCanceledError(JobFailedError):
    """Somebody cancelled or suspended the job; nothing is wrong with it."""


class JobControlError(HeadraceError):
    """A command found no running job of that name, found several, or got no answer."""


class JobOwnedError(HeadraceError):
    """Another live process owns this job's directory. Stop it, or start with --take-over."""


class FencedError(HeadraceError):
    """A newer attempt of the job exists; this one must not publish, commit or delete anything."""


class CommitFailedError(HeadraceError):
    """A sink's commit did not happen. It may be retried freely."""


class CommitOutcomeUnknownError(HeadraceError):
    """A sink's commit may or may not have landed. Nothing is dropped; recovery asks the sink."""


class OutputLostError(HeadraceError):
    """Output that a completed checkpoint had prepared is gone and was never shown. The job stops and does not restart:
    to go on would leave a gap that nobody notices. The message names the checkpoint and the way out."""
