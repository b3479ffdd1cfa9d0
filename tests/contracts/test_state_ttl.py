"""State with a time-to-live, on every backend: what is seen, what is refreshed, and what really goes away."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from backend_workshop import Mean, Workshop, at

from headrace.durations import Duration, Time
from headrace.errors import ConfigurationError, JobDefinitionError, StateConflictError
from headrace.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from headrace.state.ttl import StateTtlConfig, StateTtlConfigBuilder
from headrace.types.information import Types

TTL = Time.seconds(10)
VALUE = ("value", Types.LONG())


def config(change: Callable[[StateTtlConfigBuilder], Any] = lambda builder: None) -> StateTtlConfig:
    """Ten seconds and, unless the change says otherwise, no cleanup that could hide what a read does by itself."""
    builder = StateTtlConfig.new_builder(TTL).disable_cleanup_in_background()
    change(builder)
    return builder.build()


def timed(descriptor: Any, ttl: StateTtlConfig | None = None) -> Any:
    descriptor.enable_time_to_live(config() if ttl is None else ttl)
    return descriptor


def value(ttl: StateTtlConfig | None = None) -> StateDescriptor:
    return timed(ValueStateDescriptor("value", Types.LONG()), ttl)


def seen(ttl: StateTtlConfig | None = None) -> StateDescriptor:
    return timed(ListStateDescriptor("seen", Types.LONG()), ttl)


def by_item(ttl: StateTtlConfig | None = None) -> StateDescriptor:
    return timed(MapStateDescriptor("by-item", Types.STRING(), Types.LONG()), ttl)


def total(ttl: StateTtlConfig | None = None) -> StateDescriptor:
    return timed(ReducingStateDescriptor("total", lambda a, b: a + b, Types.LONG()), ttl)


def mean(ttl: StateTtlConfig | None = None) -> StateDescriptor:
    return timed(AggregatingStateDescriptor("mean", Mean(), Types.LIST(Types.DOUBLE())), ttl)


READS_REFRESH = StateTtlConfigBuilder.update_ttl_on_read_and_write
EXPIRED_MAY_BE_SEEN = StateTtlConfigBuilder.return_expired_if_not_cleaned_up


def test_a_value_is_there_until_its_time_is_over(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(value())
    at(backend, "ann")
    state.update(1)
    shop.clock.advance(9_999)
    assert state.value() == 1
    shop.clock.advance(1)
    assert state.value() is None
    assert list(backend.keys("value")) == [], "a read takes away what it finds expired"


def test_a_write_begins_the_time_anew_and_a_read_only_if_told(shop: Workshop) -> None:
    backend = shop.backend()
    written = backend.state(value())
    read = backend.state(timed(ValueStateDescriptor("read", Types.LONG()), config(READS_REFRESH)))
    at(backend, "ann")
    written.update(1)
    read.update(1)
    for _ in range(3):
        shop.clock.advance(6_000)
        assert read.value() == 1
        written.update(2)
    shop.clock.advance(6_000)
    assert (written.value(), read.value()) == (2, 1)
    shop.clock.advance(6_000)
    assert (written.value(), read.value()) == (None, 1)


def test_an_expired_value_may_be_given_out_once_more_where_that_is_allowed(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(value(config(EXPIRED_MAY_BE_SEEN)))
    at(backend, "ann")
    state.update(1)
    shop.clock.advance(60_000)
    assert state.value() == 1
    assert state.value() is None


def test_elements_of_a_list_expire_one_by_one(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(seen())
    at(backend, "ann")
    state.add(1)
    shop.clock.advance(4_000)
    state.add_all([2, 3])
    shop.clock.advance(4_000)
    state.add(4)
    shop.clock.advance(2_000)
    assert list(state.get()) == [2, 3, 4]
    shop.clock.advance(4_000)
    assert list(state) == [4]
    shop.clock.advance(4_000)
    assert list(state.get()) == []
    assert list(backend.keys("seen")) == []
    state.update([5, 6])
    assert list(state.get()) == [5, 6]


def test_reading_a_list_refreshes_what_is_alive_and_drops_the_rest(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(seen(config(READS_REFRESH)))
    at(backend, "ann")
    state.add(1)
    shop.clock.advance(6_000)
    state.add(2)
    shop.clock.advance(6_000)
    assert list(state.get()) == [2]
    shop.clock.advance(9_000)
    assert list(state.get()) == [2]


def test_entries_of_a_map_expire_one_by_one(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(by_item())
    at(backend, "ann")
    state.put("tea", 1)
    shop.clock.advance(6_000)
    state.put_all({"milk": 2, "salt": 3})
    shop.clock.advance(4_000)
    assert state.get("tea") is None
    assert not state.contains("tea")
    assert dict(state.items()) == {"milk": 2, "salt": 3}
    assert sorted(state.keys()) == ["milk", "salt"]
    assert sorted(state.values()) == [2, 3]
    assert not state.is_empty()
    del state["salt"]
    shop.clock.advance(6_000)
    assert state.is_empty()
    assert "milk" not in state
    assert list(backend.keys("by-item")) == []


def test_reading_an_entry_of_a_map_refreshes_that_entry_alone(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(by_item(config(READS_REFRESH)))
    at(backend, "ann")
    state.put_all({"tea": 1, "milk": 2})
    shop.clock.advance(6_000)
    assert state["tea"] == 1
    shop.clock.advance(6_000)
    assert dict(state.items()) == {"tea": 1}
    shop.clock.advance(9_000)
    assert state.contains("tea")


def test_expired_entries_of_collections_may_be_seen_where_that_is_allowed(shop: Workshop) -> None:
    backend = shop.backend()
    many = backend.state(seen(config(EXPIRED_MAY_BE_SEEN)))
    entries = backend.state(by_item(config(EXPIRED_MAY_BE_SEEN)))
    at(backend, "ann")
    many.add(1)
    entries.put("tea", 1)
    shop.clock.advance(60_000)
    many.add(2)
    assert list(many.get()) == [1, 2]
    assert not entries.is_empty()
    assert dict(entries.items()) == {"tea": 1}
    assert dict(entries.items()) == {}


def test_a_fold_onto_an_expired_value_begins_anew(shop: Workshop) -> None:
    backend = shop.backend()
    sums, means = backend.state(total()), backend.state(mean())
    at(backend, "ann")
    for number in (1, 2):
        sums.add(number)
        means.add(number)
        shop.clock.advance(6_000)
    assert (sums.get(), means.get()) == (3, 1.5)
    shop.clock.advance(4_000)
    assert (sums.get(), means.get()) == (None, None)
    sums.add(5)
    means.add(5)
    shop.clock.advance(10_000)
    sums.add(7)
    means.add(7)
    assert (sums.get(), means.get()) == (7, 7)


def test_keys_and_namespaces_grow_old_apart(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(value(config(lambda b: b.cleanup_incrementally(3))))
    for key, space in (("ann", b""), ("bob", b"w1"), ("ann", b"w2")):
        at(backend, key)
        state.set_namespace(space)
        state.update(1)
        shop.clock.advance(4_000)
    at(backend, "ann")
    state.set_namespace(b"")
    assert state.value() is None
    state.set_namespace(b"w2")
    assert state.value() == 1
    at(backend, "bob")
    state.set_namespace(b"w1")
    assert state.value() == 1


@pytest.mark.parametrize("canonical", [False, True])
def test_time_goes_on_through_a_snapshot(shop: Workshop, canonical: bool) -> None:
    backend = shop.backend()
    for descriptor in (value(), seen(), by_item(), total(), mean()):
        backend.state(descriptor)
    at(backend, "ann")
    backend.state(value()).update(1)
    backend.state(seen()).add(1)
    backend.state(by_item()).put("tea", 1)
    backend.state(total()).add(1)
    shop.clock.advance(6_000)
    backend.state(mean()).add(1)
    snapshot = shop.snapshot(backend, canonical=canonical)
    again = shop.restored(snapshot)
    at(again, "ann")
    assert again.state(value()).value() == 1
    assert list(again.state(seen()).get()) == [1]
    assert again.state(total()).get() == 1
    shop.clock.advance(4_000)
    assert again.state(value()).value() is None
    assert list(again.state(seen()).get()) == []
    assert again.state(by_item()).is_empty()
    assert again.state(total()).get() is None
    assert again.state(mean()).get() == 1


def all_states(backend: Any, cleanup: Callable[[StateTtlConfigBuilder], Any]) -> dict[str, Any]:
    ttl = config(cleanup)
    return {d.name: backend.state(d) for d in (value(ttl), seen(ttl), by_item(ttl), total(ttl))}


def fill(backend: Any, states: dict[str, Any], keys: range) -> None:
    for key in keys:
        at(backend, key)
        states["value"].update(key)
        states["seen"].add_all([key, key])
        states["by-item"].put_all({"tea": key, "milk": key})
        states["total"].add(key)


def test_a_full_snapshot_leaves_expired_entries_out(shop: Workshop) -> None:
    backend = shop.backend()
    states = all_states(backend, StateTtlConfigBuilder.cleanup_full_snapshot)
    fill(backend, states, range(10))
    shop.clock.advance(6_000)
    at(backend, 3)
    states["seen"].add(99)
    states["by-item"].put("salt", 99)
    fill(backend, states, range(10, 14))
    shop.clock.advance(4_000)
    snapshot = shop.snapshot(backend, canonical=True)
    again = shop.restored(snapshot, flavour="heap")
    states = all_states(again, StateTtlConfigBuilder.cleanup_full_snapshot)
    assert sorted(again.keys("value")) == [10, 11, 12, 13]
    assert sorted(again.keys("total")) == [10, 11, 12, 13]
    assert sorted(again.keys("seen")) == [3, 10, 11, 12, 13]
    assert again.entry_count() == 4 + 4 + (1 + 8) + (1 + 8)
    at(again, 3)
    assert list(states["seen"].get()) == [99]


def test_without_any_cleanup_expired_entries_stay_in_snapshots(shop: Workshop) -> None:
    backend = shop.backend()
    backend.state(value())
    at(backend, "ann")
    backend.state(value()).update(1)
    shop.clock.advance(60_000)
    again = shop.restored(shop.snapshot(backend, canonical=True))
    again.state(value())
    assert list(again.keys("value")) == ["ann"]


def test_a_state_saved_without_a_time_to_live_is_refused_with_one_and_the_other_way_round(shop: Workshop) -> None:
    plain = ValueStateDescriptor("value", Types.LONG())
    backend = shop.backend()
    at(backend, "ann")
    backend.state(plain).update(1)
    with pytest.raises(
        StateConflictError, match=r'"value".*already declared.*without a time-to-live.*now declared with'
    ):
        backend.state(value())
    again = shop.restored(shop.snapshot(backend))
    with pytest.raises(StateConflictError, match=r'"value" of operator "per-user" was saved.*without a time-to-live'):
        again.state(value())

    backend = shop.backend()
    at(backend, "ann")
    backend.state(value()).update(1)
    again = shop.restored(shop.snapshot(backend))
    with pytest.raises(
        StateConflictError, match=r"saved as value state of TTL<LONG>, with a time-to-live.*without one"
    ):
        again.state(plain)


def test_length_and_cleanup_may_change_between_two_runs(shop: Workshop) -> None:
    backend = shop.backend()
    at(backend, "ann")
    backend.state(value()).update(1)
    again = shop.restored(shop.snapshot(backend))
    at(again, "ann")
    longer = StateTtlConfig.new_builder(Duration.of_days(1)).build()
    state = again.state(value(longer))
    shop.clock.advance(Duration.of_hours(23))
    assert state.value() == 1


def test_a_switched_off_time_to_live_is_none(shop: Workshop) -> None:
    backend = shop.backend()
    off = value(config(lambda b: b.set_update_type(StateTtlConfig.UpdateType.Disabled)))
    at(backend, "ann")
    backend.state(off).update(1)
    shop.clock.advance(Duration.of_days(1_000))
    assert backend.state(ValueStateDescriptor("value", Types.LONG())).value() == 1


HEAP = ("heap", "heap-forking")


@pytest.mark.parametrize("flavour", HEAP)
def test_on_the_heap_every_access_looks_at_a_few_keys_and_drops_what_has_expired(flavour: str, tmp_path: Path) -> None:
    shop = Workshop(flavour, tmp_path)
    backend = shop.backend()
    states = all_states(backend, lambda b: b.cleanup_incrementally(10))
    fill(backend, states, range(100))
    shop.clock.advance(10_000)
    at(backend, "somebody else")
    for name, state in states.items():
        assert len(list(backend.keys(name))) == 100
        for _ in range(25):  # the rest of the round that the writes began, and a whole one
            _touch(state)
        assert list(backend.keys(name)) == [], name
    shop.close()


def _touch(state: Any) -> None:
    state.is_empty() if hasattr(state, "is_empty") else state.value() if hasattr(state, "value") else state.get()


def test_cleanup_for_every_record_needs_no_access_to_the_state(tmp_path: Path) -> None:
    shop = Workshop("heap", tmp_path)
    backend = shop.backend()
    state = backend.state(value(config(lambda b: b.cleanup_incrementally(10, True))))
    for key in range(100):
        at(backend, key)
        state.update(key)
    shop.clock.advance(10_000)
    for _ in range(40):
        at(backend, "a record that does not use the state")
    assert list(backend.keys("value")) == []
    shop.close()


def test_states_without_cleanup_keep_a_plain_key_context(shop: Workshop) -> None:
    backend = shop.backend()
    plain = type(backend.key_context)
    backend.state(ValueStateDescriptor("plain", Types.LONG()))
    backend.state(value(StateTtlConfig.new_builder(TTL).build()))
    assert type(backend.key_context) is plain


@pytest.mark.parametrize("flavour", ["rocksdb", "rocksdb-cramped"])
@pytest.mark.parametrize("name", ["value", "seen", "by-item", "total"])
def test_in_rocksdb_a_sweep_removes_what_has_expired_of_every_kind(flavour: str, name: str, tmp_path: Path) -> None:
    shop = Workshop(flavour, tmp_path)
    backend = shop.backend()
    states = all_states(backend, lambda b: b.cleanup_in_rocksdb_compact_filter(7))
    fill(backend, states, range(60))
    shop.snapshot(backend)
    shop.clock.advance(6_000)
    fill(backend, states, range(50, 55))
    shop.clock.advance(4_000)
    at(backend, "somebody else")
    for _ in range(7 * 60):
        _touch(states[name])
    assert sorted(k for k in backend.keys(name) if k != "somebody else") == list(range(50, 55))
    at(backend, 52)
    assert (
        _held(states[name]) == {"value": 52, "seen": [52, 52], "by-item": {"tea": 52, "milk": 52}, "total": 104}[name]
    )
    shop.close()


def _held(state: Any) -> Any:
    if hasattr(state, "items"):
        return dict(state.items())
    return state.value() if hasattr(state, "value") else state.get()


def test_in_rocksdb_expired_state_gives_its_space_on_disk_back(tmp_path: Path) -> None:
    shop = Workshop("rocksdb", tmp_path)
    backend = shop.backend()
    ttl = config(lambda b: b.cleanup_in_rocksdb_compact_filter(500))
    state = backend.state(timed(ValueStateDescriptor("blob", Types.PRIMITIVE_ARRAY(Types.BYTE())), ttl))
    count = 4_000
    for key in range(count):
        at(backend, key)
        state.update(key.to_bytes(4, "big") * 250)
    shop.snapshot(backend)
    before = database_bytes(tmp_path)
    assert before > 100_000
    shop.clock.advance(10_000)
    at(backend, 10**9)
    deadline = time.monotonic() + 120
    while database_bytes(tmp_path) > before / 10:
        for _ in range(500):
            state.value()
        assert time.monotonic() < deadline, f"{database_bytes(tmp_path)} of {before} bytes are left"
    assert list(backend.keys("blob")) == []
    shop.close()


def database_bytes(root: Path) -> int:
    total = 0
    for file in root.rglob("db/*.sst"):
        try:
            total += file.stat().st_size
        except FileNotFoundError:
            continue  # a compaction has just taken it away
    return total


def test_a_config_says_what_was_chosen() -> None:
    built = (
        StateTtlConfig.new_builder(Time.hours(1))
        .update_ttl_on_read_and_write()
        .return_expired_if_not_cleaned_up()
        .use_processing_time()
        .cleanup_full_snapshot()
        .cleanup_incrementally(10, True)
        .cleanup_in_rocksdb_compact_filter(2_000, Duration.of_hours(3))
        .build()
    )
    assert built.get_ttl() == Time.hours(1)
    assert built.get_update_type() is StateTtlConfig.UpdateType.OnReadAndWrite
    assert built.get_state_visibility() is StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp
    assert built.get_ttl_time_characteristic() is StateTtlConfig.TtlTimeCharacteristic.ProcessingTime
    assert built.is_enabled()
    cleanup = built.get_cleanup_strategies()
    assert cleanup.in_full_snapshot()
    assert cleanup.is_cleanup_in_background()
    incremental = cleanup.get_incremental_cleanup_strategy()
    assert incremental is not None
    assert (incremental.get_cleanup_size(), incremental.run_cleanup_for_every_record()) == (10, True)
    compaction = cleanup.get_rocksdb_compact_filter_cleanup_strategy()
    assert compaction is not None
    assert compaction.get_query_time_after_num_entries() == 2_000
    assert compaction.get_periodic_compaction_time() == Duration.of_hours(3)


def test_defaults_are_those_of_flink() -> None:
    built = StateTtlConfig.new_builder(5_000).build()
    assert built.get_update_type() is StateTtlConfig.UpdateType.OnCreateAndWrite
    assert built.get_state_visibility() is StateTtlConfig.StateVisibility.NeverReturnExpired
    incremental = built.get_cleanup_strategies().get_incremental_cleanup_strategy()
    assert incremental is not None
    assert (incremental.get_cleanup_size(), incremental.run_cleanup_for_every_record()) == (5, False)
    nothing = StateTtlConfig.new_builder(5_000).disable_cleanup_in_background().build().get_cleanup_strategies()
    assert nothing.get_incremental_cleanup_strategy() is None
    assert not nothing.in_rocksdb_compact_filter()


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="time-to-live of a state is 0 ms"):
        StateTtlConfig.new_builder(Time.seconds(0))
    with pytest.raises(ConfigurationError, match="cleanup_size is 0"):
        StateTtlConfig.new_builder(1).cleanup_incrementally(0)
    with pytest.raises(JobDefinitionError, match=r"StateTtlConfig.new_builder"):
        ValueStateDescriptor("value", Types.LONG()).enable_time_to_live(Time.seconds(1))  # type: ignore[arg-type]
