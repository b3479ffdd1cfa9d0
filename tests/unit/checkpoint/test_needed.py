"""One rule says what must stay: whatever happened to a job directory, the next start finds all it needs."""

from __future__ import annotations

from collections.abc import Callable

from checkpoint_examples import metadata, state_file
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.checkpoint.claims import claim, remove_claimed
from headrace.checkpoint.collection import collect
from headrace.checkpoint.job_directory import JobDirectory
from headrace.checkpoint.location import OpenedCheckpoint
from headrace.checkpoint.metadata.codec import decode_metadata
from headrace.checkpoint.metadata.model import CheckpointMetadata, files_of, shared_files_of
from headrace.checkpoint.places import JobPlace
from headrace.checkpoint.storage.memory import JobManagerCheckpointStorage
from headrace.checkpoint.storage.paths import WriterScope
from headrace.clocks import Clocks
from headrace.testing import ManualClock

HOUR_MS = 3_600_000


class History:
    """A job directory, and what happens to it. `wanted` is the model: what the next start has to restore."""

    def __init__(self) -> None:
        self.storage = JobManagerCheckpointStorage()
        self.clock = ManualClock(HOUR_MS)
        self.wanted: str | None = None
        """The path of its `_metadata`."""
        self.files = 0
        self.driver: JobDirectory | None = None
        self.start()

    # What a driver does

    def start(self, source: CheckpointMetadata | None = None, *, claimed: bool = False) -> None:
        """A new process: from the newest checkpoint, or from one of this job by name."""
        driver = JobDirectory(self.storage, "job", clocks=Clocks(self.clock, self.clock))
        run = driver.open_run()
        attempt = driver.claim_attempt()
        self.claimed: OpenedCheckpoint | None = None
        self.retained: list[CheckpointMetadata] = []
        survey = driver.survey()
        if source is not None:
            inside = f"job/run-{source.run:06d}/chk-{source.checkpoint_id:06d}"
            opened = OpenedCheckpoint(source, self.storage, f"memory:/{inside}", inside)
            if claimed:
                claim(opened, "job", self.storage)
                self.claimed = opened
            driver.record_restored(attempt, None, opened.path)
            self.wanted = f"{inside}/_metadata"
        else:
            newest = survey.newest()
            path = newest.path if newest is not None else ""
            if newest is None and survey.lineage.source:
                path = f"{survey.lineage.source.removeprefix('memory:/')}/_metadata"
            assert path == (self.wanted or ""), "the start takes what the history says"
            driver.record_restored(attempt, newest.checkpoint_id if newest else None, survey.lineage.source)
            if newest is not None:
                self.retained = [c.metadata for c in survey.completed() if c.metadata is not None]
                driver.drop(survey.orphans())
        self.driver, self.run, self.attempt = driver, run, attempt

    def publish(self) -> None:
        assert self.driver is not None
        number = self.driver.next_checkpoint_id()
        scope = WriterScope(f"job/run-{self.run:06d}", number, self.attempt)
        known = sorted(path for kept in self.retained[-1:] for path in shared_files_of(kept))
        files = [state_file(path, shared=True) for path in known[-2:]]
        for path in (f"{scope.prefix}/state", scope.shared_path(f"{self.files:064x}")):
            self.files += 1
            self.storage.create_exclusive(path, b"state")
            files.append(state_file(path, shared="/shared/" in path))
        published = metadata(number, self.attempt, "job", *files, run=self.run)
        self.wanted = self.driver.publish(published).path
        self.retained.append(published)
        if self.claimed is not None:
            remove_claimed(self.claimed)
            self.claimed = None

    def abandon(self) -> None:
        """A checkpoint under way leaves files and comes to nothing."""
        assert self.driver is not None
        scope = WriterScope(f"job/run-{self.run:06d}", self.driver.next_checkpoint_id(), self.attempt)
        for path in (f"{scope.prefix}/state", scope.shared_path(f"{self.files:064x}")):
            self.files += 1
            self.storage.create_exclusive(path, b"state")

    def retire(self) -> None:
        """Retention: all but the newest go, and shared files with them."""
        assert self.driver is not None
        self.driver.drop(one.checkpoint_id for one in self.retained[:-1])
        self.retained = self.retained[-1:]
        for _ in range(2):
            self.driver.collect_shared(self.retained, self.attempt)
            self.clock.now_ms += HOUR_MS

    def end(self) -> None:
        assert self.driver is not None
        self.driver.end("FINISHED")
        self.driver.tidy()
        self.wanted = None
        self.start()

    # What a person does

    def choose(self, number: int, *, claimed: bool = False) -> None:
        """Start from any checkpoint that is there."""
        found = sorted(path for path in self.storage.list("") if path.endswith("/_metadata"))
        if found:
            path = found[number % len(found)]
            self.start(decode_metadata(self.storage.read(path), path), claimed=claimed)

    def gc(self) -> None:
        self.driver = None
        self.clock.now_ms += HOUR_MS
        collect(JobPlace(self.storage, "job"))
        self.start()

    def check(self) -> None:
        """What the next start has to restore is there, with every file."""
        if self.wanted is not None:
            needed = decode_metadata(self.storage.read(self.wanted), self.wanted)
            assert [path for path in files_of(needed) if not self.storage.exists(path)] == []


