"""Whether the small files of a job directory that say which checkpoints count are what was written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.checkpoint.attempts import OLD_ATTEMPT
from headrace.checkpoint.control_files import DamagedRecordError, decode_record
from headrace.checkpoint.job_directory import ENDED, OLD_ENDED, OLD_STOPPING, JobDirectory
from headrace.checkpoint.lease import decode_lease
from headrace.checkpoint.lineage import OLD_FIELDS
from headrace.checkpoint.places import JobPlace
from headrace.checkpoint.published import Marker
from headrace.checkpoint.storage.base import MissingFileError
from headrace.errors import CheckpointLostError, RestoreError

_KINDS = {"attempt-": OLD_ATTEMPT, "restored-": OLD_FIELDS, "stopping-": OLD_STOPPING, ENDED: OLD_ENDED}


@dataclass(frozen=True, slots=True)
class ControlFile:
    """One that was looked at."""

    path: str
    problem: str = ""
    missing: bool = False


def control_files_of(job: JobPlace) -> Iterator[ControlFile]:
    """Every control file of the job, or of its one run; and the `_metadata` of its last checkpoint if that is gone."""
    directory = JobDirectory(job.storage, job.job_id)
    root = job.storage.location.rstrip("/")
    for name in job.storage.list_names(job.job_id, "lease-") if job.run is None else ():
        try:
            decode_lease(job.storage.read(f"{job.job_id}/{name}"))
        except MissingFileError:
            continue  # replaced by its successor
        except DamagedRecordError as error:
            yield ControlFile(f"{root}/{job.job_id}/{name}", f"{root}/{job.job_id}/{name} is damaged: {error}.")
        else:
            yield ControlFile(f"{root}/{job.job_id}/{name}")
    for run in [job.run] if job.run is not None else directory.runs():
        directory.look_at(run)
        survey = directory.survey()
        home = f"{job.job_id}/run-{run:06d}"
        for name in survey.names:
            problem = _problem(job, f"{home}/{name}", name)
            if problem is not None:
                where = f"{root}/{home}/{name}"
                yield ControlFile(where, f"{where} is damaged: {problem}." if problem else "")
        if ENDED in survey.names:
            continue
        try:
            survey.completed()
        except CheckpointLostError as error:
            yield ControlFile(f"{root}/{home}", str(error), missing=True)
        except RestoreError:
            continue  # damaged metadata and damaged records are findings of their own


def _problem(job: JobPlace, path: str, name: str) -> str | None:
    """What is wrong with it; empty if nothing is, None if it is no control file."""
    marker = Marker.named(name)
    fields = next((fields for start, fields in _KINDS.items() if name.startswith(start)), None)
    if (marker is None and fields is None) or name.endswith("/"):
        return None
    try:
        data = job.storage.read(path)
        if marker is not None:
            marker.check(data)
        else:
            record = decode_record(data, fields or ())
            numbers = [int(number) for number in name.split("-")[1:]]
            if name.startswith(("attempt-", "restored-")) and record.get("attempt", numbers[0]) != numbers[0]:
                raise DamagedRecordError(f"it belongs to attempt {record['attempt']}")
            if name.startswith("stopping-") and record.get("checkpoint_id") != numbers[1]:
                raise DamagedRecordError(f"it belongs to savepoint {record.get('checkpoint_id')}")
    except MissingFileError:
        return None  # removed since it was listed
    except DamagedRecordError as error:
        return str(error)
    return ""
