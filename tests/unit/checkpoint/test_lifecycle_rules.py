"""Each rule of the checkpoint lifecycle, one by one: facts in, actions out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from checkpoint_examples import snapshot, state_file

from headrace.checkpoint.handles import TaskSnapshot
from headrace.checkpoint.lifecycle.actions import (
    Action,
    DiscardLate,
    DiscardPending,
    DropCheckpoints,
    FailJob,
    NotifyAbort,
    NotifyComplete,
    Publish,
    ReleaseJob,
    RestoreLatest,
    SavepointCompleted,
    SavepointFailed,
    TriggerCheckpoint,
)
from headrace.checkpoint.lifecycle.facts import (
    Fact,
    Published,
    PublishFailed,
    SavepointRequested,
    Stopping,
    TaskAcknowledged,
    TaskCommitted,
    TaskDeclined,
    TaskDrained,
    TaskId,
    TasksRunning,
    Tick,
)
from headrace.checkpoint.lifecycle.lifecycle import CheckpointLifecycle
from headrace.checkpoint.lifecycle.pending import PendingCheckpoint
from headrace.checkpoint.lifecycle.settings import LifecycleSettings
from headrace.errors import CheckpointFailure, ConfigurationError

A, B = TaskId(0, 0), TaskId(1, 0)
TASKS = frozenset({A, B})
TIMED_OUT, DECLINED = CheckpointFailure.TIMED_OUT, CheckpointFailure.DECLINED
STORAGE, SUPERSEDED = CheckpointFailure.STORAGE, CheckpointFailure.SUPERSEDED
FENCED, JOB_STOPPING = CheckpointFailure.FENCED, CheckpointFailure.JOB_STOPPING


def part(task: TaskId, checkpoint_id: int, name: str = "state") -> TaskSnapshot:
    own = state_file(f"chk-{checkpoint_id:06d}/attempt-000001/{name}-{task.level}-{task.slot}")
    return snapshot(*task, own, state_file("shared/ab/x.sst", shared=True))


def own_path(task: TaskId, checkpoint_id: int, name: str = "state") -> str:
    return f"chk-{checkpoint_id:06d}/attempt-000001/{name}-{task.level}-{task.slot}"


class Job:
    """A lifecycle with a clock that the test turns, and short words for what tasks and storage do."""

    def __init__(self, retained: tuple[int, ...] = (), next_id: int = 1, **settings: Any) -> None:
        defaults: dict[str, Any] = {"interval_ms": 1_000, "timeout_ms": 5_000, "tolerable_failures": 3}
        self.now = 0
        self.lifecycle = CheckpointLifecycle(
            LifecycleSettings(**{**defaults, **settings}), TASKS, next_id=next_id, retained=retained
        )

    def __call__(self, fact: Fact, at: int | None = None) -> list[Action]:
        self.now = self.now if at is None else at
        return self.lifecycle.handle(fact, self.now)

    def running(self) -> Job:
        assert self(TasksRunning()) == []
        return self

    def tick(self, at: int) -> list[Action]:
        return self(Tick(), at)

    def acknowledge(self, checkpoint_id: int, *tasks: TaskId) -> list[Action]:
        return [
            a
            for task in tasks or (A, B)
            for a in self(TaskAcknowledged(checkpoint_id, task, part(task, checkpoint_id)))
        ]

    def complete(self, checkpoint_id: int) -> list[Action]:
        """Acknowledge and publish; the actions that the publication causes."""
        (publish,) = self.acknowledge(checkpoint_id)
        assert isinstance(publish, Publish)
        return self(Published(checkpoint_id))

    def drain(self) -> list[Action]:
        return self(TaskDrained(A)) + self(TaskDrained(B))


def aborted(checkpoint_id: int, failure: CheckpointFailure, *files: str, detail: str = "") -> list[Action]:
    return [NotifyAbort(checkpoint_id, failure, detail), DiscardPending(checkpoint_id, files)]


# The way of a checkpoint


def test_a_checkpoint_goes_from_trigger_through_publish_to_complete() -> None:
    job = Job().running()
    assert job.tick(999) == []
    assert job.tick(1_000) == [TriggerCheckpoint(1, "checkpoint")]
    assert job.acknowledge(1, A) == []
    job.now = 1_250
    assert job.acknowledge(1, B) == [Publish(1, "checkpoint", (part(A, 1), part(B, 1)), 1_000, 250)]
    assert job(Published(1)) == [NotifyComplete(1)]
    assert job.lifecycle.retained == (1,)
    assert job.lifecycle.next_wakeup_ms(job.now) == 2_000
    assert job.tick(2_000) == [TriggerCheckpoint(2, "checkpoint")]


def test_nothing_begins_before_the_tasks_run() -> None:
    job = Job()
    assert job.tick(10_000) == []
    assert job(SavepointRequested("s", None)) == []
    assert job.lifecycle.next_wakeup_ms(10_000) is None
    assert job(TasksRunning()) == [TriggerCheckpoint(1, "savepoint", request="s")]


def test_without_an_interval_no_checkpoint_is_periodic() -> None:
    job = Job(interval_ms=None).running()
    assert job.tick(10**9) == []
    assert job.lifecycle.next_wakeup_ms(10**9) is None


def test_a_checkpoint_longer_than_the_interval_is_followed_at_once_by_the_next() -> None:
    job = Job().running()
    job.tick(1_000)
    assert job.tick(3_500) == []
    job.acknowledge(1)
    assert job(Published(1)) == [NotifyComplete(1), TriggerCheckpoint(2, "checkpoint")]


def test_the_pause_counts_from_the_end_of_the_last_checkpoint() -> None:
    job = Job(min_pause_ms=800).running()
    job.tick(1_000)
    job.now = 1_900
    assert job.complete(1) == [NotifyComplete(1)]
    assert job.lifecycle.next_wakeup_ms(1_900) == 2_700
    assert job.tick(2_699) == []
    assert job.tick(2_700) == [TriggerCheckpoint(2, "checkpoint")]
    assert job(TaskDeclined(2, A, DECLINED), 4_000)[:1] == [NotifyAbort(2, DECLINED)]
    assert job.lifecycle.next_wakeup_ms(4_000) == 4_800


def test_a_pending_checkpoint_turns_into_a_completed_one_only_with_all_its_parts() -> None:
    pending = PendingCheckpoint(TriggerCheckpoint(3, "checkpoint"), TASKS, 100, 50)
    assert pending.acknowledge(B, part(B, 3))
    assert not pending.acknowledge(B, part(B, 3))
    with pytest.raises(ValueError, match="still waits"):
        pending.complete(120)
    assert pending.acknowledge(A, part(A, 3))
    completed = pending.complete(120)
    assert [s.level for s in completed.snapshots] == [0, 1]
    assert completed.files == {own_path(A, 3), own_path(B, 3)}


# Several at once


def test_no_more_than_max_concurrent_are_open() -> None:
    job = Job(max_concurrent=2).running()
    assert job.tick(1_000) == [TriggerCheckpoint(1, "checkpoint")]
    assert job.tick(2_000) == [TriggerCheckpoint(2, "checkpoint")]
    assert job.tick(3_000) == []
    assert job.lifecycle.open_ids == (1, 2)
    assert job.complete(1) == [NotifyComplete(1), TriggerCheckpoint(3, "checkpoint")]


def test_unaligned_checkpoints_run_one_at_a_time() -> None:
    job = Job(max_concurrent=3, unaligned=True, unaligned_at_once=True).running()
    assert job.tick(1_000) == [TriggerCheckpoint(1, "checkpoint", unaligned=True)]
    assert job.tick(2_000) == []


def test_an_older_one_that_is_open_when_a_newer_completes_is_superseded_and_not_a_failure() -> None:
    job = Job(max_concurrent=2, tolerable_failures=0).running()
    job.tick(1_000)
    job.tick(2_000)
    job.acknowledge(1, A)
    assert job.complete(2) == [
        NotifyComplete(2),
        *aborted(1, SUPERSEDED, own_path(A, 1), detail="by checkpoint 2"),
        DropCheckpoints((1,)),
    ]
    assert job.lifecycle.consecutive_failures == 0


def test_publications_happen_one_at_a_time_and_the_oldest_first() -> None:
    job = Job(max_concurrent=3).running()
    for at in (1_000, 2_000, 3_000):
        job.tick(at)
    assert [type(a) for a in job.acknowledge(2)] == [Publish]
    assert job.acknowledge(3) == []
    assert job.acknowledge(1) == []
    after = job(PublishFailed(2, STORAGE, "disk full"))
    assert after[:2] == aborted(2, STORAGE, own_path(A, 2), own_path(B, 2), detail="disk full")
    assert [(type(a), a.checkpoint_id) for a in after[2:]] == [(Publish, 1)]  # type: ignore[union-attr]
    after = job(Published(1))
    assert after[:2] == [NotifyComplete(1), after[1]]
    assert [(type(a), a.checkpoint_id) for a in after[1:]] == [(Publish, 3)]  # type: ignore[union-attr]


# Late, duplicate, unknown and foreign acknowledgements (C3)


def test_an_acknowledgement_of_an_aborted_or_unknown_checkpoint_changes_nothing_but_its_files_go() -> None:
    job = Job().running()
    job.tick(1_000)
    job(TaskDeclined(1, B, DECLINED))
    for checkpoint_id in (1, 99):
        late = part(A, checkpoint_id)
        assert job(TaskAcknowledged(checkpoint_id, A, late)) == [
            DiscardLate(checkpoint_id, late, (own_path(A, checkpoint_id),))
        ]
    assert job.lifecycle.open_ids == ()


def test_a_repeated_acknowledgement_never_costs_the_files_in_use() -> None:
    job = Job().running()
    job.tick(1_000)
    for stage in ("pending", "publishing", "published"):
        match stage:
            case "pending":
                job.acknowledge(1, A)
            case "publishing":
                job.acknowledge(1, B)
            case "published":
                job(Published(1))
        same, other = part(A, 1), part(A, 1, "second-try")
        assert job(TaskAcknowledged(1, A, same)) == [DiscardLate(1, same)]
        assert job(TaskAcknowledged(1, A, other)) == [DiscardLate(1, other, (own_path(A, 1, "second-try"),))]
    job.tick(2_000)
    assert job.complete(2)[-1] == DropCheckpoints((1,))
    assert job(TaskAcknowledged(1, A, part(A, 1))) == [DiscardLate(1, part(A, 1), (own_path(A, 1),))]


def test_a_foreign_task_cannot_acknowledge_decline_drain_or_commit() -> None:
    job = Job().running()
    job.tick(1_000)
    stranger = TaskId(7, 7)
    assert job(TaskAcknowledged(1, stranger, part(stranger, 1))) == [
        DiscardLate(1, part(stranger, 1), (own_path(stranger, 1),))
    ]
    assert job(TaskAcknowledged(1, A, part(B, 1)))[0] == DiscardLate(1, part(B, 1), (own_path(B, 1),))
    assert job(TaskDeclined(1, stranger, DECLINED)) == []
    assert job(TaskDrained(stranger)) == []
    assert job(TaskCommitted(1, stranger)) == []
    assert [type(a) for a in job.acknowledge(1)] == [Publish]


def test_publication_news_about_another_checkpoint_is_ignored() -> None:
    job = Job().running()
    job.tick(1_000)
    assert job(Published(1)) == []
    assert job(PublishFailed(1, STORAGE)) == []
    job.acknowledge(1)
    assert job(Published(2)) == []
    assert job(Published(1)) == [NotifyComplete(1)]
    assert job(Published(1)) == []


# Failure


def test_a_checkpoint_that_takes_too_long_is_abandoned_with_the_files_it_has() -> None:
    job = Job(interval_ms=60_000).running()
    job.tick(60_000)
    job.acknowledge(1, A)
    assert job.lifecycle.next_wakeup_ms(60_000) == 65_000
    assert job.tick(64_999) == []
    assert job.tick(65_000) == aborted(1, TIMED_OUT, own_path(A, 1), detail="after 5000 ms, 1 tasks missing (1/0)")


def test_a_publication_under_way_does_not_time_out() -> None:
    job = Job(interval_ms=60_000).running()
    job.tick(60_000)
    job.acknowledge(1)
    assert job.tick(119_999) == []
    assert job(Published(1))[:1] == [NotifyComplete(1)]


@pytest.mark.parametrize("tolerable", [0, 1, 3])
def test_the_job_fails_when_more_checkpoints_in_a_row_fail_than_tolerated(tolerable: int) -> None:
    job = Job(tolerable_failures=tolerable).running()
    for n in range(1, tolerable + 1):
        job.tick(n * 1_000)
        assert job(TaskDeclined(n, A, DECLINED, "no room")) == aborted(n, DECLINED, detail="no room")
    last = tolerable + 1
    job.tick(last * 1_000)
    *before, failed = job(TaskDeclined(last, A, DECLINED, "no room"))
    assert before == aborted(last, DECLINED, detail="no room")
    assert isinstance(failed, FailJob)
    assert failed.failures == last
    assert "no room" in failed.reason
    assert job.tick(10**6) == []
    assert job.lifecycle.next_wakeup_ms(10**6) is None


def test_a_success_resets_the_count() -> None:
    job = Job(tolerable_failures=1).running()
    for checkpoint_id in range(1, 20):
        assert TriggerCheckpoint(checkpoint_id, "checkpoint") in job.tick(checkpoint_id * 1_000)
        if checkpoint_id % 2:
            assert job(TaskDeclined(checkpoint_id, A, DECLINED)) == aborted(checkpoint_id, DECLINED)
        else:
            assert job.complete(checkpoint_id)[0] == NotifyComplete(checkpoint_id)


def test_an_unknown_outcome_keeps_files_and_older_checkpoints_until_a_newer_one_is_published() -> None:
    job = Job(retained=(4,), next_id=5).running()
    job.tick(1_000)
    job.acknowledge(5)
    assert job(PublishFailed(5, STORAGE, "no answer", unknown=True)) == [NotifyAbort(5, STORAGE, "no answer")]
    assert job.lifecycle.undecided_ids == (5,)
    assert job.lifecycle.consecutive_failures == 1
    assert job(TaskAcknowledged(5, A, part(A, 5))) == [DiscardLate(5, part(A, 5))]
    assert job.tick(2_000) == [TriggerCheckpoint(6, "checkpoint")]
    assert job.complete(6) == [NotifyComplete(6), DropCheckpoints((4, 5))]
    assert job.lifecycle.undecided_ids == ()


def test_one_that_is_fenced_off_fails_the_job_at_once_and_deletes_nothing() -> None:
    job = Job(max_concurrent=2).running()
    job.tick(1_000)
    job.tick(2_000)
    job.acknowledge(2, A)
    job.acknowledge(1)
    actions = job(PublishFailed(1, FENCED, "attempt 2 took over"))
    assert [type(a) for a in actions] == [NotifyAbort, FailJob, NotifyAbort]
    assert actions[2] == NotifyAbort(2, FENCED, "a newer attempt owns the job: attempt 2 took over")


# Retention


def test_only_the_newest_are_retained_and_older_ones_go_after_the_news_of_the_newer() -> None:
    job = Job(retained=(3, 5), next_id=8, retain=2).running()
    job.tick(1_000)
    assert job.complete(8) == [NotifyComplete(8), DropCheckpoints((3,))]
    assert job.lifecycle.retained == (5, 8)


def test_what_abandoned_checkpoints_left_is_dropped_with_the_next_success() -> None:
    job = Job(retain=2).running()
    job.tick(1_000)
    job(TaskDeclined(1, A, DECLINED))
    job.tick(2_000)
    assert job.complete(2) == [NotifyComplete(2), DropCheckpoints((1,))]
    job.tick(3_000)
    assert job.complete(3) == [NotifyComplete(3)]


# Savepoints


def test_a_savepoint_runs_at_once_is_aligned_is_kept_and_commits_nothing() -> None:
    job = Job(retained=(1,), next_id=2, unaligned=True).running()
    assert job(SavepointRequested("s", "file:///sp")) == [
        TriggerCheckpoint(2, "savepoint", request="s", target="file:///sp")
    ]
    (publish,) = job.acknowledge(2)
    assert isinstance(publish, Publish)
    assert (publish.kind, publish.target) == ("savepoint", "file:///sp")
    assert job(Published(2)) == [NotifyComplete(2, commit=False), SavepointCompleted("s", 2)]
    assert job.lifecycle.retained == (1,)
    job.tick(1_000)
    assert job.complete(3) == [NotifyComplete(3), DropCheckpoints((1,))]


def test_a_savepoint_waits_for_a_free_place_and_comes_before_the_next_checkpoint() -> None:
    job = Job().running()
    job.tick(1_000)
    assert job(SavepointRequested("s", None)) == []
    job.now = 9_999_999
    assert job.tick(1_500) == []
    job.tick(2_000)
    assert job.complete(1) == [NotifyComplete(1), TriggerCheckpoint(2, "savepoint", request="s")]


def test_no_checkpoint_begins_beside_an_open_savepoint_which_it_could_supersede() -> None:
    job = Job(max_concurrent=3).running()
    job(SavepointRequested("s", None))
    assert job.tick(3_000) == []
    assert job.complete(1)[-1] == TriggerCheckpoint(2, "checkpoint")


def test_a_savepoint_that_fails_is_answered_and_not_counted() -> None:
    job = Job(tolerable_failures=0).running()
    job(SavepointRequested("s", None))
    actions = job(TaskDeclined(1, A, DECLINED, "no room"))
    assert actions == [*aborted(1, DECLINED, detail="no room"), SavepointFailed("s", "declined by a task: no room")]
    assert job.tick(1_000) == [TriggerCheckpoint(2, "checkpoint")]


def test_stop_with_savepoint_commits_then_releases_when_every_task_has_answered() -> None:
    job = Job().running()
    assert job(SavepointRequested("s", None, stop=True, drain=True)) == [
        TriggerCheckpoint(1, "savepoint", request="s", stop=True, drain=True)
    ]
    assert job.drain() == []
    assert job(SavepointRequested("t", None)) == [
        SavepointFailed("t", "the job is ending and takes no more savepoints")
    ]
    assert job.complete(1) == [NotifyComplete(1), SavepointCompleted("s", 1)]
    assert job.tick(60_000) == []
    assert job(TaskCommitted(1, A)) == []
    assert job(TaskCommitted(1, A)) == []
    assert job(TaskCommitted(1, B)) == [ReleaseJob()]
    assert job(TaskCommitted(1, B)) == []


def test_a_failed_stop_with_savepoint_sends_the_job_back_to_its_last_checkpoint() -> None:
    job = Job(tolerable_failures=0).running()
    job(SavepointRequested("s", None, stop=True))
    actions = job.tick(5_000)
    assert [type(a) for a in actions] == [NotifyAbort, DiscardPending, SavepointFailed, RestoreLatest]
    assert job.tick(10_000) == []


# The end of bounded input


def test_when_all_tasks_are_drained_a_final_checkpoint_runs_at_once() -> None:
    job = Job(min_pause_ms=500).running()
    job.tick(1_000)
    job.complete(1)
    job.now = 1_001
    assert job(TaskDrained(A)) == []
    assert job(TaskDrained(B)) == [TriggerCheckpoint(2, "checkpoint", final=True)]
    assert job.tick(3_000) == []
    (publish,) = job.acknowledge(2)
    assert isinstance(publish, Publish)
    assert publish.final
    assert job(TaskCommitted(2, A)) == []
    assert job(Published(2)) == [NotifyComplete(2), DropCheckpoints((1,))]
    assert job(TaskCommitted(1, B)) == []
    assert job(TaskCommitted(2, B)) == []
    assert job(TaskCommitted(2, A)) == [ReleaseJob()]
    assert job.tick(10**9) == []


def test_the_final_checkpoint_waits_for_a_free_place() -> None:
    job = Job().running()
    job.tick(1_000)
    assert job.drain() == []
    assert job.complete(1) == [NotifyComplete(1), TriggerCheckpoint(2, "checkpoint", final=True)]


def test_a_final_checkpoint_is_taken_without_an_interval_if_asked_for() -> None:
    assert Job(interval_ms=None, final_checkpoint=True).running().drain() == [
        TriggerCheckpoint(1, "checkpoint", final=True)
    ]


def test_with_checkpointing_off_the_job_is_released_when_all_is_drained() -> None:
    job = Job(interval_ms=None).running()
    assert job.drain() == [ReleaseJob()]
    assert job.tick(1_000) == []


def test_with_checkpointing_off_an_open_savepoint_is_finished_before_the_release() -> None:
    job = Job(interval_ms=None).running()
    job(SavepointRequested("s", None))
    assert job.drain() == []
    assert job.complete(1) == [NotifyComplete(1, commit=False), SavepointCompleted("s", 1), ReleaseJob()]


def test_a_final_checkpoint_that_fails_is_tried_again_after_a_growing_pause() -> None:
    job = Job(tolerable_failures=20).running()
    job.drain()
    pauses = []
    for checkpoint_id in range(1, 11):
        assert job(TaskDeclined(checkpoint_id, A, DECLINED)) == aborted(checkpoint_id, DECLINED)
        wakeup = job.lifecycle.next_wakeup_ms(job.now)
        assert wakeup is not None
        pauses.append(wakeup - job.now)
        assert job.tick(wakeup - 1) == []
        assert job.tick(wakeup) == [TriggerCheckpoint(checkpoint_id + 1, "checkpoint", final=True)]
    assert pauses == [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000, 10_000]
    assert job.complete(11)[0] == NotifyComplete(11)


def test_final_checkpoints_that_keep_failing_fail_the_job() -> None:
    job = Job(tolerable_failures=0).running()
    job.drain()
    assert isinstance(job(TaskDeclined(1, A, DECLINED))[-1], FailJob)


# Stopping


def test_stopping_gives_up_what_is_open_and_begins_nothing_more() -> None:
    job = Job(tolerable_failures=0, max_concurrent=2).running()
    job.tick(1_000)
    job(SavepointRequested("open", None))
    job(SavepointRequested("waiting", None))
    assert job(Stopping()) == [
        *aborted(1, JOB_STOPPING, detail="the job is stopping"),
        *aborted(2, JOB_STOPPING, detail="the job is stopping"),
        SavepointFailed("open", "the job is stopping: the job is stopping"),
        SavepointFailed("waiting", "the job is stopping"),
    ]
    assert job(Stopping()) == []
    assert job.drain() == []
    assert job.tick(10**9) == []
    assert job(SavepointRequested("late", None))[0] == SavepointFailed(
        "late", "the job is ending and takes no more savepoints"
    )


def test_a_publication_under_way_is_finished_though_the_job_stops() -> None:
    job = Job(retained=(1,), next_id=2).running()
    job.tick(1_000)
    job.acknowledge(2)
    assert job(Stopping()) == []
    assert job(Published(2)) == [NotifyComplete(2), DropCheckpoints((1,))]


# Settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("interval_ms", 0),
        ("timeout_ms", 0),
        ("min_pause_ms", -1),
        ("max_concurrent", 0),
        ("tolerable_failures", -1),
        ("retain", 0),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(name: str, value: int) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} is {value}"):
        replace(LifecycleSettings(interval_ms=1_000), **{name: value})
