"""Saved state finds its subtasks again, at the same and at another parallelism, or is refused by name."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from checkpoint_examples import keyed, metadata, state_file
from hypothesis import given
from hypothesis import strategies as st

from headrace.checkpoint.handles import OperatorStateShare, PreparedItem, StateShape, SubtaskSnapshot
from headrace.checkpoint.metadata.model import CheckpointMetadata, OperatorRecord
from headrace.checkpoint.restore import OperatorTarget, RestorePlan, key_group_range, plan_restore
from headrace.errors import RestoreError

LIST = StateShape("buffered", "operator-list", "STRING")
UNION = StateShape("offsets", "operator-union", "LONG")
BROADCAST = StateShape("rules", "broadcast", "STRING")


def target(parallelism: int, **changes: object) -> OperatorTarget:
    base = OperatorTarget("op", "the operator", parallelism, 128, is_source=True, has_sink_state=True, is_keyed=True)
    fields = {name: getattr(base, name) for name in OperatorTarget.__slots__}
    return OperatorTarget(**{**fields, **changes})  # type: ignore[arg-type]


def saved(subtasks: Sequence[SubtaskSnapshot], max_parallelism: int = 128, **changes: object) -> CheckpointMetadata:
    record = OperatorRecord("op", "the operator", len(subtasks), max_parallelism, tuple(subtasks))
    return msgspec.structs.replace(metadata(), **{"operators": (record,), "enumerators": {}, "channels": (), **changes})


def subtask(index: int, parallelism: int, **parts: object) -> SubtaskSnapshot:
    return SubtaskSnapshot("op", index, parallelism, 128, **parts)  # type: ignore[arg-type]


def keyed_subtasks(parallelism: int) -> list[SubtaskSnapshot]:
    return [
        subtask(i, parallelism, keyed=keyed(state_file(f"f{i}"), groups=key_group_range(i, parallelism, 128)))
        for i in range(parallelism)
    ]


def plan(metadata: CheckpointMetadata, *targets: OperatorTarget, allow: bool = False) -> RestorePlan:
    return plan_restore(metadata, targets, (), allow_non_restored=allow)


@given(st.integers(1, 300).flatmap(lambda m: st.tuples(st.just(m), st.integers(1, m))))
def test_key_group_ranges_agree_with_the_formula_and_cover_all_groups(sizes: tuple[int, int]) -> None:
    most, parallelism = sizes
    owner = {g: i for i in range(parallelism) for g in key_group_range(i, parallelism, most)}
    assert owner == {g: g * parallelism // most for g in range(most)}


@given(st.integers(1, 20), st.integers(1, 20))
def test_every_key_group_reaches_the_subtask_that_now_owns_it(before: int, after: int) -> None:
    dealt = plan(saved(keyed_subtasks(before)), target(after))
    for i in range(after):
        own = set(key_group_range(i, after, 128))
        given_groups = [set(range(k.first_group, k.last_group + 1)) for k in dealt.subtask("op", i).keyed]
        assert own <= set().union(*given_groups)
        assert all(groups & own for groups in given_groups)


def operator_states(parallelism: int) -> list[SubtaskSnapshot]:
    return [
        subtask(
            i,
            parallelism,
            operator_state=(
                OperatorStateShare(LIST, tuple(f"{i}{letter}".encode() for letter in "abc")),
                OperatorStateShare(UNION, (str(i).encode(),)),
                OperatorStateShare(BROADCAST, (b"rule",)),
            ),
        )
        for i in range(parallelism)
    ]


def test_operator_state_is_kept_at_the_same_parallelism() -> None:
    dealt = plan(saved(operator_states(2)), target(2))
    lists, union, broadcast = dealt.subtask("op", 1).operator_state
    assert (lists.shape, lists.elements) == (LIST, (b"1a", b"1b", b"1c"))
    assert union.elements == (b"0", b"1")
    assert broadcast.elements == (b"rule",)


def test_operator_state_is_dealt_in_turn_at_another_parallelism() -> None:
    dealt = plan(saved(operator_states(2)), target(4))
    shares = [dealt.subtask("op", i).operator_state for i in range(4)]
    assert [s[0].elements for s in shares] == [(b"0a", b"1b"), (b"0b", b"1c"), (b"0c",), (b"1a",)]
    assert {s[1].elements for s in shares} == {(b"0", b"1")}
    assert {s[2].elements for s in shares} == {(b"rule",)}
    assert plan(saved(operator_states(2)), target(1)).subtask("op", 0).operator_state[0].elements == (
        b"0a",
        b"0b",
        b"0c",
        b"1a",
        b"1b",
        b"1c",
    )


@given(st.lists(st.lists(st.binary(max_size=3), max_size=5), min_size=1, max_size=6), st.integers(1, 9))
def test_no_list_element_is_lost_or_doubled_by_a_rescale(lists: list[list[bytes]], after: int) -> None:
    olds = [subtask(i, len(lists), operator_state=(OperatorStateShare(LIST, tuple(e)),)) for i, e in enumerate(lists)]
    dealt = plan(saved(olds), target(after))
    found = [e for i in range(after) for share in dealt.subtask("op", i).operator_state for e in share.elements]
    assert sorted(found) == sorted(e for elements in lists for e in elements)


def test_one_operator_state_in_two_shapes_is_refused() -> None:
    olds = [
        subtask(0, 2, operator_state=(OperatorStateShare(LIST, ()),)),
        subtask(1, 2, operator_state=(OperatorStateShare(StateShape("buffered", "operator-list", "LONG"), ()),)),
    ]
    with pytest.raises(RestoreError, match="buffered"):
        plan(saved(olds), target(2)).subtask("op", 0)


def test_an_operator_has_ended_only_if_all_its_subtasks_had() -> None:
    for ends, expected in (((True, True), True), ((True, False), False)):
        olds = [subtask(i, 2, ended=end) for i, end in enumerate(ends)]
        assert [plan(saved(olds), target(3)).subtask("op", i).ended for i in range(3)] == [expected] * 3


def test_the_watermark_is_the_least_of_the_old_ones() -> None:
    assert (
        plan(saved([subtask(0, 2, watermark=9), subtask(1, 2, watermark=5)]), target(1)).subtask("op", 0).watermark == 5
    )
    assert plan(saved([subtask(0, 2, watermark=9), subtask(1, 2)]), target(1)).subtask("op", 0).watermark is None


def test_private_state_of_an_operator_survives_at_the_same_parallelism_only() -> None:
    olds = [subtask(i, 2, extra=str(i).encode()) for i in range(2)]
    assert plan(saved(olds), target(2)).subtask("op", 1).extra == b"1"
    assert plan(saved(olds), target(3)).subtask("op", 1).extra == b""


def test_splits_enumerator_and_prepared_output_go_to_the_driver_in_order() -> None:
    olds = [
        subtask(0, 2, splits=(b"s1",), prepared=(PreparedItem(6, b"a6"), PreparedItem(7, b"a7"))),
        subtask(1, 2, splits=(b"s2", b"s3"), prepared=(PreparedItem(5, b"b5"), PreparedItem(7, b"b7"))),
    ]
    dealt = plan(saved(olds, enumerators={"op": b"e"}), target(5))
    assert dealt.splits("op") == [b"s1", b"s2", b"s3"]
    assert dealt.enumerator("op") == b"e"
    assert [item.payload for item in dealt.prepared("op")] == [b"b5", b"a6", b"a7", b"b7"]


def test_a_new_operator_starts_empty() -> None:
    dealt = plan(saved([subtask(0, 1)]), target(1), target(2, uid="new"))
    fresh = dealt.subtask("new", 1)
    assert (fresh.keyed, fresh.operator_state, fresh.ended, fresh.watermark) == ((), (), False, None)
    assert (dealt.splits("new"), dealt.enumerator("new"), dealt.prepared("new")) == ([], None, [])


def test_a_changed_max_parallelism_is_refused_by_name() -> None:
    with pytest.raises(RestoreError, match=r'"the operator" \(uid op\).*128.*256.*set_max_parallelism\(128\)'):
        plan(saved(keyed_subtasks(2)), target(2, max_parallelism=256))
    assert plan(saved([subtask(0, 1)]), target(1, max_parallelism=256))


def test_more_subtasks_than_key_groups_are_refused() -> None:
    with pytest.raises(RestoreError, match=r"uid op.*parallelism 129.*128"):
        plan(saved(keyed_subtasks(2)), target(129))


@pytest.mark.parametrize(
    ("parts", "without", "named"),
    [
        ({"keyed": keyed(state_file("f"))}, {"is_keyed": False}, "keyed state last"),
        ({"splits": (b"s",)}, {"is_source": False}, "source positions"),
        ({"prepared": (PreparedItem(1, b"x"),)}, {"has_sink_state": False}, "prepared output"),
        ({"operator_state": (OperatorStateShare(LIST, (b"x",)),)}, {"uid": "other"}, "operator state buffered"),
        ({"keyed": keyed(state_file("f"))}, {"uid": "other"}, "keyed state last"),
    ],
)
def test_state_that_nobody_claims_is_refused_unless_allowed(
    parts: dict[str, object], without: dict[str, object], named: str
) -> None:
    old = saved([subtask(0, 1, **parts)])
    with pytest.raises(RestoreError, match=rf"uid op\): {named}.*--allow-non-restored"):
        plan(old, target(1, **without))
    allowed = plan(old, target(1, **without), allow=True)
    assert allowed.dropped == [f'"the operator" (uid op): {named}']
    if "uid" not in without:
        assert allowed.subtask("op", 0).keyed == ()


def test_a_stateless_operator_may_vanish() -> None:
    assert plan(saved([subtask(0, 1, watermark=4, ended=True)]), target(1, uid="other")).dropped == []


def test_an_enumerator_that_nobody_claims_is_refused() -> None:
    with pytest.raises(RestoreError, match="uid gone: source positions"):
        plan(saved([subtask(0, 1)], enumerators={"gone": b"e"}), target(1))


def test_asking_for_a_subtask_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"0\.\.1"):
        plan(saved(keyed_subtasks(2)), target(2)).subtask("op", 2)
