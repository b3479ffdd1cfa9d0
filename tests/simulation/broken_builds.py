"""Builds of the engine with one thing wrong each. The oracle must notice every one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from simulated_job import Build
from simulated_plan import Mode, Record, Scenario, draw
from simulated_task import ModelTask

from headrace.checkpoint.lifecycle import actions as act
from headrace.runtime.control import messages as msg
from headrace.runtime.coordinator.coordinator import Coordinator
from headrace.runtime.coordinator.events import Event, ReaderAddressed
from headrace.runtime.coordinator.outcomes import Outcome
from headrace.runtime.task.cells import BARRIER
from headrace.runtime.task.gate import CONTROL, InputGate, TakeSnapshot, _Alignment
from headrace.runtime.task.spill import Queued


class SetsNothingAside(InputGate):
    """Cells behind the first barrier are processed before the snapshot, as in at-least-once mode."""

    def _sets_aside(self) -> bool:
        return False


class ForgetsQueuedCells(InputGate):
    """An unaligned snapshot logs what arrives after it, but not what had been read before."""

    def _take_early(self, current: _Alignment) -> TakeSnapshot:
        return replace(super()._take_early(current), logged=[])


class ForgetsLateCells(InputGate):
    """An unaligned snapshot logs what had been read, but not what arrives before the last barrier."""

    def _logging(self) -> _Alignment | None:
        return None


class LogsBehindTheBarrier(InputGate):
    """Cells that were read behind a barrier are taken for cells in flight."""

    def _take_early(self, current: _Alignment) -> TakeSnapshot:
        queued = [q for queue in self._front for q in queue] + list(self._inbox)
        behind = [q for q in queued if q[1][0] != BARRIER and q[0] != CONTROL]
        return replace(super()._take_early(current), logged=behind)


class LogsFixedRoutes(InputGate):
    """Cells on fixed routes are logged like any other."""

    def _is_clear(self, checkpoint_id: int) -> bool:
        return True


class ReplaysInTheWrongOrder(InputGate):
    """What was set aside comes after what has arrived since."""

    def _release_aside(self) -> None:
        while len(self._aside):
            channel, data = self._aside.popleft()
            self._inbox.append((channel, data))
            self.inbox_bytes += len(data)


class SnapshotsBeforeTheTrigger(InputGate):
    """A task with sources takes its snapshot without waiting for its own trigger."""

    def __init__(self, channels: Any, **settings: Any) -> None:
        super().__init__(channels, **settings)
        if len(self._channels) > 1:
            self._has_control = False
            self._channels = self._channels - {CONTROL}


class HandsOutSplitsDuringAlignment(InputGate):
    """Assignments behind the trigger are not set aside."""

    def _control_waits(self) -> bool:
        return False


class AbortForgetsTheOlderOne(InputGate):
    """An abort takes older checkpoints with it, and what they had set aside stays where it is."""

    def abort(self, checkpoint_id: int) -> None:
        with self._lock:
            alignment = self._alignments.get(checkpoint_id)
            if alignment is not None and not alignment.taken:
                self._release_aside()
            self._finish(checkpoint_id)


class BarrierOvertakesRecords(ModelTask):
    """The barrier goes out before the records that wait for company."""

    def snapshot(self, event: TakeSnapshot) -> None:
        flush, self.flush = self.flush, lambda: None  # type: ignore[method-assign]
        try:
            super().snapshot(event)
        finally:
            self.flush = flush  # type: ignore[method-assign]
        self.flush()


class ForgetsTheRecordsInHand(ModelTask):
    """An unaligned snapshot leaves out the rest of the cell that is being processed."""

    def rest_of_block(self) -> Iterator[Queued]:
        return iter(())


class CommitsBeforePublish(ModelTask):
    """The sink commits as soon as its own part of the checkpoint is written."""

    def acknowledge(self, checkpoint_id: int, files: dict[str, Any]) -> None:
        super().acknowledge(checkpoint_id, files)
        for item in self.state.prepared:
            if item.name[1] <= checkpoint_id:
                self.commit(item)


class DropsOutputOfAbortedCheckpoints(ModelTask):
    """What a sink prepared for a checkpoint that was given up is thrown away."""

    def letter(self) -> None:
        if isinstance(self.letters[0], msg.Abort):
            aborted = self.letters[0].checkpoint_id
            self.state.prepared = tuple(i for i in self.state.prepared if i.name[1] != aborted)
        super().letter()


class CommitsOnlyItsOwnCheckpoint(ModelTask):
    """Completion of a checkpoint commits its own item, not those that aborted ones left to it."""

    def commit_next(self) -> None:
        kept = tuple(i for i in self.state.prepared if i.name[1] < self.commits[0])
        self.state.prepared = tuple(i for i in self.state.prepared if i not in kept)
        super().commit_next()


class SavesStateTooLate(ModelTask):
    """The state is copied when it is written, not at the barrier."""

    def acknowledge(self, checkpoint_id: int, files: dict[str, Any]) -> None:
        late = self.state.copy()
        self.running[checkpoint_id].state.seen = late.seen
        super().acknowledge(checkpoint_id, files)


class EmitsItsFarewellAgain(ModelTask):
    """What an operator emits at the end of its input is emitted again after a restore."""

    def end_input(self) -> None:
        self.state.finished = False
        super().end_input()

    def process(self, record: Record) -> None:
        if record.way == "end":
            self.state.last.pop((record.way, record.split, record.key), None)
        super().process(record)


class AsksTheEnumeratorsTooLate(Coordinator):
    """Splits that were assigned after the trigger are missing from the enumerators' state."""

    def _do(self, action: act.Action) -> Outcome | None:
        if isinstance(action, act.TriggerCheckpoint):
            super()._send_trigger(action, {})
        return super()._do(action)

    def _send_trigger(self, trigger: act.TriggerCheckpoint, states: dict[str, bytes]) -> None:
        if trigger.checkpoint_id in self._lifecycle.open_ids:
            self._source_states[trigger.checkpoint_id] = states


