"""From a checkpoint to what every task, enumerator and sink gets back, before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.checkpoint.metadata.model import CheckpointMetadata
from headrace.checkpoint.restore import OperatorTarget, RestorePlan, plan_restore
from headrace.checkpoint.storage.base import CheckpointStorage
from headrace.checkpoint.storage.paths import WriterScope
from headrace.connectors.sink import Committer
from headrace.operators.factories import CollectFactory, SinkFactory, SourceFactory
from headrace.operators.sink import commit_with_retries, payload_of
from headrace.plan.graph import JobPlan, Node
from headrace.runtime.control.messages import Deploy, SubtaskRestoration
from headrace.runtime.job.collected import CollectedResults
from headrace.runtime.job.users_code import in_code_of
from headrace.runtime.task.routing import edge_records
from headrace.state.object_batches import UNTYPED_PICKLES, RecordPickles


@dataclass(frozen=True, slots=True)
class Restoration:
    """A checkpoint matched with the plan, or nothing to restore."""

    plan: JobPlan
    metadata: CheckpointMetadata | None
    restore: RestorePlan | None
    storage: CheckpointStorage | None = None
    """Where its files lie, if not in the job's own storage."""
    pickles: RecordPickles = UNTYPED_PICKLES
    """What pickle may do in it for records of untyped streams."""

    @classmethod
    def of(
        cls,
        plan: JobPlan,
        metadata: CheckpointMetadata | None,
        storage: CheckpointStorage | None = None,
        *,
        allow_non_restored: bool,
        pickles: RecordPickles = UNTYPED_PICKLES,
    ) -> Restoration:
        """Match by uid; raises `RestoreError` if the program cannot take the state."""
        if metadata is None:
            return cls(plan, None, None, pickles=pickles)
        targets = [
            OperatorTarget(
                uid=node.uid,
                name=node.name,
                parallelism=node.parallelism,
                max_parallelism=node.max_parallelism,
                is_source=isinstance(node.factory, SourceFactory),
                has_sink_state=isinstance(node.factory, SinkFactory | CollectFactory),
                is_keyed=node.factory.keyed,
            )
            for node in plan.graph.nodes
        ]
        restore = plan_restore(metadata, targets, edge_records(plan), allow_non_restored=allow_non_restored)
        return cls(plan, metadata, restore, storage, pickles)

    def deploy(self, level: int, slot: int) -> Deploy:
        """The message that opens one task."""
        if self.restore is None or self.metadata is None:
            return Deploy(restored=False)
        subtasks: list[SubtaskRestoration] = []
        for chain in self.plan.chains:
            if chain.level != level:
                continue
            for subtask, its_slot in enumerate(chain.slots):
                if its_slot == slot:
                    subtasks.extend(self._subtask(self.plan.graph.node(n).uid, subtask) for n in chain.nodes)
        return Deploy(
            restored=True,
            subtasks=tuple(subtasks),
            channels=self.restore.in_flight.of_task(level, slot),
            edges=self.restore.in_flight.edges,
            checkpoint_id=self.metadata.checkpoint_id if self.storage is None else None,
        )

    def _subtask(self, uid: str, subtask: int) -> SubtaskRestoration:
        assert self.restore is not None
        share = self.restore.subtask(uid, subtask)
        return SubtaskRestoration(uid, subtask, share.keyed, share.operator_state, share.extra, share.ended)

    def commit_sinks(
        self,
        job_id: str,
        attempt: int,
        collected: CollectedResults,
        own: CheckpointStorage,
        *,
        history: str = "",
        assert_current: Callable[[], None] = lambda: None,
        advise: Callable[[str], None] = lambda text: None,
    ) -> int:
        """Finish the commits of the restored checkpoint and give up what older attempts left; the items committed.

        `own` is the job's storage, in which the files of the checkpoint lie unless it was brought from outside.
        `assert_current` raises `FencedError` once a newer attempt exists. It is called before every step that others
        can see: a driver that was paused here must not interfere with its successor.
        `advise` gets what an operator should know, such as a second job with the same target.
        """
        files = (self.storage or own).file_store(WriterScope("", 0, attempt).prefix)
        committed = 0
        for node in self.plan.graph.nodes:
            items = [] if self.restore is None else self.restore.prepared(node.uid)
            if isinstance(node.factory, CollectFactory) and self.metadata is not None:
                record = next((o for o in self.metadata.operators if o.uid == node.uid), None)
                for subtask in record.subtasks if record is not None else ():
                    for item in subtask.prepared:
                        collected.take(
                            node.factory.collector,
                            node.uid,
                            subtask.subtask,
                            item.checkpoint_id,
                            payload_of(item, files),
                            self.pickles,
                            # Another job's numbers say nothing of this one's, which may begin at 1.
                            origin="" if self.metadata.history == history else self.metadata.history or "unknown",
                        )
            if not isinstance(node.factory, SinkFactory):
                continue
            with in_code_of(node, "create_committer()"):
                committer = node.factory.sink.create_committer()
            if committer is None:
                continue
            try:
                payloads = [payload_of(item, files) for item in items]
                committer.history = history
                self._commit(committer, job_id, node, attempt, payloads, assert_current)
                committed += len(payloads)
                with in_code_of(node, "other_owner()"):
                    other = committer.other_owner()
                if other:
                    advise(f'Sink "{node.name}" (uid {node.uid}): {other}')
            finally:
                with in_code_of(node, "close() of its committer"):
                    committer.close()
        return committed

    @staticmethod
    def _commit(
        committer: Committer,
        job_id: str,
        node: Node,
        attempt: int,
        payloads: list[bytes],
        assert_current: Callable[[], None],
    ) -> None:
        assert_current()
        with in_code_of(node, "attempt_starts()"):
            committer.attempt_starts(job_id, node.uid, attempt, node.parallelism)
        if payloads:
            assert_current()
            with in_code_of(node, "commit()"):
                commit_with_retries(committer, payloads)
        assert_current()
        with in_code_of(node, "abort_leftovers()"):
            committer.abort_leftovers(job_id, node.uid, attempt, payloads)
