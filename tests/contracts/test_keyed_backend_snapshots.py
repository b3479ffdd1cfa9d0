"""What every keyed state backend promises of snapshots, restores, rescaling and a change of backend."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pytest
from backend_workshop import (
    BY_ITEM,
    COUNT,
    LAST,
    MAX_PARALLELISM,
    MEAN,
    PAIR,
    SEEN,
    TOTAL,
    Workshop,
    at,
    contents,
)

from headrace.checkpoint.handles import StateFile
from headrace.errors import (
    CheckpointError,
    DamagedCheckpointError,
    StateConflictError,
    UnsupportedFormatError,
)
from headrace.state.descriptors import (
    ListStateDescriptor,
)
from headrace.state.key_groups import group_range, key_group
from headrace.types.information import Types

# --- snapshot and restore ------------------------------------------------------------------------


def fill(backend: Any, rows: int = 200) -> None:
    """Something in every kind of state."""
    for i in range(rows):
        at(backend, f"k{i}")
        backend.state(COUNT).update(i)
        backend.state(PAIR).update((str(i), i))
        backend.state(SEEN).add_all([i, i + 1])
        backend.state(BY_ITEM).put_all({"a": i, "b": -i})
        backend.state(TOTAL).add(i)
        backend.state(MEAN).add(float(i))
        backend.timers("event").register(i, f"k{i}")


STATES = [COUNT, PAIR, SEEN, BY_ITEM, TOTAL, MEAN]


def dump(backend: Any) -> dict[str, Any]:
    """Everything a user could read, for comparison."""
    found: dict[str, Any] = {d.name: contents(backend, backend.state(d), d.name) for d in STATES}
    queue = backend.timers("event")
    timers = []
    while (timer := queue.pop_due(2**62)) is not None:
        timers.append(timer)
    for timer in timers:
        queue.register(*timer)
    return {**found, "timers": timers}


@pytest.mark.parametrize("canonical", [False, True])
def test_what_is_restored_equals_what_was_saved(shop: Workshop, canonical: bool) -> None:
    backend = shop.backend()
    fill(backend)
    expected = dump(backend)
    assert dump(shop.restored(shop.snapshot(backend, canonical=canonical))) == expected


def test_an_empty_backend_can_be_saved_and_restored(shop: Workshop) -> None:
    backend = shop.backend()
    for canonical in (False, True):
        again = shop.restored(shop.snapshot(backend, canonical=canonical))
        at(again, "a")
        assert again.state(LAST).value() is None


def test_declared_but_empty_states_are_remembered(shop: Workshop) -> None:
    backend = shop.backend()
    backend.state(LAST)
    work = shop.snapshot(backend)
    assert [shape.name for shape in work.shapes] == ["last", "event", "processing"]
    with pytest.raises(StateConflictError):
        shop.restored(work).state(ListStateDescriptor("last", Types.DOUBLE()))


def test_a_snapshot_holds_the_values_at_the_barrier(shop: Workshop) -> None:
    backend = shop.backend()
    fill(backend)
    expected = dump(backend)
    work = backend.snapshot(1)
    fill(backend)
    for i in range(0, 200, 3):
        at(backend, f"k{i}")
        for descriptor in STATES:
            backend.state(descriptor).clear()
    backend.timers("event").register(5000, "late")
    assert dump(shop.restored(work.write(shop.store))) == expected


def test_a_canonical_snapshot_holds_the_values_at_the_barrier(shop: Workshop) -> None:
    backend = shop.backend()
    fill(backend, 50)
    expected = dump(backend)
    work = backend.snapshot(1, canonical=True)
    fill(backend, 60)
    assert dump(shop.restored(work.write(shop.store))) == expected


def test_a_second_snapshot_may_begin_while_the_first_is_not_written(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(COUNT)
    works = []
    for round_ in range(4):
        for i in range(40):
            at(backend, i)
            state.update(round_ * 100 + i)
        works.append(backend.snapshot(round_))
    for round_, work in reversed(list(enumerate(works))):
        again = shop.restored(work.write(shop.store))
        assert contents(again, again.state(COUNT), "count") == {i: round_ * 100 + i for i in range(40)}


def test_snapshots_of_one_backend_build_on_each_other(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(COUNT)
    model = {}
    for checkpoint in range(1, 8):
        for i in range(checkpoint * 5, checkpoint * 5 + 20):
            at(backend, i)
            state.update(checkpoint)
            model[i] = checkpoint
        at(backend, checkpoint * 5)
        state.clear()
        del model[checkpoint * 5]
        work = shop.snapshot(backend, checkpoint)
        if checkpoint % 2:
            backend.checkpoint_complete(checkpoint)
        again = shop.restored(work)
        assert contents(again, again.state(COUNT), "count") == model


def test_a_restored_backend_goes_on_and_can_be_saved_again(shop: Workshop) -> None:
    backend = shop.backend()
    fill(backend, 30)
    for checkpoint in range(1, 5):
        snapshot = shop.snapshot(backend, checkpoint)
        expected = dump(backend)
        backend = shop.restored(snapshot)
        assert dump(backend) == expected
        fill(backend, 10 * checkpoint)


def test_a_cancelled_snapshot_leaves_nothing_and_the_next_one_works(shop: Workshop) -> None:
    backend = shop.backend()
    fill(backend, 20)
    work = backend.snapshot(1)
    work.cancel()
    with pytest.raises(CheckpointError, match="cancelled"):
        work.write(shop.store)
    assert shop.store.uploaded == []
    expected = dump(backend)
    assert dump(shop.restored(shop.snapshot(backend, 2))) == expected


def test_a_snapshot_that_is_never_written_is_cleaned_up_by_close(shop: Workshop) -> None:
    backend = shop.backend()
    fill(backend, 20)
    backend.snapshot(1)
    backend.snapshot(2, canonical=True)


def test_cancelling_after_the_end_or_twice_does_no_harm(shop: Workshop) -> None:
    backend = shop.backend()
    fill(backend, 5)
    work = backend.snapshot(1)
    snapshot = work.write(shop.store)
    work.cancel()
    work.cancel()
    assert len(dump(shop.restored(snapshot))["count"]) == 5


def test_a_store_that_fails_fails_the_snapshot_only(shop: Workshop) -> None:
    class FullStore:
        def write(self, name: str, chunks: Any) -> Any:
            for _ in chunks:
                raise OSError(28, "No space left on device")
            raise OSError(28, "No space left on device")

        def write_shared(self, path: Any) -> Any:
            raise OSError(28, "No space left on device")

    backend = shop.backend()
    fill(backend, 20)
    with pytest.raises(OSError, match="No space left"):
        backend.snapshot(1).write(FullStore())
    expected = dump(backend)
    assert dump(shop.restored(shop.snapshot(backend, 2))) == expected


# --- rescaling -----------------------------------------------------------------------------------


@pytest.mark.parametrize("canonical", [False, True])
def test_one_subtask_becomes_three_and_three_become_two(shop: Workshop, canonical: bool) -> None:
    backend = shop.backend()
    fill(backend)
    expected = dump(backend)
    whole = shop.snapshot(backend, canonical=canonical)
    three = [shop.restored(whole, subtask=i, parallelism=3) for i in range(3)]
    assert merged(map(dump, three)) == expected
    for i, part in enumerate(three):
        for key in part.keys("count"):
            assert key_group(key, MAX_PARALLELISM) in group_range(i, 3, MAX_PARALLELISM)
    parts = [shop.snapshot(part, 2, canonical=canonical) for part in three]
    two = [shop.restored(*overlapping(parts, i, 2), subtask=i, parallelism=2) for i in range(2)]
    assert merged(map(dump, two)) == expected
    for part in two:
        for key in list(part.keys("seen")):
            part.key_context.key = key
            part.state(SEEN).add(-1)
            assert list(part.state(SEEN).get())[-1] == -1


def merged(dumps: Any) -> dict[str, Any]:
    result: dict[str, Any] = {d.name: {} for d in STATES}
    timers: list[Any] = []
    for one in dumps:
        for name, found in one.items():
            if name == "timers":
                timers += found
            else:
                assert not result[name].keys() & found.keys()
                result[name] |= found
    return {**result, "timers": sorted(timers)}


def overlapping(parts: list[Any], subtask: int, parallelism: int) -> list[Any]:
    groups = group_range(subtask, parallelism, MAX_PARALLELISM)
    return [part for part in parts if part.first_group < groups.stop and part.last_group >= groups.start]


def test_a_subtask_reads_its_groups_even_from_snapshots_it_has_no_share_in(shop: Workshop) -> None:
    backend = shop.backend()
    fill(backend, 50)
    whole = shop.snapshot(backend)
    parts = [shop.snapshot(shop.restored(whole, subtask=i, parallelism=2), 2) for i in range(2)]
    last = shop.restored(*parts, subtask=1, parallelism=2)
    assert {key_group(key, MAX_PARALLELISM) for key in last.keys("count")} <= set(range(8, 16))
    assert len(dump(last)["count"]) > 0


# --- from one backend to another -----------------------------------------------------------------


@pytest.mark.parametrize("other", ["heap", "heap-forking", "rocksdb", "rocksdb-cramped"])
def test_a_savepoint_of_one_backend_restores_in_another_and_back(shop: Workshop, other: str) -> None:
    backend = shop.backend()
    fill(backend, 80)
    expected = dump(backend)
    there = shop.restored(shop.snapshot(backend, canonical=True), flavour=other)
    assert dump(there) == expected
    back = shop.restored(shop.snapshot(there, 2, canonical=True))
    assert dump(back) == expected


def test_states_nobody_declares_are_carried_along(shop: Workshop) -> None:
    backend = shop.backend()
    fill(backend, 30)
    expected = dump(backend)
    for canonical in (True, False, True):
        forgetful = shop.restored(shop.snapshot(backend, canonical=canonical))
        at(forgetful, "k1")
        assert forgetful.state(COUNT).value() == 1
        again = shop.restored(shop.snapshot(forgetful, 2, canonical=canonical))
        assert dump(again) == expected


def test_the_number_of_entries_is_known_about(shop: Workshop) -> None:
    backend = shop.backend()
    assert backend.entry_count() == 0
    fill(backend, 100)
    shop.snapshot(backend)
    assert 700 <= backend.entry_count() <= 900


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("canonical", [False, True])
def test_a_flipped_byte_anywhere_is_refused_as_damage(shop: Workshop, canonical: bool) -> None:
    backend = shop.backend()
    fill(backend, 20)
    snapshot = shop.snapshot(backend, canonical=canonical)
    for file in snapshot.files:
        path = shop.store.root / file.path
        whole = path.read_bytes()
        for position in {0, len(whole) // 2, len(whole) - 1}:
            path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
            with pytest.raises(DamagedCheckpointError):
                shop.restored(snapshot)
        path.write_bytes(whole[:-1])
        with pytest.raises(DamagedCheckpointError):
            shop.restored(snapshot)
        path.write_bytes(whole)
    assert len(dump(shop.restored(snapshot))["count"]) == 20


def test_lengths_that_cannot_be_are_refused_before_memory_is_taken(shop: Workshop) -> None:
    backend = shop.backend()
    fill(backend, 20)
    snapshot = shop.snapshot(backend, canonical=True)
    path = shop.store.root / snapshot.files[0].path
    whole = path.read_bytes()
    path.write_bytes(b"\xff\xff\xff\xff" + whole[4:])
    with pytest.raises(DamagedCheckpointError, match="claims 4294967295 bytes"):
        shop.restored(snapshot)


@pytest.mark.parametrize("details", [b"", b"\xc1", b"\x92\x01\xdd\xff\xff\xff\xff", b"\x93\x01\x02\x03"])
@pytest.mark.parametrize("canonical", [False, True])
def test_details_that_nobody_wrote_are_refused(shop: Workshop, details: bytes, canonical: bool) -> None:
    backend = shop.backend()
    fill(backend, 5)
    snapshot = shop.snapshot(backend, canonical=canonical)
    with pytest.raises(DamagedCheckpointError):
        shop.restored(msgspec.structs.replace(snapshot, details=details))


def test_a_format_of_the_future_is_refused_by_name(shop: Workshop) -> None:
    backend = shop.backend()
    fill(backend, 5)
    snapshot = shop.snapshot(backend)
    with pytest.raises(UnsupportedFormatError, match="papyrus"):
        shop.restored(msgspec.structs.replace(snapshot, format="papyrus"))


# --- snapshots at full speed ---------------------------------------------------------------------


def test_snapshots_written_on_another_thread_equal_the_model_at_their_barriers(shop: Workshop) -> None:
    backend = shop.backend()
    count, seen, by_item = backend.state(COUNT), backend.state(SEEN), backend.state(BY_ITEM)
    frozen: list[tuple[dict[str, Any], Any]] = []
    writers = []
    for checkpoint in range(1, 9):
        for i in range(150):
            at(backend, i % 40)
            count.update(checkpoint * 1000 + i)
            seen.add(i)
            by_item.put(str(i % 3), checkpoint)
        work = backend.snapshot(checkpoint, canonical=checkpoint % 4 == 0)
        states = ((COUNT, count), (SEEN, seen), (BY_ITEM, by_item))
        model = {d.name: contents(backend, state, d.name) for d, state in states}
        written: list[Any] = []
        frozen.append((model, written))
        writer = threading.Thread(target=lambda w=work, found=written: found.append(w.write(shop.store)))
        writer.start()
        writers.append(writer)
    for writer in writers:
        writer.join()
    for model, (snapshot,) in frozen:
        again = shop.restored(snapshot)
        assert {d.name: contents(again, again.state(d), d.name) for d in (COUNT, SEEN, BY_ITEM)} == model
        again.close()


def test_a_snapshot_cancelled_while_it_is_written_ends_and_leaves_nothing(shop: Workshop) -> None:
    entered, go_on = threading.Event(), threading.Event()

    class SlowStore:
        def write(self, name: str, chunks: Any) -> Any:
            entered.set()
            go_on.wait()
            for _ in chunks:
                pass
            raise AssertionError("a cancelled snapshot gave all its bytes")

        def write_shared(self, path: Any) -> StateFile:
            entered.set()
            go_on.wait()
            return StateFile(1, "")

    backend = shop.backend()
    fill(backend, 50)
    work = backend.snapshot(1)
    failures: list[BaseException] = []

    def write() -> None:
        try:
            work.write(SlowStore())
        except BaseException as error:
            failures.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    entered.wait()
    work.cancel()
    go_on.set()
    writer.join()
    (failure,) = failures
    assert isinstance(failure, CheckpointError)