class NotifiesBeforePublishing(Coordinator):
    """Tasks hear that a checkpoint is durable before its metadata is written."""

    def _publish(self, action: act.Publish) -> None:
        self._to_all(msg.Complete(action.checkpoint_id))
        super()._publish(action)


class DropsBeforePublishing(Coordinator):
    """Older checkpoints go before the new one is known to be complete."""

    def _publish(self, action: act.Publish) -> None:
        super()._publish(action)
        self._removals.drop(self._lifecycle.retained)


class HearsAssignmentsOfOlderAttempts(Coordinator):
    """What an enumerator of an older attempt had to say reaches the readers of this one."""

    def handle(self, event: Event) -> Outcome | None:
        if isinstance(event, ReaderAddressed):
            event = replace(event, attempt=self._attempt.number)
        return super().handle(event)


class TrustsWhatZombiesPublish(Coordinator):
    """An attempt that is over may still publish, and the next one restores it."""

    def __init__(self, attempt: Any, ports: Any, *others: Any) -> None:
        super().__init__(attempt, ports, *others)
        ports.store.job.storage.attempts.clear()


FOCUS: dict[type, Callable[[Scenario], Scenario]] = {
    # What is wrong here shows only in a rare race, so the seeds are spent where it can happen.
    AbortForgetsTheOlderOne: lambda s: replace(
        s, mode=Mode.ALIGNED, concurrent=3, interval_ms=1, tolerable_failures=100, write_failures=0.2
    ),
    TrustsWhatZombiesPublish: lambda s: replace(s, crashes=12, tolerable_failures=100, storage_speed=0.1),
}

BROKEN: dict[str, Build] = {
    **{
        gate.__name__: Build(gate=gate)
        for gate in (
            SetsNothingAside,
            ForgetsQueuedCells,
            ForgetsLateCells,
            LogsBehindTheBarrier,
            LogsFixedRoutes,
            ReplaysInTheWrongOrder,
            SnapshotsBeforeTheTrigger,
            HandsOutSplitsDuringAlignment,
            AbortForgetsTheOlderOne,
        )
    },
    **{
        task.__name__: Build(task=task)
        for task in (
            BarrierOvertakesRecords,
            ForgetsTheRecordsInHand,
            CommitsBeforePublish,
            DropsOutputOfAbortedCheckpoints,
            CommitsOnlyItsOwnCheckpoint,
            SavesStateTooLate,
            EmitsItsFarewellAgain,
        )
    },
    **{
        coordinator.__name__: Build(coordinator=coordinator)
        for coordinator in (
            AsksTheEnumeratorsTooLate,
            NotifiesBeforePublishing,
            DropsBeforePublishing,
            HearsAssignmentsOfOlderAttempts,
            TrustsWhatZombiesPublish,
        )
    },
}


def scenario_for(name: str, seed: int) -> Scenario:
    """The seed's scenario, brought nearer to what the broken build does wrong."""
    build = BROKEN[name]
    focus = next((FOCUS[part] for part in (build.gate, build.task, build.coordinator) if part in FOCUS), None)
    return draw(seed) if focus is None else focus(draw(seed))