EVENTS: dict[str, Callable[[History, int], None]] = {
    "publish": lambda history, _: history.publish(),
    "abandon": lambda history, _: history.abandon(),
    "retire": lambda history, _: history.retire(),
    "die and start": lambda history, _: history.start(),
    "start from": lambda history, number: history.choose(number),
    "claim and start from": lambda history, number: history.choose(number, claimed=True),
    "gc": lambda history, _: history.gc(),
    "end": lambda history, _: history.end(),
}
EVENT = st.tuples(st.sampled_from(["publish", "publish", *EVENTS]), st.integers(0, 7))


@given(st.lists(EVENT, max_size=14))
@settings(max_examples=300, deadline=None)
def test_whatever_happens_the_next_start_finds_what_it_needs(events: list[tuple[str, int]]) -> None:
    history = History()
    for name, number in events:
        EVENTS[name](history, number)
        history.check()
    history.start()
    history.check()


def test_gc_keeps_the_checkpoint_of_the_run_that_was_chosen_by_name() -> None:
    history = History()
    for _ in range(3):
        history.publish()
    history.choose(0)
    history.gc()  # it died before its first checkpoint
    history.check()


def test_a_checkpoint_that_was_chosen_by_name_keeps_its_shared_files() -> None:
    history = History()
    for _ in range(3):
        history.publish()
    chosen = history.retained[0]
    history.choose(0)
    history.publish()
    history.retire()
    assert [path for path in files_of(chosen) if not history.storage.exists(path)] == []
    history.publish()
    history.start()
    history.retire()
    assert [path for path in files_of(chosen) if not history.storage.exists(path)] == []


def test_a_superseded_checkpoint_is_whole_as_long_as_it_is_there() -> None:
    history = History()
    for event in ("publish", "publish", "publish", "retire", "publish"):
        EVENTS[event](history, 0)
    history.choose(1)
    history.retire()
    history.choose(0)
    history.check()


def test_a_claimed_checkpoint_takes_no_shared_file_that_another_needs() -> None:
    history = History()
    for _ in range(3):
        history.publish()
    others = history.retained[1:]
    history.choose(0, claimed=True)
    history.publish()
    for other in others:
        assert [path for path in files_of(other) if not history.storage.exists(path)] == []


def test_nothing_unneeded_is_left_when_a_run_has_ended_and_its_checkpoints_are_kept() -> None:
    history = History()
    for _ in range(3):
        history.publish()
    history.abandon()
    history.retire()
    history.abandon()
    assert history.driver is not None
    history.driver.end("FINISHED")
    history.driver.tidy()
    named = set().union(*map(files_of, history.retained))
    left = {p for p in history.storage.list("") if "/shared/" in p or ("/chk-" in p and not p.endswith("_metadata"))}
    assert left == named
