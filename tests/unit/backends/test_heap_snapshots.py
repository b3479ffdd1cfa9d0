"""How the heap backend freezes its view: by a copy or a fork; what a child may do, and that nothing is left behind."""

from __future__ import annotations

import gc
import os
import signal
import threading
from pathlib import Path

import msgspec
import pytest
from backend_workshop import BAG, BLOB, COUNT, MAX_PARALLELISM, Workshop, at, contents

from headrace.backends.elements import elements_of
from headrace.backends.heap.backend import HeapBackend
from headrace.backends.heap.options import HeapOptions
from headrace.backends.heap.snapshot import CopiedSnapshot, ForkedSnapshot, SerialisedSnapshot
from headrace.errors import CheckpointError, ConfigurationError
from headrace.state.backend import BackendContext
from headrace.types.information import Types


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    return Workshop("heap-forking", tmp_path)


def open_files() -> int:
    # What other tests left to the collector must not close in between.
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    "snapshots",
    [pytest.param(60, marks=pytest.mark.thorough), pytest.param(200, marks=pytest.mark.slow)],
)
def test_many_snapshots_with_writes_between_leave_no_process_no_thread_no_memory_and_no_file_open(
    shop: Workshop, snapshots: int
) -> None:
    backend = shop.backend()
    state, blob = backend.state(COUNT), backend.state(BLOB)
    files, processes, threads, warm = open_files(), children(), set(threading.enumerate()), 0
    works = []
    for checkpoint in range(snapshots):
        if checkpoint == snapshots // 3:
            # By now everything that is made once has been made.
            gc.collect()
            warm = resident_bytes()
        for key in range(50):
            at(backend, key)
            state.update(checkpoint * 100 + key)
            blob.update(bytes([checkpoint]) * 20_000)  # a snapshot has a megabyte
        works.append((checkpoint, backend.snapshot(checkpoint)))
        if len(works) == 3:
            oldest, work = works.pop(0)
            if oldest % 10 == 0:
                work.cancel()
            else:
                snapshot = work.write(shop.store)
                if oldest % 20 == 1:
                    again = shop.restored(snapshot)
                    assert contents(again, again.state(COUNT), "count") == {k: oldest * 100 + k for k in range(50)}
    backend.close()
    assert open_files() == files
    assert children() == processes
    assert set(threading.enumerate()) <= threads
    assert resident_bytes() - warm < 24 * 2**20, "less than if something of every snapshot had stayed"


def test_the_child_keeps_no_file_of_its_parent_open(shop: Workshop, tmp_path: Path) -> None:
    backend = shop.backend()
    state = backend.state(COUNT)
    # More than a pipe holds, so that the child is still there.
    for key in range(200_000):
        at(backend, key)
        state.update(key)
    with (tmp_path / "held").open("w"):
        work = backend.snapshot(1)
        assert isinstance(work, ForkedSnapshot)
        os.read(work._pipe, 1)  # the child closes what it inherited before its first byte
        held = os.listdir(f"/proc/{work._pid}/fd")
    assert len(held) == 1
    work.cancel()
    assert work.finished


class Client:
    """Something whose destructor must run in the process that made it only."""

    def __init__(self, freed_by: Path) -> None:
        self._freed_by = freed_by
        self.stop = threading.Event()

    def run(self) -> None:
        self.stop.wait(60)

    def __del__(self) -> None:
        with self._freed_by.open("a") as file:
            file.write(f"{os.getpid()}\n")


def test_the_child_frees_nothing_that_threads_and_forgotten_cycles_hold(shop: Workshop, tmp_path: Path) -> None:
    """The destructor of a Kafka client waits for threads of its own, which a forked child has not got."""
    freed_by = tmp_path / "freed"
    watched = [True]

    def press_the_collector() -> None:
        if watched:
            forgotten = [Client(freed_by)]
            forgotten.append(forgotten)  # type: ignore[arg-type]
            del forgotten
            assert [[number] for number in range(200_000)]  # any collector that is on comes by

    # Registered for the rest of the process, hence the switch.
    os.register_at_fork(after_in_child=press_the_collector)
    client = Client(freed_by)
    stop, thread = client.stop, threading.Thread(target=client.run)
    thread.start()
    del client
    backend = shop.backend()
    at(backend, "a")
    backend.state(COUNT).update(1)
    try:
        snapshot = backend.snapshot(1)
        assert isinstance(snapshot, ForkedSnapshot)
        snapshot.write(shop.store)
        assert not freed_by.exists()
        assert gc.isenabled()
    finally:
        watched.clear()
        stop.set()
        thread.join(60)
    backend.close()


