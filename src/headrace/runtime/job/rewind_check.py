"""Whether a start would rewind the job to before output that sinks have committed, and so write it a second time.

Recovery takes the newest checkpoint, and what is committed belongs to it, so it never rewinds as long as storage is
what it was. A start with `--from` may rewind, and so may one that finds storage in an older state (a snapshot of a
volume, lost files): every start is checked.

Sinks remember attempt and checkpoint of what they committed, and these numbers are those of one job directory, its
*history*. What can be compared:

| checkpoint and output are | the output is newer if |
| --- | --- |
| of the same history | its attempt, then its checkpoint id is larger |
| of two: the job moved to another directory | an attempt there wrote it that began from this or a later one |
| of two: another job took the checkpoint | that job's attempt, then its checkpoint id is larger (files, PostgreSQL) |
| of histories that nobody knows | never: nothing is refused on a guess |

A start that restores nothing rewinds to the end of the run before.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from headrace.checkpoint.handles import AttemptId, HistoryPoint
from headrace.checkpoint.job_directory import JobDirectory
from headrace.checkpoint.metadata.model import CheckpointMetadata
from headrace.connectors.sink import CommittedOutput
from headrace.errors import CommittedOutputError
from headrace.operators.factories import SinkFactory
from headrace.plan.graph import JobPlan, Node
from headrace.runtime.job.users_code import in_code_of

MOST_NAMED = 10
"""Pieces of output that an error lists."""


def point_of(metadata: CheckpointMetadata) -> HistoryPoint:
    """When the checkpoint was taken."""
    return HistoryPoint(metadata.history, metadata.attempt, metadata.checkpoint_id)


def refuse_rewind(
    plan: JobPlan,
    metadata: CheckpointMetadata | None,
    directory: JobDirectory,
    source: str,
    *,
    accepted_before: AttemptId = 0,
) -> None:
    """Raise `CommittedOutputError` if any sink has committed output that is newer than the checkpoint.

    Called after the attempt is claimed and before anything is written down about it. `source`: where the checkpoint
    lies if a person chose it. Output of attempts below `accepted_before` may be written again: a person said so.
    """
    for node, output in newer_output(plan, metadata, directory, accepted_before, chosen=bool(source)):
        newest = max(output, key=lambda piece: (piece.attempt, piece.checkpoint_id))
        named = [piece.what for piece in output[-MOST_NAMED:]]
        if len(output) > len(named):
            named.append(f"and {len(output) - len(named)} more")
        start = "nothing" if metadata is None else f"checkpoint {metadata.checkpoint_id} (attempt {metadata.attempt})"
        other = (
            "Start without --from to go on from the job's newest checkpoint"
            if source
            else "Checkpoint storage is older than what this job left there: bring it up to date, or choose a "
            "checkpoint with --from"
        )
        raise CommittedOutputError(
            f'Sink "{node.name}" (uid {node.uid}) has committed the output of checkpoint {newest.checkpoint_id} '
            f"(attempt {newest.attempt}), but {start} from {source or directory.storage.location} is to be restored: "
            f"what was committed since would be written a second time. That is: {', '.join(named)}. {other}; or remove "
            "that output, or accept that it is there twice, and start with --allow-duplicates."
        )


def newer_output(
    plan: JobPlan,
    metadata: CheckpointMetadata | None,
    directory: JobDirectory,
    accepted_before: AttemptId = 0,
    *,
    chosen: bool = False,
) -> Iterator[tuple[Node, list[CommittedOutput]]]:
    """Sinks that have committed newer output than the checkpoint holds, with that output, the newest last.

    Output of a job of another name counts if a person has just chosen that job's checkpoint, and only in sinks that can
    look for it without disturbing that job. What it commits later is not this job's concern.
    """
    if metadata is None:
        points = [HistoryPoint(directory.history, directory.attempts_before, sys.maxsize)]
    else:
        points = list(_points(metadata, directory))
    accepted = HistoryPoint(directory.history, accepted_before - 1, sys.maxsize)
    points = [max(point, accepted) if point.history == accepted.history else point for point in points]
    for node in plan.graph.nodes if points else ():
        if not isinstance(node.factory, SinkFactory):
            continue
        with in_code_of(node, "create_committer()"):
            committer = node.factory.sink.create_committer()
        if committer is None:
            continue
        committer.history = directory.history
        found: list[CommittedOutput] = []
        try:
            with in_code_of(node, "committed_since()"):
                for point in points:
                    job_id = directory.job_id
                    if metadata is not None and point.history == metadata.history:
                        job_id = metadata.job_id
                    if job_id == directory.job_id or (chosen and committer.knows_other_jobs):
                        found += committer.committed_since(job_id, node.uid, point)
        finally:
            with in_code_of(node, "close() of its committer"):
                committer.close()
        if found:
            yield node, found


def _points(metadata: CheckpointMetadata, directory: JobDirectory) -> Iterator[HistoryPoint]:
    """The moments after which nothing may have been committed, one for each history that is known."""
    if not metadata.history:
        return  # written by a version that did not say, or made by hand
    point = point_of(metadata)
    yield point
    if metadata.history != directory.history:
        began = directory.first_attempt_from(point)
        if began is not None:
            yield HistoryPoint(directory.history, began - 1, sys.maxsize)
