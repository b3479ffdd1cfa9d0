"""Whether a checkpoint that a person chose lies behind output that sinks have committed.

To begin from it would make that output a second time. Recovery by itself never goes back so far: what is committed
belongs to the newest checkpoint, and that is the one it takes. So only a start with `--from` is looked at.

Sinks remember attempt and checkpoint of what they committed, and these numbers are those of one job directory, its
*history*. What can be compared:

| checkpoint and output are | the output is newer if |
| --- | --- |
| of the same history | its attempt, then its checkpoint id is larger |
| of two: the job moved to another directory | an attempt there wrote it that began from this or a later one |
| of histories that nobody knows | never: nothing is refused on a guess |
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from headrace.checkpoint.handles import HistoryPoint
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


def refuse_going_back(plan: JobPlan, metadata: CheckpointMetadata, directory: JobDirectory, source: str) -> None:
    """Raise `CommittedOutputError` if any sink has shown output from behind the checkpoint.

    Called after the attempt is claimed and before anything is written down about it.
    """
    for node, output in output_behind(plan, metadata, directory):
        newest = max(output, key=lambda piece: (piece.attempt, piece.checkpoint_id))
        named = [piece.what for piece in output[-MOST_NAMED:]]
        if len(output) > len(named):
            named.append(f"and {len(output) - len(named)} more")
        raise CommittedOutputError(
            f'Sink "{node.name}" (uid {node.uid}) has committed the output of checkpoint {newest.checkpoint_id} '
            f"(attempt {newest.attempt}), but checkpoint {metadata.checkpoint_id} (attempt {metadata.attempt}) from "
            f"{source} is to be restored: what was committed since would be written a second time. That is: "
            f"{', '.join(named)}. Start without --from to go on from the job's newest checkpoint; or remove that "
            "output, or accept that it is there twice, and start with --allow-duplicates."
        )


def output_behind(
    plan: JobPlan, metadata: CheckpointMetadata, directory: JobDirectory
) -> Iterator[tuple[Node, list[CommittedOutput]]]:
    """Sinks that have committed newer output than the checkpoint holds, with that output, the newest last."""
    points = list(_points(metadata, directory))
    if metadata.job_id != directory.job_id or not points:
        return
    for node in plan.graph.nodes:
        if not isinstance(node.factory, SinkFactory):
            continue
        with in_code_of(node, "create_committer()"):
            committer = node.factory.sink.create_committer()
        if committer is None:
            continue
        committer.history = directory.history
        try:
            with in_code_of(node, "committed_since()"):
                found = [o for point in points for o in committer.committed_since(metadata.job_id, node.uid, point)]
        finally:
            with in_code_of(node, "close() of its committer"):
                committer.close()
        if found:
            yield node, found


def _points(metadata: CheckpointMetadata, directory: JobDirectory) -> Iterator[HistoryPoint]:
    """The moments behind which nothing may have been committed, one for each history that is known."""
    if not metadata.history:
        return  # written by a version that did not say, or made by hand
    point = point_of(metadata)
    yield point
    if metadata.history != directory.history:
        began = directory.first_attempt_from(point)
        if began is not None:
            yield HistoryPoint(directory.history, began - 1, sys.maxsize)
