"""Interval join: the pairs that a plain model finds, on both backends, through restarts at any width."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from two_input_rig import BOTH, Rig

from headrace import MIN_WATERMARK, OutputTag, ProcessJoinFunction, Row, Types
from headrace.errors import JobDefinitionError, UserFunctionError
from headrace.operators.interval_join import IntervalJoinOperator
from headrace.types.information import type_of

LEFT_LATE, RIGHT_LATE = OutputTag("left late"), OutputTag("right late")


class Pairs(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Iterator[Any]:
        yield left, right, ctx.get_left_timestamp(), ctx.get_right_timestamp()


def join(lower: int, upper: int, kind: Any = Types.STRING) -> Any:
    return lambda: IntervalJoinOperator(Pairs(), lower, upper, kind(), kind(), LEFT_LATE, RIGHT_LATE)


def pairs(rig: Rig) -> list[tuple[Any, Any]]:
    return sorted((left, right) for left, right, _, _ in rig.out.values)


@pytest.mark.parametrize("flavour", BOTH)
def test_bounds_are_inclusive_and_results_carry_the_later_time(tmp_path: Path, flavour: str) -> None:
    rig = Rig(join(-5, 10), tmp_path, flavour=flavour)
    rig.feed(0, "l", key="k", at=100)
    for at in (94, 95, 100, 110, 111):
        rig.feed(1, f"r{at}", key="k", at=at)
    rig.feed(1, "r100", key="another key", at=100)
    assert rig.out.timed == [
        (("l", "r95", 100, 95), 100),
        (("l", "r100", 100, 100), 100),
        (("l", "r110", 100, 110), 110),
    ]
    rig.close()


def test_a_pair_is_found_whichever_record_comes_first(tmp_path: Path) -> None:
    rig = Rig(join(1, 3), tmp_path)
    rig.feed(1, "r", key=1, at=12)
    rig.feed(0, "l", key=1, at=10)
    rig.feed(0, "too near", key=1, at=12)
    assert pairs(rig) == [("l", "r")]


def test_what_comes_behind_the_watermark_goes_aside_and_joins_nothing(tmp_path: Path) -> None:
    rig = Rig(join(-10, 10), tmp_path)
    rig.feed(0, "early", key=1, at=100)
    rig.watermark(101)
    rig.feed(1, "late", key=1, at=100)
    rig.feed(0, "late too", key=1, at=90)
    rig.feed(1, "just in time", key=1, at=101)
    assert pairs(rig) == [("early", "just in time")]
    assert rig.out.aside == {"right late": ["late"], "left late": ["late too"]}


@pytest.mark.parametrize("flavour", BOTH)
@pytest.mark.parametrize("bounds", [(-5, 10), (0, 0), (3, 8), (-8, -3), (1_000, 1_001)])
def test_state_is_cleaned_as_the_watermark_goes_on(tmp_path: Path, flavour: str, bounds: tuple[int, int]) -> None:
    rig = Rig(join(*bounds), tmp_path, flavour=flavour)
    for at in range(0, 100, 7):
        for key in "ab":
            rig.feed(0, "l", key=key, at=at)
            rig.feed(1, "r", key=key, at=at)
    rig.watermark(100 + 2 * max(abs(bound) for bound in bounds) + 20)
    assert rig.entries() == 0
    rig.close()


def test_at_the_end_of_input_nothing_is_left(tmp_path: Path) -> None:
    rig = Rig(join(0, 1_000_000), tmp_path)
    rig.feed(0, "l", key=1, at=5)
    rig.end()
    assert rig.entries() == 0
    assert rig.out.ended


def test_a_record_without_a_timestamp_is_refused_with_the_way_out(tmp_path: Path) -> None:
    rig = Rig(join(0, 1), tmp_path)
    with pytest.raises(UserFunctionError, match=r"'x'.*has no timestamp.*assign_timestamps_and_watermarks") as caught:
        rig.feed(0, "x", key=1)
    assert isinstance(caught.value.__cause__, JobDefinitionError)


def test_a_failing_join_function_names_the_record(tmp_path: Path) -> None:
    def fail(left: Any, right: Any, ctx: Any) -> Any:
        raise ValueError("no")

    rig = Rig(lambda: IntervalJoinOperator(fail, 0, 0, Types.ANY(), Types.ANY()), tmp_path)
    rig.feed(0, "l", key=1, at=1)
    with pytest.raises(UserFunctionError, match=r"failed on record 'r'.*ValueError"):
        rig.feed(1, "r", key=1, at=1)


class Reading(NamedTuple):
    sensor: str
    value: float


ROW = Types.ROW_NAMED(["id", "amount"], [Types.STRING(), Types.LONG()])


@pytest.mark.parametrize("flavour", BOTH)
@pytest.mark.parametrize(
    ("kind", "record"),
    [
        (ROW, Row(id="a", amount=1)),
        (Types.ROW_NAMED(["_at"], [Types.STRING()]), Row(_at="my own")),
        (type_of(Reading), Reading("a", 1.5)),
        (Types.TUPLE([Types.STRING(), Types.LIST(Types.LONG())]), ("a", [1])),
        (Types.ANY(), {"id": ["a"], "amount": (1,)}),
        (Types.PICKLED_BYTE_ARRAY(), {"id": ["a"], "amount": (1,)}),
        (Types.LONG(), 7),
    ],
    ids=["row", "row-with-the-same-name", "named-tuple", "tuple", "any", "pickled", "long"],
)
def test_records_of_every_type_are_kept(tmp_path: Path, flavour: str, kind: Any, record: Any) -> None:
    rig = Rig(lambda: IntervalJoinOperator(Pairs(), 0, 0, kind, kind), tmp_path, flavour=flavour)
    rig.feed(0, record, key=1, at=1)
    rig = rig.restarted(rig.snapshot(), parallelism=2)
    rig.feed(1, record, key=1, at=1)
    assert rig.out.values == [(record, record, 1, 1)]
    assert isinstance(rig.out.values[0][0], Row if isinstance(record, Row) else type(record))
    rig.close()


@pytest.mark.parametrize("flavour", BOTH)
def test_records_that_wait_for_a_partner_follow_a_row_that_gains_a_field(tmp_path: Path, flavour: str) -> None:
    rig = Rig(lambda: IntervalJoinOperator(Pairs(), 0, 0, ROW, ROW), tmp_path, flavour=flavour)
    rig.feed(0, Row(id="a", amount=1), key=1, at=1)
    grown = Types.ROW_NAMED(["id", "amount", "note"], [Types.STRING(), Types.LONG(), Types.STRING()])
    rig = rig.restarted(rig.snapshot(), make=lambda: IntervalJoinOperator(Pairs(), 0, 0, grown, ROW))
    rig.feed(1, Row(id="b", amount=2), key=1, at=1)
    assert rig.out.values == [(("a", 1, None), ("b", 2), 1, 1)]
    rig.close()


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([0, 1]), st.integers(0, 3), st.integers(-30, 60)),
        st.tuples(st.just("watermark"), st.just(0), st.integers(-30, 60)),
        st.tuples(st.just("restart"), st.integers(1, 3), st.booleans()),
    ),
    max_size=40,
)


def model(events: list[Any], lower: int, upper: int) -> tuple[Counter[Any], Counter[Any]]:
    """All pairs within the bounds of records that were not behind the watermark when they came; and the others."""
    watermark = MIN_WATERMARK
    on_time: list[tuple[int, int, int, int]] = []
    late: Counter[Any] = Counter()
    for number, (what, key, at) in enumerate(events):
        if what == "watermark":
            watermark = max(watermark, at)
        elif what != "restart":
            if at >= watermark:
                on_time.append((what, key, at, number))
            else:
                late[what, f"{number}"] += 1
    found = Counter(
        (f"{left[3]}", f"{right[3]}", left[2], right[2])
        for left in on_time
        for right in on_time
        if (left[0], right[0]) == (0, 1) and left[1] == right[1] and left[2] + lower <= right[2] <= left[2] + upper
    )
    return found, late


@pytest.mark.thorough
@settings(max_examples=25)
@given(
    events=EVENTS,
    bounds=st.tuples(st.integers(-20, 20), st.integers(0, 25)).map(lambda b: (b[0], b[0] + b[1])),
    flavour=st.sampled_from(BOTH),
)
def test_it_finds_the_pairs_of_a_plain_model_through_restarts_at_any_width(
    tmp_path_factory: pytest.TempPathFactory, events: list[Any], bounds: tuple[int, int], flavour: str
) -> None:
    rig = Rig(join(*bounds), tmp_path_factory.mktemp("rig"), flavour=flavour)
    watermark = MIN_WATERMARK
    for number, (what, key, at) in enumerate(events):
        match what:
            case "watermark":
                watermark = max(watermark, at)
                rig.watermark(watermark)
            case "restart":
                rig = rig.restarted(rig.snapshot(number + 1, canonical=at), parallelism=key)
                if watermark > MIN_WATERMARK:
                    # Watermarks are no state: the sources send them anew before any record behind them.
                    rig.watermark(watermark)
            case _:
                rig.feed(what, f"{number}", key=key, at=at)
    found, late = model(events, *bounds)
    assert Counter(rig.out.values) == found
    aside = rig.out.aside
    assert Counter([(0, v) for v in aside["left late"]] + [(1, v) for v in aside["right late"]]) == late
    rig.watermark(1_000)
    assert rig.entries() == 0
    rig.close()