def test_a_child_that_is_killed_fails_its_checkpoint_and_nothing_else(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(COUNT)
    for key in range(200_000):
        at(backend, key)
        state.update(key)
    work = backend.snapshot(1)
    os.kill(work._pid, signal.SIGKILL)
    with pytest.raises(CheckpointError, match="ended early"):
        work.write(shop.store)
    assert shop.store.uploaded == []
    assert work.finished
    assert len(shop.snapshot(backend, 2).files) == 1


def test_a_value_that_stopped_to_fit_is_named_by_the_checkpoint_that_fails(shop: Workshop) -> None:
    backend = shop.backend(object_reuse=True)
    state = backend.state(BAG)
    at(backend, "a")
    bag = [1]
    state.update(bag)
    bag.append("not a number")  # type: ignore[arg-type]  # what object reuse makes possible
    with pytest.raises(CheckpointError, match="not a number"):
        backend.snapshot(1).write(shop.store)
    bag.pop()
    assert len(shop.snapshot(backend, 2).files) == 1


@pytest.mark.parametrize(
    ("options", "reuse", "kind"),
    [
        (HeapOptions(fork_threshold=10), False, ForkedSnapshot),
        (HeapOptions(fork_threshold=1000), False, CopiedSnapshot),
        (HeapOptions(asynchronous_snapshots=False, fork_threshold=0), False, SerialisedSnapshot),
        (HeapOptions(fork_threshold=1000), True, SerialisedSnapshot),
        (HeapOptions(fork_threshold=200), True, ForkedSnapshot),
    ],
    ids=["large", "small", "synchronous", "small and lent", "lent and not so small"],
)
def test_how_a_snapshot_is_taken_depends_on_size_and_on_who_else_holds_the_values(
    tmp_path: Path, options: HeapOptions, reuse: bool, kind: type
) -> None:
    context = BackendContext("op", 0, range(MAX_PARALLELISM), MAX_PARALLELISM, tmp_path, object_reuse=reuse)
    backend = HeapBackend(context, options)
    state = backend.state(BAG)
    for key in range(100):
        at(backend, key)
        state.update([key])
    assert isinstance(backend.snapshot(1), kind)
    backend.close()


def test_a_copy_is_encoded_later_and_shows_nothing_of_what_came_after_it(tmp_path: Path) -> None:
    shop = Workshop("heap", tmp_path)
    backend = shop.backend()
    count, bag = backend.state(COUNT), backend.state(BAG)
    for key in range(50):
        at(backend, key)
        count.update(key)
        bag.update([key])
    work = backend.snapshot(1)
    assert isinstance(work, CopiedSnapshot)
    for key in range(25, 75):
        at(backend, key)
        count.clear()
        bag.update([-1])
    again = shop.restored(work.write(shop.store))
    assert contents(again, again.state(COUNT), "count") == {k: k for k in range(50)}
    assert contents(again, again.state(BAG), "bag") == {k: [k] for k in range(50)}


def test_a_column_of_doubles_is_what_its_values_are_one_by_one() -> None:
    doubles = elements_of(Types.DOUBLE(), "here", False)
    assert doubles.to_column is not None
    values = [0.0, -0.0, 1.5, float("inf"), 1e-300, float("nan")]
    column = msgspec.msgpack.decode(bytes(doubles.to_column(values)))
    assert column == [doubles.to_bytes(value) for value in values]


def test_where_no_process_can_be_forked_the_snapshot_is_taken_at_once(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> int:
        raise OSError(11, "Resource temporarily unavailable")

    backend = shop.backend()
    at(backend, "a")
    backend.state(COUNT).update(1)
    files = open_files()
    monkeypatch.setattr(os, "fork", refuse)
    again = shop.restored(shop.snapshot(backend))
    assert open_files() == files
    assert contents(again, again.state(COUNT), "count") == {"a": 1}


def test_a_threshold_below_zero_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="fork_threshold"):
        HeapOptions(fork_threshold=-1)
