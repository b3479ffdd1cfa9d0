"""State read without its job: every kind of state, of every format, as entries, as columns and on the command line."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from golden_jobs import KEYS, UID, WINDOW, Publisher, Shape, expected, expected_contents, job, save_savepoint

from headrace.checkpoint.handles import StateShape
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.cli.main import main
from headrace.errors import RestoreError, TypeMismatchError
from headrace.state.key_groups import key_group
from headrace.state.keys import stored_form
from headrace.state_reader import StateReader
from headrace.state_reader.entries import EntryDecoder, window_of
from headrace.state_reader.pieces import pieces_of
from headrace.types.information import Types


@pytest.fixture(scope="module", params=["heap-checkpoint", "rocksdb-checkpoint", "savepoint"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("saved")
    storage = FileSystemCheckpointStorage(str(root))
    backend, _, kind = request.param.partition("-")
    if not kind:
        with job(Shape(backend="heap", kind="savepoint")) as made:
            save_savepoint(storage, made)
        return str(root)
    with job(Shape(backend=backend)) as made:
        Publisher(storage).publish(made, 3)
    return str(root / "golden")


def by_key(reader: StateReader, state: str, namespace: bytes = b"") -> dict[Any, Any]:
    """Entries put together as the state would give them, by key in stored form."""
    kind = reader.kind_of(UID, state)
    found: dict[Any, Any] = defaultdict(list if kind == "list" else dict)
    for entry in reader.keyed(UID, state):
        if entry.namespace != namespace:
            continue
        stored = stored_form(entry.key)
        if kind == "list":
            assert entry.entry == len(found[stored])
            found[stored].append(entry.value)
        elif kind == "map":
            found[stored][entry.entry] = entry.value
        else:
            found[stored] = entry.value
    return dict(found)


def test_every_keyed_state_is_read_as_the_job_had_it(path: str) -> None:
    reader, wanted = StateReader(path), expected_contents()
    for state in ("count", "profile", "seen", "by-item", "total"):
        assert by_key(reader, state) == wanted[state], state
    assert by_key(reader, "mean") == {stored_form(key): [float(n), 2.0] for n, key in enumerate(KEYS)}
    assert by_key(reader, "count", WINDOW) == wanted["windowed count"]


def test_timers_of_both_domains_are_read(path: str) -> None:
    reader, wanted = StateReader(path), expected_contents()
    for domain in ("event", "processing"):
        found = {stored_form(t.key): (t.time_ms, t.namespace) for t in reader.timers(UID, domain)}
        assert found == wanted[domain]


def test_operator_state_is_read_by_subtask_and_broadcast_state_once(path: str) -> None:
    reader = StateReader(path)
    assert [(e.subtask, e.value) for e in reader.operator_state(UID, "pending")] == [(0, 0), (0, 1), (1, 10), (1, 11)]
    assert [(e.subtask, e.value) for e in reader.operator_state(UID, "offsets")] == [(0, 100), (1, 101)]
    assert {e.key: e.value for e in reader.operator_state(UID, "rules")} == {"limit": 5, "floor": -1}


@pytest.mark.parametrize("key", ["user-7", 7, b"raw", 1.5, True, ("pair", 7), "", -(2**70)])
def test_one_key_is_found_and_none_that_python_holds_equal(path: str, key: Any) -> None:
    place = next(n for n, other in enumerate(KEYS) if stored_form(other) == stored_form(key))
    entries = list(StateReader(path).keyed(UID, "total", key=key))
    assert [entry.value for entry in entries] == [expected(key, place)["total"]]
    assert list(StateReader(path).keyed(UID, "total", key="nobody")) == []


def test_key_groups_divide_a_state_without_rest_or_overlap(path: str) -> None:
    reader = StateReader(path)
    whole = [stored_form(entry.key) for entry in reader.keyed(UID, "total")]
    apart = []
    for groups in (range(3), range(3, 11), range(11, 16)):
        found = [stored_form(entry.key) for entry in reader.keyed(UID, "total", groups=groups)]
        assert all(key_group(key, 16) in groups for key in found)
        apart += found
    assert sorted(map(repr, apart)) == sorted(map(repr, whole))
    record = reader.operator(UID)
    for count in (1, 2, 5, 100):
        groups = [group for piece in pieces_of(record, count) for group in piece.groups]
        assert sorted(groups) == list(range(16))


def test_columns_carry_the_types_of_the_state(path: str) -> None:
    reader = StateReader(path)
    rows = [row for batch in reader.batches(UID, "by-item", key_type=Types.ANY()) for row in batch.to_pylist()]
    assert {(row["key"], row["map_key"], row["value"]) for row in rows if row["key"] == "user-2"} == {
        ("user-2", "i0", 2.0),
        ("user-2", "i1", 2.125),
    }
    assert all(row["key_group"] == key_group(row["key"], 16) for row in rows if row["key"].startswith("user"))
    (profile,) = (
        row["value"] for batch in reader.batches(UID, "profile") for row in batch.to_pylist() if row["key"] == "user-7"
    )
    assert profile == {"name": "n7", "score": 1.75}
    with pytest.raises(TypeMismatchError, match=r"key_type="):
        list(reader.batches(UID, "count", key_type=Types.LONG()))


def test_what_is_not_there_is_refused_with_what_is(path: str) -> None:
    reader = StateReader(path)
    with pytest.raises(RestoreError, match="numbers, per-user"):
        list(reader.keyed("elsewhere", "count"))
    with pytest.raises(RestoreError, match="by-item, count"):
        list(reader.keyed(UID, "counts"))
    with pytest.raises(RestoreError, match=r"timers\(\)"):
        list(reader.keyed(UID, "event"))
    with pytest.raises(RestoreError, match=r"operator_state\(\)"):
        list(reader.keyed(UID, "pending"))


def test_a_pickled_state_is_read_only_when_told_so() -> None:
    shape = StateShape("thing", "value", "PICKLED", "pickle")
    with pytest.raises(RestoreError, match="allow_pickle"):
        EntryDecoder(shape, allow_pickle=False)
    with pytest.raises(RestoreError, match="allow_pickle"):
        EntryDecoder(StateShape("things", "list", "ROW<a LONG, b PICKLED>", "pickle"), allow_pickle=False)
    EntryDecoder(shape, allow_pickle=True)


def test_a_state_with_a_time_to_live_tells_when_it_was_last_used(tmp_path: Path) -> None:
    from headrace.backends.table import Rows
    from headrace.state.codecs import codec_for

    stored = (1_700_000_000_000).to_bytes(8, "big") + codec_for(Types.LONG()).encode(5)
    decoder = EntryDecoder(StateShape("count", "value", "TTL<LONG>"), allow_pickle=False)
    (entry,) = decoder.entries(Rows(["k"], None, None, [stored]))
    assert (entry.value, entry.last_used_ms) == (5, 1_700_000_000_000)


def test_the_namespace_of_a_time_window_is_its_start_and_end() -> None:
    assert window_of((1000).to_bytes(8, "big") + (2000).to_bytes(8, "big")) == (1000, 2000)
    assert window_of(b"") is None


# The command line


def headrace(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["state", *arguments], env={"COLUMNS": "200"})


def test_states_are_listed_and_read_on_the_command_line(path: str) -> None:
    listed = json.loads(headrace("list", path, "--json").stdout)["states"]
    assert ("by-item", "map", "MAP<STRING, DOUBLE>") in {(s["name"], s["kind"], s["type"]) for s in listed}
    assert "ROW<name STRING, score DOUBLE>" in headrace("list", path).stdout
    read = ["read", path, "--uid", UID, "--state"]
    lines = headrace(*read, "profile", "--where", "key=user-7", "--json").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [{"key": "user-7", "value": {"name": "n7", "score": 1.75}}]
    # 7 is a number, and could have been a text.
    (line,) = headrace(*read, "total", "--where", "key=7", "--json").stdout.splitlines()
    assert json.loads(line) == {"key": 7, "value": 141}
    assert len(headrace(*read, "count", "--limit", "3", "--json").stdout.splitlines()) == 3
    (timer,) = headrace(*read, "event", "--where", "key=user-5", "--json").stdout.splitlines()
    assert json.loads(timer) == {"key": "user-5", "namespace": WINDOW.hex(), "time_ms": 60_005}
    assert headrace(*read, "rules").stdout.split()[:2] == ["map_key", "value"]
    for line in headrace(*read, "count", "--json").stdout.splitlines():
        json.loads(line)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--uid", "nobody", "--state", "count"), "per-user"),
        (("--uid", UID, "--state", "nothing"), "by-item"),
        (("--uid", UID, "--state", "count", "--where", "value=3"), "key=KEY"),
        (("--uid", UID, "--state", "pending", "--where", "key=3"), "--where"),
    ],
)
def test_a_question_that_cannot_be_answered_is_refused(path: str, arguments: tuple[str, ...], word: str) -> None:
    result = headrace("read", path, *arguments)
    assert result.exit_code == 3
    assert word in result.stderr
